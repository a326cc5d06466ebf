"""Every notebook runs from top to bottom without a warning, says what it computed, and quotes no number of its own."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import jupytext
import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.py"))
NAMES = [
    "01_one_position",
    "02_one_round",
    "03_annealing",
    "04_frontier",
    "05_whole_images",
    "06_testing_a_sampler",
    "07_your_own_rule",
]


def run(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The notebook with its outputs; an error in a cell, or inside a widget, fails."""
    with warnings.catch_warnings():
        # The kernel's client, not the notebook: sockets and event loops it leaves to the garbage collector.
        warnings.simplefilter("ignore", ResourceWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        client = NotebookClient(
            notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(ROOT)}}
        )
        client.execute()
    return notebook


def streams(notebook: nbformat.NotebookNode, name: str) -> str:
    outputs = [o for cell in notebook.cells if cell.cell_type == "code" for o in cell.outputs]
    return "".join(o.text for o in outputs if o.output_type == "stream" and o.name == name)


def complaints(notebook: nbformat.NotebookNode) -> list[str]:
    """Warnings and other words on stderr, and errors that a widget caught."""
    found = [line for line in streams(notebook, "stderr").splitlines() if line.strip()]
    states = notebook.metadata.get("widgets", {}).get("application/vnd.jupyter.widget-state+json", {}).get("state", {})
    for model in states.values():
        for output in model.get("state", {}).get("outputs", []):
            if output.get("output_type") == "error" or output.get("name") == "stderr":
                found.append(str(output))
    return found


def typed_results(notebook: nbformat.NotebookNode) -> list[str]:
    """Decimal numbers and percentages of the text that no code cell contains: results somebody typed in.

    The last cell suggests other settings and is not looked at.
    """
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    text = "\n".join(cell.source for cell in notebook.cells[:-1] if cell.cell_type == "markdown")
    text = re.sub(r"arXiv \d{4}\.\d{5}", "", text)
    numbers = re.findall(r"\d*\.\d+|\d+ ?%", text)
    return [number for number in numbers if number not in code]


def test_which_notebooks_there_are() -> None:
    assert [path.stem for path in NOTEBOOKS] == NAMES


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_opens_with_a_question_and_ends_with_what_to_try(path: Path) -> None:
    cells = jupytext.read(path).cells
    assert cells[0].cell_type == cells[-1].cell_type == "markdown"
    assert "**Question.**" in cells[0].source
    assert "**Try.**" in cells[-1].source


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_quotes_no_number_that_it_does_not_compute(path: Path) -> None:
    assert typed_results(jupytext.read(path)) == []


def test_a_typed_result_is_found() -> None:
    cells = [nbformat.v4.new_markdown_cell("TV is 0.123, half of 0.5 (12 %).\n"), nbformat.v4.new_code_cell("x = 0.5")]
    assert typed_results(nbformat.v4.new_notebook(cells=cells)) == ["0.123", "12 %"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs_from_top_to_bottom(path: Path) -> None:
    notebook = jupytext.read(path)
    if path.stem == "02_one_round":  # the ends of every slider
        ends = "for knobs in zip((0, 6), (-1, 2), (0, 1), (1, 5), (0.05, 0.45)):\n    show_round(*knobs)"
        notebook.cells.append(nbformat.v4.new_code_cell(ends))
    done = run(notebook)
    assert complaints(done) == []
    assert "Copyright" not in streams(done, "stdout"), "a solver's banner"
    check = globals().get(f"check_{path.stem}")
    if check is not None:
        check(streams(done, "stdout"))


def test_a_failing_notebook_fails() -> None:
    cells = [nbformat.v4.new_code_cell("import warnings\nwarnings.warn('look here')")]
    assert any("look here" in line for line in complaints(run(nbformat.v4.new_notebook(cells=cells))))
    with pytest.raises(CellExecutionError):
        run(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 / 0")]))


def check_01_one_position(text: str) -> None:
    """One sum for every ω; the line holds; Prop. 1 needs its condition."""
    sums = re.findall(r"= (\d\.\d\d)$", text, re.MULTILINE)
    assert sums.count("0.30") == 5, "four relaxations and TV(p, q)"
    assert len(re.findall(r"\n(?:COOL-SD|ensemble|Cactus|CSD) +(?:optimal|kl) +0\.200 ", text)) == 8
    assert "G* = Norm[p − q]_+ for every f\n    holds: False" in text


def check_02_one_round(text: str) -> None:
    """The bound prefers annealing on this chain; exact TV of one round does not."""
    assert "the bound prefers annealing at 5 of 5 sizes" in text
    assert "exact TV prefers annealing at 0 of 5 sizes" in text


def check_03_annealing(text: str) -> None:
    """Everything proved holds, the over-reading fails, and the bound is least at the steepest decay tried."""
    assert "B − [(1 − β) N − β (1 − S_L)] = 0" in text
    assert text.count("FAILS") == 1
    assert "FAILS: L = 2, equal N: the exact TV falls" in text
    assert text.count("bound B          least at ν = +1.6") == 2
    assert text.count("predictive TV    least at ν = +1.5") == 2


def check_04_frontier(text: str) -> None:
    """No rule lies above the frontier, its linear programme is certified, and the last position is never relaxed."""
    left = [float(x) for x in re.findall(r"left at its own B: (\d\.\d{3}) to", text)]
    assert len(left) == 4
    assert re.search(r"position 3: +0% of the tokens", text)
    gap = re.search(r"largest gap between rule found and proved upper end: (\S+) tokens", text)
    assert gap is not None
    assert float(gap[1]) < 1e-6
    assert "least B: best by the bound" in text


def check_05_whole_images(text: str) -> None:
    """Lossless images have ρ = 1, and every step of relaxation is easier to detect than the one before."""
    ratio = re.search(r"lossless: \|log ρ\| is at most (\S+) over", text)
    assert ratio is not None
    assert float(ratio[1]) < 1e-10
    distances = [float(x) for x in re.findall(r"TV of whole images (\S+) \[", text)]
    assert len(distances) == 3
    assert 0 < distances[0] < distances[1] < distances[2] <= 1


def check_06_testing_a_sampler(text: str) -> None:
    """The sampler written by hand passes, every real mistake fails, and the edge case is left to the probe."""
    verdicts = dict(re.findall(r"^(.+?) +\d\.\d{4} +\d\.\d{4}   (passes|fails)", text, re.MULTILINE))
    assert [name for name, verdict in verdicts.items() if verdict == "passes"] == ["none", "≤ for <"]
    assert len(verdicts) == 7
    assert "no fault: nothing found\n≤ for <: p = " in text
    assert "nearest known fault: residual replaced by p" in text
    assert 'counts="any": True' in text


def check_07_your_own_rule(text: str) -> None:
    """The claims of the rule hold, and it is ranked among the published ones at one accepted length."""
    claims = re.findall(r"claimed (True|False) +on 5000 random pairs of laws (True|False)", text)
    assert claims == [("False", "False"), ("True", "True"), ("True", "True")]
    assert "SOFTENED (ours)" in text
    assert len(re.findall(r"ours is number \d+ of \d+", text)) == 4
    assert re.search(r"ours / uniform relaxation at equal accepted length, 8 chains", text)
