"""Sphinx settings: the reference is generated from the packages' public names, so that none can be forgotten."""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

project = "relaxsd"
author = "The relaxsd founders"
extensions = ["sphinx.ext.autodoc", "sphinx.ext.viewcode", "numpydoc"]
exclude_patterns = ["build"]
html_theme = "alabaster"
html_theme_options = {"description": "Relaxed speculative decoding, judged exactly", "page_width": "1100px"}
# Works from disk: no fonts, scripts or formulas from a network.
html_use_index = True
numpydoc_show_class_members = False
autodoc_member_order = "bysource"
autodoc_typehints = "none"
nitpicky = False

PACKAGES = ("theory", "simulate", "simulate.testing", "validate")


def _entry(package: str, name: str) -> str:
    value = getattr(importlib.import_module(package), name)
    if inspect.isclass(value):
        return f".. autoclass:: {package}.{name}\n   :members:\n"
    if callable(value):
        return f".. autofunction:: {package}.{name}\n"
    return f".. autodata:: {package}.{name}\n"


def _page(package: str) -> str:
    module = importlib.import_module(package)
    names = [name for name in module.__all__ if not inspect.ismodule(getattr(module, name))]
    title = f"{package}\n{'=' * len(package)}\n\n.. automodule:: {package}\n   :no-members:\n\n"
    return title + "\n".join(_entry(package, name) for name in names)


def write_reference(_app: object) -> None:
    """One page for each package, with every name in its ``__all__``."""
    folder = HERE / "reference"
    folder.mkdir(exist_ok=True)
    for package in PACKAGES:
        path, text = folder / f"{package}.rst", _page(package)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def keep_bars(_app: object, _what: str, _name: str, _value: object, _options: object, lines: list[str]) -> None:
    """|x| is an absolute value in these docstrings, never a substitution."""
    for i, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...", "| ", "+-")):
            parts = line.split("``")
            parts[::2] = [part.replace("|", "\\|") for part in parts[::2]]
            lines[i] = "``".join(parts)


def setup(app: object) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", keep_bars)  # type: ignore[attr-defined]
    app.connect("builder-inited", write_reference)  # type: ignore[attr-defined]
