"""Hypothesis strategies for chains, pairs, verifiers and rounds, for the tests of any project.

Laws are integer counts 0…10 divided by their sum, so that zeros, ties and equal laws occur often and shrink to small
fractions. Example, in a project's own test:

    from hypothesis import given
    from simulate.testing import strategies

    @given(strategies.pairs(), strategies.verifiers(lossless=True))
    def test_my_analysis(pair, verifier): ...

Needs Hypothesis: pip install "relaxsd[testing]".

>>> from hypothesis import find
>>> find(laws(3), lambda law: law[0] == 0).tolist()  # the simplest law that never gives token 0
[0.0, 0.0, 1.0]
"""

from __future__ import annotations

from typing import Any

import numpy as np

import theory
from simulate.testing.pairs import Pair
from simulate.testing.protocol import Floats, Rounds

try:
    from hypothesis import strategies as st
except ImportError as error:
    raise ImportError('hypothesis is missing: pip install "relaxsd[testing]"') from error

LARGEST_COUNT = 10


def laws(vocab_size: int) -> Any:
    """Probability vectors, float64 arrays of shape (V,): counts up to 10 over their sum; zeros are frequent."""
    counts = st.lists(st.integers(0, LARGEST_COUNT), min_size=vocab_size, max_size=vocab_size).filter(any)
    return counts.map(lambda c: np.asarray(c) / sum(c))


def chains(vocab_size: int, depth: int) -> Any:
    """Chains at least `depth` tokens deep: independent tokens, of order one, or a full table."""
    rows = laws(vocab_size)
    iid = rows.map(theory.IIDChain)
    table = st.lists(rows, min_size=vocab_size, max_size=vocab_size)
    markov = st.builds(theory.MarkovChain, rows, table.map(np.stack))
    levels = st.tuples(*(_level(vocab_size, i) for i in range(depth)))
    return st.one_of(iid, markov, levels.map(lambda given: theory.TabularChain(list(given))))


def _level(vocab_size: int, depth: int) -> Any:
    count = vocab_size**depth
    shape = (vocab_size,) * (depth + 1)
    return st.lists(laws(vocab_size), min_size=count, max_size=count).map(lambda rows: np.stack(rows).reshape(shape))


@st.composite
def pairs(draw: Any, vocab_size: int | None = None, length: int | None = None) -> Pair:
    """A `Pair`: target, draft and L over V ids; 2…4 ids and 1…3 drafts by default."""
    size = draw(st.integers(2, 4)) if vocab_size is None else vocab_size
    steps = draw(st.integers(1, 3 if size < 4 else 2)) if length is None else length
    target = draw(chains(size, steps + 1))
    draft = draw(st.one_of(chains(size, steps), st.just(target)))
    return Pair("drawn", target, draft, steps)


def _factors(length: int, largest: float = 4.0) -> Any:
    return st.lists(st.floats(0.25, largest), min_size=length, max_size=length)


def _neighbours(vocab_size: int) -> Any:
    return st.permutations(range(vocab_size)).map(
        lambda order: theory.nearest_neighbours(np.asarray(order, dtype=float)[:, None], vocab_size - 1)
    )


def _lossless(length: int) -> Any:
    return st.sampled_from(
        [
            theory.Verifier(theory.Lossless()),
            theory.Verifier(theory.Lossless(), theory.vanilla_residual),
            theory.Verifier(theory.Relaxed(1.0), theory.kl_residual),
            theory.block(length),
            theory.lifted_block(theory.Verifier(theory.Lossless())),
        ]
    )


def verifiers(length: int = 4, vocab_size: int | None = None, *, lossless: bool = False) -> Any:
    """Verifiers for rounds of up to `length` drafts: token-wise and block, lossless and relaxed.

    Parameters
    ----------
    length : int
        Entries of schedules.
    vocab_size : int, optional
        Also rules bound to a vocabulary of so many ids (LANTERN, grouped).
    lossless : bool
        Only those whose output law is the target's.
    """
    if lossless:
        return _lossless(length)
    relaxed = st.builds(theory.Relaxed, _factors(length))
    residual = st.sampled_from(
        [theory.optimal_residual, theory.vanilla_residual, theory.kl_residual, theory.target_residual]
    )
    point_rules = st.one_of(
        relaxed,
        st.just(theory.AcceptAll()),
        st.builds(theory.Ensemble, st.floats(0, 1)),
        st.builds(theory.DivergenceThreshold, st.floats(0, 1)),
        st.builds(theory.Typical),
        st.builds(theory.TopK, st.integers(1, 2)),
        st.builds(theory.EntropyRelaxed),
    )
    token_wise = st.one_of(
        st.builds(theory.Verifier, point_rules, residual),
        st.builds(
            lambda delta, floor: theory.cool_sd(length, delta, floor=floor),
            st.floats(1, 3),
            st.sampled_from([None, 1.0]),
        ),
    )
    choices = [
        _lossless(length),
        token_wise,
        st.builds(theory.capped_block, _factors(length)),
        st.builds(theory.lifted_block, token_wise),
        st.builds(lambda d: theory.Verifier(theory.Cactus(d), theory.CactusResidual(d)), st.floats(0.1, 1)),
    ]
    if vocab_size is not None:
        choices += [
            st.builds(
                lambda near, delta: theory.lantern_verifier(near, vocab_size - 1, delta=delta),
                _neighbours(vocab_size),
                st.floats(0.05, 0.5),
            ),
            st.builds(
                lambda near, lam: theory.lantern_verifier(near, vocab_size - 1, lam=lam, branch="dynamic"),
                _neighbours(vocab_size),
                st.floats(1, 5),
            ),
        ]
    return st.one_of(*choices)


@st.composite
def rounds(draw: Any, max_count: int = 4) -> Rounds:
    """A batch of drafted blocks that any sampler must take: 0…max_count rows of 1…3 drafts over 2…4 ids."""
    size, length, count = draw(st.integers(2, 4)), draw(st.integers(1, 3)), draw(st.integers(0, max_count))

    def block(places: int) -> Floats:
        rows = [draw(laws(size)) for _ in range(count * places)]
        return np.asarray(rows, dtype=np.float64).reshape(count, places, size)

    q = block(length)
    ids = [[draw(st.sampled_from(np.flatnonzero(law).tolist())) for law in row] for row in q]
    return Rounds(np.asarray(ids, dtype=np.int64).reshape(count, length), block(length + 1), q)
