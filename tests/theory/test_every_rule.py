"""The league of all rules: nobody missing, equal cost, honest flags."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import theory
from tests.theory.helpers import random_tree
from theory.every_rule import BLOCKS, compare_every_rule, league_families
from theory.known_steps import KnownRun
from theory.matching import Matcher, Randomised, matched_verifier
from theory.published import published_verifier
from theory.rule_families import rule_families

POINTS = [[0.0, 0.0], [1.0, 0.2], [0.1, 1.0]]


def chains(kind: str) -> tuple[Any, Any]:
    rng = np.random.default_rng(4)
    if kind == "tree":
        return random_tree(rng, 3, 5), random_tree(rng, 3, 5)
    if kind == "iid":
        return theory.IIDChain([0.5, 0.3, 0.2]), theory.IIDChain([0.2, 0.3, 0.5])
    return tuple(theory.MarkovChain(rng.dirichlet(np.ones(3)), rng.dirichlet(np.ones(3), 3)) for _ in range(2))


def test_no_published_rule_is_missing() -> None:
    names = {family.rule for family in league_families(POINTS, 2)}
    assert {family.rule for family in theory.rule_families(POINTS, 2)} <= names
    assert set(BLOCKS) <= names


def test_rules_have_the_residual_they_were_published_with() -> None:
    checked = set()
    for family in league_families(POINTS, 2):
        verifier = family.build(family.low + 0.1)
        if family.rule in BLOCKS or isinstance(
            getattr(verifier, "rule", None), theory.Lantern | theory.LanternPlusPlus
        ):
            continue
        assert isinstance(verifier, theory.Verifier)
        own = published_verifier(verifier.rule).residual
        assert type(verifier.residual) is type(own), family.rule
        if callable(own) and type(own).__name__ == "function":
            assert verifier.residual is own, family.rule
        checked.add(family.rule)
    assert {"mentored", "uniform", "COOL-SD", "CSD", "Cactus", "GSD, repaired"} <= checked


@pytest.mark.parametrize("kind", ["iid", "markov", "tree"])
@pytest.mark.parametrize("tokens", [None, 5])
def test_rows_are_at_equal_cost_or_flagged(kind: str, tokens: int | None) -> None:
    rows = compare_every_rule(*chains(kind), 2, POINTS, [0.4], tokens)
    costs = [row["cost"] for row in rows if row["matched"]]
    assert len(costs) >= 15
    assert max(costs) - min(costs) < 1e-6
    for row in rows:
        assert row["total_variation"] <= row["tv_bound"] * (tokens or 1) + 1e-12, row
    uniform = next(row for row in rows if row["rule"] == "uniform")
    lifted = next(row for row in rows if row["rule"] == "lifted uniform")
    if tokens is None:
        assert lifted["kl_output_target"] < uniform["kl_output_target"]


def test_block_verification_at_equal_cost() -> None:
    """On one fixed pair; how the rules compare in general is measured, not asserted."""
    rng = np.random.default_rng(0)
    target, draft = random_tree(rng, 3, 5), random_tree(rng, 3, 5)
    divergences = ("tv_bound", "total_variation", "kl_output_target", "kl_target_output")
    one_round, sequence = (
        {row["rule"]: row for row in compare_every_rule(target, draft, 2, POINTS, [0.3], tokens)}
        for tokens in (None, 5)
    )
    for name in BLOCKS:
        for quantity in divergences:
            assert one_round[name][quantity] < 0.95 * one_round["uniform"][quantity]
    # Five tokens in rounds of up to three: the end cuts most rounds, and hardly anything is gained.
    ends = sequence["lifted uniform"]["kl_output_target"] / sequence["uniform"]["kl_output_target"]
    assert ends == pytest.approx(1, abs=0.01)


def test_block_families_are_lossless_at_strength_zero() -> None:
    target, draft = chains("tree")
    for name, family in theory.block_families(2).items():
        laws = [theory.analyse_round(target, draft, family(strength), 2) for strength in (0.0, 1.0)]
        assert laws[0].total_variation < 1e-12, name
        assert laws[1].total_variation > 1e-3, name
        assert laws[1].expected_accepted > laws[0].expected_accepted, name


def test_a_block_that_is_already_past_the_cost_is_lossless_and_flagged() -> None:
    rows = compare_every_rule(*chains("iid"), 2, POINTS, [0.01])
    block = next(row for row in rows if row["rule"] == "lifted uniform")
    assert not block["matched"]
    assert block["total_variation"] < 1e-12
    with pytest.raises(ValueError, match="size must be finite"):
        compare_every_rule(*chains("iid"), 2, POINTS, [1.5])


@pytest.mark.parametrize("kind", ["iid", "markov", "tree"])
@pytest.mark.parametrize("tokens", [None, 5])
def test_known_steps_give_the_oracle_numbers(kind: str, tokens: int | None) -> None:
    """Every member that is measured or shown, beside `analyse_round` and `analyse_sequence` of the rule itself."""
    target, draft = chains(kind)
    run = KnownRun(target, draft, 2, tokens)
    for family in league_families(POINTS, 2):
        verifier = family.build(family.low + 0.3 * min(family.high - family.low, 2.0))
        if tokens is None:
            oracle: Any = theory.analyse_round(target, draft, verifier, 2)
        else:
            oracle = theory.analyse_sequence(target, draft, verifier, 2, tokens)
        found = run.analyse(verifier)
        assert run.cost(verifier) == pytest.approx(oracle.tokens_per_call, abs=1e-12), family.rule
        assert found.tokens_per_call == pytest.approx(oracle.tokens_per_call, abs=1e-12)
        assert found.tv_bound == pytest.approx(oracle.tv_bound, abs=1e-12)
        np.testing.assert_allclose(found.law, oracle.law, rtol=0, atol=1e-14)


def test_leaks_and_ratios_are_seen() -> None:
    target, draft = theory.IIDChain([0.6, 0.4, 0.0]), theory.IIDChain([0.25, 0.7, 0.05])
    rows = compare_every_rule(target, draft, 2, POINTS, [0.3])
    for row in rows:
        assert (row["support_leakage"] > 0) == np.isinf(row["kl_output_target"]) == np.isinf(row["max_ratio"]), row
    leaking = {row["rule"] for row in rows if row["support_leakage"] > 0}
    assert {"ensemble", "CSD"} <= leaking
    assert not leaking & {*BLOCKS, "uniform", "COOL-SD", "Cactus", "mentored"}


def test_a_jump_is_met_by_a_coin_and_a_slope_by_a_member() -> None:
    families = {f.rule: f for f in rule_families(POINTS, 2)}
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])

    def accepted(verifier: Any) -> float:
        return 1 - float(verifier.step(p, q, 0).rejection)

    for rule, coin in (("uniform", False), ("Cactus", False), ("mentored", False), ("top-k", True), ("FSD", True)):
        search = Matcher(families[rule], accepted)
        for value in (0.85, 0.72, 0.95):
            verifier, _, matched = search.at(value)
            assert matched
            assert isinstance(verifier, Randomised) == coin, rule
            assert accepted(verifier) == pytest.approx(value, abs=1e-9)
            again = matched_verifier(families[rule], accepted, value)[0]
            assert accepted(again) == pytest.approx(value, abs=1e-9)
    assert not Matcher(families["uniform"], accepted).at(0.5)[2]  # below lossless
