"""The exact law of a sampler whose uniforms are an argument.

Given a drafted block, a uniform sampler is a function of u = (u_1, …, u_L, u_final) ∈ [0, 1)^(L+1). If that function is
constant on the cells of a grid (an acceptance test compares one u_i with a threshold, a draw compares u_final with
partial sums), then its law is a finite sum,

    P(output) = Σ_blocks Q(block) · Σ_cells volume(cell) · 1[output on the cell],

whatever the sampler is written in. A generator's uniforms are multiples of 2⁻⁵³; thresholds are found by bisection
down to neighbouring multiples, so the law is the one the sampler has in practice, within 2⁻⁵³ of the real-number law
per threshold.

**Assumed, and checked by probes:** the same uniforms give the same answer; a row's answer does not depend on the other
rows; and answers change only across thresholds of single uniforms. A piece narrower than 1/32 is found if it has an end
at a *candidate* (acceptance probabilities and partial sums of p, q and the lossless residual) or if the answers on its
two sides differ. What the probes cannot see is a narrower window, away from every candidate, with one answer on both
sides.

p = (½, 3/10, 1/5), q = (1/5, 3/10, ½): replacing the residual by p gives (7/20, 39/100, 13/50).

>>> from simulate.testing.mutants.skeleton import TokenWise
>>> from theory import IIDChain
>>> faulty = TokenWise(residual=lambda p, q, x: p)
>>> found = exact_law(faulty, IIDChain([0.5, 0.3, 0.2]), IIDChain([0.2, 0.3, 0.5]), 1)
>>> found.law.sum(axis=1).round(12).tolist(), found.accepted.round(12).tolist()
([0.35, 0.39, 0.26], [0.3, 0.7])
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import theory
from simulate.laws import teacher_forced
from simulate.testing.outcomes import complete
from simulate.testing.pieces import constant_pieces
from simulate.testing.protocol import Floats, Integers, Rounds
from simulate.testing.uniforms import UniformSampler
from theory.arrays import same_vocabulary, whole_number
from theory.chains import all_prefixes, check_depth

LARGEST_TABLE = 2**18
"""Most sequences V^(L+1) of a law found this way: every block has its own grid of cells."""


@dataclass(frozen=True, eq=False)
class ExactLaw:
    """What a sampler does; see `exact_law`."""

    law: Floats
    """Shape (V,)*(L+1): the round's output, continued with the target."""
    accepted: Floats
    """Shape (L+1,): law of the number of accepted drafts."""
    cells: int
    """Cells of constant output, over all drafted blocks."""

    @property
    def expected_accepted(self) -> float:
        """N."""
        return float(self.accepted @ np.arange(len(self.accepted)))

    def total_variation(self, law: Any) -> float:
        """TV between this law and another of the same shape."""
        return float(theory.total_variation(self.law.ravel(), np.asarray(law).ravel()))


def all_blocks(target: theory.Chain, draft: theory.Chain, length: int, drawn: theory.Chain) -> tuple[Rounds, Floats]:
    """Every block that can be drafted, with the declared laws along it, and its probability under `drawn`."""
    ids = all_prefixes(target.vocab_size, length)
    masses = np.take_along_axis(teacher_forced(drawn, ids), ids[:, :, None], axis=-1)[:, :, 0].prod(axis=1)
    keep = masses > 0
    return Rounds.along(target, draft, ids[keep]), masses[keep]


def exact_law(
    sampler: UniformSampler,
    target: theory.Chain,
    draft: theory.Chain,
    length: int,
    *,
    drawn: theory.Chain | None = None,
) -> ExactLaw:
    """Exact law of a round, by integrating over the uniforms.

    Parameters
    ----------
    sampler : function (Rounds, Uniforms) → Emitted
        See `simulate.testing.driven` for a sampler that draws from a generator.
    target, draft : Chain
        Of one vocabulary; the draft is the law the sampler is told.
    length : int
        L ≥ 1. V^(L+1) ≤ 2¹⁸.
    drawn : Chain, optional
        The law that drafts are really drawn from, where it is not the declared one.

    Returns
    -------
    ExactLaw

    Raises
    ------
    NotPiecewise
        If a probe finds that the answer is not constant where it should be, naming block and uniforms.
    BadAnswer
        For an answer that is none, naming the row.
    ValueError
        For chains too shallow or a table too large.

    Notes
    -----
    Source: this project. Oracle: `theory.analyse_round` on correct samplers.
    """
    length = whole_number(length, "length", 1)
    size = target.vocab_size
    source = draft if drawn is None else drawn
    for chain, name in ((draft, "draft"), (source, "drawn")):
        same_vocabulary(size, chain.vocab_size)
        check_depth(chain, length, name, f"a round of {length} drafted tokens")
    check_depth(target, length + 1, "target", f"a round of {length} drafted tokens and one more")
    if size ** (length + 1) > LARGEST_TABLE:
        raise ValueError(
            f"the law of {length + 1} tokens over {size} ids has {size ** (length + 1)} entries, more than "
            f"{LARGEST_TABLE}; use a smaller chain here and assert_law on this one"
        )
    rounds, masses = all_blocks(target, draft, length, source)
    blocks, volumes, tokens = constant_pieces(sampler, rounds)
    return _collect(tokens, masses[blocks] * volumes, target)


def _collect(tokens: Integers, weights: Floats, target: theory.Chain) -> ExactLaw:
    """Sum weighted outputs into the law of L+1 tokens, continuing each with the target."""
    size, length = target.vocab_size, tokens.shape[1] - 1
    accepted = (tokens >= 0).sum(axis=1) - 1
    parts: list[Floats] = []
    for a in range(length + 1):
        ended = accepted == a
        index = tokens[ended, : a + 1] @ size ** np.arange(a, -1, -1)
        parts.append(np.bincount(index, weights[ended], minlength=size ** (a + 1)).astype(np.float64))
    counts = np.bincount(accepted, weights, minlength=length + 1).astype(np.float64)
    return ExactLaw(complete(parts, target, length + 1).reshape((size,) * (length + 1)), counts, len(tokens))
