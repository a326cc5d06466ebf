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

__all__ = ["RowCache", "attention_mask"]


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
    """

    slots: Tensor
    limit: int

    def __init__(self, capacity: int) -> None:
        super().__init__(layers=[])
        self.capacity = capacity
        self._buffers: dict[int, tuple[Tensor, Tensor]] = {}

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the new keys and values, shape (rows, heads, m, head width), and return what attention may read."""
        if layer_idx not in self._buffers:
            # Zeros, not uninitialised memory: a masked NaN would still poison attention (0 · NaN).
            new = [x.new_zeros(*x.shape[:2], self.capacity, x.shape[3]) for x in (key_states, value_states)]
            self._buffers[layer_idx] = new[0], new[1]
        for buffer, states in zip(self._buffers[layer_idx], (key_states, value_states), strict=True):
            buffer.scatter_(2, self.slots[:, None, :, None].expand(states.shape), states)
        keys, values = self._buffers[layer_idx]
        return keys[:, :, : self.limit], values[:, :, : self.limit]

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
    visible = ((keys <= query) & (keys >= first[:, None, None])) | (keys == query)
    mask = torch.zeros(visible.shape, dtype=dtype, device=slots.device)
    return mask.masked_fill_(~visible, torch.finfo(dtype).min)[:, None]
