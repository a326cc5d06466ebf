"""Figures of committed reports: claims follow from the rows, both report formats are read, absent parts are named."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from paper_figures import cascade_on_images as cascade
from paper_figures import every_method_on_images as methods
from paper_figures import registry, tables
from paper_figures.registry import Context, Rows
from paper_figures.reports import REPORTS, newest_report
from paper_figures.store import render
from paper_figures.tables import select
from tests.figures.helpers import check_texts_and_pictures, figure, table

NAMES = ("every_method_on_images", "cascade_on_images")


def words(name: str, rows: Rows) -> tuple[str, str]:
    """Claim and caption."""
    return registry.text(figure(name).claim, rows), registry.text(figure(name).caption, rows)


@pytest.mark.parametrize("name", NAMES)
def test_texts_and_pictures(name: str) -> None:
    check_texts_and_pictures(name)


@pytest.mark.parametrize("name", NAMES)
def test_tables_repeat_to_the_byte(name: str) -> None:
    assert tables.dumps(figure(name).build(Context(quick=True))) == tables.dumps(table(name))


def test_without_a_report_the_error_says_how_one_is_made(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="python -m validate cascade --out"):
        newest_report("cascade", tmp_path)


def numbers(speed: float, kl: float | None = None, **more: Any) -> dict[str, Any]:
    """The measured part of a comparison row."""
    out: dict[str, Any] = {"setting": "", "tokens_per_call": [speed - 0.1, speed, speed + 0.1]}
    out |= {"judge_accuracy": [0.9, 0.95, 0.99], "nll_per_token": [2.5, 2.6, 2.7]}
    if kl is not None:
        out["kl_output_target"] = [0.9 * kl, kl, 1.1 * kl]
        out["image_tv"] = [4 * kl, 5 * kl, 6 * kl]
    return out | more


def newer() -> dict[str, Any]:
    """A report that says of each row whether it is lossless, with trees, a budget, and a speed out of reach."""
    found = {
        ("lossless", None): numbers(2.8, 0.0, lossless=True),
        ("lossless block", None): numbers(3.1, 0.0, lossless=True),
        ("uniform", 0.3): numbers(3.4, 0.02, lossless=False, speed_up=0.8),
        ("capped excess", 0.3): numbers(3.4, 0.01, lossless=False),
        ("a rule of next year", 0.3): numbers(3.4, 0.05, lossless=False),
        ("CSD", 0.3): {"setting": "the slowest makes 3.9", "out_of_reach": True},
        ("tree", None): numbers(3.0, lossless=True),
        ("tree, uniform", None): numbers(3.3, lossless=False),
        ("budgeted uniform, TV", None): numbers(2.9, 0.001, lossless=False, certificate={"image_tv": 0.2}),
    }
    settings = {"pair": "a pair", "draft": "one", "guidance": 2.0, "length": 5, "images": 100, "seed": 0}
    rows = [{"method": method, "size": size} | row for (method, size), row in found.items()]
    return {"settings": settings, "sizes": [0.3], "power": {}, "rows": rows}


def read(report: dict[str, Any], module: Any = methods) -> Rows:
    """Rows as they come back from the table."""
    return tables.loads(tables.dumps(module.rows_of(report)))


def test_sweeps_are_no_comparisons(tmp_path: Path) -> None:
    (tmp_path / "compare-cpu-1.json").write_text(json.dumps(newer()))
    (tmp_path / "sweep-cpu-2.json").write_text(json.dumps({"settings": {}, "cells": []}))
    assert newest_report("compare", tmp_path)["settings"]["pair"] == "a pair"
    names = [path.name for path in REPORTS.glob("*.json")]
    assert not [name for name in names if name.startswith("compare-sweep")]
    assert any(name.startswith("sweep-") for name in names)


def test_rows_are_the_reports() -> None:
    found = {(row["method"], row["size"]): row for row in newest_report("compare")["rows"]}
    rows = table("every_method_on_images")
    assert [(row["method"], row["size"]) for row in rows] == list(found)
    for row in rows:
        theirs = found[row["method"], row["size"]]
        for name in methods.QUANTITIES:
            ours = [row[f"{name}_lower"], row[name], row[f"{name}_upper"]]
            assert ours == (theirs.get(name) or [None] * 3)


def test_newer_reports_say_what_is_lossless() -> None:
    rows = read(newer())
    places = {row["method"]: row["place"] for row in rows}
    assert places["tree"] == places["lossless block"] == methods.LOSSLESS
    assert places["tree, uniform"] == methods.UNKNOWN
    assert places["budgeted uniform, TV"] == places["a rule of next year"] == methods.LAW
    assert places["CSD"] == methods.OUT_OF_REACH
    claim, caption = words("every_method_on_images", rows)
    assert "at t = 0.3 capped excess (0.0100, 0.50 times uniform's)" in claim
    assert "lossless block, 3.10 tokens a call; 1 of 4 relaxed points" in claim
    assert "out of reach: CSD at t = 0.3" in caption
    assert "SJD" in caption.split("Methods not in it: ")[1]
    assert render(figure("every_method_on_images"), rows)["png"].startswith(b"\x89PNG")


def test_older_reports_are_told_apart_by_name() -> None:
    report = newer()
    for row in report["rows"]:
        row.pop("lossless", None)
    assert read(report) == read(newer())


@pytest.mark.parametrize("column", ["image_tv", "judge_accuracy"])
def test_a_column_that_is_missing_is_left_out_and_said_so(column: str) -> None:
    report = newer()
    for row in report["rows"]:
        row.pop(column, None)
    rows = read(report)
    label = (methods.DISTANCES | methods.OFF_AXES)[column]
    assert f"Columns not in this report: {label}." in words("every_method_on_images", rows)[1]
    assert "Columns not" not in words("every_method_on_images", read(newer()))[1]
    assert methods.panels(rows) == [name for name in methods.DISTANCES if name != column]
    assert render(figure("every_method_on_images"), rows)["png"].startswith(b"\x89PNG")


def test_an_infinite_distance_is_told_not_drawn() -> None:
    report = newer()
    report["rows"][4]["kl_output_target"] = [0.1, "inf", "inf"]
    report["rows"][3]["kl_output_target"] = [0.009, 0.01, "inf"]
    rows = read(report)
    assert [row["method"] for row in methods.shown(rows, "kl_output_target")].count("a rule of next year") == 0
    assert "Infinite, not drawn: a rule of next year." in words("every_method_on_images", rows)[1]
    assert render(figure("every_method_on_images"), rows)["png"].startswith(b"\x89PNG")


def test_the_claim_of_every_method_follows_the_rows() -> None:
    rows = table("every_method_on_images")
    first, near = methods.least(rows, 0.3)
    assert all(row["kl_output_target"] >= first["kl_output_target"] for row in select(rows, size=0.3, place="law"))
    assert methods.UNIFORM not in [row["method"] for row in (first, *near)]
    changed = copy.deepcopy(rows)
    for row in select(changed, method=methods.UNIFORM, size=0.3):
        row |= {f"kl_output_target{end}": 1e-4 for end in ("_lower", "", "_upper")}
    assert methods.least(changed, 0.3)[0]["method"] == methods.UNIFORM
    assert "at t = 0.3 uniform (0.0001, 1.00 times" in words("every_method_on_images", changed)[0]
    for row in select(changed, method=methods.BLOCK):
        row["tokens_per_call"] = 99.0
    slow, of = methods.no_faster(changed)
    assert len(slow) == len(of) > len(methods.no_faster(rows)[0])


def test_the_title_of_cascade_follows_the_rows() -> None:
    """Properties hold beyond intervals; at every threshold breadth is further than COOL-SD at equal acceptance."""
    rows = table("cascade_on_images")
    assert cascade.properties_hold(rows) == (True, True)
    for quantity in ("tv", "kl_output_target"):
        assert min(cascade.node_ratios(rows, cascade.COOL, quantity)) > 1
        for ours in select(rows, part=cascade.NODE, group=cascade.BREADTH):
            (theirs,) = select(rows, part=cascade.NODE, group=cascade.COOL, tau=ours["tau"])
            assert ours["accepted"] == pytest.approx(theirs["accepted"], abs=1e-3)
            assert ours[f"{quantity}_lower"] > theirs[f"{quantity}_upper"]
    beaten, of = cascade.behind_cool(rows)
    assert 0 < beaten <= of


def test_changed_rows_change_the_words_of_cascade() -> None:
    rows = copy.deepcopy(table("cascade_on_images"))
    (control,) = cascade.mean_of(rows, cascade.UNRELATED)
    control["cosine_upper"] = 0.95
    assert cascade.properties_hold(rows) == (False, True)
    assert "Breadth does not hold" in words("cascade_on_images", rows)[0]
    cascade.mean_of(rows, cascade.BEHIND)[-1]["tv_upper"] = 0.9
    assert cascade.properties_hold(rows) == (False, False)
    for row in select(rows, part=cascade.IMAGE, group=cascade.COOL):
        row["tokens_per_call"] = 1.0
    assert cascade.behind_cool(rows)[0] == 0
    for row in select(rows, part=cascade.IMAGE, group=cascade.DEPTH):
        row["nll_per_token_lower"] = 9.0
    assert cascade.depth_like_target(rows)[0] == 0


def test_shares_of_pairs_sum_to_one_and_bins_agree_with_their_mean() -> None:
    rows = table("cascade_on_images")
    report = newest_report("cascade")["properties"]
    for name in cascade.GROUPS:
        cell = select(rows, part=cascade.BIN, group=name)
        assert sum(row["share"] for row in cell) == pytest.approx(1)
        assert sum(row["pairs"] for row in cell) == sum(row["pairs"] for row in cascade.mean_of(rows, name))
    # Pairs weigh alike in bins and images alike in means, hence not equal to the last digit.
    siblings = select(rows, part=cascade.BIN, group=cascade.SIBLINGS)
    pooled = sum(row["share"] * (row["tv"] or 0) for row in siblings)
    assert pooled == pytest.approx(report["siblings"]["tv"][1], abs=0.02)


@pytest.mark.parametrize("part", ["properties", "nodes", "images", "training"])
def test_a_part_that_is_missing_is_left_out_and_said_so(part: str) -> None:
    report = newest_report("cascade")
    assert report.pop(part)
    rows = read(report, cascade)
    name = {"properties": cascade.MEAN, "nodes": cascade.NODE, "images": cascade.IMAGE}.get(part, cascade.TRAINING)
    claim, caption = words("cascade_on_images", rows)
    assert claim
    assert f"Not in this report: {name}." in caption
    assert ("two short runs" in caption) == (part != "training")
    assert render(figure("cascade_on_images"), rows)["png"].startswith(b"\x89PNG")


def test_an_empty_cascade_report_is_refused() -> None:
    with pytest.raises(ValueError, match="none of: properties"):
        cascade.rows_of({"settings": {}})


@pytest.mark.parametrize("content", ['{"settings": ', "[]", '{"rows": []}'])
def test_a_damaged_report_is_named(content: str, tmp_path: Path) -> None:
    (tmp_path / "compare-1.json").write_text(content)
    with pytest.raises(ValueError, match=r"compare-1\.json is .* python -m validate compare"):
        newest_report("compare", tmp_path)
