"""One round as a decoder plays it: draft, compare, replace, for many rows at once.

Every row drafts k = min(L, tokens left) tokens from q, compares u_i < f_i(x_i), strictly, a uniform each, and ends
with a token from the residual or, if all L were accepted and room is left, from the target. A block verifier tests all
places of the block and keeps the last success (`theory.blocks`). Loops run over positions, never over rows; laws are
held for a limited number of rows at a time.

>>> p, q = theory.IIDChain([0.5, 0.5]), theory.IIDChain([0.5, 0.5])
>>> tokens, lengths = np.zeros((2, 5), dtype=np.int64), np.zeros(2, dtype=np.int64)
>>> draws = Streams(*np.random.default_rng(0).spawn(4))
>>> [a.tolist() for a in play_round(p, q, theory.Verifier(theory.Lossless()), 3, tokens, lengths, draws)]
[[3, 3], [4, 4]]
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import theory
from simulate.draws import Streams, categorical
from simulate.laws import Floats, Integers, laws_at
from theory.arrays import to_numpy

LAWS_AT_ONCE = 2**22
"""Most entries of the p (and of the q) of a block held together, 32 MiB each; more rows are taken in turns."""


class _Uniforms(NamedTuple):
    """What one round of n rows draws: (n, L), (n, L), (n,), (n,)."""

    draft: Floats
    acceptance: Floats
    residual: Floats
    bonus: Floats


def play_round(
    target: theory.Chain,
    draft: theory.Chain,
    verifier: theory.AnyVerifier,
    length: int,
    tokens: Integers,
    lengths: Integers,
    draws: Streams,
) -> tuple[Integers, Integers]:
    """One round of every unfinished row.

    Parameters
    ----------
    target, draft, verifier, length
        As for `simulate.decode`.
    tokens : integer array, shape (B, T)
        Row b begins with lengths[b] known tokens. **Written into.**
    lengths : integer array, shape (B,)
    draws : Streams
        Uniforms are drawn for all rows, finished ones included, so that a row's draws are its own.

    Returns
    -------
    accepted, lengths : integer arrays, shape (B,)
        Accepted drafts, −1 for finished rows; the new lengths.
    """
    count = len(tokens)
    u_draft, u_accept = draws.draft.random((count, length)), draws.acceptance.random((count, length))
    u_residual, u_bonus = draws.residual.random(count), draws.bonus.random(count)
    accepted, after = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    step = max(1, LAWS_AT_ONCE // (length * target.vocab_size))
    for start in range(0, count, step):
        rows = slice(start, start + step)
        uniforms = _Uniforms(u_draft[rows], u_accept[rows], u_residual[rows], u_bonus[rows])
        accepted[rows], after[rows] = _play_rows(
            target, draft, verifier, length, tokens[rows], np.asarray(lengths[rows]), uniforms
        )
    return accepted, after


def _play_rows(
    target: theory.Chain,
    draft: theory.Chain,
    verifier: theory.AnyVerifier,
    length: int,
    tokens: Integers,
    lengths: Integers,
    u: _Uniforms,
) -> tuple[Integers, Integers]:
    """`play_round` of a few rows, given their uniforms."""
    count, end = tokens.shape
    block = np.minimum(length, end - lengths)
    width = int(block.max())
    p = np.zeros((width, count, target.vocab_size))
    q = np.zeros_like(p)
    for i in range(width):
        rows = np.flatnonzero(block > i)
        at = lengths[rows] + i
        q[i, rows] = laws_at(draft, tokens[rows], at)
        tokens[rows, at] = categorical(q[i, rows], u.draft[rows, i])

    accepted = np.zeros(count, dtype=np.int64)
    running = block > 0
    for i in range(width):
        rows = np.flatnonzero(block > i)
        at = lengths[rows] + i
        p[i, rows] = laws_at(target, tokens[rows], at)
        if verifier.stateful:
            continue
        f = to_numpy(theory.acceptance_of(verifier, p[i, rows], q[i, rows], i))
        f = np.take_along_axis(f, tokens[rows, at][:, None], axis=-1)[:, 0]
        running[rows] &= u.acceptance[rows, i] < f
        accepted += running & (block > i)

    weights: np.ndarray[Any, Any] | None = None
    if verifier.stateful and width:
        columns = np.minimum(lengths[:, None] + np.arange(width), end - 1)
        drafted = np.take_along_axis(tokens, columns, axis=1)
        found = theory.accepted_drafts(
            verifier, drafted, p.swapaxes(0, 1), q.swapaxes(0, 1), u.acceptance[:, :width], block
        )
        accepted, weights = found.count, found.weights
    rows = np.flatnonzero(accepted < block)
    place = accepted[rows]
    if len(rows):
        weight = None if weights is None else weights[rows, place]
        residual = to_numpy(verifier.step(p[place, rows], q[place, rows], place, weight).residual)
        tokens[rows, lengths[rows] + place] = categorical(residual, u.residual[rows])
    room = (accepted == length) & (lengths + length < end)
    rows = np.flatnonzero(room)
    if len(rows):
        tokens[rows, lengths[rows] + length] = categorical(
            laws_at(target, tokens[rows], lengths[rows] + length), u.bonus[rows]
        )
    return np.where(block > 0, accepted, -1), lengths + accepted + (accepted < block) + room
