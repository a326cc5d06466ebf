"""Alias tables: one random number and one look-up draw from any law, whatever the size of the vocabulary.

A law of n ≤ K = 2^b outcomes is cut into K bins of mass 1/K, each shared by at most two outcomes (Walker 1977). The top
b bits of a 64-bit random number u choose a bin; the first outcome is drawn where u is below the bin's threshold, else
the second. Masses are first rounded to multiples of 2^−62 that sum to one in integers: an outcome of mass zero is never
drawn, every other law error is below 2^−52 or so (that of a float64 sum), and masses under 2^−63 vanish.

>>> table = alias_records([[0.5, 0.25, 0.125, 0.125]], [[10, 11, 12, 13]], 2)[0]
>>> [int(bin["below"]) for bin in table], [int(bin["above"]) for bin in table]
([10, 11, 12, 13], [10, 11, 10, 10])
>>> (table["threshold"] / 2.0**64).tolist()
[0.25, 0.5, 0.625, 0.875]
"""

from __future__ import annotations

from typing import Any

import numpy as np

TOTAL = 62
"""Masses are multiples of 2^−62: the sums of a row then fit signed 64-bit integers."""

RECORD = np.dtype([("threshold", np.uint64), ("below", np.uint32), ("above", np.uint32)])
"""A bin: the outcome is `below` for random numbers under the threshold (compared with all 64 bits), else `above`."""


def alias_records(masses: Any, codes: Any, bits: int) -> np.ndarray[Any, Any]:
    """Alias tables of many laws.

    Parameters
    ----------
    masses : array, shape (m, n)
        Non-negative, n ≤ 2**bits; each row is scaled by its sum.
    codes : uint32 array, shape (m, n)
        What each outcome is called.
    bits : int
        b ≥ 1: K = 2**b bins a law.

    Returns
    -------
    RECORD array, shape (m, K)

    Raises
    ------
    ValueError
        Naming the row and outcome of a mass that is negative or not finite, or the row that is zero everywhere.

    Notes
    -----
    Bins short of 1/K (light) are filled from outcomes with more than 1/K (heavy), in order. With E_j the running sum of
    the heavy outcomes' excess and F_i that of the light ones' deficit, light i is filled by the first heavy j with
    E_j > F_{i−1}; heavy j itself falls short at the first i with F_i ≥ E_j, by F_i − E_j, and is filled by heavy j + 1.
    Both searches are one sort of all running sums of a row. Oracle: the masses added up bin by bin.
    """
    p = np.asarray(masses, dtype=np.float64)
    total = p.sum(axis=1, keepdims=True)
    bad = ~(np.isfinite(p) & (p >= 0))
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise ValueError(
            f"masses: row {row} has {float(p[row, column])!r} at outcome {column}; they must be finite and >= 0"
        )
    if (total == 0).any():
        raise ValueError(f"masses: row {int(np.argmin(total))} is zero everywhere; there is nothing to draw")
    rows, size = len(p), 2**bits
    width = 1 << (TOTAL - bits)
    names = np.zeros((rows, size), dtype=np.uint32)
    names[:, : p.shape[1]] = codes
    share = np.zeros((rows, size), dtype=np.int64)
    share[:, : p.shape[1]] = np.rint(p / total * 2.0**TOTAL)
    row = np.arange(rows)
    share[row, share.argmax(axis=1)] += (1 << TOTAL) - share.sum(axis=1)

    excess = share - width
    heavy = excess > 0
    filled = np.cumsum(np.where(heavy, 0, -excess), axis=1)
    given = np.cumsum(np.where(heavy, excess, 0), axis=1)
    # Sorted by E_j of the heavy and F_{i−1} of the light; at a tie the heavy one comes first.
    key = 2 * np.where(heavy, given, filled + np.minimum(excess, 0)) + ~heavy
    order = np.argsort(key, axis=1, kind="stable")

    def ordered(values: Any) -> Any:
        return np.take_along_axis(values, order, axis=1)

    sorted_heavy = ordered(heavy)
    place = np.broadcast_to(np.arange(size), order.shape)
    following = np.minimum.accumulate(np.where(sorted_heavy, place, size)[:, ::-1], axis=1)[:, ::-1]
    after = np.concatenate([following[:, 1:], np.full((rows, 1), size)], axis=1)
    source = np.minimum(np.where(sorted_heavy, after, following), size - 1)
    last_light = np.maximum.accumulate(np.where(sorted_heavy, -1, place), axis=1)
    needed = np.take_along_axis(ordered(filled), np.maximum(last_light, 0), axis=1)

    # A light outcome keeps its own share of its bin, a heavy one all but what it gave too much.
    own, other = np.empty_like(share), np.empty_like(names)
    short = np.where(last_light >= 0, np.maximum(needed - ordered(given), 0), 0)
    np.put_along_axis(own, order, np.where(sorted_heavy, width - short, ordered(share)), axis=1)
    np.put_along_axis(other, order, np.take_along_axis(ordered(names), source, axis=1), axis=1)
    out = np.empty((rows, size), dtype=RECORD)
    full = own == width
    bins = np.arange(size, dtype=np.uint64) << np.uint64(TOTAL - bits)
    out["threshold"] = (bins + own.astype(np.uint64)) << np.uint64(64 - TOTAL)
    out["below"] = names
    out["above"] = np.where(full, names, other)
    return out
