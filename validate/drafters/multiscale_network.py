"""A low-resolution image model and its upsampling: the drafter of multi-scale decoding.

On a grid of S × S tokens, S odd, the *anchors* are the cells in even rows and columns, ((S+1)/2)² of them in raster
order. A small transformer writes the anchors one after the other, each after the class and those before it; the
upsampler, two convolutions over the embedded anchors (other cells are empty) and the class, gives every other cell a
law of its own, and these are drawn independently. So

    Q(x) = Π_j c(x_{a_j} | class, x_{a_1}, …, x_{a_{j−1}}) · Π_{u no anchor} U_u(x_u | class, x_a).

Anchors are tokens of the target's own vocabulary: an embedded pair has one tokenizer and one resolution, so its low
resolution is a subsampled grid. A pair of tokenizers at two resolutions, as in the paper, would bring its own codes.

>>> import torch
>>> network = MultiScaleDrafter(vocab_size=5, num_classes=2, side=3, width=8, heads=2, channels=8)
>>> network.anchors.tolist()
[0, 2, 6, 8]
>>> network.upsample(torch.tensor([[1, 2, 3, 4]]), torch.tensor([0])).shape
torch.Size([1, 9, 5])
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from validate.models.transformer import TokenTransformer

__all__ = ["MultiScaleDrafter"]


class MultiScaleDrafter(nn.Module):
    """Coarse transformer and upsampler.

    Parameters
    ----------
    vocab_size, num_classes : int
        V, C.
    side : int
        S, odd and ≥ 3.
    width, heads : int
        Of the coarse transformer, which has one layer.
    channels : int
        Of the upsampler.

    Raises
    ------
    ValueError
        For a grid without a lower resolution.
    """

    def __init__(self, *, vocab_size: int, num_classes: int, side: int, width: int, heads: int, channels: int) -> None:
        super().__init__()
        if side < 3 or side % 2 == 0:
            raise ValueError(f"side must be odd and >= 3, got {side}: anchors are every other row and column")
        self.side, self.channels, self.vocab_size, self.num_classes = side, channels, vocab_size, num_classes
        even = [row * side + column for row in range(0, side, 2) for column in range(0, side, 2)]
        self.even = even
        self.coarse = TokenTransformer(
            vocab_size=vocab_size, num_classes=num_classes, num_tokens=len(even), width=width, layers=1, heads=heads
        )
        self.code = nn.Embedding(vocab_size, channels)
        self.label = nn.Embedding(num_classes, channels)
        self.place = nn.Parameter(torch.zeros(channels, side, side))
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        self.out = nn.Linear(channels, vocab_size)

    @property
    def anchors(self) -> Tensor:
        """Anchor cells in raster order, int64 ((S+1)/2)²."""
        return torch.tensor(self.even, device=self.out.weight.device)

    @property
    def num_tokens(self) -> int:
        """S²."""
        return self.side**2

    @property
    def config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            "vocab_size": self.vocab_size,
            "num_classes": self.num_classes,
            "side": self.side,
            "width": self.coarse.width,
            "heads": self.coarse.heads,
            "channels": self.channels,
        }

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        """Fill every parameter from `generator`."""
        self.coarse.initialise(generator)
        self.place.zero_()
        for module in (self.code, self.label):
            module.weight.normal_(0.0, 0.5, generator=generator)
        for layer in (self.first, self.second, self.out):
            fan = layer.weight[0].numel()
            layer.weight.normal_(0.0, fan**-0.5, generator=generator)
            assert layer.bias is not None
            layer.bias.zero_()

    def upsample(self, anchors: Tensor, classes: Tensor) -> Tensor:
        """Logits (B, S², V) of every cell from anchor tokens (B, A) and classes (B,); an anchor's own mean nothing."""
        filled = self.code.weight.new_zeros((len(anchors), self.num_tokens, self.channels))
        filled[:, self.anchors] = self.code(anchors)
        grid = filled.transpose(1, 2).reshape(-1, self.channels, self.side, self.side)
        x = grid + self.place + self.label(classes)[..., None, None]
        x = x + functional.gelu(self.first(x))
        x = x + functional.gelu(self.second(x))
        logits: Tensor = self.out(x.flatten(2).transpose(1, 2))
        return logits

    def coarse_logits(self, anchors: Tensor, classes: Tensor) -> Tensor:
        """Teacher-forced logits (B, A, V) of the anchors."""
        first = self.coarse.class_ids(classes)
        logits: Tensor = self.coarse(torch.cat([first[:, None], anchors[:, :-1]], dim=1))
        return logits
