"""Residual distributions: the law G of the replacement when a draft is rejected.

With D = p − q f, min over G of TV(q f + R G, p) = Σ [q f − p]_+, reached by every G with R G ≤ [D]_+;
G* = Norm[D]_+ is COOL-SD's (Theorem 2) and is one minimiser. `kl_residual` is another, and minimises every
other f-divergence too. Plain functions (p, q, f) → G on the last axis. Where the positive part is empty (the draft
covers the target), the residual is p.

Some published residuals depend on the rejected token x: on rejection of x the decoder draws from G_x. The round ends
there, so the law of what is emitted sees only the mixture

    G = Σ_x q(x) (1 − f(x)) G_x / R,

and a decoder that draws from G after any rejection has exactly the law of one that draws from G_x. Such a residual is a
class: called as (p, q, f) it returns the mixture, so that every exact analysis takes it, and `given(p, q, x)` returns
G_x for decoders.

>>> optimal_residual([0.5, 0.3, 0.2], [0.2, 0.3, 0.5], [1.0, 1.0, 0.4]).tolist()
[1.0, 0.0, 0.0]
>>> kl_residual([0.5, 0.3, 0.2], [0.1, 0.25, 0.65], [1.0, 1.0, 0.4]).round(3).tolist()  # optimal: [0.889, 0.111, 0.0]
[0.929, 0.071, 0.0]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import numpy as np

from theory.arrays import Array, array_namespace, as_floats, device, real_number, to_numpy, whole_number
from theory.rules.base import pair, same_shape
from theory.rules.mentored import ratio_order, sorted_floor
from theory.rules.neighbours import POOLING_SLACK, check_neighbours
from theory.rules.ratio import raised_mass

EMPTY_RESIDUAL = 4.0
"""A positive part below this many machine epsilons is rounding noise: q·(p/q) differs from p by at most one
epsilon times p at each token, so the noise sums to at most one epsilon; four leave room for p's own rounding."""

ENTRIES_AT_ONCE = 2**20
"""Entries of the table of laws G_x built at once when they are mixed (8 MB of float64)."""


class Residual(Protocol):
    """A function (p, q, f) → G, all of shape (..., V)."""

    def __call__(self, p: Any, q: Any, f: Any, /) -> Array: ...


@runtime_checkable
class DraftDependentResidual(Protocol):
    """A residual whose law depends on the rejected token; called as (p, q, f) it is their mixture G."""

    def __call__(self, p: Any, q: Any, f: Any, /) -> Array: ...

    def given(self, p: Any, q: Any, x: Any) -> Array:
        """G_x, shape (..., V), for rejected tokens x of integer shape (...)."""
        ...


def normalised_positive_part(difference: Array, p: Array) -> Array:
    """Norm[difference]_+, or p where the positive part is empty; shapes (..., V)."""
    xp = array_namespace(difference, p)
    positive = xp.clip(difference, 0.0, None)
    total = xp.sum(positive, axis=-1, keepdims=True)
    empty = total <= EMPTY_RESIDUAL * xp.finfo(positive.dtype).eps
    return xp.where(empty, p, positive / xp.where(empty, xp.ones_like(total), total))


def optimal_residual(p: Any, q: Any, f: Any, /) -> Array:
    """G* = Norm[p − q f]_+, least TV to the target at one position (COOL-SD Theorem 2)."""
    p, q, f = as_floats(p), as_floats(q), as_floats(f)
    return normalised_positive_part(p - q * f, p)


def vanilla_residual(p: Any, q: Any, f: Any, /) -> Array:
    """Norm[p − q]_+, that of lossless decoding; equal to G* wherever f ≥ min(1, p/q) (COOL-SD Prop. 1)."""
    p, q = as_floats(p), as_floats(q)
    return normalised_positive_part(p - q, p)


def target_residual(p: Any, q: Any, f: Any, /) -> Array:
    """p itself (FSD, typical acceptance)."""
    p, q = as_floats(p), as_floats(q)
    return p * array_namespace(p, q).ones_like(q)


def kl_residual(p: Any, q: Any, f: Any, /) -> Array:
    """R G = [c p − q f]_+ with Σ [c p − q f]_+ = R: least KL both ways, and least of every f-divergence.

    The output law is max(q f, c p) and its ratio to p never falls below c ≤ 1. For f ≥ lossless it equals
    Norm[p/b − q]_+, b = 1/c, the residual of mentored decoding (public note of V. Tran-Thien). Proof: head of
    `theory.rules.mentored`. It also reaches G*'s least TV, so G* is never better and usually worse.
    """
    xp, p, q = pair(p, q)
    p, q = same_shape(p, q)
    f = as_floats(f)
    kept, rejection = q * f, xp.sum(q * (1 - f), axis=-1)
    order = ratio_order(kept, p)
    floor = sorted_floor(xp.take_along_axis(kept, order, axis=-1), xp.take_along_axis(p, order, axis=-1), rejection)
    return normalised_positive_part(floor * p - kept, p)


