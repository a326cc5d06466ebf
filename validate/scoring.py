"""Exact laws along finished images: one teacher-forced pass of target and draft.

The probabilities are float64 softmaxes of float32 logits. The decoder's cached logits differ from these by rounding
(some 1e-6), so likelihoods are those of the law decoded up to that.

Laws of all tokens of all images take 16 n T V bytes, 151 MB an image at T = 576 and V = 16384. `score` keeps them
(`Scores`) while they fit a given memory; beyond it every look at them passes the images through the networks again, a
few at a time (`Rescored`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeAlias

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
LAWS_IN_MEMORY = 4 * 2**30
"""Bytes of laws that `score` keeps: 27 images of T = 576 and V = 16384, 21,000 of T = 49 and V = 256."""
PIECE_BYTES = 2**29
"""Most bytes of laws that are computed anew together."""
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

    def first(self, count: int) -> Scores:
        """The first images only."""
        return Scores(self.tokens[:count], self.target_probs[:count], self.draft_probs[:count])

    def at(self, places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens (n, k) and both laws (n, k, V) at some places of each image, int64 (n, k)."""
        return _at(self, places)

    def log_likelihood(self, which: Literal["target", "draft"]) -> np.ndarray:
        """log-likelihood of every image under one of the networks, in nats, shape (n,)."""
        return _log_likelihood(self, which)


@dataclass(frozen=True)
class Rescored:
    """Images whose laws are too large to keep; the same calls as `Scores`, each passing through the networks again.

    Attributes
    ----------
    tokens : int64 Tensor, shape (n, T)
    pair, conditions, guidance, warp
        The networks, what target and draft were asked to show, and how.
    """

    tokens: Tensor
    pair: Pair
    conditions: tuple[Any, Any]
    guidance: float
    warp: Warp

    def __len__(self) -> int:
        return len(self.tokens)

    def pieces(self, size: int = IMAGES_AT_ONCE) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Tokens and laws, some images at a time: at most `size`, and no more than PIECE_BYTES of laws."""
        size = max(1, min(size, PIECE_BYTES // _bytes_an_image(self.pair)))
        for first in range(0, len(self), size):
            rows = slice(first, first + size)
            tokens = self.tokens[rows]
            target, draft = (
                laws_along(model, tokens, own[rows], self.guidance, self.warp)
                for model, own in zip((self.pair.target, self.pair.draft), self.conditions, strict=True)
            )
            yield tokens, target, draft

    def first(self, count: int) -> Rescored:
        """The first images only."""
        target, draft = self.conditions
        return replace(self, tokens=self.tokens[:count], conditions=(target[:count], draft[:count]))

    def at(self, places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens (n, k) and both laws (n, k, V) at some places of each image, int64 (n, k)."""
        return _at(self, places)

    def log_likelihood(self, which: Literal["target", "draft"]) -> np.ndarray:
        """log-likelihood of every image under one of the networks, in nats, shape (n,)."""
        return _log_likelihood(self, which)


AnyScores: TypeAlias = Scores | Rescored
"""Images with the laws of both networks along them, kept or computed anew."""


def _at(scores: AnyScores, places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    out, first = [], 0
    for tokens, p, q in scores.pieces():
        own = places[first : first + len(tokens)]
        out.append((tokens.gather(1, own), *(torch.take_along_dim(law, own[..., None], 1) for law in (p, q))))
        first += len(tokens)
    tokens, p, q = (torch.cat(parts) for parts in zip(*out, strict=True))
    return tokens, p, q


def _log_likelihood(scores: AnyScores, which: Literal["target", "draft"]) -> np.ndarray:
    column = {"target": 1, "draft": 2}[which]
    out = [
        torch.take_along_dim(piece[column], piece[0][..., None], -1)[..., 0].log().sum(-1) for piece in scores.pieces()
    ]
    return np.asarray(torch.cat(out).cpu().numpy())


def _bytes_an_image(pair: Pair) -> int:
    """Both laws of all tokens of an image in float64."""
    return 16 * pair.num_tokens * pair.vocab_size


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


def score(pair: Pair, images: Decoded, *, memory: int = LAWS_IN_MEMORY) -> AnyScores:
    """Laws of the pair's target and draft along decoded images, at the guidance and warp they were decoded with.

    Parameters
    ----------
    memory : int
        Bytes that laws may take; where 16 n T V is more, they are computed anew whenever they are looked at.
    """
    tokens = torch.from_numpy(images.tokens).to(pair.device)
    again = Rescored(tokens, pair, pair.encode_conditions(images.asked), images.guidance, images.warp)
    if len(tokens) * _bytes_an_image(pair) > memory:
        return again
    target, draft = (
        laws_along(model, tokens, own, images.guidance, images.warp)
        for model, own in zip((pair.target, pair.draft), again.conditions, strict=True)
    )
    return Scores(tokens, target, draft)


def filter_images(scores: AnyScores, verifier: AnyVerifier, length: int, *, progress: bool = False) -> OffsetFilter:
    """`theory.filter_offsets` of all images, in pieces, as NumPy arrays."""
    pieces = []
    with tqdm(total=len(scores), desc="likelihoods", unit="image", disable=not progress, leave=False) as bar:
        for tokens, p, q in scores.pieces():
            pieces.append(filter_offsets(tokens, p, q, verifier, length))
            bar.update(len(tokens))
    names = [f.name for f in fields(OffsetFilter)]
    return OffsetFilter(*(np.concatenate([getattr(piece, name).cpu().numpy() for piece in pieces]) for name in names))
