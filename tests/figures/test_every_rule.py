"""Every rule against block verification, and the claims ledger: tables are the theory's, texts are the tables'."""

from __future__ import annotations

import math
from collections import Counter
from functools import partial
from typing import Any

import numpy as np
import pytest

import theory
from paper_figures import claims_ledger, every_rule, pairs, tables
from paper_figures.registry import Context
from paper_figures.store import render
from paper_figures.tables import group, select
from tests.figures.helpers import check_texts_and_pictures, figure, table
from theory.claims import ledger_entries
from theory.every_rule import BLOCKS, league_families

NAMES = ("every_rule", "claims_ledger")


@pytest.mark.parametrize("name", NAMES)
def test_texts_and_pictures(name: str) -> None:
    check_texts_and_pictures(name)


def test_every_rule_stands_in_every_cell_at_equal_cost_or_flagged() -> None:
    rows = table("every_rule")
    rules = [(family.rule, family.residual) for family in league_families(np.eye(3), 2)]
    cells = group(rows, "part", "kind", "pair", "zeros", "size")
    assert len(cells) == 3 * (2 * len(every_rule.QUICK_SIZES) + 1)
    assert {row["kind"] for row in rows} == {"i.i.d.", "Markov", "tree"}
    for cell in cells.values():
        assert [(row["rule"], row["residual"]) for row in cell] == rules
        costs = [row["cost"] for row in cell if row["matched"]]
        assert max(costs) - min(costs) < 1e-8
        assert len(costs) >= 15
    for row in rows:
        divide = row["tokens"] if row["part"] == "per token" else 1
        assert row["tv"] <= divide * row["bound"] + 1e-12


@pytest.mark.parametrize("part", ["one round", "per token"])
def test_rows_are_those_of_the_theory(part: str) -> None:
    """Rebuilt here: the pair from its stream, and each rule at its strength analysed by the plain functions."""
    setting = every_rule.QUICK_SETTINGS[part]
    rng = Context(quick=True).rng("pair", part, "Markov", 0, 0)
    found = select(table("every_rule"), part=part, kind="Markov", zeros=False, size=0.3)
    pair = pairs.pair("Markov", 0, rng, setting["vocabulary"], setting["tokens"], found[0]["distance"])
    codebook = rng.standard_normal((setting["vocabulary"], 2))
    checked = 0
    for row, family in zip(found, league_families(codebook, setting["length"]), strict=True):
        verifier = family.build(row["strength"])
        if part == "one round":
            a: Any = theory.analyse_round(pair.target, pair.draft, verifier, setting["length"])
        else:
            a = theory.analyse_sequence(pair.target, pair.draft, verifier, setting["length"], setting["tokens"])
        if abs(a.tokens_per_call - row["cost"]) > 1e-9:
            continue  # a coin between this member and one more
        checked += 1
        divide = setting["tokens"] if part == "per token" else 1
        assert row["bound"] == pytest.approx(a.tv_bound / divide, abs=1e-9)
        assert row["tv"] == pytest.approx(a.total_variation, abs=1e-9)
        assert row["kl_output_target"] == pytest.approx(a.kl_output_target / divide, abs=1e-9)
        assert row["kl_target_output"] == pytest.approx(a.kl_target_output / divide, abs=1e-9)
        assert row["log_max_ratio"] == pytest.approx(math.log(a.max_ratio) / divide, abs=1e-9)
    assert checked >= 9


def test_ratios_are_to_uniform_and_to_the_best_block() -> None:
    for cell in group(table("every_rule"), "part", "kind", "pair", "zeros", "size").values():
        (uniform,) = select(cell, rule="uniform")
        for quantity in every_rule.QUANTITIES:
            assert uniform[f"{quantity}_over_uniform"] == 1
            least = min(row[quantity] for row in cell if row["rule"] in BLOCKS)
            if least > every_rule.NOTHING:
                assert min(row[f"{quantity}_over_block"] for row in cell if row["block"]) == pytest.approx(1)
            for row in cell:
                if least > every_rule.NOTHING and math.isfinite(row[quantity]):
                    assert row[f"{quantity}_over_block"] == pytest.approx(row[quantity] / least, abs=1e-6)


