"""Rules that compare p(x) with q(x): lossless, multiplicative, additive, mixtures, Cactus.

f = min(1, m(x)/q(x)) accepts the mass min(q, m): the rules of this file differ in m. Largest accepted mass under
the cap q f ≤ ω p is m = ω p [proved].

>>> Cactus(0.5).acceptance([0.5, 0.5, 0.0], [0.1, 0.1, 0.8], 0).tolist()
[1.0, 1.0, 0.0]
>>> round(float(Cactus(0.5).acceptance([0.1, 0.9], [0.8, 0.2], 0)[0]), 12)  # gamma = .1 + sqrt(.09) = .4
0.5
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from theory.arrays import Array, array_namespace, device, positions_column, real_number
from theory.distances import entropy, total_variation
from theory.rules.base import Position, Rule, accept_up_to, pair
from theory.schedules import Schedule, check_schedule


@dataclass(frozen=True)
class Lossless:
    """f = min(1, p/q). Leviathan et al. 2211.17192, Chen et al. 2302.01318."""

    source: ClassVar[str] = "Leviathan et al. 2211.17192; Chen et al. 2302.01318"
    reconstructed: ClassVar[bool] = False
    pointwise: ClassVar[bool] = True
    lossless: ClassVar[bool] = True
    at_least_lossless: ClassVar[bool] = True
    support_safe: ClassVar[bool] = True

    def acceptance(self, p: Any, q: Any, position: Position) -> Array:
        _, p, q = pair(p, q)
        return accept_up_to(p, q)


@dataclass(frozen=True, eq=False)
class Relaxed:
    """f_i = min(1, ω_i p/q): the largest acceptance under the likelihood-ratio cap q f ≤ ω p.

    Parameters
    ----------
    omega : float or sequence of L floats
        Relaxation factors ω_i ≥ 0; a number holds for every position; ∞ accepts outright, tokens of target
        probability zero included.
    """

    omega: Schedule
    constant: bool
    source: ClassVar[str] = "COOL-SD 2601.09212; lenience of Leviathan et al. 2211.17192"
    reconstructed: ClassVar[bool] = False
    pointwise: ClassVar[bool] = True

    def __init__(self, omega: Any) -> None:
        object.__setattr__(self, "constant", np.ndim(omega) == 0)
        object.__setattr__(self, "omega", check_schedule(omega))

    @property
    def lossless(self) -> bool:
        return bool(np.all(self.omega <= 1))

    @property
    def at_least_lossless(self) -> bool:
        return bool(np.all(self.omega >= 1))

    @property
    def support_safe(self) -> bool:
        return bool(np.all(np.isfinite(self.omega)))

    def acceptance(self, p: Any, q: Any, position: Position) -> Array:
        xp, p, q = pair(p, q)
        if self.constant:
            position = np.zeros_like(np.asarray(position))
        omega = self.omega[positions_column(position, len(self.omega))][..., None]
        if omega.size == 1 and math.isinf(float(omega.reshape(-1)[0])):
            return xp.ones_like(p * q)
        outright = np.isinf(omega)
        # A factor beyond float32 would be infinite there, and ∞·0 is no number.
        largest = float(xp.finfo(p.dtype).max)
        factor = xp.asarray(np.where(outright, 1.0, np.minimum(omega, largest)), dtype=p.dtype, device=device(p))
        f = accept_up_to(factor * p, q)
        if outright.any():
            f = xp.where(xp.asarray(outright, device=device(p)), xp.ones_like(f), f)
        return f


@dataclass(frozen=True)
class AcceptAll:
    """f = 1: the draft's own law for L tokens. The baseline of no verification."""

    source: ClassVar[str] = "baseline"
    reconstructed: ClassVar[bool] = False
    pointwise: ClassVar[bool] = True
    lossless: ClassVar[bool] = False
    at_least_lossless: ClassVar[bool] = True
    support_safe: ClassVar[bool] = False

    def acceptance(self, p: Any, q: Any, position: Position) -> Array:
        xp, p, q = pair(p, q)
        return xp.ones_like(p * q)


@dataclass(frozen=True)
class OutrightFirst:
    """f_i = m_i + (1 − m_i) min(1, p/q), m_i = min(1, max(0, F − i)), i = 0, 1, …: the first F positions outright.

    Most accepted length for a given bound, with the optimal residual, where the value of going on depends on the
    position alone, as for independent tokens: the optimal rule accepts outright where that value is high
    (`theory.optimal`), and it falls along a block. A value by prefix would need the laws behind every token that was
    not drafted; this is what is left of it without them.

    Parameters
    ----------
    free : float
        F ≥ 0; 0 is lossless, L accepts every draft. A fraction accepts the position in between outright with that
        probability.
    """

    free: float
    source: ClassVar[str] = "this project"
    reconstructed: ClassVar[bool] = False
    pointwise: ClassVar[bool] = True
    at_least_lossless: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "free", real_number(self.free, "free", least=0.0))

    @property
    def lossless(self) -> bool:
        return self.free == 0

    @property
    def support_safe(self) -> bool:
        return self.free == 0

    def acceptance(self, p: Any, q: Any, position: Position) -> Array:
        xp, p, q = pair(p, q)
        share = np.clip(self.free - np.asarray(position, dtype=np.float64), 0.0, 1.0)[..., None]
        outright = xp.asarray(share, dtype=p.dtype, device=device(p))
        return outright + (1 - outright) * accept_up_to(p, q)


