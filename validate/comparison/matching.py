"""Strengths by size: how bold a method has to be for the tokens per call that a size stands for.

Tokens per call are predicted by renewal along the target's images, τ(s) = T / Σ_t u_t, and rise with the strength s. At
size t the strength solves τ(s) = τ₀ + t (τ₁ − τ₀). Every strength tried for one size narrows the search for the next.
"""

from __future__ import annotations

from itertools import pairwise

import theory
from theory import AnyVerifier, Verifier
from validate.comparison.methods import Method
from validate.prediction import predicted_tokens_per_call
from validate.scoring import AnyScores

__all__ = ["Matcher", "OutOfReach"]

LARGEST_STRENGTH = 12.0
MATCHED = 2e-4
"""Relative difference of tokens per call that counts as equal; KL moves by a few times as much at the least size."""
STRENGTH_TOLERANCE = 3e-4
"""Absolute, of a strength near one, where tokens per call jump and cannot be met."""


class OutOfReach(ValueError):
    """A method that cannot become as fast as asked."""


class Matcher:
    """Strengths by size, found on some of the target's own images.

    Parameters
    ----------
    scores : AnyScores
        Of images drawn from the target.
    length : int
        L.
    """

    def __init__(self, scores: AnyScores, length: int) -> None:
        self.scores, self.length = scores, length
        self.ends = self._ends(scores)
        self._tried: dict[Method, dict[float, float]] = {}

    def _ends(self, scores: AnyScores) -> list[float]:
        rules = (theory.Lossless(), theory.AcceptAll())
        return [predicted_tokens_per_call(scores, Verifier(rule), self.length) for rule in rules]

    def strength(self, method: Method, size: float) -> float:
        """The strength at a size; 0 if the method is already as fast losslessly.

        Raises
        ------
        OutOfReach
            If no strength makes the method as fast.
        """
        from scipy.optimize import brentq

        scores, ends = self.scores, self.ends
        if method.matching is not None and method.matching < len(scores):
            scores = scores.first(method.matching)
            ends = self._ends(scores)
        value = ends[0] + size * (ends[1] - ends[0])
        tried = self._tried.setdefault(method, {})

        def off(strength: float) -> float:
            if strength not in tried:
                verifier: AnyVerifier = method.accepting(strength)
                tried[strength] = predicted_tokens_per_call(scores, verifier, self.length)
            difference = tried[strength] - value
            return 0.0 if abs(difference) <= MATCHED * value else difference

        if off(0.0) >= 0:
            return 0.0
        high = 0.5
        while off(high) < 0:
            if high >= LARGEST_STRENGTH:
                raise OutOfReach(f"reaches {tried[high]:.3f} of {value:.3f} tokens per call")
            high *= 2
        known = sorted(tried)
        exact = [s for s in known if off(s) == 0]
        if exact:
            return exact[0]
        low, high = next((a, b) for a, b in pairwise(known) if off(a) < 0 <= off(b))
        return float(brentq(off, low, high, xtol=STRENGTH_TOLERANCE))