def mixed_over_drafts(p: Any, q: Any, f: Any, given: Callable[[Array, Array, Array], Array]) -> Array:
    """G = Σ_x q(x) (1 − f(x)) G_x / R, or p where nothing is rejected; V laws of V entries each, in blocks."""
    xp, p, q = pair(p, q)
    p, q = same_shape(p, q)
    weight = q * (1 - as_floats(f))
    size = p.shape[-1]
    lead = p[..., :1]
    rejected = np.flatnonzero((to_numpy(weight) > 0).reshape(-1, size).any(axis=0))
    step = max(1, ENTRIES_AT_ONCE // max(1, to_numpy(p).size))
    total = xp.zeros_like(p)
    for start in range(0, len(rejected), step):
        x = xp.asarray(rejected[start : start + step], device=device(p))
        rows = xp.broadcast_to(x, (*lead.shape[:-1], x.shape[0]))
        laws = given(p[..., None, :], q[..., None, :], rows)
        total = total + xp.sum(xp.take(weight, x, axis=-1)[..., None] * laws, axis=-2)
    rejection = xp.sum(weight, axis=-1, keepdims=True)
    none = rejection <= 0
    return xp.where(none, p, total / xp.where(none, xp.ones_like(rejection), rejection))


def _one_hot(x: Array, size: int) -> Array:
    xp = array_namespace(x)
    return x[..., None] == xp.arange(size, device=device(x))


def _rejected(x: Any, p: Array, q: Array) -> Array:
    """Rejected tokens with the leading shape of the laws."""
    xp = array_namespace(p, q)
    ids = to_numpy(x)
    bad = (ids < 0) | (ids >= p.shape[-1])
    if ids.dtype.kind not in "iu" or bad.any():
        raise ValueError(
            f"rejected tokens must be integers in 0…{p.shape[-1] - 1}, got {ids[bad].tolist() or ids.dtype}"
        )
    lead = np.broadcast_shapes(ids.shape, tuple(p.shape[:-1]), tuple(q.shape[:-1]))
    return xp.asarray(np.broadcast_to(ids, lead).copy(), device=device(p))


@dataclass(frozen=True)
class CactusResidual:
    """G_x = Norm[h_x − q]_+, h_x = γ(x) at x and p(y)·(1 − γ(x))/(1 − p(x)) elsewhere.

    Cactus 2604.04987: each token x is tested against its own raised target h_x, so no single law is verified and the
    output is not any h_x. A rejected x has γ(x) < q(x), hence G_x(x) = 0. See `theory.rules.Cactus` for γ and δ.
    """

    delta: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "delta", real_number(self.delta, "delta", least=0.0))

    def __call__(self, p: Any, q: Any, f: Any, /) -> Array:
        return mixed_over_drafts(p, q, f, self.given)

    def given(self, p: Any, q: Any, x: Any) -> Array:
        xp, p, q = pair(p, q)
        x = _rejected(x, p, q)
        own = xp.astype(_one_hot(x, p.shape[-1]), p.dtype)
        p_x = xp.sum(own * p, axis=-1, keepdims=True)
        raised = raised_mass(p_x, self.delta)
        others = xp.sum((1 - own) * p, axis=-1, keepdims=True)
        scale = xp.where(others > 0, (1 - raised) / xp.where(others > 0, others, xp.ones_like(others)), 0.0)
        h = own * raised + (1 - own) * scale * p
        return normalised_positive_part(h - q, h)


Branch = Literal["dynamic", "llamagen_static", "lumina_static", "lumina_dynamic"]


