"""Images being written by a `TokenTransformer`: its cache, and both halves of its guidance in one batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from validate.models.forest import TreeSequences

if TYPE_CHECKING:
    from validate.models.transformer import TokenTransformer

__all__ = ["KVCache", "TokenSequences"]


@dataclass(frozen=True)
class KVCache:
    """Keys and values of every layer for all T positions, written in place by `TokenTransformer.extend`.

    Attributes
    ----------
    keys, values : Tensor, shape (layers, rows, T, heads, head width)
    """

    keys: Tensor
    values: Tensor

    @property
    def rows(self) -> int:
        """Number of sequences the cache holds."""
        return self.keys.shape[1]

    def gather(self, rows: Tensor) -> KVCache:
        """Copy of the cache holding the given rows (repeats allowed), for branching or dropping sequences."""
        return KVCache(self.keys[:, rows], self.values[:, rows])


class TokenSequences(TreeSequences):
    """Images being written by a `TokenTransformer`; a null row starts with the null class."""

    slot_axis = 2

    def __init__(self, model: TokenTransformer, class_ids: Tensor, guidance: float) -> None:
        super().__init__(len(class_ids), guidance)
        self.model = model
        null = torch.full_like(class_ids, model.null_id)
        self.first = class_ids if self.halves == 1 else torch.cat([class_ids, null])
        self.cache = model.new_cache(len(self.first))

    def ids(self, inputs: Tensor) -> Tensor:
        """The network's own ids."""
        return torch.where(inputs < 0, self.first[:, None], inputs)

    def extend(self, inputs: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        return self.model.extend(self.ids(inputs), lengths, self.cache, check=False)

    def extend_nodes(
        self, inputs: Tensor, index: Tensor, slots: Tensor, visible: Tensor, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor]:
        return self.model.extend_nodes(self.ids(inputs), index, slots, visible, keys, values)

    def caches(self) -> tuple[Tensor, Tensor]:
        return self.cache.keys, self.cache.values

    def use(self, keys: Tensor, values: Tensor) -> None:
        self.cache = KVCache(keys, values)

    def gather(self, rows: Tensor) -> None:
        self.first = self.first[rows]
        self.gather_wide(rows)
