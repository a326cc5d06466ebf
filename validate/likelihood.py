"""Likelihood of whole images at full vocabulary, at about the cost of the two softmaxes it needs.

The offset recursion (`theory.sequences`) asks three numbers of a token x at offset i: the accepted mass q f_i(x), the
replaced mass R_i G_i(x), and p(x). For f_i = min(1, ω_i p/q) and the optimal residual,

    q f_i(x) = min(q(x), ω_i p(x)),      R_i = Σ (q − ω_i p)_+,
    ω_i > 1:  G_i(x) = (p(x) − q(x))_+ / Z,   Z = Σ (p − q)_+,   one Z for every offset,
    ω_i ≤ 1:  R_i G_i(x) = p(x) − min(q(x), ω_i p(x)),            because Σ p = Σ q = 1,

so that the vocabulary is summed over once for each different ω_i > 1 and once for Z, and lossless decoding needs no
sum at all. Some rows of logits are worked on at a time: memory is linear in V. Other verifiers go image
by image through `theory.sequence_log_likelihood`, the oracle.

>>> logits = torch.log(torch.tensor([[[0.5, 0.3, 0.2]] * 2]))
>>> draft = torch.log(torch.tensor([[[0.2, 0.3, 0.5]] * 2]))
>>> lossless = theory.Verifier(theory.Lossless())
>>> [round(float(x), 6) for x in np.exp(image_log_likelihood(torch.tensor([[0, 2]]), logits, draft, lossless, 1))]
[0.1]
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

import theory
from theory import AnyVerifier
from theory.residuals import EMPTY_RESIDUAL

__all__ = ["image_log_likelihood"]

ENTRIES_AT_ONCE = 2**17
"""Entries of a law worked on together: 512 KiB in float32, three such tables stay near the cache."""


def _factors(verifier: AnyVerifier, length: int) -> np.ndarray | None:
    """ω_1…ω_L of lossless or multiplicative verification with the optimal residual, else None."""
    if not isinstance(verifier, theory.Verifier) or verifier.residual is not theory.optimal_residual:
        return None
    if isinstance(verifier.rule, theory.Lossless):
        return np.ones(length)
    if not isinstance(verifier.rule, theory.Relaxed) or not np.isfinite(verifier.rule.omega).all():
        return None
    omega = np.asarray(verifier.rule.omega, dtype=float)
    if verifier.rule.constant:
        return np.full(length, omega.reshape(-1)[0])
    if len(omega) < length:
        return None
    return omega[:length]


@torch.no_grad()
def image_log_likelihood(
    tokens: Tensor, target_logits: Tensor, draft_logits: Tensor, verifier: AnyVerifier, length: int
) -> np.ndarray:
    """Exact log P̂(x_{1:T}) in nats of images under relaxed decoding.

    Parameters
    ----------
    tokens : int64 Tensor, shape (B, T)
    target_logits, draft_logits : Tensor, shape (B, T, V)
        Guided and warped, −∞ for a token left out; [b, t] is of token t given those before. Their own precision is
        computed in: float32 misses an image's value by some 1e-7 a token.
    verifier : AnyVerifier
    length : int
        L ≥ 1.

    Returns
    -------
    float64 array, shape (B,)
        −∞ for an image the verifier cannot emit.

    Raises
    ------
    ValueError
        Shapes that do not match, a token outside the vocabulary; and as `theory.sequence_log_likelihood`.

    Notes
    -----
    Source: THEORY 6. Oracle: `theory.sequence_log_likelihood`.
    """
    if tokens.ndim != 2 or target_logits.shape != draft_logits.shape or target_logits.shape[:2] != tokens.shape:
        raise ValueError(
            f"expected tokens (B, T) and logits (B, T, V), got {tuple(tokens.shape)}, {tuple(target_logits.shape)} "
            f"and {tuple(draft_logits.shape)}"
        )
    omega = _factors(verifier, length)
    if omega is None or length < 1:
        return np.concatenate(
            [
                np.atleast_1d(
                    theory.sequence_log_likelihood(
                        x, torch.softmax(p, -1), torch.softmax(q, -1), verifier, length
                    ).cpu()
                )
                for x, p, q in zip(tokens, target_logits, draft_logits, strict=True)
            ]
        ).astype(float)
    size = target_logits.shape[-1]
    bad = torch.nonzero((tokens < 0) | (tokens >= size))
    if len(bad):
        row, t = bad[0].tolist()
        raise ValueError(f"token ({row}, {t}) is {int(tokens[row, t])}; tokens lie in 0…{size - 1}")
    p_x, q_x, short, rejected = _sums(tokens, target_logits, draft_logits, np.unique(omega[omega > 1]))
    return _recursion(p_x, q_x, short, rejected, omega, torch.finfo(target_logits.dtype).eps)


def _sums(
    tokens: Tensor, target: Tensor, draft: Tensor, above: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict[float, np.ndarray]]:
    """p(x), q(x), Z and R of every ω > 1, each (B, T) in float64; Z is only summed where there is such an ω."""
    size = target.shape[-1]
    ids, left, right = tokens.reshape(-1, 1), target.reshape(-1, size), draft.reshape(-1, size)
    step = max(1, ENTRIES_AT_ONCE // size)
    columns: list[Tensor] = []
    work = torch.empty_like(left[:step])
    for first in range(0, len(ids), step):
        rows = slice(first, first + step)
        p, q = torch.softmax(left[rows], -1), torch.softmax(right[rows], -1)
        out = [p.gather(-1, ids[rows])[:, 0], q.gather(-1, ids[rows])[:, 0]]
        buffer = work[: len(p)]
        if len(above):
            out.append(torch.sub(p, q, out=buffer).clamp_(min=0).sum(-1))
        out += [torch.sub(q, p, alpha=float(w), out=buffer).clamp_(min=0).sum(-1) for w in above]
        columns.append(torch.stack(out))
    table = torch.cat(columns, dim=1).double().cpu().numpy().reshape(-1, *tokens.shape)
    short = table[2] if len(above) else np.zeros(tokens.shape)
    return table[0], table[1], short, dict(zip(above.tolist(), table[3:], strict=True))


def _recursion(
    p: np.ndarray, q: np.ndarray, short: np.ndarray, rejected: dict[float, np.ndarray], omega: np.ndarray, eps: float
) -> np.ndarray:
    """The offset recursion from its three numbers of every token and offset."""
    kept = np.minimum(q[..., None], omega * p[..., None])
    replaced = p[..., None] - kept
    for i, w in enumerate(omega):
        if w > 1:
            empty = short <= EMPTY_RESIDUAL * eps
            law = np.where(empty, p, np.maximum(p - q, 0) / np.where(empty, 1, short))
            replaced[..., i] = rejected[float(w)] * law
    a = np.zeros((len(p), len(omega) + 1))
    a[:, 0] = 1
    total = np.zeros(len(p))
    with np.errstate(divide="ignore"):
        for t in range(p.shape[1]):
            fresh = (a[:, :-1] * replaced[:, t]).sum(1) + a[:, -1] * p[:, t]
            a = np.concatenate([fresh[:, None], a[:, :-1] * kept[:, t]], axis=1)
            mass = a.sum(1)
            total += np.log(mass)
            a /= np.where(mass > 0, mass, 1)[:, None]
    return total
