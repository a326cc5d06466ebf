"""Residuals: LANTERN's golden nodes, laws given the rejected token, optimality of the KL residual."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import theory
from tests.theory.helpers import ROOT, random_tree
from theory import residuals, rules
from theory.published import lantern_verifier, published_verifier

TOLERANCE = 1e-12
GOLDEN = json.loads((ROOT / "tests" / "data" / "golden" / "lantern.json").read_text())
P0, Q0 = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])
Floats = np.ndarray[Any, np.dtype[np.float64]]


def lantern_rule(node: dict[str, Any], k: int) -> rules.Lantern | rules.LanternPlusPlus:
    """The public code takes one number: δ up to one, λ above."""
    table = np.array(node["neighbours"])
    return (
        rules.Lantern(table, k, node["delta"]) if node["delta"] <= 1 else rules.LanternPlusPlus(table, k, node["delta"])
    )


def lantern_residual(node: dict[str, Any], **changes: Any) -> residuals.LanternResidual:
    strength = {"delta" if node["delta"] <= 1 else "lam": node["delta"]}
    arguments = {"k": node["k"], "branch": node["branch"]} | strength | changes
    return residuals.LanternResidual(np.array(node["neighbours"]), **arguments)


def replay(node: dict[str, Any], residual: residuals.LanternResidual, library: str = "numpy") -> list[dict[str, Any]]:
    """The node's siblings in order, through the package's own rule and residual."""
    rule, size = lantern_rule(node, node["k"]), node["vocab"]
    limit = node["delta"]
    as_array = (lambda a: torch.tensor(a, dtype=torch.float64)) if library == "torch" else np.asarray
    p, out = np.array(node["p"]), []
    p = p / p.sum()
    tried: list[int] = []
    for x in node["siblings"]:
        if node["q"] is None:
            q = np.eye(size)[x]
        else:
            q = np.array(node["q"])
            q[tried] = 0
            q = q / q.sum()
        mass, count = rules.pooled_neighbours(
            as_array(p), rule.neighbours, limit if limit <= 1 else (limit - 1) * as_array(p)
        )
        following = np.asarray(residual.given(as_array(p), as_array(q), x))
        out.append(
            {
                "x": x,
                "p_x": p[x],
                "m": int(count[x]),
                "neighbour_mass": float(mass[x]),
                "q_x": None if node["q"] is None else q[x],
                "accept": float(rule.acceptance(as_array(p), as_array(q), 0)[x]),
                "residual": following,
            }
        )
        tried.append(x)
        p = following
    return out


def agrees(found: list[dict[str, Any]], steps: list[dict[str, Any]]) -> bool:
    for mine, theirs in zip(found, steps, strict=True):
        for key, value in mine.items():
            if value is None or theirs[key] is None:
                if value is not theirs[key]:
                    return False
            elif np.abs(np.asarray(value) - np.asarray(theirs[key])).max() > TOLERANCE:
                return False
    return True


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("index", range(len(GOLDEN["nodes"])))
def test_lantern_node(index: int, library: str) -> None:
    node = GOLDEN["nodes"][index]
    for mine, theirs in zip(replay(node, lantern_residual(node), library), node["steps"], strict=True):
        for key, value in mine.items():
            if value is None:
                assert theirs[key] is None
            else:
                np.testing.assert_allclose(value, theirs[key], rtol=0, atol=TOLERANCE, err_msg=key)


@pytest.mark.parametrize("index", range(len(GOLDEN["greedy"])))
def test_lantern_greedy(index: int) -> None:
    node = GOLDEN["greedy"][index]
    rule = lantern_rule(node, node["k"])
    p = np.array(node["p"])
    assert rule.greedy_acceptance(p).tolist() == node["accepted"]
    assert rule.greedy_acceptance(torch.tensor(p)).tolist() == node["accepted"]
    assert node["accepted"][int(np.argmax(p))] == 1


def test_greedy_ties_go_to_the_first_index() -> None:
    pooled = np.array([0.25, 0.0, 0.25, 0.0])
    assert rules.greedy_acceptance(np.array([0.125, 0.375, 0.125, 0.375]), pooled).tolist() == [1, 1, 0, 0]


def zeroes_only_k(node: dict[str, Any]) -> Any:
    residual = lantern_residual(node)
    object.__setattr__(residual, "neighbours", residual.neighbours[:, : node["k"]])
    return residual


BROKEN = {
    "zeroes only k neighbours": zeroes_only_k,
    "another branch": lambda node: lantern_residual(
        node, branch="lumina_static" if node["branch"] != "lumina_static" else "llamagen_static"
    ),
    "never pools": lambda node: lantern_residual(
        node, **{"delta": None, "lam": None, "lam" if node["delta"] > 1 else "delta": 1.0 if node["delta"] > 1 else 0.0}
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_golden_nodes_notice_a_wrong_residual(name: str) -> None:
    """Negative control."""
    wrong = sum(not agrees(replay(node, BROKEN[name](node)), node["steps"]) for node in GOLDEN["nodes"])
    assert wrong >= 10


def test_neighbours_zeroed_beyond_those_pooled() -> None:
    """FAULTS: TV reported is the law's own, .4 for the published code where .1 would do."""
    p, q = np.array([0.1, 0.1, 0.3, 0.5]), np.array([1.0, 0.0, 0.0, 0.0])
    table = np.array([[1, 2, 3], [0, 2, 3], [1, 0, 3], [2, 1, 0]])
    published = lantern_verifier(table, 1, delta=0.1, branch="dynamic").step(p, q, 0)
    np.testing.assert_allclose(published.output, [0.2, 0, 0, 0.8], atol=1e-15)
    assert theory.total_variation(published.output, p) == pytest.approx(0.4)
    rule = rules.Lantern(table, 1, 0.1)
    consistent = np.array([0.2, 0, 0.3, 0.5])  # x and the one pooled neighbour zeroed
    assert theory.total_variation(consistent, p) == pytest.approx(0.1)
    for residual in (residuals.optimal_residual, residuals.kl_residual):
        assert theory.total_variation(theory.Verifier(rule, residual).step(p, q, 0).output, p) == pytest.approx(0.1)


