"""Published rules: formulas against plain loops, their claims, the facts known of them, FAULTS' wrong values."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import theory
from theory import published, residuals, rules
from theory.published import lantern_verifier, published_rules, published_verifier

TOLERANCE = 1e-12
P0, Q0 = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])
Floats = np.ndarray[Any, np.dtype[np.float64]]
POINTS = np.array([[0.0, 0.0], [0.1, 0.0], [0.0, 0.4], [1.0, 1.0], [1.1, 1.0], [3.0, 0.0]])
NEAR = rules.nearest_neighbours(POINTS, 5)
STATES = np.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [-1.0, 0.0]])


def law(rule: Any, p: Any, q: Any, residual: Any = residuals.optimal_residual) -> Floats:
    return np.asarray(theory.Verifier(rule, residual).step(np.array(p), np.array(q), 0).output)


# --- formulas against plain loops ---


def ratio(a: float, b: float) -> float:
    return min(1.0, a / b) if b > 0 else float(a > 0)


def grouped_by_hand(p: Floats, q: Floats, points: Any, ranks: int, delta_p: float, distance: float) -> Floats:
    rank = np.argsort(np.argsort(-p, kind="stable"), kind="stable")
    f = []
    for x in range(len(p)):
        group = [
            y
            for y in range(len(p))
            if y == x
            or (
                abs(rank[y] - rank[x]) <= ranks
                and abs(p[y] - p[x]) < delta_p
                and (points is None or np.linalg.norm(points[y] - points[x]) < distance)
            )
        ]
        f.append(ratio(p[group].sum(), q[group].sum()))
    return np.array(f)


def cascade_by_hand(p: Floats, q: Floats, siblings: Any, hidden: Floats, tau: float) -> Floats:
    f = np.array([ratio(a, b) for a, b in zip(p, q, strict=True)])
    for v, state in zip(siblings, hidden, strict=True):
        group = {
            int(u)
            for u, other in zip(siblings, hidden, strict=True)
            if u == v or state @ other / (np.linalg.norm(state) * np.linalg.norm(other)) >= tau
        }
        f[v] = max(f[v], ratio(p[list(group)].sum(), q[list(group)].sum()))
    return f


@pytest.mark.parametrize("ranks", [0, 1, 2, 7])
@pytest.mark.parametrize(("points", "distance"), [(POINTS, 0.5), (POINTS, 1.5), (None, np.inf)])
def test_gsd_equals_its_definition(ranks: int, points: Any, distance: float) -> None:
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(6), (4, 5)), rng.dirichlet(np.ones(6), (4, 5))
    p[0, 0] = [0.2, 0.2, 0.2, 0.2, 0.2, 0.0]  # ties in rank
    for delta_p in (0.15, 0.02, np.inf):
        rule = rules.Grouped(points, ranks, delta_p, distance)
        f = rule.acceptance(p, q, 0)
        for at in np.ndindex(4, 5):
            plain = grouped_by_hand(p[at], q[at], points, ranks, delta_p, distance)
            np.testing.assert_allclose(f[at], plain, rtol=0, atol=TOLERANCE)
        np.testing.assert_allclose(rule.acceptance(p, q[0, 0], 0)[0, 0], f[0, 0], rtol=0, atol=TOLERANCE)
    if ranks == 0:
        np.testing.assert_allclose(f, rules.Lossless().acceptance(p, q, 0), rtol=0, atol=TOLERANCE)


def test_partitions_equal_their_definition() -> None:
    rng = np.random.default_rng(1)
    p, q = rng.dirichlet(np.ones(7), (3, 2)), rng.dirichlet(np.ones(7), (3, 2))
    labels = np.array([5, 2, 5, 9, 2, 2, 1])
    rank = np.argsort(np.argsort(-p, axis=-1, kind="stable"), axis=-1, kind="stable")
    for rule, groups in (
        (rules.PartitionGrouped(labels), np.broadcast_to(labels, p.shape)),
        *((rules.RankGrouped(size), rank // size) for size in (1, 2, 3, 7, 20)),
    ):
        f = rule.acceptance(p, q, 0)
        for at in np.ndindex(3, 2):
            for x in range(7):
                same = groups[at] == groups[at][x]
                assert f[at][x] == pytest.approx(ratio(p[at][same].sum(), q[at][same].sum()), abs=TOLERANCE)


def test_cactus_pooling_and_cascade_style_equal_their_definitions() -> None:
    rng = np.random.default_rng(2)
    for _ in range(20):
        p, q = rng.dirichlet(np.ones(6)), rng.dirichlet(np.ones(6))
        for delta in (0.0, 0.75, 1.0):
            plain = [ratio(min(1, a + np.sqrt(2 * delta * a * (1 - a))), b) for a, b in zip(p, q, strict=True)]
            np.testing.assert_allclose(rules.Cactus(delta).acceptance(p, q, 0), plain, rtol=0, atol=TOLERANCE)
        pooled = [float(p[x] + p[NEAR[x, :2]].sum() >= 0.5) for x in range(6)]
        assert rules.NeighbourhoodPooling(NEAR, 2, 0.5).acceptance(p, q, 0).tolist() == pooled
        siblings = rng.integers(0, 6, 4)  # repetitions happen
        for tau in (-1.0, 0.5, 0.95, 1.5):
            rule = rules.CascadeStyle(tau)
            plain_f = cascade_by_hand(p, q, siblings, STATES, tau)
            f = rule.acceptance(p, q, 0, siblings, STATES)
            np.testing.assert_allclose(f, plain_f, rtol=0, atol=TOLERANCE)
            np.testing.assert_array_equal(rule.at(siblings, STATES).acceptance(p, q, 0), f)


def test_cascade_style_takes_batches_and_judges_depth() -> None:
    rng = np.random.default_rng(3)
    p, q = rng.dirichlet(np.ones(6), 5), rng.dirichlet(np.ones(6), 5)
    siblings, hidden = rng.integers(0, 6, (5, 3)), rng.normal(size=(5, 3, 2))
    rule = rules.CascadeStyle(0.3)
    together = rule.acceptance(p, q, 0, siblings, hidden)
    single = [rule.acceptance(*row[:2], 0, *row[2:]) for row in zip(p, q, siblings, hidden, strict=True)]
    np.testing.assert_allclose(together, np.stack(single), rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal(
        rules.CascadeStyle(1.5).acceptance(p, q, 0, siblings, hidden), rules.Lossless().acceptance(p, q, 0)
    )
    assert rule.converged(STATES, STATES[::-1]).tolist() == [False, False, False, False]
    assert rules.CascadeStyle(tau_d=0.9).converged(STATES[:2], STATES[[1, 3]]).tolist() == [True, False]
    assert not rule.converged(np.zeros(2), np.zeros(2))


def test_greedy_and_sampled_cascade_rules_defer_where_the_paper_says() -> None:
    keep, defer = rules.SpeculativeCascade(1.0), rules.SpeculativeCascade(0.2)
    p, q = np.array([0.9, 0.1]), np.array([0.6, 0.4])  # TV .3: deferred iff .6 < .9 − .3 alpha
    assert not keep.deferred(p, q).any()
    assert defer.deferred(p, q).all()
    np.testing.assert_allclose(law(keep, p, q), q, atol=1e-15)
    np.testing.assert_allclose(law(defer, p, q), p, atol=1e-15)
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.1, 0.45, 0.45])
    assert rules.SpeculativeCascade(0.2, "token_1").deferred(p, q).tolist() == [True, False, False]
    assert rules.SpeculativeCascade(0.25, "token_2").deferred(p, q).tolist() == [False, False, True]
    assert rules.SpeculativeCascade(0.3, "token_3").deferred(p, q).tolist() == [False, True, True]
    np.testing.assert_allclose(rules.SpeculativeCascade(0.3, "token_3").surrogate(p, q), [0.55, 0.27, 0.18], atol=1e-15)


# --- claims ---

NEW = [
    rules.Grouped(POINTS),
    rules.Grouped(None, 2, 0.2, np.inf),
    rules.AtLeastLossless(rules.Grouped(POINTS, 3, np.inf, 1.5)),
    rules.AtLeastLossless(rules.TopK(2)),
    rules.AtLeastLossless(rules.Relaxed([0.5, 0.2, 0.1])),
    rules.PartitionGrouped(np.array([0, 1, 0, 2, 2, 1])),
    rules.RankGrouped(4),
    rules.SpeculativeCascade(0.3),
    rules.SpeculativeCascade(0.2, "token_1"),
    rules.SpeculativeCascade(0.2, "token_2"),
    rules.SpeculativeCascade(0.2, "token_3"),
    rules.Mentored(0.0),
    rules.Mentored(0.05),
    rules.Mentored(0.05, "target_output"),
    rules.Cactus(),
    rules.Cactus(0.0),
    rules.NeighbourhoodPooling(NEAR, 2, 0.4),
    rules.CascadeStyle(0.6).at([0, 4, 2, 0], STATES),
]


@pytest.mark.parametrize("rule", NEW, ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("own", [True, False])
def test_torch_agrees_with_numpy_and_positions_broadcast(rule: Any, own: bool) -> None:
    rng = np.random.default_rng(1)
    p, q = rng.dirichlet(np.ones(6), (5, 3)), rng.dirichlet(np.ones(6), (5, 3))
    p.flags.writeable = q.flags.writeable = False  # inputs are never mutated
    verifier = published_verifier(rule) if own else theory.Verifier(rule, residuals.kl_residual)
    together = verifier.step(p, q, np.arange(3))
    tensors = verifier.step(torch.tensor(p), torch.tensor(q), np.arange(3))
    single = [verifier.step(p[:, i], q[:, i], i) for i in range(3)]
    for name in ("accepted", "rejection", "residual", "output"):
        value = getattr(together, name)
        np.testing.assert_allclose(value, getattr(tensors, name).numpy(), rtol=0, atol=TOLERANCE)
        np.testing.assert_allclose(value, np.stack([getattr(s, name) for s in single], axis=1), rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(together.output.sum(-1), 1, rtol=0, atol=TOLERANCE)
    narrow = verifier.step(torch.tensor(p).float(), torch.tensor(q).float(), 0).output
    assert narrow.dtype == torch.float32
    assert isinstance(rule, theory.Rule)
    assert type(rule).source


@st.composite
def six_token_laws(draw: Any) -> tuple[Floats, Floats]:
    counts = st.lists(st.integers(0, 10), min_size=6, max_size=6).filter(lambda c: sum(c) > 0)
    p, q = (np.array(draw(counts), dtype=float) for _ in range(2))
    return p / p.sum(), q / q.sum()


@settings(max_examples=20)
@given(six_token_laws())
def test_what_a_rule_claims_is_true(pair: Any) -> None:
    p, q = pair
    for rule in NEW:
        f = rule.acceptance(p, q, 0)
        assert ((f >= 0) & (f <= 1)).all(), rule
        if rule.lossless:
            assert (q * f <= p + TOLERANCE).all(), rule
        if rule.at_least_lossless:
            assert (q * f >= np.minimum(p, q) - TOLERANCE).all(), rule
        if rule.support_safe:
            assert (f[(p == 0) & (q > 0)] == 0).all(), rule
        step = published_verifier(rule).step(p, q, 0)
        assert step.residual.min() >= 0
        assert step.output.sum() == pytest.approx(1, abs=TOLERANCE)


def test_the_table_lists_every_rule_with_its_own_claims() -> None:
    rows = published_rules()
    assert len({row["name"] for row in rows}) == len(rows) == 22
    exported = {type(rule) for rule in NEW} | set(published.RESIDUALS) | {rules.Lantern, rules.LanternPlusPlus}
    assert exported - {rules.BoundCascadeStyle, rules.AtLeastLossless} <= {getattr(rules, row["rule"]) for row in rows}
    by_name = {row["name"]: row for row in rows}
    assert {row["name"] for row in rows if row["lossless"]} == {"lossless"}
    assert {row["name"] for row in rows if row["support_safe"]} == {
        "lossless",
        "uniform",
        "COOL-SD",
        "excess schedule",
        "LANTERN++",
        "mentored",
        "speculative cascade, token-specific",
        "Cactus",
        "typical",
    }
    assert {row["name"] for row in rows if row["reconstructed"]} == {
        "COOL-SD",
        "mentored",
        "speculative cascade",
        "speculative cascade, token-specific",
        "MuLo-SD pooling",
        "CASCADE-style",
    }
    assert not by_name["GSD"]["at_least_lossless"]
    assert all(isinstance(value, (str, bool)) for row in rows for value in row.values())


# --- facts worth a test ---


def test_gsd_falls_below_lossless_on_about_15_percent_of_draft_mass() -> None:
    rng = np.random.default_rng(0)
    points = 0.2 * rng.normal(size=(64, 4))
    p = rng.dirichlet(np.ones(64), 200)
    q = (p + rng.dirichlet(np.ones(64), 200)) / 2
    rule = rules.Grouped(points)
    f, lossless = rule.acceptance(p, q, 0), rules.Lossless().acceptance(p, q, 0)
    below = float((q * (f < lossless - 1e-12)).sum(-1).mean())
    assert 0.12 < below < 0.18
    # Every residual pays for it: TV + R exceeds TV(p, q) by at least the waste.
    waste = (np.minimum(p, q) - np.minimum(p, q * f)).sum(-1)
    assert (waste > 1e-3).all()
    for residual in (residuals.optimal_residual, residuals.kl_residual, residuals.vanilla_residual):
        step = theory.Verifier(rule, residual).step(p, q, 0)
        total = theory.total_variation(step.output, p) + step.rejection
        assert (total >= theory.total_variation(p, q) + waste - TOLERANCE).all()
    before = theory.Verifier(rule).step(p, q, 0)
    after = published_verifier(rules.AtLeastLossless(rule)).step(p, q, 0)
    np.testing.assert_allclose(before.rejection - after.rejection, waste, rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(
        theory.total_variation(after.output, p), theory.total_variation(before.output, p), rtol=0, atol=TOLERANCE
    )


@given(st.integers(8, 12), st.integers(0, 2**32 - 1))
def test_csd_accepts_everything_from_two_nats_on(size: int, seed: int) -> None:
    """H ≥ 2 nats and TV < δ, tokens of target probability zero included; below it they are refused or rationed."""
    rng = np.random.default_rng(seed)
    p = np.append(rng.dirichlet(np.full(size, 200.0)), 0.0)
    q = 0.9 * p + 0.1 * np.append(np.zeros(size), 1.0)
    f = rules.EntropyRelaxed().acceptance(p, q, 0)
    if theory.entropy(p) >= 2:
        assert (f == 1).all()
    else:
        assert f[-1] == pytest.approx(theory.entropy(p) / 2, abs=TOLERANCE)
    assert rules.EntropyRelaxed(0.5, 0.05).acceptance(p, q, 0)[-1] == 0


def test_which_rules_leave_the_targets_support() -> None:
    """Mass on tokens outside the target's top-k support, p = 0."""
    p = np.array([0.4, 0.3, 0.3, 0.0, 0.0, 0.0])
    q = np.array([0.3, 0.2, 0.1, 0.2, 0.1, 0.1])
    far = rules.Lantern(np.array([[5, 4], [3, 5], [4, 5], [0, 1], [0, 1], [0, 1]]), 2, 0.05)  # m pools null tokens only

    def leak(verifier: Any) -> float:
        return float(verifier.step(p, q, 0).output[3:].sum())

    outside = [
        rules.Ensemble(0.3),
        rules.EntropyRelaxed(0.2, 0.9),
        rules.DivergenceThreshold(0.9),
        rules.AcceptAll(),
        rules.Grouped(None, 5, np.inf, np.inf),
        rules.PartitionGrouped(np.array([0, 1, 2, 0, 1, 2])),
        rules.SpeculativeCascade(1.0),
    ]
    inside = [rules.Lossless(), rules.Relaxed(4.0), rules.Typical(), rules.Cactus(), rules.Mentored(5.0)]
    for rule in outside:
        assert leak(published_verifier(rule)) > 0.01, rule
    for rule in inside:
        assert leak(published_verifier(rule)) == 0, rule
    assert leak(theory.Verifier(far)) == 0
    near = np.array([[1, 2], [0, 2], [0, 1], [0, 1], [1, 2], [2, 0]])
    assert leak(lantern_verifier(near, 1, delta=0.4)) > 0.1
    assert leak(lantern_verifier(near, 1, lam=5.0)) == 0


