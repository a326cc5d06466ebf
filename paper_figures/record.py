"""Tables whose numbers the README quotes: kept in the repository, renewed by `python -m paper_figures --record`.

    paper_figures/recorded/NAME.csv      the figure's table, byte for byte
    README.md                            its answers, between two marks, rewritten from these tables

Figures are made first, as far as they are not up to date, so that what is recorded is what this code computes.
"""

from __future__ import annotations

import re
from pathlib import Path

from paper_figures import tables
from paper_figures.page import answers
from paper_figures.registry import Rows
from paper_figures.store import Store
from simulate.files import write_atomically

FOLDER = Path(__file__).parent / "recorded"
README = Path(__file__).parents[1] / "README.md"
BEGIN = "<!-- answers: written by python -m paper_figures --record -->\n"
END = "<!-- end of answers -->\n"
_BLOCK = re.compile(f"(?<={re.escape(BEGIN)}).*?(?={re.escape(END)})", re.DOTALL)


def recorded(name: str) -> Rows:
    """Rows of a recorded table.

    Raises
    ------
    FileNotFoundError
        If there is none of that name.
    """
    return tables.loads((FOLDER / f"{name}.csv").read_text(encoding="utf-8"))


def block() -> str:
    """The README's answers, from the recorded tables."""
    return "\n" + answers.markdown({name: recorded(name) for name in answers.NEEDED}) + "\n"


def with_block(text: str) -> str:
    """A README with its answers renewed.

    Raises
    ------
    ValueError
        If the two marks are not there.
    """
    if not _BLOCK.search(text):
        raise ValueError(
            f"the README has no answers between {BEGIN.strip()!r} and {END.strip()!r}; put both lines back"
        )
    return _BLOCK.sub(lambda _: block(), text)


def record(store: Store) -> list[Path]:
    """Copy the quoted tables and rewrite the README's answers.

    Returns
    -------
    list of Path
        What was written.

    Raises
    ------
    FileNotFoundError
        If a quoted figure is not made, or its table is not the one that was written.
    """
    broken = [name for name in answers.NEEDED if not store.intact(name, "csv")]
    if broken:
        raise FileNotFoundError(
            f"not recorded: no intact table of {', '.join(broken)} in {store.folder}; make it first"
        )
    contents = {f"{name}.csv": store.path(name, "csv").read_bytes() for name in answers.NEEDED}
    written = [FOLDER / name for name in contents]
    for path, content in zip(written, contents.values(), strict=True):
        write_atomically(path, content)
    if README.is_file():
        write_atomically(README, with_block(README.read_text(encoding="utf-8")).encode())
        written.append(README)
    return written
