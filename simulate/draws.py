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
    sums = xp.cumulative_sum(masses, axis=-1)
    total = sums[..., -1]
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
    past = sums > (u * total)[..., None]
    if isinstance(masses, np.ndarray):
        # NumPy adds in order: the sums never fall, so the first one past u ends a token of positive mass, and the
        # last one is past u unless none is.
        token = np.asarray(past.argmax(axis=-1))
        none = ~past[..., -1]
        if none.any():
            token[none] = masses.shape[-1] - 1 - (masses[none] > 0)[:, ::-1].argmax(axis=-1)
        return token
    charged = masses > 0
    past = xp.astype(charged & past, xp.int8)
    token = xp.argmax(past, axis=-1)
    last = masses.shape[-1] - 1 - xp.argmax(xp.astype(xp.flip(charged, axis=-1), xp.int8), axis=-1)
    return xp.astype(xp.where(xp.max(past, axis=-1) > 0, token, last), xp.int64)


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
