"""Warping of next-token laws before they are compared: temperature, top-k, top-p, in LlamaGen's order.

With guided logits g over V tokens:

1. g ← g / max(temperature, 1e-5);
2. top-k (k ≥ 1): a token stays if its logit is at least the k-th largest, so ties with the k-th all stay;
3. top-p (p < 1), on the softmax of what is left: sorted downwards, a token stays while the mass *before* it is at most
   p, so the token that crosses p stays, and so does the first.

A dropped token has logit −∞. Target and draft are each warped by themselves; acceptance rules see the warped laws.
Source: Sun et al., LlamaGen, arXiv:2406.06525 (order and conventions of its sampler).

>>> import torch
>>> logits = torch.tensor([4.0, 2.0, 2.0, 0.0])
>>> Warp(temperature=2.0, top_k=2)(logits).tolist()
[2.0, 1.0, 1.0, -inf]
>>> Warp(top_p=0.7)(logits).tolist()
[4.0, -inf, -inf, -inf]
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["LEAST_TEMPERATURE", "Warp"]

LEAST_TEMPERATURE = 1e-5
"""Temperatures below count as this one: at 0 a law is its own argmax up to ties."""


@dataclass(frozen=True)
class Warp:
    """Temperature, top-k and top-p; `Warp()` changes nothing.

    Attributes
    ----------
    temperature : float
        ≥ 0.
    top_k : int
        Tokens kept; 0 keeps all.
    top_p : float
        Mass kept, 0 < top_p ≤ 1; 1 keeps all.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(f"temperature must be finite and >= 0, got {self.temperature}")
        if isinstance(self.top_k, bool) or int(self.top_k) != self.top_k or self.top_k < 0:
            raise ValueError(f"top_k must be a whole number >= 0 (0 keeps all tokens), got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must lie in (0, 1] (1 keeps all tokens), got {self.top_p}")

    def __call__(self, logits: Tensor) -> Tensor:
        """Warped logits, shape (..., V); the input is not changed."""
        if self.temperature != 1.0:
            logits = logits / max(self.temperature, LEAST_TEMPERATURE)
        if 0 < self.top_k < logits.shape[-1]:
            least = torch.topk(logits, int(self.top_k), dim=-1).values[..., -1:]
            logits = logits.masked_fill(logits < least, -torch.inf)
        if self.top_p < 1.0:
            ordered, index = torch.sort(logits, dim=-1, descending=True, stable=True)
            # float64: a cumulative sum of V float32 terms is off by more than many tokens weigh.
            mass = torch.softmax(ordered.double(), dim=-1)
            before = mass.cumsum(dim=-1) - mass
            dropped = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, index, before > self.top_p)
            logits = logits.masked_fill(dropped, -torch.inf)
        return logits
