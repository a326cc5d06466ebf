"""What a figure's `build` is given: how much to do, random streams, and a memory for finished pieces.

A cell is one piece of a long computation: a key and a function that returns something JSON can hold. Its value is
written to disk, complete or not at all, as soon as it is known; a run that was killed takes it from there. The value
handed out is always the one read back, so that a resumed run gives the same table as an unbroken one.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from simulate.files import write_atomically

T = TypeVar("T")


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a cell holds what JSON can hold, got {type(value).__name__}")


@dataclass
class Context:
    """One figure being built.

    Attributes
    ----------
    quick : bool
        Make a small version: fewer settings, smaller samples, same claims.
    seed : int
        Root of every random stream.
    cells : Path or None
        Folder of finished cells; None keeps nothing (tests, notebooks).
    reused : int
        Cells taken from disk so far.
    reused_seconds : float
        What those cells cost when they were computed.
    """

    quick: bool = False
    seed: int = 0
    cells: Path | None = None
    label: str = ""
    reused: int = 0
    reused_seconds: float = 0.0
    _keys: set[str] = field(default_factory=set, repr=False)

    def rng(self, *name: str | int) -> np.random.Generator:
        """A generator of its own for every name: streams of different names are independent."""
        digest = hashlib.sha256(json.dumps(name).encode()).digest()[:16]
        return np.random.default_rng([self.seed, int.from_bytes(digest, "big")])

    def cell(self, key: str | int | tuple[Any, ...], function: Callable[[], T]) -> T:
        """`function()`, or its value from an earlier, interrupted run.

        Parameters
        ----------
        key : str, int or tuple of them
            Must name the piece completely within this figure, and once only in a run.
        function : no arguments → JSON-able value
            NumPy numbers and arrays are turned into numbers and lists; tuples come back as lists.

        Raises
        ------
        ValueError
            If the key was used before in this run.
        """
        words = json.dumps(key, default=_plain, ensure_ascii=False)
        if words in self._keys:
            raise ValueError(f"cell key {words} is used twice; a key must name one piece")
        self._keys.add(words)
        path = None
        if self.cells is not None:
            path = self.cells / f"{hashlib.sha256(words.encode()).hexdigest()[:24]}.json"
            try:
                known = json.loads(path.read_text(encoding="utf-8"))
                if known["key"] == words:
                    self.reused += 1
                    self.reused_seconds += known["seconds"]
                    return known["value"]  # type: ignore[no-any-return]
            except (OSError, ValueError, KeyError, TypeError):
                pass  # absent or damaged: compute it
        start = time.perf_counter()
        value = function()
        record = {"key": words, "seconds": time.perf_counter() - start, "value": value}
        line = json.dumps(record, default=_plain, ensure_ascii=False)
        if path is not None:
            write_atomically(path, line.encode())
        return json.loads(line)["value"]  # type: ignore[no-any-return]

    def progress(self, items: Collection[T]) -> Iterator[T]:
        """The items, with a progress bar on a terminal."""
        from tqdm import tqdm

        yield from tqdm(items, desc=self.label, leave=False, disable=None)
