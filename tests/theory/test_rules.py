"""Known answers of single rules and residuals (FAULTS.md's tiny inputs among them)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import theory

P0, Q0 = [0.5, 0.3, 0.2], [0.2, 0.3, 0.5]


def law(rule: theory.Rule, p: list[float], q: list[float], residual: object = theory.optimal_residual) -> np.ndarray:
    verifier = theory.Verifier(rule, residual)  # type: ignore[arg-type]
    return verifier.step(np.array(p), np.array(q), 0).output


def test_lossless_on_the_standard_pair() -> None:
    step = theory.Verifier(theory.Lossless()).step(P0, Q0, 0)
    assert step.rejection == pytest.approx(0.3)
    np.testing.assert_allclose(step.residual, [1, 0, 0], atol=1e-15)
    np.testing.assert_allclose(step.output, P0, atol=1e-15)


def test_residual_replaced_by_the_target_is_lossy() -> None:
    found = law(theory.Lossless(), P0, Q0, theory.target_residual)
    np.testing.assert_allclose(found, [7 / 20, 39 / 100, 13 / 50], atol=1e-15)
    assert theory.total_variation(found, P0) == pytest.approx(3 / 20)


def test_lenience_one_half_is_declared_lossy() -> None:
    verifier = theory.Verifier(theory.Relaxed(2.0))
    step = verifier.step(P0, Q0, 0)
    np.testing.assert_allclose(step.output, [0.3, 0.3, 0.4], atol=1e-15)
    assert 1 - step.rejection == pytest.approx(0.9)
    assert theory.total_variation(step.output, P0) == pytest.approx(0.2)
    assert not verifier.lossless
    assert theory.Verifier(theory.Lossless()).lossless
    assert not theory.Verifier(theory.Lossless(), theory.target_residual).lossless
    assert not theory.Verifier(theory.Relaxed(0.5), theory.vanilla_residual).lossless
    assert theory.Verifier(theory.Relaxed(0.5)).lossless


def test_ensemble_emits_the_mixture_exactly() -> None:
    for eta in (0.0, 0.3, 1.0):
        mixture = (1 - eta) * np.array(P0) + eta * np.array(Q0)
        np.testing.assert_allclose(law(theory.Ensemble(eta), P0, Q0, theory.vanilla_residual), mixture, atol=1e-15)


def test_divergence_threshold_has_tv_of_the_draft_or_none() -> None:
    accepted = law(theory.DivergenceThreshold(0.31), P0, Q0, theory.target_residual)
    refused = law(theory.DivergenceThreshold(0.29), P0, Q0, theory.target_residual)
    np.testing.assert_allclose(accepted, Q0, atol=1e-15)
    np.testing.assert_allclose(refused, P0, atol=1e-15)
    assert theory.DivergenceThreshold(0.2, "kl").acceptance(P0, Q0, 0).sum() == 0  # KL = .3 log 2.5 = .275
    assert theory.DivergenceThreshold(0.28, "kl").acceptance(P0, Q0, 0).sum() == 3
    assert theory.DivergenceThreshold(0.08, "js").acceptance(P0, Q0, 0).sum() == 3


def test_top_k_breaks_ties_to_the_lower_index() -> None:
    assert theory.TopK(2).acceptance([0.25, 0.25, 0.25, 0.25], [0.25] * 4, 0).tolist() == [1, 1, 0, 0]
    tied = torch.tensor([0.1, 0.3, 0.3, 0.3], dtype=torch.float64)
    assert theory.TopK(2).acceptance(tied, tied, 0).tolist() == [0, 1, 1, 0]


def test_typical_uses_the_smaller_threshold() -> None:
    uniform = [0.25] * 4
    assert theory.Typical(0.09, 0.3).acceptance(uniform, uniform, 0).tolist() == [1] * 4  # .3/4 = .075 < .25
    assert theory.Typical(0.3, 8.0).acceptance(uniform, uniform, 0).tolist() == [0] * 4  # .3 > .25


def test_lantern_pools_within_delta_only() -> None:
    p, q = [0.1, 0.1, 0.3, 0.5], [1.0, 0.0, 0.0, 0.0]
    neighbours = [[1, 2, 3], [0, 2, 3], [1, 0, 3], [2, 1, 0]]
    assert theory.Lantern(neighbours, 3, 0.1).acceptance(p, q, 0)[0] == pytest.approx(0.2)
    assert theory.Lantern(neighbours, 3, 0.4).acceptance(p, q, 0)[0] == pytest.approx(0.5)
    assert theory.Lantern(neighbours, 1, 0.4).acceptance(p, q, 0)[0] == pytest.approx(0.2)
    assert theory.LanternPlusPlus(neighbours, 3, 2.0).acceptance(p, q, 0)[0] == pytest.approx(0.2)
    assert theory.LanternPlusPlus(neighbours, 3, 5.0).acceptance(p, q, 0)[0] == pytest.approx(0.5)
    output = law(theory.Lantern(neighbours, 2, 0.1), p, q)
    assert theory.total_variation(output, p) == pytest.approx(0.1)


def test_entropy_relaxation_accepts_null_tokens_at_high_entropy() -> None:
    p = np.append(np.full(8, 1 / 8), 0.0)  # H = log 8 = 2.08 nats
    q = np.full(9, 1 / 9)
    f = theory.EntropyRelaxed(0.5, 0.65).acceptance(p, q, 0)
    assert f.tolist() == [1.0] * 9
    assert theory.EntropyRelaxed(0.5, 0.1).acceptance(p, q, 0)[8] == 0


def test_empty_residual_is_the_target() -> None:
    for residual in (theory.optimal_residual, theory.vanilla_residual):
        assert residual(np.array(P0), np.array(P0), np.ones(3)).tolist() == P0
    # Rounding noise is not a residual: q·(p/q) differs from p in the last place.
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(50), 200)
    noise = theory.optimal_residual(p, np.full((200, 50), 0.02), p / 0.02)
    np.testing.assert_array_equal(noise, p)


def test_null_target_tokens_are_rejected_and_undrafted_ones_do_no_harm() -> None:
    f = theory.Lossless().acceptance([1.0, 0.0], [0.5, 0.5], 0)
    assert f.tolist() == [1.0, 0.0]
    assert not 0.0 < f[1]  # the uniform 0 of a strict comparison rejects
    f = theory.Relaxed(3.0).acceptance([0.5, 0.5, 0.0], [1.0, 0.0, 0.0], 0)
    assert f.tolist() == [1.0, 1.0, 0.0]
    assert np.isfinite(f).all()


def test_tiny_masses_keep_their_ratio() -> None:
    p, q = [1e-9, 1 - 1e-9], [1e-8, 1 - 1e-8]
    assert theory.Lossless().acceptance(p, q, 0)[0] == pytest.approx(0.1)
    half = torch.tensor([2.0**-14, 1 - 2.0**-14]).to(torch.bfloat16), torch.tensor([2.0**-13, 1.0]).to(torch.bfloat16)
    f = theory.Lossless().acceptance(*half, 0)
    assert f.dtype == torch.float32
    assert float(f[0]) == pytest.approx(0.5)


def test_infinite_omega_accepts_null_tokens_outright() -> None:
    rule = theory.Relaxed(theory.bang_bang_schedule(2, 1))
    assert rule.acceptance([1.0, 0.0], [0.5, 0.5], 0).tolist() == [1.0, 1.0]
    assert rule.acceptance([1.0, 0.0], [0.5, 0.5], 1).tolist() == [1.0, 0.0]
    both = rule.acceptance(np.tile([1.0, 0.0], (2, 1)), np.tile([0.5, 0.5], (2, 1)), np.arange(2))
    assert both.tolist() == [[1.0, 1.0], [1.0, 0.0]]
    assert not rule.support_safe
    assert theory.Relaxed(float("inf")).acceptance([1.0, 0.0], [0.5, 0.5], 7).tolist() == [1.0, 1.0]


RULES = [
    theory.Lossless(),
    theory.Relaxed([3.0, 1.5, 1.0]),
    theory.AcceptAll(),
    theory.Ensemble(0.4),
    theory.DivergenceThreshold(0.3),
    theory.DivergenceThreshold(0.3, "kl"),
    theory.DivergenceThreshold(0.1, "js"),
    theory.TopK(3),
    theory.Typical(),
    theory.Lantern(theory.nearest_neighbours(np.arange(12.0).reshape(6, 2) ** 2, 3), 3, 0.2),
    theory.LanternPlusPlus(theory.nearest_neighbours(np.arange(12.0).reshape(6, 2) ** 2, 3), 3, 3.0),
    theory.EntropyRelaxed(0.2, 0.6),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("residual", [theory.optimal_residual, theory.vanilla_residual, theory.target_residual])
def test_torch_agrees_with_numpy_and_positions_broadcast(rule: theory.Rule, residual: object) -> None:
    rng = np.random.default_rng(1)
    p, q = rng.dirichlet(np.ones(6), (5, 3)), rng.dirichlet(np.ones(6), (5, 3))
    p.flags.writeable = q.flags.writeable = False  # inputs are never mutated
    verifier = theory.Verifier(rule, residual)  # type: ignore[arg-type]
    together = verifier.step(p, q, np.arange(3))
    tensors = verifier.step(torch.tensor(p), torch.tensor(q), np.arange(3))
    single = [verifier.step(p[:, i], q[:, i], i) for i in range(3)]
    for name in ("accepted", "rejection", "residual", "output"):
        value = getattr(together, name)
        np.testing.assert_allclose(value, getattr(tensors, name).numpy(), rtol=0, atol=1e-12)
        np.testing.assert_allclose(value, np.stack([getattr(s, name) for s in single], axis=1), rtol=0, atol=1e-15)
    assert isinstance(rule, theory.Rule)
    assert type(rule).source


def test_schedules() -> None:
    assert theory.exponential_schedule(5, 1.1).mean() == pytest.approx(1.1)
    assert np.exp(np.log(theory.exponential_schedule(5, 1.1, normalise="geometric")).mean()) == pytest.approx(1.1)
    assert theory.exponential_schedule(5, 1.1, normalise="first")[0] == pytest.approx(1.1)
    assert theory.exponential_schedule(3, 2.0, 0.5, "none").tolist() == pytest.approx(
        (2 * np.exp([-0.5, -1.0, -1.5])).tolist()
    )
    ratios = theory.exponential_schedule(5, 2.0)
    np.testing.assert_allclose(ratios[1:] / ratios[:-1], np.exp(-0.7))
    assert theory.linear_schedule(4, 4.0, 1.0).tolist() == [4.0, 3.0, 2.0, 1.0]
    assert theory.linear_schedule(3, 2.0, 0.0, floor=1.0).tolist() == [2.0, 1.0, 1.0]
    assert theory.excess_schedule(2, 3.0, 0.0).tolist() == [4.0, 4.0]
    assert theory.excess_schedule(2, 1.0, 0.7).tolist() == pytest.approx([1 + np.exp(-0.7), 1 + np.exp(-1.4)])
    assert theory.reversed_schedule([3.0, 2.0]).tolist() == [2.0, 3.0]
    assert theory.uniform_schedule(3, 1.5).tolist() == [1.5] * 3


def test_distances() -> None:
    assert theory.total_variation(P0, Q0) == pytest.approx(0.3)
    assert theory.overlap(P0, Q0) == pytest.approx(0.7)
    assert theory.kl_divergence(P0, Q0) == pytest.approx(0.3 * np.log(2.5))
    assert theory.js_divergence([1, 0], [0, 1]) == pytest.approx(np.log(2))
    assert theory.hellinger([1, 0], [0, 1]) == 1
    assert theory.hockey_stick(P0, Q0, 1) == pytest.approx(0.3)
    assert theory.hockey_stick(P0, Q0, 2.5) == 0
    assert theory.max_ratio(P0, Q0) == pytest.approx(2.5)
    assert theory.max_ratio([0.5, 0.5], [1.0, 0.0]) == np.inf
    assert theory.entropy([0.25] * 4) == pytest.approx(np.log(4))
    assert theory.transport_cost(P0, Q0, 1 - np.eye(3)) == pytest.approx(0.3)
    line = np.abs(np.subtract.outer(np.arange(3.0), np.arange(3.0)))
    assert theory.transport_cost([1, 0, 0], [0, 0, 1], line) == pytest.approx(2)
    nearly = np.array([0.5 + 1e-9, 0.5 - 1e-9])
    assert theory.kl_divergence(nearly, [0.5, 0.5]) == pytest.approx(2e-18, rel=1e-3)
