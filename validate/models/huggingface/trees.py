"""Draft trees behind the streams of a transformers network: all nodes read in one pass.

Definitions.  As in `sequences`, and of forests as in `validate.models.forest`. Node v of depth d_v behind l cached
inputs has input index t = l + d_v and stands at the position that x_t's slot has; where x_t ends a row of the image,
the law of x_{t+1} is read behind an end-of-row id that follows the node and belongs to it. Keys and values of nodes go
to scratch slots behind the K slots of the stream, node v at K + v and its end of row at K + N + v, N being the most
nodes so far: a stream can only be as long as its K slots, so ordinary passes never see them. `keep_path` copies what
was accepted, ends of rows included, to where an ordinary pass would have put it.

Oracle: `logits` over each path by itself (tests/validate/huggingface).
"""

from __future__ import annotations

import torch
from torch import Tensor

from validate.models.forest import Forest, ForestSequences
from validate.models.huggingface.cache import added_to_scores
from validate.models.huggingface.sequences import RowSequences

__all__ = ["TreeRowSequences"]


class TreeRowSequences(RowSequences, ForestSequences):
    """`RowSequences` that read forests."""

    @property
    def _ends_rows(self) -> bool:
        return self.model.end_of_row is not None

    def _slot(self, index: Tensor) -> Tensor:
        """Slot of an input index in the stream."""
        return self._width - 1 + index + (index - 1).clamp(min=0) // self._row_length

    def _ending(self, index: Tensor) -> Tensor:
        """Whether an end-of-row id follows the input."""
        return (index > 0) & (index % self._row_length == 0)

    def read_nodes(self, inputs: Tensor, lengths: Tensor, forest: Forest, first: int) -> tuple[Tensor, Tensor]:
        count = inputs.shape[1]
        self._cache.reserve(forest.size, 2 if self._ends_rows else 1)
        depths = forest.depths.expand(len(inputs), -1)
        # Nodes behind the image's end stand at its end; their logits have no meaning.
        index = (lengths[:, None] + depths).clamp(max=self.model.num_tokens - 1)
        some = slice(first, first + count)
        embedded = self.model.embed_tokens(inputs.clamp(min=0))
        embedded = torch.where((index[:, some] == 0)[:, :, None], self.model.embed_ids(self._start), embedded)
        slots = (self._cache.capacity + first + torch.arange(count, device=inputs.device)).expand(len(inputs), -1)
        positions = self._slot(index[:, some])
        above = forest.ancestors[:, some].expand(len(inputs), -1, -1)
        visible = self._visible(lengths, above, above & self._ending(index)[:, None])
        if self.model.end_of_row is not None:
            end = self.model.embed_ids(torch.full((1, 1), self.model.end_of_row, device=inputs.device))
            embedded = torch.cat([embedded, end.expand_as(embedded)], dim=1)
            slots = torch.cat([slots, slots + self._cache.nodes], dim=1)
            positions = torch.cat([positions, positions + 1], dim=1)
            own = torch.arange(count, device=inputs.device)
            after = visible.clone()
            after[:, own, slots[0, count:]] = True
            # A node does not see the end of the row that it ends itself.
            visible[:, own, slots[0, count:]] = False
            visible = torch.cat([visible, after], dim=1)
        self._cache.slots, self._cache.limit = slots, self._cache.capacity + self._cache.scratch
        positions = (positions - self._first[:, None]).clamp(min=0)
        states = self.model.run(embedded, added_to_scores(visible, embedded.dtype), positions, self._cache)
        if self._ends_rows:
            states = torch.where(self._ending(index[:, some])[:, :, None], states[:, count:], states[:, :count])
        return self.model.head(states), states

    def _visible(self, lengths: Tensor, above: Tensor, ends: Tensor) -> Tensor:
        """What nodes see, bool (halves · B, count, K + scratch): cached inputs, nodes above, their ends of rows."""
        cache = self._cache
        # The last cached input's law was read behind its end of row, so that one is cached with it.
        cached = self._width - 1 + lengths + (lengths - 1).clamp(min=0) // self._row_length
        keys = torch.arange(cache.capacity, device=lengths.device)
        stream = (keys < cached[:, None]) & (keys >= self._first[:, None])
        out = torch.zeros((*above.shape[:2], cache.capacity + cache.scratch), dtype=torch.bool, device=lengths.device)
        out[:, :, : cache.capacity] = stream[:, None]
        nodes = above.shape[2]
        out[:, :, cache.capacity : cache.capacity + nodes] = above
        if self._ends_rows:
            first = cache.capacity + cache.nodes
            out[:, :, first : first + nodes] = ends
        return out

    @torch.no_grad()
    def keep_path(self, nodes: Tensor, counts: Tensor, lengths: Tensor) -> None:
        cache = self._cache
        step = torch.arange(nodes.shape[1], device=nodes.device)
        taken = step < counts[:, None]
        index = lengths[:, None] + step
        source = cache.capacity + torch.where(taken, nodes, 0)
        # What is not taken is copied onto itself.
        goal = torch.where(taken, self._slot(index), source)
        if self._ends_rows:
            taken = taken & self._ending(index)
            end = source + cache.nodes
            goal = torch.cat([goal, torch.where(taken, self._slot(index) + 1, end)], dim=1)
            source = torch.cat([source, end], dim=1)
        cache.copy(source.repeat(self.halves, 1), goal.repeat(self.halves, 1))
