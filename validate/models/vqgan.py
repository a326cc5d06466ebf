"""The convolutional decoder of a VQGAN, which LlamaGen's and Chameleon's image tokens share: codes to pictures.

Definitions. A picture's codes on an h × w grid go through a 1×1 convolution (`post_quant_conv`) and then:

    conv_in → mid: residual, attention, residual → levels → norm, swish, conv_out.

A level is residual blocks (each followed by attention where the level attends), then, but for the last level, nearest
doubling and a 3×3 convolution. Residual block: norm, swish, 3×3, norm, swish, 3×3, plus the input (through a 1×1
where channels change). Attention: one head over the cells, scale channels^−½, plus the input. swish(x) = x σ(x), norms
over 32 groups with ε = 1e-6.

Levels are numbered here in the order they run, as in LlamaGen's files: ``decoder.mid.{0, 1, 2}`` and
``decoder.conv_blocks.{i}.{res, attn}.{j}``. The original code, whose layout Chameleon's files have, counts its L levels
from the finest: ``decoder.mid.{block_1, attn_1, block_2}`` and ``decoder.up.{L−1−i}.{block, attn}.{j}``.

Sources: Esser et al., "Taming Transformers for High-Resolution Image Synthesis", arXiv:2012.09841; Sun et al.,
LlamaGen, arXiv:2406.06525.

>>> original_name("decoder.conv_blocks.0.res.1.conv2.weight", levels=5)
'decoder.up.4.block.1.conv2.weight'
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional

__all__ = ["VQGANDecoder", "original_name"]


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
    def __init__(self, inside: int, levels: Sequence[int], blocks: int, attends: Sequence[bool], middle: bool) -> None:
        super().__init__()
        first, last = levels[0], len(levels) - 1
        self.conv_in = nn.Conv2d(inside, first, 3, padding=1)
        attention = _Attention(first) if middle else nn.Identity()
        self.mid = nn.ModuleList([_Residual(first, first), attention, _Residual(first, first)])
        self.conv_blocks = nn.ModuleList(
            _Level(before, after, blocks, attend, doubles=i < last)
            for i, (before, after, attend) in enumerate(zip([first, *levels[:-1]], levels, attends, strict=True))
        )
        self.norm_out, self.conv_out = _norm(levels[-1]), nn.Conv2d(levels[-1], 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv_in(x)
        for block in (*self.mid, *self.conv_blocks):
            x = block(x)
        out: Tensor = self.conv_out(functional.silu(self.norm_out(x)))
        return out


class VQGANDecoder(nn.Module):
    """A codebook and the network that draws its codes.

    Parameters
    ----------
    vocab_size, code_width : int
        Of the codebook.
    inside : int
        Channels behind `post_quant_conv`.
    levels : sequence of int
        Channels of each level, in the order they run.
    blocks : int
        Residual blocks a level.
    attends : sequence of bool
        Which levels attend.
    middle : bool
        Whether there is attention before the levels.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        code_width: int,
        inside: int,
        levels: Sequence[int],
        blocks: int,
        attends: Sequence[bool],
        middle: bool = True,
    ) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.quantize = nn.ModuleDict({"embedding": nn.Embedding(vocab_size, code_width)})
        self.post_quant_conv = nn.Conv2d(code_width, inside, 1)
        self.decoder = _Decoder(inside, levels, blocks, attends, middle)

    @property
    def codebook(self) -> Tensor:
        """Rows as tokens are looked up, shape (V, code width)."""
        rows: Tensor = self.quantize["embedding"].weight  # type: ignore[assignment]
        return rows

    def forward(self, codes: Tensor) -> Tensor:
        """Pictures about [−1, 1], shape (B, 3, H, W), of code vectors (B, code width, rows, columns)."""
        out: Tensor = self.decoder(self.post_quant_conv(codes))
        return out

    def draw(self, tokens: Tensor) -> Tensor:
        """Pictures of tokens (B, rows, columns)."""
        return self(self.codebook[tokens].permute(0, 3, 1, 2))  # type: ignore[no-any-return]


def original_name(name: str, levels: int) -> str:
    """Name that the original code's layout gives a tensor of a `VQGANDecoder` of so many levels."""
    middle = {"0": "block_1", "1": "attn_1", "2": "block_2"}
    name = re.sub(r"^decoder\.mid\.(\d)", lambda found: f"decoder.mid.{middle[found[1]]}", name)
    name = re.sub(r"^decoder\.conv_blocks\.(\d+)", lambda found: f"decoder.up.{levels - 1 - int(found[1])}", name)
    return re.sub(r"^(decoder\.up\.\d+)\.res\.", r"\1.block.", name)
