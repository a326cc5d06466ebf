"""Relaxation schedules: one factor ω_i for every drafted position i = 1…L.

The multiplicative rule accepts with f_i = min(1, ω_i p/q). COOL-SD (arXiv 2601.09212) lets ω decay over
the block, ω_i = δ·exp(−ν i − μ), ν = 0.7. Its normaliser μ was not readable in print; the arithmetic mean
(mean ω = δ) fits what is reported and is the default, **reconstructed**. The others are options.

>>> exponential_schedule(5, 1.1).round(3).tolist()
[2.855, 1.418, 0.704, 0.35, 0.174]
>>> exponential_schedule(5, 1.1, floor=1.0).round(3).tolist()
[2.855, 1.418, 1.0, 1.0, 1.0]
>>> bang_bang_schedule(4, 1).tolist()
[inf, 1.0, 1.0, 1.0]

Every function returns a float64 array of shape (length,).
"""

from __future__ import annotations

import math
from typing import Any, Literal, TypeAlias

import numpy as np

from theory.arrays import real_array, real_number, whole_number

Schedule: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
Normalisation: TypeAlias = Literal["arithmetic", "geometric", "first", "none"]


def check_schedule(omega: Any) -> Schedule:
    """Schedule as float64 of shape (L,): every ω_i ≥ 0, +∞ allowed (accept outright).

    Raises
    ------
    ValueError
        Naming the first offending position and its value.
    """
    values = np.atleast_1d(real_array(omega, "omega").copy())
    if values.ndim != 1 or values.size == 0:
        raise ValueError(f"omega must be a number or a non-empty list of one per position, got shape {values.shape}")
    bad = np.flatnonzero(~(values >= 0))
    if bad.size:
        raise ValueError(f"omega at position {bad[0]} is {values[bad[0]]}; relaxation factors must be >= 0")
    values.flags.writeable = False
    return values


def _floored(omega: Any, floor: float | None) -> Schedule:
    if floor is not None:
        omega = np.maximum(omega, real_number(floor, "floor", least=0.0))
    return check_schedule(omega)


def uniform_schedule(length: int, omega: float) -> Schedule:
    """The same ω at every position (lenience; COOL-SD's UniformRSD)."""
    return check_schedule(np.full(whole_number(length, "length", 1), real_array(omega, "omega")))


def exponential_schedule(
    length: int,
    delta: float,
    nu: float = 0.7,
    normalise: Normalisation = "arithmetic",
    floor: float | None = None,
) -> Schedule:
    """COOL-SD's decaying schedule ω_i = δ·exp(−ν i − μ), i = 1…L.

    Parameters
    ----------
    length : int
        L ≥ 1.
    delta : float
        Strength δ ≥ 0. What it is the value of depends on `normalise`.
    nu : float
        Decay per position, 0.7 in the paper. Negative values grow.
    normalise : {"arithmetic", "geometric", "first", "none"}
        "arithmetic": mean ω_i = δ (default; reconstructed). "geometric": geometric mean = δ.
        "first": ω_1 = δ. "none": μ = 0.
    floor : float, optional
        Replace ω_i by max(floor, ω_i). With ``floor=1.0`` and a decreasing schedule the output law and the
        bound stay the same and accepted length never falls (the lossless floor: ω_i < 1 only throws away acceptance).

    Raises
    ------
    ValueError
        For length < 1, δ < 0, a ν that is not finite, or an unknown normalisation.
    """
    length = whole_number(length, "length", 1)
    delta = real_number(delta, "delta", least=0.0)
    nu = real_number(nu, "nu")
    exponent = -nu * np.arange(1, length + 1)
    if normalise == "arithmetic":
        peak = exponent.max()
        exponent = exponent - peak - math.log(np.mean(np.exp(exponent - peak)))
    elif normalise == "geometric":
        exponent = exponent - exponent.mean()
    elif normalise == "first":
        exponent = exponent - exponent[0]
    elif normalise != "none":
        raise ValueError(f"normalise must be arithmetic, geometric, first or none, got {normalise!r}")
    return _floored(delta * np.exp(exponent), floor)


def linear_schedule(length: int, first: float, last: float, floor: float | None = None) -> Schedule:
    """ω falling (or rising) on a straight line from `first` to `last`; a block of one token gets `first`."""
    return _floored(np.linspace(first, last, whole_number(length, "length", 1)), floor)


def excess_schedule(length: int, excess: float, nu: float = 0.7) -> Schedule:
    """ω_i = 1 + d·e^{−ν i}, i = 1…L: an excess over lossless that decays and never falls below it.

    This project's schedule: with d ≥ 0 it is never below lossless, so nothing is wasted.
    """
    length = whole_number(length, "length", 1)
    excess = real_number(excess, "excess", least=0.0)
    return check_schedule(1.0 + excess * np.exp(-real_number(nu, "nu") * np.arange(1, length + 1)))


def bang_bang_schedule(length: int, free: int) -> Schedule:
    """ω = ∞ (accept outright) at the first `free` positions, 1 (lossless) at the rest."""
    length = whole_number(length, "length", 1)
    free = whole_number(free, "free", 0)
    if free > length:
        raise ValueError(f"free is {free}, more than the length {length} of the block")
    return check_schedule(np.where(np.arange(length) < free, np.inf, 1.0))


def reversed_schedule(omega: Any) -> Schedule:
    """The same factors in the opposite order: the schedule annealing says is worst."""
    return check_schedule(check_schedule(omega)[::-1])
