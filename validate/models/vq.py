"""Images to tokens and back: a convolutional vector quantiser with a codebook on the unit sphere.

Definitions.  The encoder maps an image in [0, 1]^{28×28} to s × s unit vectors z_1, …, z_T (s = 7 or 14, T = s²,
raster order) in R^D. The codebook is V unit vectors e_0, …, e_{V−1}; token t is

    x_t = argmax_v ⟨z_t, e_v⟩ = argmin_v ‖z_t − e_v‖,

the same code for inner product and distance since both sit on the sphere.  The decoder maps e_{x_1}, …,
e_{x_T} to an image. Neighbourhoods of codes on the sphere are what LANTERN's rules (arXiv:2410.03355) group
tokens by.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from validate.models.interface import check_tokens

__all__ = ["VQTokenizer"]


class _Residual(nn.Module):
    """Norm, 3×3, 1×1, added to the input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, width)
        self.conv = nn.Conv2d(width, width, 3, padding=1)
        self.mix = nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        change: Tensor = self.mix(functional.gelu(self.conv(functional.gelu(self.norm(x)))))
        return x + change


class VQTokenizer(nn.Module):
    """Tokenizer of 28 × 28 grey images.

    Parameters
    ----------
    vocab_size : int
        V, the number of codes.
    code_width : int
        D, the dimension of a code.
    width : int
        Channels of the convolutions; a multiple of 8.
    blocks : int
        Residual blocks at s × s on either side.
    side : int
        s, tokens in a row and in a column: 7 or 14.

    Attributes
    ----------
    codebook : Tensor, shape (V, D)
        Unit rows; a buffer, moved by exponential averages in training rather than by gradients.
    """

    codebook: Tensor

    def __init__(
        self, *, vocab_size: int = 256, code_width: int = 8, width: int = 64, blocks: int = 2, side: int = 7
    ) -> None:
        super().__init__()
        if side not in (7, 14):
            raise ValueError(f"side must be 7 or 14 tokens of a 28 × 28 image; got {side}")
        self.vocab_size, self.code_width, self.width, self.blocks = vocab_size, code_width, width, blocks
        self.side = side
        half, coarse = width // 2, side == 7
        self.encoder = nn.Sequential(
            nn.Conv2d(1, half, 4, stride=2, padding=1),
            nn.GELU(),
            nn.Conv2d(half, width, 4, stride=2, padding=1) if coarse else nn.Conv2d(half, width, 3, padding=1),
            *(_Residual(width) for _ in range(blocks)),
            nn.GroupNorm(4, width),
            nn.GELU(),
            nn.Conv2d(width, code_width, 1),
        )
        self.decoder = nn.Sequential(
            nn.Conv2d(code_width, width, 3, padding=1),
            *(_Residual(width) for _ in range(blocks)),
            nn.GroupNorm(4, width),
            nn.GELU(),
            nn.ConvTranspose2d(width, width, 4, stride=2, padding=1)
            if coarse
            else nn.Conv2d(width, width, 3, padding=1),
            nn.GELU(),
            nn.ConvTranspose2d(width, half, 4, stride=2, padding=1),
            nn.GELU(),
            nn.Conv2d(half, 1, 3, padding=1),
        )
        self.register_buffer("codebook", torch.zeros(vocab_size, code_width))

    @property
    def config(self) -> dict[str, int]:
        """The constructor's arguments; side only where it is not 7, as older weights know it."""
        names = ("vocab_size", "code_width", "width", "blocks", *(("side",) if self.side != 7 else ()))
        return {name: getattr(self, name) for name in names}

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of tokens."""
        return (self.side, self.side)

    @property
    def num_tokens(self) -> int:
        """T, tokens of an image."""
        return self.side**2

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        """Fill every parameter and the codebook from ``generator``."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
                area = module.kernel_size[0] * module.kernel_size[1]
                fan_in = module.in_channels * area
                if isinstance(module, nn.ConvTranspose2d):
                    # Stride 2 spreads each input over four outputs: every output sees a quarter of the kernel.
                    fan_in //= 4
                module.weight.normal_(0.0, 1.0 / math.sqrt(fan_in), generator=generator)
                if module.bias is not None:
                    module.bias.zero_()
            elif isinstance(module, nn.GroupNorm):
                module.weight.fill_(1.0)
                module.bias.zero_()
        self.codebook.normal_(generator=generator)
        self.codebook.copy_(functional.normalize(self.codebook, dim=-1))

    def embed(self, images: Tensor) -> Tensor:
        """Unit vectors z of images: (B, 28, 28) to (B, T, D)."""
        if images.ndim != 3 or images.shape[1:] != (28, 28) or not images.is_floating_point():
            raise ValueError(
                f"images must be floating point of shape (B, 28, 28) in [0, 1]; "
                f"got {images.dtype} of shape {tuple(images.shape)}"
            )
        return functional.normalize(self.encoder(images[:, None]).flatten(2).transpose(1, 2), dim=-1)

    def quantise(self, embedded: Tensor) -> Tensor:
        """Nearest codes of unit vectors: (..., D) to int64 (...)."""
        return (embedded @ self.codebook.T).argmax(dim=-1)

    def draw(self, codes: Tensor) -> Tensor:
        """Images of code vectors: (B, T, D) to (B, 28, 28) in [0, 1]."""
        grid = codes.transpose(1, 2).reshape(len(codes), self.code_width, *self.grid)
        return torch.sigmoid(self.decoder(grid)[:, 0])

    def tables(self) -> list[Tensor]:
        """Codebook and decoder: what gives tokens their meaning."""
        return [self.codebook, *self.decoder.state_dict().values()]

    @torch.no_grad()
    def encode(self, images: Tensor) -> Tensor:
        """Tokens of images.

        Parameters
        ----------
        images : Tensor, shape (B, 28, 28)
            Grey values in [0, 1].

        Returns
        -------
        Tensor of int64, shape (B, T)
            Raster order.
        """
        return self.quantise(self.embed(images))

    @torch.no_grad()
    def decode(self, tokens: Tensor) -> Tensor:
        """Images of tokens.

        Parameters
        ----------
        tokens : Tensor of int64, shape (B, T)
            Values in 0, …, V − 1.

        Returns
        -------
        Tensor, shape (B, 28, 28)
            Grey values in [0, 1].

        Raises
        ------
        ValueError
            The shape is wrong or a token lies outside the codebook; names index and value.
        """
        check_tokens(tokens, self.num_tokens, self.vocab_size)
        return self.draw(self.codebook[tokens])
