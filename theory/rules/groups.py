"""Rules that compare the mass of a group of tokens: GSD's overlapping windows, and true partitions.

With C(x) the group of token x,

    f(x) = min(1, p(C(x)) / q(C(x))).

* `Grouped` (GSD): C(x) is a window around x in the order of p. Windows overlap, so f falls below lossless where a
  window holds more draft than target although p(x) ≥ q(x); that acceptance is lost for every residual
  (the waste Σ (min(p, q) − min(p, q f))). `AtLeastLossless(Grouped(...))` repairs it.
* `PartitionGrouped`, `RankGrouped` (this project): the groups partition the vocabulary. Accepted mass of group C is
  min(p(C), q(C)), so with `theory.residuals.ClusterResidual` the group of the emitted token has exactly the
  target's law [proved]; only the choice within the group is relaxed.

>>> rule = PartitionGrouped([0, 0, 1])
>>> rule.acceptance([0.5, 0.1, 0.4], [0.1, 0.7, 0.2], 0).round(12).tolist()
[0.75, 0.75, 1.0]
>>> RankGrouped(2).acceptance([0.5, 0.1, 0.4], [0.1, 0.7, 0.2], 0).round(12).tolist()
[1.0, 0.142857142857, 1.0]
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from theory.arrays import Array, array_namespace, device, real_number, to_numpy, whole_number
from theory.rules.base import Position, accept_up_to, pair, same_shape
from theory.rules.neighbours import codebook_rows


def _number(value: Any, name: str) -> float:
    return math.inf if value == math.inf else real_number(value, name, least=0.0)


@dataclass(frozen=True, eq=False)
class Grouped:
    """f = min(1, p(C)/q(C)), C = tokens near x in rank, in probability and in the codebook.

    y ∈ C(x) iff their ranks in the order of p (ties to the lower index) differ by at most `ranks`,
    |p(y) − p(x)| < `delta_p` and ‖e_y − e_x‖₂ < `distance`; x itself always is. GSD 2508.07747 (ICCV 2025) and its
    public code, published with the residual Norm[p−q]_+; ±7 ranks, δ_p = .15, d = .5; its G from 3 to 50 is
    ±G/2 ranks. Cost: `ranks` passes over (..., V, D).

    Parameters
    ----------
    embedding : array, shape (V, D)
        Codebook rows. None only with distance = ∞.
    ranks : int
        Half the window, G // 2.
    delta_p, distance : float
        ∞ switches a condition off.

    Raises
    ------
    ValueError
        For a missing embedding, one of another vocabulary, or an entry that is not finite.
    """

    embedding: np.ndarray[Any, Any] | None
    ranks: int = 7
    delta_p: float = 0.15
    distance: float = 0.5
    source: ClassVar[str] = "GSD 2508.07747"
    reconstructed: ClassVar[bool] = False
    lossless: ClassVar[bool] = False
    at_least_lossless: ClassVar[bool] = False
    support_safe: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "ranks", whole_number(self.ranks, "ranks", 0))
        object.__setattr__(self, "delta_p", _number(self.delta_p, "delta_p"))
        object.__setattr__(self, "distance", _number(self.distance, "distance"))
        if self.embedding is None:
            if self.distance != math.inf:
                raise ValueError(
                    f"distance is {self.distance} but there is no embedding; give codebook rows of shape (V, D), "
                    "or distance=inf to group by rank and probability alone"
                )
            return
        object.__setattr__(self, "embedding", codebook_rows(self.embedding))

    def group_masses(self, p: Any, q: Any) -> tuple[Array, Array]:
        """p(C(x)) and q(C(x)) for every x; shapes (..., V)."""
        xp, p, q = pair(p, q)
        p, q = same_shape(p, q)
        size = p.shape[-1]
        if self.embedding is not None and len(self.embedding) != size:
            raise ValueError(f"embedding has {len(self.embedding)} rows, the laws have {size} tokens")
        order = xp.argsort(-p, axis=-1, stable=True)
        p, q = (xp.take_along_axis(a, order, axis=-1) for a in (p, q))
        masses = [p, q]
        rows = None
        if self.embedding is not None and self.distance < math.inf:
            table = xp.asarray(self.embedding, dtype=p.dtype, device=device(p))
            rows = xp.reshape(xp.take(table, xp.reshape(order, (-1,)), axis=0), (*order.shape, -1))
        for shift in range(1, min(self.ranks, size - 1) + 1):
            near = xp.abs(p[..., shift:] - p[..., :-shift]) < self.delta_p
            if rows is not None:
                gap = rows[..., shift:, :] - rows[..., :-shift, :]
                near = near & (xp.sqrt(xp.sum(gap * gap, axis=-1)) < self.distance)
            for i, a in enumerate((p, q)):
                up, down = xp.where(near, a[..., shift:], 0.0), xp.where(near, a[..., :-shift], 0.0)
                none = xp.zeros_like(a[..., :shift])
                masses[i] = masses[i] + xp.concat([up, none], axis=-1) + xp.concat([none, down], axis=-1)
        back = xp.argsort(order, axis=-1, stable=True)
        target, draft = (xp.take_along_axis(a, back, axis=-1) for a in masses)
        return target, draft

    def acceptance(self, p: Any, q: Any, position: Position) -> Array:
        return accept_up_to(*self.group_masses(p, q))


@dataclass(frozen=True, eq=False)
class PartitionGrouped:
    """f = min(1, p(C)/q(C)) for a fixed partition of the vocabulary, for instance clusters of codebook rows.

    Parameters
    ----------
    labels : integer array, shape (V,)
        Cluster of every token; any integers.
    """

    labels: np.ndarray[Any, Any]
    source: ClassVar[str] = "this project, after GSD 2508.07747"
    reconstructed: ClassVar[bool] = False
    lossless: ClassVar[bool] = False
    at_least_lossless: ClassVar[bool] = False
    support_safe: ClassVar[bool] = False

    def __post_init__(self) -> None:
        labels = to_numpy(self.labels)
        if labels.ndim != 1 or labels.size == 0 or labels.dtype.kind not in "iu":
            raise ValueError(
                f"labels must be one integer for each token, shape (V,), got {labels.dtype} of shape {labels.shape}"
            )
        object.__setattr__(self, "labels", np.unique(labels, return_inverse=True)[1].reshape(-1).astype(np.int64))

    def group_masses(self, p: Any, *laws: Any) -> tuple[Array, ...]:
        """For each of `laws`, the mass of every token's cluster; shapes (..., V)."""
        size = len(self.labels)
        members = np.full((int(self.labels.max()) + 1, int(np.bincount(self.labels).max())), size)
        rank = np.zeros(size, dtype=np.int64)
        order = np.argsort(self.labels, kind="stable")
        starts = np.searchsorted(self.labels[order], np.arange(len(members)))
        rank[order] = np.arange(size) - starts[self.labels[order]]
        members[self.labels, rank] = np.arange(size)
        out = []
        for law in laws:
            xp = array_namespace(law)
            if law.shape[-1] != size:
                raise ValueError(f"labels are for {size} tokens, the laws have {law.shape[-1]}")
            padded = xp.concat([law, xp.zeros_like(law[..., :1])], axis=-1)
            flat = xp.take(padded, xp.asarray(members.reshape(-1), device=device(law)), axis=-1)
            sums = xp.sum(xp.reshape(flat, (*law.shape[:-1], *members.shape)), axis=-1)
            out.append(xp.take(sums, xp.asarray(self.labels, device=device(law)), axis=-1))
        return tuple(out)

    def acceptance(self, p: Any, q: Any, position: Position) -> Array:
        _, p, q = pair(p, q)
        target, draft = self.group_masses(p, p, q)
        return accept_up_to(target, draft)


