"""The rule that is optimal where the value of going on depends on the position alone."""

from __future__ import annotations

import numpy as np
import pytest

import theory
from simulate import dirichlet_tree, make_draft

LENGTH = 4
IID = theory.IIDChain([0.5, 0.3, 0.2]), theory.IIDChain([0.2, 0.3, 0.5])


def points(target: theory.Chain, draft: theory.Chain, free: float) -> tuple[float, float]:
    """Accepted length, and the most that any token-wise rule accepts at that bound."""
    a = theory.analyse_round(target, draft, theory.Verifier(theory.OutrightFirst(free)), LENGTH)
    return a.expected_accepted, theory.bound_frontier(target, draft, LENGTH).at(float(a.tv_bound))


@pytest.mark.parametrize("free", [0.0, 0.4, 1.0, 2.7, 4.0, 9.0])
def test_it_lies_on_the_frontier_of_independent_tokens(free: float) -> None:
    accepted, most = points(*IID, free)
    assert accepted == pytest.approx(most, abs=1e-9)


def test_control_it_does_not_where_the_value_depends_on_the_prefix() -> None:
    rng = np.random.default_rng(0)
    target = dirichlet_tree(3, LENGTH + 1, rng)
    accepted, most = points(target, make_draft(target, 0.3, rng), 1.5)
    assert accepted < most - 0.01


def test_control_the_last_positions_outright_do_not_either() -> None:
    rule = theory.Relaxed(np.array([1.0, 1.0, np.inf, np.inf]))
    a = theory.analyse_round(*IID, theory.Verifier(rule), LENGTH)
    assert a.expected_accepted < theory.bound_frontier(*IID, LENGTH).at(float(a.tv_bound)) - 0.01


@pytest.mark.parametrize("free", [0, 1, 4])
def test_whole_positions_are_the_schedule_of_infinite_factors(free: int) -> None:
    p, q = [0.5, 0.5, 0.0], [0.2, 0.3, 0.5]
    schedule = theory.Relaxed(theory.bang_bang_schedule(LENGTH, free))
    where = np.arange(LENGTH)
    ours = theory.OutrightFirst(free).acceptance(p, q, where)
    np.testing.assert_array_equal(ours, schedule.acceptance(p, q, where))
    assert theory.OutrightFirst(free).lossless == (free == 0)


def test_bad_strengths() -> None:
    for free in (-0.1, float("nan"), "x"):
        with pytest.raises(ValueError, match="free must be"):
            theory.OutrightFirst(free)  # type: ignore[arg-type]
