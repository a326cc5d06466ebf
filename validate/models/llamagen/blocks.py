"""The block of LlamaGen's transformer and its rotary embedding, which feature drafters share.

Block on x (pre-norm, no biases): x += wo·attention(norm(x)); x += w2(silu(w1 y) ⊙ w3 y) with y = norm(x), where norm(x)
= weight ⊙ x/√(mean(x²)+ε), the quotient in float32.

Two-axis rotary embedding of a head of width d: θ_j = base^(−4j/d), j < d/4. Components (2p, 2p+1) turn by row·θ_p for
p < d/4 and by column·θ_{p−d/4} after. Condition slots are multiplied by *zero*, not turned: their queries attend
uniformly, their keys score 0 with every query, and captions carry no order.

Source: Sun et al., LlamaGen, arXiv:2406.06525; names of the tensors as in its public files.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from validate.models.llamagen.configuration import Configuration

__all__ = ["Block", "RootMeanSquare", "rope_table"]


def rope_table(config: Configuration) -> Tensor:
    """Cosine and sine of every slot, float32, shape (C + T, d/2, 2); zero in the condition's slots."""
    pairs = config.width // config.heads // 2
    theta = 1.0 / config.rope_base ** (torch.arange(0, pairs, 2, device="cpu", dtype=torch.float32) / pairs)
    line = torch.arange(config.side, device="cpu", dtype=torch.float32)[:, None] * theta
    rows = line[:, None].expand(-1, config.side, -1)
    angle = torch.cat([rows, rows.transpose(0, 1)], dim=-1).flatten(0, 1)
    table = torch.stack([angle.cos(), angle.sin()], dim=-1)
    return torch.cat([table.new_zeros(config.prefix, pairs, 2), table])


def turn(x: Tensor, rope: Tensor) -> Tensor:
    """Rotate pairs of neighbouring components: x (B, n, heads, d), rope (B or 1, n, d/2, 2)."""
    wide = x.float()
    a, b = wide[..., 0::2], wide[..., 1::2]
    cos, sin = rope[:, :, None].unbind(-1)
    return torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2).to(x.dtype)


class RootMeanSquare(nn.Module):
    """Division by the root mean square."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)
        return scaled.to(x.dtype) * self.weight


class Attention(nn.Module):
    def __init__(self, config: Configuration) -> None:
        super().__init__()
        self.heads = config.heads
        self.wqkv = nn.Linear(config.width, 3 * config.width, bias=False)
        self.wo = nn.Linear(config.width, config.width, bias=False)

    def project(self, x: Tensor, rope: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value, each (B, n, heads, d)."""
        query, key, value = self.wqkv(x).unflatten(-1, (3, self.heads, -1)).unbind(2)
        return turn(query, rope), turn(key, rope), value

    def mix(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Attend; keys and values (B, heads, slots, d), causal where there is no mask."""
        mixed = functional.scaled_dot_product_attention(
            query.transpose(1, 2), keys, values, attn_mask=mask, is_causal=mask is None
        )
        out: Tensor = self.wo(mixed.transpose(1, 2).flatten(2))
        return out


class FeedForward(nn.Module):
    def __init__(self, config: Configuration) -> None:
        super().__init__()
        self.w1 = nn.Linear(config.width, config.hidden, bias=False)
        self.w3 = nn.Linear(config.width, config.hidden, bias=False)
        self.w2 = nn.Linear(config.hidden, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.w2(functional.silu(self.w1(x)) * self.w3(x))
        return out


class Block(nn.Module):
    def __init__(self, config: Configuration) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.feed_forward = FeedForward(config)
        self.attention_norm = RootMeanSquare(config.width, config.eps)
        self.ffn_norm = RootMeanSquare(config.width, config.eps)

    def forward(
        self, x: Tensor, rope: Tensor, mask: Tensor | None, cache: tuple[Tensor, Tensor, Tensor] | None
    ) -> Tensor:
        """With a cache (keys, values, slots (B, n)) new keys and values are written into it first."""
        query, key, value = self.attention.project(self.attention_norm(x), rope)
        if cache is None:
            keys, values = key.transpose(1, 2), value.transpose(1, 2)
        else:
            keys, values, slots = cache
            row = torch.arange(len(x), device=x.device)[:, None]
            keys[row, :, slots] = key
            values[row, :, slots] = value
        x = x + self.attention.mix(query, keys, values, mask)
        out: Tensor = x + self.feed_forward(self.ffn_norm(x))
        return out
