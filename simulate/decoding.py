"""Block decoding: rounds of drafting, verification and correction, for many sequences at once.

One round of a sequence that has T' tokens left: draft k = min(L, T') tokens x_1…x_k from q one after the other;
evaluate p after every prefix of the block; accept x_i while u_i < f_i(x_i), strictly, u_i ∈ [0, 1); at the first
rejection i draw x_i ~ G_i and end the round; if all k are accepted and room is left (k = L < T') draw one bonus token
from p. The law of the T tokens is exactly that of `theory.analyse_sequence`, the oracle of this module; the number of
rounds is its number of calls.

Rows are at different lengths after their first rejection. Loops run over rounds and block positions, never over
rows, and a row uses its own uniforms whatever the other rows do.

>>> p, q = theory.IIDChain([0.5, 0.3, 0.2]), theory.IIDChain([0.2, 0.3, 0.5])
>>> run = decode(p, q, theory.Verifier(theory.Lossless()), 3, 8, 1000, np.random.default_rng(0))
>>> run.tokens.shape, bool(np.all(run.calls == (run.accepted >= 0).sum(axis=1)))
((1000, 8), True)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

import theory
from simulate.draws import Streams, categorical, streams
from theory.arrays import same_vocabulary, to_numpy, whole_number
from theory.chains import check_depth

Floats = np.ndarray[Any, np.dtype[np.float64]]
Integers = np.ndarray[Any, np.dtype[np.int64]]


class Decoded(NamedTuple):
    """What `decode` returns."""

    tokens: Integers
    """Shape (B, T)."""
    accepted: Integers
    """Shape (B, R): accepted drafts of every round, −1 behind a sequence's last round. A round cut off by the end of
    the sequence counts the drafts that were kept."""
    calls: Integers
    """Shape (B,): rounds, hence target calls."""


class DecodedRound(NamedTuple):
    """What `decode_round` returns."""

    tokens: Integers
    """Shape (B, L+1): the round's output, continued with the target where it is shorter."""
    accepted: Integers
    """Shape (B,): accepted drafts."""


def _laws(chain: theory.Chain, tokens: Integers, lengths: Integers) -> Floats:
    return np.asarray(to_numpy(theory.conditional_at(chain, tokens, lengths)), dtype=np.float64)


def _play_round(
    target: theory.Chain,
    draft: theory.Chain,
    verifier: theory.AnyVerifier,
    length: int,
    tokens: Integers,
    lengths: Integers,
    draws: Streams,
) -> tuple[Integers, Integers]:
    """One round of every unfinished row, written into `tokens`; accepted drafts and new lengths, both (B,).

    Finished rows get −1 accepted drafts. Uniforms are drawn for all rows, so that a row's draws are its own.
    """
    count, end = tokens.shape
    u_draft, u_accept = draws.draft.random((count, length)), draws.acceptance.random((count, length))
    u_residual, u_bonus = draws.residual.random(count), draws.bonus.random(count)
    block = np.minimum(length, end - lengths)
    width = int(block.max())
    p = np.zeros((width, count, target.vocab_size))
    q = np.zeros_like(p)
    for i in range(width):
        rows = np.flatnonzero(block > i)
        at = lengths[rows] + i
        q[i, rows] = _laws(draft, tokens[rows], at)
        tokens[rows, at] = categorical(q[i, rows], u_draft[rows, i])

    accepted = np.zeros(count, dtype=np.int64)
    running = block > 0
    for i in range(width):
        rows = np.flatnonzero(block > i)
        at = lengths[rows] + i
        p[i, rows] = _laws(target, tokens[rows], at)
        if verifier.stateful:
            continue
        f = to_numpy(theory.acceptance_of(verifier, p[i, rows], q[i, rows], i))
        f = np.take_along_axis(f, tokens[rows, at][:, None], axis=-1)[:, 0]
        running[rows] &= u_accept[rows, i] < f
        accepted += running & (block > i)

    weights: np.ndarray[Any, Any] | None = None
    if verifier.stateful and width:
        columns = np.minimum(lengths[:, None] + np.arange(width), end - 1)
        drafted = np.take_along_axis(tokens, columns, axis=1)
        found = theory.block_tests(verifier, drafted, p.swapaxes(0, 1), q.swapaxes(0, 1), block)
        accepted = theory.last_success(found.success, u_accept[:, :width])
        weights = found.weights
    rows = np.flatnonzero(accepted < block)
    place = accepted[rows]
    if len(rows):
        weight = None if weights is None else weights[rows, place]
        residual = to_numpy(verifier.step(p[place, rows], q[place, rows], place, weight).residual)
        tokens[rows, lengths[rows] + place] = categorical(residual, u_residual[rows])
    room = (accepted == length) & (lengths + length < end)
    rows = np.flatnonzero(room)
    if len(rows):
        tokens[rows, lengths[rows] + length] = categorical(
            _laws(target, tokens[rows], lengths[rows] + length), u_bonus[rows]
        )
    return np.where(block > 0, accepted, -1), lengths + accepted + (accepted < block) + room


