"""Residual distributions: the law G of the replacement when a draft is rejected.

With D = p − q f, min over G of TV(q f + R G, p) = Σ [q f − p]_+, reached by every G with R G ≤ [D]_+;
G* = Norm[D]_+ is COOL-SD's (Theorem 2) and is one minimiser (THEORY 2). Plain functions (p, q, f) → G on
the last axis. Where the positive part is empty (the draft covers the target), the residual is p.

>>> optimal_residual([0.5, 0.3, 0.2], [0.2, 0.3, 0.5], [1.0, 1.0, 0.4]).tolist()
[1.0, 0.0, 0.0]
"""

from __future__ import annotations

from typing import Any, Protocol

from theory.arrays import Array, array_namespace, as_floats

EMPTY_RESIDUAL = 4.0
"""A positive part below this many machine epsilons is rounding noise: q·(p/q) differs from p by at most one
epsilon times p at each token, so the noise sums to at most one epsilon; four leave room for p's own rounding."""


class Residual(Protocol):
    """A function (p, q, f) → G, all of shape (..., V)."""

    def __call__(self, p: Any, q: Any, f: Any, /) -> Array: ...


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