# --- residuals that depend on the rejected token ---


def cactus_by_hand(p: Floats, q: Floats, x: int, delta: float) -> Floats:
    gamma = min(1.0, p[x] + np.sqrt(2 * delta * p[x] * (1 - p[x])))
    h = np.array([gamma if y == x else p[y] * (1 - gamma) / (1 - p[x]) for y in range(len(p))])
    left = np.maximum(h - q, 0)
    return left / left.sum() if left.sum() > 0 else h


def lantern_by_hand(p: Floats, q: Floats, x: int, table: Floats, k: int, delta: float, branch: str) -> Floats:
    pools = p[table[x, 0]] <= delta
    zero = table[x, : k + 1] if pools else []
    p, q = p.copy(), q.copy()
    if branch == "llamagen_static":
        q[zero] = 0
    else:
        p[zero] = 0
    if branch == "dynamic":
        p[x], q = 0, np.zeros_like(q)
    left = np.maximum(p - q, 0)
    return left / left.sum() if left.sum() > 0 else np.full(len(p), 1 / len(p))


def x_dependent(size: int, rng: np.random.Generator) -> list[tuple[Any, Any, Any]]:
    table = rules.nearest_neighbours(rng.normal(size=(size, 2)), size - 1)
    out: list[tuple[Any, Any, Any]] = [
        (rules.Cactus(d), residuals.CactusResidual(d), lambda p, q, x, d=d: cactus_by_hand(p, q, x, d))
        for d in (0.3, 1.0)
    ]
    for branch in ("dynamic", "llamagen_static", "lumina_static"):
        verifier = lantern_verifier(table, 2, delta=0.2, branch=branch)  # type: ignore[arg-type]
        out.append(
            (
                verifier.rule,
                verifier.residual,
                lambda p, q, x, b=branch: lantern_by_hand(p, q, x, table, 2, 0.2, b),
            )
        )
    return out


