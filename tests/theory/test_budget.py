"""Budgeted decoding: oracle cases, budgets that hold, and a broken example for every condition of the proof."""

from __future__ import annotations

import json
import math
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import theory
from tests.theory.helpers import CASES, RESIDUALS, ROOT, number, numbers, random_tree, rule_of
from theory import budget_laws
from theory.blocks import block
from theory.budget import budgeted, budgeted_log_likelihood, filter_budget
from theory.budget_laws import analyse_budgeted

PATHS = sorted((CASES / "budget").glob("*.json"))
MODES = ["prefix_partial", "prefix", "partial", "step", "sticky"]
LEDGERS = ["tv", "kl", "reverse_kl"]


def load(path: Path) -> tuple[dict[str, Any], list[theory.TabularChain], Any]:
    case = json.loads(path.read_text())
    chains = [theory.TabularChain([np.array(numbers(level)) for level in case[side]]) for side in ("target", "draft")]
    verifier = theory.Verifier(rule_of(case["rule"]), RESIDUALS[case["residual"]])
    return case, chains, budgeted(verifier, number(case["epsilon"]), case["ledger"], case["mode"])


def along(chains: Any, tokens: np.ndarray) -> list[np.ndarray]:
    return [np.stack([c.conditional(tokens[:, :t]) for t in range(tokens.shape[1])], axis=1) for c in chains]


def test_the_cases_are_there() -> None:
    copies = sorted((ROOT / "tests" / "data" / "cases" / "budget").glob("*.json"))
    assert len(copies) == 54
    assert {path.name for path in PATHS} == {path.name for path in copies}


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_case(path: Path) -> None:
    case, chains, rule = load(path)
    tolerance = 1e-12 if case["ledger"] == "tv" else 1e-9
    a = analyse_budgeted(*chains, rule, case["draft_length"], case["tokens"])
    assert set(case["expect"]) >= {"law", "expected_spent", "largest_spent", "expected_calls", "expected_relaxed_steps"}
    for key, value in case["expect"].items():
        wanted = np.array([np.inf if x is None else x for x in (value if isinstance(value, list) else [value])], float)
        found = np.asarray(getattr(a, key)).reshape(-1)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance, err_msg=key)
    assert a.budgeted_divergence <= a.certificate + 1e-12
    assert a.certificate <= rule.certificate + 1e-12
    if not rule.by_prefix:
        return
    tokens = np.array(list(product(range(case["vocab_size"]), repeat=case["tokens"])))
    found = filter_budget(tokens, *along(chains, tokens), rule, case["draft_length"])
    law = a.law.reshape(-1)
    np.testing.assert_allclose(np.exp(found.log_likelihood), law, rtol=0, atol=1e-12)
    np.testing.assert_allclose(np.exp(found.target_log_likelihood), a.target_law.reshape(-1), rtol=0, atol=1e-12)
    reached = np.where(law[:, None] > 0, 1, 0)
    assert law @ (reached * found.starts).sum(-1) == pytest.approx(a.expected_calls, abs=1e-11)
    assert law @ (reached * found.relaxed).sum(-1) == pytest.approx(a.expected_relaxed_steps, abs=1e-11)
    assert law @ found.spent[:, -1] == pytest.approx(a.expected_spent, abs=1e-11)


# A plain recursion over (prefix, offset, spent), mode "step", with one broken condition at a time.


def positive(row: np.ndarray) -> np.ndarray:
    return np.clip(row, 0, None)


def divergence(a: np.ndarray, b: np.ndarray, ledger: str) -> float:
    if ledger == "tv":
        return float(positive(a - b).sum())
    if ledger == "reverse_kl":
        a, b = b, a
    if (b[a > 0] == 0).any():
        return math.inf
    return float(sum(x * math.log(x / y) for x, y in zip(a, b, strict=True) if x > 0))


