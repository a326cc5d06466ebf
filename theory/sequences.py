"""Many rounds: the exact law and likelihood of a whole sequence.

The hidden state is the offset i ∈ {0…L}, the tokens accepted so far in the running round; a_0 = (1, 0, …, 0).
For each token x_t

    a_{t+1}(i+1) = a_t(i) · q f_{i+1}(x_t)                                   (i < L)
    a_{t+1}(0)   = Σ_{i<L} a_t(i) · R_{i+1} G_{i+1}(x_t) + a_t(L) · p(x_t)

and P̂(x_{1:T}) = Σ_i a_T(i) [proved]. One teacher-forced pass of target and draft over a finished sequence
therefore gives its exact likelihood under relaxed decoding, in O(T·L·V) elementwise work. The one-step predictive
law Σ_i a_t(i) o_i (offsets weighted by their posterior) gives sharp estimates of TV and KL per token.

A verifier that carries a weight s (block verification) has the state (offset, s): the round that started i tokens ago
has the weight s(i), an array beside a(i), and q s'/s stands for q f [proved].

A round that would run past the last token is cut off there; that does not change the law of the tokens.

>>> import numpy as np
>>> from theory.rules import Lossless
>>> from theory.verifiers import Verifier
>>> p, q = np.tile([0.5, 0.3, 0.2], (4, 1)), np.tile([0.2, 0.3, 0.5], (4, 1))
>>> log_likelihood = sequence_log_likelihood(np.array([0, 2, 1, 0]), p, q, Verifier(Lossless()), 2)
>>> round(float(np.exp(log_likelihood)), 12)
0.015
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from theory.arrays import Array, array_namespace, device, first_index, probabilities, same_vocabulary, whole_number
from theory.chains import Chain, check_depth, joint_layers
from theory.distances import kl_divergence, total_variation
from theory.numbers import Bound, Exact
from theory.rounds import Laws, layers_for, row_blocks
from theory.verifiers import AnyVerifier, check_verifier


def offset_steps(verifier: AnyVerifier, p: Array, q: Array, length: int, weight: Array | None) -> Any:
    """Accepted mass, output law and next weights at every offset below L, all of shape (..., L, V).

    p has shape (..., V); q (..., V), or (..., L, V) for a draft that also depends on the offset; weight (..., L+1) or
    None for a token-wise verifier, whose next weights are None.
    """
    xp = array_namespace(p, q)
    p = p[..., None, :]
    q = q if q.ndim == p.ndim else q[..., None, :]
    step = verifier.step(p, q, np.arange(length), None if weight is None else weight[..., :-1])
    shape = (*p.shape[:-2], length, p.shape[-1])
    return xp.broadcast_to(step.accepted, shape), xp.broadcast_to(step.output, shape), step.weight


@dataclass(frozen=True, eq=False)
class SequenceAnalysis(Laws):
    """What many rounds do to a sequence of T tokens; see `analyse_sequence`.

    Attributes
    ----------
    length, tokens : int
        L and T.
    starts : array, shape (T,)
        Probability that a round starts at token t.
    step_bias : array, shape (T,)
        E b_t, expected TV(o_i, p) of the step that emits token t, offset visible (0 for a bonus token).
    """

    length: int
    tokens: int
    starts: Array
    step_bias: Array
    _chains: tuple[Chain, Chain, AnyVerifier]

    @property
    def expected_calls(self) -> Exact:
        """Expected number of rounds, hence of target calls, for the T tokens."""
        return Exact(float(array_namespace(self.starts).sum(self.starts)))

    @property
    def tokens_per_call(self) -> Exact:
        """T over expected calls; the cut-off at the last token is included."""
        return Exact(self.tokens / self.expected_calls)

    @property
    def tv_bound(self) -> Bound:
        """Σ_t E b_t ≥ TV(P̂, P). It can exceed one: cap it when reporting."""
        return Bound(float(array_namespace(self.step_bias).sum(self.step_bias)))

    def predictive(self) -> PredictiveAnalysis:
        """Divergences of the one-step predictive law from the target, token by token (enumerates V**T)."""
        return _predictive(*self._chains, self.length, self.tokens)


@dataclass(frozen=True, eq=False)
class PredictiveAnalysis:
    """Exact one-step predictive divergences, each of shape (T,).

    Attributes
    ----------
    total_variation : array
        E_P̂ TV(m_t, p_t), m_t = P̂(x_t | x_{<t}). If f ≥ lossless and the residual is G* it equals `step_bias` [proved].
    kl_output_target : array
        E_P̂ KL(m_t‖p_t); sums to KL(P̂‖P).
    kl_target_output : array
        E_P KL(p_t‖m_t); sums to KL(P‖P̂).
    """

    total_variation: Array
    kl_output_target: Array
    kl_target_output: Array


def advance_offsets(mass: Array, accepted: Array, output: Array, p: Array) -> Array:
    """One step of the offset recursion for every next token: mass (m, L+1) → (m, V, L+1)."""
    xp = array_namespace(mass)
    inner = mass[:, :-1, None]
    replaced = xp.sum(inner * (output - accepted), axis=1) + mass[:, -1:] * p
    kept = xp.matrix_transpose(inner * accepted)
    return xp.concat([replaced[..., None], kept], axis=-1)


def _walk(
    target: Chain, draft: Chain, verifier: AnyVerifier, length: int, tokens: int, enumerate_prefixes: bool
) -> Any:
    """Yield (mass before the token (m, L+1), layer, accepted, output) and carry mass and weights on."""
    mass = weight = None
    for layer in layers_for(verifier, target, draft, tokens, enumerate_prefixes):
        xp = array_namespace(layer.target, layer.draft)
        if mass is None:
            mass = xp.zeros((1, length + 1), dtype=layer.target.dtype, device=device(layer.target))
            mass[0, 0] = 1.0
            weight = xp.ones_like(mass) if verifier.stateful else None
        accepted, output, weights = offset_steps(verifier, layer.target, layer.draft, length, weight)
        yield mass, layer, accepted, output
        pieces = [
            advance_offsets(mass[rows], accepted[rows], output[rows], layer.target[rows])
            for rows in row_blocks(len(mass), layer.target.shape[1] * length)
        ]
        mass = layer.fold(pieces[0] if len(pieces) == 1 else xp.concat(pieces, axis=0))
        if weights is not None:
            weights = xp.matrix_transpose(weights)
            weight = layer.fold(xp.concat([xp.ones_like(weights[..., :1]), weights], axis=-1))
    yield mass, None, None, None


def target_law(target: Chain, tokens: int) -> Array:
    """The target's own law of its first `tokens` tokens, shape (V,)*tokens, by enumeration."""
    own: Any = None
    for layer in joint_layers(target, target, tokens, enumerate_prefixes=True):
        own = layer.fold(layer.target if own is None else own[:, None] * layer.target)
    return array_namespace(own).reshape(own, (target.vocab_size,) * tokens)


