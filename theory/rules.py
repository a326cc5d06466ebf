"""Acceptance rules: f_i(x) ∈ [0, 1], the probability of accepting the drafted token x at position i.

A rule is a small class that says what it does (`acceptance`) and what it claims:

* ``lossless``: q f ≤ p everywhere, so that with the optimal residual the output law is exactly p;
* ``at_least_lossless``: f ≥ min(1, p/q) everywhere, so that nothing is wasted (THEORY 2);
* ``support_safe``: never accepts a token of target probability zero;
* ``source`` and ``reconstructed`` (True where the published formula was not readable).

It never computes its own cost: what a rule does to the output law is `analyse_round`'s business.
Formulas: p is the target after temperature, top-k and guidance; q the draft; H(p) the entropy in nats.

>>> Relaxed(2.0).acceptance([0.5, 0.3, 0.2], [0.2, 0.3, 0.5], 0).tolist()
[1.0, 1.0, 0.8]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np

from theory.arrays import (
    Array,
    array_namespace,
    as_floats,
    device,
    positions_column,
    real_number,
    to_numpy,
    whole_number,
)
from theory.distances import entropy, js_divergence, kl_divergence, total_variation
from theory.schedules import Schedule, check_schedule

Position: TypeAlias = "int | Sequence[int] | np.ndarray[Any, Any]"

POOLING_SLACK = 16 * np.finfo(np.float64).eps
"""Relative slack of "neighbour mass ≤ limit": k rounded additions must not exclude an exact equality."""


@runtime_checkable
class Rule(Protocol):
    """What every acceptance rule offers."""

    source: ClassVar[str]
    reconstructed: ClassVar[bool]

    @property
    def lossless(self) -> bool: ...

    @property
    def at_least_lossless(self) -> bool: ...

    @property
    def support_safe(self) -> bool: ...

    def acceptance(self, p: Any, q: Any, position: Position) -> Array:
        """Acceptance probability of every token.

        Parameters
        ----------
        p, q : array, shape (..., V)
            Target and draft laws.
        position : int or integer array
            0-based place in the drafted block; an array must broadcast against the leading axes of p.

        Returns
        -------
        array, shape (..., V)
        """
        ...


def _pair(p: Any, q: Any) -> tuple[Any, Array, Array]:
    p, q = as_floats(p), as_floats(q)
    if p.shape[-1] != q.shape[-1]:
        raise ValueError(f"vocabulary mismatch: the target has {p.shape[-1]} tokens, the draft {q.shape[-1]}")
    return array_namespace(p, q), p, q


def accept_up_to(mass: Array, q: Array) -> Array:
    """min(1, mass/q), the largest acceptance whose accepted mass q f stays below `mass`.

    Where q = 0 the token is never drafted; f is then 1 if `mass` is positive and 0 if not. Written as
    min(mass, q)/q, which cannot overflow.
    """
    xp = array_namespace(mass, q)
    drafted = q > 0
    one = xp.ones_like(q)
    return xp.where(drafted, xp.minimum(mass, q) / xp.where(drafted, q, one), xp.where(mass > 0, one, 0 * one))


@dataclass(frozen=True)
class Lossless:
    """f = min(1, p/q). Leviathan et al. 2211.17192, Chen et al. 2302.01318."""

    source: ClassVar[str] = "Leviathan et al. 2211.17192; Chen et al. 2302.01318"
    reconstructed: ClassVar[bool] = False
    lossless: ClassVar[bool] = True
    at_least_lossless: ClassVar[bool] = True
    support_safe: ClassVar[bool] = True

    def acceptance(self, p: Any, q: Any, position: Position) -> Array:
        _, p, q = _pair(p, q)
        return accept_up_to(p, q)


@dataclass(frozen=True, eq=False)
class Relaxed:
    """f_i = min(1, ω_i p/q): the largest acceptance under the likelihood-ratio cap q f ≤ ω p (THEORY 2).

    Parameters
    ----------
    omega : float or sequence of L floats
        Relaxation factors ω_i ≥ 0; a number holds for every position; ∞ accepts outright, tokens of target
        probability zero included.
    """

    omega: Schedule
    constant: bool
    source: ClassVar[str] = "COOL-SD 2601.09212; lenience of Leviathan et al. 2211.17192"
    reconstructed: ClassVar[bool] = False

    def __init__(self, omega: Any) -> None:
        object.__setattr__(self, "constant", np.ndim(omega) == 0)
        object.__setattr__(self, "omega", check_schedule(omega))

    @property
    def lossless(self) -> bool:
        return bool(np.all(self.omega <= 1))

    @property
    def at_least_lossless(self) -> bool:
        return bool(np.all(self.omega >= 1))

    @property
    def support_safe(self) -> bool:
        return bool(np.all(np.isfinite(self.omega)))

    def acceptance(self, p: Any, q: Any, position: Position) -> Array:
        xp, p, q = _pair(p, q)
        if self.constant:
            position = np.zeros_like(np.asarray(position))
        omega = self.omega[positions_column(position, len(self.omega))][..., None]
        if omega.size == 1 and math.isinf(float(omega.reshape(-1)[0])):
            return xp.ones_like(p * q)
        outright = np.isinf(omega)
        factor = xp.asarray(np.where(outright, 1.0, omega), dtype=p.dtype, device=device(p))
        f = accept_up_to(factor * p, q)
        if outright.any():
            f = xp.where(xp.asarray(outright, device=device(p)), xp.ones_like(f), f)
        return f


@dataclass(frozen=True)
class AcceptAll:
    """f = 1: the draft's own law for L tokens. The baseline of no verification."""

    source: ClassVar[str] = "baseline"
    reconstructed: ClassVar[bool] = False
    lossless: ClassVar[bool] = False
    at_least_lossless: ClassVar[bool] = True
    support_safe: ClassVar[bool] = False

    def acceptance(self, p: Any, q: Any, position: Position) -> Array:
        xp, p, q = _pair(p, q)
        return xp.ones_like(p * q)


