"""What a figure was made from, as one hash: same fingerprint, same numbers.

The table's fingerprint covers the figure's own module, the shared modules, the sources and JSON manifests of the
packages it uses, the mode and seed, and the versions of NumPy, SciPy and torch. The picture's covers the style sheet
and Matplotlib as well, so that a new style redraws a figure without computing it again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from paper_figures.registry import PICTURE_MODULES, TABLE_MODULES, Figure

ROOT = Path(__file__).resolve().parent.parent
"""The folder the packages lie in."""
TABLE_LIBRARIES = ("numpy", "scipy", "torch")
PICTURE_LIBRARIES = ("matplotlib",)
KINDS = (".py", ".json")
"""Sources and weight manifests; weights themselves are named, with their hashes, by the manifests."""


def used_files(uses: str) -> list[Path]:
    """Files behind one entry of `Figure.uses`.

    Raises
    ------
    FileNotFoundError
        If there is no such package or file beside this one.
    """
    path = ROOT / uses
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise FileNotFoundError(f"a figure says it uses {uses!r}, but there is no such package or file in {ROOT}")
    return sorted(file for file in path.rglob("*") if file.suffix in KINDS and file.is_file())


def _versions(names: tuple[str, ...]) -> Iterator[str]:
    for name in names:
        try:
            yield f"{name} {version(name)}"
        except PackageNotFoundError:
            yield f"{name} absent"


def _digest(lines: Iterator[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _contents(files: list[Path]) -> Iterator[str]:
    for file in files:
        name = file.relative_to(ROOT).as_posix() if file.is_relative_to(ROOT) else file.name
        yield f"{name} {hashlib.sha256(file.read_bytes()).hexdigest()}"


def table_fingerprint(figure: Figure, quick: bool, seed: int) -> str:
    """Hash of everything the figure's table depends on."""

    def lines() -> Iterator[str]:
        yield f"{figure.name} quick={quick} seed={seed}"
        shared = [Path(__file__).parent / f"{module}.py" for module in TABLE_MODULES]
        yield from _contents([figure.source.resolve(), *shared])
        for uses in figure.uses:
            yield from _contents(used_files(uses))
        yield from _versions(TABLE_LIBRARIES)

    return _digest(lines())


def picture_fingerprint(figure: Figure, table: str) -> str:
    """Hash of everything the figure's picture depends on, given its table's."""

    def lines() -> Iterator[str]:
        yield table
        here = Path(__file__).parent
        yield from _contents([*(here / f"{module}.py" for module in PICTURE_MODULES), here / "style.mplstyle"])
        yield from _versions(PICTURE_LIBRARIES)

    return _digest(lines())
