"""Families of verifiers: one schedule shape each, with one strength, so that shapes can be compared at equal cost.

A family maps a strength s ≥ 0 to a verifier (multiplicative rule, optimal residual); accepted length never falls in s.
All but the one without floor are lossless at s = 0. The strengths that give equal accepted length are found by
`theory.match`.

>>> schedule_families(3)["uniform"](0.5).rule.omega.round(3).tolist()
[1.649, 1.649, 1.649]
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

from theory.rules import Relaxed
from theory.schedules import (
    Schedule,
    excess_schedule,
    exponential_schedule,
    linear_schedule,
    reversed_schedule,
    uniform_schedule,
)
from theory.verifiers import Verifier

Family: TypeAlias = Callable[[float], Verifier]

DECAY = 0.7
"""COOL-SD's ν."""
MILD_DECAY = 0.2
"""A milder decay, better than ν = .7 for KL per token at small relaxations (measured on synthetic chains)."""


def schedule_families(length: int) -> dict[str, Family]:
    """Schedules of L = `length` positions by name, each a family in its strength s ≥ 0.

    ========================  ===================================================================
    uniform                   ω = e^s at every position (lenience, UniformRSD)
    annealed, floored         COOL-SD: exponential ν = .7, arithmetic mean δ = e^s − 1, max(1, ω)
    annealed, no floor        the same without the floor, as reconstructed from the paper
    excess, ν = .7            1 + (e^s − 1) e^{−.7 i} (this project)
    excess, ν = .2            1 + (e^s − 1) e^{−.2 i} (this project)
    linear, floored           from 1.5 δ down to .5 δ, δ = e^s − 1, max(1, ω)
    reversed                  the floored exponential backwards
    ========================  ===================================================================
    """

    def exponential(strength: float, floor: float | None) -> Schedule:
        return exponential_schedule(length, math.expm1(strength), DECAY, floor=floor)

    def linear(strength: float) -> Schedule:
        delta = math.expm1(strength)
        return linear_schedule(length, 1.5 * delta, 0.5 * delta, floor=1.0)

    shapes: dict[str, Callable[[float], Any]] = {
        "uniform": lambda s: uniform_schedule(length, math.exp(s)),
        "annealed, floored": lambda s: exponential(s, 1.0),
        "annealed, no floor": lambda s: exponential(s, None),
        "excess, ν = .7": lambda s: excess_schedule(length, math.expm1(s), DECAY),
        "excess, ν = .2": lambda s: excess_schedule(length, math.expm1(s), MILD_DECAY),
        "linear, floored": linear,
        "reversed": lambda s: reversed_schedule(exponential(s, 1.0)),
    }

    def family(shape: Callable[[float], Any]) -> Family:
        return lambda strength: Verifier(Relaxed(shape(strength)))

    return {name: family(shape) for name, shape in shapes.items()}