@given(six_token_laws(), st.floats(0, 1), st.sampled_from(["tv", "kl", "js"]))
def test_fsd_has_the_drafts_tv_or_none(pair: Any, threshold: float, divergence: Any) -> None:
    p, q = pair
    rule = rules.DivergenceThreshold(threshold, divergence)
    step = published_verifier(rule).step(p, q, 0)
    expected = 0.0 if step.rejection > 0.5 else theory.total_variation(p, q)
    assert theory.total_variation(step.output, p) == pytest.approx(expected, abs=TOLERANCE)
    assert published_verifier(rule).residual is residuals.target_residual


def test_cactus_output_is_none_of_the_laws_it_tests() -> None:
    """Each token is judged against its own h_x; the KL residual, on the same f, is closer to the target."""
    rng = np.random.default_rng(5)
    p, q = rng.dirichlet(np.ones(5), 2)
    rule = rules.Cactus(0.5)
    step = published_verifier(rule).step(p, q, 0)
    gamma = np.minimum(1, p + np.sqrt(2 * 0.5 * p * (1 - p)))
    for x in range(5):
        h = p * (1 - gamma[x]) / (1 - p[x])
        h[x] = gamma[x]
        assert theory.total_variation(step.output, h) > 0.01
    assert (step.accepted <= gamma + TOLERANCE).all()
    best = theory.Verifier(rule, residuals.kl_residual).step(p, q, 0).output
    assert theory.kl_divergence(best, p) < theory.kl_divergence(step.output, p) - 1e-6


