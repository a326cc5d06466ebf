"""The largest acceptance under a KL budget ("mentored" decoding), and the residual every divergence agrees on.

Let a = q f be accepted mass and R = 1 − Σ a. Over output laws o ≥ a, Σ o = 1, the minimiser is

    o = max(a, c p),   c ≤ 1 set by Σ max(a, c p) = 1,   that is   R G = [c p − a]_+,

for **every** f-divergence D_φ(o‖p) = Σ p φ(o/p) at once: KL both ways, TV, Hellinger, χ² [proved]. For any other
o' ≥ a, convexity gives D(o') − D(o) ≥ Σ φ'(o/p)(o' − o); where o = c p the slope is φ'(c), elsewhere o = a ≤ o' and
the slope is at least φ'(c), so the sum is at least φ'(c) Σ (o' − o) = 0. As R G ≤ [p − a]_+ it also reaches
COOL-SD's least TV, and its o/p is never below c, the best floor there is. For f ≥ lossless, [c p − q f]_+ =
[c p − q]_+: the form [p/b − q]_+, b = 1/c, of the published note.

Maximising Σ min(q, o) subject to KL(o‖p) ≤ budget (or KL(p‖o)) gives, by the same slopes, o = min(max(q, c p), ω p):
the multiplicative rule with ω set at each prefix by the budget, and the residual above [proved].

Source: public note of V. Tran-Thien on lossy speculative sampling; f and the budget's direction **reconstructed**.

>>> rule = Mentored(0.05)
>>> rule.acceptance([0.5, 0.3, 0.2], [0.2, 0.3, 0.5], 0).round(4).tolist()
[1.0, 1.0, 0.6502]
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from theory.arrays import Array, array_namespace, device, real_number
from theory.distances import kl_divergence
from theory.rules.base import Position, accept_up_to, pair, same_shape

STEPS = 128
"""Most steps of the root search; steps at least halve or bisect, and a float64 logarithm has 53 bits."""


def ratio_order(mass: Array, p: Array) -> Array:
    """Indices that sort mass/p upwards, tokens with p = 0 last; shape (..., V)."""
    xp = array_namespace(mass, p)
    one = xp.ones_like(p)
    return xp.argsort(xp.where(p > 0, mass / xp.where(p > 0, p, one), xp.inf * one), axis=-1, stable=True)


def sorted_floor(mass: Array, p: Array, rejection: Array) -> Array:
    """c of Σ max(mass, c p) = Σ mass + rejection, for arrays already in `ratio_order`; shape (..., 1).

    Σ max(a, c p) is the largest over sets S of c p(S) + a(Sᶜ), so c is the least of (R + a(S))/p(S), and the least
    is reached by one of the V sets of smallest ratio.
    """
    xp = array_namespace(mass, p)
    below = xp.cumulative_sum(mass, axis=-1)
    weight = xp.cumulative_sum(p, axis=-1)
    return xp.min((rejection[..., None] + below) / weight, axis=-1, keepdims=True)


@dataclass(frozen=True)
class Mentored:
    """f = min(1, ω p/q), ω ≥ 1 the largest with D(o‖p) ≤ budget at this prefix, o the output under `kl_residual`.

    No rule with that divergence per step accepts more [proved, module head]. Public note of V. Tran-Thien.

    Parameters
    ----------
    budget : float
        In nats per step, ≥ 0; 0 is lossless.
    direction : {"output_target", "target_output"}
        KL(o‖p) or KL(p‖o). The note's choice was not readable; the default is **reconstructed**.
    """

    budget: float
    direction: Literal["output_target", "target_output"] = "output_target"
    source: ClassVar[str] = "public note of V. Tran-Thien (mentored decoding)"
    reconstructed: ClassVar[bool] = True
    at_least_lossless: ClassVar[bool] = True
    support_safe: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "budget", real_number(self.budget, "budget", least=0.0))
        if self.direction not in ("output_target", "target_output"):
            raise ValueError(f"direction must be output_target or target_output, got {self.direction!r}")

    @property
    def lossless(self) -> bool:
        return self.budget == 0

    def relaxation(self, p: Any, q: Any) -> Array:
        """ω, shape (..., 1)."""
        xp, p, q = pair(p, q)
        p, q = same_shape(p, q)
        order = ratio_order(q, p)
        p, q = (xp.take_along_axis(a, order, axis=-1) for a in (p, q))
        one = xp.ones_like(p)
        ratio = xp.where(p > 0, q / xp.where(p > 0, p, one), one)
        most = xp.clip(xp.max(ratio, axis=-1, keepdims=True), 1.0, float(xp.finfo(p.dtype).max))

        def spent(omega: Array) -> tuple[Array, Array]:
            """Divergence, and its derivative in log ω; shapes (..., 1)."""
            kept = xp.minimum(q, omega * p)
            floor = sorted_floor(kept, p, xp.sum(q - kept, axis=-1))
            o = xp.maximum(kept, floor * p)
            capped = xp.sum(xp.where(q > omega * p, p, 0 * p), axis=-1, keepdims=True)
            forward = self.direction == "output_target"
            cost = xp.asarray(kl_divergence(o, p) if forward else kl_divergence(p, o), dtype=p.dtype, device=device(p))
            spread = omega / xp.where(floor > 0, floor, omega)
            return cost[..., None], capped * (omega * xp.log(spread) if forward else spread - 1)

        if self.budget == 0:
            return xp.ones_like(most)
        affordable = spent(most)[0] <= self.budget
        return xp.where(affordable, most, xp.exp(self._root(spent, xp.log(most), affordable)))

    def _root(self, spent: Callable[[Array], tuple[Array, Array]], high: Array, done: Array) -> Array:
        """log ω in [0, high] where the budget is just spent: Newton steps on √D within a bracket; `done` rows are left.

        D starts like a square at ω = 1, so that its square root is nearly straight. A step that leaves the bracket, or
        is longer than half of the one before, gives way to bisection. D itself is known to a rounding of one.
        """
        xp = array_namespace(high)
        root, rounding = math.sqrt(self.budget), 2 * float(xp.finfo(high.dtype).eps)
        low, at, moved = 0 * high, high / 2, high
        for _ in range(STEPS):
            cost, slope = spent(xp.exp(at))
            fit = cost <= self.budget
            low, high = xp.where(fit, at, low), xp.where(fit, high, at)
            done = done | (xp.abs(cost - self.budget) <= rounding) | (high - low <= rounding)
            if bool(xp.all(done)):
                break
            size, rises = xp.sqrt(cost), slope > 0
            step = 2 * size * (root - size) / xp.where(rises, slope, xp.ones_like(slope))
            newton = rises & (at + step > low) & (at + step < high) & (xp.abs(step) <= xp.abs(moved) / 2)
            moved = xp.where(newton, step, (low + high) / 2 - at)
            at = xp.where(done, at, at + moved)
        return at

    def acceptance(self, p: Any, q: Any, position: Position) -> Array:
        _, p, q = pair(p, q)
        return accept_up_to(self.relaxation(p, q) * p, q)
