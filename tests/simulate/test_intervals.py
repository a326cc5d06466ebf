"""Intervals: known values, monotone maps, boundaries, refusals."""

import math

import numpy as np
import pytest

from simulate import Interval
from simulate.intervals import mean_interval, ratio_interval


def test_an_interval_is_a_triple_that_says_what_it_is():
    interval = Interval(0.1, 0.2, 0.4, 0.95)
    lower, value, upper = interval
    assert (lower, value, upper) == (0.1, 0.2, 0.4)
    assert interval.kind == "estimate"
    assert 0.4 in interval
    assert 0.41 not in interval
    assert math.nan not in interval
    assert str(interval) == "0.2 [0.1, 0.4]"
    assert tuple(interval.map(lambda x: 1 / x)) == (2.5, 5.0, 10.0)


def test_without_skewness_it_is_students_interval():
    terms = np.array([4.0, 5.0, 6.0, 5.0, 5.0])
    # t quantile .975 with 4 degrees of freedom: 2.7764451052; standard error √(½/5).
    reach = 2.7764451052 * math.sqrt(0.5 / 5)
    assert tuple(mean_interval([terms], 0.95, "normal")) == pytest.approx((5 - reach, 5, 5 + reach), abs=1e-9)


def test_a_long_right_tail_moves_both_ends_up():
    terms = np.random.default_rng(0).exponential(size=50) ** 2
    skewed, mean = mean_interval([terms], 0.95, "normal"), terms.mean()
    assert skewed.upper - mean > mean - skewed.lower > 0


def test_bernstein_by_hand():
    terms = np.tile([0.0, 1.0], 500)
    scale = math.log(4 / 0.05)
    reach = math.sqrt(2 * terms.var(ddof=1) * scale / 1000) + 7 * scale / (3 * 999)
    assert tuple(mean_interval([terms], 0.95, "bernstein", most=1.0)) == pytest.approx((0.5 - reach, 0.5, 0.5 + reach))
    halves = [terms, 1 - terms]
    assert mean_interval(halves, 0.95, "bernstein", most=1.0).width == pytest.approx(2 * 7 * scale / (3 * 999))
    uneven = mean_interval([terms, terms[:500]], 0.95, "bernstein", most=1.0)
    assert uneven.width > 2 * reach


def test_at_the_boundary():
    zero = mean_interval([np.zeros(20)], 0.95, "normal")
    assert tuple(zero) == (0.0, 0.0, 0.0)
    noise = mean_interval([np.abs(np.random.default_rng(0).normal(0, 1e-16, 100))], 0.95, "normal")
    assert noise.lower == 0.0 < noise.upper < 1e-12
    equal = np.full(2000, 0.1) * 3
    assert 0.3 in mean_interval([equal], 0.95, "normal")
    single = np.zeros(30)
    single[0] = 1.0
    rare = mean_interval([single], 0.95, "normal", most=1.0)
    assert rare.lower == 0.0
    assert rare.upper > 0.1
    infinite = mean_interval([[1.0, math.inf]], 0.95, "normal")
    assert tuple(infinite) == (math.inf,) * 3
    assert math.inf in infinite


def test_a_ratio_of_means():
    rng = np.random.default_rng(0)
    below = rng.integers(1, 5, 4000).astype(float)
    above = 0.5 * below + rng.random(4000) - 0.5
    for method in ("normal", "bernstein"):
        interval = ratio_interval(
            above + 0.5, below, 0.99, method, most_above=3.0, least_below=1.0, most_below=4.0, name="ratio"
        )
        assert interval.value == pytest.approx((above.mean() + 0.5) / below.mean())
        assert 0.5 + 0.5 / 2.5 in interval


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (([[1.0]], 0.95, "normal"), {}, "at least two independent terms"),
        (([[1.0, math.nan]], 0.95, "normal"), {"name": "TV"}, "TV: term 1 is NaN"),
        (([[1.0, 2.0]], 0.95, "exact"), {}, "one of normal, bernstein, got 'exact'"),
        (([[1.0, 2.0]], 1.0, "normal"), {}, "strictly between 0 and 1, got 1.0"),
        (([[1.0, 2.0]], 0.95, "bernstein"), {"name": "KL"}, "KL has no upper bound"),
        (([[1.0, 2.0]], 0.95, "bernstein"), {"most": 1.5}, r"leave their stated range \[0.0, 1.5\]"),
    ],
)
def test_bad_input_is_named(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        mean_interval(*arguments, **options)