def decode(
    target: theory.Chain,
    draft: theory.Chain,
    verifier: theory.AnyVerifier,
    length: int,
    tokens: int,
    batch: int,
    rng: np.random.Generator | Streams,
    *,
    progress: bool = False,
) -> Decoded:
    """Decode `batch` sequences of `tokens` tokens in rounds of `length` drafts.

    Parameters
    ----------
    target, draft : theory.Chain
        Of one vocabulary, at least `tokens` deep.
    verifier : theory.Verifier
    length : int
        L ≥ 1.
    tokens : int
        T ≥ 1.
    batch : int
        B ≥ 0.
    rng : numpy.random.Generator or Streams
    progress : bool
        Show a bar of decoded tokens.

    Returns
    -------
    Decoded

    Raises
    ------
    ValueError
        For sizes out of range, a chain too shallow, different vocabularies or a schedule shorter than the round.

    Notes
    -----
    Source: THEORY 1 and 6. Oracle: `theory.analyse_sequence`.
    """
    length, tokens, batch = _checked_sizes(target, draft, length, tokens, tokens, batch)
    draws = streams(rng)
    out, lengths = np.zeros((batch, tokens), dtype=np.int64), np.zeros(batch, dtype=np.int64)
    accepted: list[Integers] = []
    with tqdm(total=batch * tokens, unit="token", disable=not progress) as bar:
        while batch and int(lengths.min()) < tokens:
            kept, after = _play_round(target, draft, verifier, length, out, lengths, draws)
            accepted.append(kept)
            bar.update(int((after - lengths).sum()))
            lengths = after
    table = np.stack(accepted, axis=1) if accepted else np.zeros((batch, 0), dtype=np.int64)
    return Decoded(out, table, np.asarray((table >= 0).sum(axis=1), dtype=np.int64))


def decode_round(
    target: theory.Chain,
    draft: theory.Chain,
    verifier: theory.AnyVerifier,
    length: int,
    batch: int,
    rng: np.random.Generator | Streams,
    prefix: Any = None,
) -> DecodedRound:
    """One round after a prefix, continued with the target to L+1 tokens.

    Parameters
    ----------
    target, draft, verifier, length, batch, rng
        As for `decode`.
    prefix : integer array, shape (d,) or (B, d), optional
        Tokens before the round; none by default.

    Returns
    -------
    DecodedRound
        The tokens without the prefix.

    Notes
    -----
    Source: THEORY 1. Oracle: `theory.analyse_round`.
    """
    start = np.zeros(0, dtype=np.int64) if prefix is None else np.asarray(prefix, dtype=np.int64)
    depth = start.shape[-1] if start.ndim else 0
    length, end, batch = _checked_sizes(target, draft, length, depth + length + 1, depth + length, batch)
    if start.ndim not in (1, 2) or (start.ndim == 2 and len(start) != batch):
        raise ValueError(f"prefix must have shape (d,) or ({batch}, d), got {start.shape}")
    draws = streams(rng)
    out = np.zeros((batch, end), dtype=np.int64)
    out[:, :depth] = start
    if batch == 0:
        return DecodedRound(out[:, depth:], np.zeros(0, dtype=np.int64))
    kept, lengths = _play_round(target, draft, verifier, length, out, np.full(batch, depth), draws)
    while int(lengths.min()) < end:
        u, rows = draws.bonus.random(batch), np.flatnonzero(lengths < end)
        out[rows, lengths[rows]] = categorical(_laws(target, out[rows], lengths[rows]), u[rows])
        lengths = lengths + (lengths < end)
    return DecodedRound(out[:, depth:], kept)


def sample(
    chain: theory.Chain, tokens: int, batch: int, rng: np.random.Generator | Streams, *, progress: bool = False
) -> Integers:
    """Sequences drawn token by token from a chain itself, shape (B, T); arguments as for `decode`."""
    tokens, batch = whole_number(tokens, "tokens", 0), whole_number(batch, "batch", 0)
    check_depth(chain, tokens, "chain", f"a sequence of {tokens} tokens")
    draws = streams(rng).bonus
    out = np.zeros((batch, tokens), dtype=np.int64)
    for t in tqdm(range(tokens), unit="token", disable=not progress):
        laws = np.asarray(to_numpy(chain.conditional(out[:, :t])), dtype=np.float64)
        out[:, t] = categorical(laws, draws.random(batch))
    return out


def _checked_sizes(
    target: theory.Chain, draft: theory.Chain, length: Any, tokens: Any, draft_tokens: Any, batch: Any
) -> tuple[int, int, int]:
    length, batch = whole_number(length, "length", 1), whole_number(batch, "batch", 0)
    tokens = whole_number(tokens, "tokens", 1)
    same_vocabulary(target.vocab_size, draft.vocab_size)
    check_depth(target, tokens, "target", f"decoding {tokens} tokens")
    check_depth(draft, draft_tokens, "draft", f"decoding {draft_tokens} tokens")
    return length, tokens, batch
