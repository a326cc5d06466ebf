"""Linear programmes of the frontiers: rules that exist, bounds that hold, solvers that fail."""

from __future__ import annotations

import sys
from typing import Any

import cvxpy
import numpy as np
import pytest

import theory
from tests.theory.test_frontier import LOSSLESS, markov, pair
from theory.exact_frontier import block_frontier, exact_frontier
from theory.frontier import bound_frontier
from theory.frontier_distance import distance_to_frontier
from theory.optimal import optimal_verifier

module = sys.modules["theory.exact_frontier"]
"""The module: `theory.exact_frontier` names its function."""


def random_rules(chains: Any, length: int, count: int, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """N, B with the optimal residual, and exact TV with a random residual, of `count` random rules at once."""
    mass, ended, law = np.ones((count, 1)), np.zeros((count, 1)), np.ones(1)
    accepted = bound = np.zeros(count)
    for i in range(length):
        p, q = (chain.level(i) for chain in chains)
        lossless = np.minimum(p, q) / q
        f = rng.random((count, *p.shape)) ** rng.choice([0.05, 0.3, 1.0, 3.0], (count, 1, 1))
        # A third each: any f, f above lossless, f bang-bang.
        above = lossless + (1 - lossless) * f
        which = rng.integers(0, 3, (count, 1, 1))
        f = np.where(which == 0, f, np.where(which == 1, above, np.where(f < 0.5, lossless, 1.0)))
        flow = mass[:, :, None] * q * f
        g = rng.dirichlet(np.ones(p.shape[1]) * 0.5, (count, len(p)))
        best = np.clip(p - q * f, 0, None)
        best = best / np.maximum(best.sum(-1, keepdims=True), 1e-300)
        g = np.where(rng.random((count, 1, 1)) < 0.5, best, g)
        bound = bound + np.clip(flow - mass[:, :, None] * p, 0, None).sum((1, 2))
        ended = (ended[:, :, None] * p + (mass - flow.sum(-1))[:, :, None] * g).reshape(count, -1)
        law = (law[:, None] * p).reshape(-1)
        mass = flow.reshape(count, -1)
        accepted = accepted + mass.sum(1)
    return accepted, bound, np.abs(mass + ended - law).sum(1) / 2


def test_no_random_rule_beats_either_frontier() -> None:
    rng = np.random.default_rng(5)
    for size, length in ((2, 3), (3, 2)):
        chains = pair(rng, size, length)
        accepted, bound, tv = random_rules(chains, length, 5000, rng)
        front = bound_frontier(*chains, length)
        exact = exact_frontier(*chains, length, np.linspace(0, 1, 21))
        block = block_frontier(*chains, length, np.linspace(0, front.tv_bound[-1], 21))
        assert (accepted <= front.at(bound) + 1e-12).all()
        assert (accepted <= exact.upper_at(tv) + 1e-9).all()
        assert (accepted <= block.upper_at(bound) + 1e-9).all()
        # Control: the comparison has power; some random rules come close to the frontier.
        assert (front.at(bound) - accepted).min() < 0.05
        # The exact frontier lies on or above the bound's, and the block one above both at equal B.
        assert (exact.upper_at(front.tv_bound) >= front.expected_accepted - 1e-9).all()
        assert (block.upper >= front.at(block.budgets) - 1e-9).all()


@pytest.mark.parametrize("kind", ["tree", "markov"])
def test_exact_rules_exist(kind: str) -> None:
    """N and TV of the rule behind every point, by the round's own analysis."""
    rng = np.random.default_rng(6)
    chains = pair(rng, 3, 3) if kind == "tree" else (markov(rng, 3), markov(rng, 3))
    exact = exact_frontier(*chains, 3, [0.0, 0.05, 0.2, 1.0])
    lossless = theory.analyse_round(*chains, LOSSLESS, 3)
    for k in range(4):
        a = theory.analyse_round(*chains, exact.verifier(k), 3)
        assert a.total_variation == pytest.approx(exact.total_variation[k], abs=1e-13)
        assert a.expected_accepted == pytest.approx(exact.expected_accepted[k], abs=1e-13)
    assert exact.lower[0] == pytest.approx(lossless.expected_accepted, abs=1e-12)
    assert exact.lower[-1] == pytest.approx(3, abs=1e-9)
    assert (exact.upper - exact.lower).max() < 1e-9


def test_the_exact_frontier_lies_strictly_above() -> None:
    chains = pair(np.random.default_rng(0), 3, 3)
    v = optimal_verifier(*chains, 3, budget=0.3)
    a = theory.analyse_round(*chains, v, 3)
    d = distance_to_frontier(*chains, v, 3)
    assert abs(d.left_at_bound) < 1e-9
    assert d.left_at_total_variation > 0.05
    assert d.upper_at_total_variation - d.best_at_total_variation < 1e-9
    assert d.total_variation == a.total_variation
    uniform = distance_to_frontier(*chains, theory.Verifier(theory.Relaxed(2.0)), 3)
    assert 0 < uniform.left_at_bound < uniform.left_at_total_variation
    lossless = distance_to_frontier(*chains, LOSSLESS, 3)
    assert (lossless.left_at_bound, lossless.left_at_total_variation) == pytest.approx((0, 0), abs=1e-6)


def test_a_broken_certificate_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: a solver that returns a wrong primal or dual must not get through."""
    chains = pair(np.random.default_rng(7), 2, 2)
    genuine = module.exact_lower
    monkeypatch.setattr(module, "exact_lower", lambda levels, a, m, e: genuine(levels, [x * 0.9 for x in a], m, e))
    with pytest.raises(RuntimeError, match=r"certified to .* tokens only"):
        exact_frontier(*chains, 2, [0.1])
    monkeypatch.undo()
    dual = module.exact_upper
    monkeypatch.setattr(module, "exact_upper", lambda levels, y: dual(levels, np.roll(y, 1)))
    with pytest.raises(RuntimeError, match=r"certified to .* tokens only"):
        exact_frontier(*chains, 2, [0.1])


def test_a_solver_that_stops_is_an_error_naming_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    chains = pair(np.random.default_rng(7), 2, 2)
    monkeypatch.setattr(cvxpy.Problem, "status", property(lambda self: "user_limit"))
    for frontier in (exact_frontier, block_frontier):
        with pytest.raises(RuntimeError, match=r"budget 0\.1 was not solved: status 'user_limit'; nothing is returned"):
            frontier(*chains, 2, [0.1])

    def fail(self: Any, **options: Any) -> None:
        raise cvxpy.SolverError("out of iterations")

    monkeypatch.setattr(cvxpy.Problem, "solve", fail)
    with pytest.raises(RuntimeError, match="out of iterations"):
        exact_frontier(*chains, 2, [0.1])


def test_a_primal_that_overspends_is_brought_within_the_budget() -> None:
    """Flows of a larger budget passed off as those of a smaller one: mixed down, and still a rule of that N."""
    chains = pair(np.random.default_rng(9), 3, 2)
    levels = module._levels(*chains, 2)
    much, less = 0.3, 0.1
    for frontier, lower in ((exact_frontier, module.exact_lower), (block_frontier, module.block_lower)):
        best = frontier(*chains, 2, [0.0, less, much])
        flows = best._rules[2]
        given: Any = [flows.accepted]
        if lower is module.exact_lower:
            mass, ended, finished = np.ones(1), np.zeros(1), []
            for (p, q), f, g in zip(levels, flows.acceptance, flows.residual, strict=True):
                kept = mass[:, None] * q * f
                ended = (ended[:, None] * p + (mass - kept.sum(1))[:, None] * g).reshape(-1)
                mass = kept.reshape(-1)
                finished.append(ended)
            given.append(finished)
        found = lower(levels, *given, less)
        assert found.spent <= less + 1e-15
        assert found.total <= best.upper[1] + 1e-12
        # At least the mixture with a rule that spends nothing.
        plain = theory.analyse_round(*chains, LOSSLESS, 2).expected_accepted
        share = less / flows.spent
        assert found.total >= share * flows.total + (1 - share) * plain - 1e-12
        assert lower(levels, *given, much).total == pytest.approx(flows.total, abs=1e-12)


def test_the_dual_bound_does_not_see_a_constant() -> None:
    """Σ y (P̂ − P) is the same for y + c: a solver may return either, and a negative c must not shrink λ."""
    rng = np.random.default_rng(10)
    levels = module._levels(*pair(rng, 2, 3), 3)
    y = rng.random(8)
    reference = module.exact_upper(levels, y)
    assert reference[0] == pytest.approx(y.max() - y.min())
    for shift in (-5.0, 5.0):
        assert module.exact_upper(levels, y + shift) == pytest.approx(reference, abs=1e-12)
