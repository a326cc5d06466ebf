"""The synthetic figures, small versions: what their tables must say."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from paper_figures import annealing_truth, pairs, tables
from paper_figures.registry import Context
from paper_figures.store import Store
from paper_figures.tables import select
from tests.figures.helpers import check_texts_and_pictures, figure, table

EXACT = 1e-12
"""Sums of at most 1e5 float64 terms of order one."""
FLOORED = "annealed, floored"

NAMES = ("bound_vs_exact", "annealing_truth", "annealing_long", "annealing_closed_form", "lossless_floor")
NAMES += ("interval_coverage",)


@pytest.mark.parametrize("name", NAMES)
def test_texts_and_pictures(name: str) -> None:
    check_texts_and_pictures(name)


@pytest.mark.parametrize("name", ["lossless_floor", "annealing_closed_form", "interval_coverage"])
def test_tables_repeat_to_the_byte(name: str) -> None:
    """The same seed gives the same text, with cells on disk or without."""
    again = tables.dumps(figure(name).build(Context(quick=True)))
    assert again == tables.dumps(table(name))


def test_another_seed_gives_another_table(tmp_path: Path) -> None:
    """The seed reaches the chains; the store's table is the one built directly."""
    chosen = figure("lossless_floor")
    Store(tmp_path, quick=True).make(chosen)
    assert tables.loads((tmp_path / "lossless_floor.csv").read_text(encoding="utf-8")) == table("lossless_floor")
    assert chosen.build(Context(quick=True, seed=1)) != table("lossless_floor")


def test_tv_never_exceeds_the_bound() -> None:
    """In every row of every table that holds both."""
    rows = [*table("bound_vs_exact"), *table("lossless_floor"), *table("annealing_closed_form")]
    assert len(rows) > 100
    assert all(row["tv"] <= row["bound"] + EXACT for row in rows)
    assert {row["schedule"] for row in table("bound_vs_exact")} >= {"uniform", FLOORED, "bang-bang", "reversed"}


def test_sizes_are_met() -> None:
    """Schedules of one size have one accepted length, and at size 0 all with a floor are lossless."""
    rows = [row for row in table("bound_vs_exact") if row["size"] is not None]
    for cell in tables.group(rows, "family", "size").values():
        assert max(tables.column(cell, "accepted")) - min(tables.column(cell, "accepted")) < 1e-7
    for row in select(rows, size=0.0):
        assert (row["bound"] < 1e-7) == (row["schedule"] != "annealed, no floor")
    for row in select(table("annealing_truth"), quantity="tokens_per_call"):
        assert abs(row["ratio"] - 1) < 1e-7


def test_annealing_lowers_the_bound_of_one_round() -> None:
    """Floored annealing below uniform at every size, reversed above, on average over the families."""
    for schedule, better in ((FLOORED, True), ("excess, ν = .2", True), ("reversed", False)):
        rows = select(table("annealing_truth"), part="one round", quantity="bound", schedule=schedule)
        for cell in tables.group(rows, "size").values():
            mean = math.fsum(math.log(row["ratio"]) for row in cell)
            assert (mean < 0) == better


def test_what_the_bound_does_not_say() -> None:
    """At small size exact TV and KL of one round rise under floored annealing, and far more without the floor."""
    for quantity in ("tv", "kl_output_target"):
        means = {}
        for schedule in (FLOORED, "annealed, no floor"):
            cell = select(table("annealing_truth"), part="one round", quantity=quantity, schedule=schedule, size=0.1)
            means[schedule] = math.fsum(math.log(row["ratio"]) for row in cell)
        assert 0 < means[FLOORED] < means["annealed, no floor"]


def test_the_claim_says_what_the_length_of_a_sequence_does() -> None:
    """Means over the chains at every length up to the picture's, each from its own rows."""
    rows = select(table("annealing_truth"), quantity="kl_output_target", schedule=FLOORED, size=annealing_truth.MIDDLE)
    short, shown = (select(rows, part=part) for part in (annealing_truth.SHORTER, "sequence"))
    assert {row["tokens"] for row in short} == {5}
    assert {row["tokens"] for row in shown} == {6}
    assert len(short) == len(shown)
    means = [pairs.geometric_mean([row["ratio"] for row in part]) for part in (short, shown)]
    claim = annealing_truth.claim(table("annealing_truth"))
    assert f"{means[0]:.2f} (T = 5), {means[1]:.2f} (T = 6)" in claim


def test_predictive_tv_is_the_step_bias() -> None:
    """[proved] with the optimal residual; also without the floor, whose steps have the floored schedule's laws."""
    rows = select(table("annealing_truth"), part="sequence")
    gaps: dict[str, list[float]] = {}
    for (schedule, _, _, _), cell in tables.group(rows, "schedule", "family", "chain", "size").items():
        bias, predictive = (select(cell, quantity=q)[0]["value"] for q in ("step_bias", "predictive_tv"))
        gaps.setdefault(schedule, []).append(bias - predictive)
    for schedule, values in gaps.items():
        assert min(values) > -EXACT
        assert max(values) < EXACT, schedule


def test_long_sequences() -> None:
    """Intervals hold the exact bias where it equals predictive TV; the mild excess beats uniform in bias and KL."""
    rows = table("annealing_long")
    inside = []
    for cell in tables.group(rows, "schedule", "size").values():
        bias, predictive = (select(cell, quantity=q)[0] for q in ("step_bias", "predictive_tv"))
        inside.append(predictive["lower"] <= bias["value"] <= predictive["upper"])
    assert sum(inside) >= len(inside) - 2
    for quantity in ("step_bias", "kl_output_target"):
        assert all(row["ratio"] < 1 for row in select(rows, quantity=quantity, schedule="excess, ν = .2"))


def test_closed_form_is_the_exact_bound() -> None:
    """To rounding, at every length, for every schedule and move; and moving acceptance forward lowers it."""
    rows = table("annealing_closed_form")
    assert max(abs(row["closed_form"] - row["bound"]) for row in rows) < EXACT
    moves = select(rows, part="move")
    assert all(row["change_bound"] < 0 for row in moves)
    assert all(row["price_first"] < row["price_last"] for row in rows)
    assert any(row["change_tv"] > 0 for row in moves)
    for cell in tables.group(rows, "chain", "length").values():
        assert max(tables.column(cell, "accepted")) - min(tables.column(cell, "accepted")) < 1e-7


def test_floor_leaves_the_law_alone() -> None:
    """Bound, TV and both KL to rounding; accepted length never falls."""
    rows = table("lossless_floor")
    for cell in tables.group(rows, "family", "delta").values():
        before, after = select(cell, floored=False)[0], select(cell, floored=True)[0]
        for key in ("bound", "tv", "kl_output_target", "kl_target_output"):
            assert abs(before[key] - after[key]) < EXACT
        assert after["accepted"] >= before["accepted"] - EXACT
    assert select(rows, delta=1.1)[0]["omega_1"] == pytest.approx(2.855, abs=5e-4)


def test_coverage_is_an_estimate_of_the_stated_one() -> None:
    """Bernstein's intervals cover at least as stated; the normal ones within what 60 repetitions can tell."""
    rows = table("interval_coverage")
    assert all(row["coverage"] >= row["nominal"] for row in select(rows, method="bernstein"))
    normal = select(rows, method="normal")
    assert sum(row["coverage"] for row in normal) / len(normal) > 0.9
