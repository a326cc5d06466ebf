"""Distances between two laws from exact log-likelihood ratios of samples of both.

With ρ = P̂(x)/P(x) and M = (P + P̂)/2, sampled by halves: TV = E_M tanh(|log ρ|/2), terms in [0, 1];
KL(P̂‖P) = E_P̂ [log ρ + 1/ρ − 1] where P ≪ P̂ (so that E_P̂ 1/ρ = 1), and KL(P‖P̂) = E_P [ρ − 1 − log ρ]: adding a term of
known mean makes every term non-negative and the average far less noisy.

>>> divergences = ratio_divergences(np.zeros(4), np.zeros(4), 0.95)
>>> divergences["total_variation"].value
0.0
"""

from __future__ import annotations

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
    distances = [np.tanh(np.abs(r) / 2) for r in (output, target)]
    return {
        "total_variation": mean_interval(distances, confidence, "normal", most=1.0),
        "kl_output_target": mean_interval([output + np.expm1(-output)], confidence, "normal"),
        "kl_target_output": mean_interval([np.expm1(target) - target], confidence, "normal"),
    }
