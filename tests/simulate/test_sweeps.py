"""Sweeps run for real: killed, repeated, on several workers and a Dask cluster, on full disks and damaged files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from tqdm import tqdm

import simulate
from simulate.sweeps import SweepBusyError, SweepError, run, store
from simulate.sweeps.store import Folder
from tests.simulate import sweep_rules

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 120.0
"""Seconds after which a process that should have acted counts as stuck."""


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The file in which `sweep_rules.slow` notes each cell it starts."""
    path = tmp_path_factory.mktemp("log") / "log"
    path.touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SWEEP_LOG", str(path))
        patch.setenv("SWEEP_PAUSE", "0.02")
        yield path


@pytest.fixture
def starts(log: Path) -> Any:
    """Function: how often each cell was started, by strength, since the test began."""
    log.write_text("")
    return lambda: Counter(float(line.split()[0]) for line in log.read_text().splitlines())


@pytest.fixture(scope="module")
def finished(log: Path, tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """The sweep of `sweep_rules.grid`, uninterrupted, on one worker."""
    out = tmp_path_factory.mktemp("finished")
    done = simulate.sweep(sweep_rules.grid(), out, workers=1)
    assert (done.computed, done.reused, done.failed, done.infeasible) == (sweep_rules.CELLS, 0, [], [])
    return Folder(out)


def files(folder: Folder) -> dict[str, tuple[int, int]]:
    """Finished cells: name → identity and time of the file, which change when it is written again."""
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.cells.glob("*.json")}


