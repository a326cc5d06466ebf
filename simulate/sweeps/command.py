"""The command ``python -m simulate sweep FILE.toml``.

Exit status: 0 where every cell has numbers or is infeasible; 1 where cells failed; 2 where the sweep cannot run (a bad
file, a folder in use or not writable, a full disk, a missing package); 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from simulate.sweeps.grid import Grid
from simulate.sweeps.run import Sweep, sweep
from simulate.sweeps.store import SweepError

SHOWN = 10
"""Different messages of cells without numbers on the screen; the table has them all."""


def add_parser(commands: Any) -> None:
    """Add ``sweep`` to the commands of ``python -m simulate``."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "sweep", help="a grid of settings from a TOML file to one table", description="Many settings to one table."
    )
    parser.add_argument("file", type=Path, metavar="FILE.toml", help="the grid, see simulate.sweeps.grid")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of cells and table (FILE without .toml)")
    parser.add_argument("--workers", type=int, metavar="N", help="processes on this machine (one for each core)")
    parser.add_argument("--scheduler", metavar="ADDRESS", help="Dask scheduler to use instead, as tcp://HOST:PORT")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def _report(done: Sweep) -> None:
    print(f"{done.table}: {done.computed} cells computed, {done.reused} taken from earlier runs")
    for line in done.damaged:
        print(f"computed again: {line}")
    for kind, cells in (("failed", done.failed), ("infeasible", done.infeasible)):
        alike: dict[str, list[str]] = {}
        for label, message in cells:
            alike.setdefault(message, []).append(label)
        for message, labels in list(alike.items())[:SHOWN]:
            print(f"{kind}: {len(labels)} cells: {message} (first: {labels[0]})")
        if len(alike) > SHOWN:
            print(f"{kind}: {len(alike) - SHOWN} more messages, see the table's columns status and message")
    if done.partly_infeasible:
        print(f"infeasible: some quantities of {done.partly_infeasible} cells, see the table's column status")
    if done.failed:
        print("start again to retry the cells that failed")


def main(options: argparse.Namespace) -> int:
    """Run the command; see the module for the exit status."""
    out = options.file.with_suffix("") if options.out is None else options.out
    try:
        if out == options.file:
            raise ValueError(f"{options.file} has no suffix to drop; say with --out where the table goes")
        grid = Grid.from_toml(options.file)
        done = sweep(grid, out, workers=options.workers, scheduler=options.scheduler, progress=not options.quiet)
    except (ValueError, OSError, SweepError, ImportError) as error:
        print(f"python -m simulate sweep: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"interrupted; finished cells are kept in {out}, the same command goes on from there", file=sys.stderr)
        return 130
    _report(done)
    return 1 if done.failed else 0
