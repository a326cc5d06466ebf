"""Keys and values whose rows may differ in length, for models that ask a transformers cache to hold them.

Definitions.  A row of a batch is a stream of slots 0, …, K−1, allocated once. A call places the new inputs of row b at
its own slots s_b, s_b + 1, …, and every layer sees the whole buffer: which slots a query may read is said by the mask
alone. Going back is writing the same slots again; nothing is moved or cut. The caches of transformers append at one
common length instead, so a batch whose rows accepted different numbers of drafts cannot use them.

>>> import torch
>>> from validate.models.huggingface.cache import RowCache
>>> cache = RowCache(capacity=4)
>>> cache.slots, cache.limit = torch.tensor([[0], [2]]), 4
>>> keys, _ = cache.update(torch.ones(2, 1, 1, 1), torch.ones(2, 1, 1, 1), layer_idx=0)
>>> keys.flatten(1).tolist()
[[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]]
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

__all__ = ["RowCache", "added_to_scores", "attention_mask"]


class RowCache(Cache):
    """One buffer of keys and one of values per layer, shape (rows, heads, K, head width).

    Parameters
    ----------
    capacity : int
        K.

    Attributes
    ----------
    slots : int64 Tensor, shape (rows, m)
        Where the next inputs go; set before each forward pass.
    limit : int
        Slots 0, …, limit − 1 are handed to attention; no query of the pass lies beyond.
    nodes, scratch : int
        Room behind the K slots, for the nodes of draft trees: see `reserve`.
    """

    slots: Tensor
    limit: int

    def __init__(self, capacity: int) -> None:
        super().__init__(layers=[])
        self.capacity = capacity
        self.nodes = self.scratch = 0
        self._buffers: dict[int, tuple[Tensor, Tensor]] = {}

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the new keys and values, shape (rows, heads, m, head width), and return what attention may read."""
        if layer_idx not in self._buffers:
            # Zeros, not uninitialised memory: a masked NaN would still poison attention (0 · NaN).
            new = [
                x.new_zeros(*x.shape[:2], self.capacity + self.scratch, x.shape[3]) for x in (key_states, value_states)
            ]
            self._buffers[layer_idx] = new[0], new[1]
        for buffer, states in zip(self._buffers[layer_idx], (key_states, value_states), strict=True):
            buffer.scatter_(2, self.slots[:, None, :, None].expand(states.shape), states)
        keys, values = self._buffers[layer_idx]
        return keys[:, :, : self.limit], values[:, :, : self.limit]

    def reserve(self, nodes: int, slots_a_node: int) -> None:
        """Room for at least so many nodes behind the K slots; what nodes left there before is lost if it grows."""
        if nodes <= self.nodes:
            return
        self.nodes, self.scratch = nodes, nodes * slots_a_node
        for layer, buffers in self._buffers.items():
            wide = [x.new_zeros(*x.shape[:2], self.capacity + self.scratch, x.shape[3]) for x in buffers]
            for new, old in zip(wide, buffers, strict=True):
                new[:, :, : self.capacity] = old[:, :, : self.capacity]
            self._buffers[layer] = wide[0], wide[1]

    def copy(self, source: Tensor, goal: Tensor) -> None:
        """Copy each row's slots `source` to `goal`, both int64 (rows, m)."""
        row = torch.arange(len(source), device=source.device)[:, None]
        for buffers in self._buffers.values():
            for buffer in buffers:
                by_slot = buffer.transpose(1, 2)
                by_slot[row, goal] = by_slot[row, source]

    def select(self, rows: Tensor) -> None:
        """Keep these rows (int64 indices) only."""
        self._buffers = {layer: (keys[rows], values[rows]) for layer, (keys, values) in self._buffers.items()}


def attention_mask(slots: Tensor, first: Tensor, limit: int, dtype: torch.dtype) -> Tensor:
    """What is added to the scores: 0 where slot ``first[b]`` ≤ key ≤ query, the least finite number elsewhere.

    Parameters
    ----------
    slots : int64 Tensor, shape (rows, m)
        Of the queries.
    first : int64 Tensor, shape (rows,)
        First slot that is not padding. A padding slot sees itself alone, so that no softmax is over nothing.
    limit : int
        Number of keys.
    dtype : torch.dtype
        Of the network.

    Returns
    -------
    Tensor, shape (rows, 1, m, limit)
    """
    keys = torch.arange(limit, device=slots.device)
    query = slots[:, :, None]
    return added_to_scores(((keys <= query) & (keys >= first[:, None, None])) | (keys == query), dtype)


def added_to_scores(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where a query sees a key, the least finite number elsewhere: bool (rows, m, keys) → (rows, 1, m, keys)."""
    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return mask.masked_fill_(~visible, torch.finfo(dtype).min)[:, None]
