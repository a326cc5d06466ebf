"""The proved statements, on random chains of rationals: one position, one round, schedules, sequences."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import theory
from tests.theory.helpers import chain_pairs, oracle_round, random_tree, relaxed_fraction, tabular

TOLERANCE = 1e-12
OMEGA = st.fractions(min_value=0, max_value=4, max_denominator=4)
RELAXATION = st.fractions(min_value=1, max_value=4, max_denominator=4)


def round_of(pair: Any, rule: theory.Rule, residual: Any = theory.optimal_residual) -> theory.RoundAnalysis:
    size, length, target, draft = pair
    return theory.analyse_round(tabular(target, size), tabular(draft, size), theory.Verifier(rule, residual), length)


def every_rule(data: Any, size: int, length: int) -> theory.Rule:
    neighbours = [[y for y in range(size) if y != x] for x in range(size)]
    return data.draw(
        st.one_of(
            st.just(theory.Lossless()),
            st.just(theory.AcceptAll()),
            st.lists(OMEGA, min_size=length, max_size=length).map(lambda o: theory.Relaxed([float(x) for x in o])),
            st.floats(0, 1).map(theory.Ensemble),
            st.floats(0, 1).map(theory.DivergenceThreshold),
            st.integers(1, size).map(theory.TopK),
            st.just(theory.Typical()),
            st.floats(0, 1).map(lambda d: theory.Lantern(neighbours, size - 1, d)),
            st.floats(1, 5).map(lambda lam: theory.LanternPlusPlus(neighbours, size - 1, lam)),
            st.floats(0, 1).map(lambda lam: theory.EntropyRelaxed(lam, 0.7)),
        )
    )


@given(chain_pairs(), st.data())
def test_law_length_and_bound_equal_the_rational_oracle(pair: Any, data: Any) -> None:
    size, length, target, draft = pair
    omega = data.draw(st.lists(OMEGA, min_size=length, max_size=length))
    law, accepted, bound = oracle_round(target, draft, relaxed_fraction(omega), size, length)
    a = round_of(pair, theory.Relaxed([float(o) for o in omega]))
    np.testing.assert_allclose(a.law.reshape(-1), [float(x) for x in law.values()], rtol=0, atol=TOLERANCE)
    assert a.expected_accepted == pytest.approx(float(accepted), abs=TOLERANCE)
    assert a.tv_bound == pytest.approx(float(bound), abs=TOLERANCE)


@given(chain_pairs(), st.data())
def test_every_rule_gives_a_law_within_its_bound(pair: Any, data: Any) -> None:
    rule = every_rule(data, pair[0], pair[1])
    residual = data.draw(st.sampled_from([theory.optimal_residual, theory.vanilla_residual, theory.target_residual]))
    a = round_of(pair, rule, residual)
    assert a.law.min() >= 0
    assert a.law.sum() == pytest.approx(1, abs=TOLERANCE)
    assert a.total_variation <= a.tv_bound + TOLERANCE
    lower = a.total_variation_by_prefix
    assert all(x <= y + TOLERANCE for x, y in itertools.pairwise(lower))
    assert lower[-1] == pytest.approx(a.total_variation, abs=TOLERANCE)


@given(chain_pairs(), st.data())
def test_what_a_rule_claims_is_true(pair: Any, data: Any) -> None:
    size, length, target, draft = pair
    rule = every_rule(data, size, length)
    lossless = round_of(pair, theory.Lossless())
    for prefix in target:
        if len(prefix) >= length:
            continue
        p, q = (np.array([float(x) for x in rows[prefix]]) for rows in (target, draft))
        f = rule.acceptance(p, q, len(prefix))
        assert ((f >= 0) & (f <= 1)).all()
        if rule.lossless:
            assert (q * f <= p + TOLERANCE).all()
        if rule.at_least_lossless:
            assert (q * f >= np.minimum(p, q) - TOLERANCE).all()
        if rule.support_safe:
            assert (f[(p == 0) & (q > 0)] == 0).all()
    a = round_of(pair, rule)
    if theory.Verifier(rule).lossless:
        np.testing.assert_allclose(a.law, a.target_law, rtol=0, atol=TOLERANCE)
    if rule.at_least_lossless:
        assert a.expected_accepted >= lossless.expected_accepted - TOLERANCE


@given(chain_pairs())
def test_lossless_is_exact(pair: Any) -> None:
    for residual in (theory.optimal_residual, theory.vanilla_residual):
        a = round_of(pair, theory.Lossless(), residual)
        np.testing.assert_allclose(a.law, a.target_law, rtol=0, atol=TOLERANCE)
        assert a.total_variation <= TOLERANCE
        assert a.kl_output_target <= TOLERANCE


@given(chain_pairs(), st.data())
def test_one_biased_position_makes_the_bound_an_equality(pair: Any, data: Any) -> None:
    _, length, *_ = pair
    omega = [1.0] * length
    omega[data.draw(st.integers(0, length - 1))] = float(data.draw(RELAXATION))
    a = round_of(pair, theory.Relaxed(omega))
    assert a.total_variation == pytest.approx(a.tv_bound, abs=TOLERANCE)


@given(chain_pairs(), st.fractions(0, 4, max_denominator=8), st.floats(0, 2))
def test_the_floor_changes_nothing_but_accepted_length(pair: Any, delta: Fraction, nu: float) -> None:
    _, length, *_ = pair
    plain = theory.exponential_schedule(length, float(delta), nu)
    before, after = round_of(pair, theory.Relaxed(plain)), round_of(pair, theory.Relaxed(np.maximum(plain, 1)))
    np.testing.assert_allclose(before.law, after.law, rtol=0, atol=TOLERANCE)
    assert before.tv_bound == pytest.approx(after.tv_bound, abs=TOLERANCE)
    assert after.expected_accepted >= before.expected_accepted - TOLERANCE


@given(chain_pairs(), st.data())
def test_the_ratio_cap(pair: Any, data: Any) -> None:
    _, length, *_ = pair
    omega = [float(o) for o in data.draw(st.lists(OMEGA, min_size=length, max_size=length))]
    assert round_of(pair, theory.Relaxed(omega)).max_ratio <= np.prod(np.maximum(omega, 1)) * (1 + TOLERANCE)


@st.composite
def laws(draw: Any, size: int) -> np.ndarray:
    counts = draw(st.lists(st.integers(0, 10), min_size=size, max_size=size).filter(lambda c: sum(c) > 0))
    return np.array(counts) / sum(counts)


@given(st.integers(2, 6), st.data())
def test_no_residual_beats_the_optimal_one(size: int, data: Any) -> None:
    p, q = data.draw(laws(size)), data.draw(laws(size))
    f = np.array(data.draw(st.lists(st.floats(0, 1), min_size=size, max_size=size)))
    rejected = float(np.sum(q * (1 - f)))

    def tv(residual: np.ndarray) -> float:
        return theory.total_variation(q * f + rejected * residual, p)

    best = tv(theory.optimal_residual(p, q, f))
    assert best == pytest.approx(float(np.clip(q * f - p, 0, None).sum()), abs=TOLERANCE)
    rng = np.random.default_rng(0)
    for residual in (p, theory.vanilla_residual(p, q, f), *rng.dirichlet(np.ones(size), 50), *np.eye(size)):
        assert best <= tv(residual) + TOLERANCE


@given(st.integers(2, 6), st.data())
def test_one_position_line_and_waste(size: int, data: Any) -> None:
    """TV(o, p) + R = TV(p, q) + waste, and no waste whenever f ≥ lossless."""
    p, q = data.draw(laws(size)), data.draw(laws(size))
    f = np.array(data.draw(st.lists(st.floats(0, 1), min_size=size, max_size=size)))
    lossless = theory.Lossless().acceptance(p, q, 0)
    for acceptance in (f, np.maximum(f, lossless)):
        rejected = float(np.sum(q * (1 - acceptance)))
        out = q * acceptance + rejected * theory.optimal_residual(p, q, acceptance)
        waste = float(np.sum(np.minimum(p, q) - np.minimum(p, q * acceptance)))
        assert theory.total_variation(out, p) + rejected == pytest.approx(
            theory.total_variation(p, q) + waste, abs=TOLERANCE
        )
        if acceptance is not f:
            assert waste == pytest.approx(0, abs=TOLERANCE)


@given(st.integers(2, 5), st.integers(1, 6), st.data())
def test_closed_form_on_prefix_independent_chains(size: int, length: int, data: Any) -> None:
    p, q = data.draw(laws(size)), data.draw(laws(size))
    omega = [float(o) for o in data.draw(st.lists(RELAXATION, min_size=length, max_size=length))]
    verifier = theory.Verifier(theory.Relaxed(omega))
    a = theory.analyse_round(theory.IIDChain(p), theory.IIDChain(q), verifier, length)
    rates = [float(np.sum(q * verifier.acceptance(p, q, i))) for i in range(length)]
    assert a.tv_bound == pytest.approx(theory.closed_form_bound(rates, theory.overlap(p, q)), abs=TOLERANCE)
    np.testing.assert_allclose(a.survival, np.cumprod(rates), rtol=0, atol=TOLERANCE)


@given(chain_pairs(max_length=2), st.data())
def test_predictive_tv_is_the_mean_step_bias(pair: Any, data: Any) -> None:
    """With f ≥ lossless and G*, biases of different offsets never cancel."""
    size, length, target, draft = pair
    omega = [float(o) for o in data.draw(st.lists(RELAXATION, min_size=length, max_size=length))]
    s = theory.analyse_sequence(
        tabular(target, size), tabular(draft, size), theory.Verifier(theory.Relaxed(omega)), length, length + 1
    )
    predictive = s.predictive()
    np.testing.assert_allclose(predictive.total_variation, s.step_bias, rtol=0, atol=TOLERANCE)
    assert s.total_variation <= s.tv_bound + TOLERANCE
    for name in ("kl_output_target", "kl_target_output"):
        total, whole = float(getattr(predictive, name).sum()), float(getattr(s, name))
        assert total == pytest.approx(whole, abs=1e-11), name


def test_below_lossless_biases_can_cancel() -> None:
    """Negative control: with some ω < 1 and the vanilla residual the equality above fails."""
    rng = np.random.default_rng(3)
    target, draft = random_tree(rng, 3, 4), random_tree(rng, 3, 4)
    verifier = theory.Verifier(theory.Relaxed([2.0, 0.3]), theory.vanilla_residual)
    s = theory.analyse_sequence(target, draft, verifier, 2, 4)
    assert (s.predictive().total_variation < s.step_bias - 1e-4).any()


@given(chain_pairs())
def test_prop_1_the_vanilla_residual_is_optimal_above_lossless_only(pair: Any) -> None:
    size, length, target, draft = pair
    chains = tabular(target, size), tabular(draft, size)
    optimal, vanilla = (
        theory.analyse_round(*chains, theory.Verifier(theory.Relaxed(1.5), g), length)
        for g in (theory.optimal_residual, theory.vanilla_residual)
    )
    np.testing.assert_allclose(optimal.law, vanilla.law, rtol=0, atol=TOLERANCE)


def test_prop_1_fails_below_lossless() -> None:
    p, q = theory.IIDChain([0.5, 0.3, 0.2]), theory.IIDChain([0.2, 0.3, 0.5])
    rule = theory.Relaxed(0.5)
    assert theory.analyse_round(p, q, theory.Verifier(rule), 1).total_variation <= TOLERANCE
    assert theory.analyse_round(p, q, theory.Verifier(rule, theory.vanilla_residual), 1).total_variation > 0.1


@pytest.mark.parametrize("seed", range(5))
def test_annealing_lowers_the_bound_at_equal_accepted_length(seed: int) -> None:
    rng = np.random.default_rng(seed)
    target, draft = random_tree(rng, 4, 5), random_tree(rng, 4, 5)

    def accepted(verifier: theory.Verifier) -> float:
        return theory.analyse_round(target, draft, verifier, 4).expected_accepted

    uniform = theory.Verifier(theory.Relaxed(1.6))
    wanted = accepted(uniform)
    delta = theory.match(lambda d: theory.cool_sd(4, d, floor=1.0), accepted, wanted, 0.25, 50.0)
    annealed = theory.cool_sd(4, delta, floor=1.0)
    backwards = theory.match(
        lambda d: theory.Verifier(theory.Relaxed(theory.exponential_schedule(4, d, -0.7, floor=1.0))),
        accepted,
        wanted,
        0.25,
        50.0,
    )
    reversed_ = theory.Verifier(theory.Relaxed(theory.exponential_schedule(4, backwards, -0.7, floor=1.0)))
    bounds = [theory.analyse_round(target, draft, v, 4).tv_bound for v in (annealed, uniform, reversed_)]
    assert accepted(annealed) == pytest.approx(wanted, abs=1e-8)
    assert bounds[0] < bounds[1] < bounds[2]