@dataclass(frozen=True)
class RankGrouped:
    """f = min(1, p(C)/q(C)), groups = blocks of `size` consecutive ranks of p (ties to the lower index).

    GSD's grouping by rank made a true partition.
    """

    size: int
    source: ClassVar[str] = "this project, after GSD 2508.07747"
    reconstructed: ClassVar[bool] = False
    lossless: ClassVar[bool] = False
    at_least_lossless: ClassVar[bool] = False
    support_safe: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", whole_number(self.size, "size", 1))

    def group_masses(self, p: Any, *laws: Any) -> tuple[Array, ...]:
        """For each of `laws`, the mass of every token's group; groups are those of p. Shapes (..., V)."""
        xp = array_namespace(p, *laws)
        count = p.shape[-1]
        blocks = -(-count // self.size)
        out = []
        for law in laws:
            ranked, law = same_shape(p, law)
            order = xp.argsort(-ranked, axis=-1, stable=True)
            lead = law.shape[:-1]
            sorted_ = xp.take_along_axis(law, order, axis=-1)
            padding = xp.zeros((*lead, blocks * self.size - count), dtype=law.dtype, device=device(law))
            tiles = xp.reshape(xp.concat([sorted_, padding], axis=-1), (*lead, blocks, self.size))
            sums = xp.broadcast_to(xp.sum(tiles, axis=-1, keepdims=True), tiles.shape)
            flat = xp.reshape(sums, (*lead, -1))[..., :count]
            out.append(xp.take_along_axis(flat, xp.argsort(order, axis=-1, stable=True), axis=-1))
        return tuple(out)

    def acceptance(self, p: Any, q: Any, position: Position) -> Array:
        _, p, q = pair(p, q)
        target, draft = self.group_masses(p, p, q)
        return accept_up_to(target, draft)
