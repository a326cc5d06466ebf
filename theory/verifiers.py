"""What a decoder runs: an acceptance rule with a residual.

At one position the verifier turns target p and draft q into accepted mass q f, rejection probability
R = Σ q (1 − f), residual G, and the output law o = q f + R G of that step. The same object is used by
the exact analyses, by the simulator and by the networks.

A verifier may carry a *weight* s along the round (block verification, `theory.blocks`): s = 1 at its start, and the
step answers with the next weight of every token. Token-wise verifiers carry none.

>>> from theory.rules import Lossless
>>> step = Verifier(Lossless()).step([0.5, 0.3, 0.2], [0.2, 0.3, 0.5], 0)
>>> [round(float(o), 12) for o in step.output]
[0.5, 0.3, 0.2]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from theory.arrays import Array, array_namespace, as_floats, device, first_index, positions_column
from theory.residuals import (
    DraftDependentResidual,
    Residual,
    kl_residual,
    normalised_positive_part,
    optimal_residual,
    vanilla_residual,
)
from theory.rules import Lossless, Position, Relaxed, Rule
from theory.schedules import Normalisation, exponential_schedule


class Step(NamedTuple):
    """One position of a round. Shapes (..., V) except `rejection`, (...)."""

    accepted: Array
    """q f, the mass of each token drafted and accepted."""
    rejection: Array
    """R = Σ q (1 − f)."""
    residual: Array
    """G."""
    weight: Array | None = None
    """s', the weight the round carries on after each token, (..., V); None for a token-wise verifier."""

    @property
    def output(self) -> Array:
        """o = q f + R G, the law of the token this step emits."""
        return self.accepted + self.rejection[..., None] * self.residual


class AnyVerifier(Protocol):
    """What every analysis asks of a verifier.

    Attributes
    ----------
    lossless : bool
        Whether the output law is claimed to be exactly the target's.
    stateful : bool
        Whether a weight is carried along the round. Prefixes cannot be merged then.
    """

    @property
    def lossless(self) -> bool: ...

    @property
    def stateful(self) -> bool: ...

    def step(self, p: Any, q: Any, position: Position, weight: Any = None) -> Step:
        """One position, given that the round reached it with this weight, shape (...); None is a weight of one."""
        ...


def check_verifier(verifier: Any) -> None:
    """Raise unless this is something an analysis can run: it has a step and says whether it carries a weight."""
    if not (hasattr(verifier, "step") and hasattr(verifier, "stateful")):
        raise TypeError(
            f"expected a verifier, got {verifier!r}; make one of a rule with Verifier(rule); a budgeted one goes to "
            "analyse_budgeted or filter_budget"
        )


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
    stateful: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not hasattr(self.rule, "acceptance"):
            raise TypeError(f"rule must offer acceptance(p, q, position), got {self.rule!r}")
        for claim in ("lossless", "at_least_lossless", "support_safe"):
            if not isinstance(getattr(self.rule, claim, None), bool):
                raise TypeError(
                    f"rule {type(self.rule).__name__} must claim {claim} = True or False (see theory.Rule); claims are "
                    "taken at their word"
                )
        if not callable(self.residual):
            raise TypeError(f"residual must be a function (p, q, f) -> G, got {self.residual!r}")

    @property
    def lossless(self) -> bool:
        """Whether the output law is exactly the target's, by the rule's claim and the residual used."""
        if not self.rule.lossless:
            return False
        exact = self.residual in (optimal_residual, kl_residual)
        return exact or (self.residual is vanilla_residual and self.rule.at_least_lossless)

    def acceptance(self, p: Any, q: Any, position: Position) -> Array:
        """f, shape (..., V); see `Rule.acceptance`. A rule from outside this package has its answer checked.

        Raises
        ------
        ValueError
            Naming rule, index and value where f is not in [0, 1], or its last axis is not the vocabulary.
        """
        f = self.rule.acceptance(p, q, position)
        if not type(self.rule).__module__.startswith("theory."):
            _check_acceptance(f, q, type(self.rule).__name__)
        return f

    def step(self, p: Any, q: Any, position: Position, weight: Any = None) -> Step:
        """Accepted mass, rejection probability and residual at one position (0-based); no weight is carried."""
        p, q = as_floats(p), as_floats(q)
        xp = array_namespace(p, q)
        f = self.acceptance(p, q, position)
        return Step(q * f, xp.sum(q * (1 - f), axis=-1), self.residual(p, q, f))


