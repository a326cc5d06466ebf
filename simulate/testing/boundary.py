"""Boundary probes: a uniform sampler tried where its uniforms meet its thresholds.

At the ends, u = 0 and u = nextafter(1, 0), and around every threshold h (f of a drafted token, or h_i of block
verification): u exactly h, one unit in the last place below and above, and a little further off. A test must succeed
iff u < h, strictly, and no token of probability zero may be drawn whatever u_final is.

Two kinds of failure are told apart. *Decisive*: an event of declared probability zero happened, or a test fell on the
wrong side further from its threshold than rounding reaches. *Rounding*: the wrong side nearer than that; a sampler that
computes f in another order may do so, and its law is off by no more.

>>> from simulate.testing.mutants.skeleton import TokenWise
>>> refute(TokenWise()) is None
True
>>> failure = refute(TokenWise(accepts=lambda u, f: u <= f))
>>> failure.drafts.tolist(), failure.acceptance.tolist(), failure.what
([1], [0.0], 'accepted 1, expected 0')
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

import theory
from simulate.testing.calls import BadAnswer, answer
from simulate.testing.exact_mode import all_blocks
from simulate.testing.protocol import Floats, Integers, Rounds
from simulate.testing.uniforms import LAST_UNIFORM, Uniforms, UniformSampler
from theory.arrays import to_numpy

TOKEN_MARGIN = 8 * 2.0**-52
"""How far another order of operations moves f = p/q, relatively: p and q are normalised (one rounding and a sum each),
then divided, or subtracted as logarithms of size up to one."""

BLOCK_MARGIN = 1e-8
"""The same for h = M/(M + 1 − s): M and 1 − s are differences, and lose the digits that cancel."""

LOSSLESS = theory.Verifier(theory.Lossless())


class BoundaryFailure(NamedTuple):
    """One round answered wrongly; `str` prints it."""

    target_probs: Floats
    draft_probs: Floats
    drafts: Integers
    acceptance: Floats
    final: float
    what: str
    decisive: bool

    def __str__(self) -> str:
        return (
            f"p = {self.target_probs.tolist()}, q = {self.draft_probs.tolist()}, drafts {self.drafts.tolist()}, "
            f"acceptance uniforms {self.acceptance.tolist()}, final uniform {self.final!r}: {self.what}"
        )


@dataclass(frozen=True, eq=False)
class _Declared:
    """Thresholds of a batch of blocks, and what follows from uniforms."""

    verifier: Any
    rounds: Rounds

    @cached_property
    def tests(self) -> theory.BlockTests | None:
        """Of a block verifier."""
        r = self.rounds
        if not theory.is_block(self.verifier):
            return None
        return theory.block_tests(self.verifier, r.draft_ids, r.target_probs[:, :-1], r.draft_probs)

    @cached_property
    def weights(self) -> Floats | None:
        """What the verifier carries to every prefix, shape (B, L+1); None if it carries nothing."""
        if not self.verifier.stateful:
            return None
        r = self.rounds
        u = np.zeros(r.draft_ids.shape)
        carried = theory.accepted_drafts(self.verifier, r.draft_ids, r.target_probs[:, :-1], r.draft_probs, u).weights
        return to_numpy(carried)

    @cached_property
    def thresholds(self) -> Floats:
        """h, or f of a token-wise verifier, of every test, shape (B, L)."""
        r = self.rounds
        if self.tests is not None:
            return to_numpy(self.tests.success)[:, 1:]
        found = []
        for i in range(r.length):
            p, q = r.target_probs[:, i], r.draft_probs[:, i]
            if self.weights is None:
                f = to_numpy(theory.acceptance_of(self.verifier, p, q, i))
            else:
                accepted = to_numpy(self.verifier.step(p, q, i, self.weights[:, i]).accepted)
                f = np.divide(accepted, q, out=np.zeros_like(q), where=q > 0)
            found.append(f[np.arange(r.count), r.draft_ids[:, i]])
        return np.stack(found, axis=1)

    def decisive(self, u: Floats) -> Any:
        """Rows (B,) in which no uniform is so near its threshold that rounding could move it to the other side."""
        h = self.thresholds
        if self.tests is None:
            # min(p, q)/q is 0 or 1 whatever the rounding.
            return ((h == 0) | (h == 1) | (abs(u - h) > TOKEN_MARGIN * h)).all(axis=1)
        # h is 0/0 up to rounding where s = 1, before the last test.
        s = to_numpy(self.tests.weights)[:, 1:]
        blurred = (s > 1 - BLOCK_MARGIN) & (np.arange(s.shape[1]) < s.shape[1] - 1)
        return (~blurred & (abs(u - h) > BLOCK_MARGIN)).all(axis=1)

    def accepted(self, u: Floats) -> Integers:
        """Accepted drafts (B,)."""
        if self.tests is not None:
            return to_numpy(theory.last_success(self.tests.success, u))
        return np.asarray(np.cumprod(u < self.thresholds, axis=1).sum(axis=1))

    def next_law(self, row: int, accepted: int) -> Floats:
        """Law of the token after so many accepted drafts."""
        r = self.rounds
        if accepted == r.length:
            return np.asarray(r.target_probs[row, accepted])
        p, q = r.target_probs[row, accepted], r.draft_probs[row, accepted]
        if self.weights is not None:
            return to_numpy(self.verifier.step(p, q, accepted, self.weights[row, accepted]).residual)
        return to_numpy(theory.residual_after(self.verifier, p, q, None, r.draft_ids[row, accepted], accepted))


def _trials(h: Floats, margin: float) -> Iterator[tuple[Floats, float]]:
    """Acceptance uniforms (B, L) and the final uniform: one test at a time is brought to its threshold."""
    for place in range(h.shape[1]):
        own = h[:, place]
        beside = [np.nextafter(own, 0), np.nextafter(own, 1), own * (1 - 2 * margin), own * (1 + 2 * margin)]
        for tried in [np.zeros(len(h)), np.full(len(h), LAST_UNIFORM), own, *beside]:
            u = np.zeros_like(h)
            u[:, place + 1 :] = LAST_UNIFORM
            u[:, place] = np.clip(tried, 0.0, LAST_UNIFORM)
            yield u, 0.5
    for final in (0.0, LAST_UNIFORM):
        for fill in (0.0, LAST_UNIFORM):
            yield np.full_like(h, fill), final


def boundary_failures(
    sampler: UniformSampler,
    target: theory.Chain,
    draft: theory.Chain,
    length: int,
    verifier: theory.AnyVerifier = LOSSLESS,
) -> list[BoundaryFailure]:
    """Every boundary probe that fails on every block that can be drafted, decisive ones first.

    Parameters
    ----------
    sampler : function (Rounds, Uniforms) → Emitted
    target, draft : Chain
    length : int
    verifier : verifier
        What is declared; lossless by default.
    """
    rounds, _ = all_blocks(target, draft, length, draft)
    declared = _Declared(verifier, rounds)
    found = []
    for u, final in _trials(declared.thresholds, BLOCK_MARGIN if theory.is_block(verifier) else TOKEN_MARGIN):
        decisive, right = declared.decisive(u), declared.accepted(u)
        uniforms = Uniforms(u, np.full(rounds.count, final))
        try:
            tokens, accepted = answer(
                lambda uniforms=uniforms: sampler(rounds, uniforms),  # type: ignore[misc]
                rounds.count, length, rounds.vocab_size, rounds.draft_ids, None,
            )  # fmt: skip
        except BadAnswer as error:
            # Row 0 stands for the batch where the answer itself is none.
            found.append(_failure(rounds, 0, uniforms, str(error), True))
            continue
        for row in range(rounds.count):
            if accepted[row] != right[row]:
                what = f"accepted {accepted[row]}, expected {right[row]}"
                found.append(_failure(rounds, row, uniforms, what, bool(decisive[row])))
            elif declared.next_law(row, int(right[row]))[tokens[row, right[row]]] <= 0:
                what = f"drew token {tokens[row, right[row]]}, which has probability 0"
                found.append(_failure(rounds, row, uniforms, what, True))
    return sorted(found, key=lambda failure: not failure.decisive)


def _failure(rounds: Rounds, row: int, uniforms: Uniforms, what: str, decisive: bool) -> BoundaryFailure:
    laws = rounds.target_probs[row], rounds.draft_probs[row]
    return BoundaryFailure(
        *laws, rounds.draft_ids[row], uniforms.acceptance[row], float(uniforms.final[row]), what, decisive
    )


EXACT_PAIRS: tuple[tuple[list[float], list[float]], ...] = (
    ([1.0, 0.0], [0.5, 0.5]),
    ([0.25, 0.75], [0.5, 0.5]),
    ([0.5, 0.5], [0.5, 0.5]),
    ([0.0, 0.25, 0.75], [0.5, 0.25, 0.25]),
    ([0.5, 0.5, 0.0], [0.25, 0.25, 0.5]),
)
"""Pairs on which edges are met exactly, smallest first; p/q is computed without rounding."""

ROUNDED_PAIRS: tuple[tuple[list[float], list[float]], ...] = (
    ([3 / 26, 3 / 26, 4 / 26, 4 / 26, 6 / 26, 6 / 26], [1 / 6] * 6),
    ([3 / 26, 3 / 26, 4 / 26, 4 / 26, 6 / 26, 6 / 26, 0.0], [1 / 7] * 7),
)
"""Pairs whose partial sums end below one."""


def refute(
    sampler: UniformSampler, verifier: theory.AnyVerifier = LOSSLESS, length: int = 1, *, strict: bool = False
) -> BoundaryFailure | None:
    """The smallest input on which a boundary probe fails, or None.

    Parameters
    ----------
    sampler : function (Rounds, Uniforms) → Emitted
    verifier : verifier
        What is declared; lossless by default.
    length : int
        L.
    strict : bool
        Whether failures within rounding of a threshold count, on pairs where p/q has none: u exactly f must be
        rejected.
    """
    for p, q in EXACT_PAIRS + ROUNDED_PAIRS:
        counted = strict and (p, q) in EXACT_PAIRS
        for failure in boundary_failures(sampler, theory.IIDChain(p), theory.IIDChain(q), length, verifier):
            if failure.decisive or counted:
                return failure
    return None
