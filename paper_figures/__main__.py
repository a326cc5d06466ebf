"""Make the figures: `python -m paper_figures [NAME ...] [--quick] [--out DIR] [--list] [--seed N] [--force] [--record]`

Without names all figures are made. Finished ones are skipped, so the same command resumes an interrupted run. Quick
versions go to a folder of their own, `DIR/quick`, and never replace full ones. With `--jobs N` so many figures are made
at a time, each by this command in a process of its own. `--record` makes all, then renews the tables that the README
quotes and its answers (`paper_figures.record`). Exit status: 0 all made or up to date, 1 a figure failed (the others
are made), 2 a wrong argument or an output folder that cannot be written, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from paper_figures import gallery, record, registry
from paper_figures.files import OutputFolderError
from paper_figures.store import Store

DEFAULT_FOLDER = Path("figures")
INTERRUPTED = 130


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m paper_figures",
        description="Make figures: for each a table (CSV), a picture (PDF, PNG), and one page, index.html, with all.",
        epilog="Finished figures are skipped; run the same command again to resume.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="figures to make (default: all)")
    parser.add_argument("--quick", action="store_true", help="small versions, in DIR/quick (seconds each)")
    parser.add_argument("--out", type=Path, default=DEFAULT_FOLDER, metavar="DIR", help="output folder (figures)")
    parser.add_argument("--list", action="store_true", help="list the figures and stop")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="root of all random streams (0)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="figures made at a time (1)")
    parser.add_argument("--force", action="store_true", help="build again what is up to date")
    parser.add_argument(
        "--record",
        action="store_true",
        help="then keep the tables quoted in the README in paper_figures/recorded, and renew its answers",
    )
    arguments = parser.parse_args(argv)
    if arguments.record and (arguments.quick or arguments.seed or arguments.names):
        parser.error("--record keeps the full tables of seed 0: leave out names, --quick and --seed")
    if arguments.jobs < 1:
        parser.error(f"--jobs must be >= 1, got {arguments.jobs}")
    if arguments.seed < 0:
        parser.error(f"--seed must be >= 0, got {arguments.seed}")
    return arguments


def _chosen(names: Sequence[str], failed: list[str]) -> list[registry.Figure]:
    if names:
        return [registry.find(name) for name in dict.fromkeys(names)]
    for module, error in registry.load().items():
        print(f"{module}: cannot be loaded: {type(error).__name__}: {error}", file=sys.stderr)
        failed.append(module)
    return registry.figures()


def _make(store: Store, chosen: list[registry.Figure], force: bool, failed: list[str]) -> None:
    from tqdm import tqdm

    width = max((len(figure.name) for figure in chosen), default=0)
    with tqdm(chosen, desc="figures", unit="figure", disable=None) as bar:
        for figure in bar:
            start = time.perf_counter()
            try:
                outcome: str = store.make(figure, force)
            except Exception as error:
                traceback.print_exc()
                outcome = f"FAILED: {type(error).__name__}: {error}"
                failed.append(figure.name)
            if outcome != "up to date":
                gallery.write(store)
            tqdm.write(f"{figure.name:<{width}}  {time.perf_counter() - start:6.1f} s  {outcome}", file=sys.stdout)
            sys.stdout.flush()
    gallery.write(store)


def _make_side_by_side(store: Store, chosen: list[registry.Figure], force: bool, jobs: int, failed: list[str]) -> None:
    """Each figure by a process of its own, with one thread: more would fight over the cores."""
    options = ["--out", str(store.folder.parent if store.quick else store.folder), "--seed", str(store.seed)]
    options += ["--quick"] * store.quick + ["--force"] * force
    single = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TQDM_DISABLE")}

    def child(figure: registry.Figure) -> tuple[int, str]:
        command = [sys.executable, "-m", "paper_figures", figure.name, *options]
        done = subprocess.run(command, env=os.environ | single, capture_output=True, text=True, check=False)
        lines = [line for line in done.stdout.splitlines() if not line.startswith("gallery: ")]
        return done.returncode, "\n".join([*lines, done.stderr.strip()]).strip()

    done_before = [] if force else [figure for figure in chosen if store.up_to_date(figure)]
    for figure in done_before:
        print(f"{figure.name}  up to date")
    chosen = [figure for figure in chosen if figure not in done_before]
    with ThreadPoolExecutor(jobs) as pool:
        # The real images, whose figures are the dearest, come last in the gallery.
        running = {pool.submit(child, figure): figure for figure in reversed(chosen)}
        try:
            for done in as_completed(running):
                status, printed = done.result()
                print(printed, flush=True)
                if status == INTERRUPTED:
                    raise KeyboardInterrupt
                if status:
                    failed.append(running[done].name)
        except KeyboardInterrupt:
            # Children in the same terminal were interrupted with this process.
            pool.shutdown(wait=True, cancel_futures=True)
            raise
        finally:
            gallery.write(store)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    arguments = _arguments(argv)
    broken = registry.load()
    if arguments.list:
        for figure in registry.figures():
            print(f"{figure.name:<22} {figure.title}")
        for name in broken:
            print(f"{name:<22} (cannot be loaded: {broken[name]})")
        return 0
    failed: list[str] = []
    try:
        chosen = _chosen(arguments.names, failed)
        store = Store(arguments.out / "quick" if arguments.quick else arguments.out, arguments.quick, arguments.seed)
    except (registry.UnknownFigureError, OutputFolderError) as error:
        print(f"paper_figures: {error}", file=sys.stderr)
        return 2
    try:
        if arguments.jobs > 1 and len(chosen) > 1:
            _make_side_by_side(store, chosen, arguments.force, arguments.jobs, failed)
        else:
            _make(store, chosen, arguments.force, failed)
    except KeyboardInterrupt:
        again = [a for a in (sys.argv[1:] if argv is None else argv) if a != "--force"]
        command = shlex.join(["python", "-m", "paper_figures", *again])
        print(f"\nstopped; finished figures and cells are kept. Resume with: {command}", file=sys.stderr)
        return INTERRUPTED
    print(f"gallery: {store.folder / 'index.html'}")
    if arguments.record and not failed:
        for path in record.record(store):
            print(f"recorded: {path}")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
