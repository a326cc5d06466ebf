"""Values of a grid, checked one by one; every error names the place by its path, as ``verifiers[1].strength[0]``.

>>> axis([2, 3.5], "length", whole(1))
Traceback (most recent call last):
    ...
ValueError: length[1] must be a whole number >= 1, got 3.5
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

LARGEST = 2**63 - 1
"""Largest whole number that a column of the table holds."""


def real(value: Any, where: str) -> float:
    """A finite number that is no bool."""
    if (
        isinstance(value, (bool, str))
        or not isinstance(value, (int, float, np.integer, np.floating))
        or not math.isfinite(value)
    ):
        raise ValueError(f"{where} must be a finite number, got {value!r}")
    return float(value)


def whole(least: int) -> Callable[[Any, str], int]:
    """Check for whole numbers from `least` on."""

    def check(value: Any, where: str) -> int:
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
            raise ValueError(f"{where} must be a whole number >= {least}, got {value!r}")
        if value > LARGEST:
            raise ValueError(f"{where} must be at most {LARGEST}, got {value!r}")
        return int(value)

    return check


def share(value: Any, where: str) -> float:
    """A number in [0, 1]."""
    number = real(value, where)
    if not 0 <= number <= 1:
        raise ValueError(f"{where} must lie in [0, 1], got {value!r}")
    return number


def text(value: Any, where: str) -> str:
    """A string."""
    if not isinstance(value, str):
        raise ValueError(f"{where} must be a string, got {value!r}")
    return value


def axis(values: Any, where: str, check: Callable[[Any, str], Any]) -> tuple[Any, ...]:
    """The checked values of an axis; one value is an axis of one."""
    if isinstance(values, (str, Mapping)) or not isinstance(values, (Sequence, np.ndarray)):
        return (check(values, where),)
    if len(values) == 0:
        raise ValueError(f"{where} is empty; give at least one value")
    found: list[Any] = []
    for i, value in enumerate(values):
        checked = check(value, f"{where}[{i}]")
        if checked in found:
            raise ValueError(f"{where}[{i}] repeats {where}[{found.index(checked)}]: {checked!r}")
        found.append(checked)
    return tuple(found)


def tables(values: Any, where: str) -> list[Mapping[str, Any]]:
    """A list of tables; one table is a list of one."""
    found = [values] if isinstance(values, Mapping) else values
    if not isinstance(found, (list, tuple)) or not all(isinstance(table, Mapping) for table in found):
        raise ValueError(f"{where} must be a list of tables, got {values!r}")
    if not found:
        raise ValueError(f"{where} is empty; give at least one table")
    return list(found)


def distinct(groups: list[list[Any]], where: str) -> list[Any]:
    """The settings that the tables of a list stand for, all of them, if no two tables share one."""
    seen: dict[str, int] = {}
    for i, group in enumerate(groups):
        for item in group:
            other = seen.setdefault(json.dumps(item, sort_keys=True), i)
            if other != i:
                raise ValueError(f"{where}[{i}] repeats a setting of {where}[{other}]: {item}")
    return [item for group in groups for item in group]
