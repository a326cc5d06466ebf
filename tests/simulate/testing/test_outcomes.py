"""Declared laws of outcomes against the exact analyses and against plain recursion over single outcomes."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import theory
from simulate.testing import strategies
from simulate.testing.outcomes import Space, complete, outcome_law, split


def by_recursion(target, draft, verifier, length, drawn=None):
    """{(a, tokens): probability} of a token-wise verifier, one draft path at a time."""
    law = {}

    def add(accepted, tokens, mass):
        if mass:
            law[accepted, tokens] = law.get((accepted, tokens), 0.0) + mass

    def walk(prefix, mass):
        i, ids = len(prefix), np.array([prefix], dtype=int).reshape(1, -1)
        p = target.conditional(ids)[0]
        if i == length:
            for x, p_x in enumerate(p):
                add(i, (*prefix, x), mass * p_x)
            return
        q = draft.conditional(ids)[0]
        u = q if drawn is None else drawn.conditional(ids)[0]
        step, f = verifier.step(p, q, i), theory.acceptance_of(verifier, p, q, i)
        for x in range(len(p)):
            if u[x] * f[x]:
                walk((*prefix, x), mass * u[x] * f[x])
            for y, g in enumerate(step.residual):
                add(i, (*prefix, y), mass * u[x] * (1 - f[x]) * g)

    walk((), 1.0)
    return law


def as_cells(law, space):
    out = np.zeros(space.cells)
    for (accepted, tokens), mass in law.items():
        row = np.full((1, space.length + 1), -1)
        row[0, : len(tokens)] = tokens
        out[space.encode(np.array([accepted]), row)[0]] += mass
    return out


@given(st.data(), strategies.pairs())
def test_outcomes_completed_with_the_target_have_the_law_of_the_round(data, pair):
    verifier = data.draw(strategies.verifiers(pair.length, pair.target.vocab_size))
    exact = np.asarray(theory.analyse_round(pair.target, pair.draft, verifier, pair.length).law).ravel()
    space = Space(pair.target.vocab_size, pair.length, counts=True)
    outcomes = outcome_law(pair.target, pair.draft, verifier, space)
    assert np.abs(complete(split(outcomes, space), pair.target, space.depth) - exact).max() < 1e-12
    tokens = outcome_law(pair.target, pair.draft, verifier, Space(space.vocab_size, space.length, counts=False))
    assert np.abs(tokens - exact).max() < 1e-12
    counts = np.bincount(np.maximum(space.outcomes[0], 0), outcomes, pair.length + 1)
    survival = np.append(1.0, theory.analyse_round(pair.target, pair.draft, verifier, pair.length).survival)
    assert np.abs(counts - (survival - np.append(survival[1:], 0.0))).max() < 1e-12


@given(st.data(), strategies.pairs())
def test_outcomes_agree_with_plain_recursion(data, pair):
    size = pair.target.vocab_size
    verifier = data.draw(st.sampled_from([theory.Verifier(theory.Lossless()), theory.Verifier(theory.Ensemble(0.4))]))
    drawn = data.draw(st.one_of(st.none(), strategies.chains(size, pair.length)))
    space = Space(size, pair.length, counts=True)
    plain = as_cells(by_recursion(pair.target, pair.draft, verifier, pair.length, drawn), space)
    assert np.abs(outcome_law(pair.target, pair.draft, verifier, space, drawn) - plain).max() < 1e-12


@pytest.mark.parametrize("counts", [True, False])
@pytest.mark.parametrize(("size", "length"), [(2, 1), (2, 4), (3, 2), (5, 1)])
def test_cells_and_outcomes_are_one_to_one(size, length, counts):
    space = Space(size, length, counts)
    accepted, tokens = space.outcomes
    assert space.depth == length + 1
    full = np.where(tokens < 0, 0, tokens)
    back = space.encode(np.maximum(accepted, 0), full)
    assert np.array_equal(back, np.arange(space.cells))
    assert len({space.describe(cell) for cell in range(space.cells)}) == space.cells
    for statistic in space.statistics:
        assert np.array_equal(np.unique(statistic.label), np.arange(statistic.cells))
        words = {space.describe_event(statistic, label) for label in range(statistic.cells)}
        assert len(words) == statistic.cells


def test_a_wide_vocabulary_is_compared_on_its_leading_tokens():
    p, q = theory.IIDChain(np.full(1000, 1e-3)), theory.IIDChain(np.eye(1000)[0])
    space = Space(1000, 2, counts=True)
    assert space.depth == 1
    law = outcome_law(p, q, theory.Verifier(theory.Lossless()), space)
    assert law[:1000] == pytest.approx(np.append(0.0, np.full(999, 1e-3)))
    assert law[1000:] == pytest.approx(np.append(1e-3, np.zeros(999)))
    assert space.encode(np.array([0, 1, 2]), np.array([[7, -1, -1], [0, 5, -1], [0, 0, 3]])).tolist() == [7, 1000, 1000]
    assert space.describe(7) == "accepted 0, tokens (7)"
    assert space.describe(1000) == "accepted 1 or more, tokens (0)"
    tokens = outcome_law(p, q, theory.Verifier(theory.Lossless()), Space(1000, 2, counts=False))
    assert tokens == pytest.approx(np.full(1000, 1e-3))


@pytest.mark.parametrize(
    "verifier",
    [theory.block(1), theory.Verifier(theory.Cactus(0.5), theory.CactusResidual(0.5))],
    ids=["block", "cactus"],
)
def test_forced_drafts_need_a_verifier_that_fixes_what_follows(verifier):
    p, q = theory.IIDChain([0.5, 0.5]), theory.IIDChain([0.9, 0.1])
    with pytest.raises(ValueError, match="does not fix what follows a given draft"):
        outcome_law(p, q, verifier, Space(2, 1, counts=True), drawn_from=p)


def test_every_outcome_of_a_small_round_is_named():
    space = Space(2, 2, counts=True)
    expected = [
        f"accepted {a}, tokens ({', '.join(map(str, x))})"
        for a in range(3)
        for x in itertools.product(range(2), repeat=a + 1)
    ]
    assert [space.describe(cell) for cell in range(space.cells)] == expected
