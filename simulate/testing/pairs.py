"""Pairs of chains that are hard for a sampler: every known kind of fault shows on one of them.

>>> [pair.name for pair in adversarial_pairs()][:2]
['reversed masses', 'two coins']
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import theory
from simulate.synthetic import dirichlet_tree, random_markov
from theory.arrays import same_vocabulary, whole_number
from theory.chains import check_depth


@dataclass(frozen=True, eq=False)
class Pair:
    """A target and a draft under one round.

    Parameters
    ----------
    name : str
    target, draft : theory.Chain
        p and the declared q, at least L+1 and L tokens deep.
    length : int
        L ≥ 1.
    drawn_from : theory.Chain, optional
        The law the drafts are drawn from if it is not q (*forced* drafts): it reaches tokens that q hardly ever gives.
    most_rounds : int, optional
        Never more rounds than this, where a round is expensive.

    Raises
    ------
    ValueError
        For chains too shallow, different vocabularies or a length below one.
    """

    name: str
    target: theory.Chain
    draft: theory.Chain
    length: int
    drawn_from: theory.Chain | None = None
    most_rounds: int | None = None

    def __post_init__(self) -> None:
        length = whole_number(self.length, "length", 1)
        for chain, name in ((self.target, "target"), (self.draft, "draft")):
            if not hasattr(chain, "conditional"):
                raise ValueError(f"{name} must be a chain such as theory.IIDChain(p), got {chain!r}")
        same_vocabulary(self.target.vocab_size, self.draft.vocab_size)
        check_depth(self.target, length + 1, "target", f"a round of {length} drafted tokens and one more")
        check_depth(self.draft, length, "draft", f"a round of {length} drafted tokens")
        if self.drawn_from is not None:
            same_vocabulary(self.draft.vocab_size, self.drawn_from.vocab_size)
            check_depth(self.drawn_from, length, "law of the drafts", f"a round of {length} drafted tokens")


def _iid(p: Any, q: Any) -> Callable[[int], tuple[theory.Chain, theory.Chain]]:
    return lambda length: (theory.IIDChain(p), theory.IIDChain(q))


LARGEST_TREE = 2**20
"""Most entries of a full table of laws; for longer rounds a chain of order one stands in its place."""


def _tree(size: int, seed: int, concentration: float = 1.0) -> Callable[[int], tuple[theory.Chain, theory.Chain]]:
    def build(length: int) -> tuple[theory.Chain, theory.Chain]:
        rng = np.random.default_rng(seed)
        if size ** (length + 1) > LARGEST_TREE:
            return random_markov(size, rng, concentration), random_markov(size, rng, concentration)
        target = dirichlet_tree(size, length + 1, rng, concentration=concentration)
        return target, dirichlet_tree(size, length, rng, concentration=concentration)

    return build


def _markov(length: int) -> tuple[theory.Chain, theory.Chain]:
    rng = np.random.default_rng(4)
    return random_markov(3, rng), random_markov(3, rng)


def _equal_tree(length: int) -> tuple[theory.Chain, theory.Chain]:
    target, _ = _tree(3, 5)(length)
    return target, target


WIDE = 4096
"""Ids of the wide pair: enough for sums in half precision to lose the tail."""

_KINDS: list[tuple[str, int, Callable[[int], tuple[theory.Chain, theory.Chain]]]] = [
    ("reversed masses", 1, _iid([0.5, 0.3, 0.2], [0.2, 0.3, 0.5])),
    ("two coins", 2, _iid([0.5, 0.5], [0.75, 0.25])),
    ("greedy draft", 2, _iid([0.3, 0.5, 0.2], [0.0, 0.0, 1.0])),
    ("weights carried along a block", 2, _iid([0.2, 0.4, 0.4], [0.1, 0.1, 0.8])),
    ("prefix-dependent, four tokens", 2, _tree(4, 1)),
    ("prefix-dependent, deep", 4, _tree(2, 2)),
    ("tokens the target never emits", 2, _iid([0.0, 0.3, 0.7], [0.5, 0.2, 0.3])),
    ("tokens the draft never gives", 2, _iid([0.3, 0.3, 0.4], [0.0, 0.6, 0.4])),
    ("disjoint supports", 2, _iid([0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.5, 0.5])),
    ("certain target", 2, _iid([0.0, 1.0, 0.0], [0.4, 0.2, 0.4])),
    ("draft equals target", 3, _equal_tree),
    ("order one", 3, _markov),
    ("one small mass", 1, _iid([0.45, 0.45, 0.10], [0.3, 0.1, 0.6])),
    ("four reversed masses", 1, _iid([0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4])),
    ("peaked", 2, _tree(3, 3, 0.3)),
]


def adversarial_pairs(length: int | None = None, vocab_size: int | None = None, *, wide: bool = True) -> list[Pair]:
    """The built-in pairs.

    Parameters
    ----------
    length : int, optional
        L of every pair; lengths 1…4, each where it shows most, by default.
    vocab_size : int, optional
        Only pairs over so many ids (2, 3, 4 or 4096), for verifiers bound to a vocabulary. All by default.
    wide : bool
        Whether to include the pair over 4096 ids, which costs the time of all others.

    Returns
    -------
    list of Pair

    Raises
    ------
    ValueError
        For a length below one, or if no pair has that vocabulary.
    """
    if length is not None:
        length = whole_number(length, "length", 1)
    pairs = [Pair(name, *build(length or own), length or own) for name, own, build in _KINDS]
    uniform = theory.IIDChain(np.full(3, 1 / 3))
    tiny = (theory.IIDChain([1e-9, 0.6, 0.4 - 1e-9]), theory.IIDChain([1e-8, 0.4, 0.6 - 1e-8]))
    pairs.append(Pair("tiny masses, forced", *tiny, length or 1, drawn_from=uniform))
    # In float32 the residual of this one is empty: 1 − 10⁻⁹ and 1 − 10⁻⁸ are both one.
    even = theory.IIDChain([0.5, 0.5])
    almost = (theory.IIDChain([1e-9, 1 - 1e-9]), theory.IIDChain([1e-8, 1 - 1e-8]))
    pairs.append(Pair("nearly certain, forced", *almost, length or 1, drawn_from=even))
    if wide:
        flat, certain = theory.IIDChain(np.full(WIDE, 1 / WIDE)), theory.IIDChain(np.eye(1, WIDE)[0])
        pairs.append(Pair("wide vocabulary", flat, certain, length or 1, most_rounds=512))
    chosen = [pair for pair in pairs if vocab_size in (None, pair.target.vocab_size)]
    if not chosen:
        raise ValueError(f"no built-in pair has {vocab_size} ids; they have 2, 3, 4 or {WIDE}")
    return chosen
