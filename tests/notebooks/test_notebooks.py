"""Every notebook runs from top to bottom, is committed without outputs, and prints what its text says."""

from __future__ import annotations

import warnings
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def printed(notebook: nbformat.NotebookNode) -> str:
    outputs = [o for cell in notebook.cells if cell.cell_type == "code" for o in cell.outputs]
    return "".join(o.text for o in outputs if o.output_type == "stream" and o.name == "stdout")


def run(path: Path) -> nbformat.NotebookNode:
    notebook = nbformat.read(path, as_version=4)
    with warnings.catch_warnings():
        # The kernel's client, not the notebook: sockets and event loops it leaves to the garbage collector.
        warnings.simplefilter("ignore", ResourceWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(ROOT)}}).execute()
    return notebook


def test_there_are_notebooks() -> None:
    assert [path.name for path in NOTEBOOKS] == ["01_one_round.ipynb"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_committed_without_outputs(path: Path) -> None:
    for cell in nbformat.read(path, as_version=4).cells:
        assert cell.cell_type == "markdown" or (not cell.outputs and cell.execution_count is None)


def test_one_round_shows_what_it_says() -> None:
    text = printed(run(NOTEBOOKS[0]))
    assert "omega = 2.0: rejected 0.10, output law [0.3 0.3 0.4], TV to the target 0.20" in text
    table = [line.split() for line in text.splitlines() if line.strip()[:3] in {"0.1", "0.2", "0.5", "0.7", "0.9"}]
    assert len(table) == 5
    assert all(float(row[1]) < 1 for row in table), "the bound prefers annealing on this chain"
    assert any(float(row[2]) > 1 for row in table), "exact TV of one round does not"
