"""LlamaGen's tokenizer, decoding only: codes to pixels.

Definitions. Token v is row v of a codebook, divided by max(‖row‖, 1e-12) when it is looked up (unless the tokenizer
was trained without). Codes of an h × w grid, row by row, go through a 1×1 convolution (`post_quant_conv`) and then:

    conv_in → mid: residual, attention, residual → levels → norm, swish, conv_out.

A level is residual blocks (on the first level each followed by attention), then, but for the last level, nearest
doubling and a 3×3 convolution. Residual block: norm, swish, 3×3, norm, swish, 3×3, plus the input (through a 1×1
where channels change). Attention: one head over the cells, scale channels^−½, plus the input. swish(x) = x σ(x), norms
over 32 groups with ε = 1e-6. Channels, blocks and levels are read off the tensors: five levels make VQ-16, four VQ-8.

Pixels come out about [−1, 1] and are given in [0, 1]: y = (x + 1)/2, cut off. An 8-bit value is
trunc(127.5 x + 128) = trunc(255 y + ½) within 0…255.

Source: Sun et al., LlamaGen, arXiv:2406.06525; names of the tensors as in its public files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from validate.models.weights import WeightsError

__all__ = ["LlamaGenTokenizer", "eight_bit"]


def eight_bit(pixels: Tensor) -> Tensor:
    """8-bit values of pixels in [0, 1], as the public code saves them.

    >>> eight_bit(torch.tensor([0.0, 0.5, 1.0])).tolist()
    [0, 128, 255]
    """
    return (255.0 * pixels + 0.5).clamp(0, 255).to(torch.uint8)


def _norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(32, channels, eps=1e-6)


class _Residual(nn.Module):
    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = _norm(inside), nn.Conv2d(inside, outside, 3, padding=1)
        self.norm2, self.conv2 = _norm(outside), nn.Conv2d(outside, outside, 3, padding=1)
        self.nin_shortcut = nn.Identity() if inside == outside else nn.Conv2d(inside, outside, 1)

    def forward(self, x: Tensor) -> Tensor:
        change = self.conv1(functional.silu(self.norm1(x)))
        change = self.conv2(functional.silu(self.norm2(change)))
        out: Tensor = self.nin_shortcut(x) + change
        return out


class _Attention(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = _norm(channels)
        self.q, self.k, self.v, self.proj_out = (nn.Conv2d(channels, channels, 1) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        query, key, value = (f(y).flatten(2).transpose(1, 2)[:, None] for f in (self.q, self.k, self.v))
        mixed = functional.scaled_dot_product_attention(query, key, value)[:, 0]
        out: Tensor = x + self.proj_out(mixed.transpose(1, 2).reshape(x.shape))
        return out


class _Upsample(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(functional.interpolate(x, scale_factor=2.0, mode="nearest"))
        return out


class _Level(nn.Module):
    def __init__(self, inside: int, outside: int, blocks: int, attends: bool, doubles: bool) -> None:
        super().__init__()
        self.res = nn.ModuleList(_Residual(inside if i == 0 else outside, outside) for i in range(blocks))
        self.attn = nn.ModuleList(_Attention(outside) for _ in range(blocks if attends else 0))
        self.upsample = _Upsample(outside) if doubles else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        for index, block in enumerate(self.res):
            x = block(x)
            if len(self.attn):
                x = self.attn[index](x)
        out: Tensor = self.upsample(x)
        return out


class _Decoder(nn.Module):
    def __init__(self, inside: int, first: int, levels: Sequence[int], blocks: int) -> None:
        super().__init__()
        self.conv_in = nn.Conv2d(inside, first, 3, padding=1)
        self.mid = nn.ModuleList([_Residual(first, first), _Attention(first), _Residual(first, first)])
        before, last = [first, *levels[:-1]], len(levels) - 1
        self.conv_blocks = nn.ModuleList(
            _Level(a, b, blocks, attends=i == 0, doubles=i < last)
            for i, (a, b) in enumerate(zip(before, levels, strict=True))
        )
        self.norm_out, self.conv_out = _norm(levels[-1]), nn.Conv2d(levels[-1], 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv_in(x)
        for block in (*self.mid, *self.conv_blocks):
            x = block(x)
        out: Tensor = self.conv_out(functional.silu(self.norm_out(x)))
        return out


class LlamaGenTokenizer(nn.Module):
    """Decoder of a LlamaGen VQ tokenizer; offers `validate.models.interface.PixelDecoder`.

    Parameters
    ----------
    vocab_size, code_width : int
        Of the codebook.
    inside, first : int
        Channels behind `post_quant_conv` and behind `conv_in`.
    levels : sequence of int
        Channels of each level, in decoding order.
    blocks : int
        Residual blocks a level.
    grid : (rows, columns)
    unit : bool
        Whether codes are normalised when looked up.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        code_width: int,
        inside: int,
        first: int,
        levels: Sequence[int],
        blocks: int,
        grid: tuple[int, int],
        unit: bool = True,
    ) -> None:
        super().__init__()
        self.vocab_size, self.grid, self.unit = vocab_size, grid, unit
        self.quantize = nn.ModuleDict({"embedding": nn.Embedding(vocab_size, code_width)})
        self.post_quant_conv = nn.Conv2d(code_width, inside, 1)
        self.decoder = _Decoder(inside, first, levels, blocks)

    @classmethod
    def like(
        cls, shapes: Mapping[str, tuple[int, ...]], grid: tuple[int, int], unit: bool, where: str
    ) -> LlamaGenTokenizer:
        """A network of the shape its tensors tell, on the current default device.

        Raises
        ------
        WeightsError
            A tensor that decides the shape is missing or no group norm of 32 groups fits.
        """

        def of(key: str, axis: int) -> int:
            if len(shapes.get(key, ())) <= axis:
                raise WeightsError(f"{where} lacks tensor {key!r}")
            return shapes[key][axis]

        found = [re.match(r"decoder\.conv_blocks\.(\d+)\.res\.(\d+)\.conv2\.weight", key) for key in shapes]
        places = {(int(match[1]), int(match[2])) for match in found if match}
        levels = max((level for level, _ in places), default=-1) + 1
        if not levels:
            raise WeightsError(f"{where} lacks tensor 'decoder.conv_blocks.0.res.0.conv2.weight'")
        try:
            return cls(
                vocab_size=of("quantize.embedding.weight", 0),
                code_width=of("quantize.embedding.weight", 1),
                inside=of("post_quant_conv.weight", 0),
                first=of("decoder.conv_in.weight", 0),
                levels=[of(f"decoder.conv_blocks.{level}.res.0.conv2.weight", 0) for level in range(levels)],
                blocks=max(block for _, block in places) + 1,
                grid=grid,
                unit=unit,
            )
        except ValueError as error:
            raise error if isinstance(error, WeightsError) else WeightsError(f"{where}: {error}") from error

    @property
    def num_tokens(self) -> int:
        """T, tokens of an image."""
        return self.grid[0] * self.grid[1]

    def codes(self, tokens: Tensor, grid: tuple[int, int] | None = None) -> Tensor:
        """Code vectors of tokens (B, T) on the grid, shape (B, code width, rows, columns)."""
        rows, columns = self.grid if grid is None else grid
        if tokens.ndim != 2 or tokens.shape[1] != rows * columns:
            raise ValueError(f"tokens must have shape (B, {rows * columns}); got {tuple(tokens.shape)}")
        outside = ((tokens < 0) | (tokens >= self.vocab_size)).nonzero()
        if len(outside):
            row, column = outside[0].tolist()
            raise ValueError(f"tokens[{row}, {column}] = {int(tokens[row, column])} is outside 0…{self.vocab_size - 1}")
        codes: Tensor = self.quantize["embedding"](tokens)
        if self.unit:
            codes = functional.normalize(codes, dim=-1, eps=1e-12)
        return codes.transpose(1, 2).reshape(len(tokens), -1, rows, columns)

    def forward(self, codes: Tensor) -> Tensor:
        """Pixels about [−1, 1] of code vectors, shape (B, 3, H, W)."""
        out: Tensor = self.decoder(self.post_quant_conv(codes))
        return out

    @torch.no_grad()
    def decode(self, tokens: Tensor) -> Tensor:
        """Pixels in [0, 1], float32, shape (B, 3, H, W), of tokens (B, T).

        Raises
        ------
        ValueError
            The shape is wrong or a token lies outside the codebook; names index and value.
        """
        pixels: Tensor = self(self.codes(tokens))
        return ((pixels.float() + 1.0) / 2.0).clamp(0.0, 1.0)

    def tables(self) -> Sequence[Tensor]:
        """Every tensor that decoding uses, the codebook first."""
        return list(self.state_dict().values())
