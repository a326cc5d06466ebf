"""Verification skipping: passes whose drafts are emitted unseen by the target, never two of them in a row.

After a verified round a *skipped pass* begins with probability ρ. It emits drafts x ~ q as they are, at most K of them,
and is cut off before the first token with max_y q(y) < c. Then a round of L drafts is verified as usual, on prefixes
that hold unverified tokens, and so on; the first round is verified. A skipped pass costs no target call and has no
bonus token.

Let a_t(i) be the probability of x_{<t} with i tokens accepted in the running round, b_t(j) of x_{<t} with j tokens
emitted by the running skipped pass (j = 0: a verified round has just ended), a_0 = (1, 0, …, 0), b_0 = 0, and
s_j = ρ^{1[j=0]} · 1[max q ≥ c]. First rounds start where passes end, a_t(0) += Σ_{j<K} b_t(j) (1 − s_j); then

    a_{t+1}(i+1) = a_t(i) · q f_{i+1}(x_t)                                       (i < L)
    b_{t+1}(0)   = Σ_{i<L} a_t(i) · R_{i+1} G_{i+1}(x_t) + a_t(L) · p(x_t)
    b_{t+1}(j+1) = b_t(j) · s_j · q(x_t)                                         (j + 1 < K)
    a_{t+1}(0)   = b_t(K−1) · s_{K−1} · q(x_t)

and P̂(x_{1:T}) = Σ a_T + Σ b_T [proved]: whether a pass is skipped is hidden, but it depends on the tokens before it and
a coin of its own, so that the forward recursion over passes and offsets loses nothing. The target calls of a sequence
are Σ_t a_t(0). Whatever verifies the other rounds, a skipped token has the bias TV(q, p): no f or G repairs it.

Source: partial verification skipping (Dong et al. 2511.13587): whole verify passes are skipped, never two in a row,
with a dynamically truncated draft. Reconstructed here: the coin ρ, truncation by the draft's largest probability (its
own truncation and its choice of a path in a tree could not be read), and a draft that looks at tokens only, so that
there are no stale features to reuse.

>>> import numpy as np
>>> from theory.rules import Lossless
>>> from theory.verifiers import Verifier
>>> p, q = np.tile([0.5, 0.5], (3, 1)), np.tile([0.8, 0.2], (3, 1))
>>> found = filter_skipping(np.array([0, 0, 0]), p, q, Verifier(Lossless()), 1, Skipping(most=1))
>>> round(float(np.exp(found.log_likelihood)), 12)  # accepted (.5), bonus (.5), emitted unseen (.8)
0.2
>>> found.starts.tolist(), found.skipped.tolist()
([1.0, 0.0, 0.0], [0.0, 0.0, 1.0])
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from theory.arrays import Array, array_namespace, device, real_number, to_numpy, whole_number
from theory.chains import Chain, check_depth, next_laws
from theory.distances import kl_divergence, max_ratio, total_variation
from theory.numbers import Bound, Exact
from theory.rounds import Laws
from theory.sequences import OffsetFilter, by_token, checked_sequences, offset_steps, safe_log
from theory.verifiers import AnyVerifier, check_verifier

__all__ = ["Skipping", "SkippingAnalysis", "SkippingFilter", "analyse_skipping", "filter_skipping"]

LARGEST = 2**18
"""Most sequences enumerated: all laws of all of them are held at once."""


CONFIDENCE_SLACK = 1e-6
"""What a law in single precision may be off by: decoders and likelihoods must agree on which laws are sure enough."""


@dataclass(frozen=True)
class Skipping:
    """When a pass is skipped, and how much of its draft is emitted.

    Attributes
    ----------
    most : int
        K ≥ 1 tokens a skipped pass emits at most.
    probability : float
        ρ ∈ [0, 1], that the pass behind a verified round is skipped.
    confidence : float
        c ∈ [0, 1]: a skipped pass ends before the first token whose draft law has no mass ≥ c.

    Raises
    ------
    ValueError
        For numbers outside these ranges.
    """

    most: int
    probability: float = 1.0
    confidence: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "most", whole_number(self.most, "most", 1))
        for name in ("probability", "confidence"):
            object.__setattr__(self, name, real_number(getattr(self, name), name, least=0.0, most=1.0))

    def trusted(self, q: Array) -> Array:
        """Whether a draft law (..., V) is sure enough to be emitted unseen, bool (...)."""
        return array_namespace(q).max(q, axis=-1) >= self.confidence - CONFIDENCE_SLACK


@dataclass(frozen=True, eq=False)
class SkippingFilter(OffsetFilter):
    """`OffsetFilter` of given sequences under skipping; `starts` are target calls.

    Attributes
    ----------
    skipped : array, shape (..., T)
        Posterior probability, given the tokens before t, that token t comes from a skipped pass.
    """

    skipped: Array


def filter_skipping(
    tokens: Any, target_probs: Any, draft_probs: Any, verifier: AnyVerifier, length: int, skipping: Skipping
) -> SkippingFilter:
    """Run the recursion over given sequences, with the predictive law at every token.

    Parameters
    ----------
    tokens : integer array, shape (..., T)
    target_probs, draft_probs : array, shape (..., T, V)
        As for `theory.filter_offsets`; the draft may not depend on the offset.
    verifier : Verifier or a block verifier
        Of the passes that are not skipped.
    length : int
        L ≥ 1.
    skipping : Skipping

    Returns
    -------
    SkippingFilter

    Raises
    ------
    ValueError
        As `theory.filter_offsets`; also for a draft with an axis of offsets.

    Notes
    -----
    Oracle: plain recursion over all histories of a decoder. With ρ = 0 it is `theory.filter_offsets`.
    """
    check_verifier(verifier)
    xp, ids, p, q, length = checked_sequences(tokens, target_probs, draft_probs, length)
    if q.ndim != p.ndim:
        raise ValueError("draft_probs has an axis of offsets; skipping is worked out for drafts of the prefix alone")
    batch, count, most = tuple(ids.shape[:-1]), ids.shape[-1], skipping.most
    a = xp.zeros((*batch, length + 1), dtype=p.dtype, device=device(p))
    a[..., 0] = 1.0
    b = xp.zeros((*batch, most), dtype=p.dtype, device=device(p))
    weight = xp.ones_like(a) if verifier.stateful else None
    coin = xp.ones_like(b)
    coin[..., 0] = skipping.probability
    log_likelihood = xp.zeros(batch, dtype=p.dtype, device=device(p))
    own = xp.zeros_like(log_likelihood)
    rows: list[list[Array]] = [[] for _ in range(8)]
    for t in range(count):
        pt, qt = p[..., t, :], q[..., t, :]
        emitting = b * coin * xp.astype(skipping.trusted(qt), p.dtype)[..., None]
        first = a[..., :1] + xp.sum(b - emitting, axis=-1)[..., None]
        a = xp.concat([first, a[..., 1:]], axis=-1)
        accepted, output, weights = offset_steps(verifier, pt, qt, length, weight)
        unseen = xp.sum(emitting, axis=-1)
        law = xp.sum(a[..., :-1, None] * output, axis=-2) + a[..., -1:] * pt + unseen[..., None] * qt
        dead = xp.where(xp.sum(a, axis=-1) + unseen > 0, 0.0, xp.nan)
        bias = xp.sum(a[..., :-1] * total_variation(output, pt[..., None, :]), axis=-1)
        bias = bias + unseen * total_variation(qt, pt)
        leaked = xp.sum(xp.where(pt > 0, xp.zeros_like(law), law), axis=-1)
        divergences = total_variation(law, pt), kl_divergence(law, pt), kl_divergence(pt, law)
        values = (a[..., 0], bias, *divergences, max_ratio(law, pt), leaked, unseen)
        for out, value in zip(rows, values, strict=True):
            out.append(xp.asarray(value, device=device(p)) + dead)
        x = ids[..., t]
        at = xp.broadcast_to(x[..., None, None], (*batch, length, 1))
        kept, emitted = (xp.take_along_axis(m, at, axis=-1)[..., 0] for m in (accepted, output))
        if weights is not None:
            weight = xp.concat([xp.ones_like(a[..., :1]), xp.take_along_axis(weights, at, axis=-1)[..., 0]], axis=-1)
        px, qx = (xp.take_along_axis(m, x[..., None], axis=-1) for m in (pt, qt))
        ended = xp.sum(a[..., :-1] * (emitted - kept), axis=-1)[..., None] + a[..., -1:] * px
        unverified = emitting * qx
        a = xp.concat([unverified[..., -1:], a[..., :-1] * kept], axis=-1)
        b = xp.concat([ended, unverified[..., :-1]], axis=-1)
        total = xp.sum(a, axis=-1) + xp.sum(b, axis=-1)
        log_likelihood = log_likelihood + safe_log(total)
        own = own + safe_log(px[..., 0])
        scale = xp.where(total > 0, total, xp.ones_like(total))[..., None]
        a, b = a / scale, b / scale
    return SkippingFilter(log_likelihood, own, *(by_token(row, own) for row in rows))


@dataclass(frozen=True, eq=False)
class SkippingAnalysis(Laws):
    """What skipping does to a sequence of T tokens; see `analyse_skipping`.

    Attributes
    ----------
    length, tokens : int
        L and T.
    starts, skipped : array, shape (T,)
        Probability that a verified round starts at token t, and that token t comes from a skipped pass.
    step_bias, predictive_tv, predictive_kl_output_target : array, shape (T,)
        E b_t; E_P̂ TV(m_t, p_t) and E_P̂ KL(m_t‖p_t) of the one-step predictive law m_t.
    """

    length: int
    tokens: int
    starts: Array
    skipped: Array
    step_bias: Array
    predictive_tv: Array
    predictive_kl_output_target: Array

    @property
    def tokens_per_call(self) -> Exact:
        """T over expected calls; the cut-off at the last token is included."""
        return Exact(self.tokens / float(np.sum(self.starts)))

    @property
    def tv_bound(self) -> Bound:
        """Σ_t E b_t ≥ TV(P̂, P)."""
        return Bound(float(np.sum(self.step_bias)))


def analyse_skipping(
    target: Chain, draft: Chain, verifier: AnyVerifier, length: int, tokens: int, skipping: Skipping
) -> SkippingAnalysis:
    """Exact law, calls and divergences of T tokens decoded with skipped passes, over all V**T sequences.

    Parameters
    ----------
    target, draft : Chain
        Of one vocabulary, at least `tokens` deep.
    verifier, length, skipping
        As for `filter_skipping`.
    tokens : int
        T ≥ 1.

    Raises
    ------
    ValueError
        As `theory.analyse_sequence`; too many sequences to enumerate.

    Notes
    -----
    Oracle: plain recursion over all histories of a decoder.
    """
    length, tokens, size = whole_number(length, "length", 1), whole_number(tokens, "tokens", 1), target.vocab_size
    for chain, name in ((target, "target"), (draft, "draft")):
        check_depth(chain, tokens, name, f"a sequence of {tokens} tokens")
    if size**tokens > LARGEST:
        raise ValueError(f"{size}**{tokens} sequences are more than {LARGEST}; use filter_skipping on samples")
    every = np.array(list(product(range(size), repeat=tokens)), dtype=np.int64)
    p, q = (
        np.stack([to_numpy(next_laws(chain, every[:, :t], name)) for t in range(tokens)], axis=1)
        for chain, name in ((target, "target"), (draft, "draft"))
    )
    found = filter_skipping(every, p, q, verifier, length, skipping)
    law, own = np.exp(found.log_likelihood), np.exp(found.target_log_likelihood)

    def mean(values: Array) -> Array:
        # A sequence of no mass has no posterior behind the token that killed it.
        return np.sum(np.where(law[:, None] > 0, law[:, None] * values, 0.0), axis=0)

    shape = (size,) * tokens
    return SkippingAnalysis(
        _laws=lambda: (law.reshape(shape), own.reshape(shape)),
        length=length,
        tokens=tokens,
        starts=mean(found.starts),
        skipped=mean(found.skipped),
        step_bias=mean(found.step_bias),
        predictive_tv=mean(found.total_variation),
        predictive_kl_output_target=mean(found.kl_output_target),
    )
