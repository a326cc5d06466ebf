"""Decoding with static draft trees, many rows at once.

A row that has reached a node with the accepted prefix c draws that node's children from q(·|c) and tries them in order
(`theory.trees`): with p^(1) = p, sibling j, of law q^(j), is accepted while u_j < f^(j)(x), else p^(j+1) is the
residual of (p^(j), q^(j), f^(j)), the one after x where the residual depends on the rejected token. The accepted child
is the next node; when all children are refused one token is drawn from the last residual, a leaf draws from p. Children
of nodes that are not reached cannot matter and are not drawn. Loops run over depths and siblings, never over rows.

>>> p, q = theory.IIDChain([1/2, 1/3, 1/6]), theory.IIDChain([1/6, 1/3, 1/2])
>>> run = decode_tree_round(p, q, theory.Verifier(theory.Lossless()), [[], []], 10_000, np.random.default_rng(0))
>>> abs(float(run.accepted.mean()) - 7 / 9) < 0.02
True
"""

from __future__ import annotations

from typing import Any

import numpy as np

import theory
from simulate.decoded import Decoded, DecodedRound, continue_with_target, until_finished
from simulate.draws import Streams, categorical, streams
from simulate.laws import Floats, Integers, laws_at
from theory.arrays import same_vocabulary, to_numpy, whole_number
from theory.chains import check_depth
from theory.trees import Sampling, Tree, check_sampling, tree_levels
from theory.verifiers import residual_after

LAWS_AT_ONCE = 2**22
"""Most entries of the laws of a depth held together; more rows are taken in turns."""


class _Shape:
    """Children of every node, nodes numbered level by level from the root, 0."""

    def __init__(self, tree: Tree) -> None:
        levels = tree_levels(tree)
        self.depth = len(levels) - 1
        if self.depth == 0:
            raise ValueError("the tree has no candidates; give the root at least one child, for instance [[]]")
        nodes = [node for level in levels for node in level]
        self.children: Integers = np.asarray([node.children for node in nodes], dtype=np.int64)
        # Children of one node are neighbours, in draft order.
        self.first_child: Integers = 1 + np.cumsum(self.children) - self.children


def decode_tree_round(
    target: theory.Chain,
    draft: theory.Chain,
    verifier: theory.Verifier,
    tree: Tree,
    batch: int,
    rng: np.random.Generator | Streams,
    sampling: Sampling = "without_replacement",
) -> DecodedRound:
    """One tree, continued with the target to depth + 1 tokens.

    Parameters
    ----------
    target, draft, verifier, tree, sampling
        As for `theory.analyse_tree`.
    batch : int
        B ≥ 0.
    rng : numpy.random.Generator or Streams

    Returns
    -------
    DecodedRound
        Tokens (B, depth + 1) and accepted depth (B,).

    Raises
    ------
    ValueError, TypeError
        As `theory.analyse_tree`, but for the sizes that only enumeration limits.

    Notes
    -----
    Source: recursive rejection over siblings is that of SpecInfer (2305.09781). Oracle: `theory.analyse_tree`.
    """
    shape, draws = _checked(target, draft, verifier, tree, None, batch, sampling), streams(rng)
    out = np.zeros((batch, shape.depth + 1), dtype=np.int64)
    start = np.zeros(batch, dtype=np.int64)
    accepted, lengths = _play(target, draft, verifier, shape, out, start, draws, sampling)
    continue_with_target(target, out, lengths, draws)
    return DecodedRound(out, accepted)


def decode_tree(
    target: theory.Chain,
    draft: theory.Chain,
    verifier: theory.Verifier,
    tree: Tree,
    tokens: int,
    batch: int,
    rng: np.random.Generator | Streams,
    sampling: Sampling = "without_replacement",
) -> Decoded:
    """Decode `batch` sequences of `tokens` tokens, one tree a call; arguments as for `decode_tree_round`.

    At the end of a sequence the tree is cut off at the depth that is left. The law of a lossless verifier is the
    target's; that of any other has no closed form here for more than one tree.
    """
    shape, draws = _checked(target, draft, verifier, tree, tokens, batch, sampling), streams(rng)

    def play(out: Integers, lengths: Integers) -> tuple[Integers, Integers]:
        return _play(target, draft, verifier, shape, out, lengths, draws, sampling)

    return until_finished(play, batch, tokens)


