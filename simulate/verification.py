"""Verification of given blocks: the part of a round that every framework writes anew, for many rounds at once.

Given are L drafted tokens and the laws p after 0…L of them and q of each. Accept x_i while u_i < f_i(x_i); replace the
first refused draft by a token from the residual; after L accepted drafts add one from p. Two facts keep this cheap:

* lossless, multiplicative, mixed and Cactus rules look at p(x) and q(x) alone, so that f is computed for the drafted
  tokens and not for the vocabulary; other rules see the rows that are still running
* a residual is needed for one place of a round at most: (B, V) numbers, never (B, L, V)

>>> p, q = np.tile([0.5, 0.3, 0.2], (4, 3, 1)), np.tile([0.2, 0.3, 0.5], (4, 2, 1))
>>> verify([[2, 2], [0, 1], [0, 0], [1, 2]], p, q, theory.Verifier(theory.Lossless()), np.random.default_rng(1)).tokens
array([[ 0, -1, -1],
       [ 0,  1,  2],
       [ 0,  0,  1],
       [ 1,  2,  0]])
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import theory
from simulate.draws import Streams, categorical, streams
from theory.arrays import as_floats, same_vocabulary, to_numpy
from theory.residuals import EMPTY_RESIDUAL
from theory.rules import accept_up_to
from theory.verifiers import acceptance_of, residual_after

Floats = np.ndarray[Any, np.dtype[np.float64]]
Integers = np.ndarray[Any, np.dtype[np.int64]]

ENTRIES_AT_ONCE = 2**18
"""Entries of the laws worked on together, 2 MiB an array: near the cache, and memory does not grow with B."""
POINTWISE = (theory.Lossless, theory.Relaxed, theory.AcceptAll, theory.Ensemble, theory.Cactus)
"""Rules whose f(x) depends on p(x) and q(x) alone."""


class Verified(NamedTuple):
    """What `verify` returns."""

    tokens: Integers
    """Shape (B, L+1): the accepted drafts and one token more, −1 behind."""
    accepted: Integers
    """Shape (B,): accepted drafts."""


def is_pointwise(verifier: theory.AnyVerifier) -> bool:
    """Whether f(x) depends on p(x), q(x) and the position alone."""
    rule = getattr(verifier, "rule", None)
    while isinstance(rule, theory.AtLeastLossless):
        rule = rule.rule
    return isinstance(rule, POINTWISE)


def verify(
    draft_ids: Any,
    target_probs: Any,
    draft_probs: Any,
    verifier: theory.AnyVerifier,
    rng: np.random.Generator | Streams,
) -> Verified:
    """Verify B drafted blocks.

    Parameters
    ----------
    draft_ids : integer array, shape (B, L)
        Drawn from `draft_probs`; that they were is the caller's word.
    target_probs : array, shape (B, L+1, V)
        p after 0, 1, …, L drafted tokens.
    draft_probs : array, shape (B, L, V)
        q of each drafted token.
    verifier : Verifier or a block verifier
    rng : numpy.random.Generator or Streams
        Streams are asked for acceptance (B, L), residual (B,) and bonus (B,) uniforms.

    Returns
    -------
    Verified

    Raises
    ------
    ValueError
        For shapes that do not fit, a drafted id outside the vocabulary, or a law that is negative, not finite or zero
        where it is looked at; the laws are **not** checked beyond that (`theory.probabilities` does).

    Notes
    -----
    Source: THEORY 1. Float32 laws are taken as they are: f is then a float32 number, draws are made in float64. Oracle:
    `theory.round_along_paths` for f and the residuals, `theory.analyse_round` for the law.
    """
    ids, p, q = _checked(draft_ids, target_probs, draft_probs)
    count, length, size = q.shape
    draws = streams(rng)
    u = draws.acceptance.random((count, length))
    u_residual, u_bonus = draws.residual.random(count), draws.bonus.random(count)
    tokens = np.full((count, length + 1), -1, dtype=np.int64)
    accepted = np.zeros(count, dtype=np.int64)
    step = max(1, ENTRIES_AT_ONCE // (size * (length + 1 if verifier.stateful else 1)))
    weights = np.ones((count, length + 1)) if verifier.stateful else None
    if weights is None:
        accepted = _accepted(ids, p, q, verifier, u, step)
    elif length:
        for rows in _slices(count, step):
            tests = block_tests(verifier, ids[rows], p[rows, :length], q[rows])
            accepted[rows], weights[rows] = theory.last_success(tests.success, u[rows]), tests.weights
    for rows in _slices(count, step):
        place, at = accepted[rows], np.arange(count)[rows]
        kept = np.arange(length) < place[:, None]
        tokens[rows, :length][kept] = ids[rows][kept]
        for refused, uniforms in ((place < length, u_residual), (place == length, u_bonus)):
            row, i = at[refused], place[refused]
            law = p[row, i]
            if uniforms is u_residual and len(row):
                weight = None if weights is None else weights[row, i]
                law = _residual(verifier, law, q[row, i], ids[row, i], i, weight)
            tokens[row, i] = categorical(law, uniforms[row])
    return Verified(tokens, accepted)


def block_tests(
    verifier: theory.AnyVerifier, ids: Integers, p: Floats, q: Floats, lengths: Integers | None = None
) -> theory.BlockTests:
    """`theory.block_tests`, without whole steps where the weight is never capped.

    With ω ≤ 1 block verification needs s'(x) of the drafted token and M = s − Σ min(q, ω s p) alone: no residual at
    places where the block does not end. Oracle: `theory.block_tests`.
    """
    if not isinstance(verifier, theory.CappedBlock) or not verifier.lossless or ids.shape[1] == 0:
        return theory.block_tests(verifier, ids, p, q, lengths)
    count, length = ids.shape
    omega = np.broadcast_to(verifier.omega, (length,)) if verifier.constant else verifier.omega
    if length > len(omega):
        return theory.block_tests(verifier, ids, p, q, lengths)
    drafted = np.full(count, length) if lengths is None else lengths
    weights, success = np.ones((count, length + 1)), np.zeros((count, length + 1))
    rows = np.arange(count)
    for i in range(length):
        s = omega[i] * weights[:, i]
        kept = s[:, None] * p[:, i]
        p_x, q_x = kept[rows, ids[:, i]], q[rows, i, ids[:, i]]
        weights[:, i + 1] = accept_up_to(p_x, q_x)
        ended = np.maximum(weights[:, i] - np.minimum(kept, q[:, i], out=kept).sum(axis=1), 0.0)
        refused = ended + 1 - weights[:, i]
        success[:, i] = np.divide(ended, refused, out=np.ones(count), where=refused > 0)
    index = np.arange(length + 1)
    success = np.where(index < drafted[:, None], success, np.where(index == drafted[:, None], weights, 0.0))
    return theory.BlockTests(weights, success)


def sampler(verifier: theory.AnyVerifier) -> Callable[[Any, np.random.Generator], Verified]:
    """`verify` as a sampler of `simulate.testing`."""
    return lambda rounds, rng: verify(rounds.draft_ids, rounds.target_probs, rounds.draft_probs, verifier, rng)


def _slices(count: int, step: int) -> list[slice]:
    return [slice(start, min(start + step, count)) for start in range(0, count, step)]


def _accepted(
    ids: Integers, p: Floats, q: Floats, verifier: theory.AnyVerifier, u: Floats, step: int
) -> Integers:  # fmt: skip
    count, length = ids.shape
    if is_pointwise(verifier):
        rows, places = np.arange(count)[:, None], np.arange(length)
        p_x, q_x = p[rows, places, ids], q[rows, places, ids]
        for name, law in (("target_probs", p_x), ("draft_probs", q_x)):
            bad = np.argwhere(~((law >= 0) & (law < np.inf)))
            if len(bad):
                row, i = bad[0]
                raise ValueError(f"{name}: round {row} has {float(law[row, i])!r} at drafted token {i}")
        f = acceptance_of(verifier, p_x[..., None], q_x[..., None], places)[..., 0]
        return np.asarray(np.cumprod(u < f, axis=1).sum(axis=1), dtype=np.int64)
    accepted, running = np.zeros(count, dtype=np.int64), np.arange(count)
    for i in range(length):
        kept = [np.zeros(0, dtype=np.int64)]
        for some in _slices(len(running), step):
            rows = running[some]
            f = to_numpy(acceptance_of(verifier, p[rows, i], q[rows, i], i))
            kept.append(rows[u[rows, i] < f[np.arange(len(rows)), ids[rows, i]]])
        running = np.concatenate(kept)
        accepted[running] += 1
    return accepted


def _residual(
    verifier: theory.AnyVerifier, p: Floats, q: Floats, refused: Integers, places: Integers, weight: Floats | None
) -> Floats:
    if weight is not None:
        return np.asarray(verifier.step(p, q, places, weight).residual)
    omega = _factors(verifier, places)
    if omega is not None:
        # q f = min(q, ω p): Norm[p − q f]_+ without f, without its normalisation, and in place.
        masses = np.minimum(q, omega[:, None] * p)
        np.subtract(p, masses, out=masses)
        np.maximum(masses, 0, out=masses)
        empty = masses.sum(axis=1) <= EMPTY_RESIDUAL * np.finfo(masses.dtype).eps
        masses[empty] = p[empty]
        return masses
    f = acceptance_of(verifier, p, q, places)
    return np.asarray(residual_after(verifier, p, q, f, refused, places))


def _factors(verifier: theory.AnyVerifier, places: Integers) -> Floats | None:
    """ω of each place for lossless or multiplicative verification with the optimal residual, else None."""
    if not isinstance(verifier, theory.Verifier) or verifier.residual is not theory.optimal_residual:
        return None
    rule = verifier.rule
    if isinstance(rule, theory.Lossless):
        return np.ones(len(places))
    if not isinstance(rule, theory.Relaxed) or not np.isfinite(rule.omega).all():
        return None
    return np.asarray(rule.omega[0 * places if rule.constant else places])


def _checked(draft_ids: Any, target_probs: Any, draft_probs: Any) -> tuple[Integers, Floats, Floats]:
    ids = to_numpy(draft_ids)
    p, q = (to_numpy(as_floats(law)) for law in (target_probs, draft_probs))
    if ids.ndim != 2 or (ids.size and ids.dtype.kind not in "iu"):
        raise ValueError(f"draft_ids must be integers of shape (B, L), got {ids.dtype} of shape {ids.shape}")
    count, length = ids.shape
    if p.ndim != 3 or q.ndim != 3 or p.shape[:2] != (count, length + 1) or q.shape[:2] != (count, length):
        raise ValueError(
            f"for draft_ids of shape {ids.shape} the laws must have shapes ({count}, {length + 1}, V) and ({count}, "
            f"{length}, V), got {p.shape} and {q.shape}"
        )
    same_vocabulary(p.shape[2], q.shape[2])
    bad = np.argwhere((ids < 0) | (ids >= p.shape[2]))
    if len(bad):
        row, i = bad[0]
        raise ValueError(f"draft_ids: round {row} has {ids[row, i]} at place {i}; tokens lie in 0…{p.shape[2] - 1}")
    return ids.astype(np.int64, copy=False), p, q
