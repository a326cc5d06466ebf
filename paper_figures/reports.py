"""Committed reports of `python -m validate` commands, for figures of real images: no figure decodes what they hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, TypeAlias

from paper_figures.registry import Row

__all__ = ["REPORTS", "interval", "newest_report"]

Kind: TypeAlias = Literal["compare", "cascade"]

REPORTS = Path(__file__).resolve().parent.parent / "validate" / "reports"


def newest_report(kind: Kind, folder: Path = REPORTS) -> dict[str, Any]:
    """The last report of a command by file name, KIND-….json, with its file name as "file".

    Raises
    ------
    FileNotFoundError
        If there is none; the message says how one is made.
    ValueError
        A damaged one; names the file.
    """
    found = sorted(folder.glob(f"{kind}-*.json"))
    command = f"python -m validate {kind} --out validate/reports/{kind}-cpu.json"
    if not found:
        raise FileNotFoundError(f"no {kind}-*.json in {folder}; make one: {command}")
    try:
        report = json.loads(found[-1].read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{found[-1]} is damaged ({error}); remove it, or make it again with {command}") from None
    if not isinstance(report, dict) or "settings" not in report:
        raise ValueError(
            f"{found[-1]} is no report of python -m validate {kind}; remove it, or make one with {command}"
        )
    return report | {"file": found[-1].name}


def interval(row: Row, name: str) -> Row:
    """Three columns of a report's number: lower, value, upper; equal where it has no interval, empty where absent."""
    value = row.get(name)
    lower, middle, upper = value if isinstance(value, list) else (value,) * 3
    return {f"{name}_lower": lower, name: middle, f"{name}_upper": upper}