def _play(
    target: theory.Chain,
    draft: theory.Chain,
    verifier: theory.Verifier,
    shape: _Shape,
    tokens: Integers,
    lengths: Integers,
    draws: Streams,
    sampling: Sampling,
) -> tuple[Integers, Integers]:
    """One tree of every unfinished row, written into `tokens`; accepted depth (B,), −1 if finished, and new lengths."""
    end, lengths = tokens.shape[1], lengths.copy()
    accepted = np.where(lengths < end, 0, -1)
    step = max(1, LAWS_AT_ONCE // target.vocab_size)
    for some in np.split(np.flatnonzero(lengths < end), np.arange(step, len(lengths), step)):
        rows, nodes = some, np.zeros(len(some), dtype=np.int64)
        for depth in range(shape.depth + 1):
            if len(rows) == 0:
                break
            p = laws_at(target, tokens[rows], lengths[rows])
            q = laws_at(draft, tokens[rows], lengths[rows]) if depth < shape.depth else p
            child, token, last = _siblings(p, q, verifier, depth, shape.children[nodes], draws, sampling)
            fallen = child < 0
            if fallen.any():
                token[fallen] = categorical(last[fallen], draws.residual.random(int(fallen.sum())))
            tokens[rows, lengths[rows]] = token
            lengths[rows] += 1
            accepted[rows] += ~fallen
            nodes = shape.first_child[nodes] + child
            on = ~fallen & (lengths[rows] < end)
            rows, nodes = rows[on], nodes[on]
    return accepted, lengths


def _siblings(
    p: Floats, q: Floats, verifier: theory.Verifier, depth: int, children: Integers, draws: Streams, sampling: Sampling
) -> tuple[Integers, Integers, Floats]:
    """Accepted child (n,), −1 for none; its token (n,); the law to draw from where there is none, (n, V)."""
    count, size = p.shape
    child, token = np.full(count, -1, dtype=np.int64), np.zeros(count, dtype=np.int64)
    law, left = p.copy(), q.copy()
    ranks = np.argsort(-q, axis=-1, stable=True) if sampling == "top_k" else None
    open_ = np.arange(count)
    for j in range(int(children.max(initial=0))):
        open_ = open_[children[open_] > j]
        if ranks is not None:
            left[open_] = (np.arange(size) == ranks[open_, min(j, size - 1), None]) & (j < size)
        total = left[open_].sum(axis=1)
        # A node whose candidates ran out keeps its law and tries no more siblings.
        open_, total = open_[total > 0], total[total > 0]
        if len(open_) == 0:
            break
        now, drafted = law[open_], left[open_] / total[:, None]
        x = categorical(drafted, draws.draft.random(len(open_)))
        f = to_numpy(verifier.acceptance(now, drafted, depth))
        kept = draws.acceptance.random(len(open_)) < f[np.arange(len(open_)), x]
        child[open_[kept]], token[open_[kept]] = j, x[kept]
        refused = ~kept
        law[open_[refused]] = to_numpy(
            residual_after(verifier, now[refused], drafted[refused], f[refused], x[refused], depth)
        )
        open_ = open_[refused]
        if sampling == "without_replacement":
            left[open_, x[refused]] = 0.0
    return child, token, law


def _checked(
    target: theory.Chain,
    draft: theory.Chain,
    verifier: Any,
    tree: Tree,
    tokens: int | None,
    batch: int,
    sampling: Sampling,
) -> _Shape:
    shape = _Shape(tree)
    check_sampling(sampling)
    if not (hasattr(verifier, "acceptance") and hasattr(verifier, "residual")):
        raise TypeError(f"a tree needs a token-wise verifier (acceptance and residual), got {verifier!r}")
    whole_number(batch, "batch", 0)
    same_vocabulary(target.vocab_size, draft.vocab_size)
    why, needed = f"a tree of depth {shape.depth}", shape.depth
    if tokens is not None:
        why, needed = f"decoding {tokens} tokens", whole_number(tokens, "tokens", 1)
    check_depth(target, needed + (tokens is None), "target", why + (" and one more token" if tokens is None else ""))
    check_depth(draft, needed, "draft", why)
    return shape
