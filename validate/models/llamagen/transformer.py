"""LlamaGen's transformer over image tokens: class- or text-conditional, with a cache whose rows may differ in length.

Definitions. Slots 0, …, C−1 hold the condition (C = 1 row of a class table, or C = 120 rows of a caption), image token
x_{t+1} of a W × W image sits at slot C+t. The output at slot C−1+t predicts x_{t+1}; the last token is never fed, so
there are C + T − 1 slots. Input index t of `validate.models.interface` is slot C−1+t.

Logits = output(norm(x)), the output matrix untied; norm, blocks and rotary embedding are in
`validate.models.llamagen.blocks`.

Attention is causal. A caption's unused slots come first and are hidden from every slot but themselves; the null half
of the guidance attends under the caption's mask.

Source: Sun et al., LlamaGen, arXiv:2406.06525; names of the tensors as in its public files. `forward`, without a
cache, is the oracle of `extend`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from validate.models.conditions import class_numbers
from validate.models.forest import TreeSequences
from validate.models.llamagen.blocks import Block, RootMeanSquare, rope_table
from validate.models.llamagen.captions import Captions
from validate.models.llamagen.configuration import Configuration

__all__ = ["LlamaGen", "LlamaGenSequences"]


class _ClassCondition(nn.Module):
    def __init__(self, config: Configuration) -> None:
        super().__init__()
        self.embedding_table = nn.Embedding(config.num_classes + config.has_null, config.width)


class _Projection(nn.Module):
    """Caption features to model width."""

    def __init__(self, config: Configuration) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.caption_width, config.width, bias=False)
        self.fc2 = nn.Linear(config.width, config.width, bias=False)

    def forward(self, features: Tensor) -> Tensor:
        out: Tensor = self.fc2(functional.gelu(self.fc1(features), approximate="tanh"))
        return out


class _TextCondition(nn.Module):
    uncond_embedding: Tensor

    def __init__(self, config: Configuration) -> None:
        super().__init__()
        self.cap_proj = _Projection(config)
        self.register_buffer("uncond_embedding", torch.zeros(config.prefix, config.caption_width))


class LlamaGen(nn.Module):
    """A LlamaGen transformer; offers `validate.models.interface.ImageModel`.

    Parameters
    ----------
    config : Configuration
    guidance_interval : int, optional
        I ≥ 0: only image tokens 0, …, I+1 are guided, later ones follow the conditional law (the public class sampler's
        option). All by default.
    """

    unconditional = False
    rope: Tensor

    def __init__(self, config: Configuration, guidance_interval: int | None = None) -> None:
        super().__init__()
        if guidance_interval is not None and guidance_interval < 0:
            raise ValueError(f"guidance_interval must be >= 0 or None, got {guidance_interval}")
        self.config, self.guidance_interval = config, guidance_interval
        self.vocab_size, self.num_tokens, self.grid = config.vocab_size, config.num_tokens, (config.side, config.side)
        self.num_classes = config.num_classes or None
        self.tok_embeddings = nn.Embedding(config.vocab_size, config.width)
        self.cls_embedding = _TextCondition(config) if config.caption_width else _ClassCondition(config)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = RootMeanSquare(config.width, config.eps)
        self.output = nn.Linear(config.width, config.vocab_size, bias=False)
        self.register_buffer("rope", rope_table(config), persistent=False)

    @property
    def device(self) -> torch.device:
        """Where the values are."""
        return self.output.weight.device

    @property
    def slots(self) -> int:
        """C + T − 1."""
        return self.config.prefix + self.num_tokens - 1

    def row_bytes(self) -> int:
        """Cache of one unguided image."""
        return 2 * self.config.layers * self.slots * self.config.width * self.output.weight.element_size()

    def encode_conditions(self, conditions: int | Sequence[int] | np.ndarray | Captions | Tensor) -> Any:
        """Class numbers, or captions, checked and on the model's device."""
        if self.num_classes is not None:
            if isinstance(conditions, Captions):
                raise ValueError("this model is conditioned on classes; give class numbers, not captions")
            return torch.from_numpy(class_numbers(conditions, self.num_classes)).to(self.device)
        if not isinstance(conditions, Captions):
            raise ValueError("this model is conditioned on captions: give Captions (features of a text encoder)")
        wanted = (self.config.prefix, self.config.caption_width)
        if conditions.features.shape[1:] != wanted:
            raise ValueError(
                f"captions have {tuple(conditions.features.shape[1:])} slots and features, the model takes {wanted}"
            )
        return conditions.to(self.device)

    def prefix(self, conditions: Any, null: bool = False) -> Tensor:
        """Embeddings of the condition's slots, shape (B, C, D); of the null condition if `null`."""
        embedding = self.cls_embedding
        if isinstance(embedding, _TextCondition):
            features = conditions.features.to(embedding.uncond_embedding.dtype)
            if null:
                features = embedding.uncond_embedding.expand(len(features), -1, -1)
            projected: Tensor = embedding.cap_proj(features)
            return projected
        assert isinstance(embedding, _ClassCondition)
        classes = torch.full_like(conditions, self.config.num_classes) if null else conditions
        rows: Tensor = embedding.embedding_table(classes)[:, None]
        return rows

    def forward(self, prefix: Tensor, tokens: Tensor, used: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Teacher forcing without a cache.

        Parameters
        ----------
        prefix : Tensor, shape (B, C, D)
        tokens : int64 Tensor, shape (B, n), n < T
        used : bool Tensor, shape (B, C), optional
            Condition slots in use; all by default.

        Returns
        -------
        logits : float32 Tensor, shape (B, n+1, V)
            [b, t] predicts image token t.
        hidden : Tensor, shape (B, C+n, D)
            What the output matrix reads, of every slot.
        """
        x = torch.cat([prefix, self.tok_embeddings(tokens)], dim=1)
        slots = torch.arange(x.shape[1], device=x.device)
        rope = self.rope[slots][None]
        mask = None if used is None else self._visible(slots[None].expand(len(x), -1), used, x.shape[1])
        for block in self.layers:
            x = block(x, rope, mask, None)
        hidden: Tensor = self.norm(x)
        return self.output(hidden[:, self.config.prefix - 1 :]).float(), hidden

    def _visible(self, slots: Tensor, used: Tensor | None, total: int) -> Tensor:
        """Mask (B, 1, n, total) of queries at `slots` (B, n)."""
        every = torch.arange(total, device=slots.device)
        visible = every <= slots[..., None]
        if used is not None:
            shown = functional.pad(used, (0, total - used.shape[1]), value=True)
            visible = visible & shown[:, None] | (every == slots[..., None])
        return visible[:, None]

    def extend(self, x: Tensor, slots: Tensor, keys: Tensor, values: Tensor, used: Tensor | None) -> Tensor:
        """Hidden states behind new embeddings x (B, n, D) at `slots` (B, n); writes the cache in place.

        Keys and values have shape (layers, B, heads, C+T−1, d).
        """
        return self.attend(x, slots, slots, self._visible(slots, used, self.slots), keys, values)

    def attend(self, x: Tensor, positions: Tensor, slots: Tensor, mask: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """`extend` with the rotary table's rows (B, n) and the mask (B, 1, n, all slots) given."""
        rope = self.rope[positions]
        for index, block in enumerate(self.layers):
            x = block(x, rope, mask, (keys[index], values[index], slots))
        hidden: Tensor = self.norm(x)
        return hidden

    def compiled(self, backend: str = "inductor") -> LlamaGen:
        """The same weights with passes behind a cache fused by `torch.compile`, one compilation for each block size.

        Where the network is: compile after moving it. Passes have the same shapes at every context, so that nothing is
        compiled again along an image; the first pass of each size takes a minute or so.
        """
        twin = copy.copy(self)
        twin.__dict__["attend"] = torch.compile(self.attend, backend=backend, dynamic=False)
        return twin

    @torch.no_grad()
    def start(self, conditions: Any, guidance: float = 1.0) -> LlamaGenSequences:
        """Begin one image for each class number or caption.

        Guidance is null + s (conditional − null) at every s. The public samplers treat every s ≤ 1 as 1.
        """
        if not math.isfinite(guidance):
            raise ValueError(f"guidance must be finite, got {guidance}")
        if guidance != 1.0 and not self.config.has_null:
            raise ValueError(f"this model was trained without a null class, so guidance must be 1; got {guidance}")
        return LlamaGenSequences(self, conditions, guidance)


class LlamaGenSequences(TreeSequences):
    """Images being written by a `LlamaGen`; the condition's slots but the last are cached at once."""

    slot_axis = 3

    def __init__(self, model: LlamaGen, conditions: Any, guidance: float) -> None:
        interval = model.guidance_interval
        super().__init__(len(conditions), guidance, None if interval is None else interval + 2)
        self.model, self.offset = model, model.config.prefix - 1
        prefix = model.prefix(conditions)
        if self.halves == 2:
            prefix = torch.cat([prefix, model.prefix(conditions, null=True)])
        self.used: Tensor | None = None
        if isinstance(conditions, Captions):
            self.used = conditions.used.repeat(self.halves, 1)
        config = model.config
        shape = (config.layers, len(prefix), config.heads, model.slots, config.width // config.heads)
        # Zeros, not uninitialised memory: a masked NaN would still poison attention (0 · NaN).
        self.keys, self.values = prefix.new_zeros(shape), prefix.new_zeros(shape)
        if config.prefix > 1:
            slots = torch.arange(config.prefix - 1, device=prefix.device).expand(len(prefix), -1)
            model.extend(prefix[:, :-1], slots, self.keys, self.values, self.used)
        self.last = prefix[:, -1]

    def embed(self, inputs: Tensor) -> Tensor:
        """Embeddings (halves · B, n, D) of inputs."""
        image = self.model.tok_embeddings(inputs.clamp(min=0))
        return torch.where((inputs < 0)[..., None], self.last[:, None], image)

    @torch.no_grad()
    def extend(self, inputs: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        model, x = self.model, self.embed(inputs)
        first = lengths + model.config.prefix - 1
        slots = first[:, None] + torch.arange(inputs.shape[1], device=inputs.device)
        hidden = model.extend(x, slots, self.keys, self.values, self.used)
        return model.output(hidden), hidden

    def extend_nodes(
        self, inputs: Tensor, index: Tensor, slots: Tensor, visible: Tensor, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor]:
        if self.used is not None:
            shown = functional.pad(self.used, (0, visible.shape[-1] - self.used.shape[1]), value=True)
            visible = visible & shown[:, None]
        positions = self.offset + index.clamp(max=self.model.num_tokens - 1)
        hidden = self.model.attend(self.embed(inputs), positions, slots, visible[:, None], keys, values)
        return self.model.output(hidden), hidden

    def caches(self) -> tuple[Tensor, Tensor]:
        return self.keys, self.values

    def use(self, keys: Tensor, values: Tensor) -> None:
        self.keys, self.values = keys, values

    def gather(self, rows: Tensor) -> None:
        self.last = self.last[rows]
        self.gather_wide(rows)
        if self.used is not None:
            self.used = self.used[rows]
