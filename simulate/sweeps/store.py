"""The folder of a sweep: finished cells, the table, and the locks.

    OUT/cells/KEY.json    one finished cell: its settings and rows, with a checksum
    OUT/table.parquet     all cells of the last sweep that ended, in grid order
    OUT/.lock             held, with ``flock``, by the one run that may use this folder
    OUT/.working          held, shared, by every worker process while it computes and writes a cell

Every file is written beside its place, flushed to disk and moved there: a reader, or a crash, sees the old file or the
new one. ``flock`` ends with the process that holds it, however that dies. A run first takes ``.lock``, which turns a
second run away, and then waits until nobody holds ``.working``: workers of a run that was killed finish the cell they
are at, and that cell is not computed again. A worker looks whether its run is alive before it starts a cell.

``flock`` needs Linux or macOS and a file system that honours it between the machines in question (NFS does, where its
lock service runs; some cluster file systems are mounted without).
"""

from __future__ import annotations

import errno
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from simulate import files
from simulate.sweeps.identity import digest

POLL_SECONDS = 0.1
"""Between looks at the workers of a killed run."""


class SweepError(RuntimeError):
    """A sweep could not start or go on; cells that were finished are kept."""


class SweepBusyError(SweepError):
    """Another run holds the folder."""


class DamagedCellError(ValueError):
    """A cell file that cannot be read or is not what was written."""


def _reason(error: OSError) -> str:
    text = error.strerror or str(error)
    full = (errno.ENOSPC, errno.EDQUOT)
    return f"{text}; make room and start again" if error.errno in full else text


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file whole or not at all.

    Raises
    ------
    SweepError
        Naming the file and the reason (a full disk, no permission).
    """
    try:
        if not path.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, "its folder is gone")
        files.write_atomically(path, content)
    except OSError as error:
        raise SweepError(f"cannot write {path}: {_reason(error)}; finished cells are kept") from error


@contextmanager
def _flock(path: Path, operation: str) -> Iterator[Any]:
    """Hold a lock file open; BlockingIOError where a non-blocking lock is taken."""
    try:
        import fcntl
    except ImportError:
        raise SweepError("a sweep needs file locks (flock), which this system does not have") from None
    how = {"only": fcntl.LOCK_EX | fcntl.LOCK_NB, "shared": fcntl.LOCK_SH}[operation]
    with open(path, "a+", encoding="utf-8") as file:
        fcntl.flock(file, how)
        yield file


class Folder:
    """A sweep's folder; see the module.

    Parameters
    ----------
    path : Path
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
        self.cells = self.path / "cells"
        self.table = self.path / "table.parquet"

    @contextmanager
    def owned(self, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Make the folder if need be, own it, and clear what a killed run left half-written.

        Parameters
        ----------
        waiting : function, optional
            Called once if workers of a killed run have to be waited for.

        Raises
        ------
        SweepBusyError
            If another run owns it.
        SweepError
            If it cannot be written.
        """
        with ExitStack() as held:
            try:
                self.cells.mkdir(parents=True, exist_ok=True)
                file = held.enter_context(_flock(self.path / ".lock", "only"))
                self._wait_for_workers(waiting)
                for stray in [*self.path.glob(".*.tmp"), *self.cells.glob(".*.tmp")]:
                    stray.unlink(missing_ok=True)
                file.truncate(0)
                file.write(f"process {os.getpid()} on {socket.gethostname()}")
                file.flush()
            except BlockingIOError:
                raise SweepBusyError(
                    f"{self.path} is in use by another sweep ({self._owner()}); "
                    "wait for it to end, or use another folder"
                ) from None
            except OSError as error:
                raise SweepError(f"cannot use the folder {self.path}: {_reason(error)}") from error
            yield

    def _owner(self) -> str:
        try:
            return (self.path / ".lock").read_text(encoding="utf-8") or "another process"
        except OSError:
            return "another process"

    def _wait_for_workers(self, waiting: Callable[[], None]) -> None:
        told = False
        while True:
            try:
                with _flock(self.path / ".working", "only"):
                    return
            except BlockingIOError:
                if not told:
                    waiting()
                told = True
                time.sleep(POLL_SECONDS)

    @contextmanager
    def working(self) -> Iterator[None]:
        """What a worker holds while it computes and writes a cell."""
        with _flock(self.path / ".working", "shared"):
            yield

    def cell_path(self, key: str) -> Path:
        return self.cells / f"{key}.json"

    def write_cell(self, key: str, record: dict[str, Any]) -> None:
        """Write a finished cell. SweepError if that is not possible."""
        line = json.dumps({"checksum": digest(record), "cell": record}, ensure_ascii=False)
        write_atomically(self.cell_path(key), line.encode())

    def read_cell(self, key: str) -> dict[str, Any] | None:
        """A finished cell, None if it is not there.

        Raises
        ------
        DamagedCellError
            Naming the file and what is wrong with it.
        """
        path = self.cell_path(key)
        try:
            stored = json.loads(path.read_bytes())
            if stored["checksum"] == digest(stored["cell"]):
                return stored["cell"]  # type: ignore[no-any-return]
            reason = "its checksum does not match"
        except FileNotFoundError:
            return None
        except OSError as error:
            reason = _reason(error)
        except (ValueError, KeyError, TypeError):
            reason = "it is cut off or no cell"
        raise DamagedCellError(f"cell file {path.name} cannot be used: {reason}")

    def set_aside(self, key: str) -> Path:
        """Move a damaged cell out of the way, for whoever wants to look at it."""
        path = self.cell_path(key)
        aside = path.with_suffix(".damaged")
        try:
            os.replace(path, aside)
        except OSError as error:
            raise SweepError(f"cannot move the damaged cell {path} aside: {_reason(error)}; remove it") from error
        return aside
