"""Ratios of divergences between methods: image by image on the same images, or between independent samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from simulate.intervals import Interval, mean_interval
from simulate.ratios import ratio_at_equal_cost

__all__ = ["REFERENCE", "add_ratios", "paired_ratio", "plain", "rounded"]

REFERENCE = "uniform"
RATIOS = ("kl_output_target", "predictive_tv")


def plain(value: Interval | float) -> Any:
    """A number as JSON holds it: intervals as [lower, value, upper], NaN as null, ∞ as text."""
    if isinstance(value, Interval):
        return [plain(x) for x in value]
    if math.isnan(value):
        return None
    return float(f"{value:.6g}") if math.isfinite(value) else str(value)


def rounded(interval: Interval | None) -> list[float] | None:
    """[lower, value, upper] to four digits."""
    return None if interval is None else [float(f"{x:.4g}") for x in interval]


def paired_ratio(ours: Sequence[float], reference: Sequence[float], confidence: float = 0.95) -> Interval | None:
    """Ratio of two means over the same images with the interval of their paired differences; None for 0/0 or ∞.

    With r = ā/b̄, the terms r + (a_k − r b_k)/b̄ have mean r, and to first order the variance of the ratio.

    >>> paired_ratio([1.0, 2.0, 3.0], [2.0, 4.0, 6.0]).value
    0.5
    """
    a, b = np.asarray(ours, dtype=np.float64), np.asarray(reference, dtype=np.float64)
    if a.shape != b.shape:
        raise ValueError(f"ratios need the same images, got {len(a)} and {len(b)}")
    if not (np.isfinite(a).all() and np.isfinite(b).all() and b.mean() > 0):
        return None
    ratio = a.mean() / b.mean()
    return mean_interval([ratio + (a - ratio * b) / b.mean()], confidence, "normal", name="ratio")


def _interval(values: Any) -> Interval | None:
    if not isinstance(values, list) or not all(isinstance(v, float | int) for v in values):
        return None
    lower, value, upper = (float(v) for v in values)
    return Interval(lower, value, upper, 0.95)


def _independent_ratio(ours: Interval | None, reference: Interval | None) -> Interval | None:
    """Of two positive estimates from different images: their relative half-widths in quadrature."""
    if ours is None or reference is None or min(ours.value, reference.value) <= 0:
        return None
    spread = math.hypot(*((i.upper - i.lower) / 2 / i.value for i in (ours, reference)))
    ratio = ours.value / reference.value
    return Interval(ratio * math.exp(-spread), ratio, ratio * math.exp(spread), ours.confidence)


def add_ratios(rows: list[dict[str, Any]]) -> None:
    """Ratios to uniform relaxation at the same size, hence at equal predicted tokens per call.

    "ratio_kl_target_output_paired" is taken over the same images of the target; the others compare decoded images, and
    with "…_measured_cost" at equal measured tokens per call (uniform's curve interpolated), whose own error makes
    them wide.
    """
    reference = {row["size"]: row for row in rows if row["method"] == REFERENCE and "terms" in row}
    lossless = next((row for row in rows if row["method"] == "lossless"), None)
    cost_name = "tokens_per_call_from_posterior"
    curve = sorted(reference.values(), key=lambda row: row[cost_name][1])
    for row in rows:
        if row["size"] not in reference or "terms" not in row or row["method"] == REFERENCE:
            continue
        base = reference[row["size"]]
        paired = paired_ratio(row["terms"]["kl_target_output"], base["terms"]["kl_target_output"])
        row["ratio_kl_target_output_paired"] = rounded(paired)
        for name in RATIOS:
            value = _interval(row[name])
            row[f"ratio_{name}"] = rounded(_independent_ratio(value, _interval(base[name])))
            row[f"ratio_{name}_measured_cost"] = None
            cost, costs, values = _interval(row[cost_name]), [], []
            for other in curve:
                pair = _interval(other[cost_name]), _interval(other[name])
                if pair[0] is not None and pair[1] is not None:
                    costs.append(pair[0])
                    values.append(pair[1])
            if value is None or cost is None or lossless is None:
                continue
            try:
                ratio = ratio_at_equal_cost(cost, value, costs, values, lossless[cost_name][1])
            except ValueError:  # a single uniform point, or one no faster than lossless: no curve to compare with
                continue
            row[f"ratio_{name}_measured_cost"] = rounded(ratio)
