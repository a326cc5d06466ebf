"""The README's code runs, prints what the README says, and the README's commands exist."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path

import pytest

from validate.comparison.sweep import counts

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```(?:\n\nprints\n\n```text\n(.*?)```)?", TEXT, re.DOTALL)


def test_every_example_is_found() -> None:
    assert len(BLOCKS) == 4
    assert [bool(output) for _, output in BLOCKS] == [True, False, True, True]


@pytest.mark.parametrize("index", range(4))
def test_example(index: int) -> None:
    code, output = BLOCKS[index]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, f"README example {index + 1}", "exec"), {"__name__": "readme"})
    if output:
        assert printed.getvalue().splitlines() == output.splitlines()
    else:
        assert re.fullmatch(r"[\d.]+ \[[\d., ]+\] [\d.]+ \[[\d., ]+\]", printed.getvalue().strip())


def test_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from simulate.__main__ import main

    (text,) = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
    cells, table = re.findall(r"# (\d+) cells into night/(\S+)", TEXT)[0]
    (tmp_path / "night.toml").write_text(text, encoding="utf-8")
    assert main(["sweep", str(tmp_path / "night.toml"), "--quiet"]) == 0
    said = capsys.readouterr().out
    assert said == f"{tmp_path / 'night' / table}: {cells} cells computed, 0 taken from earlier runs\n"


def test_commands_are_the_makefile_s() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"make ([a-z]+)\b", TEXT)) - {"made"}
    assert {"figures", "test", "bench", "lint", "quick"} <= named & targets
    assert "make test" in (ROOT / ".ci" / "run").read_text()


def test_links_and_pictures_exist() -> None:
    for path in re.findall(r"\]\((?!http)([^)]+)\)", TEXT):
        assert (ROOT / path).is_file(), path
    for room in ("theory", "simulate", "validate", "paper_figures", "notebooks", "tests"):
        assert f"`{room}/`" in TEXT
        assert (ROOT / room).is_dir()


def test_the_recommended_rule_s_numbers_are_the_report_s() -> None:
    from validate.comparison.sweep_table import summary

    (path,) = re.findall(r"\[report\]\((validate/reports/sweep[^)]+)\)", TEXT)
    report = json.loads((ROOT / path).read_text(encoding="utf-8"))
    sentence = summary(report)
    assert sentence in " ".join(TEXT.split())
    fewer = {**report, "cells": report["cells"][:-1]}
    fewer["counts"] = {m: counts(fewer["cells"], m) for m in report["counts"]}
    assert {m: counts(report["cells"], m) for m in report["counts"]} == report["counts"]
    assert summary(fewer) != sentence
