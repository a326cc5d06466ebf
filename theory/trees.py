"""Several candidates: the exact law of a static draft tree.

A tree is a nested list: a node is the list of its children, so `[[], []]` is two siblings. A node reached with the
accepted prefix c draws its k children from q(·|c), apart from every other node. Siblings are tried in order:
p^(1) = p and, with f^(j) the rule's acceptance of (p^(j), q^(j)) at the node's depth,

    p^(j+1) = Norm[p^(j) − q^(j) f^(j)]_+      (the verifier's residual of (p^(j), q^(j), f^(j)); a residual that
                                                depends on the rejected token x gives G_x, one law after each x)

where q^(j), the law of sibling j after siblings 1…j−1 were rejected, is q (`with_replacement`), q without the tokens
already tried, renormalised (`without_replacement`), or the j-th most likely token of q for certain (`top_k`). The walk
moves to the accepted child; after the last rejection one token is drawn from p^(k+1); a leaf draws from p. As with one
round, the output is continued with the target to depth + 1 tokens.

* lossless f: every node's output law is exactly p, hence the law is the target's [proved]
* bound: TV(P̂, P) ≤ B = Σ over nodes, accepted mass · TV(output law of the node, p) [proved, as for a round]

Two candidates by hand: p = (½, ⅓, ⅙), q = (⅙, ⅓, ½). One candidate is accepted with ⅔; two with 13/18, or with 7/9
if they must differ. How far that is from the best possible is `theory.best_acceptance`'s business.

>>> from theory.chains import IIDChain
>>> from theory.rules import Lossless
>>> p, q = IIDChain([1/2, 1/3, 1/6]), IIDChain([1/6, 1/3, 1/2])
>>> a = analyse_tree(p, q, Verifier(Lossless()), [[], []], "without_replacement")
>>> round(a.expected_accepted, 12) == round(7 / 9, 12), a.total_variation < 1e-15
(True, True)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from theory.arrays import Array, array_namespace, device, same_vocabulary
from theory.chains import Chain, check_depth, joint_layers
from theory.distances import total_variation
from theory.residuals import DraftDependentResidual
from theory.rounds import RoundAnalysis, _check_size, _target_level
from theory.verifiers import Verifier

Sampling: TypeAlias = Literal["with_replacement", "without_replacement", "top_k"]
Tree: TypeAlias = Sequence[Any]
"""A node is the sequence of its children; a leaf is empty."""

LARGEST_TREE = 10_000
"""Most nodes of a tree: the field's trees have 25 to 60; a list that contains itself is caught here."""
LARGEST_ORDERS = 2**24
"""Most entries of the laws after every order of siblings tried: about a gigabyte with the temporaries of one step."""


class Node(NamedTuple):
    """One node: the index of its parent on the level above, its place among the siblings, its number of children."""

    parent: int
    sibling: int
    children: int


def tree_levels(tree: Tree) -> list[list[Node]]:
    """Nodes by depth, root first, siblings in draft order.

    Raises
    ------
    ValueError
        For anything but nested lists or tuples, naming the path of the offending node, or more than
        `LARGEST_TREE` nodes.
    """
    level: list[tuple[str, Any, int, int]] = [("tree", tree, 0, 0)]
    levels: list[list[Node]] = []
    count = 0
    while level:
        below: list[tuple[str, Any, int, int]] = []
        for index, (path, node, _, _) in enumerate(level):
            if not isinstance(node, (list, tuple)):
                raise ValueError(f"{path} is {node!r}; a node is the list of its children, a leaf is []")
            below.extend((f"{path}[{j}]", child, index, j) for j, child in enumerate(node))
            if count + len(level) + len(below) > LARGEST_TREE:
                raise ValueError(f"the tree has more than {LARGEST_TREE} nodes, or a list that contains itself")
        count += len(level)
        levels.append([Node(parent, j, len(node)) for _, node, parent, j in level])
        level = below
    return levels


def check_sampling(sampling: str) -> None:
    """Raise unless the way siblings are drawn is one of the three."""
    if sampling not in get_args(Sampling):
        raise ValueError(f"sampling must be one of {', '.join(get_args(Sampling))}, got {sampling!r}")


class Siblings(NamedTuple):
    """What a node with up to k children does, given its prefix. All arrays (m, V)."""

    accepted: list[Array]
    """accepted[j][:, x]: probability that child j + 1 is the first accepted one and carries token x."""
    replaced: list[Array]
    """replaced[k][:, x]: probability that a node with k children rejects them all and draws x; replaced[0] = p."""

    def output(self, children: int) -> Array:
        """Law of the token that a node with this many children emits."""
        return sum(self.accepted[:children], self.replaced[children])


