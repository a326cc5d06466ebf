"""Chains: the target p(·|c) and the draft q(·|c) as laws of the next token after a prefix.

A chain answers one question, `conditional(prefixes)`; everything exact is built on it. Three kinds are
given: a full table (`TabularChain`), a chain of order one (`MarkovChain`) and independent tokens (`IIDChain`).
Exact analyses walk the prefixes of two chains together, one *layer* per token (`joint_layers`). Prefixes
that both chains cannot tell apart share one row of a layer: V^i rows for tables, V for Markov chains,
one for independent tokens. That is why accepted length and bound of a Markov chain cost L·V² and not V^L.

>>> chain = MarkovChain([0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]])
>>> chain.conditional([[0], [1]]).tolist()
[[0.9, 0.1], [0.2, 0.8]]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from theory.arrays import Array, array_namespace, device, probabilities, same_vocabulary, to_numpy, whole_number

LARGEST_LAW = 2**26
"""Most sequences V^T an exact law may have: 64 Mi float64 entries, half a gigabyte an array."""


@runtime_checkable
class Chain(Protocol):
    """Law of the next token after a prefix.

    Attributes
    ----------
    vocab_size : int
        V.
    depth : int or None
        How many tokens the chain is defined for; None for any number.
    """

    @property
    def vocab_size(self) -> int: ...

    @property
    def depth(self) -> int | None: ...

    def conditional(self, prefixes: Any) -> Array:
        """Next-token laws, shape (n, V), after integer prefixes of shape (n, d)."""
        ...


def _prefixes(prefixes: Any, vocab_size: int) -> np.ndarray[Any, Any]:
    ids = _integers(to_numpy(prefixes), "prefixes")
    if ids.ndim != 2:
        raise ValueError(f"prefixes must have shape (n, d), got {ids.shape}")
    if ids.size and (ids.min() < 0 or ids.max() >= vocab_size):
        row, column = np.argwhere((ids < 0) | (ids >= vocab_size))[0]
        raise ValueError(
            f"prefix {row} has token {ids[row, column]} at place {column}; tokens lie in 0…{vocab_size - 1}"
        )
    return ids.astype(np.int64)


def _integers(values: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
    if values.size and values.dtype.kind not in "iu":
        raise ValueError(f"{name} must be integers, got dtype {values.dtype}")
    return values


@dataclass(frozen=True, eq=False)
class TabularChain:
    """A chain given by its full table.

    Parameters
    ----------
    levels : sequence of arrays
        levels[i] has shape (V,)*(i+1): the law of token i+1 after every prefix of i tokens. A round of draft
        length L needs L+1 levels. Nested lists, NumPy arrays and torch tensors are taken.

    Raises
    ------
    ValueError
        Naming level, row and value of the first entry that is no probability, or the level of wrong shape.
    """

    levels: tuple[Array, ...]

    def __init__(self, levels: Sequence[Any]) -> None:
        if len(levels) == 0:
            raise ValueError("levels is empty; a chain needs at least the law of its first token")
        checked = tuple(probabilities(level, f"levels[{i}]") for i, level in enumerate(levels))
        size = int(checked[0].shape[-1])
        for i, level in enumerate(checked):
            if tuple(level.shape) != (size,) * (i + 1):
                raise ValueError(
                    f"levels[{i}] has shape {tuple(level.shape)}, expected {(size,) * (i + 1)}: one axis of "
                    f"{size} tokens for each of the {i} tokens before it, and one for its own law"
                )
        object.__setattr__(self, "levels", checked)

    @property
    def vocab_size(self) -> int:
        return int(self.levels[0].shape[-1])

    @property
    def depth(self) -> int:
        return len(self.levels)

    def conditional(self, prefixes: Any) -> Array:
        ids = _prefixes(prefixes, self.vocab_size)
        length = ids.shape[1]
        if length >= self.depth:
            raise ValueError(f"a prefix of {length} tokens has no next token in a chain of {self.depth} levels")
        flat = ids @ (self.vocab_size ** np.arange(length - 1, -1, -1)) if length else np.zeros(len(ids), int)
        return take_rows(self.level(length), flat)

    def level(self, index: int) -> Array:
        """Table of token index+1 as (V**index, V), prefixes in lexicographic order."""
        table = self.levels[index]
        return array_namespace(table).reshape(table, (-1, self.vocab_size))


@dataclass(frozen=True, eq=False)
class MarkovChain:
    """A chain whose next token depends on the last one only.

    Parameters
    ----------
    initial : array, shape (V,)
        Law of the first token.
    transition : array, shape (V, V)
        transition[x] is the law of the token after x.

    Raises
    ------
    ValueError
        Naming row and value of what is no probability, or the shapes that do not match.
    """

    initial: Array
    transition: Array

    def __post_init__(self) -> None:
        initial = probabilities(self.initial, "initial")
        transition = probabilities(self.transition, "transition")
        if initial.ndim != 1 or tuple(transition.shape) != (initial.shape[0],) * 2:
            raise ValueError(
                f"expected shapes (V,) and (V, V), got {tuple(initial.shape)} and {tuple(transition.shape)}"
            )
        object.__setattr__(self, "initial", initial)
        object.__setattr__(self, "transition", transition)

    @property
    def vocab_size(self) -> int:
        return int(self.initial.shape[-1])

    @property
    def depth(self) -> None:
        return None

    def conditional(self, prefixes: Any) -> Array:
        ids = _prefixes(prefixes, self.vocab_size)
        if ids.shape[1] == 0:
            return repeat_rows(self.initial, len(ids))
        return take_rows(self.transition, ids[:, -1])


@dataclass(frozen=True, eq=False)
class IIDChain:
    """Independent tokens with one law.

    Parameters
    ----------
    p : array, shape (V,)

    Raises
    ------
    ValueError
        Naming the entry that is no probability.
    """

    p: Array

    def __post_init__(self) -> None:
        p = probabilities(self.p, "p")
        if p.ndim != 1:
            raise ValueError(f"p must have shape (V,), got {tuple(p.shape)}")
        object.__setattr__(self, "p", p)

    @property
    def vocab_size(self) -> int:
        return int(self.p.shape[-1])

    @property
    def depth(self) -> None:
        return None

    def conditional(self, prefixes: Any) -> Array:
        return repeat_rows(self.p, len(_prefixes(prefixes, self.vocab_size)))


def take_rows(table: Array, rows: np.ndarray[Any, Any]) -> Array:
    """Rows of a (n, V) table by integer index, on the table's own device."""
    xp = array_namespace(table)
    if xp.__name__.endswith("numpy"):
        return table[rows]
    return xp.take(table, xp.asarray(rows, device=device(table)), axis=0)


