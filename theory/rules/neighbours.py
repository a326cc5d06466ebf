"""Rules that let the mass of near codebook rows count as the token's own: LANTERN and LANTERN++.

For token x with neighbours y_1, y_2, … (ℓ2 order, self excluded), S_j = Σ_{i≤j} p(y_i) and m = the largest j ≤ k
with S_j ≤ t, t = δ (LANTERN) or (λ−1) p(x) (LANTERN++; the public code takes δ > 1 as λ). m = 0 if none fits; a
neighbour of zero mass always does.

* sampling   f = min(1, (p(x) + S_m)/q(x)); in a dynamic tree the drafted probability is taken as 1
* greedy     p(x) is raised to p(x) + S_m; x is accepted iff it is then the argmax, the first index on ties

>>> rule = Lantern([[1, 2], [0, 2], [1, 0]], k=2, delta=0.3)
>>> rule.acceptance([0.1, 0.2, 0.7], [0.6, 0.2, 0.2], 0).round(12).tolist()
[0.5, 1.0, 1.0]
>>> [a.tolist() for a in pooled_neighbours(np.asarray([0.1, 0.2, 0.7]), rule.neighbours, 0.3)]
[[0.2, 0.1, 0.30000000000000004], [1, 1, 2]]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from theory.arrays import (
    Array,
    array_namespace,
    as_floats,
    device,
    first_index,
    real_array,
    real_number,
    to_numpy,
    whole_number,
)
from theory.rules.base import Position, accept_up_to, pair

POOLING_SLACK = 16 * np.finfo(np.float64).eps
"""Relative slack of "neighbour mass ≤ limit": k rounded additions must not exclude an exact equality."""


def check_neighbours(neighbours: Any, k: int) -> np.ndarray[Any, Any]:
    """Neighbour lists as int64 of shape (V, k): for every token its k nearest others, nearest first, none twice."""
    table = to_numpy(neighbours)
    if table.ndim != 2 or table.shape[1] < k or table.dtype.kind not in "iu":
        raise ValueError(
            f"neighbours must be integers of shape (V, at least k={k}), got {table.dtype} of shape {table.shape}"
        )
    size = len(table)
    bad = (table < 0) | (table >= size) | (table == np.arange(size)[:, None])
    if bad.any():
        x, j = np.argwhere(bad)[0]
        raise ValueError(
            f"neighbours[{x}, {j}] is {table[x, j]}; a neighbour lies in 0…{size - 1} and is not the token itself"
        )
    kept = np.array(table[:, :k], dtype=np.int64)
    ordered = np.sort(kept, axis=1)
    twice = (ordered[:, 1:] == ordered[:, :-1]).any(axis=1)
    if twice.any():
        x = int(np.argmax(twice))
        raise ValueError(f"neighbours[{x}] names a token twice, {kept[x].tolist()}; its mass would be pooled twice")
    return kept


def codebook_rows(embedding: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Rows of an embedding as float64 (V, D); ValueError naming the first entry that is not finite."""
    rows = real_array(embedding, "embedding")
    if rows.ndim != 2:
        raise ValueError(f"embedding must have shape (V, D), one codebook row a token, got {rows.shape}")
    bad = ~np.isfinite(rows)
    if bad.any():
        index = first_index(bad)
        raise ValueError(f"embedding: entry {index} is {rows[index]}; codebook rows must be finite")
    return rows


def nearest_neighbours(embedding: Any, k: int) -> np.ndarray[Any, Any]:
    """The k nearest other tokens of every token in ℓ2 distance, nearest first, ties to the lower index.

    Parameters
    ----------
    embedding : array, shape (V, D)
        Codebook rows.
    k : int
        1 ≤ k < V.

    Returns
    -------
    int64 array, shape (V, k)

    Raises
    ------
    ValueError
        For rows that are not finite, or fewer than k + 1 of them.
    """
    points, k = codebook_rows(embedding), whole_number(k, "k", 1)
    if k >= len(points):
        raise ValueError(f"k is {k}; an embedding of shape {points.shape} has at most {len(points) - 1} neighbours")
    # Distances do not see origin and unit, their rounding does: rows far from zero would all look alike. A row as the
    # origin and a power of two as the unit keep ties exact.
    points = points - points[0]
    points = np.ldexp(points, -int(np.frexp(np.abs(points).max(initial=0.0))[1]))
    squares = np.sum(points**2, axis=1)
    distance = squares[:, None] + squares[None, :] - 2 * points @ points.T
    np.fill_diagonal(distance, np.inf)
    return np.argsort(distance, axis=1, kind="stable")[:, :k].astype(np.int64)


def neighbour_columns(p: Array, neighbours: np.ndarray[Any, Any]) -> Iterator[Array]:
    """Target mass of every token's first, second, … neighbour, each (..., V)."""
    xp = array_namespace(p)
    if len(neighbours) != p.shape[-1]:
        raise ValueError(f"neighbours are for {len(neighbours)} tokens, the laws have {p.shape[-1]}")
    for column in neighbours.T:
        yield xp.take(p, xp.asarray(column, device=device(p)), axis=-1)


