"""One check of a record."""

from __future__ import annotations

from typing import Any

__all__ = ["check_at_least", "check_at_most", "left_out"]


def check_at_most(record: dict[str, Any], what: str, value: float, limit: float) -> None:
    """Note a value and whether it stays within its limit; NaN does not."""
    record["checks"].append({"what": what, "value": float(value), "limit": limit, "passed": bool(value <= limit)})


def check_at_least(record: dict[str, Any], what: str, value: float, limit: float) -> None:
    """Note a value and whether it reaches its limit; NaN does not."""
    record["checks"].append({"what": what, "value": float(value), "limit": limit, "passed": bool(value >= limit)})


def left_out(record: dict[str, Any], reason: str) -> None:
    """Note what was not done and why."""
    record.setdefault("left_out", []).append(reason)
