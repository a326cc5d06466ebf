"""The outcomes of a round, their declared law, and the cells in which outcomes are counted.

A round of L drafts emits an *outcome* (a, x_1…x_{a+1}): a accepted drafts and the tokens, the last of which is a
replacement (a < L) or the bonus token (a = L). A declared verifier fixes its law: with A_i the accepted-path mass,
R_i the rejection probability and G_i the residual,

    P(a, x_1…x_{a+1}) = A_a(x_1…x_a) · R_{a+1} G_{a+1}(x_{a+1})   (a < L),      A_L(x_1…x_L) · p(x_{L+1})   (a = L).

Continuing every outcome with the target to L+1 tokens sums this to the law of `theory.analyse_round`, the oracle of
this module. Outcomes are finer: two samplers with one law of tokens can accept differently.

Where drafts are drawn from a law u that is not the declared q (*forced* drafts, for tokens that q hardly ever gives),
the same holds with u f in place of q f and Σ u (1 − f) in place of R, if the verifier is token-wise and its residual
does not depend on the rejected token.

Only the first `depth` tokens of an outcome are told apart, as many as `MOST_CELLS` allows: a round whose vocabulary is
too large for its joint law is compared on its leading tokens.

>>> space = Space(2, 1, counts=True)
>>> [space.describe(cell) for cell in range(space.cells)][:3]
['accepted 0, tokens (0)', 'accepted 0, tokens (1)', 'accepted 1, tokens (0, 0)']
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

import theory
from simulate.laws import laws_after
from simulate.testing.protocol import Floats, Integers
from theory.arrays import to_numpy
from theory.chains import all_prefixes, joint_layers

MOST_CELLS = 2**17
"""Most cells that outcomes are counted in: a check of all of them takes some ten milliseconds."""

BINS = 8
"""Runs of consecutive ids that the first token of a large vocabulary is also counted in; faults of cumulative sums
favour low or high ids."""


class Statistic(NamedTuple):
    """A coarser view of the cells."""

    name: str
    label: Integers
    """Shape (cells,): the coarse cell of every cell."""
    cells: int


@dataclass(frozen=True)
class Space:
    """The cells in which outcomes are counted.

    Parameters
    ----------
    vocab_size, length : int
        V and L.
    counts : bool
        Whether a cell is an outcome (a, x_1…x_{a+1}), or the L+1 tokens of an outcome continued with the target.
    """

    vocab_size: int
    length: int
    counts: bool

    @cached_property
    def depth(self) -> int:
        """Leading tokens told apart, 1…L+1."""
        depth = self.length + 1
        while depth > 1 and 2 * self.vocab_size**depth > MOST_CELLS:
            depth -= 1
        return depth

    @cached_property
    def _widths(self) -> list[int]:
        """Tokens of the outcomes with 0, 1, … accepted drafts; `depth` accepted or more are one class."""
        if not self.counts:
            return [self.depth]
        return [min(a + 1, self.depth) for a in range(min(self.length, self.depth) + 1)]

    @cached_property
    def _offsets(self) -> Integers:
        return np.cumsum([0, *(self.vocab_size**width for width in self._widths)])

    @property
    def cells(self) -> int:
        return int(self._offsets[-1])

    def encode(self, accepted: Integers, tokens: Integers) -> Integers:
        """Cells (B,) of outcomes: accepted (B,), tokens (B, L+1), complete unless `counts`."""
        kind = np.minimum(accepted, len(self._widths) - 1) if self.counts else np.zeros_like(accepted)
        index = np.zeros_like(accepted)
        for place in range(self.depth):
            here = place < np.asarray(self._widths)[kind]
            index = np.where(here, index * self.vocab_size + tokens[:, place], index)
        return np.asarray(self._offsets[kind] + index)

    @cached_property
    def outcomes(self) -> tuple[Integers, Integers]:
        """Accepted drafts (cells,) and tokens (cells, depth) of every cell, −1 where an outcome has ended."""
        accepted, tokens = [], []
        for kind, width in enumerate(self._widths):
            rows = all_prefixes(self.vocab_size, width)
            tokens.append(np.pad(rows, ((0, 0), (0, self.depth - width)), constant_values=-1))
            accepted.append(np.full(len(rows), kind if self.counts else -1))
        return np.concatenate(accepted), np.concatenate(tokens)

    def describe(self, cell: int) -> str:
        accepted, tokens = (a[cell] for a in self.outcomes)
        text = f"tokens ({', '.join(str(x) for x in tokens if x >= 0)})"
        if not self.counts:
            return text
        more = " or more" if accepted >= self.depth and accepted < self.length else ""
        return f"accepted {accepted}{more}, {text}"

    def describe_event(self, statistic: Statistic, label: int) -> str:
        """Words for a coarse cell."""
        cell = int(np.argmax(statistic.label == label))
        accepted, tokens = (a[cell] for a in self.outcomes)
        emitted = tokens[tokens >= 0]
        if statistic.name == "accepted count":
            return f"accepted {accepted}"
        if statistic.name == "accepted count and last token":
            return f"accepted {accepted}, last token {emitted[-1]}"
        if statistic.name == "first token":
            return f"first token {emitted[0]}"
        if statistic.name.startswith("first token in"):
            ids = np.unique(self.outcomes[1][statistic.label == label, 0])
            return f"first token in {ids[0]}…{ids[-1]}"
        if statistic.name.startswith("first"):
            return f"{statistic.name} {tuple(emitted[: int(statistic.name.split()[1])].tolist())}"
        return self.describe(cell)

    @cached_property
    def statistics(self) -> list[Statistic]:
        """The cells themselves and coarser views; a fault seen in a coarse view is found with fewer rounds."""
        accepted, tokens = self.outcomes
        views = [("outcome" if self.counts else "tokens", np.arange(self.cells))]
        if self.counts:
            last = np.take_along_axis(tokens, (tokens >= 0).sum(axis=1)[:, None] - 1, axis=1)[:, 0]
            views += [
                ("accepted count", accepted),
                ("accepted count and last token", accepted * self.vocab_size + last),
            ]
        prefix = np.zeros(self.cells, dtype=np.int64)
        for place in range(self.depth - 1):
            prefix = prefix * (self.vocab_size + 1) + tokens[:, place] + 1
            views.append(("first token" if place == 0 else f"first {place + 1} tokens", prefix))
        if self.vocab_size > 2 * BINS:
            views.append((f"first token in {BINS} runs of ids", tokens[:, 0] * BINS // self.vocab_size))
        return [Statistic(name, *_compact(label)) for name, label in views]


def _compact(label: Integers) -> tuple[Integers, int]:
    values, inverse = np.unique(label, return_inverse=True)
    return inverse.reshape(-1), len(values)


def outcome_law(
    target: theory.Chain,
    draft: theory.Chain,
    verifier: theory.AnyVerifier,
    space: Space,
    drawn_from: theory.Chain | None = None,
) -> Floats:
    """Declared law of the outcomes, shape (cells,), summing to one.

    Parameters
    ----------
    target, draft : theory.Chain
        p and the declared q.
    verifier : Verifier or a block verifier
    space : Space
    drawn_from : theory.Chain, optional
        u, the law the drafts really come from; q by default.

    Raises
    ------
    ValueError
        For chains too shallow, different vocabularies, a schedule shorter than the round, or forced drafts where the
        declared verifier does not fix what follows them.
    """
    parts = _parts(target, draft, verifier, space, drawn_from)
    flat = np.concatenate(parts) if space.counts else complete(parts, target, space.depth)
    return np.asarray(flat / flat.sum())


def complete(parts: list[Floats], target: theory.Chain, depth: int) -> Floats:
    """Law (or mass) of outcomes, flat, continued with the target to `depth` tokens.

    parts[a] is the mass of those with a accepted drafts and so a + 1 tokens; those with `depth` accepted or more, if
    there are any, are told apart by their first `depth` tokens.
    """
    ended = parts[0]
    for i, part in enumerate(parts[1:depth], 1):
        ended = part + (ended[:, None] * _level(target, i)).ravel()
    return ended + parts[depth] if len(parts) > depth else ended


def split(mass: Floats, space: Space) -> list[Floats]:
    """Mass by cell as one array for each accepted count."""
    return np.split(mass, space._offsets[1:-1])


def forced_drafts_fixed(verifier: theory.AnyVerifier) -> bool:
    """Whether the declared verifier fixes what follows a given draft (see the head of this module)."""
    residual = getattr(verifier, "residual", None)
    return not verifier.stateful and not isinstance(residual, theory.DraftDependentResidual)


def _parts(
    target: theory.Chain,
    draft: theory.Chain,
    verifier: theory.AnyVerifier,
    space: Space,
    drawn_from: theory.Chain | None,
) -> list[Floats]:
    """Masses of the outcomes with 0, 1, … accepted drafts, in the order of the cells of a space with counts."""
    if drawn_from is not None and not forced_drafts_fixed(verifier):
        raise ValueError(f"{verifier} does not fix what follows a given draft; give no drawn_from")
    drafted = min(space.length, space.depth)
    drawing: Any = (
        [None] * drafted
        if drawn_from is None
        else joint_layers(drawn_from, drawn_from, drafted, enumerate_prefixes=True)
    )
    parts: list[Floats] = []
    mass, weight = np.ones(1), None
    layers = joint_layers(target, draft, drafted, enumerate_prefixes=True)
    for position, (layer, drawn) in enumerate(zip(layers, drawing, strict=True)):
        p, q = (np.asarray(to_numpy(a), dtype=np.float64) for a in (layer.target, layer.draft))
        step = verifier.step(p, q, position, weight)
        weight = None if step.weight is None else step.weight.ravel()
        accepted, rejection = step.accepted, step.rejection
        if drawn is not None:
            u = to_numpy(drawn.draft)
            accepted = u * theory.acceptance_of(verifier, p, q, position)
            rejection = 1 - accepted.sum(axis=-1)
        parts.append(((mass * rejection)[:, None] * step.residual).ravel())
        mass = (mass[:, None] * accepted).ravel()
    if space.depth > space.length:
        mass = (mass[:, None] * _level(target, space.length)).ravel()
    return [*parts, mass]


def _level(chain: theory.Chain, depth: int) -> Floats:
    """p after every prefix of `depth` tokens, (V**depth, V)."""
    return laws_after(chain, all_prefixes(chain.vocab_size, depth))
