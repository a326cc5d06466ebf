"""Whole images with draft trees: one target pass reads all candidates of a round.

A round begins at a row's newest token, the root, which the target has not read. The proposer grows a tree behind it,
one pass a level: a node's k children are drawn from its draft law q, without replacement. The target reads root and
candidates at once (`validate.models.forest`). Then, from the root downwards, siblings are tried in order:

    p^(1) = p,    accept sibling j while u_j < f(p^(j), q^(j))(x_j),    p^(j+1) = residual of (p^(j), q^(j), f),

with q^(j) the draft law without the siblings already tried, renormalised, and f the rule at the node's depth, so that a
schedule ω_i relaxes by depth. The accepted child is the next node; where all are refused the next token is drawn from
the last residual, behind a leaf from p. Of the caches only the accepted path is kept. At an image's end the tree is cut
at the depth that is left. A rule that looks at the target's hidden states (`theory.CascadeStyle`) is told them, and may
keep subtrees of refused nodes: see `validate.cascade.states`. With a lossless rule the images follow the target's law
exactly; a tree with one child per node is a chain.

Source: SpecInfer (arXiv:2305.09781), EAGLE (arXiv:2401.15077), LANTERN (arXiv:2410.03355) for the 25-node tree.
Oracle: `theory.analyse_tree`; `simulate.decode_tree` for whole sequences.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor

from simulate.draws import categorical
from theory import AnyVerifier
from theory.trees import Tree
from validate.batches import Batch, Decoded, Options, Round, decode_in_batches
from validate.cascade.states import tree_states
from validate.clock import Clock
from validate.models import Pair, Warp
from validate.models.forest import Forest
from validate.models.interface import START
from validate.noise import Noise
from validate.siblings import draw_children, try_siblings
from validate.tree_proposers import ProposerOf, independent, tree_sequences
from validate.tree_shapes import Dynamic, TreeShape, children_of

__all__ = ["TreeDecoder", "decode_tree"]


class TreeDecoder:
    """State of a batch that is being decoded; `round` advances every unfinished row."""

    def __init__(
        self,
        pair: Pair,
        conditions: tuple[Any, Any],
        noise: Noise,
        guidance: float,
        warp: Warp,
        shape: TreeShape | Dynamic,
        proposer: ProposerOf = independent,
    ) -> None:
        device, rows = pair.device, len(conditions[0])
        self.total, self.warp, self.shape, self.noise = pair.num_tokens, warp, shape, noise
        self.guidance = guidance
        self.inputs = torch.zeros((rows, self.total + 1), dtype=torch.int64, device=device)
        self.inputs[:, 0] = START
        self.placed = torch.zeros(rows, dtype=torch.int64, device=device)
        self.rows = torch.arange(rows, device=device)
        self.target = tree_sequences(pair.target, conditions[0], guidance)
        dynamic = isinstance(shape, Dynamic)
        drawn: Any = shape.expanded if isinstance(shape, Dynamic) else shape
        self.proposer: Any = proposer(pair, conditions, guidance, warp, drawn)
        if dynamic and not hasattr(self.proposer, "choose"):
            raise TypeError(f"{type(self.proposer).__name__} cannot choose a dynamic tree; give a static one")
        self.depth = shape.steps + 1 if isinstance(shape, Dynamic) else shape.depth
        parents = torch.arange(shape.total + 1) - 1 if isinstance(shape, Dynamic) else torch.from_numpy(shape.parents)
        self.forest = Forest.of(parents.to(device))
        self.children = children_of(self.forest.parents)
        self.clock = Clock(device)

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only."""
        self.target.keep(rows)
        self.proposer.keep(rows)
        self.noise = self.noise.rows(rows)
        for name in ("inputs", "placed", "rows"):
            setattr(self, name, getattr(self, name)[rows])

    def _grow(self, tokens: Tensor, u: Tensor) -> Tensor | None:
        """Draft every node's token into `tokens` (B, nodes); the draft laws of all nodes, (B, nodes, V)."""
        law = self.proposer.root(self.inputs, self.placed)
        if law is None:
            return None
        assert isinstance(self.shape, TreeShape)
        laws: Tensor = law.new_zeros((*tokens.shape, law.shape[-1]))
        laws[:, 0] = law
        for depth, (first, end) in enumerate(self.shape.levels[:-1]):
            if depth:
                laws[:, first:end] = self.proposer.below(tokens[:, first:end].clamp(min=0), first, self.placed)
            for node in range(first, end):
                below = self.shape.children[node]
                if below:
                    tokens[:, below] = draw_children(laws[:, node], u[:, below])
        return laws

    def _read(self, tokens: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
        """The target's laws (B, nodes, V) and hidden states (halves · B, nodes, D) of root and candidates."""
        logits, hidden = self.target.tree_logits(
            torch.where(self.forest.depths > 0, tokens.clamp(min=0), tokens), place, self.forest, hidden=True
        )
        return torch.softmax(self.warp(logits), dim=-1), hidden

    def round(self, verifier: Any) -> Tensor:
        """One tree of every unfinished row; accepted drafts of each row, −1 for rows that were finished."""
        row = torch.arange(len(self.placed), device=self.placed.device)
        left = self.total - self.placed
        active, place = left > 0, self.placed.clamp(max=self.total - 1)
        self.clock.start()
        tokens = torch.zeros((len(row), self.forest.size), dtype=torch.int64, device=row.device)
        tokens[:, 0] = self.inputs[row, place]
        q = None
        if isinstance(self.shape, Dynamic):
            chosen = self.proposer.choose(self.shape, self.inputs, self.placed)
            drafted = chosen is not None
            if chosen is not None:
                tokens[:, 1:], self.forest = chosen.tokens[:, 1:], Forest.of(chosen.parents)
                self.children = children_of(chosen.parents)
        else:
            q = self._grow(tokens, self.noise.draft[row, place])
            drafted = q is not None
        self.clock.lap("draft", self.depth)
        p, hidden = self._read(tokens, place)
        self.clock.lap("verify", 1)
        u = self.noise.acceptance[row, place]
        accepted = torch.zeros_like(self.placed)
        node, law = torch.zeros_like(self.placed), p[:, 0]
        fallen = torch.zeros_like(active)
        path = torch.zeros((len(row), self.depth + 1), dtype=torch.int64, device=row.device)
        states = tree_states(verifier, hidden, self.guidance, tokens)
        # Candidates refused so far at the newest node's depth whose subtrees it may try behind its own.
        kept = node.new_empty((len(row), 0))
        for depth in range(self.depth if drafted else 0):
            # A row that cannot go deeper tries no children: it is finished, refused above, or at the image's end.
            tries = active & ~fallen & (accepted == depth) & (left > depth)
            for source in (node, *kept.unbind(1)):
                within = tries & (accepted == depth) & (source >= 0)
                below = self.children.expand(len(row), -1, -1)[row, source.clamp(min=0)]
                below = torch.where(within[:, None], below, -1)
                if not bool((below >= 0).any()):
                    continue
                ids = torch.where(below >= 0, tokens[row[:, None], below.clamp(min=0)], -1)
                child, residual = try_siblings(
                    verifier if states is None else states.bind(below, ids, left == depth + 1),
                    law,
                    None if q is None else q[row, source.clamp(min=0)],
                    ids,
                    u[row[:, None], below.clamp(min=0)],
                    depth,
                )
                taken = child >= 0
                refused = (below[:, 0] >= 0) & ~taken
                node = torch.where(taken, below.gather(1, child.clamp(min=0)[:, None])[:, 0], node)
                law = torch.where(taken[:, None], p[row, node], torch.where(refused[:, None], residual, law))
                fallen = (fallen | refused) & ~taken
                accepted += taken
                slot = torch.where(taken, self.placed + accepted, 0)
                self.inputs[row, slot] = torch.where(taken, tokens[row, node], self.inputs[row, slot])
                path[row, accepted] = node
                if states is not None:
                    states.refuse(below, ids, child)
            if not bool((accepted > depth).any()):
                break
            if states is not None:
                kept = states.converged(node)
        emits = active & (accepted < left)
        at = (self.placed + accepted).clamp(max=self.total - 1)
        uniform = torch.where(fallen, self.noise.residual[row, at], self.noise.bonus[row, at])
        slot = torch.where(emits, at + 1, 0)
        self.inputs[row, slot] = torch.where(emits, categorical(law, uniform), self.inputs[row, slot])
        counts = torch.where(active, accepted + 1, 0).minimum(left)
        self.target.keep_path(path, counts, place)
        self.proposer.advance(path, accepted, place, hidden)
        self.placed = self.placed + torch.where(active, accepted + emits, 0)
        self.clock.lap("accept")
        return torch.where(active, accepted, -1)

    def check(self) -> None:
        """Nothing: every draw refuses a law that nothing could be drawn from."""

    def progress(self) -> tuple[np.ndarray, np.ndarray]:
        """Tokens each row has, and is to have, on the host."""
        placed = self.placed.cpu().numpy()
        return placed, np.full_like(placed, self.total)


def decode_tree(
    pair: Pair,
    verifier: AnyVerifier,
    tree: Tree | Dynamic,
    images: Any,
    *,
    proposer: ProposerOf = independent,
    **options: Unpack[Options],
) -> Decoded:
    """Decode images with one draft tree a round.

    Parameters
    ----------
    verifier : Verifier
        Token-wise; its rule sees the depth as position.
    tree : nested lists or Dynamic
        As for `theory.analyse_tree`; no deeper than the image has tokens. Dynamic trees need a feature drafter; their
        laws are those of sampling "top_k".
    proposer : function
        Who drafts; by default the pair's draft.
    pair, images, **options
        As for `validate.decode`.

    Returns
    -------
    Decoded
        `accepted` are accepted depths.

    Raises
    ------
    ValueError
        As `validate.decode`; also a malformed tree, or one deeper than an image.
    TypeError
        A verifier that is not token-wise; a model that cannot read trees.
    """
    if not (hasattr(verifier, "acceptance") and hasattr(verifier, "residual")):
        raise TypeError(f"a tree needs a token-wise verifier (acceptance and residual), got {verifier!r}")
    shape = tree if isinstance(tree, Dynamic) else TreeShape(tree)
    depth, nodes = (shape.steps + 1, shape.total + 1) if isinstance(shape, Dynamic) else (shape.depth, shape.nodes)
    if depth > pair.num_tokens:
        raise ValueError(f"the tree is {depth} deep but an image has {pair.num_tokens} tokens; cut it")

    def begin(batch: Batch) -> tuple[TreeDecoder, Round]:
        # A place is the root of at most one tree, so noise belongs to (place of the root, node).
        noise = batch.noise(nodes)
        decoder = TreeDecoder(batch.pair, batch.conditions, noise, batch.guidance, batch.warp, shape, proposer)
        return decoder, partial(decoder.round, verifier)

    return decode_in_batches(pair, images, begin, drafted=nodes - 1, **options)
