"""Distances between two laws from exact log-likelihood ratios of samples of both.

With ρ = P̂(x)/P(x) and M = (P + P̂)/2, sampled by halves: TV = E_M tanh(|log ρ|/2), terms in [0, 1];
KL(P̂‖P) = E_P̂ [log ρ + 1/ρ − 1] where P ≪ P̂ (so that E_P̂ 1/ρ = 1), and KL(P‖P̂) = E_P [ρ − 1 − log ρ]: adding a term of
known mean makes every term non-negative and the average far less noisy. Where P is not ≪ P̂ (a target sample that P̂
cannot emit, or an average of 1/ρ off one by more than four standard errors) the first is plain E_P̂ log ρ.

>>> divergences = ratio_divergences(np.zeros(4), np.zeros(4), 0.95)
>>> divergences["total_variation"].value
0.0
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from simulate.intervals import Interval, Terms, mean_interval


def ratio_divergences(
    log_ratio_output: Terms, log_ratio_target: Terms, confidence: float = 0.95
) -> dict[str, Interval]:
    """TV and both KLs with intervals.

    Parameters
    ----------
    log_ratio_output, log_ratio_target : array, shape (n,)
        log ρ of independent samples of P̂ and of P; −∞ in the second where P̂ cannot emit the sample.
    confidence : float
        Of each interval by itself (central limit theorem).

    Returns
    -------
    dict
        "total_variation", "kl_output_target", "kl_target_output".
    """
    output, target = np.asarray(log_ratio_output, dtype=float), np.asarray(log_ratio_target, dtype=float)
    inverse = np.exp(-output)
    error = inverse.std() / math.sqrt(len(inverse)) + 1e-9
    covered = not np.isneginf(target).any() and abs(float(inverse.mean()) - 1) <= 4 * error
    terms = output + np.expm1(-output) if covered else output
    distances = [np.tanh(np.abs(r) / 2) for r in (output, target)]
    return {
        "total_variation": mean_interval(distances, confidence, "normal", most=1.0),
        "kl_output_target": mean_interval([terms], confidence, "normal", least=0.0 if covered else -math.inf),
        "kl_target_output": mean_interval([np.expm1(target) - target], confidence, "normal"),
    }


def ratio_at_equal_cost(
    cost: Interval, value: Interval, reference_costs: Sequence[Interval], reference: list[Interval], free: float
) -> Interval:
    """A positive quantity over a reference method's at the same cost, with the reference interpolated.

    Divergences vanish at the cost `free` of lossless decoding and grow like a power of the excess over it, so the
    reference is a straight line in log(cost − free) and log(value) between its two nearest points (beyond its ends,
    the line through the two last ones).

    Parameters
    ----------
    cost : Interval
        Such as tokens per call. Of width zero where costs are known, or were estimated on the same samples.
    value : Interval
        Estimate at this cost, its value and ends positive.
    reference_costs : sequence of n ≥ 2 Interval, values increasing
    reference : list of n Interval
    free : float
        Below every cost.

    Returns
    -------
    Interval
        Relative half-widths of both values, and of both costs through the slope of the line, joined in quadrature as
        if independent. The ends of the cost interval near `free` make it wide: there the comparison says little.

    Raises
    ------
    ValueError
        For costs at or below `free`, fewer than two reference points, or values that are not positive and finite.
    """
    costs = np.array([c.value for c in reference_costs])
    values = np.array([r.value for r in reference])
    if len(costs) < 2 or not (np.diff(costs) > 0).all() or min(cost.value, costs[0]) <= free:
        raise ValueError(f"costs must increase and exceed {free}, got {cost.value} and {costs.tolist()}")
    if not (np.isfinite(values) & (values > 0)).all() or not 0 < value.value < np.inf:
        raise ValueError(f"values must be positive and finite, got {value.value} and {values.tolist()}")
    x, at = np.log(costs - free), math.log(cost.value - free)
    left = int(np.clip(np.searchsorted(x, at) - 1, 0, len(x) - 2))
    share = (at - x[left]) / (x[left + 1] - x[left])
    interpolated = float(np.exp((1 - share) * np.log(values[left]) + share * np.log(values[left + 1])))
    slope = float(np.log(values[left + 1] / values[left]) / (x[left + 1] - x[left]))
    nearest = left + int(share > 0.5)
    ratio = value.value / interpolated
    errors = [(i.upper - i.lower) / 2 / i.value for i in (value, reference[nearest])]
    errors += [slope * (c.upper - c.lower) / 2 / (c.value - free) for c in (cost, reference_costs[nearest])]
    spread = math.hypot(*errors)
    return Interval(ratio * math.exp(-spread), ratio, ratio * math.exp(spread), value.confidence)