def repeat_rows(row: Array, count: int) -> Array:
    """One law repeated `count` times, shape (count, V)."""
    xp = array_namespace(row)
    return xp.broadcast_to(row[None, :], (count, row.shape[0]))


def all_prefixes(vocab_size: int, length: int) -> np.ndarray[Any, Any]:
    """All V^length prefixes in lexicographic order, shape (V**length, length)."""
    grid = np.indices((vocab_size,) * length, dtype=np.int64)
    return grid.reshape(length, -1).T if length else np.zeros((1, 0), dtype=np.int64)


def conditional_at(chain: Chain, tokens: Any, lengths: Any) -> Array:
    """Next-token laws after prefixes of different lengths.

    Parameters
    ----------
    chain : Chain
    tokens : integer array, shape (n, T)
        Row i's prefix is tokens[i, :lengths[i]]; what stands behind it is ignored.
    lengths : integer array, shape (n,)

    Returns
    -------
    array, shape (n, V)
        By one call of `chain.conditional` for each distinct length, or by the chain's own
        ``conditional_at(tokens, lengths)`` where it has one.
    """
    own = getattr(chain, "conditional_at", None)
    tokens, lengths = np.asarray(tokens), np.asarray(lengths)
    if own is not None:
        return own(tokens, lengths)
    if tokens.ndim != 2 or lengths.shape != tokens.shape[:1]:
        raise ValueError(f"expected tokens (n, T) and lengths (n,), got {tokens.shape} and {lengths.shape}")
    bad = np.flatnonzero((_integers(lengths, "lengths") < 0) | (lengths > tokens.shape[1]))
    if bad.size:
        raise ValueError(f"lengths[{bad[0]}] is {lengths[bad[0]]}; it must lie in 0…{tokens.shape[1]}")
    out = np.empty((len(tokens), chain.vocab_size))
    for length in np.unique(lengths):
        rows = np.flatnonzero(lengths == length)
        out[rows] = to_numpy(chain.conditional(tokens[rows, :length]))
    return out


