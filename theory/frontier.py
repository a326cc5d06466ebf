"""The frontier of accepted length against the bound, over all token-wise acceptance functions.

Trading N = Σ A_i against B = Σ [A_i − A_{i−1} p_i]_+ with 0 ≤ A_i(x_{1:i}) ≤ A_{i−1} q_i is a linear programme in the
accepted-path masses A_i. Its Lagrangian max N − λ B is solved by a dynamic programme [proved]:

    W_L(c) = 0,   W_{i−1}(c) = Σ_x [ min(p, q)·(1 + W_i(cx)) + [q − p]_+ · max(0, 1 + W_i(cx) − λ) ].

All breakpoints in λ come out at once. 1 + W_i(cx; λ) − λ strictly falls in λ, so every token cx has one *price*
λ*(cx) ≥ 1, the root of 1 + W_i(cx; λ) = λ: the optimal rule accepts x outright iff λ < λ*(cx), and is lossless
otherwise. W is convex, piecewise linear and constant for large λ, so it is a base and a list of (price, cost) pairs,

    W(λ) = w + Σ_k s_k [t_k − λ]_+ ,    −dW/dλ = B,    N = W + λ B.

Going up one layer, the pairs keep their prices and only their costs change:

    w ← Σ_x min(p, q)·(1 + w_x);    s ← s·(min(p, q) + [q − p]_+·1[t ≤ λ*]);
    one new pair a token: price λ*, cost [q − p]_+·(1 + Σ_{t > λ*} s).

At the root, sorted by falling price, partial sums of (s, s·t) are the vertices (B, N). A tree of n prefixes has at
most n + 1 of them; Markov chains share prices between prefixes with one last token, hence at most V·L + 1.

p = (¾, ¼), q = (¼, ¾) at both positions: lossless accepts ½ a step.

>>> from theory.chains import IIDChain
>>> front = bound_frontier(IIDChain([0.75, 0.25]), IIDChain([0.25, 0.75]), 2)
>>> front.tv_bound.tolist(), front.expected_accepted.tolist(), front.slopes.tolist()
([0.0, 0.5, 1.0], [0.75, 1.5, 2.0], [1.5, 1.0])
>>> round(front.at(0.25), 12)
1.125
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from theory.arrays import real_array, real_number, to_numpy, whole_number
from theory.chains import Chain, IIDChain, MarkovChain, check_depth, joint_layers

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]

LARGEST_TABLE = 2**24
"""Most (price, cost) pairs held at once; a dozen float64 arrays of this size are 1.6 GB."""

TIE = 1e-12
"""Prices this close (relatively) are one breakpoint: a price is a ratio of sums of at most V·L rounded terms."""

ROUNDING = 8 * np.finfo(np.float64).eps
"""q − p below this share of q is the rounding of two rows divided by their sums, not over-drafting."""


class Common(NamedTuple):
    """min(p, q) and [q − p]_+ of one layer, both of shape (m, V)."""

    shared: Floats
    excess: Floats


class Value(NamedTuple):
    """W of every row of a layer: base (m,), prices (m, K) or (1, K) falling, costs (m, K)."""

    base: Floats
    prices: Floats
    costs: Floats


def merged(target: Chain, draft: Chain) -> bool:
    """Whether prefixes with one last token share a row, so that prices depend on position and token only."""
    return all(isinstance(chain, (IIDChain, MarkovChain)) for chain in (target, draft))


def check_round(target: Chain, draft: Chain, length: int) -> int:
    """L, checked against both chains."""
    length = whole_number(length, "length", 1)
    for chain, name in ((target, "target"), (draft, "draft")):
        check_depth(chain, length, name, f"a frontier of {length} drafted tokens")
    return length


def common_layers(target: Chain, draft: Chain, length: int) -> list[Common]:
    """The layers of a round of L drafted tokens, in float64 NumPy."""
    layers = []
    for layer in joint_layers(target, draft, length):
        p, q = (to_numpy(a).astype(np.float64) for a in (layer.target, layer.draft))
        excess = q - p
        excess[excess <= ROUNDING * q] = 0.0
        layers.append(Common(q - excess, excess))
    return layers


def _price(value: Value) -> tuple[Floats, np.ndarray[Any, Any], Floats]:
    """λ*, which pairs lie at or below it (rows, K), and 1 + Σ_{t > λ*} s, for every row."""
    spent = np.cumsum(value.costs, axis=1)
    gained = np.cumsum(value.costs * value.prices, axis=1)
    above = 1 + value.base[:, None] + gained - (spent + 1) * value.prices < 0
    count = above.sum(axis=1)
    rows = np.arange(len(count))
    before = np.where(count > 0, spent[rows, count - 1], 0.0) if spent.shape[1] else 0.0 * value.base
    earned = np.where(count > 0, gained[rows, count - 1], 0.0) if spent.shape[1] else before
    return (1 + value.base + earned) / (1 + before), np.arange(spent.shape[1]) >= count[:, None], 1 + before


def _lift_tree(layer: Common, value: Value) -> tuple[Value, Floats]:
    """W of a layer from W of the next, every prefix apart: rows of `value` are (prefix, token) in order."""
    m, size = layer.shared.shape
    a, b = layer.shared.reshape(-1, 1), layer.excess.reshape(-1, 1)
    price, below, weight = _price(value)
    costs = np.concatenate([value.costs * (a + b * below), b * weight[:, None]], axis=1).reshape(m, -1)
    prices = np.concatenate([value.prices, price[:, None]], axis=1).reshape(m, -1)
    order = np.argsort(-prices, axis=1, kind="stable")
    base = np.sum(layer.shared * (1 + value.base.reshape(m, size)), axis=1)
    sort = (np.take_along_axis(x, order, axis=1) for x in (prices, costs))
    return Value(base, *sort), price.reshape(m, size)


def _lift_merged(layer: Common, value: Value) -> tuple[Value, Floats]:
    """The same where the next row is the last token (or the only one): one list of prices for all rows."""
    a, b = layer
    if len(value.base) == 1:
        a, b = a.sum(axis=1, keepdims=True), b.sum(axis=1, keepdims=True)
    price, below, weight = _price(value)
    costs = np.concatenate([a @ value.costs + b @ (value.costs * below), b * weight], axis=1)
    prices = np.concatenate([value.prices[0], price])
    order = np.argsort(-prices, kind="stable")
    return Value(a @ (1 + value.base), prices[None, order], costs[:, order]), price[None, :]


def _vertices(base: float, prices: Floats, costs: Floats) -> tuple[Floats, Floats, Floats]:
    """(B, N, λ) from the root's pairs, equal prices merged."""
    charged = costs > 0
    prices, costs = prices[charged], costs[charged]
    if not len(prices):
        return np.zeros(1), np.array([base]), np.zeros(0)
    starts = np.flatnonzero(np.concatenate([[True], prices[:-1] - prices[1:] > TIE * prices[:-1]]))
    cost, gain = (np.add.reduceat(x, starts) for x in (costs, costs * prices))
    zero = np.zeros(1)
    return np.concatenate([zero, cost.cumsum()]), base + np.concatenate([zero, gain.cumsum()]), gain / cost


