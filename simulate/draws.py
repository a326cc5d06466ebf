"""Draws from categorical laws, and the separate random streams of a decoder.

A draw inverts the distribution function: with masses p_0…p_{V−1}, partial sums c_x = p_0 + … + p_x and u ∈ [0, 1),

    x(u) = the smallest x with p_x > 0 and c_x > u·c_{V−1}.

Three things go wrong in practice and are excluded here: sums in half or single precision lose the tail of a large
vocabulary (they are taken in float64); u next to one, or sums that end below one, run past the last token (u is scaled
by the sum itself, and the last token of positive mass is the fallback); and a token of mass zero is drawn at u = 0 or
where a parallel sum is not monotone (zero masses are excluded by name).

>>> categorical([[0.0, 0.3, 0.7], [0.5, 0.5, 0.0]], [0.0, np.nextafter(1, 0)]).tolist()
[1, 1]
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace, device, is_array_api_obj

from theory.arrays import Array, first_index

COLUMNS_PAY = 256
"""Rows from which running sums are faster taken column by column, two calls each, than by NumPy along the rows."""


def categorical(probs: Any, uniforms: Any) -> Array:
    """Token drawn from each law by inversion.

    Parameters
    ----------
    probs : array of any library, shape (..., V)
        Non-negative finite masses; they are scaled by their own sum. Lists become NumPy.
    uniforms : array, shape (...)
        u ∈ [0, 1).

    Returns
    -------
    int64 array, shape (...), of the library and on the device of `probs`

    Raises
    ------
    ValueError
        Naming the row whose masses are negative, not finite or all zero; the u outside [0, 1); or the shapes.
    """
    if not is_array_api_obj(probs):
        probs = np.asarray(probs, dtype=np.float64)
    xp = array_namespace(probs)
    masses = xp.astype(probs, xp.float64, copy=False)
    if masses.ndim < 1 or masses.shape[-1] < 1:
        raise ValueError(f"probs must have shape (..., V) with V >= 1, got {tuple(masses.shape)}")
    u = xp.astype(xp.asarray(uniforms, device=device(masses)), xp.float64, copy=False)
    if tuple(u.shape) != tuple(masses.shape[:-1]):
        raise ValueError(
            f"uniforms must have shape {tuple(masses.shape[:-1])}, one for each row of probs, got {tuple(u.shape)}"
        )
    if math.prod(u.shape) == 0:
        return xp.zeros(tuple(u.shape), dtype=xp.int64, device=device(masses))
    total = xp.sum(masses, axis=-1)
    if not bool(xp.all(xp.isfinite(total)) & (xp.min(masses) >= 0)):
        bad = ~(xp.isfinite(masses) & (masses >= 0))
        if bool(xp.any(bad)):
            index = first_index(bad)
            raise ValueError(f"probs: row {index[:-1]} has mass {float(masses[index])!r} at token {index[-1]}")
    outside = ~((u >= 0) & (u < 1))
    if bool(xp.any(outside)):
        index = first_index(outside)
        raise ValueError(f"uniforms: entry {index} is {float(u[index])!r}; it must lie in [0, 1)")
    if bool(xp.any(total == 0)):
        raise ValueError(f"probs: row {first_index(total == 0)} is zero everywhere; there is nothing to draw")
    if isinstance(masses, np.ndarray):
        flat = masses.reshape(-1, masses.shape[-1])
        return _invert(flat, (u * total).reshape(-1)).reshape(u.shape)
    sums = xp.cumulative_sum(masses, axis=-1)
    total = sums[..., -1]
    past = sums > (u * total)[..., None]
    charged = masses > 0
    past = xp.astype(charged & past, xp.int8)
    token = xp.argmax(past, axis=-1)
    last = masses.shape[-1] - 1 - xp.argmax(xp.astype(xp.flip(charged, axis=-1), xp.int8), axis=-1)
    return xp.astype(xp.where(xp.max(past, axis=-1) > 0, token, last), xp.int64)


def _first_past(masses: Any, level: Any) -> tuple[Any, Any]:
    """First column whose running sum exceeds the level (their number if none does) and the sum before it, both (n,)."""
    rows = len(masses)
    if rows < COLUMNS_PAY:
        sums = np.cumsum(masses, axis=1)
        index = (sums <= level[:, None]).sum(axis=1)
        before = np.where(index > 0, sums[np.arange(rows), np.maximum(index, 1) - 1], 0.0)
        return index, before
    running, before, index = np.zeros(rows), np.zeros(rows), np.zeros(rows, dtype=np.int64)
    for column in masses.T:
        running += column
        short = running <= level
        np.copyto(before, running, where=short)
        index += short
    return index, before


def _invert(masses: Any, level: Any) -> Any:
    """Inversion in NumPy, masses (n, V), level u·c_{V−1} (n,): first among sums of blocks, then within one block.

    Running sums are the slow part; two levels take about 2√V of them instead of V. NumPy adds in order, so that they
    never fall and the first one past the level ends a block, or a token, of positive mass.
    """
    rows, size = masses.shape
    width = 1 << ((size - 1).bit_length() + 1) // 2
    whole = size // width
    if size <= 2 * width:
        token, _ = _first_past(masses, level)
    else:
        sums = np.zeros((rows, -(-size // width)))
        np.einsum("nij->ni", masses[:, : whole * width].reshape(rows, whole, width), out=sums[:, :whole])
        sums[:, whole:] = masses[:, whole * width :].sum(axis=1, keepdims=True)
        block, before = _first_past(sums, level)
        # A block that starts too far right is moved left, with its own start inside; none past the level: see below.
        start = block * width
        inside = np.minimum(start, size - width)[:, None] + np.arange(width)
        part = np.where(inside >= start[:, None], np.take_along_axis(masses, inside, axis=1), 0.0)
        within, _ = _first_past(part, level - before)
        token = np.where(within < width, inside[:, 0] + within, size)
        lost = (within == width) & (block < sums.shape[1])
        if lost.any():
            # The block's sum passed the level and its running sum did not: the last token of mass is meant.
            token[lost] = inside[lost, -1] - (part[lost, ::-1] > 0).argmax(axis=1)
    none = token >= size
    if none.any():
        token[none] = size - 1 - (masses[none, ::-1] > 0).argmax(axis=1)
    return token


class Streams(NamedTuple):
    """One generator for each kind of draw of a decoder, so that no draw is used twice.

    Anything with a method ``random(shape)`` giving numbers in [0, 1) will do, which is how tests inject faults.
    """

    draft: Any
    """Drafted tokens."""
    acceptance: Any
    """u of the comparison u < f."""
    residual: Any
    """Replacements of rejected drafts."""
    bonus: Any
    """Tokens drawn from the target itself."""


def streams(rng: np.random.Generator | Streams) -> Streams:
    """Independent streams spawned from a generator; streams are passed through.

    Spawning moves `rng` on: a second call gives four new streams.

    Raises
    ------
    TypeError
        If `rng` is no generator (a bare seed, for instance).
    """
    if isinstance(rng, Streams):
        return rng
    if not isinstance(rng, np.random.Generator):
        raise TypeError(f"rng must be a numpy Generator, for instance numpy.random.default_rng(seed), got {rng!r}")
    return Streams(*rng.spawn(4))