# --- FAULTS: the right value, and the wrong one a broken sampler would have ---


def test_declared_draft_differs_from_the_used_one() -> None:
    p, declared = np.full(4, 0.25), np.array([0.4, 0.3, 0.2, 0.1])
    used = np.array([4 / 7, 3 / 7, 0, 0])  # its top-2
    f = rules.Lossless().acceptance(p, declared, 0)
    g = residuals.vanilla_residual(p, declared, f)
    fault = used * f + np.sum(used * (1 - f)) * g
    np.testing.assert_allclose(fault, [5 / 14, 5 / 14, 1 / 14, 3 / 14], atol=1e-15)
    assert theory.total_variation(fault, p) == pytest.approx(3 / 14)
    np.testing.assert_allclose(law(rules.Lossless(), p, used), p, atol=1e-15)


def test_greedy_draft_with_a_soft_ratio() -> None:
    p, soft, used = np.array([0.3, 0.5, 0.2]), np.array([0.2, 0.2, 0.6]), np.eye(3)[2]
    f = rules.Lossless().acceptance(p, soft, 0)
    fault = used * f + np.sum(used * (1 - f)) * residuals.vanilla_residual(p, soft, f)
    np.testing.assert_allclose(fault, [1 / 6, 1 / 2, 1 / 3], atol=1e-15)
    assert theory.total_variation(fault, p) == pytest.approx(2 / 15)
    np.testing.assert_allclose(law(rules.Lossless(), p, used), p, atol=1e-15)


