"""One node with two children against enumeration of its draws, and what breadth may do to its law."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import theory
from theory.cascade_nodes import two_children
from theory.trees import sibling_steps

SIZE = 4


def enumerated(p: Any, q: Any, states: Any, tau: float, children: int) -> tuple[np.ndarray, float, float]:
    """Output law, acceptance and excess: every ordered draw by itself, the rule and the residual as declared."""
    rule = theory.CascadeStyle(tau)
    output, accepted, excess = np.zeros(len(p)), 0.0, 0.0
    support = [x for x in range(len(p)) if q[x] > 0]
    for draw in permutations(support, min(children, len(support))):
        law, left, weight = np.asarray(p, float), np.asarray(q, float), 1.0
        laws = []
        for x in draw:
            laws.append(left / left.sum())
            weight *= laws[-1][x]
            left = np.where(np.arange(len(p)) == x, 0.0, left)
        at = rule.at(list(draw), np.asarray(states)[list(draw)])
        for x, draft in zip(draw, laws, strict=True):
            f = np.asarray(at.acceptance(law, draft, 0))
            output[x] += weight * f[x]
            accepted += weight * f[x]
            excess += weight * (f[x] - float(theory.Lossless().acceptance(law, draft, 0)[x]))
            law, weight = np.asarray(theory.optimal_residual(law, draft, f)), weight * (1 - f[x])
        output += weight * law
    return output, accepted, excess


@st.composite
def nodes(draw: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    counts = st.lists(st.integers(0, 10), min_size=SIZE, max_size=SIZE)
    p = np.array(draw(counts.filter(lambda c: sum(c) > 0)), float)
    q = np.array(draw(counts.filter(lambda c: sum(n > 0 for n in c) > 1)), float)
    angles = np.array(draw(st.lists(st.integers(0, 5), min_size=SIZE, max_size=SIZE))) * np.pi / 5
    # Cosines of multiples of 36 degrees are .81, .31, -.31, -.81: thresholds between them are safe from rounding.
    tau = draw(st.sampled_from([-1.0, -0.5, 0.0, 0.5, 0.9]))
    return p / p.sum(), q / q.sum(), np.stack([np.cos(angles), np.sin(angles)], axis=1), tau


def likeness(states: np.ndarray, tau: float) -> np.ndarray:
    return states @ states.T >= tau - 1e-9


@given(nodes())
def test_two_children_are_enumerated(node: Any) -> None:
    p, q, states, tau = node
    found = two_children(p, q, likeness(states, tau))
    output, accepted, excess = enumerated(p, q, states, tau, 2)
    np.testing.assert_allclose(found.output, output, rtol=0, atol=1e-12)
    assert found.accepted == pytest.approx(accepted, abs=1e-12)
    assert found.excess == pytest.approx(excess, abs=1e-12)


@given(nodes())
def test_the_bias_of_a_node_is_at_most_its_excess_acceptance(node: Any) -> None:
    """Also with three children, where several classes may overlap."""
    p, q, states, tau = node
    for children in (1, 2, 3):
        output, accepted, excess = enumerated(p, q, states, tau, children)
        lossless, least, _ = enumerated(p, q, states, 2.0, children)
        np.testing.assert_allclose(lossless, p, rtol=0, atol=1e-12)
        assert abs(output - p).sum() / 2 <= excess + 1e-12
        assert least - 1e-12 <= accepted <= least + excess + 1e-12
        if children == 1:
            np.testing.assert_allclose(output, p, rtol=0, atol=1e-12)


def test_without_likeness_it_is_the_lossless_node_and_with_it_the_law_moves() -> None:
    p, q = np.array([0.5, 0.1, 0.1, 0.3]), np.array([0.1, 0.4, 0.3, 0.2])
    steps = sibling_steps(p[None], q[None], theory.Verifier(theory.Lossless()), 0, 2, "without_replacement")
    alone = two_children(p, q, np.eye(4, dtype=bool))
    assert alone.accepted == pytest.approx(sum(float(mass.sum()) for mass in steps.accepted), abs=1e-12)
    np.testing.assert_allclose(alone.output, p, rtol=0, atol=1e-12)
    together = two_children(p, q, np.ones((4, 4), dtype=bool))
    assert together.accepted > alone.accepted + 0.02
    assert abs(together.output - p).sum() / 2 > 0.05
    assert together.excess > 2 * (together.accepted - alone.accepted)


@pytest.mark.parametrize(
    ("p", "q", "alike", "message"),
    [
        ([0.5, 0.5], [1.0, 0.0], np.eye(2), "single token"),
        ([0.5, 0.5], [0.5, 0.5], np.eye(3), r"alike \(V, V\), got \(2,\), \(2,\) and \(3, 3\)"),
        ([0.5, 0.5], [0.5, 0.5], [[1, 1], [0, 1]], r"alike\[0, 1\] differs from alike\[1, 0\]"),
    ],
)
def test_bad_nodes(p: Any, q: Any, alike: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        two_children(p, q, alike)
