"""Which candidates a draft tree has: static trees, LANTERN's 25 nodes among them, and trees chosen anew each round.

>>> tree = tree_of_paths(LANTERN_TREE)
>>> shape = TreeShape(tree)
>>> shape.nodes - 1, shape.depth, len(shape.expanded)
(25, 5, 11)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from theory.trees import Tree, tree_levels

LANTERN_TREE: tuple[tuple[int, ...], ...] = (
    *((i,) for i in range(4)),
    *((i, j) for i, k in enumerate((3, 2, 2, 1)) for j in range(k)),
    *((0, i, j) for i, k in enumerate((3, 2, 2)) for j in range(k)),
    (1, 0, 0),
    *((0, 0, 0, i) for i in range(3)),
    *((0, 0, 0, 0, i) for i in range(2)),
)
"""The 25 candidates of LANTERN's public code, as paths of sibling numbers."""


def tree_of_paths(paths: Sequence[Sequence[int]]) -> Tree:
    """Nested lists of a tree given by the paths of its nodes.

    Raises
    ------
    ValueError
        A path whose parent or elder sibling is missing.

    Examples
    --------
    >>> tree_of_paths([[0], [1], [0, 0]])
    [[[]], []]
    """
    known = {tuple(path) for path in paths}

    def children(path: tuple[int, ...]) -> list[Any]:
        count = sum(other[:-1] == path for other in known if other)
        for j in range(count):
            if (*path, j) not in known:
                raise ValueError(f"the tree lacks the path {[*path, j]} although it has later siblings")
        return [children((*path, j)) for j in range(count)]

    for path in known:
        if not path or (len(path) > 1 and path[:-1] not in known):
            raise ValueError(f"the tree lacks the parent of the path {list(path)}")
    return children(())


class TreeShape:
    """A static tree, its nodes numbered level by level from the root, 0.

    Attributes
    ----------
    nodes, depth : int
        Root included; levels below the root.
    parents : int64 array, shape (nodes,)
    children : list of lists
        Numbers of every node's children in draft order.
    levels : list of (first, end)
        Node numbers of each depth.
    """

    def __init__(self, tree: Tree) -> None:
        levels = tree_levels(tree)
        self.depth = len(levels) - 1
        if self.depth == 0:
            raise ValueError("the tree has no candidates; give the root at least one child, for instance [[]]")
        ends = np.cumsum([len(level) for level in levels]).tolist()
        firsts = [0, *ends[:-1]]
        self.levels = list(zip(firsts, ends, strict=True))
        self.nodes = ends[-1]
        above = [0, *firsts[:-1]]
        self.parents = np.asarray(
            [-1] + [above[d] + node.parent for d, level in enumerate(levels) if d for node in level], dtype=np.int64
        )
        self.children = [np.flatnonzero(self.parents == node).tolist() for node in range(self.nodes)]

    @property
    def expanded(self) -> list[int]:
        """Nodes with children."""
        return [node for node, below in enumerate(self.children) if below]


def children_of(parents: Tensor) -> Tensor:
    """Children of every node in order, −1 behind the last: parents (R, n) → int64 (R, n, most children)."""
    rows, count = parents.shape
    node = torch.arange(count, device=parents.device)
    # How many elder siblings a node has.
    place = ((parents[:, :, None] == parents[:, None, :]) & (node < node[:, None])).sum(dim=-1)
    table = parents.new_full((rows, count, int(place.max()) + 1), -1)
    row, child = torch.nonzero(parents >= 0, as_tuple=True)
    table[row, parents[row, child], place[row, child]] = child
    return table


@dataclass(frozen=True)
class Dynamic:
    """A tree that the proposer chooses anew each round, by EAGLE-2's scores; see `validate.drafters.trees.best_tree`.

    Attributes
    ----------
    total, steps, top_k : int
        Candidates; expansions, so that the tree is at most steps + 1 deep; candidates expanded at once.
    """

    total: int
    steps: int
    top_k: int

    def __post_init__(self) -> None:
        grown = self.top_k + self.steps * self.top_k**2
        if self.top_k < 1 or self.steps < 1 or not 1 <= self.total <= grown:
            raise ValueError(
                f"a dynamic tree needs top_k >= 1, steps >= 1 and total in 1…top_k + steps·top_k²; "
                f"got top_k {self.top_k}, steps {self.steps}, total {self.total}"
            )

    @property
    def expanded(self) -> TreeShape:
        """What the proposer reads, as a static shape: top_k nodes on each of `steps` levels."""
        chain: Any = []
        for _ in range(self.steps - 1):
            chain = [chain]
        return TreeShape([chain] * self.top_k)
