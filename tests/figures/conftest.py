"""A small figure of three slow cells, and a registry that forgets it after the test."""

from __future__ import annotations

import pytest

from paper_figures import registry, style
from paper_figures.registry import Context, Figure, Rows


def build(context: Context) -> Rows:
    """Three rows, one cell each."""
    return [context.cell(i, lambda i=i: {"x": i, "y": float(context.rng("y", i).random())}) for i in range(3)]


def draw(rows: Rows) -> style.Figure:
    """A line."""
    figure, axes = style.subplots(1, 1)
    axes[0, 0].plot([row["x"] for row in rows], [row["y"] for row in rows])
    return figure


@pytest.fixture
def small() -> Figure:
    """A figure that takes no time."""
    return Figure(
        "small_one", "A line", claim=lambda rows: f"y starts at {rows[0]['y']:.3f}", caption="Three <rows> & no more.",
        build=build, draw=draw, uses=("theory/numbers.py",),
    )  # fmt: skip


@pytest.fixture
def empty_registry(monkeypatch: pytest.MonkeyPatch) -> dict[str, Figure]:
    """A registry with nothing in it, and no module to load."""
    figures: dict[str, Figure] = {}
    monkeypatch.setattr(registry, "_figures", figures)
    monkeypatch.setattr(registry, "load", dict)
    return figures
