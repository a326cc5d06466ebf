"""What every acceptance rule offers, and the one division all of them share.

>>> accept_up_to(np.asarray([0.5, 0.1, 0.0]), np.asarray([0.2, 0.4, 0.0])).tolist()
[1.0, 0.25, 0.0]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol, TypeAlias, runtime_checkable

import numpy as np

from theory.arrays import Array, array_namespace, as_floats

Position: TypeAlias = "int | Sequence[int] | np.ndarray[Any, Any]"


@runtime_checkable
class Rule(Protocol):
    """What every acceptance rule offers.

    A rule whose f(x) depends on p(x), q(x) and the position alone may say so with ``pointwise = True``: decoders then
    ask it about drafted tokens only.
    """

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


def accept_up_to(mass: Array, q: Array) -> Array:
    """min(1, mass/q), the largest acceptance whose accepted mass q f stays below `mass`.

    Where q = 0 the token is never drafted; f is then 1 if `mass` is positive and 0 if not. Written as
    min(mass, q)/q, which cannot overflow.
    """
    xp = array_namespace(mass, q)
    drafted = q > 0
    one = xp.ones_like(q)
    return xp.where(drafted, xp.minimum(mass, q) / xp.where(drafted, q, one), xp.where(mass > 0, one, 0 * one))


def pair(p: Any, q: Any) -> tuple[Any, Array, Array]:
    """Namespace, target and draft as floats of one vocabulary."""
    p, q = as_floats(p), as_floats(q)
    if p.ndim == 0 or q.ndim == 0:
        raise ValueError("p and q must be laws of shape (..., V), got a single number")
    if p.shape[-1] != q.shape[-1]:
        raise ValueError(f"vocabulary mismatch: the target has {p.shape[-1]} tokens, the draft {q.shape[-1]}")
    return array_namespace(p, q), p, q


def same_shape(p: Array, q: Array) -> tuple[Array, Array]:
    """Both laws broadcast to one shape (..., V)."""
    xp = array_namespace(p, q)
    p, q = xp.broadcast_arrays(p, q)
    return p, q