def test_mixture_over_rejected_tokens_equals_the_plain_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    for rule, residual, by_hand in x_dependent(6, rng):
        assert isinstance(residual, residuals.DraftDependentResidual)
        p, q = rng.dirichlet(np.ones(6), (3, 4)), rng.dirichlet(np.ones(6), (3, 4))
        p[0, 0, 2] = 0
        p[0, 0] /= p[0, 0].sum()
        f = rule.acceptance(p, q, 0)
        found = residual(p, q, f)
        x = rng.integers(0, 6, (3, 4))
        drawn = residual.given(p, q, x)
        for at in np.ndindex(3, 4):
            np.testing.assert_allclose(drawn[at], by_hand(p[at], q[at], x[at]), rtol=0, atol=TOLERANCE)
            weights = q[at] * (1 - f[at])
            plain = sum(w * by_hand(p[at], q[at], y) for y, w in enumerate(weights))
            plain = plain / weights.sum() if weights.sum() > 0 else p[at]
            np.testing.assert_allclose(found[at], plain, rtol=0, atol=TOLERANCE)
        tensors = torch.tensor(p), torch.tensor(q), torch.tensor(f)
        np.testing.assert_allclose(residual(*tensors).numpy(), found, rtol=0, atol=TOLERANCE)
        np.testing.assert_allclose(residual.given(*tensors[:2], torch.tensor(x)).numpy(), drawn, rtol=0, atol=TOLERANCE)
        with monkeypatch.context() as patch:  # blocks of one token give the same mixture
            patch.setattr(residuals, "ENTRIES_AT_ONCE", 1)
            np.testing.assert_allclose(residual(p, q, f), found, rtol=0, atol=TOLERANCE)
        nothing = residual(p, q, np.ones_like(p))
        np.testing.assert_array_equal(nothing, p)  # nothing rejected: counted as p, never NaN


def plain_round(
    target: theory.TabularChain, draft: theory.TabularChain, rule: Any, by_hand: Any, length: int
) -> Floats:
    """Law of a round by recursion over (draft, replacement) pairs, each replacement drawn from G_x."""
    size = target.vocab_size
    law = np.zeros((size,) * (length + 1))

    def at(chain: theory.TabularChain, prefix: tuple[int, ...]) -> Floats:
        return np.asarray(chain.levels[len(prefix)])[prefix]

    def finish(prefix: tuple[int, ...], mass: float) -> None:
        if len(prefix) == length + 1:
            law[prefix] += mass
            return
        for y in range(size):
            finish((*prefix, y), mass * at(target, prefix)[y])

    def visit(prefix: tuple[int, ...], mass: float) -> None:
        if len(prefix) == length:
            finish(prefix, mass)
            return
        p, q = at(target, prefix), at(draft, prefix)
        f = rule.acceptance(p, q, len(prefix))
        for x in range(size):
            visit((*prefix, x), mass * q[x] * f[x])
            for y, g in enumerate(by_hand(p, q, x) if f[x] < 1 else ()):
                finish((*prefix, y), mass * q[x] * (1 - f[x]) * g)

    visit((), 1.0)
    return law


@pytest.mark.parametrize("index", range(5))
def test_mixture_has_the_law_of_a_decoder_that_draws_given_the_rejected_token(index: int) -> None:
    rng = np.random.default_rng(1)
    rule, residual, by_hand = x_dependent(4, rng)[index]
    target, draft = random_tree(rng, 4, 3), random_tree(rng, 4, 2)
    law = plain_round(target, draft, rule, by_hand, 2)
    analysis = theory.analyse_round(target, draft, theory.Verifier(rule, residual), 2)
    np.testing.assert_allclose(analysis.law, law, rtol=0, atol=TOLERANCE)
    forgetful = theory.Verifier(rule, lambda p, q, f: residual.given(p, q, 0))  # negative control
    assert np.abs(theory.analyse_round(target, draft, forgetful, 2).law - law).max() > 1e-4


# --- the KL residual ---