def recursion(
    target: Any, draft: Any, verifier: Any, length: int, count: int, epsilon: float, ledger: str, fault: str | None
) -> np.ndarray:
    size = target.vocab_size
    law = np.zeros((size,) * count)

    def visit(prefix: tuple[int, ...], offset: int, spent: float, mass: float) -> None:
        if mass == 0:
            return
        if len(prefix) == count:
            law[prefix] += mass
            return
        p, q = (np.asarray(c.conditional(np.array([prefix], int).reshape(1, -1)))[0] for c in (target, draft))
        if offset == length:
            for x in range(size):
                visit((*prefix, x), 0, spent, mass * p[x])
            return
        if fault == "a ledger per round" and offset == 0:
            spent = 0.0
        f, plain = np.asarray(verifier.acceptance(p, q, offset)), np.asarray(theory.Lossless().acceptance(p, q, 0))
        step = verifier.step(p, q, offset)
        price = divergence(step.output, p, ledger)
        if fault == "price formula of another residual":
            price = float(positive(q * f - p).sum())
        if fault == "infinite price paid" and math.isinf(price):
            price = 0.0
        fits = spent < epsilon if fault == "next price outside the test" else spent + price <= epsilon
        charge = np.full(size, price if fits else 0.0)
        if fault == "the emitted token charged" and fits:
            charge = positive(step.output - p)
        if fault == "the decision looks at x_t":
            own = positive(q * f - p)
            f = np.where(spent + own <= epsilon, f, plain)
            charge = np.where(spent + own <= epsilon, own, 0.0)
        elif not fits:
            f = plain
        residual = verifier.residual(p, q, f) if fits or fault == "the decision looks at x_t" else None
        if residual is None:
            residual = theory.vanilla_residual(p, q, f)
        rejected = float(q @ (1 - f))
        for x in range(size):
            visit((*prefix, x), offset + 1, spent + charge[x], mass * q[x] * f[x])
            visit((*prefix, x), 0, spent + charge[x], mass * rejected * residual[x])

    visit((), 0, 0.0, 1.0)
    return law


ALL = theory.Verifier(theory.AcceptAll())
FAIR, EVEN, FOUR = (theory.IIDChain(p) for p in ([0.5, 0.5], [0.25] * 4, [0.4, 0.2, 0.2, 0.2]))
RELAXED = theory.Verifier(theory.Relaxed(1.5), theory.target_residual)
BROKEN = [
    # name, target, draft, verifier, L, T, ε, ledger
    ("price formula of another residual", FAIR, theory.IIDChain([0.9, 0.1]), RELAXED, 1, 2, 0.31, "tv"),
    ("next price outside the test", FAIR, theory.IIDChain([0.9, 0.1]), ALL, 2, 2, 0.5, "tv"),
    ("a ledger per round", FAIR, theory.IIDChain([0.8, 0.2]), ALL, 1, 6, 0.31, "tv"),
    ("the emitted token charged", EVEN, theory.IIDChain([0.3, 0.3, 0.3, 0.1]), ALL, 2, 2, 0.21, "tv"),
    ("the decision looks at x_t", FOUR, theory.IIDChain([0.1, 0.3, 0.3, 0.3]), ALL, 1, 1, 0.15, "tv"),
    ("infinite price paid", theory.IIDChain([1.0, 0.0]), theory.IIDChain([0.9, 0.1]), ALL, 1, 2, 0.5, "kl"),
]


def within_budget(law: np.ndarray, target: Any, count: int, epsilon: float, ledger: str) -> bool:
    own = np.ones(())
    for _ in range(count):
        own = own[..., None] * np.asarray(target.p)
    return divergence(law.reshape(-1), own.reshape(-1), ledger) <= epsilon + 1e-12


@pytest.mark.parametrize("row", BROKEN, ids=lambda row: row[0])
def test_every_condition_has_a_broken_example(row: Any) -> None:
    """The right decoder stays within ε and is the package's; the one without the condition exceeds ε."""
    name, target, draft, verifier, length, count, epsilon, ledger = row
    right = recursion(target, draft, verifier, length, count, epsilon, ledger, None)
    found = analyse_budgeted(target, draft, budgeted(verifier, epsilon, ledger, "step"), length, count)
    np.testing.assert_allclose(found.law, right, rtol=0, atol=1e-13)
    assert within_budget(right, target, count, epsilon, ledger)
    wrong = recursion(target, draft, verifier, length, count, epsilon, ledger, name)
    assert wrong.sum() == pytest.approx(1)
    assert not within_budget(wrong, target, count, epsilon, ledger)


