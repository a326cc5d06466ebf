"""A drafter that reads the target's features: one decoder layer that predicts the next feature.

Definitions. The target's input index t (slot C−1+t of a LlamaGen) has the hidden state h_t that the target's head
reads, and predicts image token x_{t+1}. The drafter's input at index t joins the *next* token to that feature,

    z_t = fc([embed(x_{t+1}); h_t]),   ĥ_{t+1} = layer(z_0, …, z_t)_t,

and ĥ_{t+1} stands for the target's h_{t+1}: the target's head on it is the draft law of x_{t+2}. Condition slots but
the last take token 0. To draft on, the drafter's own ĥ replaces the feature it cannot know yet; nodes of one depth of a
tree share a position. Both halves of classifier-free guidance are drafted and combined as the target's are.

The layer is LlamaGen's block without its first norm: x += wo·attention(x); x += w2(silu(w1 y) ⊙ w3 y), y = norm(x).
It has no final norm and no head. Input j takes row j of the rotary table, which starts with `zero_rows` zero rows, has
one row for each token of the grid and ends with 20 zero rows, where tree nodes behind the image land.

The draft law of a token depends on how far it stands from the last verified feature, hence on its offset in the round.

Source: Li et al., EAGLE, arXiv:2401.15077; for image tokens LANTERN, arXiv:2410.03355, whose published directories
(config.json beside pytorch_model.bin or model.safetensors) `validate.drafters.loading` reads.

>>> import torch
>>> drafter = FeatureDrafter(DrafterConfiguration(vocab_size=5, width=8, hidden=16, heads=2, side=2)).eval()
>>> state = drafter.start(rows=1)
>>> drafter(torch.tensor([[3]]), torch.zeros(1, 1, 8), torch.tensor([0]), state).shape
torch.Size([1, 1, 8])
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from validate.models.llamagen.blocks import Block, rope_table
from validate.models.llamagen.configuration import Configuration

__all__ = ["DrafterConfiguration", "DrafterState", "FeatureDrafter"]

BEHIND = 20
"""Zero rows of the published rotary table behind the image."""


@dataclass(frozen=True)
class DrafterConfiguration:
    """Shape of a feature drafter.

    Attributes
    ----------
    vocab_size, width, hidden, heads, layers : int
        V; width D of the target's features; feed-forward width; attention heads; decoder layers.
    side : int
        Tokens in a row and in a column of the image.
    zero_rows : int
        Zero rows of the rotary table before the image, ≥ 0.
    bias : bool
        Whether fc has one.
    eps, rope_base : float
    """

    vocab_size: int
    width: int
    hidden: int
    heads: int
    side: int
    zero_rows: int = 0
    layers: int = 1
    bias: bool = True
    eps: float = 1e-6
    rope_base: float = 10000.0

    def __post_init__(self) -> None:
        if self.zero_rows < 0:
            raise ValueError(f"zero_rows must be >= 0, got {self.zero_rows}")
        self.block_shape()

    def block_shape(self) -> Configuration:
        """The same shape as a LlamaGen's, whose block this is; checks what the two share."""
        return Configuration(
            vocab_size=self.vocab_size,
            layers=self.layers,
            heads=self.heads,
            width=self.width,
            hidden=self.hidden,
            side=self.side,
            num_classes=1,
            eps=self.eps,
            rope_base=self.rope_base,
        )

    @property
    def rows(self) -> int:
        """Rows of the rotary table, hence positions the drafter knows."""
        return self.zero_rows + self.side**2 + BEHIND


@dataclass
class DrafterState:
    """Keys and values of the drafter's layers, written in place.

    Attributes
    ----------
    keys, values : Tensor, shape (layers, B, heads, positions + scratch, D / heads)
        Scratch slots, behind all positions, hold nodes of a tree that is being drafted.
    """

    keys: Tensor
    values: Tensor

    def gather(self, rows: Tensor) -> None:
        """Go on with these rows only."""
        self.keys, self.values = self.keys[:, rows], self.values[:, rows]


class FeatureDrafter(nn.Module):
    """Next features from the target's features and the tokens behind them.

    Parameters
    ----------
    config : DrafterConfiguration
    """

    rope: Tensor

    def __init__(self, config: DrafterConfiguration) -> None:
        super().__init__()
        shape = config.block_shape()
        self.config = config
        self.tok_embeddings = nn.Embedding(config.vocab_size, config.width)
        self.fc = nn.Linear(2 * config.width, config.width, bias=config.bias)
        self.layers = nn.ModuleList(Block(shape) for _ in range(config.layers))
        first = self.layers[0]
        assert isinstance(first, Block)
        # The published layer 0 reads fc's output as it is.
        first.attention_norm = nn.Identity()  # type: ignore[assignment]
        grid = rope_table(shape)[1:]
        padded = functional.pad(grid, (0, 0, 0, 0, config.zero_rows, BEHIND))
        self.register_buffer("rope", padded, persistent=False)

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        """Fill every parameter from `generator`."""
        for name, value in self.named_parameters():
            if value.ndim == 1:
                value.fill_(0.0 if name.endswith("bias") else 1.0)
            else:
                scale = 0.05 if name.startswith("tok_embeddings") else 0.5 / math.sqrt(value.shape[1])
                value.normal_(0.0, scale, generator=generator)

    def start(self, rows: int, scratch: int = 0) -> DrafterState:
        """Empty state of B sequences with room for `scratch` tree nodes."""
        config, like = self.config, self.fc.weight
        shape = (config.layers, rows, config.heads, config.rows + scratch, config.width // config.heads)
        # Zeros, not uninitialised memory: a masked NaN would still poison attention (0 · NaN).
        return DrafterState(like.new_zeros(shape), like.new_zeros(shape))

    def forward(
        self,
        tokens: Tensor,
        features: Tensor,
        lengths: Tensor,
        state: DrafterState,
        *,
        slots: Tensor | None = None,
        positions: Tensor | None = None,
        visible: Tensor | None = None,
    ) -> Tensor:
        """Hidden states behind new inputs, which are written into the state.

        Parameters
        ----------
        tokens : int64 Tensor, shape (B, n)
            Of the slots one further than the features'.
        features : Tensor, shape (B, n, D)
        lengths : int64 Tensor, shape (B,)
            Inputs of each row that are cached and valid.
        slots, positions, visible : Tensor, optional
            For nodes of a tree: where they are cached and their rows of the rotary table, both int64 (B, n), and what
            they see, bool (B, n, positions + scratch). By default the inputs follow those that are cached.

        Returns
        -------
        Tensor, shape (B, n, D)
        """
        total = state.keys.shape[3]
        if slots is None:
            slots = lengths[:, None] + torch.arange(tokens.shape[1], device=tokens.device)
        positions = slots if positions is None else positions
        if visible is None:
            visible = torch.arange(total, device=tokens.device) <= slots[..., None]
        rope = self.rope[positions]
        x: Tensor = self.fc(torch.cat([self.tok_embeddings(tokens), features], dim=-1))
        for index, block in enumerate(self.layers):
            x = block(x, rope, visible[:, None], (state.keys[index], state.values[index], slots))
        return x

    def teach(self, tokens: Tensor, features: Tensor) -> Tensor:
        """`forward` from an empty state and without one, for training: tokens (B, n), features (B, n, D)."""
        x: Tensor = self.fc(torch.cat([self.tok_embeddings(tokens), features], dim=-1))
        rope = self.rope[: tokens.shape[1]][None]
        for block in self.layers:
            x = block(x, rope, None, None)
        return x
