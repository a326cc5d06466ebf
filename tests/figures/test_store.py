"""Skipping, remaking, resuming, and never leaving half a file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from paper_figures import fingerprint
from paper_figures.context import Context
from paper_figures.files import OutputFolderError
from paper_figures.registry import Figure
from paper_figures.store import Store

KINDS = ("csv", "pdf", "png")


def contents(store: Store) -> dict[str, bytes]:
    """The files of the small figure."""
    return {kind: store.path("small_one", kind).read_bytes() for kind in KINDS}


def test_made_once_then_skipped(small: Figure, tmp_path: Path) -> None:
    """A finished figure is not made again, but with force it is, to the same bytes."""
    store = Store(tmp_path)
    assert store.make(small) == "made"
    first = contents(store)
    assert store.make(small) == "up to date"
    assert store.make(small, force=True) == "made"
    assert contents(store) == first
    assert store.state()["small_one"]["claim"].startswith("y starts at 0.")
    assert b"CreationDate" not in first["pdf"]


@pytest.mark.parametrize(("damaged", "outcome"), [("csv", "made"), ("pdf", "redrawn"), ("png", "redrawn")])
@pytest.mark.parametrize("missing", [True, False])
def test_damage_is_repaired(small: Figure, tmp_path: Path, damaged: str, outcome: str, missing: bool) -> None:
    """A lost or altered table is built again; a picture is only drawn again."""
    store = Store(tmp_path)
    store.make(small)
    first = contents(store)
    if missing:
        store.path("small_one", damaged).unlink()
    else:
        store.path("small_one", damaged).write_bytes(b"x,y\n0,1\n")
    assert store.make(small) == outcome
    assert contents(store) == first


def test_damaged_state_means_make_again(small: Figure, tmp_path: Path) -> None:
    """A state that cannot be read is no reason to stop."""
    store = Store(tmp_path)
    store.make(small)
    (tmp_path / "state.json").write_text("{ half", encoding="utf-8")
    assert store.make(small) == "made"
    for field, wrong in (("files", None), ("files", []), ("seconds", "x"), ("title", 3), ("caption", None)):
        state = json.loads((tmp_path / "state.json").read_text(encoding="utf-8"))
        state["small_one"][field] = wrong
        (tmp_path / "state.json").write_text(json.dumps(state), encoding="utf-8")
        assert store.make(small) == "made"


def test_fingerprint_follows_what_is_used(small: Figure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mode, seed, a used file and the style sheet each count; the style redraws only."""
    monkeypatch.setattr(fingerprint, "ROOT", tmp_path)
    (tmp_path / "used").mkdir()
    source = tmp_path / "used" / "code.py"
    source.write_text("one = 1\n", encoding="utf-8")
    figure = replace(small, uses=("used",))
    known = {fingerprint.table_fingerprint(figure, quick, seed) for quick in (False, True) for seed in (0, 1)}
    assert len(known) == 4
    source.write_text("one = 2\n", encoding="utf-8")
    assert fingerprint.table_fingerprint(figure, False, 0) not in known
    (tmp_path / "used" / "manifest.json").write_text("{}", encoding="utf-8")
    known.add(fingerprint.table_fingerprint(figure, False, 0))
    with pytest.raises(FileNotFoundError, match="absent"):
        fingerprint.table_fingerprint(replace(small, uses=("absent",)), False, 0)
    out = Store(tmp_path / "out")
    assert out.make(figure) == "made"
    monkeypatch.setattr(fingerprint, "PICTURE_LIBRARIES", ())
    assert out.make(figure) == "redrawn"


def test_old_cells_are_removed(small: Figure, tmp_path: Path) -> None:
    """Cells of an older fingerprint go once the figure is made; those of another figure stay."""
    store = Store(tmp_path)
    old, other = (tmp_path / ".cells" / f"{name}-{'0' * 16}" for name in ("small_one", "small_one_more"))
    for folder in (old, other):
        folder.mkdir(parents=True)
    store.make(small)
    assert not old.exists()
    assert other.exists()


