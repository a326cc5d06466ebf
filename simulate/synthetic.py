"""Synthetic chains: targets with known laws.

Families, from no structure to the structure of images:

* `dirichlet_tree`    every next-token law an independent Dirichlet draw (`theory.TabularChain`)
* `random_markov`     the same for a chain of order one; `dirichlet_iid` for independent tokens
* `potts_grid`        an H×W image in raster order, p(x | left, up) ∝ exp(h_x + J·1[x=left] + J·1[x=up])
* `embedding_chain`   p(y | x) ∝ exp(e_yᵀ W e_x / (D·T)) with clustered embeddings e: tokens of one cluster are
  interchangeable, which is what LANTERN pools

Drafts for them are made by `simulate.drafts.make_draft`.

>>> grid = potts_grid(1, 2, 2, coupling=np.log(3))
>>> grid.conditional([[0], [1]]).round(3).tolist()
[[0.75, 0.25], [0.25, 0.75]]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

import theory
from simulate.laws import Floats, Integers
from theory.arrays import probabilities, real_number, to_numpy, whole_number


def _dirichlet(vocab_size: int, shape: tuple[int, ...], rng: np.random.Generator, concentration: float) -> Floats:
    size = whole_number(vocab_size, "vocab_size", 1)
    weight = real_number(concentration, "concentration", least=0.0)
    if weight == 0:
        raise ValueError("concentration must be positive, got 0")
    return rng.dirichlet(np.full(size, weight), size=shape)


def dirichlet_tree(
    vocab_size: int, depth: int, rng: np.random.Generator, concentration: float = 1.0
) -> theory.TabularChain:
    """Chain whose next-token laws are independent Dirichlet(c, …, c) draws, one for every prefix.

    Parameters
    ----------
    vocab_size, depth : int
        V and the number of tokens; V**depth entries in all.
    rng : numpy.random.Generator
    concentration : float
        c > 0; below one the laws are peaked, above one flat.

    Raises
    ------
    ValueError
        For V, depth < 1 or c ≤ 0.
    """
    depth = whole_number(depth, "depth", 1)
    return theory.TabularChain([_dirichlet(vocab_size, (vocab_size,) * i, rng, concentration) for i in range(depth)])


def random_markov(vocab_size: int, rng: np.random.Generator, concentration: float = 1.0) -> theory.MarkovChain:
    """Markov chain with Dirichlet(c, …, c) initial law and transition rows; arguments as for `dirichlet_tree`."""
    initial = _dirichlet(vocab_size, (), rng, concentration)
    return theory.MarkovChain(initial, _dirichlet(vocab_size, (vocab_size,), rng, concentration))


def dirichlet_iid(vocab_size: int, rng: np.random.Generator, concentration: float = 1.0) -> theory.IIDChain:
    """Independent tokens with one Dirichlet(c, …, c) law; arguments as for `dirichlet_tree`."""
    return theory.IIDChain(_dirichlet(vocab_size, (), rng, concentration))


@dataclass(frozen=True, eq=False)
class GridChain:
    """An image of height × width tokens in raster order; the next token depends on its left and upper neighbours.

    Parameters
    ----------
    height, width : int
        At least 1. The chain is height·width tokens deep.
    table : array, shape (V+1, V+1, V)
        table[left, up] is the law of a token; index V stands for "no such neighbour" (first column, first row).

    Raises
    ------
    ValueError
        Naming the row that is no probability, or the shape that does not fit.
    """

    height: int
    width: int
    table: Floats

    def __post_init__(self) -> None:
        object.__setattr__(self, "height", whole_number(self.height, "height", 1))
        object.__setattr__(self, "width", whole_number(self.width, "width", 1))
        table = to_numpy(probabilities(self.table, "table"))
        if table.ndim != 3 or table.shape[0] != table.shape[2] + 1 or table.shape[1] != table.shape[2] + 1:
            raise ValueError(f"table must have shape (V+1, V+1, V), got {table.shape}")
        object.__setattr__(self, "table", table)

    @property
    def vocab_size(self) -> int:
        return int(self.table.shape[-1])

    @property
    def depth(self) -> int:
        return self.height * self.width

    def conditional(self, prefixes: Any) -> Floats:
        """Next-token laws, shape (n, V), after integer prefixes of shape (n, d), d < height·width."""
        ids = np.asarray(prefixes, dtype=np.int64)
        if ids.ndim != 2:
            raise ValueError(f"prefixes must have shape (n, d), got {ids.shape}")
        return self.conditional_at(ids, np.full(len(ids), ids.shape[1]))

    def neighbours_at(self, tokens: Any, lengths: Any) -> tuple[Integers, Integers]:
        """Left and upper neighbour of token lengths[i] of row i, each (n,); V where there is none."""
        ids, lengths = np.asarray(tokens, dtype=np.int64), np.asarray(lengths, dtype=np.int64)
        far = (lengths < 0) | (lengths >= self.depth) | (lengths > ids.shape[1])
        if far.any():
            i = int(np.argmax(far))
            raise ValueError(
                f"row {i}: a prefix of {lengths[i]} tokens has no next token in {self.height}x{self.width} "
                f"tokens, or is longer than the {ids.shape[1]} given"
            )
        row, rows = lengths // self.width, np.arange(len(ids))
        pair = []
        for exists, back in ((lengths % self.width > 0, 1), (row > 0, self.width)):
            at = np.full(len(ids), self.vocab_size)
            at[exists] = ids[rows[exists], lengths[exists] - back]
            bad = exists & ((at < 0) | (at >= self.vocab_size))
            if bad.any():
                i = int(np.argmax(bad))
                raise ValueError(
                    f"prefix {i} has token {at[i]} at place {lengths[i] - back}; tokens lie in 0…{self.vocab_size - 1}"
                )
            pair.append(at)
        return pair[0], pair[1]

    def conditional_at(self, tokens: Any, lengths: Any) -> Floats:
        """Next-token laws after prefixes of different lengths; see `theory.conditional_at`."""
        return self.table[self.neighbours_at(tokens, lengths)]


def potts_grid(
    height: int,
    width: int,
    colours: int,
    rng: np.random.Generator | None = None,
    coupling: float = 1.0,
    field: Any = None,
) -> GridChain:
    """Potts-like image grid: p(x | left, up) ∝ exp(h_x + J·1[x=left] + J·1[x=up]).

    Not the Potts model itself, whose raster-order conditionals have no closed form, but its causal counterpart.

    Parameters
    ----------
    height, width, colours : int
        At least 1; V = colours.
    rng : numpy.random.Generator, optional
        Draws the field h from the standard normal where `field` is not given; without it h = 0.
    coupling : float
        J. Positive values make patches of one colour.
    field : array, shape (colours,), optional
        h.

    Raises
    ------
    ValueError
        For sizes < 1, or a field that is not finite or of the wrong shape.
    """
    size = whole_number(colours, "colours", 1)
    pull = real_number(coupling, "coupling")
    if field is None:
        field = np.zeros(size) if rng is None else rng.standard_normal(size)
    h = np.asarray(field, dtype=np.float64)
    if h.shape != (size,) or not np.isfinite(h).all():
        raise ValueError(f"field must be {size} finite numbers, one a colour; got shape {h.shape}: {h}")
    same = np.vstack([np.eye(size), np.zeros(size)])
    return GridChain(height, width, softmax(h + pull * same[:, None, :] + pull * same[None, :, :]))


class EmbeddingChain(NamedTuple):
    """A Markov chain whose tokens carry embeddings; see `embedding_chain`."""

    chain: theory.MarkovChain
    embedding: Floats
    """Shape (V, D)."""
    cluster: Integers
    """Shape (V,): which tokens are interchangeable."""


def embedding_chain(
    vocab_size: int,
    dim: int,
    rng: np.random.Generator,
    temperature: float = 0.5,
    clusters: int | None = None,
    spread: float = 0.05,
) -> EmbeddingChain:
    """Markov chain over clustered embeddings: near-duplicate tokens have nearly equal probabilities.

    Parameters
    ----------
    vocab_size, dim : int
        V and D.
    rng : numpy.random.Generator
    temperature : float
        T > 0: p(y | x) ∝ exp(e_yᵀ W e_x / (D·T)), W standard normal.
    clusters : int, optional
        Number of clusters, V // 4 (at least 1) by default; token x lies in cluster ⌊x·clusters/V⌋.
    spread : float
        Standard deviation of an embedding around its cluster's centre, whose own entries have deviation 1; 0 makes
        the tokens of a cluster exact duplicates.

    Raises
    ------
    ValueError
        For sizes < 1, T ≤ 0, spread < 0 or more clusters than tokens.
    """
    size, dim = whole_number(vocab_size, "vocab_size", 1), whole_number(dim, "dim", 1)
    heat, spread = real_number(temperature, "temperature", least=0.0), real_number(spread, "spread", least=0.0)
    count = max(1, size // 4) if clusters is None else whole_number(clusters, "clusters", 1)
    if heat == 0 or count > size:
        raise ValueError(f"temperature must be positive and clusters <= {size}, got {temperature} and {count}")
    cluster = np.arange(size) * count // size
    embedding = rng.standard_normal((count, dim))[cluster] + spread * rng.standard_normal((size, dim))
    keys = np.vstack([rng.standard_normal(dim) * np.sqrt(dim), embedding @ rng.standard_normal((dim, dim))])
    laws = softmax(keys @ embedding.T / (dim * heat))
    return EmbeddingChain(theory.MarkovChain(laws[0], laws[1:]), embedding, cluster)


def softmax(logits: Floats) -> Floats:
    """exp(logits), normalised on the last axis; −∞ gives zero."""
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))