def test_ratio_without_the_draft_probability() -> None:
    f = P0 / P0.max()
    fault = Q0 * f + np.sum(Q0 * (1 - f)) * residuals.vanilla_residual(P0, Q0, f)
    np.testing.assert_allclose(fault, [31 / 50, 9 / 50, 1 / 5], atol=1e-15)
    assert theory.total_variation(fault, P0) == pytest.approx(3 / 25)
    np.testing.assert_allclose(law(rules.AcceptAll(), P0, Q0), Q0, atol=1e-15)  # uniform stuck at 0: TV 3/10


def test_residual_warped_twice() -> None:
    p = np.array([0.4, 0.3, 0.2, 0.1])
    f = rules.Lossless().acceptance(p, p[::-1], 0)
    g = residuals.vanilla_residual(p, p[::-1], f)
    np.testing.assert_allclose(p[::-1] * f + np.sum(p[::-1] * (1 - f)) * g, p, atol=1e-15)
    warped = g**2 / np.sum(g**2)  # temperature 1/2 once more
    fault = p[::-1] * f + np.sum(p[::-1] * (1 - f)) * warped
    np.testing.assert_allclose(fault, [0.46, 0.24, 0.2, 0.1], atol=1e-15)


def test_target_only_acceptance_is_lossless_and_no_fault() -> None:
    """Keep the draft iff it equals a target draw: f = p, and Norm[p − q p]_+ restores p; it only accepts less."""

    class TargetDraw:
        source, reconstructed = "folklore", False
        lossless, at_least_lossless, support_safe = True, False, True

        def acceptance(self, p: Any, q: Any, position: Any) -> Any:
            return p + 0 * q

    p, q = np.array([0.6, 0.2, 0.1, 0.1]), np.array([0.7, 0.2, 0.05, 0.05])
    step = theory.Verifier(TargetDraw()).step(p, q, 0)
    np.testing.assert_allclose(step.output, p, atol=1e-15)
    assert 1 - step.rejection == pytest.approx(47 / 100)
    assert 1 - theory.Verifier(rules.Lossless()).step(p, q, 0).rejection == pytest.approx(0.9)
    np.testing.assert_allclose(law(rules.AtLeastLossless(TargetDraw()), p, q), p, atol=1e-15)
    assert theory.total_variation(law(TargetDraw(), p, q, residuals.vanilla_residual), p) > 0.1  # the wrong residual


