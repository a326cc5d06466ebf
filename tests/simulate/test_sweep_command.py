"""The command that runs a sweep: Ctrl-C, exit status and report, missing packages, imports."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import simulate
from simulate import __main__ as command
from simulate.sweeps.store import Folder
from tests.simulate import sweep_rules
from tests.simulate.test_sweeps import PATIENCE, ROOT, files, until

TOML = """
analyses = "estimate"
draft_tv = 0.2
length = 2
tokens = 40
samples = 1000
seeds = [{seeds}]

[[chains]]
kind = "random_markov"
vocab_size = 4

[[verifiers]]
schedule = "uniform"
strength = 0.5
"""


def test_ctrl_c(tmp_path: Path) -> None:
    """The command keeps what is finished, says how to go on, and leaves no worker behind."""
    path = tmp_path / "night.toml"
    path.write_text(TOML.format(seeds=", ".join(map(str, range(400)))))
    program = [sys.executable, "-m", "simulate", "sweep", str(path), "--workers", "1", "--quiet"]
    # A shell that runs the tests in the background has Ctrl-C ignored, in every process started from here too.
    own = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(program, cwd=ROOT, start_new_session=True, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, own)
    folder = Folder(tmp_path / "night")
    with process:
        try:
            until(lambda: len(files(folder)) >= 2)
            os.killpg(process.pid, signal.SIGINT)
            _, said = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    assert process.returncode == 130
    assert said.splitlines()[-1].startswith(f"interrupted; finished cells are kept in {folder.path}, the same command")
    assert "Traceback" not in said
    with folder.owned(lambda: pytest.fail("a worker is still there")):
        assert 2 <= len(files(folder)) < 400


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status and report: cells that fail, grids that are none, folders that cannot be."""
    path = tmp_path / "small.toml"
    path.write_text(TOML.format(seeds="0").replace("vocab_size = 4", "vocab_size = [1, 2]").replace("1000", "40"))
    assert command.main(["sweep", str(path), "--workers", "1", "--quiet"]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"{tmp_path / 'small' / 'table.parquet'}: 2 cells computed, 0 taken from earlier runs"
    assert said[1].startswith("failed: 1 cells: ValueError: a mean TV of 0.2 is out of reach")
    assert said[2] == "start again to retry the cells that failed"

    occupied = tmp_path / "occupied"
    occupied.write_text("")
    for arguments, message in (
        ([str(path), "--out", str(occupied)], "cannot use the folder"),
        ([str(path), "--workers", "0"], "workers must be a whole number >= 1"),
        ([str(path), "--workers", "1", "--scheduler", "tcp://x"], "not both"),
        ([str(path), "--scheduler", "tcp://x"], "scheduler must be an address such as tcp://HOST:8786, got 'tcp://x'"),
        ([str(tmp_path / "none.toml")], "No such file"),
        ([str(occupied)], "say with --out"),
    ):
        assert command.main(["sweep", *arguments, "--quiet"]) == 2
        assert message in capsys.readouterr().err
    path.write_text(TOML.format(seeds="0, 0"))
    assert command.main(["sweep", str(path)]) == 2
    assert f"{path}: seeds[1] repeats seeds[0]: 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("missing", "extra", "how"),
    [("pyarrow", "sweep", {}), ("joblib.externals.loky", "sweep", {}), ("distributed", "dask", {"scheduler": "tcp://x:1"})],
)  # fmt: skip
def test_missing_package(
    missing: str, extra: str, how: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the extra to install."""
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ImportError, match=rf"pip install 'relaxsd\[{extra}\]'"):
        simulate.sweep(sweep_rules.grid(1), tmp_path, **how)


def test_imports_are_lazy() -> None:
    """Importing the package and its command needs no extra, and not their time."""
    names = "joblib", "pyarrow", "distributed", "dask"
    code = f"import sys, simulate.__main__; sys.exit(any(name in sys.modules for name in {names}))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
