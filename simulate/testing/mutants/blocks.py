"""Faults of block verification."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import theory
from simulate.testing.mutants.mutant import MARKOV, P0, Q0, Mutant, by_uniforms
from simulate.testing.mutants.skeleton import (
    Blockwise,
    at,
    block_residual,
    leading,
    remainder,
    success,
    success_of,
)
from simulate.testing.protocol import Emitted, Floats, Integers, Rounds
from simulate.testing.uniforms import Uniforms

BLOCK = "block verification with the token residual"
P, Q = theory.IIDChain([0.2, 0.4, 0.4]), theory.IIDChain([0.1, 0.1, 0.8])


def _memoryless(s: Floats, p: Floats, q: Floats, x: Integers) -> Floats:
    return np.minimum(1.0, at(p, x) / at(q, x))


def _uncapped(s: Floats, p: Floats, q: Floats, x: Integers) -> Floats:
    return s * at(p, x) / at(q, x)


def _last_flag(s: Floats) -> Floats:
    return np.ones_like(s)


def _first_failure_h(s: Floats, p: Floats, q: Floats) -> Floats:
    return s


def _token_success(s: Floats, p: Floats, q: Floats) -> Floats:
    return success(np.ones_like(s), p, q)


def _first_success(flags: Floats) -> Integers:
    return np.where(flags.any(axis=1), np.argmax(flags, axis=1) + 1, 0)


def _number_of_successes(flags: Floats) -> Any:
    return flags.sum(axis=1, dtype=np.int64)


@dataclass(frozen=True)
class SharedTests:
    """One uniform for the tests of every index."""

    def __call__(self, rounds: Rounds, uniforms: Uniforms) -> Emitted:
        """Verify a batch."""
        u = np.repeat(uniforms.acceptance[:, :1], rounds.length, axis=1)
        return Blockwise()(rounds, replace(uniforms, acceptance=u))


@dataclass(frozen=True)
class UncappedFactor:
    """Relaxed weights s' = min(1, ω s p/q) without the cap that keeps Σ q s' ≤ s."""

    omega: float

    def _next(self, s: Floats, p: Floats, q: Floats) -> Floats:
        return np.minimum(1.0, self.omega * s[:, None] * p / q)

    def __call__(self, rounds: Rounds, uniforms: Uniforms) -> Emitted:
        """Verify a batch."""

        def weight(s: Floats, p: Floats, q: Floats, x: Integers) -> Floats:
            return at(self._next(s, p, q), x)

        def tested(s: Floats, p: Floats, q: Floats) -> Floats:
            left = np.maximum(s - (q * self._next(s, p, q)).sum(axis=-1), 0.0)
            return success_of(left, s)

        def residual(s: Floats, p: Floats, q: Floats, place: Integers) -> Floats:
            return block_residual(np.ones_like(s), s[:, None] * p, q * self._next(s, p, q), place)

        return Blockwise(weight=weight, success=tested, residual=residual)(rounds, uniforms)


def _block(name: str, core: Blockwise | SharedTests, pair: tuple[theory.Chain, theory.Chain] = (P, Q)) -> Mutant:
    return by_uniforms(name, BLOCK, core, *pair, 2, verifier=theory.block(2))


MUTANTS: tuple[Mutant, ...] = (
    _block(
        "block with the token residual", Blockwise(residual=lambda s, p, q, i: block_residual(np.ones_like(s), p, q, i))
    ),
    _block("block weight without memory", Blockwise(weight=_memoryless), MARKOV),
    _block("block weight above one", Blockwise(weight=_uncapped, last=lambda s: np.minimum(s, 1.0)), MARKOV),
    _block("first failure in place of the last success", Blockwise(count=leading)),
    _block("first success in place of the last", Blockwise(count=_first_success)),
    _block("successes counted in place of the last", Blockwise(count=_number_of_successes)),
    _block("every test succeeds with s", Blockwise(success=_first_failure_h)),
    _block("success M without 1 − s below it", Blockwise(success=remainder), MARKOV),
    _block("success as if s = 1", Blockwise(success=_token_success), MARKOV),
    _block("last index always succeeds", Blockwise(last=_last_flag)),
    _block("one uniform for every index", SharedTests()),
    by_uniforms(
        "relaxed block without the cap", BLOCK, UncappedFactor(1.5), P0, Q0, 2, verifier=theory.capped_block(1.5)
    ),
)