# --- bad input ---

BAD: list[tuple[Any, str]] = [
    (lambda: rules.Grouped(None), r"distance is 0\.5 but there is no embedding; give codebook rows"),
    (lambda: rules.Grouped(np.ones(3)), r"embedding must have shape \(V, D\), .* got \(3,\)"),
    (lambda: rules.Grouped(np.array([[np.nan], [0.0]])), r"must be finite"),
    (lambda: rules.Grouped(POINTS, -1), r"ranks must be a whole number >= 0, got -1"),
    (lambda: rules.Grouped(POINTS, 1, -0.1), r"delta_p must be finite and lie in \[0\.0"),
    (lambda: rules.Grouped(POINTS).acceptance(P0, Q0, 0), r"embedding has 6 rows, the laws have 3 tokens"),
    (lambda: rules.PartitionGrouped(np.array([0.5, 1.0])), r"one integer for each token"),
    (lambda: rules.PartitionGrouped(np.array([0, 1])).acceptance(P0, Q0, 0), r"labels are for 2 tokens"),
    (lambda: rules.RankGrouped(0), r"size must be a whole number >= 1"),
    (lambda: rules.SpeculativeCascade(0.1, "chow"), r"got 'chow'"),  # type: ignore[arg-type]
    (lambda: rules.SpeculativeCascade(float("nan")), r"alpha must be finite"),
    (lambda: rules.Mentored(-0.1), r"budget must be finite and lie in \[0\.0"),
    (lambda: rules.Mentored(0.1, "tv"), r"got 'tv'"),  # type: ignore[arg-type]
    (lambda: rules.Cactus(-1.0), r"delta must be finite"),
    (lambda: rules.NeighbourhoodPooling(NEAR, 2, 1.5), r"tau must be finite and lie in \[0\.0, 1\.0\], got 1\.5"),
    (lambda: rules.NeighbourhoodPooling(NEAR, 6, 0.5), r"at least k=6"),
    (lambda: rules.NeighbourhoodPooling(NEAR, 2, 0.5).acceptance(P0, Q0, 0), r"neighbours are for 6 tokens"),
    (lambda: rules.CascadeStyle().acceptance(P0, Q0, 0), r"CascadeStyle needs siblings: drafted tokens \(\.\.\., K\)"),
    (lambda: rules.CascadeStyle().acceptance(P0, Q0, 0, [0, 1]), r"CascadeStyle needs hidden"),
    (lambda: rules.CascadeStyle().acceptance(P0, Q0, 0, [0], [1.0]), r"got \(1,\) and \(1,\)"),
    (lambda: rules.CascadeStyle().acceptance(P0, Q0, 0, [3], [[1.0]]), r"tokens lie in 0…2: entry \(0,\) is 3"),
    (lambda: rules.CascadeStyle().acceptance(P0, Q0, 0, [1], [[np.inf]]), r"finite: entry \(0, 0\) is inf"),
    (lambda: rules.CascadeStyle(tau_b=-2), r"tau_b must be finite"),
]


