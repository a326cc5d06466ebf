"""Faults of the acceptance test: the ratio, the uniform, the comparison, the laws it reads."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

import theory
from simulate.testing.mutants.mutant import MARKOV, P0, Q0, Mutant, by_uniforms
from simulate.testing.mutants.skeleton import TokenWise, at, checked, lossless_residual, ratio
from simulate.testing.protocol import Floats, Integers, Rounds
from simulate.testing.uniforms import Uniforms

RATIO = "draft probability missing from the ratio"
STUCK = "acceptance uniform stuck at 0"
WARPED = "temperature not applied to verification or bonus"
TINY = "tiny masses in low precision"
POSITION = "wrong position"


def tempered(laws: Floats, power: float) -> Any:
    """Laws at temperature 1/power, (..., V)."""
    warped = laws**power
    return warped / warped.sum(axis=-1, keepdims=True)


def nucleus(laws: Floats, mass: float) -> Any:
    """The smallest set of likeliest tokens that holds `mass`, renormalised; (..., V)."""
    order = np.argsort(-laws, axis=-1, kind="stable")
    ranked = np.take_along_axis(laws, order, axis=-1)
    keep = ranked.cumsum(axis=-1) - ranked < mass
    kept = np.zeros_like(laws)
    np.put_along_axis(kept, order, np.where(keep, ranked, 0.0), axis=-1)
    return kept / kept.sum(axis=-1, keepdims=True)


def likeliest(masses: Floats) -> Any:
    """All mass on the token of most mass, (B, V)."""
    return (np.arange(masses.shape[-1]) == masses.argmax(axis=-1)[:, None]).astype(float)


def _over_largest(p: Floats, q: Floats, x: Integers) -> Any:
    return at(p, x) / p.max(axis=-1)


def _inverted(p: Floats, q: Floats, x: Integers) -> Floats:
    return ratio(q, p, x)


def _logarithm(p: Floats, q: Floats, x: Integers) -> Floats:
    return np.log(at(p, x)) - np.log(at(q, x))


def _power(p: Floats, q: Floats, x: Integers, power: float) -> Floats:
    return ratio(p, q, x) ** power


def _next_token(p: Floats, q: Floats, x: Integers) -> Floats:
    return ratio(p, q, (x + 1) % p.shape[-1])


def _previous_target(p: Floats, q: Floats, x: Integers) -> Floats:
    return ratio(p[:, [0, *range(p.shape[1] - 1)]], q, x)


def _previous_draft(p: Floats, q: Floats, x: Integers) -> Floats:
    return ratio(p, q[:, [0, *range(q.shape[1] - 1)]], x)


def _first_only(p: Floats, q: Floats, x: Integers) -> Floats:
    return np.where(np.arange(x.shape[1]) == 0, ratio(p, q, x), 1.0)


def _first_free(p: Floats, q: Floats, x: Integers) -> Floats:
    return np.where(np.arange(x.shape[1]) == 0, 1.0, ratio(p, q, x))


def _rounded(p: Floats, q: Floats, x: Integers) -> Floats:
    return ratio(np.round(p, 2), np.round(q, 2), x)


def _guarded(p: Floats, q: Floats, x: Integers) -> Floats:
    return at(p, x) / (at(q, x) + 0.02)


def _threshold(p: Floats, q: Floats, x: Integers) -> Floats:
    return (at(p, x) >= at(q, x)).astype(float)


def _running_product(p: Floats, q: Floats, x: Integers) -> Any:
    return np.minimum(1.0, np.cumprod(at(p, x) / at(q, x), axis=1))


def _smoothed(p: Floats, q: Floats, x: Integers) -> Floats:
    return ratio(0.95 * p + 0.05 / p.shape[-1], q, x)


def _constant(u: Uniforms, value: float) -> Uniforms:
    return replace(u, acceptance=np.full_like(u.acceptance, value))


def _scaled(u: Uniforms) -> Uniforms:
    return replace(u, acceptance=u.acceptance * 0.9)


def _shared(u: Uniforms) -> Uniforms:
    return replace(u, acceptance=np.repeat(u.acceptance[:, :1], u.acceptance.shape[1], axis=1))


def _with_final(u: Uniforms) -> Uniforms:
    return replace(u, final=u.acceptance[:, -1])


def _first_for_final(u: Uniforms) -> Uniforms:
    return replace(u, final=u.acceptance[:, 0])


def _antithetic(u: Uniforms) -> Uniforms:
    flipped = np.where(u.acceptance[:, :1] > 0, 1 - u.acceptance[:, :1], 0.0)
    return replace(u, acceptance=np.concatenate([u.acceptance[:, :1], flipped], axis=1))


def _unwarped(rounds: Rounds) -> tuple[Floats, Floats]:
    p, q = checked(rounds)
    return tempered(p, 2), q


def _target_only_warped(rounds: Rounds) -> tuple[Floats, Floats]:
    p, q = checked(rounds)
    return p, tempered(q, 2)


def _nucleus(rounds: Rounds) -> tuple[Floats, Floats]:
    p, q = checked(rounds)
    return nucleus(p, 0.7), q


WARM, EVEN = theory.IIDChain([2 / 3, 1 / 3]), theory.IIDChain([0.5, 0.5])
HALF, HEAVY = theory.IIDChain([0.5, 0.5]), theory.IIDChain([0.75, 0.25])
SMALL = theory.IIDChain([0.004, 0.026, 0.97]), theory.IIDChain([0.016, 0.014, 0.97])

MUTANTS: tuple[Mutant, ...] = (
    by_uniforms("ratio p/max p", RATIO, TokenWise(ratio=_over_largest), P0, Q0),
    by_uniforms("ratio inverted", RATIO, TokenWise(ratio=_inverted), P0, Q0),
    by_uniforms("ratio p, residual of p/q", RATIO, TokenWise(ratio=lambda p, q, x: at(p, x)), P0, Q0),
    by_uniforms("log-ratio compared with u", RATIO, TokenWise(ratio=_logarithm), P0, Q0),
    by_uniforms("ratio squared", RATIO, TokenWise(ratio=partial(_power, power=2.0)), P0, Q0),
    by_uniforms("square root of the ratio", RATIO, TokenWise(ratio=partial(_power, power=0.5)), P0, Q0),
    by_uniforms("accepted where p ≥ q", RATIO, TokenWise(ratio=_threshold), P0, Q0),
    by_uniforms("ratio of the next id", RATIO, TokenWise(ratio=_next_token), P0, Q0),
    by_uniforms("ratio accumulated over the block", RATIO, TokenWise(ratio=_running_product), *MARKOV, 2),
    by_uniforms("target smoothed in the ratio", RATIO, TokenWise(ratio=_smoothed), P0, Q0),
    by_uniforms("acceptance uniform 0", STUCK, TokenWise(uniforms=partial(_constant, value=0.0)), P0, Q0),
    by_uniforms("acceptance uniform ½", STUCK, TokenWise(uniforms=partial(_constant, value=0.5)), P0, Q0),
    by_uniforms("acceptance uniform below 9/10", STUCK, TokenWise(uniforms=_scaled), P0, Q0),
    by_uniforms(
        "one uniform for every position",
        "one uniform shared by all positions",
        TokenWise(uniforms=_shared),
        HALF,
        HEAVY,
        2,
    ),
    by_uniforms(
        "uniform of the last test draws too",
        "one uniform shared by all positions",
        TokenWise(uniforms=_with_final),
        P0,
        Q0,
    ),
    by_uniforms(
        "first uniform draws too",
        "one uniform shared by all positions",
        TokenWise(uniforms=_first_for_final),
        *MARKOV,
        2,
    ),
    by_uniforms(
        "second test uses 1 − u of the first",
        "one uniform shared by all positions",
        TokenWise(uniforms=_antithetic),
        HALF,
        HEAVY,
        2,
    ),
    by_uniforms("temperature missing in verification", WARPED, TokenWise(laws=_unwarped), WARM, EVEN),
    by_uniforms(
        "temperature missing in the bonus", WARPED, TokenWise(bonus=lambda p: tempered(p[:, -1], 2)), WARM, EVEN
    ),
    by_uniforms("temperature only in the declared draft", WARPED, TokenWise(laws=_target_only_warped), P0, Q0),
    by_uniforms(
        "temperature in the ratio, not in the residual",
        WARPED,
        TokenWise(residual=lambda p, q, x: lossless_residual(tempered(p, 2), q, x)),
        theory.IIDChain([0.4, 0.3, 0.2, 0.1]),
        theory.IIDChain([0.1, 0.2, 0.3, 0.4]),
    ),
    by_uniforms("nucleus applied to the target alone", WARPED, TokenWise(laws=_nucleus), P0, Q0),
    by_uniforms("nucleus in the bonus alone", WARPED, TokenWise(bonus=lambda p: nucleus(p[:, -1], 0.7)), P0, Q0),
    by_uniforms("probabilities rounded to two digits", TINY, TokenWise(ratio=_rounded), *SMALL),
    by_uniforms(
        "guard added to q in the ratio", TINY, TokenWise(ratio=_guarded), P0, theory.IIDChain([0.05, 0.15, 0.8])
    ),
    by_uniforms("ratio with the target one place early", POSITION, TokenWise(ratio=_previous_target), *MARKOV, 2),
    by_uniforms("ratio with the draft one place early", POSITION, TokenWise(ratio=_previous_draft), *MARKOV, 2),
    by_uniforms("only the first draft is tested", POSITION, TokenWise(ratio=_first_only), *MARKOV, 2),
    by_uniforms("the first draft is not tested", POSITION, TokenWise(ratio=_first_free), *MARKOV, 2),
)
