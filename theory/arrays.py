"""Arrays of any library, and the checks every public entry point shares.

The mathematics is written once, on the last axis (the vocabulary), against the array API
standard through ``array_api_compat``: NumPy arrays and torch tensors on any device take the same path.

>>> probabilities([[0.5, 0.5], [0.25, 0.75]], "target").shape
(2, 2)
>>> probabilities([[0.5, 0.5], [0.5, 0.75]], "target")
Traceback (most recent call last):
    ...
ValueError: target: row (1,) sums to 1.25, not 1; divide the row by its sum
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from array_api_compat import array_namespace, device, is_array_api_obj

Array: TypeAlias = Any
"""A NumPy array, a torch tensor or any other array-API object; numbers are real floats."""

ROW_SUM_TOLERANCE = 1e-9
"""Largest deviation of a float64 row's sum from one: V = 1e6 entries rounded at 2**-53 stay far below it."""


def as_floats(values: Any) -> Array:
    """Floating array of at least single precision; lists become NumPy float64.

    Half-precision input is widened to float32, because acceptance ratios of small masses are lost in
    float16 and bfloat16; integers become float64. TypeError for complex numbers, whose imaginary part a cast would
    drop.
    """
    if not is_array_api_obj(values):
        values = real_array(values, "an array of laws")
    if isinstance(values, np.generic):
        values = np.asarray(values)
    xp = array_namespace(values)
    if xp.isdtype(values.dtype, "complex floating"):
        raise TypeError(f"expected real numbers, got dtype {values.dtype}; probabilities are real")
    if not xp.isdtype(values.dtype, "real floating"):
        return xp.astype(values, xp.float64)
    if xp.finfo(values.dtype).bits < 32:
        return xp.astype(values, xp.float32)
    return values


def real_array(values: Any, name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """float64 NumPy array of real numbers; TypeError for complex ones, text or what is no array of numbers."""
    array = to_numpy(values)
    if array.dtype.kind not in "biuf" and array.size:
        # Python integers beyond 64 bits and exact fractions arrive as objects.
        exact = array.dtype.kind == "O" and all(isinstance(x, numbers.Real) for x in array.flat)
        if not exact:
            raise TypeError(f"{name} must be real numbers, got {array.dtype} of shape {array.shape}")
    try:
        return array.astype(np.float64)
    except OverflowError:
        raise ValueError(f"{name} holds an integer beyond the range of float64") from None


def first_index(mask: Array) -> tuple[int, ...]:
    """Index of the first true entry of a Boolean array."""
    xp = array_namespace(mask)
    flat = int(xp.argmax(xp.astype(xp.reshape(mask, (-1,)), xp.int8)))
    return tuple(int(i) for i in np.unravel_index(flat, tuple(mask.shape)))


def probabilities(values: Any, name: str) -> Array:
    """Check that the last axis holds probability vectors and return them normalised once.

    Parameters
    ----------
    values : array, shape (..., V)
        Rows that should sum to one. float64 rows may be off by 1e-9, narrower ones by the square root of
        their machine epsilon (a softmax over a large vocabulary in float32).
    name : str
        What the error message calls the array.

    Raises
    ------
    ValueError
        For an entry that is negative or not finite, a row that does not sum to one, or an empty
        vocabulary; the message names index and value.
    """
    array = as_floats(values)
    xp = array_namespace(array)
    if array.ndim < 1 or array.shape[-1] < 1:
        raise ValueError(
            f"{name}: expected shape (..., V) with V >= 1, got {tuple(array.shape)}; the last axis is the vocabulary"
        )
    if math.prod(array.shape) == 0:
        return array
    bad = ~(xp.isfinite(array) & (array >= 0))
    if bool(xp.any(bad)):
        index = first_index(bad)
        raise ValueError(
            f"{name}: entry {index} is {float(array[index])!r}; probabilities must be finite and non-negative"
        )
    narrow = getattr(values, "dtype", array.dtype)
    if not xp.isdtype(narrow, "real floating"):
        narrow = array.dtype
    wide = xp.finfo(narrow).bits >= 64
    tolerance = ROW_SUM_TOLERANCE if wide else math.sqrt(float(xp.finfo(narrow).eps))
    total = xp.sum(array, axis=-1, keepdims=True)
    off = xp.abs(total - 1) > tolerance
    if bool(xp.any(off)):
        index = first_index(off[..., 0])
        raise ValueError(
            f"{name}: row {index} sums to {float(total[(*index, 0)]):.12g}, not 1; divide the row by its sum"
        )
    return array / total


def same_vocabulary(target: int, draft: int) -> None:
    """Raise unless target and draft have one vocabulary size."""
    if target != draft:
        raise ValueError(
            f"vocabulary mismatch: the target has {target} tokens, the draft {draft}; "
            "pad the smaller one with zero-probability tokens if the ids agree"
        )


def whole_number(value: Any, name: str, least: int) -> int:
    """Check an integer argument (not a bool) against its least value."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ValueError(f"{name} must be a whole number >= {least}, got {value!r}")
    return int(value)


def real_number(value: Any, name: str, *, least: float = -math.inf, most: float = math.inf) -> float:
    """Check a finite real argument (no bool, no text, no complex number) against its range."""
    kind = getattr(getattr(value, "dtype", None), "kind", "f")
    try:
        if isinstance(value, (bool, str, bytes)) or kind in "bc":
            raise TypeError
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name} must be a real number, got {value!r}") from None
    if not math.isfinite(number) or not least <= number <= most:
        raise ValueError(f"{name} must be finite and lie in [{least}, {most}], got {value!r}")
    return number


def to_numpy(array: Array) -> np.ndarray[Any, Any]:
    """NumPy view or copy of an array on any device."""
    if hasattr(array, "detach"):
        array = array.detach().cpu().numpy()
    return np.asarray(array)


def positions_column(position: int | Sequence[int] | np.ndarray[Any, Any], limit: int) -> np.ndarray[Any, Any]:
    """Positions as an integer array, checked against a schedule of ``limit`` entries."""
    index = np.asarray(position)
    if index.dtype.kind not in "iu":
        raise ValueError(f"position must be integers (0-based), got {position!r}")
    if index.size and (int(index.min()) < 0 or int(index.max()) >= limit):
        worst = int(index.min()) if int(index.min()) < 0 else int(index.max())
        raise ValueError(
            f"position {worst} is outside the schedule of {limit} entries (0-based); "
            "give one omega per drafted position"
        )
    return index


__all__ = [
    "Array",
    "array_namespace",
    "as_floats",
    "device",
    "first_index",
    "positions_column",
    "probabilities",
    "real_array",
    "real_number",
    "same_vocabulary",
    "to_numpy",
    "whole_number",
]