@st.composite
def position(draw: Any, least: int = 0) -> tuple[Floats, Floats, Floats]:
    size = draw(st.integers(2, 6))

    def law(at_least: int) -> Floats:
        counts = draw(st.lists(st.integers(at_least, 10), min_size=size, max_size=size).filter(lambda c: sum(c) > 0))
        return np.array(counts) / sum(counts)

    f = draw(st.lists(st.integers(0, 4), min_size=size, max_size=size))
    return law(least), law(0), np.array(f) / 4


def output(p: Floats, q: Floats, f: Floats, residual: Floats) -> Floats:
    return q * f + np.sum(q * (1 - f)) * residual


DIVERGENCES = {
    "kl_output_target": lambda o, p: theory.kl_divergence(o, p),
    "kl_target_output": lambda o, p: theory.kl_divergence(p, o),
    "total_variation": theory.total_variation,
    "hellinger": theory.hellinger,
    "hockey_stick": lambda o, p: theory.hockey_stick(o, p, 1.5),
    "minus_smallest_ratio": lambda o, p: -float(np.min(o[p > 0] / p[p > 0])),
    "max_ratio": theory.max_ratio,
}


@given(position(), st.integers(0, 2**32 - 1))
def test_no_residual_beats_the_kl_one_in_any_divergence(at: Any, seed: int) -> None:
    p, q, f = at
    best = residuals.kl_residual(p, q, f)
    assert best.min() >= 0
    assert best.sum() == pytest.approx(1, abs=TOLERANCE)
    o = output(p, q, f, best)
    rivals = [residuals.optimal_residual(p, q, f), residuals.vanilla_residual(p, q, f), p]
    rivals += list(np.random.default_rng(seed).dirichlet(np.ones(len(p)), 20))
    for name, divergence in DIVERGENCES.items():
        least = divergence(o, p)
        for rival in rivals:
            other = divergence(output(p, q, f, rival), p)
            assert least <= other + TOLERANCE * max(1.0, abs(other)) or np.isinf(other), name


@given(position(least=1))
def test_kl_residual_is_mentored_decodings_above_lossless(at: Any) -> None:
    """G ∝ [p/b − q]_+ with b ≥ 1 set by normalisation, and the output law is max(q f, p/b)."""
    p, q, f = at
    f = np.maximum(f, rules.Lossless().acceptance(p, q, 0))
    rejected = float(np.sum(q * (1 - f)))
    if rejected < 1e-9:
        return
    o = output(p, q, f, residuals.kl_residual(p, q, f))
    b = 1 / float(np.min(o / p))
    assert b >= 1 - TOLERANCE
    np.testing.assert_allclose(rejected * residuals.kl_residual(p, q, f), np.maximum(p / b - q, 0), rtol=0, atol=1e-11)
    np.testing.assert_allclose(o, np.maximum(q * f, p / b), rtol=0, atol=1e-11)


@pytest.mark.parametrize("seed", range(4))
def test_kl_residual_equals_a_numeric_optimiser(seed: int) -> None:
    """Oracle: the convex programme over o ≥ q f, Σ o = 1; G* does not solve it."""
    import cvxpy as cp

    rng = np.random.default_rng(seed)
    p, q = rng.dirichlet(np.ones(7), 2)
    f = rules.Relaxed(1.7).acceptance(p, q, 0) if seed % 2 else rng.uniform(0.2, 1, 7)
    mine = output(p, q, f, residuals.kl_residual(p, q, f))
    second = output(p, q, f, residuals.optimal_residual(p, q, f))
    for sign in (1, -1):
        o = cp.Variable(7)
        divergence = cp.sum(cp.rel_entr(*(o, p)[::sign]))
        problem = cp.Problem(cp.Minimize(divergence), [o >= q * f, cp.sum(o) == 1])
        problem.solve(solver=cp.CLARABEL)
        value = theory.kl_divergence(*(mine, p)[::sign])
        assert problem.status == "optimal"
        assert value == pytest.approx(problem.value, abs=1e-6)
        np.testing.assert_allclose(mine, o.value, atol=1e-4)
        assert theory.kl_divergence(*(second, p)[::sign]) > value + 1e-4  # negative control


