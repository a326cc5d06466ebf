"""Tidy tables as CSV: byte-identical for equal rows, and read back to the very same values.

Floats are written with `repr`, which is the shortest text that reads back exactly. Types are told from the text
alone, so a string that looks like a number is refused when written.

>>> text = dumps([{"n": 1, "x": 0.1, "name": "uniform", "ok": True, "note": None}])
>>> text
'n,x,name,ok,note\\n1,0.1,uniform,True,\\n'
>>> loads(text)
[{'n': 1, 'x': 0.1, 'name': 'uniform', 'ok': True, 'note': None}]
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

Row: TypeAlias = dict[str, Any]
Rows: TypeAlias = list[Row]

_WHOLE = re.compile(r"[+-]?\d+")
_WORDS: dict[str, Any] = {"": None, "True": True, "False": False}


def _write(value: Any) -> str:
    if hasattr(value, "item") and not isinstance(value, (str, float, int)):
        value = value.item()  # NumPy scalars
    if value is None or isinstance(value, (bool, str)):
        return "" if value is None else str(value)
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return repr(float(value))
    raise TypeError(f"a table holds int, float, str, bool or None, got {type(value).__name__}")


def _read(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    if _WHOLE.fullmatch(text):
        return int(text)
    try:
        return float(text)
    except ValueError:
        return text


def dumps(rows: Iterable[Row]) -> str:
    """CSV text of the rows.

    Raises
    ------
    ValueError
        If there are no rows, keys differ between rows, or a string would be read back as something else.
    TypeError
        For a value that is no plain scalar. Both name column and row.
    """
    rows = list(rows)
    if not rows:
        raise ValueError("the table has no rows")
    columns = list(rows[0])
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for i, row in enumerate(rows):
        if list(row) != columns:
            raise ValueError(f"row {i} has columns {list(row)}, the first row has {columns}")
        cells = []
        for column, value in row.items():
            try:
                cell = _write(value)
            except TypeError as error:
                raise TypeError(f"row {i}, column {column!r}: {error}") from None
            if isinstance(value, str) and _read(cell) != value:
                raise ValueError(f"row {i}, column {column!r}: the string {value!r} would be read as {_read(cell)!r}")
            cells.append(cell)
        writer.writerow(cells)
    return out.getvalue()


def loads(text: str) -> Rows:
    """Rows of a CSV text written by `dumps`."""
    lines = list(csv.reader(io.StringIO(text)))
    return [dict(zip(lines[0], map(_read, line), strict=True)) for line in lines[1:]]


def select(rows: Rows, **values: Any) -> Rows:
    """Rows whose columns have the given values."""
    return [row for row in rows if all(row[column] == value for column, value in values.items())]


def distinct(rows: Rows, column: str) -> list[Any]:
    """Values of a column, each once, in order of first appearance."""
    return list(dict.fromkeys(row[column] for row in rows))


def group(rows: Rows, *columns: str) -> dict[tuple[Any, ...], Rows]:
    """Rows by the values of some columns, in order of first appearance."""
    out: dict[tuple[Any, ...], Rows] = {}
    for row in rows:
        out.setdefault(tuple(row[column] for column in columns), []).append(row)
    return out


def column(rows: Rows, name: str, where: Callable[[Row], bool] = lambda row: True) -> list[Any]:
    """One column as a list."""
    return [row[name] for row in rows if where(row)]
