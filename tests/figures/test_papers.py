"""Figures of the COOL-SD paper's items, small versions: each title's and claim's content, computed from the table."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import get_args

import numpy as np
import pytest

import theory
from paper_figures import (
    accepted_length_test,
    against_jacobi,
    bound_tightness,
    cascade_style,
    optimal_residual_in_lantern,
    propositions,
    tables,
)
from paper_figures.registry import Context
from paper_figures.tables import column, group, select
from tests.figures.helpers import check_texts_and_pictures, figure, table
from theory.residuals import Branch

EXACT = 1e-12
"""Sums of at most 1e5 float64 terms of order one."""
MATCHED = 1e-7
"""Strengths are matched to 1e-10; what they move is of this order at the most."""
NAMES = (
    "accepted_length_test",
    "against_jacobi",
    "bound_tightness",
    "cascade_style",
    "decay_shapes",
    "optimal_residual_in_lantern",
    "propositions",
)


@pytest.mark.parametrize("name", NAMES)
def test_texts_and_pictures(name: str) -> None:
    check_texts_and_pictures(name)


@pytest.mark.parametrize("name", NAMES)
def test_tables_repeat_to_the_byte_and_follow_the_seed(name: str) -> None:
    again = tables.dumps(figure(name).build(Context(quick=True)))
    assert again == tables.dumps(table(name))
    if name != "decay_shapes":
        assert figure(name).build(Context(quick=True, seed=1)) != table(name)


def test_bound_is_attained_where_it_is_said_to_be_and_nowhere_exceeded() -> None:
    rows = table("bound_tightness")
    attained = [row for row in rows if row["part"] != bound_tightness.RANDOM]
    assert {row["part"] for row in attained} == {bound_tightness.ALONE, bound_tightness.APART}
    assert all(abs(row["tv"] - row["bound"]) < EXACT for row in attained)
    assert any(row["biased"] == row["length"] > 1 for row in attained)
    loose = select(rows, part=bound_tightness.RANDOM)
    assert all(row["tv"] <= row["bound"] + EXACT for row in loose)
    several = [row for row in loose if row["biased"] > 1]
    assert sum(row["tightness"] < 0.99 for row in several) > 0.9 * len(several)


def test_the_attaining_pair_is_biased_at_every_position() -> None:
    """And loses equality as soon as draft and target differ after other tokens too: a control that must fail."""
    target, draft = bound_tightness.apart(3, np.random.default_rng(0))
    verifier = theory.Verifier(theory.Relaxed(1.5))
    a = theory.analyse_round(target, draft, verifier, 3)
    assert all(float(b) > 0.01 for b in a.tv_bound_per_position)
    assert a.total_variation == pytest.approx(a.tv_bound, abs=EXACT)
    everywhere = theory.IIDChain(draft.conditional(np.zeros((1, 0), int))[0])
    b = theory.analyse_round(target, everywhere, verifier, 3)
    assert b.total_variation < b.tv_bound - 0.01


def test_prop_1_holds_above_one_and_fails_below() -> None:
    rows = select(table("propositions"), part="Prop. 1")
    for row in rows:
        if row["omega"] >= 1:
            assert abs(propositions.extra(row)) < EXACT
        else:
            assert propositions.extra(row) > 1e-3


def test_prop_2_holds_beyond_two_fifths_and_is_a_statement_about_two_ends() -> None:
    rows = table("propositions")
    two = select(rows, part="Prop. 2")
    assert any(row["distance"] > propositions.MARK for row in two)
    assert all(row["tv_early"] <= row["tv_late"] + MATCHED for row in two)
    for row in select(two, kind="independent"):
        assert propositions.ratio(row) == pytest.approx(1 / (2 - row["distance"]), abs=1e-6)
    for curve in group(select(rows, part="between"), "distance").values():
        bounds, tv = column(curve, "bound"), column(curve, "tv")
        assert all(b < a for a, b in pairwise(bounds))
        assert min(tv) < 0.9 * tv[-1] < 0.9 * tv[0]
        assert max(column(curve, "accepted")) - min(column(curve, "accepted")) < EXACT


def test_decay_lowers_the_bound_everywhere_and_the_exact_distance_on_some_chains() -> None:
    rows = table("decay_shapes")
    floored = [row for row in rows if row["part"] == "one round" and row["shape"].endswith(", floored")]
    assert all(row["ratio"] < 1 for row in select(floored, quantity="bound"))
    tv = column(select(floored, quantity="tv"), "ratio")
    assert min(tv) < 1 < max(tv)
    for cost, part in (("accepted", "one round"), ("tokens_per_call", "sequence")):
        assert all(abs(row["ratio"] - 1) < MATCHED for row in select(rows, part=part, quantity=cost))
    omegas = {
        row["shape"]: [row[f"omega_{i}"] for i in range(1, 6)] for row in select(rows, part="one round", size=0.3)
    }
    assert min(omegas["exponential, no floor"]) < 1 <= min(omegas["exponential, floored"])
    assert np.ptp(np.diff(omegas["linear, no floor"])) < 1e-9
    assert np.ptp(np.diff(np.log(omegas["exponential, no floor"]))) < 1e-9


def test_a_t_test_finds_nothing_at_equal_length_and_what_is_there_at_equal_factors() -> None:
    rows = table("accepted_length_test")
    same = select(rows, group=accepted_length_test.EQUAL_N)
    other = select(rows, group=accepted_length_test.EQUAL_DELTA)
    assert np.ptp(column(same, "exact")) < MATCHED
    assert np.ptp(column(other, "exact")) > 0.3
    for row in rows:
        # Means of 4e4 rounds: five standard errors.
        assert abs(row["grand_mean"] - row["exact"]) < 5 * row["exact_sd"] / math.sqrt(row["rounds"] * row["repeats"])
        assert sum(row[f"law_{k}"] for k in range(row["length"] + 1)) == pytest.approx(1)
        if row["found"] is not None and row["group"] == accepted_length_test.EQUAL_N:
            assert row["found_lower"] <= accepted_length_test.LEVEL <= row["found_upper"]
    uniform = select(other, schedule="uniform")[0]["exact"]
    far = [row for row in other if abs(row["exact"] - uniform) > 2 * accepted_length_test.detectable(row)]
    assert far
    assert all(row["found"] > 0.9 for row in far)


def test_p_values_see_a_shift_and_no_more() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 400))
    assert accepted_length_test.p_value(a, b) > 0.001
    assert accepted_length_test.p_value(a, b + 1) < 1e-9


def test_the_draft_decides_between_cool_sd_and_jacobi() -> None:
    rows = table("against_jacobi")
    won, of = against_jacobi.beaten(rows)
    good, bad = min(won), max(won)
    assert won[good] == of
    assert won[bad] == 0
    free = [row for row in rows if row["method"] in against_jacobi.COUPLINGS and row["strength"] == 1]
    assert len(free) == 3
    assert all(row["tv_estimate_lower"] <= 0 for row in free)
    relaxed = [row for row in rows if row["method"] in against_jacobi.COUPLINGS and row["strength"] > 2]
    assert all(row["tv_estimate_lower"] > 0.05 for row in relaxed)


def test_the_estimate_of_tv_falls_short_and_never_overshoots() -> None:
    """On COOL-SD the truth is known: speed within the interval, TV not below the estimate's lower end."""
    checked = [row for row in table("against_jacobi") if row["draft_tv"] and row["tv_estimate"] is not None]
    assert len(checked) == 3
    for row in checked:
        assert row["tv_estimate_lower"] <= row["tv"]
        assert row["tv_estimate"] > 0.8 * row["tv"]


