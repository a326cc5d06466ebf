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
from typing import Any, ClassVar, NamedTuple

import numpy as np

from theory.arrays import Array, array_namespace, as_floats, device, first_index, positions_column, whole_number
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
    return s, xp.where(s > xp.finfo(like.dtype).smallest_normal, s, xp.ones_like(s))


def _step(mass: Array, law: Array, q: Array, s: Array, divisor: Array) -> Step:
    """The step with s' = min(1, mass/q) and residual Norm[s·law − q s']_+, all divided by s."""
    xp = array_namespace(law, q)
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
        p, q = as_floats(p), as_floats(q)
        xp = array_namespace(p, q)
        s, divisor = _weights(weight, p)
        if self.constant:
            position = np.zeros_like(np.asarray(position))
        omega = self.omega[positions_column(position, len(self.omega))][..., None]
        # The largest number stands for ∞, in float32 for all that overflows there: s may be zero, and ∞·0 is no number.
        finite = np.minimum(omega, float(xp.finfo(p.dtype).max))
        factor = xp.asarray(finite, dtype=p.dtype, device=device(p))
        if bool(np.any(omega > 1)):
            factor = xp.minimum(factor, largest_factor(p, q, divisor))
        # s p first, at most one: the product with the factor cannot overflow, and p = 0 stays 0 in the limit ω = ∞.
        mass = factor * (s * p)
        return _step(mass, p, q, s, divisor)


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
        p, q = as_floats(p), as_floats(q)
        s, divisor = _weights(weight, p)
        output = self.verifier.step(p, q, position).output
        return _step(s * output, output, q, s, divisor)


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


class BlockTests(NamedTuple):
    """What a decoder tests along one drafted block; see `block_tests`."""

    weights: Array
    """s_0…s_L, shape (..., L+1)."""
    success: Array
    """h_0…h_L, the probability that the test of each index succeeds, shape (..., L+1); 0 beyond a row's own block."""


def _drafted_tokens(tokens: Array, lengths: np.ndarray[Any, Any], shape: tuple[int, ...]) -> Array:
    """The drafted tokens, checked; what stands behind a row's own length (a placeholder, −1) becomes token 0."""
    xp = array_namespace(tokens)
    if not xp.isdtype(tokens.dtype, "integral"):
        raise ValueError(f"tokens must be integers, got dtype {tokens.dtype}")
    *batch, length, size = shape
    if lengths.dtype.kind not in "iu" or np.any((lengths < 0) | (lengths > length)):
        raise ValueError(f"lengths must be whole numbers in 0…{length}, one a row, got {lengths!r}")
    behind = np.arange(length) >= np.broadcast_to(lengths, tuple(batch))[..., None]
    tokens = xp.where(xp.asarray(behind, device=device(tokens)), xp.zeros_like(tokens), tokens)
    bad = (tokens < 0) | (tokens >= size)
    if bool(xp.any(bad)):
        index = first_index(bad)
        raise ValueError(f"token {index} is {int(tokens[index])}; drafted tokens lie in 0…{size - 1}")
    return tokens


def block_tests(
    verifier: AnyVerifier, tokens: Array, target_probs: Array, draft_probs: Array, lengths: Any = None
) -> BlockTests:
    """Weights along drafted blocks and the success probability of every index.

    Parameters
    ----------
    verifier : CappedBlock or LiftedBlock
    tokens : integer array, shape (..., L)
        The drafted tokens.
    target_probs, draft_probs : array, shape (..., L, V)
        p and q after every prefix of the block. Not checked: see `theory.probabilities`.
    lengths : integer array, shape (...), optional
        Tokens each row really drafted, ≤ L; what stands behind them is ignored. All L by default.

    Returns
    -------
    BlockTests
        For `last_success`. The residual at τ < L is ``verifier.step(p, q, τ, weights[τ]).residual`` at that prefix.

    Raises
    ------
    ValueError
        If the verifier carries no weight, the shapes do not match, a length lies outside 0…L, or a drafted token
        outside the vocabulary.
    """
    if not verifier.stateful:
        raise ValueError(f"{verifier} verifies token by token; block_tests needs a block verifier")
    xp = array_namespace(target_probs, draft_probs)
    shape = tuple(target_probs.shape)
    if len(shape) < 2 or shape[-2] < 1 or tuple(draft_probs.shape) != shape or tuple(tokens.shape) != shape[:-1]:
        raise ValueError(
            f"expected tokens (..., L) and laws (..., L, V) with L >= 1, got {tuple(tokens.shape)}, {shape} and "
            f"{tuple(draft_probs.shape)}"
        )
    length = shape[-2]
    drafted = np.full(shape[:-2], length) if lengths is None else np.asarray(lengths)
    tokens = _drafted_tokens(tokens, drafted, shape)
    weight = xp.ones_like(target_probs[..., 0, 0])
    weights, left = [weight], []
    for i in range(length):
        step = verifier.step(target_probs[..., i, :], draft_probs[..., i, :], i, weight)
        left.append(weight * step.rejection)
        weight = xp.take_along_axis(step.weight, tokens[..., i, None], axis=-1)[..., 0]
        weights.append(weight)
    s = xp.stack(weights, axis=-1)
    ended = xp.stack([*left, weight], axis=-1)
    refused = ended + (1 - s)
    one = xp.ones_like(s)
    h = xp.where(refused > 0, ended / xp.where(refused > 0, refused, one), one)
    last = xp.asarray(drafted, device=device(s))[..., None]
    index = xp.arange(length + 1, device=device(s))
    return BlockTests(s, xp.where(index < last, h, xp.where(index == last, s, 0 * one)))


def last_success(success: Array, uniforms: Array) -> Array:
    """τ, the last index whose own uniform lies below its success probability, integers of shape (...).

    Parameters
    ----------
    success : array, shape (..., L+1)
        Of `block_tests`.
    uniforms : array, shape (..., L)
        In [0, 1), one for each index 1…L (index 0 always succeeds), independent of each other and of the drafts.

    Raises
    ------
    ValueError
        If there is not one uniform for each drafted token.
    """
    xp = array_namespace(success, uniforms)
    if success.shape[-1] != uniforms.shape[-1] + 1:
        raise ValueError(
            f"expected one uniform for each of {success.shape[-1] - 1} drafted tokens, got {uniforms.shape[-1]}"
        )
    index = xp.arange(success.shape[-1], device=device(success))
    hit = xp.where(uniforms < success[..., 1:], index[1:], xp.zeros_like(index[1:]))
    none = xp.zeros_like(success[..., :1], dtype=hit.dtype)
    return xp.max(xp.concat([none, hit], axis=-1), axis=-1)
