"""The strategies give what they promise, and reach the cases that matter."""

import numpy as np
import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

import theory
from simulate.testing import check_law, reference_sampler, strategies


@given(st.integers(1, 5).flatmap(lambda size: st.tuples(st.just(size), strategies.laws(size))))
def test_laws(drawn):
    size, law = drawn
    assert law.shape == (size,)
    assert theory.probabilities(law, "law") == pytest.approx(law)


@given(strategies.pairs(), st.data())
def test_pairs_can_be_analysed_under_every_verifier(pair, data):
    verifier = data.draw(strategies.verifiers(pair.length, pair.target.vocab_size))
    found = theory.analyse_round(pair.target, pair.draft, verifier, pair.length)
    assert 0 <= found.total_variation <= found.tv_bound + 1e-9
    assert 0 <= found.expected_accepted <= pair.length + 1e-9


@given(strategies.pairs(), st.data())
def test_lossless_verifiers_are(pair, data):
    verifier = data.draw(strategies.verifiers(pair.length, lossless=True))
    assert verifier.lossless
    assert theory.analyse_round(pair.target, pair.draft, verifier, pair.length).total_variation < 1e-9


@given(strategies.rounds())
def test_rounds_are_taken_by_a_sampler(rounds):
    tokens, accepted = reference_sampler(theory.Verifier(theory.Lossless()))(rounds, np.random.default_rng(0))
    assert tokens.shape == (rounds.count, rounds.length + 1)
    drafted = np.take_along_axis(rounds.draft_probs, rounds.draft_ids[:, :, None], axis=2)
    assert (drafted > 0).all()
    assert ((accepted >= 0) & (accepted <= rounds.length)).all()


@pytest.mark.parametrize(
    ("strategy", "condition"),
    [
        (strategies.pairs(), lambda pair: pair.target is pair.draft),
        (strategies.pairs(), lambda pair: isinstance(pair.target, theory.TabularChain) and pair.length > 1),
        (strategies.laws(3), lambda law: (law == 0).sum() == 2),
        (strategies.rounds(), lambda rounds: rounds.count == 0),
        (strategies.verifiers(), lambda verifier: verifier.stateful and not verifier.lossless),
    ],
    ids=["equal chains", "prefix-dependent", "certain law", "empty batch", "relaxed block"],
)
def test_hard_cases_are_reached(strategy, condition):
    find(strategy, condition, settings=settings(max_examples=300, phases=[Phase.generate], database=None))


@given(strategies.pairs(vocab_size=2, length=2), st.data())
def test_a_correct_sampler_of_any_verifier_passes_on_any_pair(pair, data):
    verifier = data.draw(strategies.verifiers(2, 2))
    assert check_law(reference_sampler(verifier), verifier=verifier, pairs=[pair], max_rounds=512, seeds=False).passed