def test_the_optimal_residual_lowers_tv_at_the_same_accepted_length() -> None:
    rows = table("optimal_residual_in_lantern")
    lower, equal, higher = optimal_residual_in_lantern.counts(rows)
    assert lower + equal + higher == len(rows)
    assert lower > 0.75 * len(rows)
    for cell in group(rows, "chain", "rule", "k").values():
        assert len({row["accepted"] for row in cell}) == len({row["tv_star"] for row in cell}) == 1
        assert {row["branch"] for row in cell} == set(get_args(Branch)) - {"lumina_dynamic"}
    for (rule, branch), (first, last) in optimal_residual_in_lantern.ends(rows).items():
        mean = optimal_residual_in_lantern.gains(rows, rule, branch)
        assert [first, last] == [mean[1], mean[10]]
    assert any(last < first for first, last in optimal_residual_in_lantern.ends(rows).values())


def test_one_row_of_lantern_is_the_theorys() -> None:
    import simulate

    rng = Context(quick=True).rng("chain", 0)
    made = simulate.embedding_chain(16, 3, rng, clusters=4)
    draft = simulate.make_draft(made.chain, 0.2, rng, 3)
    near = theory.nearest_neighbours(made.embedding, 15)
    verifier = theory.lantern_verifier(near, 3, lam=5.0, branch="dynamic")
    (row,) = select(
        table("optimal_residual_in_lantern"), chain=0, rule="LANTERN++, λ = 5", k=3, branch="dynamic"
    )  # fmt: skip
    for name, v in (("tv", verifier), ("tv_star", theory.Verifier(verifier.rule))):
        assert row[name] == pytest.approx(theory.analyse_round(made.chain, draft, v, 2).total_variation, abs=EXACT)


def test_near_duplicates_buy_acceptance_at_more_kl_than_uniform() -> None:
    rows = table("cascade_style")
    for tau, bought in cascade_style.means(rows, "clustered", "bought").items():
        assert bought > cascade_style.means(rows, "no clusters", "bought")[tau] - EXACT
        assert bought > 0.1
    assert min(cascade_style.means(rows, "clustered", "kl_ratio").values()) > 1
    for cell in group(rows, "codebook", "chain").values():
        accepted = column(sorted(cell, key=lambda row: -row["tau"]), "accepted")
        assert all(b >= a - EXACT for a, b in pairwise(accepted))
        assert all(row["tv"] <= row["bound"] + EXACT for row in cell)


def test_a_state_says_which_tokens_are_duplicates() -> None:
    """Tokens with one next-token law have one state, and the rule's class then holds both."""
    chain = theory.MarkovChain([0.2, 0.3, 0.5], [[0.1, 0.2, 0.7], [0.1, 0.2, 0.7], [0.8, 0.1, 0.1]])
    hidden = cascade_style.states(chain)
    assert np.array_equal(hidden[0], hidden[1])
    rule = theory.CascadeStyle(tau_b=0.999).at(np.arange(3), hidden)
    f = rule.acceptance([0.2, 0.3, 0.5], [0.5, 0.1, 0.4], 0)
    assert f == pytest.approx([0.5 / 0.6, 1.0, 1.0])
