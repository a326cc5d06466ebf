"""Exact laws along finished images: one teacher-forced pass of target and draft.

The probabilities are float64 softmaxes of float32 logits. The decoder's cached logits differ from these by rounding
(some 1e-6), so likelihoods are those of the law decoded up to that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from theory import AnyVerifier, OffsetFilter, filter_offsets
from validate.decoding import Decoded
from validate.models import Pair, TokenTransformer, guided_logits

IMAGES_AT_ONCE = 250
"""Images passed through a network, or filtered, together: some 100 MB of temporaries at V = 256, L = 5."""


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
def laws_along(model: TokenTransformer, tokens: Tensor, classes: Tensor, guidance: float) -> Tensor:
    """Guided next-token laws of one network along images, shape (n, T, V) in float64."""
    out = []
    for first in range(0, len(tokens), IMAGES_AT_ONCE):
        rows = slice(first, first + IMAGES_AT_ONCE)
        behind = tokens[rows, :-1]
        conditional = model(torch.cat([model.class_ids(classes[rows])[:, None], behind], dim=1))
        if guidance != 1.0:
            null = torch.full_like(classes[rows], model.null_id)
            conditional = guided_logits(conditional, model(torch.cat([null[:, None], behind], dim=1)), guidance)
        out.append(torch.softmax(conditional.double(), dim=-1))
    return torch.cat(out)


def score(pair: Pair, images: Decoded) -> Scores:
    """Laws of the pair's target and draft along decoded images, at the guidance they were decoded with."""
    tokens = torch.from_numpy(images.tokens).to(pair.device)
    classes = torch.from_numpy(images.classes).to(pair.device)
    return Scores(tokens, *(laws_along(m, tokens, classes, images.guidance) for m in (pair.target, pair.draft)))


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
