"""How figures look: one style sheet, and one mark for every schedule wherever it appears.

Pictures are plain `matplotlib.figure.Figure` objects, never pyplot's, so that no window, display or global state is
involved and a notebook's own backend is left alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from paper_figures.pairs import EVEN

SHEET = Path(__file__).parent / "style.mplstyle"

BLACK, BLUE, RED, GREEN, PURPLE, ORANGE, SKY, GREY = (
    "#000000",
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#7F7F7F",
)

MARKS: dict[str, dict[str, Any]] = {
    "uniform": {"color": BLACK, "marker": "o", "linestyle": "-"},
    "annealed, floored": {"color": BLUE, "marker": "s", "linestyle": "-"},
    "annealed, no floor": {"color": RED, "marker": "x", "linestyle": "--"},
    "excess, ν = .7": {"color": GREEN, "marker": "^", "linestyle": "-"},
    "excess, ν = .2": {"color": SKY, "marker": "v", "linestyle": "-."},
    "linear, floored": {"color": ORANGE, "marker": "D", "linestyle": "--"},
    "reversed": {"color": PURPLE, "marker": "<", "linestyle": ":"},
    "bang-bang": {"color": GREY, "marker": "*", "linestyle": ":"},
}
"""Colour, marker and dash of each schedule."""


def sheet() -> AbstractContextManager[None]:
    """Context in which the style sheet applies."""
    return matplotlib.style.context(str(SHEET))


def subplots(rows: int, columns: int, width: float = 7.2, height: float = 3.6, **options: Any) -> tuple[Figure, Any]:
    """A figure and its (rows, columns) array of axes; sizes in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def legend_below(figure: Figure, marks: dict[str, dict[str, Any]], columns: int = 4) -> None:
    """One legend for the whole figure, under its axes."""
    handles = [Line2D([], [], label=label, **mark) for label, mark in marks.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=columns)


def _short(value: float) -> str:
    return f"{value:.2f}" if value < 9.95 else f"{value:.0f}"


def ratio_text(mean: float, least: float, greatest: float) -> str:
    """Two lines for a cell of `ratio_table`; a star marks a mean clearly below one."""
    return f"{_short(mean)}{'*' * (mean < 1 - EVEN)}\n{_short(least)}–{_short(greatest)}"


def ratio_table(axes: Axes, values: Any, rows: Iterable[str], columns: Iterable[str], texts: Any) -> Any:
    """A table coloured by log ratio around 1 (below 1 purple, above 1 orange), with the texts printed in its cells."""
    values = np.log2(np.clip(np.asarray(values, dtype=float), 0.5, 2.0))
    image = axes.imshow(values, cmap="PuOr_r", vmin=-1.0, vmax=1.0, aspect="auto")
    axes.set_xticks(range(values.shape[1]), list(columns))
    axes.set_yticks(range(values.shape[0]), list(rows))
    axes.tick_params(length=0)
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    for (i, j), value in np.ndenumerate(values):
        colour = "white" if abs(value) > 0.75 else "black"
        axes.text(j, i, texts[i][j], ha="center", va="center", fontsize=6.0, color=colour, linespacing=1.3)
    return image
