"""Annealing: why relaxing early positions lowers the bound, in closed form.

If acceptance rates α_i and the overlap β = 1 − TV(p, q) do not depend on the prefix and α_i ≥ β [proved:
`prove_closed_form`],

    B = (1 − β)·N − β·(1 − S_L),    S_i = Π_{j≤i} α_j,    N = Σ S_i,

so at fixed N the bound falls exactly as S_L, the probability that the whole block is accepted, falls. Along α_i,
−dS_L/dN = S_L / Σ_{k≥i} S_k, which increases in i: moving acceptance from a later to an earlier position at
fixed N lowers S_L, hence B, at every L. COOL-SD (2601.09212, Prop. 2) has L = 2 under TV ≤ 2/5.

This is a statement about B, which for f ≥ lossless with G* is predictive TV. It says nothing about KL.

>>> round(closed_form_bound([0.9, 0.8], 0.6), 12)
0.48
>>> survival_price([0.9, 0.8]).round(3).tolist()
[0.444, 1.0]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from theory.arrays import first_index, real_array, real_number
from theory.numbers import Bound
from theory.schedules import Schedule


def _rates(rates: Any) -> Schedule:
    values = np.atleast_1d(real_array(rates, "rates"))
    bad = ~((values >= 0) & (values <= 1))
    if values.ndim != 1 or bad.any():
        index = first_index(bad) if bad.any() else ()
        raise ValueError(f"acceptance rates must be one number in [0, 1] per position; entry {index} of {values}")
    return values


def closed_form_bound(rates: Any, overlap: float) -> Bound:
    """B = (1−β) N − β (1 − S_L) from prefix-independent acceptance rates α_i ≥ β.

    Parameters
    ----------
    rates : sequence of L floats
        α_i = Σ q f_i, each at least β.
    overlap : float
        β = Σ min(p, q).

    Raises
    ------
    ValueError
        If a rate lies below the overlap (the rule is below lossless and the formula does not hold).
    """
    alpha, beta = _rates(rates), real_number(overlap, "overlap", least=0.0, most=1.0)
    below = alpha < beta - 1e-12
    if below.any():
        i = int(np.argmax(below))
        raise ValueError(
            f"rate {alpha[i]} at position {i} is below the overlap {beta}; the closed form needs alpha_i >= overlap"
        )
    survival = np.cumprod(alpha)
    return Bound((1 - beta) * survival.sum() - beta * (1 - survival[-1]))


def survival_price(rates: Any) -> Schedule:
    """S_L / Σ_{k≥i} S_k for i = 1…L: how fast S_L falls per accepted token given up at position i."""
    survival = np.cumprod(_rates(rates))
    if survival[-1] == 0:
        raise ValueError("a rate of zero ends every block; the price is defined for positive rates only")
    return np.asarray(survival[-1] / np.cumsum(survival[::-1])[::-1])


def match(
    family: Callable[[float], Any],
    measure: Callable[[Any], float],
    value: float,
    low: float,
    high: float,
    tolerance: float = 1e-10,
) -> float:
    """Strength at which a family of verifiers reaches a given value of a monotone measure.

    Parameters
    ----------
    family : function strength → verifier
    measure : function verifier → float
        Non-decreasing in the strength, for instance expected accepted length.
    value : float
        What the measure should be.
    low, high : float
        Bracket of the strength.
    tolerance : float
        Of the strength, absolute; raise it where one evaluation of the measure is dear.

    Returns
    -------
    float
        The strength.

    Raises
    ------
    ValueError
        If the family cannot reach the value within the bracket; the message names what it reaches.
    """
    from scipy.optimize import brentq

    ends = [measure(family(strength)) - value for strength in (low, high)]
    if ends[0] > 0 or ends[1] < 0:
        raise ValueError(
            f"value {value} is out of reach: strengths {low} to {high} give {ends[0] + value} to {ends[1] + value}"
        )
    if ends[0] == 0:
        return float(low)
    return float(brentq(lambda s: measure(family(s)) - value, low, high, xtol=tolerance))
