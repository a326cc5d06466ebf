"""The list of figures: what each is called, says, computes and draws.

A figure is one module of this package: it builds a tidy table (a list of rows), the table is written to disk, and
the picture is drawn from what was written, never from anything else. Modules are found by themselves; a new file
`paper_figures/my_figure.py` needs no entry anywhere:

    from paper_figures import style
    from paper_figures.registry import Context, Figure, Rows, register

    def build(context: Context) -> Rows:
        import validate                                    # heavy imports belong here, not at the top
        deltas = (1.1, 2.0) if context.quick else (1.0, 1.1, 1.5, 2.0, 4.0)
        return [context.cell(("delta", d), partial(one, d)) for d in context.progress(deltas)]   # one(d) -> a row

    def draw(rows: Rows):
        figure, axes = style.subplots(1, 1)
        axes[0, 0].plot([r["delta"] for r in rows], [r["kl"] for r in rows])
        return figure

    register(Figure("my_figure", "KL against δ", claim="…", caption=lambda rows: f"{len(rows)} values of δ …",
                    build=build, draw=draw, uses=("theory", "simulate", "validate")))

Rows are flat dicts with the same keys in the same order; values are int, float, str, bool or None. `claim` and
`caption` may be functions of the rows (as read back from the CSV), so that no number in them is typed by hand.
`context.quick` asks for a small version, `context.rng("draws", i)` gives a named random stream, `context.cell`
keeps finished pieces of a long computation on disk. `uses` names the packages or files the numbers depend on: when
one of them changes the figure is made again.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from paper_figures.context import Context
from paper_figures.tables import Row, Rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

Text: TypeAlias = "str | Callable[[Rows], str]"

TABLE_MODULES = ("context", "files", "pairs", "registry", "store", "tables")
"""Modules of this package every table depends on."""
PICTURE_MODULES = ("style",)
"""Modules only the pictures depend on."""
OTHER_MODULES = ("__main__", "fingerprint", "gallery", "page", "record")

GROUPS = {
    "one round": "One round: a block of drafted tokens and its check",
    "many rounds": "Many rounds: whole sequences",
    "real images": "Real images",
    "papers": "The papers' items",
    "further": "Further figures",
}
"""Sections of the gallery, in order: what a module says → heading."""

_figures: dict[str, Figure] = {}
_broken: dict[str, Exception] = {}


class UnknownFigureError(LookupError):
    """No figure of that name; the message offers the nearest ones."""


@dataclass(frozen=True)
class Figure:
    """One figure.

    Parameters
    ----------
    name : str
        Lower-case identifier: the module's name, and the stem of its files.
    title : str
        What is shown, in a few words.
    claim : str or function rows → str
        One line: what the figure shows to be true, no more.
    caption : str or function rows → str
        Axes, sample sizes, seeds, and which numbers are exact, bounds or estimates.
    build : function Context → rows
    draw : function rows → matplotlib figure
    uses : tuple of str
        Packages or files, relative to the folder this package lies in, such as "theory" or "validate/quality.py".
    order : int
        Place in the gallery's section; ties by name.
    group : str
        The gallery's section, a key of `GROUPS`.
    """

    name: str
    title: str
    claim: Text
    caption: Text
    build: Callable[[Context], Rows]
    draw: Callable[[Rows], Picture]
    uses: tuple[str, ...]
    order: int = 100
    group: str = "further"

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9_]*", self.name):
            raise ValueError(f"figure name {self.name!r} must be lower-case letters, digits and underscores")
        if self.group not in GROUPS:
            raise ValueError(f"figure {self.name}: group {self.group!r} must be one of {', '.join(GROUPS)}")
        for role in ("build", "draw"):
            if not hasattr(getattr(self, role), "__code__"):
                raise TypeError(f"figure {self.name}: {role} must be a plain function, got {getattr(self, role)!r}")

    @property
    def source(self) -> Path:
        """The file `build` is written in."""
        code: Any = self.build
        return Path(code.__code__.co_filename)


def register(figure: Figure) -> Figure:
    """Add a figure; a second one of the same name from another file is refused."""
    known = _figures.get(figure.name)
    if known is not None and known.source != figure.source:
        raise ValueError(f"figure {figure.name!r} is already registered by {known.source}")
    _figures[figure.name] = figure
    return figure


def load() -> dict[str, Exception]:
    """Import every figure module of this package; returns those that failed, by module name."""
    package = importlib.import_module("paper_figures")
    for module in pkgutil.iter_modules(package.__path__):
        if module.name not in (*TABLE_MODULES, *PICTURE_MODULES, *OTHER_MODULES):
            try:
                importlib.import_module(f"paper_figures.{module.name}")
            except Exception as error:  # one module that cannot be imported must not hide the others
                _broken[module.name] = error
    return dict(_broken)


def figures() -> list[Figure]:
    """All registered figures, in gallery order."""
    return sorted(_figures.values(), key=lambda figure: (figure.order, figure.name))


def find(name: str) -> Figure:
    """The figure of that name.

    Raises
    ------
    UnknownFigureError
        With the nearest names, or the reason its module could not be imported.
    """
    if name in _figures:
        return _figures[name]
    if name in _broken:
        error = _broken[name]
        raise UnknownFigureError(f"figure {name!r} cannot be loaded: {type(error).__name__}: {error}")
    names = [figure.name for figure in figures()]
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.55) or names
    raise UnknownFigureError(f"unknown figure {name!r}; nearest: {', '.join(near)}")


def text(words: Text, rows: Rows) -> str:
    """A claim or caption as plain text on one line."""
    return " ".join((words if isinstance(words, str) else words(rows)).split())


__all__ = ["Context", "Figure", "Row", "Rows", "UnknownFigureError", "figures", "find", "load", "register", "text"]
