"""Faults between the law that drafts are drawn from and the law that is declared.

Most draw from another chain. Some share noise between the draft and what follows it; their laws are given here in
closed form, or as a sum over the cells of three uniforms (draft, test, replacement).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

import theory
from simulate.laws import laws_after
from simulate.testing.mutants.mutant import MARKOV, P0, Q0, Mutant, by_uniforms
from simulate.testing.mutants.ratios import nucleus, tempered
from simulate.testing.mutants.skeleton import TokenWise, at, emit, inverse_cdf, lossless_residual, ratio
from simulate.testing.protocol import Emitted, Floats, Integers, RoundDecoder

DECLARED = "declared draft ≠ used draft"
GREEDY = "draft drawn greedily, ratio uses soft q"
WARPED = "temperature not applied to verification or bonus"
NOISE = "residual noise = draft noise"


@dataclass(frozen=True, eq=False)
class Derived:
    """A chain whose rows are a function of another chain's; `stale` leaves out the last token of the prefix."""

    chain: theory.Chain
    rows: Callable[[Floats], Floats]
    stale: bool = False

    @property
    def vocab_size(self) -> int:
        return self.chain.vocab_size

    @property
    def depth(self) -> int | None:
        return self.chain.depth

    def conditional(self, prefixes: Any) -> Floats:
        """Next-token laws, shape (n, V)."""
        ids = np.asarray(prefixes)
        ids = ids[:, :-1] if self.stale and ids.shape[1] else ids
        return self.rows(laws_after(self.chain, ids))


def from_rows(rows: Callable[[Floats], Floats], stale: bool = False) -> Callable[[theory.Chain], theory.Chain]:
    """The drafter that draws from changed rows."""
    return lambda chain: Derived(chain, rows, stale)


def top(laws: Floats, k: int) -> Any:
    """The k likeliest tokens, renormalised; (..., V)."""
    order = np.argsort(-laws, axis=-1, kind="stable")
    kept = laws.copy()
    np.put_along_axis(kept, order[..., k:], 0.0, axis=-1)
    return kept / kept.sum(axis=-1, keepdims=True)


def _without_first(laws: Floats) -> Any:
    kept = laws.copy()
    kept[..., 0] = 0.0
    return kept / kept.sum(axis=-1, keepdims=True)


def _explored(laws: Floats) -> Any:
    return 0.9 * laws + 0.1 / laws.shape[-1]


def _shifted(laws: Floats) -> Floats:
    return np.roll(laws, 1, axis=-1)


Step = Callable[..., tuple[Integers, Any, Integers]]
"""(p, q, *noise) → drafted token, accepted flag, replacement; laws (B, V)."""


def three_uniforms(p: Floats, rng: np.random.Generator) -> tuple[Floats, ...]:
    """u_draft, u_test, u_replacement, each (B,)."""
    return rng.random(len(p)), rng.random(len(p)), rng.random(len(p))


def exponentials_and_test(p: Floats, rng: np.random.Generator) -> tuple[Floats, ...]:
    """One exponential for every token, (B, V), and u_test, (B,)."""
    return np.asarray(rng.standard_exponential(p.shape)), rng.random(len(p))


def one_step(
    step: Step, noise: Callable[[Floats, np.random.Generator], tuple[Floats, ...]] = three_uniforms
) -> RoundDecoder:
    """A decoder of one drafted token on independent chains."""

    def run(target: theory.Chain, draft: theory.Chain, length: int, count: int, rng: np.random.Generator) -> Emitted:
        start = np.zeros((count, 0), dtype=np.int64)
        p, q = (laws_after(chain, start) for chain in (target, draft))
        x, accepted, replacement = step(p, q, *noise(p, rng))
        bonus = inverse_cdf(laws_after(target, x[:, None]), rng.random(count))
        return emit(x[:, None], accepted.astype(np.int64), np.where(accepted, bonus, replacement))

    return RoundDecoder(run)


def step_law(step: Step, target: theory.Chain, draft: theory.Chain) -> Any:
    """Law of two tokens of `one_step` with three uniforms, whose thresholds are all f or partial sums of laws."""
    start = np.zeros((1, 0), dtype=np.int64)
    p, q = (laws_after(chain, start)[0] for chain in (target, draft))
    x = np.arange(len(p))
    f = ratio(np.tile(p, (len(p), 1)), np.tile(q, (len(p), 1)), x)
    residual = lossless_residual(p[None], q[None], x[:1])[0]
    edges = np.unique(np.clip(np.concatenate([[0, 1], f, p.cumsum(), q.cumsum(), residual.cumsum()]), 0, 1))
    sides = np.diff(edges)
    u = np.stack(np.meshgrid(*[(edges[1:] + edges[:-1]) / 2] * 3, indexing="ij")).reshape(3, -1)
    volume = (sides[:, None, None] * sides[:, None] * sides).ravel()
    rows = np.ones((len(volume), 1))
    drafted, accepted, replacement = step(rows * p, rows * q, *u)
    first = np.bincount(np.where(accepted, drafted, replacement), volume, minlength=len(p))
    return first[:, None] * laws_after(target, x[:, None])


def _redraws_with_draft_uniform(p: Floats, q: Floats, a: Floats, b: Floats, c: Floats) -> Any:
    x = inverse_cdf(q, a)
    return x, b < ratio(p, q, x), inverse_cdf(lossless_residual(p, q, x), a)


