"""Faults of the replacement of a rejected draft."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import theory
from simulate.testing.mutants.draws import clipped
from simulate.testing.mutants.mutant import MARKOV, P0, Q0, Mutant, by_uniforms
from simulate.testing.mutants.ratios import likeliest, tempered
from simulate.testing.mutants.skeleton import (
    TokenWise,
    at,
    checked,
    emit,
    inverse_cdf,
    lossless_residual,
    normalised,
    without,
)
from simulate.testing.protocol import Emitted, Floats, Integers, Rounds
from simulate.testing.uniforms import Uniforms

REPLACED = "residual replaced by p"
POSITION = "wrong position"


def _signed(p: Floats, q: Floats, x: Integers) -> Floats:
    return p - q


def _absolute(p: Floats, q: Floats, x: Integers) -> Floats:
    return normalised(abs(p - q), p)


def _even(p: Floats, q: Floats, x: Integers) -> Floats:
    return normalised((p > q).astype(float), p)


def _accepted_subtracted(p: Floats, q: Floats, x: Integers) -> Floats:
    unclipped = p / np.where(q > 0, q, 1.0)
    return normalised(np.maximum(p - q * unclipped, 0.0), p)


def _own_ratio_everywhere(p: Floats, q: Floats, x: Integers) -> Floats:
    f = np.minimum(1.0, at(p, x) / at(q, x))
    return normalised(np.maximum(p - q * f[:, None], 0.0), p)


def _squared(p: Floats, q: Floats, x: Integers) -> Any:
    return tempered(lossless_residual(p, q, x), 2)


def _mixed(p: Floats, q: Floats, x: Integers) -> Floats:
    return 0.9 * lossless_residual(p, q, x) + 0.1 * p


@dataclass(frozen=True)
class KeepsRejected:
    """On rejection the drafted token is emitted all the same."""

    def __call__(self, rounds: Rounds, uniforms: Uniforms) -> Emitted:
        """Verify a batch."""
        emitted = TokenWise()(rounds, uniforms)
        tokens, accepted = np.asarray(emitted.tokens).copy(), np.asarray(emitted.accepted)
        rows = np.flatnonzero(accepted < rounds.length)
        tokens[rows, accepted[rows]] = rounds.draft_ids[rows, accepted[rows]]
        return Emitted(tokens, accepted)


@dataclass(frozen=True)
class Misplaced:
    """The residual is taken `shift` places behind the rejection (or at the first place), within the block."""

    shift: int = 0
    first: bool = False

    def __call__(self, rounds: Rounds, uniforms: Uniforms) -> Emitted:
        """Verify a batch."""
        p, q = checked(rounds)
        accepted = np.asarray(TokenWise()(rounds, uniforms).accepted)
        place = np.clip(accepted + self.shift, 0, rounds.length - 1)
        place = np.zeros_like(place) if self.first else place
        rows = np.arange(rounds.count)
        residual = lossless_residual(p[rows, place], q[rows, place], rounds.draft_ids[rows, place])
        law = np.where((accepted == rounds.length)[:, None], p[:, -1], residual)
        return emit(rounds.draft_ids, accepted, inverse_cdf(law, uniforms.final))


FALLING, RISING = theory.IIDChain([0.4, 0.3, 0.2, 0.1]), theory.IIDChain([0.1, 0.2, 0.3, 0.4])

MUTANTS: tuple[Mutant, ...] = (
    by_uniforms("residual p", REPLACED, TokenWise(residual=lambda p, q, x: p), P0, Q0),
    by_uniforms("residual q", REPLACED, TokenWise(residual=lambda p, q, x: q), P0, Q0),
    by_uniforms(
        "residual p without the rejected token", REPLACED, TokenWise(residual=lambda p, q, x: without(p, x)), P0, Q0
    ),
    by_uniforms("residual p − q without the clamp", REPLACED, TokenWise(residual=_signed), RISING, FALLING),
    by_uniforms("residual |p − q|", REPLACED, TokenWise(residual=_absolute), P0, Q0),
    by_uniforms(
        "residual not normalised",
        REPLACED,
        TokenWise(residual=lambda p, q, x: np.maximum(p - q, 0.0), draw=clipped),
        P0,
        Q0,
    ),
    by_uniforms("residual [q − p]_+", REPLACED, TokenWise(residual=lambda p, q, x: lossless_residual(q, p, x)), P0, Q0),
    by_uniforms(
        "residual's likeliest token", REPLACED, TokenWise(residual=lambda p, q, x: likeliest(p - q)), FALLING, RISING
    ),
    by_uniforms(
        "target's likeliest token",
        REPLACED,
        TokenWise(residual=lambda p, q, x: likeliest(p)),
        theory.IIDChain([0.4, 0.35, 0.25]),
        theory.IIDChain([0.45, 0.05, 0.5]),
    ),
    by_uniforms("residual uniform where p > q", REPLACED, TokenWise(residual=_even), FALLING, RISING),
    by_uniforms("residual p − q·p/q, the min left out", REPLACED, TokenWise(residual=_accepted_subtracted), P0, Q0),
    by_uniforms(
        "residual with the rejected token's ratio", REPLACED, TokenWise(residual=_own_ratio_everywhere), P0, Q0
    ),
    by_uniforms("residual mixed with a tenth of p", REPLACED, TokenWise(residual=_mixed), P0, Q0),
    by_uniforms("rejected draft emitted all the same", REPLACED, KeepsRejected(), P0, Q0),
    by_uniforms(
        "temperature on the residual again", "residual warped twice", TokenWise(residual=_squared), FALLING, RISING
    ),
    by_uniforms(
        "residual flattened",
        "residual warped twice",
        TokenWise(residual=lambda p, q, x: tempered(lossless_residual(p, q, x), 0.5)),
        FALLING,
        RISING,
    ),
    by_uniforms("residual one place late", POSITION, Misplaced(shift=1), *MARKOV, 2),
    by_uniforms("residual one place early", POSITION, Misplaced(shift=-1), *MARKOV, 2),
    by_uniforms("residual of the first place", POSITION, Misplaced(first=True), *MARKOV, 2),
)