@dataclass(frozen=True, eq=False)
class LanternResidual:
    """LANTERN's published residuals, one for each branch of its public code (2410.03355, 2502.06352).

    With m(x) the number of pooled neighbours (see `theory.rules.Lantern`) and Z the first k+1 neighbours of x if
    m(x) > 0, else nothing:

    ==================  =====================================================
    dynamic             p zeroed on x and on Z, normalised; q is not used
    lumina_dynamic      the same
    llamagen_static     q zeroed on Z, then Norm[p − q]_+
    lumina_static       p zeroed on Z, then Norm[p − q]_+
    ==================  =====================================================

    Z reaches beyond the m neighbours that were pooled, so the output law misses mass that nothing emitted. An empty
    result becomes uniform over the whole vocabulary, as in the published code. In a tree p and q are those of the
    sibling being tested, q without the earlier siblings and renormalised.

    Parameters
    ----------
    neighbours : integer array, shape (V, at least min(k+1, V−1))
        Nearest first, self excluded.
    k : int
        Most neighbours pooled.
    delta, lam : float
        Exactly one of them: δ of `Lantern` or λ of `LanternPlusPlus`.
    branch : {"dynamic", "llamagen_static", "lumina_static", "lumina_dynamic"}
    """

    neighbours: np.ndarray[Any, Any]
    k: int
    delta: float | None = None
    lam: float | None = None
    branch: Branch = "dynamic"

    def __post_init__(self) -> None:
        k = whole_number(self.k, "k", 1)
        if (self.delta is None) == (self.lam is None):
            raise ValueError(f"give delta (LANTERN) or lam (LANTERN++), got delta={self.delta} and lam={self.lam}")
        if self.branch not in get_args(Branch):
            raise ValueError(f"branch must be one of {', '.join(get_args(Branch))}, got {self.branch!r}")
        if self.delta is not None:
            object.__setattr__(self, "delta", real_number(self.delta, "delta", least=0.0))
        if self.lam is not None:
            object.__setattr__(self, "lam", real_number(self.lam, "lam", least=1.0))
        size = len(self.neighbours)
        if k >= size:
            raise ValueError(f"k is {k}, but a token of a vocabulary of {size} has only {size - 1} neighbours")
        object.__setattr__(self, "k", k)
        object.__setattr__(self, "neighbours", check_neighbours(self.neighbours, min(k + 1, size - 1)))

    def __call__(self, p: Any, q: Any, f: Any, /) -> Array:
        return mixed_over_drafts(p, q, f, self.given)

    def zeroed(self, p: Any, x: Any) -> Array:
        """Boolean (..., V): the first k+1 neighbours of x where at least one was pooled."""
        p = as_floats(p)
        xp = array_namespace(p)
        if p.shape[-1] != len(self.neighbours):
            raise ValueError(f"neighbours are for {len(self.neighbours)} tokens, the laws have {p.shape[-1]}")
        x = _rejected(x, p, p)
        ids = to_numpy(x)
        nearest = xp.asarray(self.neighbours[ids, 0], device=device(p))
        shape = (*ids.shape, p.shape[-1])
        masses = xp.broadcast_to(p, shape)
        first = xp.take_along_axis(masses, nearest[..., None], axis=-1)
        own = xp.take_along_axis(masses, x[..., None], axis=-1)
        limit = self.delta if self.delta is not None else ((self.lam or 1.0) - 1) * own
        # Masses are not negative, so m > 0 iff the nearest neighbour alone fits.
        pooled = first <= limit * (1 + POOLING_SLACK)
        mask = np.zeros(shape, dtype=bool)
        np.put_along_axis(mask, self.neighbours[ids], True, axis=-1)
        return xp.asarray(mask, device=device(p)) & pooled

    def given(self, p: Any, q: Any, x: Any) -> Array:
        xp, p, q = pair(p, q)
        x = _rejected(x, p, q)
        zeroed = self.zeroed(p, x)
        if self.branch in ("dynamic", "lumina_dynamic"):
            left = xp.where(zeroed | _one_hot(x, p.shape[-1]), 0.0, p)
        elif self.branch == "llamagen_static":
            left = p - xp.where(zeroed, 0.0, q)
        else:
            left = xp.where(zeroed, 0.0, p) - q
        return normalised_positive_part(left, xp.full_like(left, 1 / p.shape[-1]))


class Partition(Protocol):
    """A rule that groups tokens: `theory.rules.PartitionGrouped` or `RankGrouped`."""

    def group_masses(self, p: Any, *laws: Any) -> tuple[Array, ...]: ...


@dataclass(frozen=True)
class ClusterResidual:
    """A cluster from Norm[p(C) − (q f)(C)]_+, then a token of it from p(·|C).

    With f = min(1, p(C)/q(C)) on the same partition, accepted and replaced mass of every cluster add up to p(C): the
    cluster of the emitted token has exactly the target's law [proved; this project].
    """

    partition: Partition

    def __call__(self, p: Any, q: Any, f: Any, /) -> Array:
        xp, p, q = pair(p, q)
        p, q = same_shape(p, q)
        target, kept = self.partition.group_masses(p, p, q * as_floats(f))
        some = target > 0
        short = xp.clip(target - kept, 0.0, None) / xp.where(some, target, xp.ones_like(target))
        return normalised_positive_part(xp.where(some, short * p, 0.0), p)


class SurrogateRule(Protocol):
    """A rule that verifies losslessly against another law than p; see `theory.rules.SpeculativeCascade`."""

    def surrogate(self, p: Any, q: Any) -> Array: ...


@dataclass(frozen=True)
class SurrogateResidual:
    """Norm[π − q]_+ for the law π a cascade or ensemble verifies against; the output is then exactly π (2405.19261)."""

    rule: SurrogateRule

    def __call__(self, p: Any, q: Any, f: Any, /) -> Array:
        surrogate = self.rule.surrogate(p, q)
        return normalised_positive_part(surrogate - as_floats(q), surrogate)