def sibling_steps(p: Array, q: Array, verifier: Verifier, depth: int, children: int, sampling: Sampling) -> Siblings:
    """Try up to `children` siblings after every prefix: the accepted mass of each and what is drawn otherwise.

    Parameters
    ----------
    p, q : array, shape (m, V)
        Target and draft rows.
    verifier : Verifier
        Its acceptance and residual are asked with (p^(j), q^(j)) at position `depth`.
    depth : int
        0-based depth of the token being decided.
    children : int
        k ≥ 0.
    sampling : {"with_replacement", "without_replacement", "top_k"}

    Raises
    ------
    ValueError
        If the orders in which siblings can be tried without replacement are too many to enumerate.

    Notes
    -----
    Without replacement, and with a residual that depends on the rejected token (`DraftDependentResidual`), p^(j)
    depends on the tokens already tried, in order: V^(j−1) laws for sibling j.
    Source: recursive rejection at the module's head. Oracle: plain recursion over single tokens in rationals.
    """
    xp = array_namespace(p, q)
    rows, size = p.shape
    exclusive = sampling == "without_replacement"
    by_token = verifier.residual if isinstance(verifier.residual, DraftDependentResidual) else None
    # Top-k siblings are certain, so that the order in which they were tried is too.
    split = (exclusive or by_token is not None) and sampling != "top_k"
    if split and max(children, 1) * math.log(size) > math.log(LARGEST_ORDERS / rows):
        raise ValueError(
            f"{children} siblings over {size} tokens and {rows} prefixes, every order of tokens tried kept apart, need "
            f"{rows}·{size}**{children} entries, more than {LARGEST_ORDERS}; use fewer siblings or a smaller vocabulary"
        )
    ranks = xp.argsort(-q, axis=-1, stable=True) if sampling == "top_k" else None
    others = 1 - xp.eye(size, dtype=p.dtype, device=device(p))
    ids = xp.arange(size, device=device(p))
    mass, law, left = xp.ones_like(p[:, :1]), p[:, None, :], q[:, None, :]
    exhausted = xp.zeros_like(p)
    accepted, replaced = [], [p * xp.ones_like(q)]
    for j in range(children):
        if ranks is not None:
            top = ranks[:, min(j, size - 1)][:, None]
            left = xp.astype((ids[None, :] == top) & (j < size), p.dtype)[:, None, :]
        total = xp.sum(left, axis=-1)
        alive = total > 0
        # A node whose candidates ran out keeps its law and tries no more siblings.
        exhausted = exhausted + xp.sum(xp.where(alive, 0 * mass, mass)[..., None] * law, axis=1)
        mass = xp.where(alive, mass, 0 * mass)
        drafted = xp.where(alive[..., None], left / xp.where(alive, total, xp.ones_like(total))[..., None], law)
        f = verifier.acceptance(law, drafted, depth)
        accepted.append(xp.sum(mass[..., None] * drafted * f, axis=1))
        rejected = mass[..., None] * drafted * (1 - f)
        before, law = law, verifier.residual(law, drafted, f)
        replaced.append(exhausted + xp.sum(xp.sum(rejected, axis=-1, keepdims=True) * law, axis=1))
        if split and j + 1 < children:
            orders = law.shape[1] * size
            mass = xp.reshape(rejected, (rows, orders))
            left = left if exclusive else xp.broadcast_to(left, law.shape)
            # The law after each rejected token: one for all of them, unless the residual looks at the token.
            law = xp.broadcast_to(law[:, :, None, :], (*law.shape[:2], size, size))
            if by_token is not None:
                law = by_token.given(before[:, :, None, :], drafted[:, :, None, :], ids)
            law = xp.reshape(law, (rows, orders, size))
            left = left[:, :, None, :] * (others if exclusive else xp.ones_like(others))
            left = xp.reshape(left, (rows, orders, size))
        else:
            mass = xp.sum(rejected, axis=-1)
    return Siblings(accepted, replaced)


@dataclass(frozen=True, eq=False)
class TreeAnalysis(RoundAnalysis):
    """What one draft tree does; see `analyse_tree`. `length` is the depth of the tree.

    Attributes
    ----------
    candidates : int
        Drafted tokens of the tree, the root excluded.
    sampling : str
    """

    candidates: int
    sampling: Sampling


class _Walked(NamedTuple):
    survival: list[Array]
    bias: list[Array]
    law: Array
    """Mass of every prefix of `depth` tokens, whether it was accepted or has ended above."""
    target: Array


