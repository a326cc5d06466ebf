"""Distances between categorical laws, on the last axis.

For laws P, Q on a finite set:

* total variation  TV(P, Q) = ½ Σ |P − Q| = Σ [P − Q]_+;  overlap β = Σ min(P, Q) = 1 − TV
* Kullback–Leibler KL(P‖Q) = Σ P log(P/Q), in nats; +∞ where P charges a Q-null point
* Jensen–Shannon   JS = ½ KL(P‖M) + ½ KL(Q‖M), M = (P + Q)/2
* Hellinger        H² = ½ Σ (√P − √Q)²
* hockey stick     E_γ = Σ [P − γ Q]_+  (E_1 = TV)
* max ratio        max P/Q over the points P charges (its logarithm is the max divergence)
* transport cost   min Σ π c over couplings π of P and Q

>>> total_variation([0.5, 0.3, 0.2], [0.2, 0.3, 0.5])
0.3
>>> kl_divergence([0.5, 0.5], [1.0, 0.0])
inf
"""

from __future__ import annotations

from typing import Any

import numpy as np

from theory.arrays import Array, array_namespace, as_floats, first_index, to_numpy

MASSES_DIFFER = 1e-6
"""Largest difference of the masses of two laws between which transport is defined: float32 rows summed over V."""


TRANSPORT_GAP = 1e-7
"""Largest accepted distance of plan and dual bound, in units of the largest cost (above one): HiGHS's own tolerance."""


def _pair(p: Any, q: Any) -> tuple[Any, Array, Array]:
    p, q = as_floats(p), as_floats(q)
    if p.shape[-1] != q.shape[-1]:
        raise ValueError(f"vocabulary mismatch: {p.shape[-1]} and {q.shape[-1]} entries on the last axis")
    return array_namespace(p, q), p, q


def _scalar(value: Array) -> Array:
    return float(value) if value.ndim == 0 else value


def total_variation(p: Any, q: Any) -> Array:
    """TV(p, q) = ½ Σ |p − q|; shapes (..., V) → (...)."""
    xp, p, q = _pair(p, q)
    return _scalar(xp.sum(xp.abs(p - q), axis=-1) / 2)


def overlap(p: Any, q: Any) -> Array:
    """β = Σ min(p, q), the acceptance rate of lossless decoding; shapes (..., V) → (...)."""
    xp, p, q = _pair(p, q)
    return _scalar(xp.sum(xp.minimum(p, q), axis=-1))


def kl_divergence(p: Any, q: Any) -> Array:
    """KL(p‖q) in nats, +∞ where p charges a point that q does not; shapes (..., V) → (...).

    Summed as p log(p/q) − p + q, whose terms are all non-negative, so that nearly equal laws do not cancel; with
    log(1 + (p−q)/q) where p is near q, so that entries that differ by a share d keep a relative error of ε/d and not
    ε/d², and with log p − log q elsewhere, so that p/q cannot overflow.
    """
    xp, p, q = _pair(p, q)
    p, q = xp.broadcast_arrays(p, q)
    one = xp.ones_like(p)
    both = (p > 0) & (q > 0)
    near = both & (xp.abs(p - q) <= q / 2)
    share = xp.where(near, p - q, 0 * one) / xp.where(near, q, one)
    apart = xp.log(xp.where(both, p, one)) - xp.log(xp.where(both, q, one))
    log_ratio = xp.where(near, xp.log1p(share), apart)
    terms = xp.where(both, p * log_ratio - (p - q), xp.where(p > 0, xp.inf * one, q))
    # Comparisons with NaN are false: without this a NaN row would count as an ordinary one.
    terms = xp.where(xp.isnan(p + q), xp.nan * one, terms)
    return _scalar(xp.clip(xp.sum(terms, axis=-1), 0.0, None))


def js_divergence(p: Any, q: Any) -> Array:
    """Jensen–Shannon divergence in nats, between 0 and log 2; shapes (..., V) → (...)."""
    _, p, q = _pair(p, q)
    middle = (p + q) / 2
    return kl_divergence(p, middle) / 2 + kl_divergence(q, middle) / 2


def hellinger(p: Any, q: Any) -> Array:
    """Hellinger distance √(½ Σ (√p − √q)²), between 0 and 1; shapes (..., V) → (...)."""
    xp, p, q = _pair(p, q)
    return _scalar(xp.sqrt(xp.sum((xp.sqrt(p) - xp.sqrt(q)) ** 2, axis=-1) / 2))