def test_cells_are_kept_and_damaged_ones_ignored(tmp_path: Path) -> None:
    """A second run takes finished cells from disk; a truncated cell is computed again."""
    calls: list[int] = []

    def slow(i: int) -> dict[str, float]:
        calls.append(i)
        return {"value": 0.1 * i}

    def run() -> tuple[list[dict[str, float]], int]:
        context = Context(cells=tmp_path)
        return [context.cell(("cell", i), lambda i=i: slow(i)) for i in range(3)], context.reused

    values, reused = run()
    assert (calls, reused) == ([0, 1, 2], 0)
    calls.clear()
    assert run() == (values, 3)
    assert calls == []
    broken = sorted(tmp_path.iterdir())[0]
    broken.write_text(broken.read_text(encoding="utf-8")[:10], encoding="utf-8")
    again, reused = run()
    assert (again, len(calls), reused) == (values, 1, 2)
    context = Context()
    context.cell("a", lambda: 1)
    with pytest.raises(ValueError, match="used twice"):
        context.cell("a", lambda: 1)


def test_streams_have_names() -> None:
    """Same name, same numbers; another name or seed, others."""
    named = ((0, ("a", 1)), (0, ("a", 1)), (0, ("a", 2)), (1, ("a", 1)))
    draws = [Context(seed=seed).rng(*name).random() for seed, name in named]
    assert draws[0] == draws[1]
    assert len(set(draws)) == 3


def test_unwritable_folder_is_named(tmp_path: Path) -> None:
    """A file in the way, or a folder without permission, is named."""
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(OutputFolderError, match=r"cannot write to the output folder .*file"):
        Store(tmp_path / "file")
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o555)
    if os.access(locked, os.W_OK):
        pytest.skip("this user may write anywhere")
    with pytest.raises(OutputFolderError, match=r"locked: Permission denied; give another with --out"):
        Store(locked)


SLOW = """
import sys, time
from pathlib import Path
from paper_figures import registry, style
from paper_figures.registry import Figure
from paper_figures.store import Store

log = Path(sys.argv[1]) / "computed"

def one(i):
    with log.open("a") as file:
        file.write(f"{i}\\n")
    time.sleep(float(sys.argv[2]) if i == 2 else 0.0)
    return {"x": i, "y": i / 3}

def build(context):
    return [context.cell(i, lambda i=i: one(i)) for i in range(4)]

def draw(rows):
    figure, axes = style.subplots(1, 1)
    axes[0, 0].plot([row["x"] for row in rows], [row["y"] for row in rows])
    return figure

figure = Figure("slow", "Slow", "claim", "caption", build, draw, ())
print(Store(Path(sys.argv[1]) / "out").make(figure))
"""


def test_a_killed_run_resumes_from_its_cells(tmp_path: Path) -> None:
    """kill -9 in the third cell: the next run computes the third and fourth only, and equals an unbroken one."""
    script = tmp_path / "slow.py"
    script.write_text(SLOW, encoding="utf-8")
    broken, whole = tmp_path / "broken", tmp_path / "whole"
    for folder in (broken, whole):
        folder.mkdir()
    process = subprocess.Popen([sys.executable, str(script), str(broken), "600"])
    log = broken / "computed"
    deadline = time.monotonic() + 40
    while not (log.exists() and log.read_text(encoding="utf-8").endswith("2\n")):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not list((broken / "out").glob("slow.*"))
    for folder in (broken, whole):
        done = subprocess.run(
            [sys.executable, str(script), str(folder), "0"], capture_output=True, text=True, check=True
        )
        assert done.stdout == "made\n"
    assert log.read_text(encoding="utf-8").split() == ["0", "1", "2", "2", "3"]
    for kind in KINDS:
        assert (broken / "out" / f"slow.{kind}").read_bytes() == (whole / "out" / f"slow.{kind}").read_bytes()
    assert json.loads((broken / "out" / "state.json").read_text(encoding="utf-8"))["slow"]["rows"] == 4
