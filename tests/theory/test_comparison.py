"""Block verification against every published rule: equal cost or flagged, bounds kept, nothing left out."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import theory
from tests.theory.helpers import random_tree
from theory.comparison import (
    Comparison,
    as_published,
    block_families,
    compare_rounds,
    compare_sequences,
    every_family,
    ratios,
)
from theory.published import published_rules
from theory.rule_families import Family, rule_families

POINTS = np.array([[0.0, 0.0], [0.1, 0.2], [1.0, 1.0]])
LENGTH, TOKENS = 2, 5
BLOCKS = {"lossless block", "lifted uniform block", "capped uniform block", "capped excess block"}
ROUNDING = 1e-12


@cache
def chains(kind: str) -> tuple[Any, Any]:
    rng = np.random.default_rng(5)
    laws = [rng.dirichlet(np.ones(3), 4) for _ in range(2)]
    laws[1] = (laws[0] + laws[1]) / 2
    if kind == "independent":
        return theory.IIDChain(laws[0][0]), theory.IIDChain(laws[1][0])
    if kind == "Markov":
        return theory.MarkovChain(laws[0][0], laws[0][1:]), theory.MarkovChain(laws[1][0], laws[1][1:])
    target, noise = random_tree(rng, 3, TOKENS), random_tree(rng, 3, TOKENS)
    return target, theory.TabularChain([(a + b) / 2 for a, b in zip(target.levels, noise.levels, strict=True)])


@cache
def table(kind: str, part: str) -> tuple[Comparison, ...]:
    families = every_family(POINTS, LENGTH)
    if part == "round":
        return tuple(
            compare_rounds(*chains(kind), families if kind == "tree" else as_published(families), 2, [0.1, 0.5])
        )
    return tuple(compare_sequences(*chains(kind), as_published(families), LENGTH, TOKENS, [0.1, 0.4]))


def missing(families: list[Family]) -> set[str]:
    return {row["name"] for row in published_rules()} - {family.rule for family in families}


def test_no_published_rule_is_left_out() -> None:
    families = every_family(POINTS, LENGTH)
    assert missing(families) == set()
    assert missing(as_published(families)) == set()
    assert missing([f for f in families if f.rule != "Cactus"]) == {"Cactus"}  # the check can fail
    names = {(f.rule, f.residual) for f in families}
    assert len(names) == len(families)
    assert names >= {(f.rule, f.residual) for f in rule_families(POINTS, LENGTH)}
    assert {f.rule for f in families} >= BLOCKS
    own = {f.rule: f.residual for f in as_published(families)}
    assert (own["mentored"], own["uniform"], own["CSD"]) == ("kl", "optimal", "published")


@pytest.mark.parametrize("kind", ["independent", "Markov", "tree"])
@pytest.mark.parametrize("part", ["round", "sequence"])
def test_equal_cost_or_flagged(kind: str, part: str) -> None:
    rows = table(kind, part)
    families = every_family(POINTS, LENGTH)
    wanted = families if (kind, part) == ("tree", "round") else as_published(families)
    assert [(row.family, row.residual) for row in rows] == 2 * [(f.rule, f.residual) for f in wanted]
    for row in rows:
        if row.status in ("met", "coin"):
            assert row.cost == pytest.approx(row.wanted, abs=1e-6), row
        else:
            assert (row.cost > row.wanted) == (row.status == "faster"), row
        whole = row.tv_bound if part == "round" else TOKENS * row.tv_bound
        assert row.total_variation <= whole + ROUNDING, row
        assert min(row.kl_output_target, row.kl_target_output) >= -ROUNDING
        if row.family in BLOCKS:
            assert row.status != "coin"
    statuses = {row.family: row.status for row in rows}
    assert statuses["lossless"] == "short"
    # Positive chains: every rule with a strength gets half way, thresholds and top-k by a coin.
    assert {name for name, status in statuses.items() if status == "short"} <= {"lossless", "lossless block"}
    assert {statuses[name] for name in ("top-k", "accept-all", "typical")} == {"coin"}


def test_the_coin_is_no_other_rule() -> None:
    """Accept-all by a coin is the ensemble (1−η) p + η q; a family that reaches the cost by itself needs none."""
    for part in ("round", "sequence"):
        lines = {(r.family, r.residual, r.size): r for r in table("tree", part)}
        for row in lines.values():
            if row.family == "accept-all":
                same = lines["ensemble", "published", row.size]
                assert row.kl_output_target == pytest.approx(same.kl_output_target, rel=1e-5)
                assert same.status == "met"


@pytest.mark.parametrize("kind", ["independent", "Markov", "tree"])
def test_lossless_block_at_its_own_cost(kind: str) -> None:
    """At the cost of lossless block verification relaxed blocks have no divergence, and every token-wise rule has."""
    target, draft = chains(kind)
    costs = [theory.analyse_round(target, draft, v, LENGTH).expected_accepted for v in
             (theory.Verifier(theory.Lossless()), theory.block(LENGTH))]  # fmt: skip
    size = (costs[1] - costs[0]) / (LENGTH - costs[0])
    for row in compare_rounds(target, draft, as_published(every_family(POINTS, LENGTH)), LENGTH, [size]):
        divergences = np.array([row.tv_bound, row.total_variation, row.kl_output_target, row.kl_target_output])
        if row.family in BLOCKS:
            assert row.status == "met"
            np.testing.assert_allclose(divergences, 0, atol=1e-7)
        elif row.family != "lossless":
            assert (divergences > 1e-6).all(), row


def test_leaking_rules_have_infinite_divergence() -> None:
    """A target with a zero: rules that ignore it have KL(out‖target) = ∞ at equal cost; blocks never do."""
    target, draft = theory.IIDChain([0.6, 0.4, 0.0]), theory.IIDChain([0.25, 0.7, 0.05])
    rows = compare_rounds(target, draft, as_published(every_family(POINTS, LENGTH)), LENGTH, [0.3])
    infinite = {row.family for row in rows if np.isinf(row.kl_output_target)}
    assert infinite >= {"ensemble", "accept-all", "CSD"}
    assert not infinite & {*BLOCKS, "uniform", "COOL-SD", "Cactus", "mentored", "lossless"}
    lines = {line["family"]: line for line in ratios(rows, "uniform")}
    assert lines["ensemble"]["kl_output_target"] == np.inf
    assert lines["uniform"]["kl_output_target"] == 1


def test_what_is_out_of_reach() -> None:
    """Nobody who refuses the null token accepts everything: flagged for families with ranges, an error for a dict."""
    target, draft = theory.IIDChain([0.6, 0.4, 0.0]), theory.IIDChain([0.2, 0.4, 0.4])
    uniform = [f for f in every_family(POINTS, LENGTH) if f.rule in ("uniform", "capped uniform block")]
    assert {row.status for row in compare_rounds(target, draft, uniform, LENGTH, [0.95])} == {"short"}
    with pytest.raises(ValueError, match=r"'token-wise uniform' cannot reach size 0\.95"):
        compare_rounds(target, draft, block_families(LENGTH), LENGTH, [0.95])
    with pytest.raises(ValueError, match="length"):
        every_family(POINTS, 1)