@dataclass(frozen=True, eq=False)
class BoundFrontier:
    """The concave frontier of (B, N) over token-wise rules; see `bound_frontier`.

    Attributes
    ----------
    tv_bound, expected_accepted : array, shape (K,)
        Vertices (B, N), lossless first, accept-all last.
    slopes : array, shape (K−1,)
        Critical λ of the edges, falling, each in [1, L]: tokens accepted per unit of B.
    length : int
        L.
    error : float
        0 if these are all vertices; else a proved bound on how far interpolated N lies below the frontier.
    prices : tuple of arrays
        λ*(cx) of every position, (V**i, V), or (1, V) where it depends on the token only; empty if not exact.
    """

    tv_bound: Floats
    expected_accepted: Floats
    slopes: Floats
    length: int
    error: float = 0.0
    prices: tuple[Floats, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        for array in (self.tv_bound, self.expected_accepted, self.slopes, *self.prices):
            array.flags.writeable = False

    def at(self, budget: Any) -> Any:
        """Largest N with B ≤ budget: a float, or an array for an array of budgets.

        Raises
        ------
        ValueError
            For a budget that is negative or not a number. Above accept-all's B the answer is L.
        """
        budgets = real_array(budget, "budget")
        if not np.all(budgets >= 0):
            raise ValueError(f"budget must be >= 0, got {budget!r}; zero is lossless decoding")
        found = np.interp(budgets, self.tv_bound, self.expected_accepted)
        return float(found) if found.ndim == 0 else found

    def least_bound(self, expected_accepted: float) -> float:
        """Least B at which a rule accepts N tokens a round.

        Raises
        ------
        ValueError
            For N above L. Below the lossless N the answer is 0.
        """
        wanted = real_number(expected_accepted, "expected_accepted", most=self.length)
        return float(np.interp(wanted, self.expected_accepted, self.tv_bound))


def _at_slope(layers: list[Common], merge: bool, slope: float) -> tuple[float, float]:
    """(B, N) of the optimal rule at one λ, by the dynamic programme for W at the module's head."""
    rows = layers[-1].shared.shape[1] if merge else layers[-1].shared.size
    bound, accepted = np.zeros(rows), np.zeros(rows)
    for shared, excess in reversed(layers):
        shape = (1, -1) if merge else shared.shape
        b, n = bound.reshape(shape), 1 + accepted.reshape(shape)
        free = n - slope * b > slope
        bound = np.sum((shared + excess * free) * b + excess * free, axis=1)
        accepted = np.sum((shared + excess * free) * n, axis=1)
        if merge and len(bound) == 1:
            bound, accepted = (np.broadcast_to(x, rows) for x in (bound, accepted))
    return float(bound[0]), float(accepted[0])


def _at_slopes(layers: list[Common], merge: bool, slopes: Iterable[Any]) -> BoundFrontier:
    """The points at given λ with the exact error of interpolating between them."""
    length = len(layers)
    inner = [real_number(slope, "slope", least=0.0) for slope in slopes]
    # Every price lies in [1, L]: λ = L is lossless, and any λ < 1 accepts everything.
    tried = [float(length), *sorted({s for s in inner if 1 <= s < length}, reverse=True), 1.0]
    points = [_at_slope(layers, merge, s) for s in (*tried[:-1], 0.5)]
    error = 0.0
    for (b0, n0), (b1, n1), s0, s1 in zip(points[:-1], points[1:], tried[:-1], tried[1:], strict=True):
        if b1 > b0 and s0 > s1:
            meet = min(max((n1 - n0 + s0 * b0 - s1 * b1) / (s0 - s1), b0), b1)
            error = max(error, n0 + s0 * (meet - b0) - (n0 + (n1 - n0) * (meet - b0) / (b1 - b0)))
    bounds, accepted = np.array(points).T
    keep = np.concatenate([[True], np.diff(bounds) > 0])
    bounds, accepted = bounds[keep], accepted[keep]
    return BoundFrontier(bounds, accepted, np.diff(accepted) / np.diff(bounds), length, error)


def bound_frontier(target: Chain, draft: Chain, length: int, *, slopes: Iterable[float] | None = None) -> BoundFrontier:
    """Largest expected accepted length for every value of the bound, over all token-wise rules.

    Parameters
    ----------
    target, draft : Chain
        Of one vocabulary, at least L tokens deep.
    length : int
        L ≥ 1 drafted tokens.
    slopes : iterable of floats ≥ 0, optional
        Compute the optimal rules at these λ only, one plain pass each, in the memory of the two tables: where all
        vertices are too many. The points are exact, and `error` bounds what lies between them.

    Returns
    -------
    BoundFrontier

    Raises
    ------
    ValueError
        For length < 1, a chain too shallow, different vocabularies, or more prefixes than can be enumerated.

    Notes
    -----
    Source: this project, the dynamic programme at the module's head. Oracle: the linear programme, and the plain pass
    at single λ (`slopes`).
    """
    length = check_round(target, draft, length)
    merge, size = merged(target, draft), target.vocab_size
    # An independent pair has one row, a Markov pair one per last token, each with as many prices a layer.
    rows = 1 if all(isinstance(chain, IIDChain) for chain in (target, draft)) else size
    pairs = rows * rows * length if merge else size**length
    if slopes is None and pairs > LARGEST_TABLE:
        raise ValueError(
            f"a frontier of {length} tokens over {size} ids holds {pairs} prices, more than {LARGEST_TABLE}; "
            "use a shorter round, or give slopes= for the optimal rules at single slopes with a proved error"
        )
    layers = common_layers(target, draft, length)
    if slopes is not None:
        return _at_slopes(layers, merge, slopes)
    rows = len(layers[-1].shared) if merge else layers[-1].shared.size
    value = Value(np.zeros(rows), np.zeros((1 if merge else rows, 0)), np.zeros((rows, 0)))
    prices = []
    for layer in reversed(layers):
        value, price = (_lift_merged if merge else _lift_tree)(layer, value)
        prices.append(np.broadcast_to(price, (len(price), size)).copy())
    bounds, accepted, critical = _vertices(float(value.base[0]), value.prices[0], value.costs[0])
    return BoundFrontier(bounds, np.minimum(accepted, length), critical, len(layers), prices=tuple(prices[::-1]))