def _check_acceptance(f: Any, q: Any, name: str) -> None:
    q = as_floats(q)
    if tuple(getattr(f, "shape", ())[-1:]) != tuple(q.shape[-1:]):
        raise ValueError(f"{name}.acceptance must return (..., {q.shape[-1]}), got {tuple(getattr(f, 'shape', ()))}")
    xp = array_namespace(f)
    bad = ~((f >= 0) & (f <= 1))
    if bool(xp.any(bad)):
        index = first_index(bad)
        raise ValueError(f"{name}.acceptance gave {float(f[index])} at {index}; acceptance lies in [0, 1]")


def is_pointwise(verifier: AnyVerifier) -> bool:
    """Whether f(x) depends on p(x), q(x) and the position alone, by the rule's claim `pointwise`.

    Such a rule may be asked about single tokens: p and q of shape (..., 1).
    """
    return bool(getattr(getattr(verifier, "rule", None), "pointwise", False))


def acceptance_of(verifier: AnyVerifier, p: Any, q: Any, position: Position) -> Array:
    """f of a verifier without a weight, shape (..., V), whether or not it has a rule of its own.

    Where q = 0 a verifier that only knows its steps gives 0: such a token is never drafted.
    """
    if isinstance(verifier, Verifier):
        return verifier.acceptance(p, q, position)
    if verifier.stateful:
        raise ValueError(f"{verifier} carries a weight along the round; use block_tests")
    p, q = as_floats(p), as_floats(q)
    xp = array_namespace(p, q)
    drafted = q > 0
    accepted = verifier.step(p, q, position).accepted
    return xp.where(drafted, accepted / xp.where(drafted, q, xp.ones_like(q)), xp.zeros_like(accepted))


def multiplicative_factors(verifier: AnyVerifier, position: Position) -> np.ndarray[Any, Any] | None:
    """ω at each position, if q f = min(q, ω p) with ω finite and the residual is the optimal one; else None.

    That is lossless and multiplicative verification; everything about them follows from p, q and ω without f.
    """
    if not isinstance(verifier, Verifier) or verifier.residual is not optimal_residual:
        return None
    rule, where = verifier.rule, np.asarray(position)
    if isinstance(rule, Lossless):
        return np.ones(where.shape)
    if not isinstance(rule, Relaxed) or not np.isfinite(rule.omega).all():
        return None
    return np.asarray(rule.omega[positions_column(0 * where if rule.constant else where, len(rule.omega))])


def residual_after(
    verifier: AnyVerifier, p: Any, q: Any, f: Any | None, rejected: Any, position: Position
) -> Array:  # fmt: skip
    """Law of the replacement for given rejected tokens, shape (..., V).

    Parameters
    ----------
    p, q : array, shape (..., V)
    f : array, shape (..., V), or None
        Computed where it is needed if None.
    rejected : integer array, shape (...)
        The drafted tokens. Most residuals ignore them; a `DraftDependentResidual` has one law for each.
    position : int or integer array, shape (...)
    """
    if not isinstance(verifier, Verifier):
        return verifier.step(p, q, position).residual
    if isinstance(verifier.residual, DraftDependentResidual):
        return verifier.residual.given(p, q, rejected)
    if f is not None:
        return verifier.residual(p, q, f)
    omega = multiplicative_factors(verifier, position)
    if omega is None:
        return verifier.residual(p, q, verifier.acceptance(p, q, position))
    p, q = as_floats(p), as_floats(q)
    xp = array_namespace(p, q)
    omega = np.minimum(omega, float(xp.finfo(p.dtype).max))[..., None]
    return normalised_positive_part(p - xp.minimum(q, xp.asarray(omega, dtype=p.dtype, device=device(p)) * p), p)


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
