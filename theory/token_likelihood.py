"""Likelihood under multiplicative rules from a few numbers of every token.

The offset recursion (`theory.sequences`) asks three numbers of a token x at offset i: the accepted mass q f_i(x), the
replaced mass R_i G_i(x), and p(x). For f_i = min(1, ω_i p/q) and the optimal residual,

    q f_i(x) = min(q(x), ω_i p(x)),      R_i = Σ (q − ω_i p)_+,
    ω_i > 1:  G_i(x) = (p(x) − q(x))_+ / Z,   Z = Σ (p − q)_+,   one Z for every offset,
    ω_i ≤ 1:  R_i G_i(x) = p(x) − min(q(x), ω_i p(x)),            because Σ p = Σ q = 1,

so that the vocabulary is summed over once for each different ω_i > 1 and once for Z, and lossless decoding needs no
sum at all.

>>> p, q = np.array([[0.5, 0.2]]), np.array([[0.2, 0.5]])
>>> likelihood = np.exp(log_likelihood_of_sums(p, q, 0 * p, {}, np.ones(1)))
>>> round(float(likelihood[0]), 12)
0.1
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from theory.residuals import EMPTY_RESIDUAL
from theory.sequences import advance_offsets, safe_log

Floats = np.ndarray[Any, np.dtype[np.float64]]


def log_likelihood_of_sums(
    p: Floats, q: Floats, short: Floats, rejected: Mapping[float, Floats], omega: Floats, eps: float = 2.0**-52
) -> Floats:
    """Exact log P̂ in nats, shape (B,), −∞ for a sequence the verifier cannot emit.

    Parameters
    ----------
    p, q : array, shape (B, T)
        p(x_t) and q(x_t) of the sequences' own tokens.
    short : array, shape (B, T)
        Z = Σ (p − q)_+; looked at where some ω exceeds one.
    rejected : mapping of float to array, shape (B, T)
        R = Σ (q − ω p)_+ for every different ω > 1.
    omega : array, shape (L,)
        Finite; see `theory.verifiers.multiplicative_factors`.
    eps : float
        Resolution of the laws the sums were taken of: a residual of less mass counts as empty, and is then p.

    Notes
    -----
    Source: this project. Oracle: `theory.sequence_log_likelihood`.
    """
    kept = np.minimum(q[..., None], omega * p[..., None])
    output = np.broadcast_to(p[..., None], kept.shape).copy()
    empty = short <= EMPTY_RESIDUAL * eps
    for i, w in enumerate(omega):
        if w > 1:
            law = np.where(empty, p, np.maximum(p - q, 0) / np.where(empty, 1, short))
            output[..., i] = kept[..., i] + rejected[float(w)] * law
    a = np.zeros((len(p), len(omega) + 1))
    a[:, 0] = 1
    total = np.zeros(len(p))
    for t in range(p.shape[1]):
        a = advance_offsets(a, kept[:, t, :, None], output[:, t, :, None], p[:, t, None])[:, 0]
        mass = a.sum(axis=1)
        total += safe_log(mass)
        a = a / np.where(mass > 0, mass, 1)[:, None]
    return total
