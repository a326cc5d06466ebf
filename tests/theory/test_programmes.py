"""Best residuals: convex programmes against closed forms, and what the freedom of TV is worth."""

from __future__ import annotations

from typing import Any

import cvxpy
import numpy as np
import pytest

import theory
from theory.programmes import best_residual, chi2_divergence, least_tv, polytope_excess
from theory.residual_choice import residual_choice
from theory.residuals import kl_residual

P0, Q0 = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])
VALUES: dict[str, Any] = {
    "tv": theory.total_variation,
    "kl_output_target": theory.kl_divergence,
    "kl_target_output": lambda o, p: theory.kl_divergence(p, o),
    "chi2": chi2_divergence,
}


def step(rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """p, q, f that over- and under-accepts, and distances in a random embedding."""
    p, q = rng.dirichlet(np.ones(size), 2)
    f = np.where(rng.random(size) < 0.4, 1.0, rng.random(size))
    points = rng.normal(size=(size, 2))
    return p, q, f, np.linalg.norm(points[:, None] - points[None], axis=-1)


def law(p: np.ndarray, q: np.ndarray, f: np.ndarray, g: np.ndarray) -> np.ndarray:
    return q * f + np.sum(q * (1 - f)) * g


@pytest.mark.parametrize("objective", list(VALUES))
@pytest.mark.parametrize("tv_optimal", [False, True])
def test_programmes_reach_the_closed_forms(objective: Any, tv_optimal: bool) -> None:
    """Water filling attains every programme's optimum, inside and outside the TV polytope."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        p, q, f, _ = step(rng, int(rng.integers(2, 7)))
        found = best_residual(p, q, f, objective, tv_optimal=tv_optimal)
        closed = VALUES[objective](law(p, q, f, kl_residual(p, q, f)), p)
        scale = max(1.0, closed)
        assert found.lower <= closed + 1e-12 * scale
        assert found.lower == pytest.approx(closed, abs=1e-9 * scale)
        assert closed - 1e-12 * scale <= found.value <= closed + 1e-6 * scale
        assert found.value == pytest.approx(VALUES[objective](law(p, q, f, found.residual), p), abs=1e-14 * scale)
        assert found.residual.sum() == pytest.approx(1, abs=1e-14)
        assert found.residual.min() >= 0
        if objective == "tv":
            assert found.value == pytest.approx(float(least_tv(p, q, f)), abs=1e-9)
        if tv_optimal:
            assert polytope_excess(p, q, f, found.residual) < 1e-7


def test_the_polytope_is_the_set_of_tv_minimisers() -> None:
    rng = np.random.default_rng(1)
    inside = outside = 0
    for _ in range(50):
        p, q, f, _ = step(rng, 4)
        caps = np.clip(p - q * f, 0, None)
        for g in (*rng.dirichlet(np.full(4, 0.5), 50), theory.optimal_residual(p, q, f)):
            tv = theory.total_variation(law(p, q, f, g), p)
            member = polytope_excess(p, q, f, g) <= 1e-12
            assert member == (tv <= least_tv(p, q, f) + 1e-12)
            inside, outside = inside + member, outside + (not member)
        assert caps.sum() >= np.sum(q * (1 - f)) - 1e-15
    assert min(inside, outside) >= 50


def test_no_random_residual_beats_water_filling() -> None:
    rng = np.random.default_rng(2)
    for _ in range(20):
        p, q, f, _ = step(rng, 4)
        o = law(p, q, f, kl_residual(p, q, f))
        others = q * f + np.sum(q * (1 - f)) * np.concatenate([rng.dirichlet(np.full(4, a), 250) for a in (0.3, 3)])
        assert theory.kl_divergence(o, p) <= theory.kl_divergence(others, p).min() + 1e-12
        assert theory.kl_divergence(p, o) <= theory.kl_divergence(p, others).min() + 1e-12
        assert theory.hellinger(o, p) <= theory.hellinger(others, np.broadcast_to(p, others.shape)).min() + 1e-12
        assert theory.max_ratio(p, o) <= theory.max_ratio(np.broadcast_to(p, others.shape), others).min() + 1e-12


def test_water_filling_is_vectorised_and_handles_edges() -> None:
    rng = np.random.default_rng(3)
    p, q, f = rng.dirichlet(np.ones(5), (2, 3)), rng.dirichlet(np.ones(5), (2, 3)), rng.random((2, 3, 5))
    whole = kl_residual(p, q, f)
    for index in np.ndindex(2, 3):
        np.testing.assert_allclose(whole[index], kl_residual(p[index], q[index], f[index]), atol=1e-15)
    np.testing.assert_array_equal(kl_residual(P0, Q0, np.ones(3)), P0)
    lossless = np.minimum(1, P0 / Q0)
    np.testing.assert_allclose(kl_residual(P0, Q0, lossless), [1, 0, 0], atol=1e-15)
    alien = kl_residual([0.6, 0.4, 0.0], [0.2, 0.2, 0.6], [0.5, 0.5, 0.5])
    np.testing.assert_allclose(alien, [0.65, 0.35, 0.0], atol=0.05)
    assert alien[2] == 0
    np.testing.assert_array_equal(least_tv([P0, P0], Q0, np.ones(3)), [0.3, 0.3])


def test_the_transport_best_residual_costs_no_tv() -> None:
    """With a zero diagonal, metric or not, the best of all residuals is no better than the best in the TV polytope."""
    rng = np.random.default_rng(4)
    gained = 0
    for k in range(20):
        p, q, f, cost = step(rng, 5)
        cost = cost if k % 2 else rng.random((5, 5)) * (1 - np.eye(5))
        choice = residual_choice(p, q, f, cost)
        best = best_residual(p, q, f, "transport", cost=cost)
        assert best.value - best.lower < 1e-8
        assert best.value == pytest.approx(choice.transport_best, abs=1e-8)
        assert choice.transport_best <= choice.transport_star + 1e-8
        others = [theory.transport_cost(law(p, q, f, g), p, cost) for g in rng.dirichlet(np.full(5, 0.5), 5)]
        assert best.lower <= min(others) + 1e-9
        assert choice.kl_best <= choice.kl_star + 1e-12
        assert choice.reverse_kl_best <= choice.reverse_kl_star + 1e-12
        assert choice.total_variation == pytest.approx(float(least_tv(p, q, f)))
        gained += choice.transport_best < choice.transport_star - 1e-4
    assert gained >= 5
    free = best_residual(p, q, f, "transport", cost=1 - np.eye(5))
    assert free.value == pytest.approx(float(least_tv(p, q, f)), abs=1e-9)


def test_a_cost_of_staying_breaks_that() -> None:
    """Negative control: when staying is dear, the best residual may leave the polytope."""
    rng = np.random.default_rng(5)
    gaps = []
    for _ in range(5):
        p, q, f, _ = step(rng, 4)
        cost = rng.random((4, 4)) + np.eye(4)
        values = [best_residual(p, q, f, "transport", cost=cost, tv_optimal=t).value for t in (True, False)]
        gaps.append(values[0] - values[1])
    assert min(gaps) > -1e-8
    assert max(gaps) > 1e-3


def test_a_constructed_case_where_choice_matters() -> None:
    """Token 3 is over-accepted; tokens 0 and 1 both lack mass, 1 lies next to 3: TV does not care, transport does."""
    p, q, f = np.array([0.4, 0.4, 0.2]), np.array([0.3, 0.3, 0.4]), np.array([2 / 3, 2 / 3, 1.0])
    cost = np.abs(np.subtract.outer([0.0, 2.0, 2.1], [0.0, 2.0, 2.1]))
    choice = residual_choice(p, q, f, cost)
    assert choice.total_variation == pytest.approx(0.2)
    # o = (.3, .3, .4) with G*: .1 must travel 2.1 and .1 only .1; giving all of R to token 0 leaves .2 to travel .1.
    assert choice.transport_star == pytest.approx(0.22)
    assert choice.transport_best == pytest.approx(0.02)


def test_nothing_rejected() -> None:
    found = best_residual(P0, Q0, np.ones(3), "kl_output_target")
    np.testing.assert_array_equal(found.residual, P0)
    assert found.value == found.lower == pytest.approx(theory.kl_divergence(Q0, P0))


def test_a_worse_answer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: answers of a solver that is off, or stops, never get through."""
    q, f = np.array([0.3, 0.3, 0.4]), np.array([0.5, 0.6, 1.0])
    genuine = cvxpy.Problem.solve

    def off(self: Any, **options: Any) -> None:
        genuine(self, **options)
        variable = next(v for v in self.variables() if v.ndim == 1)
        variable.save_value(np.roll(variable.value, 1))

    for objective in VALUES:
        with monkeypatch.context() as patch:
            patch.setattr(cvxpy.Problem, "solve", off)
            with pytest.raises(RuntimeError, match=r"certified to .* only"):
                best_residual(P0, q, f, objective)  # type: ignore[arg-type]
        with monkeypatch.context() as patch:
            patch.setattr(cvxpy.Problem, "status", property(lambda self: "infeasible_inaccurate"))
            with pytest.raises(RuntimeError, match=r"was not solved: status 'infeasible_inaccurate'; nothing"):
                best_residual(P0, q, f, objective)  # type: ignore[arg-type]


HALF = np.full(3, 0.5)
BAD: list[tuple[Any, str]] = [
    (lambda: best_residual(P0, Q0, [0.5, 1.5, 0.5]), r"f: entry \(1,\) is 1\.5"),
    (lambda: best_residual(P0, Q0, [0.5, np.nan, 0.5]), r"f: entry \(1,\) is nan"),
    (lambda: best_residual([0.5, 0.6, 0.2], Q0, HALF), r"p: row \(\) sums to 1\.3"),
    (lambda: best_residual(P0, [0.5, 0.5], HALF), r"one vector each, got \(3,\), \(2,\) and \(3,\)"),
    (lambda: best_residual(P0, Q0, HALF, "l2"), r"objective must be one of .* got 'l2'"),  # type: ignore[arg-type]
    (lambda: best_residual(P0, Q0, HALF, "transport"), r"takes cost"),
    (lambda: best_residual(P0, Q0, HALF, "tv", cost=np.eye(3)), r"and no other, takes cost"),
    (lambda: best_residual(P0, Q0, HALF, "transport", cost=np.eye(2)), r"of shape \(3, 3\), got \(2, 2\)"),
    (lambda: best_residual(P0, Q0, HALF, "transport", cost=-np.eye(3)), r"non-negative"),
    (
        lambda: best_residual([0.5, 0.5, 0], Q0, HALF, "kl_output_target"),
        r"infeasible: token 2 is accepted with mass 0\.25",
    ),
    (lambda: best_residual([0.5, 0.5, 0], Q0, HALF, "chi2"), r"infeasible: token 2"),
    (
        lambda: best_residual(P0, [0, 0.5, 0.5], np.ones(3), "kl_target_output"),
        r"infeasible: nothing is rejected and token 0 is never drafted",
    ),
]


@pytest.mark.parametrize("index", range(len(BAD)))
def test_bad_input(index: int) -> None:
    call, message = BAD[index]
    with pytest.raises(ValueError, match=message):
        call()


def test_the_other_kl_stays_finite_where_the_draft_leaves_the_support() -> None:
    found = best_residual([0.5, 0.5, 0], Q0, HALF, "kl_target_output")
    assert np.isfinite(found.value)
    assert residual_choice([0.5, 0.5, 0], Q0, HALF).kl_best == np.inf