def _tests_with_draft_uniform(p: Floats, q: Floats, a: Floats, b: Floats, c: Floats) -> Any:
    x = inverse_cdf(q, a)
    return x, a < ratio(p, q, x), inverse_cdf(lossless_residual(p, q, x), c)


def _redraws_with_test_uniform(p: Floats, q: Floats, a: Floats, b: Floats, c: Floats) -> Any:
    x = inverse_cdf(q, a)
    return x, b < ratio(p, q, x), inverse_cdf(lossless_residual(p, q, x), b)


def _gumbel_twice(p: Floats, q: Floats, noise: Floats, u: Floats) -> Any:
    """Draft and residual token from one vector of exponential noise: argmin E/q, then argmin E/residual."""
    x = np.argmax(q / noise, axis=-1)
    return x, u < at(p, x) / at(q, x), np.argmax(lossless_residual(p, q, x) / noise, axis=-1)


def both_least(q: Floats, r: Floats, x: int, y: int) -> float:
    """P(x = argmin E/q and y = argmin E/r), E independent exponentials, x ≠ y, r(x) = 0.

    With E_x = s and E_y = w s it is ∫∫ s exp(−s(1 + w + Σ_z max(q_z/q_x, w r_z/r_y))) dw ds over w ≥ q_y/q_x: the
    integral over s is 1/(…)², and the rest is rational between the points where a maximum changes sides.
    """
    others = [z for z in range(len(q)) if z not in (x, y)]
    low = q[y] / q[x]
    turns = [q[z] / q[x] * r[y] / r[z] for z in others if r[z] > 0]
    ends = [low, *sorted(t for t in turns if t > low), np.inf]
    total = 0.0
    for left, right in pairwise(ends):
        middle = left + 1 if np.isinf(right) else (left + right) / 2
        slope, constant = 1.0, 1.0
        for z in others:
            rising = middle * r[z] / r[y] > q[z] / q[x]
            slope, constant = (slope + r[z] / r[y], constant) if rising else (slope, constant + q[z] / q[x])
        total += (1 / (constant + slope * left) - (0.0 if np.isinf(right) else 1 / (constant + slope * right))) / slope
    return total


def gumbel_law(target: theory.IIDChain, draft: theory.IIDChain) -> Any:
    """Law of two tokens of a decoder that draws draft and residual token from one noise vector."""
    p, q = np.asarray(target.p), np.asarray(draft.p)
    f = np.minimum(1.0, p / q)
    residual = np.maximum(p - q, 0.0)
    first = q * f
    for y in np.flatnonzero(residual > 0):
        first[y] += sum((1 - f[x]) * both_least(q, residual, int(x), int(y)) for x in np.flatnonzero(f < 1))
    return first[:, None] * p


SMALL = theory.IIDChain([0.45, 0.45, 0.1]), theory.IIDChain([0.3, 0.1, 0.6])


def _shared_step(name: str, step: Step) -> Mutant:
    return Mutant(name, NOISE, one_step(step), target=SMALL[0], draft=SMALL[1], exact=lambda: step_law(step, *SMALL))


FLAT, FALLING = theory.IIDChain([0.25] * 4), theory.IIDChain([0.4, 0.3, 0.2, 0.1])
SOFT = theory.IIDChain([0.3, 0.5, 0.2]), theory.IIDChain([0.2, 0.2, 0.6])
CORE = TokenWise()

MUTANTS: tuple[Mutant, ...] = (
    by_uniforms("draft cut to its top two", DECLARED, CORE, FLAT, FALLING, drawn=from_rows(lambda q: top(q, 2))),
    by_uniforms("draft cut to a nucleus", DECLARED, CORE, FLAT, FALLING, drawn=from_rows(lambda q: nucleus(q, 0.8))),
    by_uniforms("one id never drafted", DECLARED, CORE, *SMALL, drawn=from_rows(_without_first)),
    by_uniforms("draft explores", DECLARED, CORE, P0, Q0, drawn=from_rows(_explored)),
    by_uniforms("draft ids shifted by one", DECLARED, CORE, P0, Q0, drawn=from_rows(_shifted)),
    by_uniforms("draft one token stale", DECLARED, CORE, *MARKOV, 2, drawn=from_rows(lambda q: q, stale=True)),
    by_uniforms("draft greedy, declared soft", GREEDY, CORE, *SOFT, drawn=from_rows(lambda q: top(q, 1))),
    by_uniforms("draft cold, declared warm", WARPED, CORE, P0, Q0, drawn=from_rows(lambda q: tempered(q, 1.5))),
    by_uniforms("draft warm, declared cold", WARPED, CORE, P0, Q0, drawn=from_rows(lambda q: tempered(q, 0.7))),
    Mutant(
        "one noise vector for draft and residual",
        NOISE,
        one_step(_gumbel_twice, exponentials_and_test),
        target=SMALL[0],
        draft=SMALL[1],
        exact=lambda: gumbel_law(*SMALL),
    ),
    _shared_step("draft uniform draws the residual", _redraws_with_draft_uniform),
    _shared_step("draft uniform tests the draft", _tests_with_draft_uniform),
    _shared_step("test uniform draws the residual", _redraws_with_test_uniform),
)
