"""What only this project has: frontiers, whole-image laws, the best detector, budgets, annealing over sizes.

The quick tables; each title's claim is computed here again, from raw columns or by another route.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import theory
from paper_figures import annealing_sizes, best_detector, budgets, frontiers, pairs, tables, whole_image_laws
from paper_figures.registry import Context
from paper_figures.tables import group, select
from tests.figures.helpers import check_texts_and_pictures, figure, table
from theory import detectors
from theory.every_rule import BLOCKS

NAMES = ("frontiers", "whole_image_laws", "best_detector", "budgets", "annealing_sizes")
SOLVED = 1e-7
"""HiGHS works to 1e-10 a constraint; a programme has at most a hundred."""
EXACT = 1e-12


@pytest.mark.parametrize("name", NAMES)
def test_texts_and_pictures(name: str) -> None:
    check_texts_and_pictures(name)


@pytest.mark.parametrize("name", ["budgets", "best_detector", "whole_image_laws"])
def test_tables_repeat_to_the_byte(name: str) -> None:
    again = tables.dumps(figure(name).build(Context(quick=True)))
    assert again == tables.dumps(table(name))
    assert tables.dumps(figure(name).build(Context(quick=True, seed=1))) != again


# Frontiers


def small_pair(seed: int) -> pairs.Pair:
    return pairs.pair("Dirichlet tree", 0, np.random.default_rng(seed), 3, 3, 0.3)


def test_the_token_wise_programme_is_the_certified_frontier() -> None:
    for seed in range(3):
        pair = small_pair(seed)
        solver = theory.tv_frontier(pair.target, pair.draft, 2, token_wise=True)
        budget = [0.0, 0.05, 0.2]
        exact = theory.exact_frontier(pair.target, pair.draft, 2, budget)
        for tv, lower, upper in zip(budget, exact.lower, exact.upper, strict=True):
            assert lower - SOLVED <= solver.most_accepted(tv) <= upper + SOLVED
            assert solver.least_tv(float(lower)) <= tv + SOLVED


def test_any_rule_without_bias_is_the_best_lossless_block_rule() -> None:
    """At TV 0 the masses are those of `block_frontier`; token-wise rules do strictly worse."""
    pair = small_pair(0)
    free, token_wise = (
        theory.tv_frontier(pair.target, pair.draft, 2, token_wise=flag).most_accepted(0.0) for flag in (False, True)
    )
    assert free == pytest.approx(theory.block_frontier(pair.target, pair.draft, 2, [0.0]).upper[0], abs=SOLVED)
    assert token_wise < free - 1e-5


def test_no_rule_is_below_the_frontiers_and_block_rules_come_nearest() -> None:
    rows = table("frontiers")
    rules = select(rows, part="rule")
    for row in rules:
        assert row["tv"] >= row["least_tv_any"] - SOLVED
        assert row["left_at_tv_any"] >= -SOLVED
        assert row["least_tv_any"] <= row["least_tv_token_wise"] + SOLVED
        if row["rule"] not in BLOCKS:
            assert row["tv"] >= row["least_tv_token_wise"] - SOLVED
            assert row["bound"] >= row["least_bound"] - SOLVED
    shown = [row for row in rules if row["matched"] and row["tv"] > frontiers.NOTHING]
    medians = {
        key: float(np.median([row["tv"] / max(row["least_tv_any"], frontiers.NOTHING) for row in cell]))
        for key, cell in group(shown, "rule", "residual").items()
    }
    assert min(medians, key=lambda key: medians[key])[0] in BLOCKS
    assert frontiers.order(rows)[0][0] in BLOCKS


def test_left_at_the_bound_is_the_theory_s() -> None:
    rows = select(table("frontiers"), part="rule", kind="Markov", rule="uniform")
    rng = Context(quick=True).rng("pair", "Markov")
    pair = pairs.pair("Markov", 0, rng, frontiers.QUICK_VOCABULARY, frontiers.QUICK_LENGTH + 1, frontiers.DISTANCE)
    for row in rows:
        family = theory.schedule_families(frontiers.QUICK_LENGTH)["uniform"]
        scale = pairs.Scale(pairs.accepted_length(pair, frontiers.QUICK_LENGTH))
        verifier = scale.at(family, row["size"])
        found = theory.distance_to_frontier(pair.target, pair.draft, verifier, frontiers.QUICK_LENGTH)
        assert row["left_at_bound"] == pytest.approx(found.left_at_bound, abs=SOLVED)
        assert row["left_at_tv_token_wise"] == pytest.approx(found.left_at_total_variation, abs=1e-6)


# Whole images


def test_small_biases_add_up() -> None:
    """KL and TV never fall with T; KL of twice the tokens grows more than TV, for every rule; TV ≤ bound, Pinsker."""
    rows = select(table("whole_image_laws"), part=whole_image_laws.EXACT_PART)
    for curve in group(rows, "chain", "rule").values():
        assert [row["tokens"] for row in curve] == list(range(1, whole_image_laws.QUICK_TOKENS + 1))
        for before, after in pairwise(curve):
            assert after["tv"] >= before["tv"] - EXACT
            assert after["kl"] >= before["kl"] - EXACT
        for row in curve:
            assert row["tv"] <= min(row["bound"], math.sqrt(row["kl"] / 2)) + EXACT
    for rule in whole_image_laws.RULES:
        assert 1 < whole_image_laws.growth(rows, rule, "tv") < whole_image_laws.growth(rows, rule, "kl")


def test_the_law_of_the_first_tokens_does_not_depend_on_the_rest() -> None:
    rng = Context(quick=True).rng("pair", "Markov")
    tokens = whole_image_laws.QUICK_TOKENS
    pair = pairs.pair("Markov", 0, rng, whole_image_laws.VOCABULARY, tokens, whole_image_laws.DISTANCE)
    found = whole_image_laws.members(pair, whole_image_laws.LENGTH, tokens, (whole_image_laws.SIZE,))
    for rule, _, verifier in found:
        short = theory.analyse_sequence(pair.target, pair.draft, verifier, whole_image_laws.LENGTH, 4)
        (row,) = select(table("whole_image_laws"), chain="Markov", rule=rule, tokens=4)
        assert row["tv"] == pytest.approx(short.total_variation, abs=EXACT)
        assert row["kl"] == pytest.approx(short.kl_output_target, abs=EXACT)


def test_real_images_are_those_of_the_report() -> None:
    found = whole_image_laws.report()
    assert found is not None
    theirs = {(row["method"], row["size"]): row for row in found["rows"]}
    rows = select(table("whole_image_laws"), part=whole_image_laws.REAL_PART)
    assert len(rows) >= 12
    for row in rows:
        source = theirs[whole_image_laws.RULES[row["rule"]], row["size"]]
        assert [row["tv_lower"], row["tv"], row["tv_upper"]] == source["image_tv"]
        assert row["kl"] == 49 * source["kl_output_target"][1]


def test_no_report_no_panels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_image_laws, "report", lambda: None)
    assert whole_image_laws._real() == []
    rows = select(table("whole_image_laws"), part=whole_image_laws.EXACT_PART)
    assert "No report" in whole_image_laws.caption(rows)
    assert "real images" not in whole_image_laws.claim(rows)
    assert len(whole_image_laws.draw(rows).axes) == 2


# The best detector


@given(st.lists(st.tuples(st.integers(1, 10), st.integers(1, 10)), min_size=2, max_size=4), st.integers(1, 4))
def test_advantage_of_several_images_holds_the_enumerated_one(counts: list[tuple[int, int]], images: int) -> None:
    """Oracle: TV of the product laws, written out."""
    law, target = (np.array(c, dtype=float) / np.sum(c) for c in zip(*counts, strict=True))
    ours, theirs = np.ones(1), np.ones(1)
    for _ in range(images):
        ours, theirs = np.outer(ours, law).ravel(), np.outer(theirs, target).ravel()
    lower, upper = detectors.advantage(law, np.log(law / target), images)
    tv = np.abs(ours - theirs).sum() / 2
    assert lower - 1e-8 <= tv <= upper + 1e-8
    assert upper - lower < 0.01


def test_images_needed_by_enumeration() -> None:
    """Two outcomes: the number of the first is binomial, and tells all."""
    from scipy.stats import binom

    law, target = np.array([0.7, 0.3]), np.array([0.45, 0.55])
    tv = [np.abs(np.diff(binom.pmf(np.arange(n + 1), n, [[0.7], [0.45]]), axis=0)).sum() / 2 for n in range(1, 80)]
    first = 1 + next(i for i, value in enumerate(tv) if value >= 1 - 2 * best_detector.ERROR)
    lower, upper = detectors.images_needed(law, target, best_detector.ERROR)
    assert lower <= first <= upper <= lower + 1
    least, most = detectors.hellinger_bounds(theory.hellinger(law, target) ** 2, best_detector.ERROR)
    assert least <= first <= most


def test_the_largest_gap_of_every_curve_is_tv_and_curves_are_concave() -> None:
    for curve in group(select(table("best_detector"), part="curve"), "rule").values():
        false, detected = (np.array(tables.column(curve, key)) for key in ("false_alarm", "detection"))
        assert np.max(detected - false) == pytest.approx(curve[0]["tv"], abs=EXACT)
        (gap,) = select(curve, largest_gap=True)
        assert gap["detection"] - gap["false_alarm"] == pytest.approx(curve[0]["tv"], abs=EXACT)
        assert (false[0], detected[0]) == (0, 0)
        assert (false[-1], detected[-1]) == pytest.approx((1, 1))
        across, up = np.diff(false), np.diff(detected)
        assert np.all(up[1:] * across[:-1] <= up[:-1] * across[1:] + EXACT)


def test_more_relaxed_is_told_from_fewer_images() -> None:
    rows = select(table("best_detector"), part="images")
    for points in group(rows, "rule").values():
        told = [row for row in points if row["images_lower"]]
        assert all(row["images_lower"] <= row["images_upper"] for row in told)
        for before, after in pairwise(told):
            assert after["images_upper"] <= before["images_lower"]
    shown = {row["rule"]: row["images_lower"] for row in select(rows, size=best_detector.SHOWN)}
    assert shown["capped excess"] > max(shown["uniform"], shown["annealed, floored"])


# Budgets


def test_promises_are_kept_at_part_of_the_speed() -> None:
    rows = budgets.budgeted(table("budgets"))
    assert len(rows) == 2 * 3 * len(budgets.QUICK_BUDGETS)
    for row in rows:
        assert row["exact"] <= row["certificate"] + EXACT
        assert row["certificate"] <= row["budget"] + EXACT
        assert row["spent"] <= row["certificate"] + EXACT or row["ledger"] == "tv"
        assert 0 < row["own_gain"] <= 1 + EXACT
    assert any(row["own_gain"] < 0.5 for row in rows)
    for curve in group(rows, "chain", "ledger", "rule").values():
        speeds = tables.column(curve, "speed")
        assert speeds == sorted(speeds)


def test_a_budget_of_no_ledger_breaks_the_promise() -> None:
    """Negative control: the same rules without a ledger exceed the budgets."""
    rng = Context(quick=True).rng("pair", "Markov")
    pair = pairs.pair("Markov", 0, rng, budgets.VOCABULARY, budgets.QUICK_TOKENS, budgets.DISTANCE)
    tv = {
        name: theory.analyse_sequence(pair.target, pair.draft, verifier, budgets.LENGTH, budgets.QUICK_TOKENS)
        for name, verifier in budgets.RULES.items()
    }
    assert all(a.total_variation > budgets.QUOTED for a in tv.values())


# Annealing over sizes


def test_annealing_lowers_the_bound_everywhere_and_raises_kl_near_lossless() -> None:
    rows = table("annealing_sizes")
    near, far = annealing_sizes.SIZES
    for size in (near, far):
        for quantity in ("bound", "step_bias"):
            won, of = annealing_sizes.better(rows, quantity, size)
            assert won == of >= 4
    assert all(mean > 1 for mean, _, _ in annealing_sizes.means(rows, "kl_output_target", near).values())


def test_costs_alone_are_those_of_the_analysis() -> None:
    """`pairs.tokens_per_call` asks for each law once; oracle: `analyse_sequence`."""
    for family in pairs.FAMILIES:
        pair = pairs.pair(family, 0, np.random.default_rng(3), 3, 6)
        measure = pairs.tokens_per_call(pair, 2, 6)
        for verifier in (theory.cool_sd(2, 1.1), theory.capped_block(1.4), theory.Verifier(theory.Lossless())):
            a = theory.analyse_sequence(pair.target, pair.draft, verifier, 2, 6)
            assert measure(verifier) == pytest.approx(a.tokens_per_call, abs=EXACT)  # type: ignore[arg-type]
