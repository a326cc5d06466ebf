"""Numbers that say what kind of claim they are.

An exact value and an upper bound are both floats; the class tells them apart in a table, a caption or a
debugger. Estimates carry an interval and live with the simulator.

>>> Bound(0.25).kind, Exact(0.25) + 1
('upper bound', 1.25)
"""

from __future__ import annotations

from typing import ClassVar


class Exact(float):
    """A value computed exactly, up to float64 rounding."""

    kind: ClassVar[str] = "exact"


class Bound(float):
    """A proved upper bound."""

    kind: ClassVar[str] = "upper bound"