def test_kl_residual_is_lossless_below_the_target() -> None:
    f = rules.Relaxed(0.5).acceptance(P0, Q0, 0)
    np.testing.assert_allclose(output(P0, Q0, f, residuals.kl_residual(P0, Q0, f)), P0, atol=1e-15)
    np.testing.assert_array_equal(residuals.kl_residual(P0, P0, np.ones(3)), P0)
    assert residuals.kl_residual([0.5, 0.5, 0.0], [0.1, 0.1, 0.8], [1.0, 1.0, 0.5])[2] == 0
    batch = np.stack([P0, Q0])
    tensors = (torch.tensor(batch), torch.tensor(batch[::-1].copy()), torch.full((2, 3), 0.5, dtype=torch.float64))
    arrays = [t.numpy() for t in tensors]
    np.testing.assert_allclose(residuals.kl_residual(*tensors), residuals.kl_residual(*arrays), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("direction", ["output_target", "target_output"])
def test_mentored_accepts_most_for_its_budget(direction: Any) -> None:
    """Oracle: maximise Σ a over a ≤ q, a ≤ o, KL ≤ budget; the multiplicative rule with G* of the same KL is below."""
    import cvxpy as cp

    rng = np.random.default_rng(3)
    p, q = rng.dirichlet(np.ones(6), 2)
    budget = 0.03
    step = published_verifier(rules.Mentored(budget, direction)).step(p, q, 0)
    sign = 1 if direction == "output_target" else -1
    spent = theory.kl_divergence(*(step.output, p)[::sign])
    assert spent == pytest.approx(budget, abs=1e-12)
    o, a = cp.Variable(6), cp.Variable(6, nonneg=True)
    limits = [a <= q, a <= o, cp.sum(o) == 1, cp.sum(cp.rel_entr(*(o, p)[::sign])) <= budget]
    problem = cp.Problem(cp.Maximize(cp.sum(a)), limits)
    problem.solve(solver=cp.CLARABEL)
    assert problem.status == "optimal"
    assert 1 - step.rejection == pytest.approx(problem.value, abs=1e-6)
    omega = theory.match(
        lambda w: theory.Verifier(rules.Relaxed(w)),
        lambda v: theory.kl_divergence(*(v.step(p, q, 0).output, p)[::sign]),
        budget,
        1.0,
        10.0,
    )
    worse = theory.Verifier(rules.Relaxed(omega)).step(p, q, 0)
    assert worse.rejection > step.rejection + 1e-4  # negative control


def test_mentored_spends_no_more_than_the_budget() -> None:
    rng = np.random.default_rng(4)
    p, q = rng.dirichlet(np.full(40, 0.3), (2, 50))
    p[:, :5] = 0
    p /= p.sum(-1, keepdims=True)
    before = None
    for budget in (0.0, 0.01, 0.1, 1.0, 30.0):
        step = published_verifier(rules.Mentored(budget)).step(p, q, 0)
        assert (theory.kl_divergence(step.output, p) <= budget + TOLERANCE).all()
        assert before is None or (step.rejection <= before + TOLERANCE).all()
        before = step.rejection
    np.testing.assert_allclose(before, q[:, :5].sum(-1), atol=1e-12)  # all but the target's null tokens accepted


# --- cluster and surrogate residuals ---


@given(position())
def test_cluster_marginals_are_exact(at: Any) -> None:
    p, q, _ = at
    labels = np.arange(len(p)) % 3
    for rule, groups in (
        (rules.PartitionGrouped(labels), labels),
        (rules.RankGrouped(2), np.argsort(np.argsort(-p, kind="stable"), kind="stable") // 2),
    ):
        o = published_verifier(rule).step(p, q, 0).output
        assert o.sum() == pytest.approx(1, abs=TOLERANCE)
        for group in np.unique(groups):
            assert o[groups == group].sum() == pytest.approx(p[groups == group].sum(), abs=TOLERANCE)


def test_cluster_ratio_with_the_token_residual() -> None:
    """FAULTS: TV 2/5 is reported and the cluster marginal is exact; the token residual breaks it elsewhere."""
    rule = rules.PartitionGrouped(np.array([0, 0, 1]))
    step = published_verifier(rule).step(np.array([0.5, 0.5, 0.0]), np.array([0.9, 0.1, 0.0]), 0)
    assert theory.total_variation(step.output, [0.5, 0.5, 0.0]) == pytest.approx(2 / 5)
    assert step.output[:2].sum() == pytest.approx(1)
    p, q = np.array([0.5, 0.1, 0.4]), np.array([0.1, 0.7, 0.2])
    assert published_verifier(rule).step(p, q, 0).output[2] == pytest.approx(0.4)
    for token_residual in (residuals.vanilla_residual, residuals.optimal_residual):
        wrong = theory.Verifier(rule, token_residual).step(p, q, 0).output
        assert abs(wrong[2] - 0.4) > 0.05


@given(position(), st.floats(-1, 1), st.sampled_from(["opt", "token_1", "token_2", "token_3"]))
def test_speculative_cascades_emit_their_mixture(at: Any, alpha: float, variant: Any) -> None:
    p, q, _ = at
    rule = rules.SpeculativeCascade(alpha, variant)
    mixture = rule.surrogate(p, q)
    assert mixture.sum() == pytest.approx(1, abs=TOLERANCE)
    np.testing.assert_allclose(published_verifier(rule).step(p, q, 0).output, mixture, rtol=0, atol=TOLERANCE)
    ensemble = rules.Ensemble(abs(alpha))
    for residual in (residuals.vanilla_residual, residuals.SurrogateResidual(ensemble)):
        o = theory.Verifier(ensemble, residual).step(p, q, 0).output
        np.testing.assert_allclose(o, ensemble.surrogate(p, q), rtol=0, atol=TOLERANCE)


def test_a_token_specific_cascade_needs_its_own_residual() -> None:
    """Negative control: Norm[p−q]_+ does not give π."""
    rule = rules.SpeculativeCascade(0.2, "token_3")
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.1, 0.2, 0.7])
    wrong = theory.Verifier(rule, residuals.vanilla_residual).step(p, q, 0).output
    assert theory.total_variation(wrong, rule.surrogate(p, q)) > 0.01


