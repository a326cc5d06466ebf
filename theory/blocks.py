"""Block verification: the whole drafted block is verified together, lossless or relaxed.

A round carries a weight s, s = 1 at its start, along the drafted block x_1…x_L. With s' the next weight of each token
and Q_i the draft mass of a prefix (Sun et al. 2024)

* M_i = s_i − Σ_x q s',  h_i = M_i / (M_i + 1 − s_i)  (0/0 = 1),  h_L = s_L;
* every index i = 0…L is tested with its own uniform, u_i < h_i; τ is the **last** success (h_0 = 1: there is one);
* x_1…x_τ stay and the next token comes from the residual at τ, from p if τ = L.

Then P(draft prefix is x_{1:i} and τ ≥ i) = A_i = Q_i s_i [proved], so a block verifier is a token-wise verifier
that remembers s: given τ ≥ i the token x goes on with q s'(x)/s and the round ends at i with M_i/s. Every analysis
uses it so.

========  =======================================  ======================  ==================================
          next weight s'(x)                        residual                source
========  =======================================  ======================  ==================================
block     min(1, s p/q)                            Norm[s p − q]_+         Sun et al. 2024 (lossless)
capped    min(1, w s p/q), w the largest value     Norm[s p − q s']_+      this project
          ≤ ω_i with Σ q s' ≤ s
lifted    min(1, s o/q), o = q f + R G of any      Norm[s o − q s']        this project
          token-wise verifier
========  =======================================  ======================  ==================================

With ω ≤ 1 the cap never binds, so block is capped with ω = 1. Output/target never exceeds Π max(1, ω_i) [proved].

p = (⅓, ⅔), q = (⅔, ⅓), L = 2: block verification accepts 11/9 drafts, token-wise verification 10/9, both losslessly.

>>> from theory.chains import IIDChain
>>> from theory.rounds import analyse_round
>>> a = analyse_round(IIDChain([1 / 3, 2 / 3]), IIDChain([2 / 3, 1 / 3]), block(2), 2)
>>> round(9 * a.expected_accepted, 12), round(a.total_variation, 12)
(11.0, 0.0)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from theory.arrays import Array, array_namespace, as_floats, device, positions_column, whole_number
from theory.numbers import Bound
from theory.residuals import EMPTY_RESIDUAL, normalised_positive_part, optimal_residual
from theory.rules import Position, Relaxed, accept_up_to
from theory.schedules import Schedule, check_schedule
from theory.verifiers import AnyVerifier, Step, Verifier


def _weights(weight: Any, like: Array) -> tuple[Array, Array]:
    """s as (..., 1), and s with one in place of a weight too small to divide by."""
    xp = array_namespace(like)
    if weight is None:
        one = xp.ones((1,), dtype=like.dtype, device=device(like))
        return one, one
    s = xp.asarray(weight, dtype=like.dtype, device=device(like))[..., None]
    return s, _divisor(s)


def _divisor(s: Array) -> Array:
    xp = array_namespace(s)
    return xp.where(s > xp.finfo(s.dtype).smallest_normal, s, xp.ones_like(s))


def _step(verifier: Any, p: Any, q: Any, position: Position, weight: Any) -> Step:
    """The step of a block verifier: s' = min(1, mass/q) and residual Norm[s·law − q s']_+, all divided by s."""
    p, q = as_floats(p), as_floats(q)
    xp = array_namespace(p, q)
    s, divisor = _weights(weight, p)
    mass, law = verifier.mass(p, q, position, s)
    following = accept_up_to(mass, q)
    accepted = xp.where(divisor == s, q * following / divisor, xp.zeros_like(q * following))
    rejection = xp.clip(1 - xp.sum(accepted, axis=-1), 0.0, None)
    return Step(accepted, rejection, normalised_positive_part(law - accepted, law), following)


def largest_factor(p: Array, q: Array, weight: Array) -> Array:
    """The largest w with Σ min(q, w s p) ≤ s, shape (..., 1); ∞ if every w will do. p, q (..., V); s (..., 1) > 0.

    Σ min(q/s, w p) is concave and piecewise linear in w, hence the least of its pieces c_k + w r_k, where the k tokens
    of least q/p are saturated; it stays below one until w passes the largest (1 − c_k)/r_k.
    """
    xp = array_namespace(p, q)
    p, full = (xp.broadcast_to(a, (p * q * weight).shape) for a in (p, q / weight))
    one = xp.ones_like(p)
    ratio = xp.where(p > 0, full / xp.where(p > 0, p, one), xp.inf * one)
    order = xp.argsort(ratio, axis=-1)
    p, full = (xp.take_along_axis(a, order, axis=-1) for a in (p, full))
    saturated = xp.cumulative_sum(full, axis=-1) - full
    rest = xp.flip(xp.cumulative_sum(xp.flip(p, axis=-1), axis=-1), axis=-1)
    pieces = xp.where(rest > 0, (1 - saturated) / xp.where(rest > 0, rest, one), -xp.inf * one)
    slack = EMPTY_RESIDUAL * xp.finfo(p.dtype).eps
    everything = xp.sum(xp.where(p > 0, full, 0 * one), axis=-1, keepdims=True) <= 1 + slack
    largest = xp.max(pieces, axis=-1, keepdims=True)
    return xp.where(everything, xp.inf * xp.ones_like(largest), largest)


@dataclass(frozen=True, eq=False)
class CappedBlock:
    """Block verification with the capped multiplicative weight; see `capped_block`."""

    omega: Schedule
    constant: bool
    stateful: ClassVar[bool] = True
    source: ClassVar[str] = "this project (relaxed block verification); Sun et al. 2024 where omega = 1"
    reconstructed: ClassVar[bool] = False

    def __init__(self, omega: Any) -> None:
        object.__setattr__(self, "constant", np.ndim(omega) == 0)
        object.__setattr__(self, "omega", check_schedule(omega))

    @property
    def lossless(self) -> bool:
        return bool(np.all(self.omega <= 1))

    def step(self, p: Any, q: Any, position: Position, weight: Any = None) -> Step:
        """One position reached with weight s, shape (...); see `Step` and `AnyVerifier`."""
        return _step(self, p, q, position, weight)

    def mass(self, p: Array, q: Array, position: Position, s: Array) -> tuple[Array, Array]:
        """w s p and p, shape (..., V), for a weight s of shape (..., 1)."""
        xp = array_namespace(p, q)
        if self.constant:
            position = np.zeros_like(np.asarray(position))
        omega = self.omega[positions_column(position, len(self.omega))][..., None]
        # The largest number stands for ∞, in float32 for all that overflows there: s may be zero, and ∞·0 is no number.
        finite = np.minimum(omega, float(xp.finfo(p.dtype).max))
        factor = xp.asarray(finite, dtype=p.dtype, device=device(p))
        if bool(np.any(omega > 1)):
            factor = xp.minimum(factor, largest_factor(p, q, _divisor(s)))
        # factor·s is finite, since s ≤ 1: the product cannot overflow, and p = 0 stays 0 in the limit ω = ∞.
        return (factor * s) * p, p


@dataclass(frozen=True)
class LiftedBlock:
    """Block verification against the output law of a token-wise verifier; see `lifted_block`."""

    verifier: AnyVerifier
    stateful: ClassVar[bool] = True
    source: ClassVar[str] = "this project (relaxed block verification)"
    reconstructed: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not hasattr(self.verifier, "step") or self.verifier.stateful:
            raise TypeError(f"only a token-wise verifier can be lifted, got {self.verifier!r}")

    @property
    def lossless(self) -> bool:
        return self.verifier.lossless

    def step(self, p: Any, q: Any, position: Position, weight: Any = None) -> Step:
        """One position reached with weight s, shape (...); see `Step` and `AnyVerifier`."""
        return _step(self, p, q, position, weight)

    def mass(self, p: Array, q: Array, position: Position, s: Array) -> tuple[Array, Array]:
        """s o and o, shape (..., V), for a weight s of shape (..., 1)."""
        output = self.verifier.step(p, q, position).output
        return s * output, output


def block(length: int) -> CappedBlock:
    """Lossless block verification of `length` drafted tokens (Sun et al. 2024). ValueError for length < 1."""
    return CappedBlock(np.ones(whole_number(length, "length", 1)))


def capped_block(omega: Any) -> CappedBlock:
    """Block verification with s' = min(1, w s p/q), w the largest value ≤ ω_i that keeps Σ q s' ≤ s.

    Parameters
    ----------
    omega : float or sequence of L floats
        Relaxation factors ω_i ≥ 0; a number holds for every position. ∞ is the limit of large ω: unlike `Relaxed`, a
        token of target probability zero stays refused.

    Raises
    ------
    ValueError
        Naming the first factor that is negative or not a number.

    Notes
    -----
    Source: this project; the realisable set of the module's head holds it. Oracle: plain recursion in rational
    arithmetic.
    """
    return CappedBlock(omega)


def lifted_block(verifier: AnyVerifier) -> LiftedBlock:
    """Block verification against the output law o = q f + R G of any token-wise verifier.

    It needs no tuning, emits what the verifier itself would emit at every prefix, and accepts more. A lossless verifier
    gives Sun et al. TypeError for a verifier that is not token-wise. Source: this project, see the module.
    """
    return LiftedBlock(verifier)


def ratio_certificate(verifier: AnyVerifier, length: int) -> Bound:
    """A proved bound of the round's largest output/target ratio: Π_{i≤L} max(1, ω_i), or ∞ where none is known.

    For `CappedBlock`; for `Verifier(Relaxed(ω))` with the optimal residual and its lifting; one for lossless verifiers.
    """
    length = whole_number(length, "length", 1)
    if isinstance(verifier, LiftedBlock):
        return ratio_certificate(verifier.verifier, length)
    if verifier.lossless:
        return Bound(1.0)
    if isinstance(verifier, CappedBlock):
        rule: Any = verifier
    elif (
        isinstance(verifier, Verifier) and isinstance(verifier.rule, Relaxed) and verifier.residual is optimal_residual
    ):
        rule = verifier.rule
    else:
        return Bound(math.inf)
    positions = np.zeros(length, int) if rule.constant else np.arange(length)
    return Bound(np.prod(np.maximum(rule.omega[positions_column(positions, len(rule.omega))], 1.0)))
