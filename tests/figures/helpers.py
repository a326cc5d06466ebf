"""Quick tables of registered figures, built once a process."""

from __future__ import annotations

from functools import cache

from paper_figures import registry, tables
from paper_figures.registry import Context, Figure, Rows
from paper_figures.store import render


def figure(name: str) -> Figure:
    """The registered figure, whatever ran before."""
    registry.load()
    return registry.find(name)


@cache
def table(name: str) -> Rows:
    """The quick table, as read back from its CSV."""
    return tables.loads(tables.dumps(figure(name).build(Context(quick=True))))


def check_texts_and_pictures(name: str) -> None:
    """Claim and caption are made from the table alone and can be read in one go; the picture can be drawn."""
    rows = table(name)
    for words in (registry.text(figure(name).claim, rows), registry.text(figure(name).caption, rows)):
        assert 60 < len(words) < 950
        assert not any(bad in words for bad in ("nan", "None", "{", "inf "))
    pictures = render(figure(name), rows)
    assert pictures["pdf"].startswith(b"%PDF")
    assert pictures["png"].startswith(b"\x89PNG")
