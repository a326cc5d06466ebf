"""Lower bounds on TV from samples alone, where a law cannot be written down.

TV(P̂, P) ≥ |P̂(A) − P(A)| for every event A, and TV of two laws is at least that of any statistic of theirs.
"""

from __future__ import annotations

import math

import numpy as np

from simulate.intervals import Interval, mean_interval

__all__ = ["event_tv", "tv_lower_bound"]


def event_tv(tokens: np.ndarray, law: np.ndarray, confidence: float = 0.95) -> Interval:
    """P̂(A) − P(A) with its interval, A chosen on the first half of the sequences and measured on the second.

    Parameters
    ----------
    tokens : integer array, shape (n, T)
        Drawn from P̂.
    law : array, shape (V,) * T
        P.
    """
    codes = np.ravel_multi_index(tuple(tokens.T), law.shape)
    own, half = law.ravel(), len(codes) // 2
    event = np.bincount(codes[:half], minlength=own.size) / half > own
    interval = mean_interval([event[codes[half:]].astype(float)], confidence, "normal", most=1.0, name="event")
    return interval.map(lambda share: share - float(own[event].sum()))


def tv_lower_bound(ours: np.ndarray, theirs: np.ndarray, confidence: float = 0.95) -> tuple[float, float]:
    """Lower bound on TV of two laws from one number of each sample: at this confidence, and its plug-in value.

    TV ≥ sup_s |F(s) − F'(s)| for every statistic (data processing); the empirical distribution functions are off by
    √(ln(4/α) / 2n) at most, each with probability 1 − α/2 (Dvoretzky–Kiefer–Wolfowitz, Massart's constant). The
    plug-in value is biased upwards.

    >>> tv_lower_bound(np.zeros(1000), np.ones(1000))[1]
    1.0
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence!r}")
    ours, theirs = np.sort(np.asarray(ours, dtype=float)), np.sort(np.asarray(theirs, dtype=float))
    for name, values in (("ours", ours), ("theirs", theirs)):
        if values.ndim != 1 or not len(values) or np.isnan(values).any():
            raise ValueError(f"{name} must be a list of numbers, one a sample, none of them NaN")
    at = np.concatenate([ours, theirs])
    gap = float(
        np.abs(
            np.searchsorted(ours, at, "right") / len(ours) - np.searchsorted(theirs, at, "right") / len(theirs)
        ).max()
    )
    slack = sum(math.sqrt(math.log(4 / (1 - confidence)) / (2 * len(values))) for values in (ours, theirs))
    return max(gap - slack, 0.0), gap
