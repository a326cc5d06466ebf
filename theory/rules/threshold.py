"""Rules that accept outright or not at all: f ∈ {0, 1}.

All but FSD look at the target only; their published residual is p itself, so that the output is p plus whatever
was accepted beyond it.

>>> NeighbourhoodPooling([[1], [0], [1]], k=1, tau=0.5).acceptance([0.3, 0.3, 0.4], [0.2, 0.2, 0.6], 0).tolist()
[1.0, 1.0, 1.0]
>>> TopK(1).acceptance([0.3, 0.3, 0.4], [0.2, 0.2, 0.6], 0).tolist()
[0.0, 0.0, 1.0]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from theory.arrays import Array, device, real_number, whole_number
from theory.distances import entropy, js_divergence, kl_divergence, total_variation
from theory.rules.base import Position, pair
from theory.rules.neighbours import POOLING_SLACK, check_neighbours, neighbour_columns

TIE = 16.0
"""Machine epsilons by which a divergence may miss a threshold it equals: its sum over tokens is rounded."""


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
        xp, p, q = pair(p, q)
        measure = {"tv": total_variation, "kl": kl_divergence, "js": js_divergence}[self.divergence]
        slack = TIE * xp.finfo(p.dtype).eps
        close = xp.asarray(measure(p, q) <= self.threshold + slack, device=device(p))
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
        xp, p, q = pair(p, q)
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
        xp, p, q = pair(p, q)
        h = xp.asarray(entropy(p), dtype=p.dtype, device=device(p))[..., None]
        limit = xp.clip(self.alpha * xp.exp(-h), None, self.epsilon)
        return xp.astype(p > limit, p.dtype) * xp.ones_like(q)


@dataclass(frozen=True, eq=False)
class NeighbourhoodPooling:
    """f = 1[Σ_{y ∈ B_k(x)} p(y) ≥ τ], B_k(x) = x and its k neighbours; the draft's probability is not used.

    The point rule of MuLo-SD 2601.05149 (CVPR 2026), known at second hand, hence **reconstructed**. No default of
    τ, k or ℓ is known.

    Its decoder works on the image plane: rejected cells are joined to 8-connected islands, every island is dilated
    by radius ℓ, and all cells of a dilated island are drawn anew from the target. Cells inside the dilation were
    accepted and are discarded all the same, so a token's law depends on its neighbours' fate: that part is no rule
    on (p, q) and is not modelled here. With ℓ = 0 and raster order the residual is p (`target_residual`).

    Parameters
    ----------
    neighbours : integer array, shape (V, at least k)
        The rest of B_k(x), self excluded; see `nearest_neighbours`.
    k : int
    tau : float
        In [0, 1].
    """

    neighbours: np.ndarray[Any, Any]
    k: int
    tau: float
    source: ClassVar[str] = "MuLo-SD 2601.05149"
    reconstructed: ClassVar[bool] = True
    lossless: ClassVar[bool] = False
    at_least_lossless: ClassVar[bool] = False
    support_safe: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", whole_number(self.k, "k", 1))
        object.__setattr__(self, "tau", real_number(self.tau, "tau", least=0.0, most=1.0))
        object.__setattr__(self, "neighbours", check_neighbours(self.neighbours, self.k))

    def acceptance(self, p: Any, q: Any, position: Position) -> Array:
        xp, p, q = pair(p, q)
        ball = p
        for column in neighbour_columns(p, self.neighbours):
            ball = ball + column
        return xp.astype(ball >= self.tau * (1 - POOLING_SLACK), p.dtype) * xp.ones_like(q)
