"""Nodes of a draft tree behind cached inputs, and the passes that read all of them at once.

A *forest* of n nodes hangs behind the cached inputs i_0, …, i_{l−1} of a row. Node v has a parent among the nodes
before it, or −1 where it follows the cached inputs themselves; its depth d_v counts its ancestors, its input index is
l + d_v, and it attends to the cached inputs, its ancestors and itself. So the logits at v are those that a pass over
the cached inputs and v's path alone would give (tree attention; SpecInfer, arXiv:2305.09781).

Keys and values of nodes go to scratch slots behind the T slots of the image, which ordinary passes never see: nothing
of a refused node can be left behind, and a forest may reach past the image's end (positions are clamped there; such
logits have no meaning). `keep_path` copies the accepted path to where an ordinary pass would have put it.

>>> import torch
>>> forest = Forest.of(torch.tensor([-1, 0, 0, 1]))
>>> forest.depths.tolist(), forest.ancestors[0, 3].tolist()
([[0, 1, 1, 2]], [True, True, False, True])
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal, overload

import torch
from torch import Tensor

from validate.models.sequences import GuidedSequences

__all__ = ["Forest", "ForestSequences", "TreeSequences"]


@dataclass(frozen=True)
class Forest:
    """Shape of the nodes; one for all rows (R = 1) or one a row (R = B).

    Attributes
    ----------
    parents, depths : int64 Tensor, shape (R, n)
    ancestors : bool Tensor, shape (R, n, n)
        [r, v, u]: whether u lies on the path to v, v itself included.
    """

    parents: Tensor
    depths: Tensor
    ancestors: Tensor

    @classmethod
    def of(cls, parents: Tensor) -> Forest:
        """Forest of parents, int64 (n,) or (R, n).

        Raises
        ------
        ValueError
            A parent that does not come before its node.
        """
        parents = parents[None] if parents.ndim == 1 else parents
        rows, count = parents.shape
        late = ((parents < -1) | (parents >= torch.arange(count, device=parents.device))).nonzero()
        if len(late):
            row, node = late[0].tolist()
            raise ValueError(f"parents[{row}, {node}] is {int(parents[row, node])}; it must lie in -1…{node - 1}")
        depths = torch.zeros_like(parents)
        ancestors = torch.eye(count, dtype=torch.bool, device=parents.device).repeat(rows, 1, 1)
        row_index = torch.arange(rows, device=parents.device)
        for node in range(count):
            above = parents[:, node]
            inside = above >= 0
            depths[:, node] = torch.where(inside, depths[row_index, above] + 1, 0)
            ancestors[:, node] |= inside[:, None] & ancestors[row_index, above]
        return cls(parents, depths, ancestors)

    @property
    def size(self) -> int:
        """n."""
        return self.parents.shape[1]

    def check_range(self, first: int, count: int) -> None:
        """Refuse nodes first, …, first + count − 1 that are not all there."""
        if first < 0 or first + count > self.size:
            raise ValueError(f"nodes {first}…{first + count - 1} are not all in a forest of {self.size} nodes")

    def repeat(self, times: int) -> Forest:
        """For a batch that holds its rows several times over."""
        if times == 1 or len(self.parents) == 1:
            return self
        return Forest(self.parents.repeat(times, 1), self.depths.repeat(times, 1), self.ancestors.repeat(times, 1, 1))


def node_view(
    forest: Forest, first: int, count: int, lengths: Tensor, slots: int, scratch: int, offset: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Input index and slot, both (B, count), and what is seen, bool (B, count, slots + scratch), of some nodes.

    The cached input t of a row is at slot offset + t, all of which are visible; the node v at slots + v.
    """
    some = slice(first, first + count)
    rows = len(lengths)
    index = lengths[:, None] + forest.depths[:, some]
    place = (slots + torch.arange(first, first + count, device=lengths.device)).expand(rows, -1)
    cached = torch.arange(slots, device=lengths.device) < offset + lengths[:, None]
    behind = torch.zeros((rows, count, scratch), dtype=torch.bool, device=lengths.device)
    behind[:, :, : forest.size] = forest.ancestors[:, some]
    return index, place, torch.cat([cached[:, None].expand(-1, count, -1), behind], dim=-1)


