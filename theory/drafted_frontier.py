"""The frontier of the round's bound, known between two sides from drafted blocks alone.

N = E Σ_i A_i/Q_i and B = E Σ_i (A_{i−1}/Q_{i−1}) TV(o_i, p_i) are averages over drafted blocks x ~ q (Q_i their draft
mass). Over all token-wise rules, with a(x) = min(1, p/q)(x) at the drafted token, the optimum of N − λ B is W_0 with

    W_L = 0,   W_{i−1}(c) = E_{x~q} [ a(x) (1 + W_i(cx)) + (1 − a(x)) max(0, 1 + W_i(cx) − λ) ].

W needs every continuation of every prefix, V^L of them. One drafted block gives two sides of the frontier instead:

* above: the same recursion along the block alone, Ŵ_{i−1} = a (1 + Ŵ_i) + (1 − a) max(0, 1 + Ŵ_i − λ), knows the drafts
  to come. By Jensen's inequality E Ŵ_0 ≥ W_0, so no token-wise rule has N > min_λ (E Ŵ_0 + λ B) [proved].
* below: rules that accept everything up to a position, lossless behind it (a coin at one position meets B exactly).
  They are token-wise, so the frontier lies above them.

Drafts that the target would take with ½, one position: lossless N = ½, and N = 1 costs B = ½.

>>> halves = np.full((4, 1), 0.5)
>>> [round(float(x), 12) for x in upper_side(halves, 0.25)[0]], [round(float(x), 12) for x in lower_side(halves, 0.25)]
([0.75, 0.75, 0.75, 0.75], [0.75, 0.75, 0.75, 0.75])
"""

from __future__ import annotations

import numpy as np

__all__ = ["lower_side", "upper_side"]

SLOPES = 60
"""Values of λ tried in [1, L], evenly on a log scale: the upper side's minimum is flat in λ."""


def upper_side(lossless: np.ndarray, bound: float) -> tuple[np.ndarray, float]:
    """Terms (n,) whose mean no token-wise rule's N exceeds at B = `bound`, and the λ that gives the least mean."""
    best: tuple[float, np.ndarray, float] | None = None
    length = lossless.shape[1]
    for slope in np.geomspace(1.0, max(length, 1.0 + 1e-9), SLOPES):
        value = np.zeros(len(lossless))
        for i in reversed(range(length)):
            a, gain = lossless[:, i], 1 + value
            value = a * gain + (1 - a) * np.maximum(0.0, gain - slope)
        terms = value + slope * bound
        if best is None or terms.mean() < best[0]:
            best = float(terms.mean()), terms, float(slope)
    assert best is not None
    return best[1], best[2]


def lower_side(lossless: np.ndarray, bound: float, overdraft: np.ndarray | None = None) -> np.ndarray:
    """Terms (n,) of the N that rules by position reach at B = `bound`; all drafts are accepted where B allows it.

    Parameters
    ----------
    overdraft : array, shape (n, L), optional
        TV(p, q) at each prefix; 1 − a, whose mean it is, by default.
    """
    cost = 1 - lossless if overdraft is None else overdraft
    length = lossless.shape[1]
    rules = []
    for free in range(length + 1):
        f = np.where(np.arange(length) < free, 1.0, lossless)
        rules.append((np.cumprod(f, axis=1).sum(axis=1), cost[:, :free].sum(axis=1)))
    spent = np.array([b.mean() for _, b in rules])
    last = int(np.searchsorted(spent, bound, side="right")) - 1
    if last >= length:
        return np.asarray(rules[length][0])
    share = (bound - spent[last]) / max(spent[last + 1] - spent[last], np.finfo(float).tiny)
    return np.asarray((1 - share) * rules[last][0] + share * rules[last + 1][0])
