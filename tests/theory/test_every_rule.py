"""The league of all rules: nobody missing, equal cost, honest flags."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import theory
from tests.theory.helpers import random_tree
from theory.every_rule import BLOCKS, compare_every_rule, league_families

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


def test_a_block_that_is_already_past_the_cost_is_lossless_and_flagged() -> None:
    rows = compare_every_rule(*chains("iid"), 2, POINTS, [0.01])
    block = next(row for row in rows if row["rule"] == "lifted uniform")
    assert not block["matched"]
    assert block["total_variation"] < 1e-12
    with pytest.raises(ValueError, match="size must be finite"):
        compare_every_rule(*chains("iid"), 2, POINTS, [1.5])