class ForestSequences(GuidedSequences):
    """Sequences that read forests."""

    @abstractmethod
    def read_nodes(self, inputs: Tensor, lengths: Tensor, forest: Forest, first: int) -> tuple[Tensor, Tensor]:
        """Logits and hidden states of nodes first, first + 1, …, all with halves · B rows."""

    @abstractmethod
    def keep_path(self, nodes: Tensor, counts: Tensor, lengths: Tensor) -> None:
        """Make nodes cached inputs: nodes[b, i] that of index lengths[b] + i, for i < counts[b].

        Parameters
        ----------
        nodes : int64 Tensor, shape (B, m)
            A path from the cached inputs downwards; entries from counts[b] on are ignored.
        counts, lengths : int64 Tensor, shape (B,)
        """

    @overload
    def tree_logits(
        self, inputs: Tensor, lengths: Tensor, forest: Forest, first: int = 0, *, hidden: Literal[False] = False
    ) -> Tensor: ...

    @overload
    def tree_logits(
        self, inputs: Tensor, lengths: Tensor, forest: Forest, first: int = 0, *, hidden: Literal[True]
    ) -> tuple[Tensor, Tensor]: ...

    @torch.no_grad()
    def tree_logits(
        self, inputs: Tensor, lengths: Tensor, forest: Forest, first: int = 0, *, hidden: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Guided logits after every node, in one pass; the cached inputs stay as they are.

        Parameters
        ----------
        inputs : int64 Tensor, shape (B, m)
            Of nodes first, …, first + m − 1; START where the input index is 0. Earlier nodes must have been read by
            calls since `lengths` last changed.
        lengths : int64 Tensor, shape (B,)
            l, cached inputs of each row.
        forest : Forest
        first : int

        Returns
        -------
        As `logits`: float32 (B, m, V), and hidden states (halves · B, m, width) on request.

        Notes
        -----
        Oracle: `logits` over each path by itself; they agree to 2e-5 in float32.
        """
        count = inputs.shape[1]
        forest.check_range(first, count)
        both, long = inputs.repeat(self.halves, 1), lengths.repeat(self.halves)
        logits, states = self.read_nodes(both, long, forest.repeat(self.halves), first)
        index = lengths[:, None] + forest.depths[:, first : first + count]
        guided = self.guide(logits.float(), index)
        return (guided, states) if hidden else guided


class TreeSequences(ForestSequences):
    """Forests read by a network of ours; a model family says how it attends and where its caches are."""

    slot_axis: int
    """Axis of the slots in the family's tensors of keys and values, rows being axis 1."""
    offset: int = 0
    """Slot of input 0."""
    scratch: int = 0

    @abstractmethod
    def caches(self) -> tuple[Tensor, Tensor]:
        """Keys and values as ordinary passes use them, without scratch slots."""

    @abstractmethod
    def use(self, keys: Tensor, values: Tensor) -> None:
        """Go on with these keys and values, views into wider ones."""

    @abstractmethod
    def extend_nodes(
        self, inputs: Tensor, index: Tensor, slots: Tensor, visible: Tensor, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Logits and hidden states of inputs at these input indices (clamped to the image), all (halves · B, n).

        Keys and values, scratch included, are written at `slots`; `visible` is bool (halves · B, n, slots).
        """

    def _reserve(self, nodes: int) -> tuple[Tensor, Tensor]:
        """Keys and values with room for at least so many nodes; made once, then kept."""
        if nodes > self.scratch:
            narrow = self.caches()
            self._slots = narrow[0].shape[self.slot_axis]
            shape = list(narrow[0].shape)
            shape[self.slot_axis] += nodes
            # Zeros, not uninitialised memory: a masked NaN would still poison attention (0 · NaN).
            self._wide = (narrow[0].new_zeros(shape), narrow[1].new_zeros(shape))
            self.scratch = nodes
            views = [wide.narrow(self.slot_axis, 0, self._slots) for wide in self._wide]
            for view, old in zip(views, narrow, strict=True):
                view.copy_(old)
            self.use(*views)
        return self._wide

    def read_nodes(self, inputs: Tensor, lengths: Tensor, forest: Forest, first: int) -> tuple[Tensor, Tensor]:
        keys, values = self._reserve(forest.size)
        index, slots, visible = node_view(
            forest, first, inputs.shape[1], lengths, self._slots, self.scratch, self.offset
        )
        return self.extend_nodes(inputs, index, slots, visible, keys, values)

    @torch.no_grad()
    def keep_path(self, nodes: Tensor, counts: Tensor, lengths: Tensor) -> None:
        step = torch.arange(nodes.shape[1], device=nodes.device)
        taken = step < counts[:, None]
        source = self._slots + torch.where(taken, nodes, 0)
        # What is not taken is copied onto itself.
        goal = torch.where(taken, self.offset + lengths[:, None] + step, source)
        source, goal = source.repeat(self.halves, 1), goal.repeat(self.halves, 1)
        row = torch.arange(len(source), device=nodes.device)[:, None]
        for wide in self._wide:
            by_slot = wide.movedim(self.slot_axis, 2)
            by_slot[:, row, goal] = by_slot[:, row, source]

    def gather_wide(self, rows: Tensor) -> None:
        """`gather` of keys and values, scratch included."""
        if not self.scratch:
            keys, values = self.caches()
            self.use(keys[:, rows], values[:, rows])
            return
        self._wide = (self._wide[0][:, rows], self._wide[1][:, rows])
        self.use(*(wide.narrow(self.slot_axis, 0, self._slots) for wide in self._wide))
