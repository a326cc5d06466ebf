"""Exact laws along finished images: one teacher-forced pass of target and draft.

The probabilities are float64 softmaxes of float32 logits. The decoder's cached logits differ from these by rounding
(some 1e-6), so likelihoods are those of the law decoded up to that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from theory import AnyVerifier, OffsetFilter, filter_offsets
from validate.batches import Decoded
from validate.models import Pair, Warp
from validate.models.interface import START, ImageModel

IMAGES_AT_ONCE = 250
"""Images passed through a network, or filtered, together: some 100 MB of temporaries at V = 256, L = 5."""
LOGITS_AT_ONCE = 2**25
"""Most logits of one pass, 128 MB in float32: large images go through in smaller groups."""


@dataclass(frozen=True)
class Scores:
    """Images with the laws of both networks along them.

    Attributes
    ----------
    tokens : int64 Tensor, shape (n, T)
    target_probs, draft_probs : float64 Tensor, shape (n, T, V)
    """

    tokens: Tensor
    target_probs: Tensor
    draft_probs: Tensor

    def __len__(self) -> int:
        return len(self.tokens)

    def pieces(self, size: int = IMAGES_AT_ONCE) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Tokens and laws, some images at a time."""
        for first in range(0, len(self), size):
            rows = slice(first, first + size)
            yield self.tokens[rows], self.target_probs[rows], self.draft_probs[rows]

    def log_likelihood(self, which: str) -> np.ndarray:
        """log-likelihood of every image under "target" or "draft", shape (n,)."""
        laws = {"target": self.target_probs, "draft": self.draft_probs}[which]
        return torch.take_along_dim(laws, self.tokens[..., None], -1)[..., 0].log().sum(-1).cpu().numpy()


@torch.no_grad()
def laws_along(model: ImageModel, tokens: Tensor, conditions: Any, guidance: float, warp: Warp) -> Tensor:
    """Guided and warped next-token laws of one model along images, shape (n, T, V) in float64."""
    inputs = torch.cat([torch.full_like(tokens[:, :1], START), tokens[:, :-1]], dim=1)
    rows_an_image = 1 if guidance == 1.0 else 2
    most = LOGITS_AT_ONCE // (model.num_tokens * model.vocab_size)
    size = max(1, min(IMAGES_AT_ONCE, most) // rows_an_image)
    out = []
    for first in range(0, len(tokens), size):
        rows = slice(first, first + size)
        behind = inputs[rows]
        start = torch.zeros(len(behind), dtype=torch.int64, device=tokens.device)
        logits = model.start(conditions[rows], guidance).logits(behind, start)
        out.append(torch.softmax(warp(logits).double(), dim=-1))
    return torch.cat(out)


def score(pair: Pair, images: Decoded) -> Scores:
    """Laws of the pair's target and draft along decoded images, at the guidance and warp they were decoded with."""
    tokens = torch.from_numpy(images.tokens).to(pair.device)
    conditions = pair.encode_conditions(images.asked)
    target, draft = (
        laws_along(model, tokens, own, images.guidance, images.warp)
        for model, own in zip((pair.target, pair.draft), conditions, strict=True)
    )
    return Scores(tokens, target, draft)


def filter_images(scores: Scores, verifier: AnyVerifier, length: int, *, progress: bool = False) -> OffsetFilter:
    """`theory.filter_offsets` of all images, in pieces, as NumPy arrays."""
    pieces = [
        filter_offsets(tokens, p, q, verifier, length)
        for tokens, p, q in tqdm(
            list(scores.pieces()), desc="likelihoods", unit="batch", disable=not progress, leave=False
        )
    ]
    names = [f.name for f in fields(OffsetFilter)]
    return OffsetFilter(*(np.concatenate([getattr(piece, name).cpu().numpy() for piece in pieces]) for name in names))