def analyse_sequence(target: Chain, draft: Chain, verifier: AnyVerifier, length: int, tokens: int) -> SequenceAnalysis:
    """Exact calls, bias, law and divergences of T tokens decoded over as many rounds as needed.

    Parameters
    ----------
    target, draft : Chain
        Of one vocabulary, at least `tokens` deep.
    verifier : Verifier or a block verifier
    length : int
        L ≥ 1 drafted tokens a round.
    tokens : int
        T ≥ 1.

    Returns
    -------
    SequenceAnalysis
        Calls and step bias at once (between Markov and independent chains without enumerating prefixes); law,
        distances and `predictive()` when first asked for.

    Raises
    ------
    ValueError
        For length or tokens < 1, a chain too shallow, different vocabularies, a schedule shorter than the
        round, or more sequences than can be enumerated.

    Notes
    -----
    Source: this project, the offset recursion at the module's head. Oracle: plain recursion over prefixes and offsets.
    """
    length, tokens = whole_number(length, "length", 1), whole_number(tokens, "tokens", 1)
    for chain, name in ((target, "target"), (draft, "draft")):
        check_depth(chain, tokens, name, f"a sequence of {tokens} tokens")
    starts, bias = [], []
    for mass, layer, _, output in _walk(target, draft, verifier, length, tokens, False):
        if layer is None:
            break
        xp = array_namespace(mass)
        starts.append(xp.sum(mass[:, 0]))
        steps = total_variation(output, layer.target[:, None, :])
        bias.append(xp.sum(mass[:, :-1] * steps))

    def laws() -> tuple[Array, Array]:
        *_, (final, _, _, _) = _walk(target, draft, verifier, length, tokens, True)
        own = target_law(target, tokens)
        return xp.reshape(xp.sum(final, axis=-1), own.shape), own

    return SequenceAnalysis(
        _laws=laws,
        length=length,
        tokens=tokens,
        starts=xp.stack(starts),
        step_bias=xp.stack(bias),
        _chains=(target, draft, verifier),
    )


