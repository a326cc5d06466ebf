"""Running a sweep: on this machine's processes or on a Dask cluster, from wherever an earlier run stopped.

On this machine every worker writes the cells it computes, so that what is finished stays finished whatever dies
afterwards. On a cluster, which need not share a disk, workers send their cells to this process, which writes them as
they arrive: cells under way when it dies are computed again.

Workers are processes with one thread for linear algebra each, also where there is only one of them: sums then run in
the same order everywhere, and the table is the same to the byte for any number of workers, in any order, on one kind of
machine. (Between processors with different vector units NumPy's exp and log may differ in the last bit.) On a cluster
the nanny sets the threads, by its default; a cluster that changes that may change last bits too.
"""

from __future__ import annotations

import concurrent.futures
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from simulate.sweeps import table
from simulate.sweeps.cells import compute, failure
from simulate.sweeps.grid import Cell, Grid
from simulate.sweeps.identity import code_fingerprint
from simulate.sweeps.store import DamagedCellError, Folder, SweepError, write_atomically
from theory.arrays import whole_number

ONE_THREAD = {
    name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
}
"""Environment of local workers."""

IDLE_SECONDS = 10
"""After which a worker without work ends: also one whose parent was killed."""

CLUSTER_QUEUE = 512
"""Cells sent ahead to a cluster."""

MOST_PER_CORE = 4
"""Most workers for each core of this machine: more only take memory."""

ADDRESS = re.compile(r"(\w+://)?[^/\s]+:\d+/?|inproc://\S+")
"""Of a Dask scheduler. Other texts make its client wait for a minute and leave a traceback."""

CONNECT_SECONDS = 30
"""After which a scheduler counts as not there."""

Submit = Callable[[Cell], "concurrent.futures.Future[Any]"]


@dataclass(frozen=True)
class Sweep:
    """A sweep that ended.

    Attributes
    ----------
    table : Path
        The Parquet file.
    computed, reused : int
        Cells computed now, and taken from earlier runs.
    failed, infeasible : list of (label, message)
        Cells without numbers; "failed" ones are tried again by the next run.
    partly_infeasible : int
        Cells of which some quantities need an enumeration that is too large.
    damaged : list of str
        Cell files that could not be used; they were moved aside and computed again.
    """

    table: Path
    computed: int
    reused: int
    failed: list[tuple[str, str]] = field(default_factory=list)
    infeasible: list[tuple[str, str]] = field(default_factory=list)
    partly_infeasible: int = 0
    damaged: list[str] = field(default_factory=list)

    def read(self) -> Any:
        """The table as a `pyarrow.Table`; ``.to_pandas()`` makes a data frame."""
        table.require_pyarrow()
        from pyarrow import parquet

        return parquet.read_table(self.table)


class _OrphanedError(BaseException):
    """The run that sent this cell is no longer there."""


def _prepare_worker() -> None:
    # Ctrl-C reaches every process of the terminal; the parent decides what becomes of its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # tqdm's own lock is shared between processes, for which every worker would start one more process.
    tqdm.set_lock(threading.RLock())


def _compute_and_write(folder: Path, parent: int, cell: Cell) -> tuple[str, str | None]:
    """Task of a local worker."""
    store = Folder(folder)
    with store.working():
        if os.getppid() != parent:
            raise _OrphanedError
        record = compute(cell.settings, cell.own)
        store.write_cell(cell.key, record)
    return record["status"], record["message"]


@contextmanager
def _processes(folder: Folder, workers: int) -> Iterator[tuple[Submit, int]]:
    """Submit to worker processes of joblib's; and how many cells to keep submitted."""
    try:
        from joblib.externals.loky import ProcessPoolExecutor
    except ImportError as error:
        raise ImportError("a sweep runs its workers with joblib; pip install 'relaxsd[sweep]'") from error
    pool = ProcessPoolExecutor(workers, timeout=IDLE_SECONDS, initializer=_prepare_worker, env=ONE_THREAD)
    try:
        yield lambda cell: pool.submit(_compute_and_write, folder.path, os.getpid(), cell), 2 * workers
    except BaseException:
        pool.shutdown(wait=True, kill_workers=True)
        raise
    pool.shutdown(wait=True)