def test_leaks_are_infinite_divergences() -> None:
    rows = table("every_rule")
    for row in rows:
        assert (row["support_leakage"] > 0) == math.isinf(row["kl_output_target"]), row
        assert row["zeros"] or row["support_leakage"] == 0
    leaks = every_rule.leaking(rows)
    assert {"ensemble", "CSD"} <= set(leaks)
    assert not set(leaks) & {*BLOCKS, "uniform", "COOL-SD, floored", "mentored", "Cactus"}


def test_counts_in_the_texts_follow_the_table() -> None:
    """Counted again from raw columns; and a table in which a rule is improved tells another story."""
    rows = table("every_rule")
    shown = [row for row in rows if row["matched"] and not row["zeros"] and row["part"] == "per token"]
    won, who = 0, Counter[str]()
    cells = group(shown, "kind", "pair", "size")
    for cell in cells.values():
        best = min(row["kl_output_target"] for row in cell if row["block"])
        better = [row["rule"] for row in cell if row["kl_output_target"] < best * (1 - every_rule.SLACK)]
        won += not better
        who.update(better)
    assert every_rule.beaten(rows, "per token", "kl_output_target") == (won, len(cells), who)
    assert f"{won} of {len(cells)} per-token" in every_rule.claim(rows)
    changed = [row | {"kl_output_target_over_block": 0.1} if row["rule"] == "FSD" else row for row in rows]
    assert every_rule.beaten(changed, "per token", "kl_output_target")[0] == 0
    assert "FSD" in every_rule.claim(changed)


def test_geometric_means() -> None:
    assert pairs.geometric_mean([0.5, 2.0]) == pytest.approx(1)
    assert pairs.geometric_mean([0.0, math.inf]) == 0
    assert pairs.geometric_mean([1.0, math.inf]) == math.inf
    means = every_rule.means(table("every_rule"), "one round", "tv")
    assert all(value == 1 for key, value in means.items() if key[0] == "uniform")
    assert means["capped excess", "block", 0.3] < 1


def test_the_target_with_zeros_is_a_target() -> None:
    rng = np.random.default_rng(0)
    for kind in every_rule.KINDS:
        target = pairs.pair(kind, 0, rng, 3, 3).target
        cut = every_rule._with_zeros(target, rng)
        for depth in (0, 1):
            before, after = (chain.conditional(np.zeros((1, depth), int)) for chain in (target, cut))
            assert (after == 0).sum() == 1
            assert after.argmin() == before.argmin()
            assert after.sum() == pytest.approx(1)


def test_the_ledger_table_is_the_ledger() -> None:
    rows = table("claims_ledger")
    assert tables.column(rows, "name") == list(claims_ledger.QUICK)
    for row in rows:
        claim = ledger_entries()[row["name"]]()
        assert {key: value for key, value in row.items() if key != "name"} == {
            key: getattr(claim, key) for key in ("claim", "source", "wording", "computed", "verdict", "counterexample")
        }
        assert row["verdict"] in claims_ledger.LOOKS
    every = [partial(dict, **(row | {"verdict": verdict}))() for row in rows for verdict in claims_ledger.LOOKS]
    for verdict, count in Counter(row["verdict"] for row in every).items():
        assert f"{count} {claims_ledger._verb(verdict, count)}" in claims_ledger.claim(every)


def test_a_small_version_says_so() -> None:
    chosen, rows = figure("claims_ledger"), table("claims_ledger")
    assert render(chosen, rows)["png"] != render(chosen, rows, small=True)["png"]


def test_long_texts_are_cut_in_the_picture_alone() -> None:
    row = table("claims_ledger")[0] | {"computed": "word " * 400}
    lines = claims_ledger.evidence(row)
    assert len(lines) <= 2 * claims_ledger.MOST
    assert any(line.endswith("[…]") for line in lines)
    assert "[…]" in claims_ledger.caption([row])
    assert "[…]" not in claims_ledger.caption(table("claims_ledger")[1:3])
