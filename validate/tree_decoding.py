"""Whole images with draft trees: one target pass reads all candidates of a round.

A round begins at a row's newest token, the root, which the target has not read. The proposer grows a tree behind it,
one pass a level: a node's k children are drawn from its draft law q, without replacement. The target reads root and
candidates at once (`validate.models.forest`). Then, from the root downwards, siblings are tried in order (THEORY 7):

    p^(1) = p,    accept sibling j while u_j < f(p^(j), q^(j))(x_j),    p^(j+1) = residual of (p^(j), q^(j), f),

with q^(j) the draft law without the siblings already tried, renormalised, and f the rule at the node's depth, so that a
schedule ω_i relaxes by depth. The accepted child is the next node; where all are refused the next token is drawn from
the last residual, behind a leaf from p. Of the caches only the accepted path is kept. At an image's end the tree is cut
at the depth that is left. With a lossless rule the images follow the target's law exactly; a tree with one child per
node is a chain.

Source: SpecInfer (arXiv:2305.09781), EAGLE (arXiv:2401.15077), LANTERN (arXiv:2410.03355) for the 25-node tree.
Oracle: `theory.analyse_tree`; `simulate.decode_tree` for whole sequences.

>>> tree = tree_of_paths(LANTERN_TREE)
>>> shape = TreeShape(tree)
>>> shape.nodes - 1, shape.depth, len(shape.expanded)
(25, 5, 11)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from simulate.draws import categorical
from theory import AnyVerifier
from theory.trees import Tree, tree_levels
from validate.decoder import COMPACT_BELOW, Clock
from validate.decoding import Decoded, _join, _rows
from validate.models import Pair, Warp, resolve_device
from validate.models.forest import Forest, TreeSequences
from validate.models.interface import START, ImageModel
from validate.noise import Noise, image_noise

__all__ = [
    "LANTERN_TREE",
    "Dynamic",
    "IndependentProposer",
    "Proposer",
    "TreeDecoder",
    "TreeShape",
    "decode_tree",
    "independent",
    "tree_of_paths",
]

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


def tree_sequences(model: ImageModel, conditions: Any, guidance: float) -> TreeSequences:
    """A model's sequences, refused if they cannot read trees."""
    sequences = model.start(conditions, guidance)
    if not hasattr(sequences, "tree_logits"):
        raise TypeError(f"{type(model).__name__} cannot read trees in one pass; decode with chains")
    return sequences  # type: ignore[return-value]


def draw_children(law: Tensor, uniforms: Tensor) -> Tensor:
    """Children drawn without replacement: laws (..., V), uniforms (..., k) → tokens (..., k), −1 once q ran out."""
    left, drawn = law.clone(), []
    for j in range(uniforms.shape[-1]):
        total = left.sum(dim=-1)
        token = categorical(torch.where((total > 0)[..., None], left, law), uniforms[..., j])
        drawn.append(torch.where(total > 0, token, -1))
        left = left.scatter(-1, token[..., None], 0.0)
    return torch.stack(drawn, dim=-1)


def try_siblings(
    verifier: Any, p: Tensor, q: Tensor | None, tokens: Tensor, uniforms: Tensor, depth: int
) -> tuple[Tensor, Tensor]:
    """Which of a node's children is accepted, and what law stands behind the refused ones.

    Parameters
    ----------
    verifier : Verifier
        Token-wise.
    p, q : Tensor, shape (B, V)
        q is None for chosen candidates, each drafted by a point mass.
    tokens : int64 Tensor, shape (B, k)
        Drawn from q without replacement, in order; −1 where there is no child.
    uniforms : float64 Tensor, shape (B, k)
    depth : int
        0-based position in the round, for the rule's schedule.

    Returns
    -------
    child : int64 Tensor, shape (B,)
        −1 where all are refused.
    law : Tensor, shape (B, V)
        p^(k+1) where all are refused.

    Notes
    -----
    Oracle: `theory.trees.sibling_steps`.
    """
    child = torch.full(tokens.shape[:1], -1, dtype=torch.int64, device=p.device)
    law, left = p, torch.zeros_like(p) if q is None else q
    for j in range(tokens.shape[1]):
        token = tokens[:, j : j + 1].clamp(min=0)
        if q is None:
            left = torch.zeros_like(p).scatter(1, token, 1.0)
        total = left.sum(dim=-1, keepdim=True)
        tried = (child < 0) & (tokens[:, j] >= 0) & (total[:, 0] > 0)
        if not bool(tried.any()):
            break
        drafted = torch.where(total > 0, left / torch.where(total > 0, total, 1.0), law)
        f = verifier.acceptance(law, drafted, depth)
        taken = tried & (uniforms[:, j] < f.gather(1, token)[:, 0])
        child = torch.where(taken, j, child)
        refused = tried & ~taken
        law = torch.where(refused[:, None], verifier.residual(law, drafted, f), law)
        left = torch.where(refused[:, None], left.scatter(1, token, 0.0), left)
    return child, law


ProposerOf = Callable[[Pair, tuple[Any, Any], float, Warp, TreeShape], Proposer]
"""Makes a batch's proposer from pair, (target's, draft's) conditions, guidance, warp and tree."""


