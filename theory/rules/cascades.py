"""Speculative cascades: verify against a mixture π of draft and target, chosen by a deferral rule.

Narasimhan et al. 2405.19261 (ICLR 2025), at second hand. Lossless decoding *of π* by the draft: f = min(1, π/q),
residual Norm[π−q]_+ (`theory.residuals.SurrogateResidual`), so the output law is exactly π [proved by the lossless
identity]; its TV to the target is TV(π, p). With D the set of tokens deferred to the target,

    π = q                           kept as a whole      (variant "opt": defer iff max q < max p − α·TV(p, q))
    π = p                           deferred as a whole
    π(x) = q(x)·1[x ∉ D] + q(D) p(x)   token-specific variants

with D = {q(x) < max p − α} ("token_1"), {p(x) < max p − α} ("token_2"), {p(x) < (1−α) max p} ("token_3"). The
token-specific sets are **reconstructed** (from memory of the paper).

>>> SpeculativeCascade(0.2).surrogate([0.9, 0.1], [0.6, 0.4]).tolist()  # .6 < .9 − .06: deferred
[0.9, 0.1]
>>> SpeculativeCascade(0.2, "token_3").surrogate([0.9, 0.1], [0.6, 0.4]).round(3).tolist()
[0.96, 0.04]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from theory.arrays import Array, device, real_number
from theory.distances import total_variation
from theory.rules.base import Position, accept_up_to, pair

Deferral = Literal["opt", "token_1", "token_2", "token_3"]


@dataclass(frozen=True)
class SpeculativeCascade:
    """f = min(1, π/q), π = q where the draft is kept and p where the token is deferred to the target.

    Parameters
    ----------
    alpha : float
        Price of deferring. For "opt", −1 always defers unless max p = max q + TV, and 1 never defers.
    variant : {"opt", "token_1", "token_2", "token_3"}
        Deferral rule, see the module's head.
    """

    alpha: float
    variant: Deferral = "opt"
    source: ClassVar[str] = "Narasimhan et al. 2405.19261"
    reconstructed: ClassVar[bool] = True
    lossless: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "alpha", real_number(self.alpha, "alpha"))
        if self.variant not in get_args(Deferral):
            raise ValueError(f"variant must be one of {', '.join(get_args(Deferral))}, got {self.variant!r}")

    @property
    def at_least_lossless(self) -> bool:
        return self.variant == "opt"

    @property
    def support_safe(self) -> bool:
        return self.variant == "token_3" and self.alpha < 1

    def deferred(self, p: Any, q: Any) -> Array:
        """Boolean (..., V): tokens (or, for "opt", whole laws) left to the target."""
        xp, p, q = pair(p, q)
        top = xp.max(p, axis=-1, keepdims=True)
        if self.variant == "opt":
            gap = xp.asarray(total_variation(p, q), dtype=p.dtype, device=device(p))[..., None]
            whole = xp.max(q, axis=-1, keepdims=True) < top - self.alpha * gap
            return xp.broadcast_to(whole, (p * q).shape)
        if self.variant == "token_1":
            return q < top - self.alpha
        limit = top - self.alpha if self.variant == "token_2" else (1 - self.alpha) * top
        return xp.broadcast_to(p < limit, (p * q).shape)

    def surrogate(self, p: Any, q: Any) -> Array:
        """π, the law verified against and emitted; shapes (..., V)."""
        xp, p, q = pair(p, q)
        deferred = self.deferred(p, q)
        if self.variant == "opt":
            return xp.where(deferred, p, q)
        kept = xp.where(deferred, 0.0, q)
        return kept + xp.sum(xp.where(deferred, q, 0.0), axis=-1, keepdims=True) * p

    def acceptance(self, p: Any, q: Any, position: Position) -> Array:
        _, p, q = pair(p, q)
        return accept_up_to(self.surrogate(p, q), q)
