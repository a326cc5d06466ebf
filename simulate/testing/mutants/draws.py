"""Faults of comparison, of drawing by inversion, and of precision."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import theory
from simulate.testing.mutants.mutant import Mutant, by_uniforms
from simulate.testing.mutants.skeleton import TokenWise, at, checked, normalised
from simulate.testing.protocol import Floats, Integers, Rounds
from simulate.testing.uniforms import drawing

EXTREME = "extreme uniforms"


def _unscaled(law: Floats, u: Floats) -> Any:
    return (law.cumsum(axis=-1) <= u[:, None]).sum(axis=-1)


def clipped(law: Floats, u: Floats) -> Any:
    """The last id where the sums, unscaled, end at or below u."""
    return np.minimum(_unscaled(law, u), law.shape[-1] - 1)


def _inclusive_sum(law: Floats, u: Floats) -> Any:
    sums = law.cumsum(axis=-1)
    return np.argmax(sums >= u[:, None] * sums[:, -1:], axis=-1)


def _always_first(law: Floats, u: Floats) -> Any:
    """argmax over an empty comparison: token 0 where no sum exceeds u."""
    return np.argmax(law.cumsum(axis=-1) > u[:, None], axis=-1)


def bfloat16(values: Floats) -> Floats:
    """Rounded to eight significant bits, to even."""
    bits = np.asarray(values, dtype=np.float32).view(np.uint32)
    kept = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return kept.view(np.float32).astype(np.float64)


def _in_bfloat16(law: Floats, u: Floats) -> Any:
    sums, total = np.empty_like(law), np.zeros(len(law))
    for x in range(law.shape[-1]):
        total = bfloat16(total + bfloat16(law[:, x]))
        sums[:, x] = total
    return np.minimum((sums <= u[:, None]).sum(axis=-1), law.shape[-1] - 1)


def _in_float16(law: Floats, u: Floats) -> Any:
    sums = np.cumsum(law.astype(np.float16), axis=-1, dtype=np.float16)
    return np.minimum((sums <= u[:, None]).sum(axis=-1), law.shape[-1] - 1)


def _float16_ratio(p: Floats, q: Floats, x: Integers) -> Floats:
    mass, drafted = at(p, x).astype(np.float16), at(q, x).astype(np.float16)
    with np.errstate(all="ignore"):
        return np.where(mass >= drafted, 1.0, np.minimum(mass / drafted, 1.0)).astype(np.float64)


def _guarded_ratio(p: Floats, q: Floats, x: Integers) -> Floats:
    return at(p, x) / (at(q, x) + 1e-6)


def _floored_ratio(p: Floats, q: Floats, x: Integers) -> Floats:
    return np.maximum(at(p, x), 1e-6) / np.maximum(at(q, x), 1e-6)


def _strict_rows(rounds: Rounds) -> tuple[Floats, Floats]:
    for rows in (rounds.target_probs, rounds.draft_probs):
        if (abs(np.asarray(rows, dtype=np.float64).sum(axis=-1) - 1) > 1e-9).any():
            raise ValueError("rows must sum to one")
    return checked(rounds)


class Unchecked(NamedTuple):
    """Uniforms that may be one."""

    acceptance: Floats
    final: Floats


def _closed(u: Any) -> Any:
    return Unchecked(1 - u.acceptance, u.final)


def _narrow(u: Any) -> Any:
    return Unchecked(u.acceptance.astype(np.float32), u.final.astype(np.float32))


def _nan_residual(p: Floats, q: Floats, x: Integers) -> Any:
    left = np.maximum(p - q, 0.0)
    with np.errstate(all="ignore"):
        return left / left.sum(axis=-1, keepdims=True)


def _token_zero(p: Floats, q: Floats, x: Integers) -> Floats:
    return normalised(np.maximum(p - q, 0.0), np.repeat(np.eye(p.shape[-1])[:1], len(p), axis=0))


def _slack(p: Floats, q: Floats, x: Integers) -> Floats:
    """A residual as a solver leaves it: float32, with small masses where there are none."""
    return np.maximum(p - q, 0.0).astype(np.float32).astype(np.float64) + 1e-9


CERTAIN = theory.IIDChain(np.eye(128)[0])
HEAD_8, HEAD_11 = (theory.IIDChain(np.concatenate([[head], np.full(127, (1 - head) / 127)])) for head in (0.8, 0.97))
"""Behind a head above one half, tail masses below half a unit in the last place of bfloat16 and of float16."""
TINY = theory.IIDChain([1e-9, 0.6, 0.4 - 1e-9]), theory.IIDChain([1e-8, 0.4, 0.6 - 1e-8])
EVEN = theory.IIDChain(np.full(3, 1 / 3))
LOW, SMALL = "cumulative sum in low precision", "tiny masses in low precision"
EMPTY = "empty residual: 0/0"


def _by_probe(name: str, kind: str, core: TokenWise, probe: str = EXTREME) -> Mutant:
    return Mutant(name, kind, drawing(core), probe)


MUTANTS: tuple[Mutant, ...] = (
    _by_probe("u ≤ f", "inclusive comparison", TokenWise(accepts=lambda u, f: u <= f)),
    _by_probe("not u > f", "inclusive comparison", TokenWise(accepts=lambda u, f: ~(u > f))),
    _by_probe("uniforms in (0, 1]", "inclusive comparison", TokenWise(uniforms=_closed)),
    _by_probe("uniforms rounded to float32", "end of the CDF", TokenWise(uniforms=_narrow)),
    _by_probe("sum below one runs past the end", "end of the CDF", TokenWise(draw=_unscaled)),
    _by_probe("sum below one falls back to token 0", "end of the CDF", TokenWise(draw=_always_first)),
    _by_probe("past the end, clipped to the last id", "zero-mass draws", TokenWise(draw=clipped)),
    _by_probe("first sum ≥ u", "zero-mass draws", TokenWise(draw=_inclusive_sum)),
    _by_probe("residual with a solver's slack", "a solver's slack read as truth", TokenWise(residual=_slack)),
    _by_probe("empty residual divided by zero", EMPTY, TokenWise(residual=_nan_residual), "empty residual"),
    _by_probe(
        "empty residual made uniform", EMPTY,
        TokenWise(residual=lambda p, q, x: normalised(np.maximum(p - q, 0.0), np.full_like(p, 1 / p.shape[-1]))),
        "empty residual",
    ),
    _by_probe(
        "empty residual made token 0", EMPTY,
        TokenWise(residual=_token_zero),
        "empty residual",
    ),
    _by_probe("float32 rows refused", "float32 rows in a float64 check", TokenWise(laws=_strict_rows), "float32 rows"),
    by_uniforms("partial sums in bfloat16", LOW, TokenWise(draw=_in_bfloat16), HEAD_8, CERTAIN),
    by_uniforms("partial sums in float16", LOW, TokenWise(draw=_in_float16), HEAD_11, CERTAIN),
    by_uniforms("ratio in float16", SMALL, TokenWise(ratio=_float16_ratio), *TINY, forced=EVEN),
    by_uniforms("10⁻⁶ added to q", SMALL, TokenWise(ratio=_guarded_ratio), *TINY, forced=EVEN),
    by_uniforms("p and q at least 10⁻⁶", SMALL, TokenWise(ratio=_floored_ratio), *TINY, forced=EVEN),
)  # fmt: skip
