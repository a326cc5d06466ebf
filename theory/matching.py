"""Members of a family at one cost: the strength at which a measure takes a value, and a coin where it jumps.

A family is a curve of verifiers in a strength s. The search runs in u = log(1 + s − least), in which small and large
strengths are near each other. Thresholds, ranks and groups jump: there a coin tossed before each test chooses between
two members on either side of the jump, and its weight meets the value exactly.

>>> from theory.rule_families import rule_families
>>> uniform = rule_families([[0.0], [1.0], [2.0]])[0]
>>> p, q = [0.5, 0.3, 0.2], [0.2, 0.3, 0.5]
>>> def accepted(verifier):
...     return 1 - float(verifier.step(p, q, 0).rejection)
>>> round(matched_verifier(uniform, accepted, 0.9)[1], 9)  # 1 + strength = 2: ω p = .4 for the last token
1.0
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

from theory.arrays import array_namespace
from theory.rule_families import Family
from theory.rules import Position
from theory.verifiers import AnyVerifier, Step

MATCHED = 1e-9
"""Largest difference of the measure between members called matched."""
FIRST_STEPS, SMOOTH_STEPS = 3, 10
"""Steps of Brent's method where a coin can follow, before plateaus are looked for and after. It needs about six where
the measure does not jump, and is no help where it does."""
FINEST = 1e-4
"""Members this near in u are the two sides of a coin. Finer jumps between them are passed over; the value is met."""


@dataclass(frozen=True)
class Randomised:
    """A coin before each test: `high` with probability `weight`, else `low`. Token-wise verifiers only."""

    low: AnyVerifier
    high: AnyVerifier
    weight: float
    stateful: ClassVar[bool] = False

    @property
    def lossless(self) -> bool:
        return self.low.lossless and self.high.lossless

    def step(self, p: Any, q: Any, position: Position, weight: Any = None) -> Step:
        low, high = self.low.step(p, q, position), self.high.step(p, q, position)
        xp = array_namespace(low.accepted, high.accepted)
        accepted, rejection = (
            (1 - self.weight) * a + self.weight * b
            for a, b in ((low.accepted, high.accepted), (low.rejection, high.rejection))
        )
        replaced = (1 - self.weight) * low.rejection[..., None] * low.residual
        replaced = replaced + self.weight * high.rejection[..., None] * high.residual
        some = rejection[..., None] > 0
        one = xp.ones_like(rejection[..., None])
        residual = xp.where(some, replaced / xp.where(some, rejection[..., None], one), low.residual)
        return Step(accepted, rejection, residual)


class Matcher:
    """The search of one family; what one value has measured narrows the search for the next.

    Parameters
    ----------
    family : Family
    measure : function verifier → float
    """

    def __init__(self, family: Family, measure: Callable[[AnyVerifier], float]) -> None:
        self.family, self.measure = family, measure
        self.width = math.log1p(family.high - family.low)
        self.known: dict[float, float] = {}

    def strength(self, u: float) -> float:
        return self.family.high if u >= self.width else self.family.low + math.expm1(u)

    def _measured(self, u: float) -> float:
        if u not in self.known:
            self.known[u] = float(self.measure(self.family.build(self.strength(u))))
        return self.known[u]

    def _bracket(self, value: float) -> tuple[float, float]:
        """The first two neighbours among the strengths measured so far between which the value is passed."""
        both = pairwise(sorted(self.known))
        return next((a, b) for a, b in both if self.known[a] <= value <= self.known[b])

    def _jumps(self) -> bool:
        """Whether the strengths measured so far show plateaus: one between the ends' values, or one at either end."""
        seen = Counter(self.known.values())
        first, last = seen.pop(self.known[0.0]), seen.pop(self.known[self.width], 2)
        return (first > 1 and last > 1) or max(seen.values(), default=0) > 1

    def at(self, value: float) -> tuple[AnyVerifier, float, bool]:
        """Verifier, strength and whether it is matched; see `matched_verifier`."""
        from scipy.optimize import brentq

        def off(u: float) -> float:
            difference = self._measured(u) - value
            return 0.0 if abs(difference) <= MATCHED / 2 else difference

        def member(u: float, matched: bool) -> tuple[AnyVerifier, float, bool]:
            return self.family.build(self.strength(u)), self.strength(u), matched

        first, last = (self._measured(u) for u in (0.0, self.width))
        if not first - MATCHED <= value <= last + MATCHED:
            return member(0.0 if abs(first - value) < abs(last - value) else self.width, False)
        if off(0.0) >= 0 or off(self.width) <= 0:
            return member(0.0 if off(0.0) >= 0 else self.width, True)
        coin = not self.family.build(self.family.low).stateful
        for steps in (FIRST_STEPS, SMOOTH_STEPS) if coin else (100,):
            found = brentq(off, *self._bracket(value), xtol=1e-15, maxiter=steps, disp=False)
            if off(float(found)) == 0:
                return member(float(found), True)
            if self._jumps():
                break
        low, high = self._bracket(value)
        while coin and high - low > FINEST:
            self._measured((low + high) / 2)
            low, high = self._bracket(value)
        below, above = (self.family.build(self.strength(u)) for u in (low, high))
        if off(low) == 0 or off(high) == 0:
            return member(low if off(low) == 0 else high, True)
        if not coin:
            return member(low, False)

        def missing(weight: float) -> float:
            difference = self.measure(Randomised(below, above, weight)) - value
            return 0.0 if abs(difference) <= MATCHED / 2 else difference

        weight = float(brentq(missing, 0.0, 1.0, xtol=1e-15))
        return Randomised(below, above, weight), self.strength(low), True


def matched_verifier(
    family: Family, measure: Callable[[AnyVerifier], float], value: float
) -> tuple[AnyVerifier, float, bool]:
    """The member (or coin between two members) of a family at which a measure takes a value.

    Returns
    -------
    verifier, strength, matched
        Where the family's ends do not enclose the value: the nearer end, and matched False. Block verifiers have no
        coin; at a jump their lower side is returned, matched False. Where the measure is not monotone, the first
        crossing found.
    """
    return Matcher(family, measure).at(value)