def _walk(
    target: Chain, draft: Chain, verifier: Verifier, levels: list[list[Node]], sampling: Sampling, enumerated: bool
) -> _Walked:
    masses: list[Array] = []
    survival, bias = [], []
    layers = joint_layers(target, draft, len(levels) - 1, enumerate_prefixes=enumerated)
    for depth, layer in enumerate(layers):
        p, nodes = layer.target, levels[depth]
        xp = array_namespace(p, layer.draft)
        if not masses:
            masses = [xp.ones_like(p[:, 0])]
            ended, own = xp.zeros_like(p[:, 0]), xp.ones_like(p[:, 0])
        steps = sibling_steps(p, layer.draft, verifier, depth, max(node.children for node in nodes), sampling)
        distance = {k: total_variation(steps.output(k), p) for k in {node.children for node in nodes}}
        bias.append(sum(xp.sum(mass * distance[node.children]) for node, mass in zip(nodes, masses, strict=True)))
        replaced = ended[:, None] * p
        for node, mass in zip(nodes, masses, strict=True):
            replaced = replaced + mass[:, None] * steps.replaced[node.children]
        ended, own = layer.fold(replaced), layer.fold(own[:, None] * p)
        below = levels[depth + 1]
        masses = [layer.fold(masses[child.parent][:, None] * steps.accepted[child.sibling]) for child in below]
        survival.append(sum(xp.sum(mass) for mass in masses))
    return _Walked(survival, bias, sum(masses, ended), own)


def analyse_tree(
    target: Chain, draft: Chain, verifier: Verifier, tree: Tree, sampling: Sampling = "without_replacement"
) -> TreeAnalysis:
    """Exact law, accepted length, bound and divergences of one static draft tree.

    Parameters
    ----------
    target, draft : Chain
        Of one vocabulary; the target at least depth + 1 tokens deep, the draft at least depth.
    verifier : Verifier
        Token-wise. Its rule sees the current law p^(j), the sibling's law q^(j) and the depth, so ω_i of a
        multiplicative rule is the factor of depth i. A rule that is lossless for every pair of laws keeps the
        law exactly the target's, with the optimal or the vanilla residual.
    tree : nested lists
        A node is the list of its children. More siblings than tokens are no error: without replacement and
        with top-k the node then runs out of candidates.
    sampling : {"with_replacement", "without_replacement", "top_k"}

    Returns
    -------
    TreeAnalysis
        Survival S_i (depth i accepted from the tree), accepted length and bound at once; law and divergences when
        first asked for. Between Markov and independent chains the former do not enumerate prefixes.

    Raises
    ------
    ValueError
        For a malformed tree or one without candidates, an unknown sampling, a chain shallower than the tree,
        different vocabularies, or more cases than can be enumerated.
    TypeError
        For a verifier that is not token-wise.

    Notes
    -----
    Source: recursive rejection over siblings is that of SpecInfer (2305.09781) and, without replacement, of
    recursive speculative decoding. Oracle: plain recursion over single nodes and tokens in rationals. A tree with one
    child per node is `analyse_round`.
    """
    levels = tree_levels(tree)
    depth = len(levels) - 1
    check_sampling(sampling)
    if depth == 0:
        raise ValueError("the tree has no candidates; give the root at least one child, for instance [[]]")
    if not (hasattr(verifier, "acceptance") and hasattr(verifier, "residual")):
        raise TypeError(f"a tree needs a token-wise verifier (acceptance and residual), got {verifier!r}")
    same_vocabulary(target.vocab_size, draft.vocab_size)
    check_depth(target, depth + 1, "target", f"a tree of depth {depth} and one more token")
    check_depth(draft, depth, "draft", f"a tree of depth {depth}")

    def laws() -> tuple[Array, Array]:
        _check_size(target.vocab_size, depth + 1)
        walked = _walk(target, draft, verifier, levels, sampling, True)
        p = _target_level(target, depth)
        xp = array_namespace(p)
        shape = (target.vocab_size,) * (depth + 1)
        return xp.reshape(walked.law[:, None] * p, shape), xp.reshape(walked.target[:, None] * p, shape)

    walked = _walk(target, draft, verifier, levels, sampling, False)
    xp = array_namespace(walked.law)
    return TreeAnalysis(
        _laws=laws,
        length=depth,
        survival=xp.stack(walked.survival),
        tv_bound_per_position=xp.stack(walked.bias),
        candidates=sum(map(len, levels)) - 1,
        sampling=sampling,
    )
