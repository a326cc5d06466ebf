"""Names, nearest names, and what a registration refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paper_figures import registry
from paper_figures.registry import Figure, UnknownFigureError

SYNTHETIC = {
    "bound_vs_exact", "annealing_truth", "annealing_long", "annealing_closed_form", "lossless_floor",
    "interval_coverage",
}  # fmt: skip


def test_every_synthetic_figure_is_found() -> None:
    """Modules register themselves; the gallery's order is theirs."""
    registry.load()
    figures = registry.figures()
    assert {figure.name for figure in figures} >= SYNTHETIC
    assert [figure.order for figure in figures] == sorted(figure.order for figure in figures)
    for name in SYNTHETIC:
        assert registry.find(name).source.stem == name


def test_unknown_name_offers_the_nearest() -> None:
    """A typing error is answered with what was meant."""
    registry.load()
    with pytest.raises(UnknownFigureError, match=r"unknown figure 'lossles_flor'; nearest: lossless_floor"):
        registry.find("lossles_flor")
    with pytest.raises(UnknownFigureError, match=r"nearest: .*bound_vs_exact"):
        registry.find("zzzzzz")


def test_broken_module_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A figure whose module cannot be imported says why."""
    monkeypatch.setitem(registry._broken, "real_pair", ModuleNotFoundError("No module named 'torch'"))
    monkeypatch.delitem(registry._figures, "real_pair", raising=False)
    with pytest.raises(UnknownFigureError, match="cannot be loaded: ModuleNotFoundError: No module named 'torch'"):
        registry.find("real_pair")


def test_registration_checks(small: Figure, empty_registry: dict[str, Figure]) -> None:
    """Names are identifiers, functions are functions, and a name has one owner."""
    registry.register(small)
    registry.register(small)
    assert registry.find("small_one") is small
    with pytest.raises(ValueError, match="lower-case"):
        replace(small, name="Small One")
    with pytest.raises(TypeError, match="build must be a plain function"):
        replace(small, build=print)  # type: ignore[arg-type]

    def elsewhere(context: registry.Context) -> registry.Rows:
        return []

    with pytest.raises(ValueError, match="already registered by"):
        registry.register(replace(small, build=elsewhere))
