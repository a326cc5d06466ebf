"""One check of a record, and the test of decoded images against their law."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import chisquare

__all__ = ["check_at_least", "check_at_most", "law_p_value", "left_out"]


def check_at_most(record: dict[str, Any], what: str, value: float, limit: float) -> None:
    """Note a value and whether it stays within its limit; NaN does not."""
    record["checks"].append({"what": what, "value": float(value), "limit": limit, "passed": bool(value <= limit)})


def check_at_least(record: dict[str, Any], what: str, value: float, limit: float) -> None:
    """Note a value and whether it reaches its limit; NaN does not."""
    record["checks"].append({"what": what, "value": float(value), "limit": limit, "passed": bool(value >= limit)})


def left_out(record: dict[str, Any], reason: str) -> None:
    """Note what was not done and why."""
    record.setdefault("left_out", []).append(reason)


def law_p_value(tokens: np.ndarray, law: npt.ArrayLike) -> float:
    """p-value of a chi-square test of rows of tokens against a law; 0 where a token without probability occurs.

    Parameters
    ----------
    tokens : ndarray of int, shape (N, T), T >= n
        Rows that are independent; the first n tokens are tested.
    law : array_like, shape (V,) * n
        Cells of fewer than five expected rows are pooled.

    >>> law_p_value(np.array([[0], [1]] * 50), [0.5, 0.5]), law_p_value(np.array([[0], [1]] * 50), [1.0, 0.0])
    (1.0, 0.0)
    >>> law_p_value(np.array([[0]] * 50), [1.0, 0.0])
    1.0
    """
    table = np.asarray(law, dtype=np.float64)
    cells = np.ravel_multi_index(tuple(tokens[:, : table.ndim].T), table.shape)
    seen, wanted = np.bincount(cells, minlength=table.size), len(tokens) * table.ravel()
    rare = wanted < 5
    seen, wanted = (np.append(each[~rare], each[rare].sum()) for each in (seen, wanted))
    # Rounding of a law's zeros is no probability.
    possible = wanted > 1e-9
    if seen[~possible].any():
        return 0.0
    if possible.sum() < 2:
        return 1.0
    seen, wanted = seen[possible], wanted[possible]
    return float(chisquare(seen, wanted * (seen.sum() / wanted.sum())).pvalue)