def hockey_stick(p: Any, q: Any, gamma: float) -> Array:
    """E_γ(p, q) = Σ [p − γ q]_+; shapes (..., V) → (...)."""
    xp, p, q = _pair(p, q)
    return _scalar(xp.sum(xp.clip(p - gamma * q, 0.0, None), axis=-1))


def max_ratio(p: Any, q: Any) -> Array:
    """Largest p/q over the points that p charges, +∞ if q misses one of them; shapes (..., V) → (...)."""
    xp, p, q = _pair(p, q)
    one = xp.ones_like(p)
    ratio = xp.where(p > 0, xp.where(q > 0, p / xp.where(q > 0, q, one), xp.inf * one), 0 * one)
    return _scalar(xp.max(xp.where(xp.isnan(p + q), xp.nan * one, ratio), axis=-1))


def entropy(p: Any) -> Array:
    """H(p) = −Σ p log p in nats; shapes (..., V) → (...)."""
    p = as_floats(p)
    xp = array_namespace(p)
    return _scalar(-xp.sum(p * xp.log(xp.where(p > 0, p, xp.ones_like(p))), axis=-1))


def transport_cost(p: Any, q: Any, cost: Any) -> float:
    """Least expected cost of turning one draw of p into a draw of q.

    Parameters
    ----------
    p, q : array, shape (V,)
    cost : array, shape (V, V)
        cost[x, y] ≥ 0, for instance the distance between the embeddings of tokens x and y.

    Returns
    -------
    float
        Optimum of the transport linear programme (HiGHS through scipy): the cost of a plan made feasible in float64,
        within `TRANSPORT_GAP` of the dual bound.

    Raises
    ------
    ValueError
        If the shapes do not match, a cost is negative or not finite, or the masses differ.
    RuntimeError
        If the solver does not converge, its status is named; or plan and dual bound are further apart than
        `TRANSPORT_GAP`. Nothing is returned.
    """
    from scipy.optimize import linprog
    from scipy.sparse import eye_array, kron, vstack

    p, q, cost = (to_numpy(as_floats(a)).astype(np.float64) for a in (p, q, cost))
    size = p.shape[-1]
    if p.shape != (size,) or q.shape != (size,) or cost.shape != (size, size):
        raise ValueError(f"expected shapes (V,), (V,), (V, V), got {p.shape}, {q.shape}, {cost.shape}")
    bad = ~(np.isfinite(cost) & (cost >= 0))
    if bad.any():
        index = first_index(bad)
        raise ValueError(f"cost: entry {index} is {cost[index]}; costs must be finite and non-negative")
    if not abs(p.sum() - q.sum()) <= MASSES_DIFFER:
        raise ValueError(f"p and q sum to {p.sum()} and {q.sum()}; only equal masses can be moved onto each other")
    # Rounding of the sums would make the programme infeasible.
    q = q * (p.sum() / q.sum()) if q.sum() > 0 else q
    ones = np.ones((1, size))
    rows, columns = kron(eye_array(size), ones), kron(ones, eye_array(size))
    solution = linprog(
        cost.ravel(), A_eq=vstack([rows, columns]).tocsr(), b_eq=np.concatenate([p, q]), bounds=(0, None)
    )
    if not solution.success:
        raise RuntimeError(f"transport linear programme did not converge: {solution.message}")
    # The solver's plan and prices are made feasible before they are believed: primal value above, dual value below.
    plan = np.clip(solution.x.reshape(size, size), 0.0, None)
    plan *= np.minimum(1.0, p / np.where(plan.sum(axis=1) > 0, plan.sum(axis=1), 1.0))[:, None]
    plan *= np.minimum(1.0, q / np.where(plan.sum(axis=0) > 0, plan.sum(axis=0), 1.0))
    left, missing = (np.clip(law - plan.sum(axis=axis), 0.0, None) for law, axis in ((p, 1), (q, 0)))
    value = float(np.sum(cost * plan))
    if left.sum() > 0:
        value += float(left @ cost @ missing / left.sum())
    prices = solution.eqlin.marginals[:size]
    lower = float(p @ prices + q @ np.min(cost - prices[:, None], axis=0))
    if not value - lower <= TRANSPORT_GAP * max(1.0, float(cost.max())):
        raise RuntimeError(f"transport linear programme is certified to lie in {lower} to {value} only; not returned")
    return value