@dataclass(frozen=True)
class FixedAcceptance:
    """f = rate for every token: no rule anybody should decode with, but one whose cost and survival are known.

    Rounds survive i positions with probability rate^i whatever the laws, so that speed can be measured on networks
    with random weights.
    """

    rate: float
    source: ClassVar[str] = "this project; for timing"
    reconstructed: ClassVar[bool] = False
    pointwise: ClassVar[bool] = True
    lossless: ClassVar[bool] = False
    at_least_lossless: ClassVar[bool] = False
    support_safe: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", real_number(self.rate, "acceptance rate", least=0.0, most=1.0))

    def acceptance(self, p: Any, q: Any, position: Position) -> Array:
        xp, p, q = pair(p, q)
        return self.rate * xp.ones_like(p * q)


@dataclass(frozen=True)
class Ensemble:
    """f = min(1, π/q), π = (1−η) p + η q; with its published residual Norm[p−q]_+ the output law is exactly π.

    DIVERSED 2604.07622.
    """

    eta: float
    source: ClassVar[str] = "DIVERSED 2604.07622"
    reconstructed: ClassVar[bool] = False
    pointwise: ClassVar[bool] = True
    at_least_lossless: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "eta", real_number(self.eta, "eta", least=0.0, most=1.0))

    @property
    def lossless(self) -> bool:
        return self.eta == 0

    @property
    def support_safe(self) -> bool:
        return self.eta == 0

    def acceptance(self, p: Any, q: Any, position: Position) -> Array:
        _, p, q = pair(p, q)
        return accept_up_to(self.surrogate(p, q), q)

    def surrogate(self, p: Any, q: Any) -> Array:
        """π, the law verified against and emitted; shapes (..., V)."""
        _, p, q = pair(p, q)
        return (1 - self.eta) * p + self.eta * q


@dataclass(frozen=True)
class EntropyRelaxed:
    """f = min(1, p/q + ε), ε = λ·H(p)·1[TV(p, q) < δ]: an additive bonus where the target is uncertain.

    CSD 2606.27829 and its public code; λ = .5, δ = .65 (7B), .35 (1B), .8 (fastest). From H ≥ 1/λ nats on,
    with TV < δ, it accepts everything, tokens of target probability zero included.
    """

    lam: float = 0.5
    delta: float = 0.65
    source: ClassVar[str] = "CSD 2606.27829"
    reconstructed: ClassVar[bool] = False
    lossless: ClassVar[bool] = False
    at_least_lossless: ClassVar[bool] = True
    support_safe: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "lam", real_number(self.lam, "lam", least=0.0))
        object.__setattr__(self, "delta", real_number(self.delta, "delta", least=0.0))

    def acceptance(self, p: Any, q: Any, position: Position) -> Array:
        xp, p, q = pair(p, q)
        slack = 16 * xp.finfo(p.dtype).eps  # a TV equal to δ is not below it, however its sum was rounded
        close = xp.asarray(total_variation(p, q) < self.delta - slack, device=device(p))[..., None]
        h = xp.asarray(entropy(p), dtype=p.dtype, device=device(p))[..., None]
        bonus = xp.where(close, self.lam * h, 0 * h)
        return xp.clip(accept_up_to(p, q) + bonus, None, 1.0)


def raised_mass(p: Array, delta: float) -> Array:
    """Cactus's γ = min(1, p + √(2 δ p (1 − p))), shape (..., V)."""
    xp = array_namespace(p)
    return xp.clip(p + xp.sqrt(2 * delta * p * xp.clip(1 - p, 0.0, None)), None, 1.0)


@dataclass(frozen=True)
class Cactus:
    """f = min(1, γ/q), γ = min(1, p + √(2 δ p (1 − p))): what a KL budget δ lets one token gain.

    Cactus 2604.04987 and its public code; δ = 1 and .75. Its published residual depends on the rejected token:
    `theory.residuals.CactusResidual`.
    """

    delta: float = 1.0
    source: ClassVar[str] = "Cactus 2604.04987"
    reconstructed: ClassVar[bool] = False
    pointwise: ClassVar[bool] = True
    at_least_lossless: ClassVar[bool] = True
    support_safe: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "delta", real_number(self.delta, "delta", least=0.0))

    @property
    def lossless(self) -> bool:
        return self.delta == 0

    def acceptance(self, p: Any, q: Any, position: Position) -> Array:
        _, p, q = pair(p, q)
        return accept_up_to(raised_mass(p, self.delta), q)


@dataclass(frozen=True)
class AtLeastLossless:
    """f ∨ min(1, p/q): repairs a rule that throws away acceptance lossless decoding would have had for nothing.

    With the optimal residual the waste Σ (min(p, q) − min(p, q f)) of the repaired rule is zero, while
    every [q f − p]_+ stays as it was: acceptance rises and one-position TV does not change [proved].
    """

    rule: Rule
    source: ClassVar[str] = "this project (no waste)"
    reconstructed: ClassVar[bool] = False
    at_least_lossless: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not hasattr(self.rule, "acceptance"):
            raise TypeError(f"rule must offer acceptance(p, q, position), got {self.rule!r}")

    @property
    def pointwise(self) -> bool:
        """Whether the repaired rule is."""
        return bool(getattr(self.rule, "pointwise", False))

    @property
    def lossless(self) -> bool:
        return self.rule.lossless

    @property
    def support_safe(self) -> bool:
        return self.rule.support_safe

    def acceptance(self, p: Any, q: Any, position: Position) -> Array:
        xp, p, q = pair(p, q)
        return xp.maximum(self.rule.acceptance(p, q, position), accept_up_to(p, q))