def pooled_neighbours(p: Array, neighbours: np.ndarray[Any, Any], limit: Array | float) -> tuple[Array, Array]:
    """S_m and m: the longest list of nearest neighbours whose target mass stays at or below `limit`.

    Shapes: p (..., V), neighbours (V, k), limit broadcastable to (..., V); results (..., V), m as integers.
    """
    xp = array_namespace(p)
    total, best = xp.zeros_like(p), xp.zeros_like(p)
    count = xp.zeros_like(p, dtype=xp.int64)
    for j, column in enumerate(neighbour_columns(p, neighbours), 1):
        total = total + column
        fits = total <= limit * (1 + POOLING_SLACK)
        best = xp.where(fits, total, best)
        count = xp.where(fits, xp.full_like(count, j), count)
    return best, count


def pooled_mass(p: Array, neighbours: np.ndarray[Any, Any], limit: Array | float) -> Array:
    """S_m alone; see `pooled_neighbours`."""
    return pooled_neighbours(p, neighbours, limit)[0]


def greedy_acceptance(p: Any, pooled: Array) -> Array:
    """1[x is the argmax once p(x) is raised to p(x) + S_m], first index on ties; shapes (..., V).

    LANTERN's test where the target decodes greedily (its public code).
    """
    p = as_floats(p)
    xp = array_namespace(p)
    token = xp.arange(p.shape[-1], device=device(p))
    first = xp.argmax(p, axis=-1, keepdims=True)
    largest = xp.max(p, axis=-1, keepdims=True)
    raised = p + pooled
    # The raised token beats the first argmax outright, or ties with it from a lower index.
    wins = (raised > largest) | ((raised == largest) & (token <= first)) | (token == first)
    return xp.astype(wins, p.dtype)


@dataclass(frozen=True, eq=False)
class Lantern:
    """f = min(1, (p(x) + S_m)/q(x)): the mass of near codebook rows counts as the token's own.

    S_m is the target mass of the m nearest codebook rows of x (self excluded), m ≤ k the largest with
    S_m ≤ δ. LANTERN 2410.03355 and its public code. Cost: k passes over the laws.

    Parameters
    ----------
    neighbours : integer array, shape (V, at least k)
        Nearest first, self excluded; see `nearest_neighbours`.
    k : int
        Most neighbours pooled (1000 in the paper).
    delta : float
        Most mass pooled (.1; .4 is the aggressive setting).
    """

    neighbours: np.ndarray[Any, Any]
    k: int
    delta: float
    source: ClassVar[str] = "LANTERN 2410.03355"
    reconstructed: ClassVar[bool] = False
    at_least_lossless: ClassVar[bool] = True
    lossless: ClassVar[bool] = False
    support_safe: ClassVar[bool] = False

    def __post_init__(self) -> None:
        k = whole_number(self.k, "k", 1)
        object.__setattr__(self, "k", k)
        object.__setattr__(self, "delta", real_number(self.delta, "delta", least=0.0))
        object.__setattr__(self, "neighbours", check_neighbours(self.neighbours, k))

    def acceptance(self, p: Any, q: Any, position: Position) -> Array:
        _, p, q = pair(p, q)
        return accept_up_to(p + pooled_mass(p, self.neighbours, self.delta), q)

    def greedy_acceptance(self, p: Any) -> Array:
        """See `greedy_acceptance`; shapes (..., V)."""
        p = as_floats(p)
        return greedy_acceptance(p, pooled_mass(p, self.neighbours, self.delta))


@dataclass(frozen=True, eq=False)
class LanternPlusPlus:
    """As `Lantern`, with the pooled mass limited to a multiple of the token's own: S_m ≤ (λ−1) p(x).

    LANTERN++ 2502.06352 and its public code; (k, λ) = (10, 5), (5, 10), (5, 20). The output of an accepted
    token is at most λ p, and tokens of target probability zero stay rejected unless their neighbours are null too.
    """

    neighbours: np.ndarray[Any, Any]
    k: int
    lam: float
    source: ClassVar[str] = "LANTERN++ 2502.06352"
    reconstructed: ClassVar[bool] = False
    at_least_lossless: ClassVar[bool] = True
    lossless: ClassVar[bool] = False
    support_safe: ClassVar[bool] = True

    def __post_init__(self) -> None:
        k = whole_number(self.k, "k", 1)
        object.__setattr__(self, "k", k)
        object.__setattr__(self, "lam", real_number(self.lam, "lam", least=1.0))
        object.__setattr__(self, "neighbours", check_neighbours(self.neighbours, k))

    def acceptance(self, p: Any, q: Any, position: Position) -> Array:
        _, p, q = pair(p, q)
        return accept_up_to(p + pooled_mass(p, self.neighbours, (self.lam - 1) * p), q)

    def greedy_acceptance(self, p: Any) -> Array:
        """See `greedy_acceptance`; shapes (..., V)."""
        p = as_floats(p)
        return greedy_acceptance(p, pooled_mass(p, self.neighbours, (self.lam - 1) * p))