def _predictive(target: Chain, draft: Chain, verifier: AnyVerifier, length: int, tokens: int) -> PredictiveAnalysis:
    rows: list[list[Array]] = [[], [], []]
    own: Any = None
    for mass, layer, _, output in _walk(target, draft, verifier, length, tokens, True):
        if layer is None:
            break
        xp = array_namespace(mass)
        p = layer.target
        own = xp.ones_like(p[:, 0]) if own is None else own
        total = xp.sum(mass, axis=-1)
        law = xp.sum(mass[:, :-1, None] * output, axis=1) + mass[:, -1:] * p
        reached = total > 0
        law = xp.where(reached[:, None], law / xp.where(reached, total, xp.ones_like(total))[:, None], p)
        rows[0].append(xp.sum(total * total_variation(law, p)))
        for out, weight, divergence in ((rows[1], total, kl_divergence(law, p)), (rows[2], own, kl_divergence(p, law))):
            out.append(xp.sum(xp.where(weight > 0, weight * divergence, xp.zeros_like(weight))))
        if bool(xp.any((own > 0) & ~reached)):
            rows[2][-1] = rows[2][-1] + xp.inf
        own = layer.fold(own[:, None] * p)
    return PredictiveAnalysis(*(xp.stack(row) for row in rows))


@dataclass(frozen=True, eq=False)
class OffsetFilter:
    """Likelihood and one-step predictive quantities of given sequences; see `filter_offsets`.

    Attributes
    ----------
    log_likelihood : array, shape (...)
        log P̂(x_{1:T}), −∞ for a sequence the verifier cannot emit.
    target_log_likelihood : array, shape (...)
        log P(x_{1:T}).
    starts : array, shape (..., T)
        Posterior probability, given the tokens before t, that a round starts at token t.
    step_bias, total_variation, kl_output_target, kl_target_output : array, shape (..., T)
        Posterior mean of TV(o_i, p); and TV(m_t, p), KL(m_t‖p), KL(p‖m_t) of the predictive law m_t.
        Averaged over sequences drawn from P̂ the first three estimate the exact expectations without bias,
        over sequences from P the last one does. NaN after a prefix the verifier cannot emit.
    """

    log_likelihood: Array
    target_log_likelihood: Array
    starts: Array
    step_bias: Array
    total_variation: Array
    kl_output_target: Array
    kl_target_output: Array


def safe_log(x: Array) -> Array:
    """log x, −∞ where x = 0."""
    xp = array_namespace(x)
    return xp.where(x > 0, xp.log(xp.where(x > 0, x, xp.ones_like(x))), -xp.inf * xp.ones_like(x))


def by_token(row: list[Array], like: Array) -> Array:
    """Values of T tokens, each (...), as (..., T); T may be zero."""
    xp = array_namespace(like)
    return xp.stack(row, axis=-1) if row else xp.zeros_like(like[..., None])[..., :0]


def checked_sequences(
    tokens: Any, target_probs: Any, draft_probs: Any, length: int
) -> tuple[Any, Array, Array, Array, int]:
    """Namespace, ids, p, q and L after every check of given sequences; see `filter_offsets`."""
    length = whole_number(length, "length", 1)
    p = probabilities(target_probs, "target_probs")
    q = probabilities(draft_probs, "draft_probs")
    xp = array_namespace(p, q)
    same_vocabulary(p.shape[-1], q.shape[-1])
    ids = xp.asarray(tokens, device=device(p))
    if not xp.isdtype(ids.dtype, "integral"):
        raise ValueError(f"tokens must be integers, got dtype {ids.dtype}")
    offsets = q.ndim == p.ndim + 1
    expected = (*p.shape[:-2], length, *p.shape[-2:]) if offsets else tuple(p.shape)
    if p.ndim < 2 or tuple(ids.shape) != tuple(p.shape[:-1]) or tuple(q.shape) != tuple(expected):
        raise ValueError(
            "expected tokens (..., T), target_probs (..., T, V) and draft_probs (..., T, V) or (..., L, T, V) with "
            f"L={length}, got {tuple(ids.shape)}, {tuple(p.shape)} and {tuple(q.shape)}"
        )
    ids = xp.astype(ids, xp.int64)
    bad = (ids < 0) | (ids >= p.shape[-1])
    if bool(xp.any(bad)):
        index = first_index(bad)
        raise ValueError(f"token {index} is {int(ids[index])}; tokens lie in 0…{p.shape[-1] - 1}")
    return xp, ids, p, q, length


