"""How a feature drafter proposes: along a static tree, and by choosing the tree itself.

After a round the target's features of the accepted path are known. The drafter reads them together with the tokens one
further, so that its newest output ĥ is what the target's head turns into the draft law behind the root; every node of
the tree then joins its own token to its parent's ĥ. Before the first image token there is no such pair: the first
round of a class-conditional image is a plain target step.

`best_tree` grows a dynamic tree: every candidate v has the score s_v = Σ log q along its path; at each of `depth` steps
the `top_k` candidates of the newest level with the highest scores get their `top_k` most likely children, and in the
end the `total` highest of all candidates form the tree (a parent never scores less than its child).
Its candidates are chosen, not drawn: the draft law of each is a point mass (`theory.analyse_tree`, "top_k").

Source: EAGLE (arXiv:2401.15077) and EAGLE-2 (arXiv:2406.16858, section 4); LANTERN's public drafters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from validate.drafters.feature import BEHIND, DrafterState, FeatureDrafter
from validate.drafters.loading import check_target
from validate.models import Pair, Warp, guided_logits
from validate.models.forest import Forest, node_view
from validate.models.llamagen.transformer import LlamaGen
from validate.tree_proposers import Proposer, ProposerOf
from validate.tree_shapes import Dynamic, TreeShape

__all__ = ["DynamicTree", "FeatureProposer", "best_tree", "feature_proposer"]


class FeatureProposer:
    """A feature drafter along a static tree; see `validate.tree_proposers.Proposer`.

    Parameters
    ----------
    drafter : FeatureDrafter
    head : callable
        The target's own, from features to logits.
    rows, guidance, warp, shape
        Of the batch.
    prefix : Tensor, shape (halves · B, C − 1, D), optional
        Target features of all condition slots but the last, for a condition of several slots.
    """

    def __init__(
        self,
        drafter: FeatureDrafter,
        head: Callable[[Tensor], Tensor],
        rows: int,
        guidance: float,
        warp: Warp,
        shape: TreeShape,
        prefix: Tensor | None = None,
    ) -> None:
        self.drafter, self.head, self.guidance, self.warp = drafter, head, guidance, warp
        self.halves = 1 if guidance == 1.0 else 2
        self.rows, device = rows, drafter.fc.weight.device
        self.forest = Forest.of(torch.from_numpy(np.maximum(shape.parents[1:] - 1, -1)).to(device))
        self.state: DrafterState = drafter.start(self.halves * rows, self.forest.size)
        self.offset = 0 if prefix is None else prefix.shape[1]
        if prefix is not None:
            zeros = torch.zeros(prefix.shape[:2], dtype=torch.int64, device=device)
            drafter(zeros, prefix, zeros[:, 0], self.state)
        self.fresh: tuple[Tensor, Tensor, Tensor] | None = None
        self.above = torch.empty(0)
        self.made = torch.empty(0)

    def _laws(self, hidden: Tensor) -> Tensor:
        logits = self.head(hidden).float()
        if self.halves == 2:
            conditional, null = logits.chunk(2)
            logits = guided_logits(conditional, null, self.guidance)
        return torch.softmax(self.warp(logits), dim=-1)

    def root(self, inputs: Tensor, placed: Tensor) -> Tensor | None:
        """Reads the accepted features, with the tokens one further."""
        if self.fresh is None:
            return None
        features, start, count = self.fresh
        step = torch.arange(features.shape[1], device=placed.device)
        # Behind a row's own count the inputs mean nothing: later ones overwrite them, earlier ones do not see them.
        ids = inputs.gather(1, (start[:, None] + 1 + step).clamp(max=inputs.shape[1] - 1)).clamp(min=0)
        hidden = self.drafter(ids.repeat(self.halves, 1), features, self.offset + start.repeat(self.halves), self.state)
        row = torch.arange(len(hidden), device=placed.device)
        self.above = hidden[row, (count - 1).clamp(min=0).repeat(self.halves)]
        self.made = hidden.new_zeros((len(hidden), self.forest.size, hidden.shape[-1]))
        return self._laws(self.above)

    def below(self, tokens: Tensor, first: int, placed: Tensor) -> Tensor:
        """Node v joins its token to its parent's hidden state."""
        some = slice(first - 1, first - 1 + tokens.shape[1])
        parents = self.forest.repeat(self.halves).parents[:, some].expand(len(self.above), -1)
        row = torch.arange(len(self.above), device=parents.device)[:, None]
        made = self.made[row, parents.clamp(min=0)]
        features = torch.where((parents >= 0)[..., None], made, self.above[:, None])
        read = (self.offset + placed).repeat(self.halves)
        limit = self.drafter.config.rows
        index, slots, visible = node_view(
            self.forest.repeat(self.halves), first - 1, tokens.shape[1], read, limit, self.forest.size
        )
        hidden = self.drafter(
            tokens.repeat(self.halves, 1),
            features,
            read,
            self.state,
            slots=slots,
            positions=index.clamp(max=limit - 1),
            visible=visible,
        )
        self.made[:, some] = hidden
        return self._laws(hidden)

    def choose(self, spec: Dynamic, inputs: Tensor, placed: Tensor) -> DynamicTree | None:
        """The round's dynamic tree; None if it cannot draft yet."""
        law = self.root(inputs, placed)
        if law is None:
            return None
        parents = torch.full((len(placed), spec.steps * spec.top_k), -1, dtype=torch.int64, device=placed.device)

        def expand(step: int, token: Tensor, inside: Tensor) -> Tensor:
            first = step * spec.top_k
            if step:
                parents[:, first : first + spec.top_k] = first - spec.top_k + inside
            self.forest = Forest.of(parents)
            return self.below(token, 1 + first, placed).log()

        newest = inputs.gather(1, placed.clamp(max=inputs.shape[1] - 1)[:, None])[:, 0]
        return best_tree(newest, law.log(), expand, spec.total, spec.steps, spec.top_k)

    def advance(self, path: Tensor, accepted: Tensor, placed: Tensor, hidden: Tensor) -> None:
        """Remembers the target's features of the path; nothing of the drafter's own tree is kept."""
        row = torch.arange(len(hidden), device=path.device)[:, None]
        self.fresh = (hidden[row, path.repeat(self.halves, 1)], placed, accepted + 1)

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only."""
        both = rows if self.halves == 1 else torch.cat([rows, rows + self.rows])
        self.state.gather(both)
        self.rows = len(rows)
        if self.fresh is not None:
            features, start, count = self.fresh
            self.fresh = (features[both], start[rows], count[rows])


def feature_proposer(drafter: FeatureDrafter) -> ProposerOf:
    """What `validate.tree_decoding.decode_tree` takes as `proposer` to draft with this drafter."""

    def make(pair: Pair, conditions: tuple[Any, Any], guidance: float, warp: Warp, shape: TreeShape) -> Proposer:
        target: Any = pair.target
        check_target(drafter.config, target, "the drafter")
        if shape.depth > BEHIND:
            raise ValueError(f"the tree is {shape.depth} deep; a drafter knows {BEHIND} positions behind the image")
        prefix = None
        if isinstance(target, LlamaGen):
            prefix = condition_features(target, conditions[0], guidance)
        head = target.output if isinstance(target, LlamaGen) else target.head
        return FeatureProposer(drafter, head, len(conditions[0]), guidance, warp, shape, prefix)

    return make


@torch.no_grad()
def condition_features(target: LlamaGen, conditions: Any, guidance: float) -> Tensor | None:
    """Features of all condition slots but the last, (halves · B, C − 1, D); None for a class.

    The features of *unused* caption slots are the official transformer's; LANTERN's port gives others there (its mask
    is additive), and a drafter trained on that port may lose some acceptance by it, never exactness.
    """
    if target.config.prefix == 1:
        return None
    halves = []
    for null in (False, True)[: 1 if guidance == 1.0 else 2]:
        prefix = target.prefix(conditions, null=null)
        none = torch.zeros((len(prefix), 0), dtype=torch.int64, device=prefix.device)
        halves.append(target.forward(prefix, none, conditions.used)[1][:, :-1])
    return torch.cat(halves)


class DynamicTree(NamedTuple):
    """A tree chosen by its scores, root first.

    Attributes
    ----------
    tokens : int64 Tensor, shape (B, total + 1)
        [b, 0] is the root's own.
    parents : int64 Tensor, shape (B, total + 1)
        −1 for the root; every parent comes before its children.
    scores : Tensor, shape (B, total + 1)
        Σ log q along the path; 0 for the root.
    """

    tokens: Tensor
    parents: Tensor
    scores: Tensor


def best_tree(
    root_token: Tensor,
    root_log_law: Tensor,
    expand: Callable[[int, Tensor, Tensor], Tensor],
    total: int,
    depth: int,
    top_k: int,
) -> DynamicTree:
    """Grow a dynamic tree.

    Parameters
    ----------
    root_token : int64 Tensor, shape (B,)
    root_log_law : Tensor, shape (B, V)
        log q behind the root.
    expand : function
        (step, tokens (B, top_k), parents (B, top_k)) → log q (B, top_k, V) behind the newest candidates; `parents` are
        their parents' places among the candidates of the step before, and step 0 hangs them on the root.
    total, depth, top_k : int
        Candidates in the end; expansions; candidates expanded at once and children of each.

    Raises
    ------
    ValueError
        More candidates than are ever grown, top_k + depth · top_k².
    """
    grown = top_k + depth * top_k**2
    if not 1 <= total <= grown:
        raise ValueError(f"total must lie in 1…{grown} (top_k + depth·top_k²), got {total}")
    rows = len(root_token)
    score, token = root_log_law.topk(top_k, dim=-1)
    scores, tokens = [score], [token]
    # Place of every candidate's parent among all candidates, 0 being the root.
    parents = [torch.zeros_like(token)]
    place = torch.arange(top_k, device=token.device).expand(rows, -1) + 1
    inside = torch.zeros_like(token)
    first = 1 + top_k
    for step in range(depth):
        law = expand(step, token, inside)
        best, ids = law.topk(top_k, dim=-1)
        path = (best + score[..., None]).flatten(1)
        scores.append(path)
        tokens.append(ids.flatten(1))
        parents.append(place.repeat_interleave(top_k, dim=1))
        score, chosen = path.topk(top_k, dim=-1)
        token = ids.flatten(1).gather(1, chosen)
        inside, place = chosen // top_k, first + chosen
        first += top_k**2
    every, ids, above = (torch.cat(columns, dim=1) for columns in (scores, tokens, parents))
    kept = every.topk(total, dim=-1).indices.sort(dim=-1).values
    # Old places, of which the root's is 0, to new ones.
    place = torch.zeros((rows, grown + 1), dtype=torch.int64, device=kept.device)
    place.scatter_(1, kept + 1, torch.arange(1, total + 1, device=kept.device).expand(rows, -1))
    new_parents = place.gather(1, above.gather(1, kept))
    root = torch.full_like(root_token, -1)[:, None]
    return DynamicTree(
        torch.cat([root_token[:, None], ids.gather(1, kept)], dim=1),
        torch.cat([root, new_parents], dim=1),
        torch.cat([every.new_zeros((rows, 1)), every.gather(1, kept)], dim=1),
    )
