"""Published numbers and the comparison report: quoted as they are, ours as they were measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paper_figures import published_results, quality_against_length, tables
from paper_figures.registry import Context
from paper_figures.reports import newest_report
from paper_figures.tables import column, select
from tests.figures.helpers import check_texts_and_pictures, figure, table

NAMES = ("published_results", "quality_against_length")


@pytest.mark.parametrize("name", NAMES)
def test_texts_and_pictures(name: str) -> None:
    check_texts_and_pictures(name)


@pytest.mark.parametrize("name", NAMES)
def test_tables_repeat_to_the_byte(name: str) -> None:
    assert tables.dumps(figure(name).build(Context(quick=True))) == tables.dumps(table(name))


def test_quoted_numbers_are_never_ours() -> None:
    """Every quoted row names its paper and has nothing measured; ours has nothing of the papers' metrics."""
    rows = table("published_results")
    for row in rows:
        quoted = row["part"] in (published_results.QUOTED, published_results.SPEEDUP)
        assert (row["source"] == "this project") != quoted
        assert (row["images"] is None) == quoted
        for name in ("clip", "fid", "image_reward", "latency", "speed_up"):
            assert quoted or row[name] is None
        assert (row["kl_output_target"] is None) == quoted
    caption = figure("published_results").caption(rows)  # type: ignore[operator]
    assert "quoted from COOL-SD 2601.09212" in caption


def test_the_quoted_table_hangs_together() -> None:
    """Speed-ups are ratios of the latencies beside them, to their last digit; the table is the published one."""
    rows = select(table("published_results"), part=published_results.QUOTED)
    assert len(rows) == 8
    assert column(rows, "tokens_per_call") == [1.0, 2.76, 2.99, 3.11, 2.42, 2.67, 2.73, 3.34]
    lumina = select(rows, target="Lumina-mGPT 7B")
    for row in lumina:
        assert lumina[0]["latency"] / row["latency"] == pytest.approx(row["speed_up"], abs=0.011)


def test_the_claim_compares_like_with_like() -> None:
    rows = table("published_results")
    for row in rows:
        if row["part"] in published_results.BASELINE and row["method"] == published_results.BASELINE[row["part"]]:
            assert published_results.gain(rows, row) == 1
    block = select(rows, part=published_results.EQUAL, method="lossless block verification")[0]
    assert published_results.gain(rows, block) > 1
    assert block["kl_output_target"] < 1e-9
    cool = select(rows, part=published_results.OURS, method="COOL-SD δ = 1.1")[0]
    assert cool["kl_output_target_lower"] > 0.01
    floored = select(rows, part=published_results.OURS, method="COOL-SD δ = 1.1, floored")[0]
    assert floored["tokens_per_call"] > cool["tokens_per_call"]


def test_cool_sd_as_reconstructed_is_behind_uniform_on_images() -> None:
    rows = table("quality_against_length")
    for quantity in ("kl_output_target", "image_tv"):
        ratios = quality_against_length.beside_uniform(
            rows, quality_against_length.REAL, quality_against_length.COOL, quantity
        )
        assert ratios
        assert min(ratios.values()) > 1
    same, of = quality_against_length.overlapping(rows, "judge_accuracy")
    assert f"{same} of {of} intervals" in figure("quality_against_length").claim(rows)  # type: ignore[operator]


def test_equal_speed_is_equal_speed() -> None:
    """Exactly on the grid; on images the intervals of tokens per call overlap uniform's."""
    rows = table("quality_against_length")
    for size in (0.3, 0.7):
        speeds = column(select(rows, part=quality_against_length.GRID, size=size), "tokens_per_call")
        assert len(speeds) == 4
        assert max(speeds) - min(speeds) < 1e-7
    uniform = select(rows, part=quality_against_length.REAL, method="uniform", size=0.3)[0]
    for row in select(rows, part=quality_against_length.REAL, size=0.3):
        assert row["tokens_per_call_lower"] <= uniform["tokens_per_call_upper"]
        assert uniform["tokens_per_call_lower"] <= row["tokens_per_call_upper"]
    for row in select(rows, method=quality_against_length.LOSSLESS):
        assert row["kl_output_target"] < 1e-9


def test_rows_of_the_report_are_the_reports(tmp_path: Path) -> None:
    report = newest_report("compare")
    found = {(row["method"], row["size"]): row for row in report["rows"]}
    for row in select(table("quality_against_length"), part=quality_against_length.REAL):
        for name in ("tokens_per_call", "kl_output_target", "judge_accuracy"):
            assert [row[f"{name}_lower"], row[name], row[f"{name}_upper"]] == found[row["method"], row["size"]][name]
    with pytest.raises(FileNotFoundError, match="python -m validate compare"):
        newest_report("compare", tmp_path)
    (tmp_path / "compare-1.json").write_text(json.dumps({"settings": {}, "a": 1}))
    (tmp_path / "compare-2.json").write_text(json.dumps({"settings": {}, "a": 2}))
    assert newest_report("compare", tmp_path) == {"settings": {}, "a": 2, "file": "compare-2.json"}