@contextmanager
def _cluster(folder: Folder, address: str) -> Iterator[tuple[Submit, int]]:
    """Submit to a Dask cluster; see `_processes`."""
    try:
        import distributed
    except ImportError as error:
        raise ImportError("a sweep on a cluster needs dask.distributed; pip install 'relaxsd[dask]'") from error
    try:
        connect: Any = distributed.Client
        client = connect(address, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        raise SweepError(f"no Dask scheduler answers at {address}: {error}") from error
    with client, client.get_executor(pure=False) as executor:
        yield lambda cell: executor.submit(compute, cell.settings, cell.own), CLUSTER_QUEUE


def _finish(folder: Folder, cell: Cell, result: Any) -> None:
    """Write a cell that came back as a record; local workers write theirs and send back its status."""
    if isinstance(result, dict):
        if result["code"] != code_fingerprint():
            raise SweepError(
                "a worker of the cluster runs other sources of relaxsd, or another NumPy or SciPy, than this process; "
                "install the same everywhere"
            )
        folder.write_cell(cell.key, result)


def _result(cell: Cell, future: concurrent.futures.Future[Any]) -> Any:
    try:
        return future.result()
    except (SweepError, concurrent.futures.BrokenExecutor, concurrent.futures.CancelledError):
        raise
    except Exception as error:
        # It never reached a worker (it cannot be pickled or imported there), or it killed one worker after the other.
        return failure(cell.settings, error)


def _run(folder: Folder, cells: list[Cell], submit: Submit, ahead: int, bar: Any) -> None:
    left = iter(cells)
    running: dict[concurrent.futures.Future[Any], Cell] = {}
    try:
        while True:
            while len(running) < ahead and (cell := next(left, None)) is not None:
                running[submit(cell)] = cell
            if not running:
                return
            for future in concurrent.futures.wait(running, return_when="FIRST_COMPLETED").done:
                cell = running.pop(future)
                _finish(folder, cell, _result(cell, future))
                bar.update()
    except (concurrent.futures.BrokenExecutor, concurrent.futures.CancelledError) as error:
        raise SweepError(
            "workers ended before their work did (killed, out of memory, or the cluster is gone); finished cells are "
            "kept, start again to go on, with fewer workers if memory was short"
        ) from error
    finally:
        for future in running:
            future.cancel()


def _known(folder: Folder, cells: list[Cell]) -> tuple[set[str], list[str]]:
    """Keys of the cells that need no computing, and what is wrong with those that are damaged."""
    done, damaged = set(), []
    for cell in cells:
        try:
            record = folder.read_cell(cell.key)
        except DamagedCellError as error:
            damaged.append(f"{error}; now {folder.set_aside(cell.key).name}")
            continue
        if record is not None and record["status"] != "failed":
            done.add(cell.key)
    return done, damaged


def _records(folder: Folder, cells: list[Cell]) -> Iterator[tuple[Cell, dict[str, Any]]]:
    for cell in cells:
        record = folder.read_cell(cell.key)
        if record is None:
            raise SweepError(f"cell file {folder.cell_path(cell.key)} has gone while the sweep ran; start again")
        yield cell, record


def sweep(
    grid: Grid | Mapping[str, Any],
    out: str | Path,
    *,
    workers: int | None = None,
    scheduler: str | None = None,
    progress: bool = False,
) -> Sweep:
    """Compute every cell of a grid that is not finished yet, and write them all to one tidy table.

    Killed at any moment and called again it goes on: no finished cell is lost or repeated. A folder may serve several
    grids, one after the other; they share their common cells, and the table is that of the last.

    Parameters
    ----------
    grid : Grid, or a dict of its attributes
    out : path
        Folder for ``cells/`` and ``table.parquet``; see `simulate.sweeps.store`.
    workers : int, optional
        Processes on this machine; one for each core by default, at most `MOST_PER_CORE` for each.
    scheduler : str, optional
        Address of a Dask scheduler (``tcp://…``), whose workers are used instead. They need this package installed,
        not this folder.
    progress : bool
        Show a bar.

    Returns
    -------
    Sweep
        Where the table is, what was done, and which cells have no numbers.

    Raises
    ------
    ValueError
        For a grid that is none, an address that is none, or `workers` together with `scheduler`.
    SweepBusyError
        If another run is using the folder.
    SweepError
        If the folder cannot be written, the disk is full, or the workers are gone; finished cells are kept.
    ImportError
        Naming the extra to install.
    KeyboardInterrupt
        Ctrl-C; finished cells are kept.

    Notes
    -----
    An exception while a cell is computed becomes its row (status "failed") and does not end the sweep.
    """
    if not isinstance(grid, Grid):
        grid = Grid.from_mapping(grid)
    if scheduler is not None and workers is not None:
        raise ValueError("give workers (processes here) or scheduler (a Dask cluster), not both")
    if scheduler is not None and not ADDRESS.fullmatch(scheduler):
        raise ValueError(f"scheduler must be an address such as tcp://HOST:8786, got {scheduler!r}")
    cores = os.cpu_count() or 1
    count = cores if workers is None else min(whole_number(workers, "workers", 1), MOST_PER_CORE * cores)
    table.require_pyarrow()
    folder, cells = Folder(out), grid.cells()
    with folder.owned(lambda: tqdm.write("waiting for the workers of a killed run to finish their cells")):
        done, damaged = _known(folder, cells)
        todo = [cell for cell in cells if cell.key not in done]
        with tqdm(total=len(cells), initial=len(done), unit="cell", disable=not progress) as bar:
            if todo:
                pool = _processes(folder, min(count, len(todo))) if scheduler is None else _cluster(folder, scheduler)
                with pool as (submit, ahead):
                    _run(folder, todo, submit, ahead, bar)
        records = list(_records(folder, cells))
        write_atomically(folder.table, table.parquet(records))
    without = {s: [(c.label, r["message"]) for c, r in records if r["status"] == s] for s in ("failed", "infeasible")}
    partly = sum(any(row.get("status") for row in r["rows"]) for _, r in records)
    return Sweep(folder.table, len(todo), len(done), without["failed"], without["infeasible"], partly, damaged)
