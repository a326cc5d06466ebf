"""Next-token laws of a chain of any array library, as float64 NumPy, after prefixes of one length, of several, or all.

>>> chain = theory.MarkovChain([0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]])
>>> teacher_forced(chain, np.array([[1, 0]]), 3).tolist()
[[[0.5, 0.5], [0.2, 0.8], [0.9, 0.1]]]
"""

from __future__ import annotations

from typing import Any

import numpy as np

import theory
from theory.arrays import to_numpy

Floats = np.ndarray[Any, np.dtype[np.float64]]
Integers = np.ndarray[Any, np.dtype[np.int64]]


def laws_after(chain: theory.Chain, prefixes: Integers) -> Floats:
    """Laws (n, V) after prefixes (n, d)."""
    return np.asarray(to_numpy(chain.conditional(prefixes)), dtype=np.float64)


def laws_at(chain: theory.Chain, tokens: Integers, lengths: Integers) -> Floats:
    """Laws (n, V) after prefixes of different lengths (n,) of tokens (n, T); see `theory.conditional_at`."""
    return np.asarray(to_numpy(theory.conditional_at(chain, tokens, lengths)), dtype=np.float64)


def teacher_forced(chain: theory.Chain, tokens: Integers, places: int | None = None) -> Floats:
    """Laws after 0, 1, … of given tokens: tokens (n, T) → (n, places, V), one place for each token by default."""
    depth = tokens.shape[1] if places is None else places
    return np.stack([laws_after(chain, tokens[:, :t]) for t in range(depth)], axis=1)
