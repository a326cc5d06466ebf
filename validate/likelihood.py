"""Likelihood of whole images at full vocabulary, at about the cost of the two softmaxes it needs.

For lossless and multiplicative rules with the optimal residual `theory.token_likelihood` asks p and q of every token
and a sum over the vocabulary for each different ω > 1; here the sums are taken, some rows of logits at a time, so that
memory is linear in V. Other verifiers go image by image through `theory.sequence_log_likelihood`, the oracle.

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
from theory.token_likelihood import log_likelihood_of_sums
from theory.verifiers import multiplicative_factors

__all__ = ["image_log_likelihood"]

ENTRIES_AT_ONCE = 2**17
"""Entries of a law worked on together: 512 KiB in float32, three such tables stay near the cache."""


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
    Oracle: `theory.sequence_log_likelihood`.
    """
    if tokens.ndim != 2 or target_logits.shape != draft_logits.shape or target_logits.shape[:2] != tokens.shape:
        raise ValueError(
            f"expected tokens (B, T) and logits (B, T, V), got {tuple(tokens.shape)}, {tuple(target_logits.shape)} "
            f"and {tuple(draft_logits.shape)}"
        )
    omega = multiplicative_factors(verifier, np.arange(length)) if length >= 1 else None
    if omega is None:
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
    return log_likelihood_of_sums(p_x, q_x, short, rejected, omega, torch.finfo(target_logits.dtype).eps)


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