def _filter(
    tokens: Any, target_probs: Any, draft_probs: Any, verifier: AnyVerifier, length: int, details: bool
) -> tuple[Array, Array, list[list[Array]]]:
    check_verifier(verifier)
    xp, ids, p, q, length = checked_sequences(tokens, target_probs, draft_probs, length)
    batch, count = tuple(ids.shape[:-1]), ids.shape[-1]
    a = xp.zeros((*batch, length + 1), dtype=p.dtype, device=device(p))
    a[..., 0] = 1.0
    weight = xp.ones_like(a) if verifier.stateful else None
    log_likelihood = xp.zeros(batch, dtype=p.dtype, device=device(p))
    own = xp.zeros_like(log_likelihood)
    rows: list[list[Array]] = [[], [], [], [], []]
    for t in range(count):
        pt = p[..., t, :]
        accepted, output, weights = offset_steps(verifier, pt, q[..., t, :], length, weight)
        inner = a[..., :-1, None]
        if details:
            law = xp.sum(inner * output, axis=-2) + a[..., -1:] * pt
            dead = xp.where(xp.sum(a, axis=-1) > 0, 0.0, xp.nan)
            bias = xp.sum(a[..., :-1] * total_variation(output, pt[..., None, :]), axis=-1)
            values = (a[..., 0], bias, total_variation(law, pt), kl_divergence(law, pt), kl_divergence(pt, law))
            for out, value in zip(rows, values, strict=True):
                out.append(xp.asarray(value, device=device(p)) + dead)
        x = ids[..., t]
        at = xp.broadcast_to(x[..., None, None], (*batch, length, 1))
        kept, emitted = (xp.take_along_axis(m, at, axis=-1)[..., 0] for m in (accepted, output))
        if weights is not None:
            weight = xp.concat([xp.ones_like(a[..., :1]), xp.take_along_axis(weights, at, axis=-1)[..., 0]], axis=-1)
        px = xp.take_along_axis(pt, x[..., None], axis=-1)[..., 0]
        inner = a[..., :-1]
        fresh = xp.sum(inner * (emitted - kept), axis=-1) + a[..., -1] * px
        a = xp.concat([fresh[..., None], inner * kept], axis=-1)
        total = xp.sum(a, axis=-1)
        log_likelihood = log_likelihood + safe_log(total)
        own = own + safe_log(px)
        a = a / xp.where(total > 0, total, xp.ones_like(total))[..., None]
    return log_likelihood, own, rows


def filter_offsets(
    tokens: Any, target_probs: Any, draft_probs: Any, verifier: AnyVerifier, length: int
) -> OffsetFilter:
    """Run the offset recursion over given sequences, with the predictive law at every token.

    Parameters
    ----------
    tokens : integer array, shape (..., T)
    target_probs : array, shape (..., T, V)
        target_probs[..., t, :] is p(·|x_{<t}).
    draft_probs : array, shape (..., T, V) or (..., L, T, V)
        q likewise; with the extra axis the draft may differ at every offset of the round.
    verifier : Verifier or a block verifier
    length : int
        L ≥ 1.

    Returns
    -------
    OffsetFilter

    Raises
    ------
    ValueError
        For shapes that do not match, a token outside the vocabulary, or rows that are no probabilities.

    Notes
    -----
    Source: the offset recursion at the module's head. Oracle: `analyse_sequence` on chains small enough to enumerate.
    """
    log_likelihood, own, rows = _filter(tokens, target_probs, draft_probs, verifier, length, True)
    return OffsetFilter(log_likelihood, own, *(by_token(row, own) for row in rows))


def sequence_log_likelihood(
    tokens: Any, target_probs: Any, draft_probs: Any, verifier: AnyVerifier, length: int
) -> Array:
    """Exact log P̂(x_{1:T}) in nats of given sequences under relaxed decoding, shape (...).

    Arguments, errors and source as for `filter_offsets`; −∞ for a sequence the verifier cannot emit.
    """
    return _filter(tokens, target_probs, draft_probs, verifier, length, False)[0]