@pytest.mark.parametrize("mode", MODES)
def test_the_budget_is_never_exceeded(mode: str) -> None:
    """1,000 random chains over all modes: small budgets, all ledgers, rules that leave the target's support."""
    rng = np.random.default_rng(MODES.index(mode))
    rules = [theory.Relaxed(2.5), theory.AcceptAll(), theory.Ensemble(0.7), theory.Relaxed([3.0, 0.5])]
    residuals = list(RESIDUALS.values())
    charged = 0
    for trial in range(200):
        size, concentration = (2, 3)[trial % 2], (0.3, 1.0)[trial // 2 % 2]
        target, draft = (random_tree(rng, size, 4, concentration) for _ in range(2))
        verifier = theory.Verifier(rules[trial % 4], residuals[trial % 3])
        ledger = LEDGERS[trial // 3 % 3]
        epsilon = float(rng.uniform(0, 0.6))
        a = analyse_budgeted(target, draft, budgeted(verifier, epsilon, ledger, mode), 2, 4)
        assert a.law.sum() == pytest.approx(1, abs=1e-12)
        assert a.budgeted_divergence <= a.certificate + 1e-12
        assert a.certificate <= epsilon + 1e-12
        charged += a.total_variation > 0.05
    assert charged > 50


def test_a_budget_can_be_reached() -> None:
    """Power: one position, TV exactly ε with the partial mode; the check above is not vacuous."""
    a = analyse_budgeted(FAIR, theory.IIDChain([0.9, 0.1]), budgeted(ALL, 0.25), 1, 1)
    assert a.total_variation == pytest.approx(0.25, abs=1e-15)


@pytest.mark.parametrize("mode", MODES)
def test_no_budget_is_lossless_and_a_large_one_is_the_rule_itself(mode: str) -> None:
    rng = np.random.default_rng(1)
    target, draft = random_tree(rng, 3, 4), random_tree(rng, 3, 4)
    verifier = theory.cool_sd(2, 1.6)
    none = analyse_budgeted(target, draft, budgeted(verifier, 0.0, "tv", mode), 2, 4)
    np.testing.assert_allclose(none.law, none.target_law, rtol=0, atol=1e-13)
    much = analyse_budgeted(target, draft, budgeted(verifier, 1e6, "tv", mode), 2, 4)
    own = theory.analyse_sequence(target, draft, verifier, 2, 4)
    np.testing.assert_allclose(much.law, own.law, rtol=0, atol=1e-13)
    assert much.expected_calls == pytest.approx(own.expected_calls, abs=1e-12)
    if not mode.startswith("prefix"):
        assert much.expected_spent == pytest.approx(own.tv_bound, abs=1e-12)


def test_plan_repeats_the_ledger_of_the_filter() -> None:
    """What a decoder asks step by step is what the likelihood assumes."""
    rng = np.random.default_rng(2)
    p, q = rng.dirichlet(np.ones(4), (5, 6)), rng.dirichlet(np.ones(4), (5, 6))
    tokens = rng.integers(0, 4, (5, 6))
    for mode in ("prefix", "prefix_partial"):
        rule = budgeted(theory.cool_sd(2, 1.6), 0.3, "kl", mode)
        spent: Any = np.zeros(5)
        found = filter_budget(tokens, p, q, rule, 2)
        for t in range(6):
            decision = rule.plan(p[:, t], q[:, t], spent, rng.integers(0, 3, 5), 2)
            spent = decision.spent
            assert ((decision.relaxed >= 0) & (decision.relaxed <= 1)).all()
            np.testing.assert_allclose(found.spent[:, t], spent, rtol=0, atol=1e-15)
    bonus = budgeted(ALL, 0.3, mode="step").plan(p[0, 0], q[0, 0], 0.1, 2, 2)
    assert float(bonus.spent) == 0.1


def test_sticky_closes_and_step_does_not() -> None:
    dear, cheap = np.array([[0.5, 0.5], [0.9, 0.1]]), np.array([[0.5, 0.5], [0.55, 0.45]])
    for mode, wanted in (("sticky", 0.0), ("step", 1.0)):
        rule = budgeted(ALL, 0.2, mode=mode)
        first = rule.plan(*dear, 0.0, 0, 1)
        second = rule.plan(*cheap, first.spent, 0, 1, first.closed)
        assert (float(first.relaxed), float(second.relaxed)) == (0.0, wanted)


def test_numpy_and_torch_agree() -> None:
    rng = np.random.default_rng(3)
    arrays = rng.integers(0, 5, (4, 30)), rng.dirichlet(np.ones(5), (4, 30)), rng.dirichlet(np.ones(5), (4, 30))
    for ledger in LEDGERS:
        rule = budgeted(theory.cool_sd(3, 1.6), 0.4, ledger)
        found = budgeted_log_likelihood(*arrays, rule, 3)
        on_torch = budgeted_log_likelihood(*map(torch.from_numpy, arrays), rule, 3)
        np.testing.assert_allclose(on_torch.numpy(), found, rtol=1e-12)


def test_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments, message in (((-1.0,), "epsilon"), ((math.inf,), "epsilon"), ((0.1, "hellinger"), "ledger must be")):
        with pytest.raises(ValueError, match=message):
            budgeted(ALL, *arguments)
    with pytest.raises(ValueError, match="mode must be one of"):
        budgeted(ALL, 0.1, mode="greedy")
    with pytest.raises(TypeError, match="token-wise"):
        budgeted(block(2), 0.1)
    with pytest.raises(ValueError, match="hidden offset"):
        filter_budget(np.zeros(2, int), np.ones((2, 1)), np.ones((2, 1)), budgeted(ALL, 0.1, mode="step"), 1)
    shallow, deep = (random_tree(np.random.default_rng(0), 2, depth) for depth in (4, 5))
    with pytest.raises(ValueError, match="needs 5"):
        analyse_budgeted(shallow, deep, budgeted(ALL, 0.1), 2, 5)
    monkeypatch.setattr(budget_laws, "LARGEST_STATES", 100)
    with pytest.raises(ValueError, match="more than 50"):
        analyse_budgeted(FOUR, FOUR, budgeted(ALL, 0.1), 2, 5)
    assert budgeted(ALL, 0.0).lossless
    assert not budgeted(ALL, 0.1).lossless


@pytest.mark.parametrize("ledger", LEDGERS)
def test_narrow_laws_are_charged_all_the_same(ledger: str) -> None:
    """Many steps that each cost less than float32 can tell from zero: the ledger of float32 laws is float64's."""
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.full(64, 5.0), size=500)
    q = p * (1 + 1.2e-3 * rng.choice([-1, 1], size=p.shape))
    p, q = (a.astype(np.float32) / a.astype(np.float32).sum(-1, keepdims=True) for a in (p, q))
    ids = rng.integers(0, 64, 500)
    rule = budgeted(ALL, 1e-5, ledger)  # type: ignore[arg-type]
    for kind in (np.asarray, torch.from_numpy):
        narrow, wide = (
            filter_budget(kind(ids), *(kind(a) for a in rows), rule, 4)
            for rows in ((p, q), tuple(a.astype(float) / a.astype(float).sum(-1, keepdims=True) for a in (p, q)))
        )
        assert float(wide.spent[-1]) == pytest.approx(1e-5)
        np.testing.assert_allclose(narrow.spent, wide.spent, rtol=1e-4)
        assert float(narrow.relaxed.sum()) < 50
        plan = rule.plan(kind(p[0]), kind(q[0]), 0.0, 0, 4)
        assert float(plan.spent) == pytest.approx(float(wide.spent[0]), rel=1e-4)
        same = rule.plan(kind(p[0]), kind(p[0]), 0.0, 0, 4)
        assert float(same.spent) == 0
        assert float(same.relaxed) == 1


def test_rounding_is_free_and_nothing_else_is() -> None:
    """A step that emits p up to rounding costs nothing; one that is off by 1e-11 costs 1e-11."""
    rng = np.random.default_rng(4)
    p, q = rng.dirichlet(np.full(50, 0.5), (200, 2)).swapaxes(0, 1)
    rounded = theory.Verifier(theory.Relaxed(1.0)).step(p, q, 0).output
    assert (theory.total_variation(rounded, p) > 0).any()
    plan = budgeted(theory.Verifier(theory.Relaxed(1.0)), 0.0, mode="step").plan(p, q, np.zeros(200), 0, 2)
    assert (plan.spent == 0).all()
    assert (plan.relaxed == 1).all()
    near = budgeted(ALL, 1.0, mode="step").plan([0.5, 0.5], [0.5 + 1e-11, 0.5 - 1e-11], 0.0, 0, 2)
    assert float(near.spent) == pytest.approx(1e-11, rel=1e-4)


@pytest.mark.parametrize(
    ("verifier", "epsilon", "lossless"),
    [(ALL, 0.0, True), (ALL, 0.1, False), (theory.Verifier(theory.Lossless()), 0.1, True)],
)
def test_a_budget_claims_to_be_lossless_where_it_is(verifier: Any, epsilon: float, lossless: bool) -> None:
    rule = budgeted(verifier, epsilon)
    assert rule.lossless is lossless
    a = analyse_budgeted(FAIR, theory.IIDChain([0.9, 0.1]), rule, 2, 3)
    assert (a.total_variation < 1e-15) == lossless
