"""Who drafts along a tree: what a proposer answers, and the one that is a smaller model of the same tokens.

A feature drafter's proposer is `validate.drafters.trees`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor

from validate.models import Pair, Warp
from validate.models.forest import Forest, ForestSequences
from validate.models.interface import ImageModel
from validate.tree_shapes import TreeShape


class Proposer(Protocol):
    """Draft laws along a tree. B rows; the tree's node v ≥ 1 is node v − 1 of `forest`."""

    forest: Forest

    def root(self, inputs: Tensor, placed: Tensor) -> Tensor | None:
        """Draft law (B, V) behind the newest input, `inputs[b, placed[b]]`; None if it cannot draft yet."""
        ...

    def below(self, tokens: Tensor, first: int, placed: Tensor) -> Tensor:
        """Draft laws (B, n, V) behind nodes first, …, first + n − 1 of the tree, n tokens each row."""
        ...

    def advance(self, path: Tensor, accepted: Tensor, placed: Tensor, hidden: Tensor) -> None:
        """What the round kept.

        `path` (B, depth + 1) holds the root, 0, and accepted[b] further nodes; `placed` (B,) is as in the round;
        `hidden` (halves · B, nodes, D) are the target's hidden states of all nodes.
        """
        ...

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only."""
        ...


class IndependentProposer:
    """A smaller model of the same tokens drafts."""

    def __init__(self, model: ImageModel, conditions: Any, guidance: float, warp: Warp, shape: TreeShape) -> None:
        self.sequences = tree_sequences(model, conditions, guidance)
        self.warp, self.last, self.depth = warp, model.num_tokens - 1, shape.depth
        parents = torch.from_numpy(np.maximum(shape.parents[1:] - 1, -1)).to(model.device)
        self.forest = Forest.of(parents)

    def _laws(self, logits: Tensor) -> Tensor:
        return torch.softmax(self.warp(logits), dim=-1)

    def root(self, inputs: Tensor, placed: Tensor) -> Tensor | None:
        # The input before the newest is read again: an accepted leaf has not been read at all.
        back = int(bool((placed > 0).all()))
        newest = placed.clamp(max=self.last)
        first = (newest - back).clamp(min=0)
        step = torch.arange(back + 1, device=placed.device)
        ids = inputs.gather(1, first[:, None] + step)
        return self._laws(self.sequences.logits(ids, first)[:, -1])

    def below(self, tokens: Tensor, first: int, placed: Tensor) -> Tensor:
        return self._laws(self.sequences.tree_logits(tokens, placed + 1, self.forest, first - 1))

    def advance(self, path: Tensor, accepted: Tensor, placed: Tensor, hidden: Tensor) -> None:
        if self.depth > 1:
            # The deepest level was drawn but never read.
            counts = accepted.clamp(max=self.depth - 1)
            self.sequences.keep_path((path[:, 1:] - 1).clamp(min=0), counts, placed + 1)

    def keep(self, rows: Tensor) -> None:
        self.sequences.keep(rows)


def tree_sequences(model: ImageModel, conditions: Any, guidance: float) -> ForestSequences:
    """A model's sequences, refused if they cannot read trees."""
    sequences = model.start(conditions, guidance)
    if not hasattr(sequences, "tree_logits"):
        raise TypeError(f"{type(model).__name__} cannot read trees in one pass; decode with chains")
    return cast(ForestSequences, sequences)


ProposerOf: TypeAlias = Callable[[Pair, tuple[Any, Any], float, Warp, TreeShape], Proposer]
"""Makes a batch's proposer from pair, (target's, draft's) conditions, guidance, warp and tree."""


def independent(pair: Pair, conditions: tuple[Any, Any], guidance: float, warp: Warp, shape: TreeShape) -> Proposer:
    """The pair's draft in use."""
    return IndependentProposer(pair.draft, conditions[1], guidance, warp, shape)
