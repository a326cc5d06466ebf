"""Classifier-free guidance of logits.

Source: Ho and Salimans, arXiv:2207.12598; for image tokens as in LlamaGen, arXiv:2406.06525.
With conditional logits c, unconditional logits u and scale s,

    g = u + s (c − u),

that is, softmax(g) ∝ p_c^s p_u^{1−s}: s = 1 is the conditional model, s = 0 the unconditional one.  A logit
of −inf is an excluded token.  The formula reads ∞ − ∞ there, so the convention is: at s = 1 and s = 0 the
answer is exactly c or u; at any other scale a token excluded by either stays excluded.

>>> import torch
>>> from validate.models.guidance import guided_logits
>>> guided_logits(torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.5]), 2.0).tolist()
[1.5, -0.5]
>>> excluded = torch.tensor([0.0, -torch.inf])
>>> guided_logits(excluded, excluded, 2.0).tolist()
[0.0, -inf]
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["guided_logits"]


def guided_logits(cond: Tensor, uncond: Tensor, scale: float) -> Tensor:
    """Guided logits ``uncond + scale * (cond - uncond)``, never NaN for logits that are finite or −inf.

    Parameters
    ----------
    cond, uncond : Tensor, shape (..., V)
        Logits with the class and with the null class.
    scale : float
        s; finite.

    Returns
    -------
    Tensor, shape (..., V)
        A new tensor; the inputs are not changed.

    Raises
    ------
    ValueError
        The shapes differ or the scale is not finite.
    """
    if cond.shape != uncond.shape:
        raise ValueError(f"cond has shape {tuple(cond.shape)} but uncond {tuple(uncond.shape)}; they must agree")
    if not math.isfinite(scale):
        raise ValueError(f"guidance scale must be finite; got {scale}")
    if scale == 1.0:
        return cond.clone()
    if scale == 0.0:
        return uncond.clone()
    excluded = torch.isneginf(cond) | torch.isneginf(uncond)
    return torch.where(excluded, -torch.inf, uncond + scale * (cond - uncond))