@pytest.mark.parametrize("index", range(len(BAD)))
def test_bad_input(index: int) -> None:
    call, message = BAD[index]
    with pytest.raises(ValueError, match=message):
        call()


def test_wrong_types() -> None:
    with pytest.raises(TypeError, match=r"acceptance\(p, q, position\)"):
        rules.AtLeastLossless(0.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="lantern_verifier"):
        published_verifier(rules.Lantern(NEAR, 2, 0.1))

    class Unknown(rules.Lossless):
        pass

    with pytest.raises(TypeError, match="no published residual is known for Unknown"):
        published_verifier(Unknown())


def test_every_published_verifier_runs_a_round() -> None:
    rng = np.random.default_rng(6)
    target, draft = (theory.MarkovChain(rng.dirichlet(np.ones(6)), rng.dirichlet(np.ones(6), 6)) for _ in range(2))
    lantern = [
        lantern_verifier(NEAR, 2, branch=branch, **strength)  # type: ignore[arg-type]
        for branch, strength in itertools.product(
            ("dynamic", "llamagen_static", "lumina_static"), ({"delta": 0.2}, {"lam": 3.0})
        )
    ]
    for verifier in [*map(published_verifier, NEW), *lantern]:
        a = theory.analyse_round(target, draft, verifier, 2)
        assert a.law.sum() == pytest.approx(1, abs=TOLERANCE)
        assert a.total_variation <= a.tv_bound + TOLERANCE


def test_groups_of_no_rows() -> None:
    rule = rules.Grouped(np.array([[0.0], [1.0], [2.0]]), 1)
    assert rule.acceptance(np.zeros((0, 2, 3)), np.zeros((0, 2, 3)), 0).shape == (0, 2, 3)
