"""Level and power of the test of one law: exactly by enumeration where that is possible, by repetition elsewhere."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulate.testing import strategies
from simulate.testing.sequential import (
    distance_threshold,
    expected_distance,
    log_evidence,
    log_pair_evidence,
    look_level,
    looks,
    mean_evidence,
    smallest_distance,
)


def all_counts(cells, rounds):
    """Every vector of counts with its multinomial coefficient."""
    for counts in itertools.product(range(rounds + 1), repeat=cells):
        if sum(counts) == rounds:
            ways = math.factorial(rounds) / math.prod(math.factorial(k) for k in counts)
            yield np.array(counts), ways


@given(strategies.laws(3), st.integers(1, 5))
def test_the_evidence_has_mean_one_under_the_declared_law(law, rounds):
    mean = sum(
        ways * np.prod(law**counts) * np.exp(np.where(np.prod(law**counts) > 0, log_evidence(counts, law, 0.0), 0.0))
        for counts, ways in all_counts(3, rounds)
    )
    assert mean[:-1] == pytest.approx(1.0, abs=1e-9)
    assert np.all(mean <= 1 + 1e-9)


@given(strategies.laws(3), st.integers(1, 5), st.sampled_from([1e-6, 1e-3, 0.05]), st.integers(0, 2), st.integers(0, 2))
def test_the_evidence_has_mean_at_most_one_under_laws_off_by_the_rounding(law, rounds, rounding, down, up):
    true = law.copy()
    moved = min(rounding, true[down])
    true[down] -= moved
    true[up] += moved
    mean = sum(
        ways * np.prod(true**counts) * np.exp(np.minimum(log_evidence(counts, law, rounding), 600.0))
        for counts, ways in all_counts(3, rounds)
        if np.prod(true**counts) > 0
    )
    assert np.all(mean <= 1 + 1e-9)


@given(st.floats(0, 1), st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=3))
def test_the_evidence_of_pairs_is_that_of_two_cells(agree, rows):
    found = log_pair_evidence(np.array(rows), agree, 1e-6)
    for row, counts in zip(found, rows, strict=True):
        one = log_evidence(np.array(counts), np.array([agree, 1 - agree]), 1e-6)
        assert row == pytest.approx(one[:-1], abs=1e-6, rel=1e-9)


def test_pairs_that_must_agree():
    assert np.isposinf(log_pair_evidence(np.array([[5, 1]]), 1.0, 0.0)).all()
    assert (log_pair_evidence(np.array([[5, 0], [0, 0]]), 1.0, 0.0) == 0).all()


def test_a_correct_sampler_is_rejected_no_more_often_than_the_level_however_one_stops():
    """At level .2, looking after every few rounds, under the declared law and under one off by all the rounding."""
    rng, law, rounding = np.random.default_rng(0), np.array([0.6, 0.39, 0.01]), 0.01
    for true, allowed in ((law, 0.0), (np.array([0.59, 0.39, 0.02]), rounding)):
        alarms = 0
        for _ in range(200):
            counts = rng.multinomial(16, true, size=30).cumsum(axis=0)
            alarms += any(mean_evidence([log_evidence(n, law, allowed)]) >= math.log(5) for n in counts)
        assert alarms <= 0.2 * 200


def test_an_impossible_event_rejects_at_once_without_rounding_and_soon_with_it():
    law, hit = np.array([0.0, 0.5, 0.5]), np.array([1, 100, 99])
    assert np.isposinf(log_evidence(hit, law, 0.0)).all()
    one, four = (log_evidence(np.array([k, 500, 500]), law, 1e-6).max() for k in (1, 4))
    assert one < math.log(1e9) < four


def test_the_mean_of_several_is_the_mean():
    logs = [np.log([1.0, 3.0]), np.log([2.0, 6.0])]
    assert mean_evidence(logs) == pytest.approx(math.log(3.0))
    assert mean_evidence([np.array([-np.inf, np.inf])]) == math.inf


@given(strategies.laws(3), st.integers(1, 6))
def test_the_expected_distance_is_exact(law, rounds):
    plain = sum(
        ways * np.prod(law**counts) * np.abs(counts / rounds - law).sum() / 2 for counts, ways in all_counts(3, rounds)
    )
    assert expected_distance(law, rounds) == pytest.approx(plain, abs=1e-12)


def test_the_distance_test_keeps_its_level_and_its_promise():
    rng, law, rounds, alpha, beta = np.random.default_rng(0), np.array([0.5, 0.3, 0.15, 0.05]), 500, 0.05, 0.1
    epsilon = smallest_distance(law, rounds, alpha, beta, 0.0)
    threshold = distance_threshold(law, rounds, alpha, 0.0)
    wrong = law + epsilon * np.array([-1.0, 0.5, 0.3, 0.2])
    assert np.abs(wrong - law).sum() / 2 == pytest.approx(epsilon)
    alarms, found = (
        np.mean(np.abs(rng.multinomial(rounds, true, 4000) / rounds - law).sum(axis=1) / 2 >= threshold)
        for true in (law, wrong)
    )
    assert alarms <= alpha
    assert found >= 1 - beta


def test_the_promise_needs_more_rounds_for_smaller_distances():
    law = np.full(20, 0.05)
    seen = [smallest_distance(law, n, 1e-9, 0.01, 0.0) for n in (10, 100, 1000, 10_000, 100_000)]
    assert seen[0] == 1.0
    assert seen == sorted(seen, reverse=True)
    assert smallest_distance(law, 1000, 1e-9, 0.01, 0.01) == pytest.approx(seen[2] + 0.01)


@given(st.sampled_from([0.5, 0.1, 0.05, 0.02]), st.integers(2, 10**6), st.integers(2, 40))
def test_looks_end_at_the_least_sufficient_number_or_at_the_limit(smallest, most, cells):
    law = np.full(cells, 1 / cells)
    rounds = looks(law, 1e-9, 0.01, 1e-6, smallest, most)
    assert rounds == sorted(set(rounds))
    assert all(n % 2 == 0 and 2 <= n <= most for n in rounds)
    level = look_level(1e-9, len(rounds))
    reached = smallest_distance(law, rounds[-1], level, 0.01, 1e-6)
    if reached <= smallest:
        assert smallest_distance(law, rounds[-1] - 2, level, 0.01, 1e-6) > smallest or rounds[-1] == 2
    else:
        assert rounds[-1] >= most - 1


def test_the_levels_of_all_looks_sum_to_the_level():
    assert sum(look_level(1.0, look) for look in range(1, 10**5)) == pytest.approx(1.0, abs=1e-4)
