"""What a decoder runs: an acceptance rule with a residual.

At one position the verifier turns target p and draft q into accepted mass q f, rejection probability
R = Σ q (1 − f), residual G, and the output law o = q f + R G of that step (THEORY 1). The same object is used by
the exact analyses, by the simulator and by the networks.

>>> from theory.rules import Lossless
>>> step = Verifier(Lossless()).step([0.5, 0.3, 0.2], [0.2, 0.3, 0.5], 0)
>>> [round(float(o), 12) for o in step.output]
[0.5, 0.3, 0.2]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from theory.arrays import Array, array_namespace, as_floats
from theory.residuals import Residual, optimal_residual, vanilla_residual
from theory.rules import Position, Relaxed, Rule
from theory.schedules import Normalisation, exponential_schedule


class Step(NamedTuple):
    """One position of a round. Shapes (..., V) except `rejection`, (...)."""

    accepted: Array
    """q f, the mass of each token drafted and accepted."""
    rejection: Array
    """R = Σ q (1 − f)."""
    residual: Array
    """G."""

    @property
    def output(self) -> Array:
        """o = q f + R G, the law of the token this step emits."""
        return self.accepted + self.rejection[..., None] * self.residual


@dataclass(frozen=True)
class Verifier:
    """Token-wise verification: accept the drafted x with f_i(x), else draw from the residual.

    Parameters
    ----------
    rule : Rule
        The acceptance rule.
    residual : function (p, q, f) → G
        `optimal_residual` by default.
    """

    rule: Rule
    residual: Residual = optimal_residual

    def __post_init__(self) -> None:
        if not hasattr(self.rule, "acceptance"):
            raise TypeError(f"rule must offer acceptance(p, q, position), got {self.rule!r}")
        if not callable(self.residual):
            raise TypeError(f"residual must be a function (p, q, f) -> G, got {self.residual!r}")

    @property
    def lossless(self) -> bool:
        """Whether the output law is exactly the target's, by the rule's claim and the residual used."""
        if not self.rule.lossless:
            return False
        return self.residual is optimal_residual or (self.residual is vanilla_residual and self.rule.at_least_lossless)

    def acceptance(self, p: Any, q: Any, position: Position) -> Array:
        """f, shape (..., V); see `Rule.acceptance`."""
        return self.rule.acceptance(p, q, position)

    def step(self, p: Any, q: Any, position: Position) -> Step:
        """Accepted mass, rejection probability and residual at one position (0-based)."""
        p, q = as_floats(p), as_floats(q)
        xp = array_namespace(p, q)
        f = self.rule.acceptance(p, q, position)
        return Step(q * f, xp.sum(q * (1 - f), axis=-1), self.residual(p, q, f))


def cool_sd(
    length: int,
    delta: float,
    nu: float = 0.7,
    normalise: Normalisation = "arithmetic",
    floor: float | None = None,
) -> Verifier:
    """COOL-SD (arXiv 2601.09212): f_i = min(1, ω_i p/q) with exponentially decaying ω and the optimal residual.

    f and G are the paper's; the normalisation of ω is **reconstructed** (see `exponential_schedule`, whose
    arguments these are). Reported settings: ν = 0.7, δ = 1.1 and 2.
    """
    return Verifier(Relaxed(exponential_schedule(length, delta, nu, normalise, floor)))
