"""How well the best detector tells relaxed sequences from the target's, and from how many of them.

It knows both laws and flags a sequence if ρ = P̂(x)/P(x) is large (Neyman and Pearson); the largest vertical distance
of its curve of detections against false alarms from the diagonal is TV(P̂, P).

Of n independent sequences, all relaxed or all the target's, it errs with probability ½ (1 − TV_n), where
TV_n = E [1 − e^{−S}]_+ and S is the sum of n independent log ρ under P̂. Rounding log ρ down to a grid gives a lower end
of TV_n, rounding up an upper one (1 − e^{−S} rises with S); sums of grid values are convolutions.

Two laws (¾, ¼) and (¼, ¾): one sequence is told with TV ½, two with TV_2 = ½ as well, three with 11/16.

>>> from math import log
>>> [round(end, 12) for end in advantage(np.array([0.75, 0.25]), np.array([log(3), -log(3)]), 3)]
[0.6875, 0.6875]
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from theory.distances import hellinger

__all__ = ["advantage", "detection_curve", "hellinger_bounds", "images_needed"]

STEPS = 2**12
"""Grid steps between the least and the largest log ρ."""
TAIL = 1e-9
"""Mass of S, by Bernstein's inequality, that may lie outside of the window of a cyclic convolution."""


def advantage(law: Any, log_ratio: Any, count: int) -> tuple[float, float]:
    """Lower and upper end of TV_n of n = `count` independent sequences.

    Parameters
    ----------
    law : array, shape (K,)
        P̂ of every sequence it charges.
    log_ratio : array, shape (K,)
        log P̂/P of the same, finite.
    count : int
        n ≥ 1.
    """
    from scipy.fft import irfft, next_fast_len, rfft

    least = float(log_ratio.min())
    step = max(float(log_ratio.max()) - least, 1e-9) / STEPS
    place = (log_ratio - least) / step
    ends = []
    for rounded in (np.floor, np.ceil):
        # A value that is on the grid but for rounding stays there.
        at = np.where(np.abs(place - np.rint(place)) < 1e-6, np.rint(place), rounded(place)).astype(int)
        mean = float(law @ at)
        deviation = math.sqrt(count * float(law @ (at - mean) ** 2))
        log_tail = -math.log(TAIL / 2)
        width = math.ceil(math.sqrt(2 * log_tail) * deviation + log_tail * STEPS) + 1
        size = next_fast_len(max(2 * width + 1, STEPS + 1), real=True)
        single = rfft(np.bincount(at, weights=law), size)
        # A complex array to a whole power is many times slower.
        mass = irfft(np.abs(single) ** count * np.exp(1j * count * np.angle(single)), size)
        first = math.floor(count * mean) - width
        total = count * least + step * (first + (np.arange(size) - first) % size)
        ends.append(float(np.sum(np.maximum(mass, 0.0) * -np.expm1(-np.maximum(total, 0.0)))))
    return ends[0], min(ends[1], 1.0)


def hellinger_bounds(squared: float, error: float) -> tuple[int, int]:
    """Bounds on the number of images needed from H²: 1 − (1 − H²)^n ≤ TV_n ≤ √(1 − (1 − H²)^{2n})."""
    each, wanted = math.log1p(-squared), 1 - 2 * error
    return math.ceil(math.log(1 - wanted**2) / (2 * each)), math.ceil(math.log(1 - wanted) / each)


def images_needed(law: Any, target: Any, error: float = 0.05) -> tuple[int, int]:
    """Least number of sequences from which the best detector errs at most `error`: lower and upper end."""
    charged = law > 0
    own, log_ratio = law[charged], np.log(law[charged] / target[charged])
    least, most = hellinger_bounds(hellinger(law, target) ** 2, error)

    def enough(count: int, end: int) -> bool:
        return advantage(own, log_ratio, count)[end] >= 1 - 2 * error

    def first(low: int, high: int, end: int) -> int:
        """The first count above `low` that is enough, where `high` is."""
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if enough(middle, end) else (middle, high)
        return high

    lower = first(least - 1, most, 1)
    stride = 1
    while not enough(lower - 1 + stride, 0):  # the ends are near each other
        stride *= 2
    return lower, first(lower - 1 + stride // 2, lower - 1 + stride, 0)


def detection_curve(law: Any, target: Any) -> tuple[Any, Any]:
    """(false alarms, detections) of the best detector at all its thresholds, from flagging nothing to flagging all."""
    ratio = np.divide(law, target, out=np.full_like(law, np.inf), where=target > 0)
    order = np.argsort(-ratio, kind="stable")
    return tuple(np.minimum(np.append(0.0, np.cumsum(mass[order])), 1.0) for mass in (target, law))