@dataclass(frozen=True)
class Ensemble:
    """f = min(1, π/q), π = (1−η) p + η q; with its published residual Norm[p−q]_+ the output law is exactly π.

    DIVERSED 2604.07622.
    """

    eta: float
    source: ClassVar[str] = "DIVERSED 2604.07622"
    reconstructed: ClassVar[bool] = False
    at_least_lossless: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "eta", real_number(self.eta, "eta", least=0.0, most=1.0))

    @property
    def lossless(self) -> bool:
        return self.eta == 0

    @property
    def support_safe(self) -> bool:
        return self.eta == 0

    def acceptance(self, p: Any, q: Any, position: Position) -> Array:
        _, p, q = _pair(p, q)
        return accept_up_to((1 - self.eta) * p + self.eta * q, q)


@dataclass(frozen=True)
class DivergenceThreshold:
    """f = 1[D(p, q) ≤ T], D ∈ {TV, KL(p‖q), JS}: accept every draft where the two laws are close.

    FSD 2502.20704; its published residual is p itself (`target_residual`).
    """

    threshold: float
    divergence: Literal["tv", "kl", "js"] = "tv"
    source: ClassVar[str] = "FSD 2502.20704"
    reconstructed: ClassVar[bool] = False
    lossless: ClassVar[bool] = False
    at_least_lossless: ClassVar[bool] = False
    support_safe: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "threshold", real_number(self.threshold, "threshold", least=0.0))
        if self.divergence not in ("tv", "kl", "js"):
            raise ValueError(f"divergence must be tv, kl or js, got {self.divergence!r}")

    def acceptance(self, p: Any, q: Any, position: Position) -> Array:
        xp, p, q = _pair(p, q)
        measure = {"tv": total_variation, "kl": kl_divergence, "js": js_divergence}[self.divergence]
        close = xp.asarray(measure(p, q) <= self.threshold, device=device(p))
        one = xp.ones_like(p * q)
        return xp.where(close[..., None], one, 0 * one)


@dataclass(frozen=True)
class TopK:
    """f = 1[x among the k most likely tokens of p], ties to the lower index. Folklore."""

    k: int
    source: ClassVar[str] = "folklore"
    reconstructed: ClassVar[bool] = False
    lossless: ClassVar[bool] = False
    at_least_lossless: ClassVar[bool] = False
    support_safe: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", whole_number(self.k, "k", 1))

    def acceptance(self, p: Any, q: Any, position: Position) -> Array:
        xp, p, q = _pair(p, q)
        rank = xp.argsort(xp.argsort(-p, axis=-1, stable=True), axis=-1, stable=True)
        return xp.astype(rank < self.k, p.dtype) * xp.ones_like(q)