def independent(pair: Pair, conditions: tuple[Any, Any], guidance: float, warp: Warp, shape: TreeShape) -> Proposer:
    """The pair's draft in use."""
    return IndependentProposer(pair.draft, conditions[1], guidance, warp, shape)


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
        logits, hidden = self.target.tree_logits(
            torch.where(self.forest.depths > 0, tokens.clamp(min=0), tokens), place, self.forest, hidden=True
        )
        p = torch.softmax(self.warp(logits), dim=-1)
        self.clock.lap("verify", 1)
        u = self.noise.acceptance[row, place]
        accepted = torch.zeros_like(self.placed)
        node, law = torch.zeros_like(self.placed), p[:, 0]
        fallen = torch.zeros_like(active)
        path = torch.zeros((len(row), self.depth + 1), dtype=torch.int64, device=row.device)
        for depth in range(self.depth if drafted else 0):
            below = self.children.expand(len(row), -1, -1)[row, node]
            # A row that cannot go deeper tries no children: it is finished, refused above, or at the image's end.
            below = torch.where((active & ~fallen & (accepted == depth) & (left > depth))[:, None], below, -1)
            if not bool((below >= 0).any()):
                break
            ids = torch.where(below >= 0, tokens[row[:, None], below.clamp(min=0)], -1)
            child, residual = try_siblings(
                verifier,
                p[row, node],
                None if q is None else q[row, node],
                ids,
                u[row[:, None], below.clamp(min=0)],
                depth,
            )
            taken = child >= 0
            refused = (below[:, 0] >= 0) & ~taken
            node = torch.where(taken, below.gather(1, child.clamp(min=0)[:, None])[:, 0], node)
            law = torch.where(taken[:, None], p[row, node], torch.where(refused[:, None], residual, law))
            fallen |= refused
            accepted += taken
            slot = torch.where(taken, self.placed + accepted, 0)
            self.inputs[row, slot] = torch.where(taken, tokens[row, node], self.inputs[row, slot])
            path[row, accepted] = node
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

    def run(self, verifier: Any, bar: tqdm | None = None) -> tuple[np.ndarray, ...]:
        """Rounds until every row is at its end: tokens (B, T), accepted (B, R), starts (B, R)."""
        rows = len(self.placed)
        tokens = torch.zeros((rows, self.total), dtype=torch.int64, device=self.placed.device)
        accepted: list[np.ndarray] = []
        starts: list[np.ndarray] = []
        finished = 0
        while len(self.placed) and bool((self.placed < self.total).any()):
            for out, value in ((starts, self.placed), (accepted, self.round(verifier))):
                column = np.full(rows, -1, dtype=np.int64)
                column[self.rows.cpu().numpy()] = value.cpu().numpy()
                out.append(column)
            starts[-1][accepted[-1] < 0] = -1
            running = self.placed < self.total
            count = int(running.sum())
            if bar is not None:
                bar.update(rows - count - finished)
            finished = rows - count
            if count < COMPACT_BELOW * len(running):
                tokens[self.rows] = self.inputs[:, 1:]
                self.keep(torch.nonzero(running)[:, 0])
        tokens[self.rows] = self.inputs[:, 1:]
        empty = np.zeros((rows, 0), dtype=np.int64)
        columns = (np.stack(a, axis=1) if a else empty for a in (accepted, starts))
        return (tokens.cpu().numpy(), *columns)


@torch.no_grad()
def decode_tree(
    pair: Pair,
    verifier: AnyVerifier,
    tree: Tree | Dynamic,
    images: Any,
    *,
    proposer: ProposerOf = independent,
    device: str = "auto",
    seed: int = 0,
    guidance: float | None = None,
    warp: Warp | None = None,
    batch: int = 500,
    progress: bool = False,
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
    pair, images, device, seed, guidance, warp, batch, progress
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
    if isinstance(batch, bool) or not isinstance(batch, (int, np.integer)) or batch < 1:
        raise ValueError(f"batch must be a whole number >= 1, got {batch!r}")
    place = resolve_device(device)
    pair = pair.to(place)
    scale = pair.guidance if guidance is None else float(guidance)
    if not np.isfinite(scale):
        raise ValueError(f"guidance must be finite, got {guidance!r}")
    warp = pair.warp if warp is None else warp
    conditions = pair.encode_conditions(images)
    count = len(conditions[0])
    outs: list[tuple[np.ndarray, ...]] = []
    clock = Clock(place)
    began = clock.now()
    with tqdm(total=count, unit="image", desc="decoding", disable=not progress, leave=False) as bar:
        for first in range(0, count, batch):
            numbers = range(first, min(first + batch, count))
            # A place is the root of at most one tree, so noise belongs to (place of the root, node).
            noise = image_noise(seed, numbers, pair.num_tokens, nodes, place)
            decoder = TreeDecoder(pair, _rows(conditions, numbers), noise, scale, warp, shape, proposer)
            decoder.clock = clock
            outs.append(decoder.run(verifier, bar))
    clock.seconds["total"] = clock.now() - began
    tokens, accepted, starts = zip(*outs, strict=True)
    rounds = _join(list(accepted))
    return Decoded(
        tokens=np.concatenate(tokens),
        classes=pair.classes(conditions[0]),
        accepted=rounds,
        calls=(rounds >= 0).sum(axis=1),
        starts=_join(list(starts)),
        seconds=clock.seconds,
        steps=clock.steps,
        guidance=scale,
        warp=warp,
        conditions=images,
    )
