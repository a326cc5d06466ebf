"""Randomness of decoding: uniforms that belong to an image, not to a batch.

Four named streams (draft, acceptance, residual, bonus) are made from the seed, and every image of a run has its own
stretch of each, found by its number. Its noise therefore does not depend on how many images are decoded together, on
their order, or on the device, and the global generators are neither read nor changed.

A token position can be drafted in several rounds. Draft and acceptance noise is indexed by position *and* attempt, so
that every attempt sees fresh uniforms (a law that used them twice would be wrong), while two runs with one
seed share them: that is what makes pictures at rising relaxation comparable.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

STREAMS = ("draft", "acceptance", "residual", "bonus")


@dataclass(frozen=True)
class Noise:
    """Uniforms in [0, 1) of B images of T tokens.

    Attributes
    ----------
    draft, acceptance : Tensor of float64, shape (B, T, attempts)
    residual, bonus : Tensor of float64, shape (B, T)
    """

    draft: Tensor
    acceptance: Tensor
    residual: Tensor
    bonus: Tensor

    def rows(self, index: Tensor) -> Noise:
        """The noise of some of the images."""
        return Noise(self.draft[index], self.acceptance[index], self.residual[index], self.bonus[index])


def image_noise(seed: int, images: range, tokens: int, attempts: int, device: torch.device) -> Noise:
    """Noise of the images numbered `images`, for `attempts` ≥ 1 drafts of each of `tokens` positions."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise ValueError(f"seed must be a whole number >= 0, got {seed!r}")
    children = np.random.SeedSequence(int(seed)).spawn(len(STREAMS))
    tensors = {}
    for name, child in zip(STREAMS, children, strict=True):
        width = tokens * attempts if name in ("draft", "acceptance") else tokens
        bits = np.random.PCG64(child)
        # One 64-bit draw makes one double, so the noise of image k starts k·width draws into the stream.
        bits.advance(images.start * width)
        table = np.random.Generator(bits).random((len(images), width))
        tensors[name] = torch.from_numpy(table).to(device)
    shape = (len(images), tokens, attempts)
    return Noise(
        tensors["draft"].reshape(shape),
        tensors["acceptance"].reshape(shape),
        tensors["residual"],
        tensors["bonus"],
    )