class Layer(NamedTuple):
    """Laws of one token after every class of prefixes that the two chains tell apart.

    `target` and `draft` have shape (m, V). `fold` carries mass of shape (m, V, ...), indexed by
    class and token, to the classes of the next layer, shape (m', ...).
    """

    target: Array
    draft: Array
    fold: Callable[[Array], Array]


def _fold_all(mass: Array) -> Array:
    return array_namespace(mass).reshape(mass, (-1, *mass.shape[2:]))


def _fold_last(mass: Array) -> Array:
    return array_namespace(mass).sum(mass, axis=0)


def _fold_none(mass: Array) -> Array:
    return array_namespace(mass).sum(mass, axis=(0, 1))[None]


def check_depth(chain: Chain, needed: int, name: str, why: str) -> None:
    """Raise if the chain is defined for fewer than `needed` tokens."""
    if chain.depth is not None and chain.depth < needed:
        raise ValueError(f"the {name} has {chain.depth} levels but {why} needs {needed}; give it more levels")


def next_laws(chain: Chain, prefixes: np.ndarray[Any, Any], name: str) -> Array:
    """`chain.conditional`, its rows checked where the chain is not one of this module's own.

    Raises
    ------
    ValueError
        For another shape than (n, V), or rows that are no probabilities.
    """
    rows = chain.conditional(prefixes)
    if isinstance(chain, (TabularChain, MarkovChain, IIDChain)):
        return rows
    checked = probabilities(rows, f"{name}.conditional after {prefixes.shape[1]} tokens")
    if tuple(checked.shape) != (len(prefixes), chain.vocab_size):
        raise ValueError(
            f"{name}.conditional gave shape {tuple(checked.shape)} for {len(prefixes)} prefixes, expected "
            f"{(len(prefixes), chain.vocab_size)}: one law for each prefix"
        )
    return checked


def joint_layers(target: Chain, draft: Chain, tokens: int, *, enumerate_prefixes: bool = False) -> Iterator[Layer]:
    """Walk both chains together, one layer per token.

    Parameters
    ----------
    target, draft : Chain
        Of one vocabulary and at least `tokens` deep.
    tokens : int
        Number of layers.
    enumerate_prefixes : bool
        Keep every prefix apart (needed for the law of whole sequences) even where Markov or
        independent chains would let them be merged.

    Raises
    ------
    ValueError
        If the vocabularies differ, if V**tokens exceeds `LARGEST_LAW` and prefixes must be enumerated, or if a chain
        from outside this module answers with rows that are no probabilities.
    """
    same_vocabulary(target.vocab_size, draft.vocab_size)
    tokens = whole_number(tokens, "tokens", 1)
    size = target.vocab_size
    pair = (target, draft)
    names = ("target", "draft")
    first = [next_laws(chain, np.zeros((1, 0), int), name) for chain, name in zip(pair, names, strict=True)]
    if not enumerate_prefixes and all(isinstance(chain, IIDChain) for chain in pair):
        for _ in range(tokens):
            yield Layer(first[0], first[1], _fold_none)
        return
    if not enumerate_prefixes and all(isinstance(chain, (IIDChain, MarkovChain)) for chain in pair):
        yield Layer(first[0], first[1], _fold_last)
        last = np.arange(size)[:, None]
        tables = [chain.transition if isinstance(chain, MarkovChain) else chain.conditional(last) for chain in pair]
        for _ in range(1, tokens):
            yield Layer(tables[0], tables[1], _fold_last)
        return
    if size**tokens > LARGEST_LAW:
        raise ValueError(
            f"the law of {tokens} tokens over {size} ids has {size}**{tokens} entries, more than "
            f"{LARGEST_LAW}; use a shorter round, MarkovChain or IIDChain (accepted length and bound only), "
            "or simulate.estimate"
        )
    for i in range(tokens):
        rows = [
            chain.level(i) if isinstance(chain, TabularChain) else next_laws(chain, all_prefixes(size, i), name)
            for chain, name in zip(pair, names, strict=True)
        ]
        yield Layer(rows[0], rows[1], _fold_all)