TABLE = np.array([[1, 2], [0, 2], [1, 0]])
BAD: list[tuple[Any, str]] = [
    (lambda: residuals.LanternResidual(TABLE, 1), r"give delta \(LANTERN\) or lam"),
    (lambda: residuals.LanternResidual(TABLE, 1, 0.1, 2.0), r"delta=0\.1 and lam=2\.0"),
    (lambda: residuals.LanternResidual(TABLE, 1, 0.1, branch="eagle"), r"got 'eagle'"),  # type: ignore[arg-type]
    (lambda: residuals.LanternResidual(TABLE, 3, 0.1), r"k is 3, but a token of a vocabulary of 3 has only 2"),
    (lambda: residuals.LanternResidual(TABLE[:, :1], 1, 0.1), r"at least k=2"),
    (lambda: residuals.LanternResidual(TABLE, 1, lam=0.5), r"lam must be finite and lie in \[1\.0"),
    (lambda: residuals.LanternResidual(TABLE, 1, 0.1).given([0.5, 0.5], [0.5, 0.5], 0), r"neighbours are for 3 tokens"),
    (lambda: residuals.CactusResidual().given([0.5, 0.5], [0.5, 0.5], [-1]), r"integers in 0…1, got \[-1\]"),
    (lambda: residuals.CactusResidual().given([0.5, 0.5], [0.5, 0.5], 0.5), r"got float64"),
    (lambda: residuals.CactusResidual(-1), r"delta must be finite"),
    (lambda: residuals.kl_residual([0.5, 0.5], [1.0], [1.0]), r"vocabulary mismatch"),
]


@pytest.mark.parametrize("index", range(len(BAD)))
def test_bad_input(index: int) -> None:
    call, message = BAD[index]
    with pytest.raises(ValueError, match=message):
        call()
