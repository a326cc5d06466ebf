"""One round: the exact law of a block's output, its accepted length, and the bound.

A round drafts x_1…x_L from q, accepts left to right, at the first rejection i draws x_i ~ G_i and ends; if all
are accepted it draws one bonus token from p. Its output is continued with the target to L+1 tokens, so that
laws of one length are compared. With A_i = Π_{j≤i} q_j f_j the accepted-path mass (A_0 = 1):

* survival            S_i = Σ A_i;    expected accepted length N = Σ_{i=1..L} S_i
* identity [proved]   P̂ − P = Σ_i A_{i−1} · (q_i f_i + R_i G_i − p_i) · Π_{k>i} p_k
* bound [proved]      TV(P̂, P) ≤ B = Σ_i Σ_{x_{<i}} A_{i−1} · TV(q_i f_i + R_i G_i, p_i)

The bound is the object of COOL-SD's Theorem 2 (arXiv 2601.09212), **reconstructed**: the printed constant was not
readable. It is an equality when one position only is biased.

A verifier that carries a weight s (block verification) has A_i = Q_i s_i, Q_i the draft mass of the prefix, and
q s'/s in place of q f; identity and bound are the same [proved].

One position, two tokens, by hand: p = (¼, ¾), q = (¾, ¼), ω = 2. f = (⅔, 1), so N = ½ + ¼ = ¾; rejected mass ¼
goes to token 1; the output law is (½, ½) and TV = B = ¼.

>>> from theory.chains import IIDChain
>>> from theory.rules import Relaxed
>>> from theory.verifiers import Verifier
>>> a = analyse_round(IIDChain([0.25, 0.75]), IIDChain([0.75, 0.25]), Verifier(Relaxed(2.0)), 1)
>>> a.expected_accepted, a.tv_bound, a.total_variation
(0.75, 0.25, 0.25)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from theory.arrays import Array, array_namespace, whole_number
from theory.chains import LARGEST_LAW, Chain, Layer, check_depth, joint_layers
from theory.distances import kl_divergence, max_ratio, total_variation
from theory.numbers import Bound, Exact
from theory.verifiers import AnyVerifier, Step, check_verifier

ROWS_AT_ONCE = 2**15
"""Entries of a layer processed together: the dozen temporaries of one step then stay in cache."""


@dataclass(frozen=True, eq=False)
class Laws:
    """The law of a run of tokens beside the target's own, and the distances between them.

    Attributes
    ----------
    law, target_law : array, shape (V,)*n
        Computed when first asked for (V**n entries); ValueError if there are too many to enumerate.

    Notes
    -----
    Accuracy in float64, ε = 2.2e-16: every entry of a law to a few ε absolute, and to a few ε relative where accepted
    drafts carry it. R = Σ q (1 − f) is a sum of roundings, so that mass which only residuals emit has the relative
    error ε/R. A rejection probability below ε is lost altogether: a token of target probability 1e-17 that the draft
    never proposes is then not emitted, and KL(P‖P̂) = ∞ although the verifier is lossless. TV and KL(P̂‖P) do not see
    this above ε.
    """

    _laws: Callable[[], tuple[Array, Array]] = field(repr=False)

    @cached_property
    def _both(self) -> tuple[Array, Array]:
        return self._laws()

    @property
    def law(self) -> Array:
        return self._both[0]

    @property
    def target_law(self) -> Array:
        return self._both[1]

    def _flat(self) -> tuple[Array, Array]:
        law, target = self._both
        xp = array_namespace(law)
        return xp.reshape(law, (-1,)), xp.reshape(target, (-1,))

    @cached_property
    def total_variation(self) -> Exact:
        """Exact TV(P̂, P)."""
        return Exact(total_variation(*self._flat()))

    @cached_property
    def kl_output_target(self) -> Exact:
        """Exact KL(P̂‖P) in nats."""
        return Exact(kl_divergence(*self._flat()))

    @cached_property
    def kl_target_output(self) -> Exact:
        """Exact KL(P‖P̂) in nats."""
        return Exact(kl_divergence(*self._flat()[::-1]))

    @cached_property
    def max_ratio(self) -> Exact:
        """Largest P̂/P. For f_i = min(1, ω_i p/q) with the optimal residual it is ≤ Π max(1, ω_i) [proved]."""
        return Exact(max_ratio(*self._flat()))

    @cached_property
    def total_variation_by_prefix(self) -> list[Exact]:
        """TV of the law of the first k tokens, k = 1…n: lower bounds on `total_variation` that rise to it."""
        law, target = self._both
        xp = array_namespace(law)
        size = law.shape[0]
        out = []
        for k in range(1, law.ndim + 1):
            marginals = (xp.sum(xp.reshape(a, (size**k, -1)), axis=-1) for a in (law, target))
            out.append(Exact(total_variation(*marginals)))
        return out


@dataclass(frozen=True, eq=False)
class RoundAnalysis(Laws):
    """What one round does; see `analyse_round`.

    Attributes
    ----------
    length : int
        L, drafted tokens.
    survival : array, shape (L,)
        S_i, the probability that positions 1…i are all accepted.
    tv_bound_per_position : array, shape (L,)
        Terms of B.
    """

    length: int
    survival: Array
    tv_bound_per_position: Array

    @property
    def expected_accepted(self) -> Exact:
        """N = Σ S_i, expected accepted drafts of the round."""
        return Exact(float(array_namespace(self.survival).sum(self.survival)))

    @property
    def tokens_per_call(self) -> Exact:
        """N + 1 tokens come out of one target call when rounds run in full."""
        return Exact(self.expected_accepted + 1)

    @property
    def tv_bound(self) -> Bound:
        """B ≥ TV(P̂, P). It can exceed one: cap it when reporting."""
        return Bound(float(array_namespace(self.survival).sum(self.tv_bound_per_position)))


def row_blocks(rows: int, columns: int) -> list[slice]:
    """Slices that cut `rows` rows of `columns` entries into pieces that stay in cache."""
    step = max(1, ROWS_AT_ONCE // max(columns, 1))
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


def layers_for(
    verifier: AnyVerifier, target: Chain, draft: Chain, tokens: int, enumerate_prefixes: bool = False
) -> Iterator[Layer]:
    """`joint_layers`, with every prefix kept apart for a verifier whose weight depends on the path."""
    check_verifier(verifier)
    size = target.vocab_size
    if verifier.stateful and size**tokens > LARGEST_LAW:
        raise ValueError(
            f"{verifier} carries a weight that depends on the whole prefix, so that all {size}**{tokens} prefixes of "
            f"{tokens} tokens over {size} ids must be kept apart, more than {LARGEST_LAW}; use a shorter round or "
            "fewer tokens, round_along_paths or filter_offsets on given paths, or simulate.estimate"
        )
    return joint_layers(target, draft, tokens, enumerate_prefixes=enumerate_prefixes or verifier.stateful)


def _layer_step(
    verifier: AnyVerifier, p: Array, q: Array, position: int, mass: Array, weight: Array | None
) -> tuple[Array, Array, Array | None]:
    """Accepted mass (m, V), Σ mass·TV(o, p) and next weights (m, V) of one layer, in blocks of rows."""
    xp = array_namespace(p, q)
    accepted, weights, bias = [], [], 0.0
    for rows in row_blocks(*p.shape):
        step = verifier.step(p[rows], q[rows], position, None if weight is None else weight[rows])
        bias = bias + xp.sum(mass[rows] * xp.sum(xp.abs(step.output - p[rows]), axis=-1)) / 2
        accepted.append(mass[rows, None] * step.accepted)
        weights.append(step.weight)
    joined = accepted[0] if len(accepted) == 1 else xp.concat(accepted, axis=0)
    return joined, bias, xp.concat(weights, axis=0) if verifier.stateful else None


def analyse_round(target: Chain, draft: Chain, verifier: AnyVerifier, length: int) -> RoundAnalysis:
    """Exact law, accepted length, bound and divergences of one round.

    Parameters
    ----------
    target, draft : Chain
        Of one vocabulary; the target at least L+1 tokens deep, the draft at least L.
    verifier : Verifier or a block verifier
    length : int
        L ≥ 1 drafted tokens.

    Returns
    -------
    RoundAnalysis
        Accepted length and bound at once; the law and what follows from it when first asked for. Between
        Markov and independent chains accepted length and bound do not enumerate prefixes, unless the verifier
        carries a weight.

    Raises
    ------
    ValueError
        For length < 1, a chain shallower than the round, different vocabularies, a schedule shorter than
        the round, or more prefixes than can be enumerated.

    Notes
    -----
    Source: identity and bound at the module's head; the bound reconstructs COOL-SD Theorem 2. Oracle: plain recursion
    over single prefixes.
    """
    length = whole_number(length, "length", 1)
    check_depth(target, length + 1, "target", f"a round of {length} drafted tokens and one more")
    check_depth(draft, length, "draft", f"a round of {length} drafted tokens")
    survival, biases = [], []
    mass = weight = None
    for position, layer in enumerate(layers_for(verifier, target, draft, length)):
        xp = array_namespace(layer.target, layer.draft)
        if mass is None:
            mass = xp.ones_like(layer.target[:, 0])
        accepted, bias, weights = _layer_step(verifier, layer.target, layer.draft, position, mass, weight)
        mass = layer.fold(accepted)
        weight = None if weights is None else layer.fold(weights)
        survival.append(xp.sum(mass))
        biases.append(bias)
    return RoundAnalysis(
        _laws=lambda: round_law(target, draft, verifier, length),
        length=length,
        survival=xp.stack(survival),
        tv_bound_per_position=xp.stack(biases),
    )


def _target_level(chain: Chain, depth: int) -> Array:
    *_, last = joint_layers(chain, chain, depth + 1, enumerate_prefixes=True)
    return last.target


def round_law(target: Chain, draft: Chain, verifier: AnyVerifier, length: int) -> tuple[Array, Array]:
    """Law of a round's L+1 tokens and the target's, both of shape (V,)*(L+1), by enumeration."""
    size = target.vocab_size
    _check_size(size, length + 1)
    drafting: Any = None
    weight = None
    for position, layer in enumerate(joint_layers(target, draft, length, enumerate_prefixes=True)):
        p, q = layer.target, layer.draft
        xp = array_namespace(p, q)
        if drafting is None:
            drafting, ended, own = (xp.ones_like(p[:, 0]), xp.zeros_like(p[:, 0]), xp.ones_like(p[:, 0]))
        step = verifier.step(p, q, position, weight)
        weight = None if step.weight is None else layer.fold(step.weight)
        replaced = (drafting * step.rejection)[:, None] * step.residual
        ended = layer.fold(ended[:, None] * p + replaced)
        drafting = layer.fold(drafting[:, None] * step.accepted)
        own = layer.fold(own[:, None] * p)
    p = _target_level(target, length)
    shape = (size,) * (length + 1)
    return xp.reshape((drafting + ended)[:, None] * p, shape), xp.reshape(own[:, None] * p, shape)


def _check_size(size: int, tokens: int) -> None:
    if size**tokens > LARGEST_LAW:
        raise ValueError(
            f"the law of {tokens} tokens over {size} ids has {size}**{tokens} entries, more than {LARGEST_LAW}; "
            "accepted length and bound remain available, distances need simulate.estimate"
        )


@dataclass(frozen=True, eq=False)
class RoundPaths:
    """One round seen along given paths of L+1 tokens; see `round_along_paths`.

    Attributes
    ----------
    ratio : array, shape (...)
        P̂(x)/P(x) of the round's law along the path.
    survival_ratio : array, shape (..., L)
        A_i(x_{1:i}) / P(x_{1:i}), i = 1…L.
    bias : array, shape (..., L)
        A_{i−1}/P(x_{<i}) · TV(o_i, p_i).
    """

    ratio: Array
    survival_ratio: Array
    bias: Array

    @property
    def tv_terms(self) -> Array:
        """½ |ρ − 1|; averages over paths from the target to TV(P̂, P)."""
        return array_namespace(self.ratio).abs(self.ratio - 1) / 2

    @property
    def kl_output_terms(self) -> Array:
        """ρ log ρ − ρ + 1 ≥ 0; averages to KL(P̂‖P), since E_P ρ = 1."""
        xp = array_namespace(self.ratio)
        safe = xp.where(self.ratio > 0, self.ratio, xp.ones_like(self.ratio))
        return self.ratio * xp.log(safe) - self.ratio + 1

    @property
    def kl_target_terms(self) -> Array:
        """−log ρ + ρ − 1 ≥ 0; averages to KL(P‖P̂), +∞ where the round cannot emit the path."""
        xp = array_namespace(self.ratio)
        safe = xp.where(self.ratio > 0, self.ratio, xp.ones_like(self.ratio))
        return xp.where(self.ratio > 0, self.ratio - 1 - xp.log(safe), xp.inf * xp.ones_like(safe))


def round_along_paths(
    tokens: Array, target_probs: Array, draft_probs: Array, verifier: AnyVerifier, length: int
) -> RoundPaths:
    """A round's law, survival and bound along paths drawn from the target.

    Averages over paths from the target are unbiased: E_P ratio = 1, E_P survival_ratio_i = S_i, E_P bias_i is the i-th
    term of B, ½ E_P |ratio − 1| = TV(P̂, P), E_P ratio·log ratio = KL(P̂‖P), −E_P log ratio = KL(P‖P̂) (the identity
    of the module's head with
    importance weights; TV and KL(P̂‖P) need P̂ ≪ P). So a large vocabulary needs no enumeration.

    Parameters
    ----------
    tokens : integer array, shape (..., L) or longer
        Only the first L tokens matter: the token after them has ratio one.
    target_probs, draft_probs : array, shape (..., L, V) or longer
        p and q after every prefix of the path. Not checked: see `theory.probabilities`.
    verifier : Verifier or a block verifier
    length : int
        L ≥ 1.

    Returns
    -------
    RoundPaths

    Notes
    -----
    Oracle: `analyse_round` on chains small enough to enumerate.
    """
    check_verifier(verifier)
    length = whole_number(length, "length", 1)
    xp = array_namespace(target_probs, draft_probs)
    if tokens.shape[-1] < length or target_probs.shape[-2] < length or draft_probs.shape[-2] < length:
        raise ValueError(
            f"a round of {length} drafted tokens needs paths of at least that many, got tokens {tuple(tokens.shape)}, "
            f"target_probs {tuple(target_probs.shape)} and draft_probs {tuple(draft_probs.shape)}"
        )
    p, q = target_probs[..., :length, :], draft_probs[..., :length, :]
    at = tokens[..., :length, None]
    step = _step_along(verifier, p, q, at) if verifier.stateful else verifier.step(p, q, np.arange(length))
    p_x, accepted, residual = (
        xp.take_along_axis(xp.broadcast_to(a, p.shape), at, axis=-1)[..., 0] for a in (p, step.accepted, step.residual)
    )
    survival = xp.cumulative_prod(accepted / p_x, axis=-1)
    before = xp.concat([xp.ones_like(survival[..., :1]), survival[..., :-1]], axis=-1)
    ended = xp.sum(before * step.rejection * residual / p_x, axis=-1)
    return RoundPaths(survival[..., -1] + ended, survival, before * total_variation(step.output, p))


def _step_along(verifier: AnyVerifier, p: Array, q: Array, at: Array) -> Step:
    """The steps at all positions of given paths, the weight carried from one to the next."""
    xp = array_namespace(p, q)
    weight, steps = None, []
    for i in range(p.shape[-2]):
        step = verifier.step(p[..., i, :], q[..., i, :], i, weight)
        weight = xp.take_along_axis(step.weight, at[..., i, :], axis=-1)[..., 0]
        steps.append(step)
    accepted, residual, weights = (xp.stack([step[k] for step in steps], axis=-2) for k in (0, 2, 3))
    return Step(accepted, xp.stack([step.rejection for step in steps], axis=-1), residual, weights)