@dataclass(frozen=True)
class Typical:
    """f = 1[p(x) > min(ε, α e^{−H(p)})]. Medusa 2401.10774; its published residual is p itself."""

    epsilon: float = 0.09
    alpha: float = 0.3
    source: ClassVar[str] = "Medusa 2401.10774"
    reconstructed: ClassVar[bool] = False
    lossless: ClassVar[bool] = False
    at_least_lossless: ClassVar[bool] = False
    support_safe: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", real_number(self.epsilon, "epsilon", least=0.0))
        object.__setattr__(self, "alpha", real_number(self.alpha, "alpha", least=0.0))

    def acceptance(self, p: Any, q: Any, position: Position) -> Array:
        xp, p, q = _pair(p, q)
        h = xp.asarray(entropy(p), dtype=p.dtype, device=device(p))[..., None]
        limit = xp.clip(self.alpha * xp.exp(-h), None, self.epsilon)
        return xp.astype(p > limit, p.dtype) * xp.ones_like(q)


def check_neighbours(neighbours: Any, k: int) -> np.ndarray[Any, Any]:
    """Neighbour lists as int64 of shape (V, k): for every token its k nearest others, nearest first."""
    table = to_numpy(neighbours) if not isinstance(neighbours, list) else np.asarray(neighbours)
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
    return np.array(table[:, :k], dtype=np.int64)


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
    """
    points = to_numpy(embedding).astype(np.float64)
    k = whole_number(k, "k", 1)
    if points.ndim != 2 or k >= len(points):
        raise ValueError(f"k is {k}; an embedding of shape {points.shape} has at most {len(points) - 1} neighbours")
    squares = np.sum(points**2, axis=1)
    distance = squares[:, None] + squares[None, :] - 2 * points @ points.T
    np.fill_diagonal(distance, np.inf)
    return np.argsort(distance, axis=1, kind="stable")[:, :k].astype(np.int64)


def pooled_mass(p: Array, neighbours: np.ndarray[Any, Any], limit: Array) -> Array:
    """S_m: target mass of the longest list of nearest neighbours whose sum stays at or below `limit`.

    Shapes: p (..., V), neighbours (V, k), limit broadcastable to (..., V); result (..., V).
    """
    xp = array_namespace(p)
    if len(neighbours) != p.shape[-1]:
        raise ValueError(f"neighbours are for {len(neighbours)} tokens, the laws have {p.shape[-1]}")
    total = xp.zeros_like(p)
    best = xp.zeros_like(p)
    for column in neighbours.T:
        total = total + xp.take(p, xp.asarray(column, device=device(p)), axis=-1)
        best = xp.where(total <= limit * (1 + POOLING_SLACK), total, best)
    return best


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
        _, p, q = _pair(p, q)
        return accept_up_to(p + pooled_mass(p, self.neighbours, self.delta), q)


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
        _, p, q = _pair(p, q)
        return accept_up_to(p + pooled_mass(p, self.neighbours, (self.lam - 1) * p), q)


@dataclass(frozen=True)
class EntropyRelaxed:
    """f = min(1, p/q + ε), ε = λ·H(p)·1[TV(p, q) < δ]: an additive bonus where the target is uncertain.

    CSD 2606.27829 and its public code; λ = .5, δ = .65 (7B), .35 (1B), .8 (fastest). From H ≥ 1/λ nats on,
    with TV < δ, it accepts everything, tokens of target probability zero included.
    """

    lam: float = 0.5
    delta: float = 0.65
    source: ClassVar[str] = "CSD 2606.27829"
    reconstructed: ClassVar[bool] = False
    lossless: ClassVar[bool] = False
    at_least_lossless: ClassVar[bool] = True
    support_safe: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "lam", real_number(self.lam, "lam", least=0.0))
        object.__setattr__(self, "delta", real_number(self.delta, "delta", least=0.0))

    def acceptance(self, p: Any, q: Any, position: Position) -> Array:
        xp, p, q = _pair(p, q)
        close = xp.asarray(total_variation(p, q) < self.delta, device=device(p))[..., None]
        h = xp.asarray(entropy(p), dtype=p.dtype, device=device(p))[..., None]
        bonus = xp.where(close, self.lam * h, 0 * h)
        return xp.clip(accept_up_to(p, q) + bonus, None, 1.0)
