"""The output folder: tables, pictures, and what they were made from.

    OUT/NAME.csv  NAME.pdf  NAME.png     the figure
    OUT/state.json                       per figure: fingerprints, hashes of its files, texts, seconds
    OUT/.cells/NAME-FINGERPRINT/         finished pieces of a figure still being built

Files are replaced whole, so a crash at any moment leaves each of them old or new. A figure is up to date if its
fingerprints and the hashes of its files are those of the state; if only the picture is old or damaged it is drawn
again from the table.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

from paper_figures import tables
from paper_figures.context import Context
from paper_figures.files import sha256, writable_folder
from paper_figures.fingerprint import picture_fingerprint, table_fingerprint
from paper_figures.registry import Figure, Rows, text
from simulate.files import write_atomically

Outcome: TypeAlias = Literal["made", "redrawn", "up to date"]
PICTURES = ("pdf", "png")
FINGERPRINT_DIGITS = 16
ENTRY: dict[str, Any] = {
    **dict.fromkeys(("table", "picture", "title", "claim", "caption"), str),
    "files": dict, "rows": int, "seconds": (int, float),
}  # fmt: skip
"""What an entry of the state must hold; another is damaged, and its figure is made again."""


def render(figure: Figure, rows: Rows, small: bool = False) -> dict[str, bytes]:
    """The picture as PDF and PNG, reproducible byte for byte: no dates, no software names; a `small` one says so."""
    from paper_figures import style

    with style.sheet():
        picture = figure.draw(rows)
        width = int(picture.get_figwidth() * 10.5)
        picture.suptitle("\n".join(textwrap.wrap(figure.title + " (small version)" * small, width)))
        picture.draw_without_rendering()
        picture.set_layout_engine("none")  # laid out once, for both kinds
        out = {}
        for kind in PICTURES:
            buffer = io.BytesIO()
            blank: dict[str, Any] = {"CreationDate": None} if kind == "pdf" else {"Software": None}
            picture.savefig(buffer, format=kind, metadata=blank)
            out[kind] = buffer.getvalue()
    return out


class Store:
    """An output folder.

    Parameters
    ----------
    folder : Path
        Made if need be.
    quick : bool
        Whether its figures are the small versions.
    seed : int
        Root of all random streams.

    Raises
    ------
    OutputFolderError
        If the folder cannot be written; the message names it.
    """

    def __init__(self, folder: Path, quick: bool = False, seed: int = 0) -> None:
        self.folder = writable_folder(folder)
        self.quick = quick
        self.seed = seed

    def path(self, name: str, kind: str) -> Path:
        """File of a figure: kind is csv, pdf or png."""
        return self.folder / f"{name}.{kind}"

    def state(self) -> dict[str, Any]:
        """What is known of every figure in this folder; empty if the file is missing or damaged."""
        try:
            state = json.loads((self.folder / "state.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        if not isinstance(state, dict):
            return {}
        return {
            name: e
            for name, e in state.items()
            if isinstance(e, dict) and all(isinstance(e.get(field), kind) for field, kind in ENTRY.items())
        }

    def intact(self, name: str, kind: str) -> bool:
        """Whether a file of the figure is the one that was written."""
        files = self.state().get(name, {}).get("files", {})
        return kind in files and sha256(self.path(name, kind)) == files[kind]

    def _cells(self, name: str, fingerprint: str) -> Path:
        return self.folder / ".cells" / f"{name}-{fingerprint[:FINGERPRINT_DIGITS]}"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep two runs on one folder from losing each other's entries; without fcntl they take the risk."""
        with (self.folder / ".lock").open("w") as lock:
            try:
                import fcntl

                fcntl.flock(lock, fcntl.LOCK_EX)
            except ImportError:
                pass
            yield

    def _record(self, name: str, contents: dict[str, bytes], entry: dict[str, Any]) -> None:
        """Write a figure's files and its entry as one step, so that two runs cannot mix theirs."""
        with self._locked():
            for kind, data in contents.items():
                write_atomically(self.path(name, kind), data)
            state = self.state() | {name: entry}
            text = json.dumps(state, indent=1, sort_keys=True, ensure_ascii=False)
            write_atomically(self.folder / "state.json", text.encode())

    def up_to_date(self, figure: Figure) -> bool:
        """Whether table and pictures are those that `make` would leave."""
        table = table_fingerprint(figure, self.quick, self.seed)
        entry = self.state().get(figure.name, {})
        same = entry.get("table") == table and entry.get("picture") == picture_fingerprint(figure, table)
        return same and all(self.intact(figure.name, kind) for kind in ("csv", *PICTURES))

    def make(self, figure: Figure, force: bool = False) -> Outcome:
        """Build and draw a figure, as far as it is not up to date.

        Parameters
        ----------
        figure : Figure
        force : bool
            Build it again from nothing, finished cells included.
        """
        name = figure.name
        table = table_fingerprint(figure, self.quick, self.seed)
        picture = picture_fingerprint(figure, table)
        entry = self.state().get(name, {})
        cells = self._cells(name, table)
        table_kept = not force and entry.get("table") == table and self.intact(name, "csv")
        if not force and self.up_to_date(figure):
            return "up to date"
        start, earlier = time.perf_counter(), 0.0
        if table_kept:
            earlier = entry.get("seconds", 0.0)
        else:
            if force:
                shutil.rmtree(cells, ignore_errors=True)
            context = Context(quick=self.quick, seed=self.seed, cells=cells, label=name)
            content = tables.dumps(figure.build(context))
            earlier = context.reused_seconds
        if table_kept:
            content = self.path(name, "csv").read_text(encoding="utf-8")
        rows = tables.loads(content)
        words = {"claim": text(figure.claim, rows), "caption": text(figure.caption, rows)}
        contents = {"csv": content.encode(), **render(figure, rows, self.quick)}
        spent = time.perf_counter() - start
        seconds = earlier if table_kept else earlier + spent
        files = {kind: hashlib.sha256(data).hexdigest() for kind, data in contents.items()}
        self._record(
            name,
            contents,
            {"table": table, "picture": picture, "files": files, "rows": len(rows), "title": figure.title, **words}
            | {"seconds": round(seconds, 2), "quick": self.quick, "seed": self.seed},
        )
        for old in (self.folder / ".cells").glob(f"{name}-*"):
            if old != cells and len(old.name) == len(cells.name):
                shutil.rmtree(old, ignore_errors=True)
        return "redrawn" if table_kept else "made"