def until(condition: Any) -> None:
    """Wait for something that another process does."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.005)


def copy(folder: Folder, to: Path) -> Folder:
    """A folder with the same cells and table."""
    (to / "cells").mkdir(parents=True)
    for path in [*folder.cells.iterdir(), folder.table]:
        (to / path.relative_to(folder.path)).write_bytes(path.read_bytes())
    return Folder(to)


def test_killed_at_any_moment(finished: Folder, starts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """kill -9 of the run, early, midway and late, and once of its workers with it; then to the end.

    Nothing that was finished is written again; where workers survive, what they were at is not repeated either.
    """
    monkeypatch.setenv("SWEEP_PAUSE", "0.2")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    folder = Folder(tmp_path / "out")
    program = [sys.executable, "-m", "tests.simulate.sweep_rules", str(folder.path)]
    kept: dict[str, tuple[int, int]] = {}
    for enough, workers_too in ((0, False), (4, False), (7, True)):
        begun = sum(starts().values())
        process = subprocess.Popen(program, cwd=ROOT, start_new_session=True, stderr=subprocess.DEVNULL)
        until(lambda begun=begun, enough=enough: sum(starts().values()) > begun and len(files(folder)) >= enough)
        with pytest.raises(SweepBusyError, match=rf"in use by another sweep \(process {process.pid} on"):
            simulate.sweep(sweep_rules.grid(), folder.path)
        (os.killpg if workers_too else os.kill)(process.pid, signal.SIGKILL)
        process.wait()
        assert kept.items() <= files(folder).items()
        kept = files(folder)
        assert not folder.table.exists()
    repeatable = starts() - Counter({float(strength): 1 for strength in starts()})
    assert not repeatable  # no cell has been started twice so far: survivors finished theirs
    assert 7 <= len(kept) < sweep_rules.CELLS
    done = simulate.sweep(sweep_rules.grid(), folder.path, workers=1)
    assert (done.computed, done.reused) == (sweep_rules.CELLS - len(kept), len(kept))
    assert kept.items() <= files(folder).items()
    assert len(starts()) == sweep_rules.CELLS
    assert sum(starts().values()) <= sweep_rules.CELLS + 2  # the two under way when their workers were killed
    assert folder.table.read_bytes() == finished.table.read_bytes()
    assert not list(folder.path.rglob("*.tmp"))


@pytest.fixture(scope="module")
def mixed() -> simulate.Grid:
    """Every analysis, three kinds of chain, verifiers of every catalogue."""
    return simulate.Grid(
        analyses=["round", "sequence", "estimate"],
        chains=[
            {"kind": "random_markov", "vocab_size": 3},
            {"kind": "potts_grid", "height": 2, "width": 2, "colours": 3},
            {"kind": "embedding_chain", "vocab_size": 6, "dim": 2},
        ],
        draft_tv=0.2,
        length=2,
        tokens=4,
        samples=40,
        seeds=[0, 1],
        verifiers=[
            {"rule": "GSD", "strength": 0.5},
            {"block": "lifted uniform", "strength": 0.3},
            {"own": sweep_rules.slow, "name": "slow", "strength": 0.3},
        ],
    )


def test_same_table_whoever_computes_it(
    mixed: simulate.Grid, log: Path, starts: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """One worker, two, and a Dask cluster of two processes by its address: the same bytes."""
    from distributed import LocalCluster

    def tables() -> Iterator[bytes]:
        for workers in (1, 2):
            done = simulate.sweep(mixed, tmp_path / str(workers), workers=workers, progress=True)
            assert done.computed == len(mixed.cells()) == 54
            assert len(done.infeasible) == 12  # GSD without a codebook
            yield done.table.read_bytes()
        log.write_text("")
        with LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
            done = simulate.sweep(mixed, tmp_path / "dask", scheduler=cluster.scheduler_address)
            assert done.computed == 54
            again = simulate.sweep(mixed, tmp_path / "dask", scheduler=cluster.scheduler_address)
            assert (again.computed, again.reused) == (0, 54)
        yield done.table.read_bytes()

    first, *others = tables()
    assert others == [first, first]
    workers = {line.split()[1] for line in log.read_text().splitlines()}
    assert len(workers) == 2
    assert str(os.getpid()) not in workers
    shown = capfd.readouterr().err
    assert "54/54" in shown  # the bar
    assert "Warning" not in shown
    rows = simulate.sweep(mixed, tmp_path / "1").read().to_pylist()
    assert {row["claim"] for row in rows} == {"exact", "upper bound", "estimate", None}
    assert {row["status"] for row in rows} == {"ok", "infeasible"}


def test_damage_is_found(finished: Folder, starts: Any, tmp_path: Path) -> None:
    """Cells that are cut off, altered, or no files, and the table: named, set aside and made again."""
    folder = copy(finished, tmp_path / "out")
    cut, altered, odd, *_ = sorted(folder.cells.glob("*.json"))
    cut.write_bytes(cut.read_bytes()[:-20])
    altered.write_bytes(altered.read_bytes().replace(b'"value": 0.', b'"value": 1.', 1))
    odd.unlink()
    odd.mkdir()
    folder.table.write_bytes(b"no table")
    done = simulate.sweep(sweep_rules.grid(), folder.path, workers=1)
    assert (done.computed, sum(starts().values()), len(done.damaged)) == (3, 3, 3)
    for path, reason in ((cut, "cut off"), (altered, "checksum"), (odd, "directory")):
        assert [path.name in line and reason in line for line in done.damaged].count(True) == 1
        assert path.with_suffix(".damaged").exists()
    assert done.table.read_bytes() == finished.table.read_bytes()


def test_full_disk(finished: Folder, starts: Any, log: Path, tmp_path: Path) -> None:
    """No room for a cell: the run ends and says so, other cells stay, and a later run goes on."""
    folder = Folder(tmp_path)
    asked = log.parent / "full"
    asked.write_text("0.75")
    with pytest.raises(SweepError, match=r"cannot write .*\.json: No space left on device; make room and start again"):
        simulate.sweep(sweep_rules.grid(), folder.path, workers=1)
    asked.unlink()
    kept = files(folder)
    assert len(kept) == 6
    assert not folder.table.exists()
    assert not list(folder.path.rglob("*.tmp"))
    done = simulate.sweep(sweep_rules.grid(), folder.path, workers=1)
    assert done.reused == 6
    assert kept.items() <= files(folder).items()
    assert done.table.read_bytes() == finished.table.read_bytes()


def test_full_disk_at_the_table(finished: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An old table stays whole."""
    folder = copy(finished, tmp_path / "out")
    folder.table.write_bytes(b"old")

    def full(handle: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(store.os, "fsync", full)
    with pytest.raises(SweepError, match=r"cannot write .*table.parquet: No space left"):
        simulate.sweep(sweep_rules.grid(), folder.path)
    assert folder.table.read_bytes() == b"old"
    assert not list(folder.path.rglob("*.tmp"))


def test_failure_of_a_cell_and_of_a_worker(finished: Folder, starts: Any, log: Path, tmp_path: Path) -> None:
    """A raising cell is a row, and is tried again; a dying worker ends the run, which can go on."""
    (log.parent / "raise").write_text("0.25")
    (log.parent / "die").write_text("1.0")
    with pytest.raises(SweepError, match="workers ended before their work did"):
        simulate.sweep(sweep_rules.grid(), tmp_path, workers=1)
    (log.parent / "die").unlink()
    done = simulate.sweep(sweep_rules.grid(), tmp_path, workers=1)
    (log.parent / "raise").unlink()
    assert done.computed == sweep_rules.CELLS - 7
    (failed,) = done.failed
    assert "'slow' at 0.25" in failed[0]
    assert failed[1] == "RuntimeError: no verifier at <object object>"
    rows = [row for row in done.read().to_pylist() if row["status"] == "failed"]
    assert [(row["strength"], row["quantity"], row["message"]) for row in rows] == [(0.25, None, failed[1])]
    done = simulate.sweep(sweep_rules.grid(), tmp_path, workers=1)
    assert (done.computed, done.failed) == (1, [])
    assert starts()[0.25] == 3
    assert done.table.read_bytes() == finished.table.read_bytes()


def test_grids_share_a_folder(finished: Folder, starts: Any, tmp_path: Path) -> None:
    """Cells of a larger grid are taken for a smaller one, and the table is the smaller's."""
    folder = copy(finished, tmp_path / "out")
    done = simulate.sweep(sweep_rules.grid(5), folder.path)
    assert (done.computed, done.reused, sum(starts().values())) == (0, 5, 0)
    assert len({row["cell"] for row in done.read().to_pylist()}) == 5


def test_no_scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An address where nobody answers."""
    monkeypatch.setattr("simulate.sweeps.run.CONNECT_SECONDS", 0.2)
    with pytest.raises(SweepError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:9"):
        simulate.sweep(sweep_rules.grid(1), tmp_path, scheduler="tcp://127.0.0.1:9")


def test_cluster_with_other_sources(finished: Folder, tmp_path: Path) -> None:
    """A worker that runs other code is found out before its cell is written."""
    cell = sweep_rules.grid().cells()[0]
    record = finished.read_cell(cell.key)
    assert record is not None
    folder = Folder(tmp_path)
    folder.cells.mkdir()
    with pytest.raises(SweepError, match="a worker of the cluster runs other sources"):
        run._finish(folder, cell, {**record, "code": "other"})
    assert not files(folder)
    run._finish(folder, cell, record)
    assert folder.read_cell(cell.key) == record


def test_cell_that_reaches_no_worker(tmp_path: Path) -> None:
    """What cannot be sent, or kills every worker of a cluster, is a failed cell and no end."""
    folder, cells = Folder(tmp_path), sweep_rules.grid(2).cells()
    folder.cells.mkdir()

    def submit(cell: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_exception(ModuleNotFoundError("no module"))
        return future

    run._run(folder, cells, submit, 1, tqdm(disable=True))
    for cell in cells:
        record = folder.read_cell(cell.key)
        assert record is not None
        assert (record["status"], record["message"]) == ("failed", "ModuleNotFoundError: no module")
