"""ImageGPT: pixels as 512 colours, one after another, without any condition.

Source: Chen et al., "Generative Pretraining from Pixels" (ICML 2020); sizes small 512/8/24, medium 1024/8/36, large
1536/16/48 (width, heads, layers). Ids 0, …, V − 1 are colours and V is the start id, which the head cannot produce;
input index t sits at learned position t.

transformers' own forward flattens a mask to two dimensions and cannot take one for each row, so the blocks are called
in turn here. Each of them also applies its triangular mask to the last queries of the keys it is given, which never
hides what a row's own mask shows: query j of n behind slot s reads keys ≤ s + j ≤ limit − n + j.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from validate.models.huggingface.cache import RowCache
from validate.models.huggingface.common import TransformerImageModel
from validate.models.huggingface.pixels import ClusterDecoder
from validate.models.huggingface.prompts import Prompts
from validate.models.huggingface.sequences import RowSequences

__all__ = ["ImageGPTModel"]


class ImageGPTModel(TransformerImageModel):
    """ImageGPT, `transformers.ImageGPTForCausalImageModeling`.

    Parameters
    ----------
    network : transformers.ImageGPTForCausalImageModeling
    clusters : Tensor, shape (V, 3), optional
        Colours in [−1, 1], from the checkpoint's image processor; without them there are no pixels.
    grid : (rows, columns), optional
        The square of the model's positions by default.
    """

    unconditional = True
    sequences = RowSequences
    """No trees: its attention lays a causal mask of its own over the cache, as wide as the image."""

    def __init__(self, network: Any, clusters: Tensor | None = None, grid: tuple[int, int] | None = None) -> None:
        config = network.config
        positions, colours = config.n_positions, config.vocab_size - 1
        side = math.isqrt(positions)
        grid = (side, side) if grid is None else (int(grid[0]), int(grid[1]))
        if grid[0] * grid[1] != positions:
            raise ValueError(f"grid {grid} has {grid[0] * grid[1]} tokens but the model {positions} positions")
        decoder = None
        if clusters is not None:
            if len(clusters) != colours:
                raise ValueError(f"{len(clusters)} clusters were given for a model of {colours} colours")
            decoder = ClusterDecoder(clusters, grid)
        super().__init__(
            network,
            network.transformer,
            vocab_size=colours,
            grid=grid,
            prompt_vocab=config.vocab_size,
            opening=(colours,),
            decoder=decoder,
        )

    def embed_tokens(self, tokens: Tensor) -> Tensor:
        """Input vectors of colours; positions are added by `run`."""
        return self.embed_ids(tokens)

    def head(self, hidden: Tensor) -> Tensor:
        """Logits of the colours."""
        logits: Tensor = self.network.lm_head(hidden)
        return logits

    def run(self, embedded: Tensor, mask: Tensor, positions: Tensor, cache: RowCache) -> Tensor:
        """Last hidden states of new inputs."""
        body: Any = self.backbone
        hidden = embedded + body.wpe(positions)
        for block in body.h:
            hidden = block(hidden, cache, mask)[0]
        last: Tensor = body.ln_f(hidden)
        return last

    def encode_conditions(self, conditions: Any) -> Any:
        """The number of images B, as B equal prompts that hold the start id."""
        if isinstance(conditions, Prompts):
            return conditions.to(self.device)
        if isinstance(conditions, bool) or not isinstance(conditions, int) or conditions < 0:
            raise ValueError(f"an unconditional model takes the number of images; got {conditions!r}")
        return Prompts(torch.full((conditions, 1), self.opening[0], device=self.device))
