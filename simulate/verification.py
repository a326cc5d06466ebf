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
from theory.verifiers import acceptance_of, is_pointwise, residual_after

Floats = np.ndarray[Any, np.dtype[np.float64]]
Integers = np.ndarray[Any, np.dtype[np.int64]]

ENTRIES_AT_ONCE = 2**18
"""Entries of the laws worked on together, 2 MiB an array: near the cache, and memory does not grow with B."""


class Verified(NamedTuple):
    """What `verify` returns."""

    tokens: Integers
    """Shape (B, L+1): the accepted drafts and one token more, −1 behind."""
    accepted: Integers
    """Shape (B,): accepted drafts."""


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
    Float32 laws are taken as they are: f is then a float32 number, draws are made in float64. Oracle:
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
            found = theory.accepted_drafts(verifier, ids[rows], p[rows, :length], q[rows], u[rows])
            accepted[rows], weights[rows] = found.count, found.weights
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
    return np.asarray(residual_after(verifier, p, q, None, refused, places))


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
