"""Block decoding: rounds of drafting, verification and correction, for many sequences at once.

One round of a sequence that has T' tokens left: draft k = min(L, T') tokens x_1…x_k from q one after the other;
evaluate p after every prefix of the block; accept x_i while u_i < f_i(x_i), strictly, u_i ∈ [0, 1); at the first
rejection i draw x_i ~ G_i and end the round; if all k are accepted and room is left (k = L < T') draw one bonus token
from p. The law of the T tokens is exactly that of `theory.analyse_sequence`, the oracle of this module; the number of
rounds is its number of calls.

A generator as the source of randomness asks for that law and no more: where chains and verifier allow it, outcomes are
drawn from tables (`simulate.tables`), one draw a token. `Streams` ask for the mechanism above, with a uniform for every
draft, comparison, replacement and bonus token, as do block verifiers and chains without tables. Rows are then at
different lengths after their first rejection; loops run over rounds and block positions, never over rows, and a row
uses its own uniforms whatever the other rows do.

>>> p, q = theory.IIDChain([0.5, 0.3, 0.2]), theory.IIDChain([0.2, 0.3, 0.5])
>>> run = decode(p, q, theory.Verifier(theory.Lossless()), 3, 8, 1000, np.random.default_rng(0))
>>> run.tokens.shape, bool(np.all(run.calls == (run.accepted >= 0).sum(axis=1)))
((1000, 8), True)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tqdm import tqdm

import theory
from simulate.decoded import Decoded, DecodedRound, continue_with_target, until_finished
from simulate.draws import Streams, categorical, streams
from simulate.laws import Integers, laws_after
from simulate.mechanism import play_round
from simulate.tables import LARGEST_RECORDS, Plan, Walk, merge_of
from theory.arrays import same_vocabulary, whole_number
from theory.chains import check_depth

TABLES_PAY = 2
"""Tables are built if they have at most half as many bins as the mechanism would compute masses: a bin costs about
.2 µs to build, a mass .1 to .5 µs to use."""


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
        A generator draws from tables where they apply and pay; streams always play the mechanism (see the module).
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
    Source: Leviathan et al. 2211.17192; docs: The mathematics, Many rounds. Oracle: `theory.analyse_sequence`.
    """
    length, tokens, batch = _checked_sizes(target, draft, length, tokens, tokens, batch)
    plan = _plan(target, draft, verifier, length, tokens, batch, rng, repeat=True)
    if plan is not None:
        with tqdm(total=batch * tokens, unit="token", disable=not progress) as bar:
            run = _sequences(plan.build(verifier), batch, _child(rng))
            bar.update(batch * tokens)
        return run
    draws = streams(rng)

    def play(out: Integers, lengths: Integers) -> tuple[Integers, Integers]:
        return play_round(target, draft, verifier, length, out, lengths, draws)

    return until_finished(play, batch, tokens, progress)


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
    Source: Leviathan et al. 2211.17192; docs: The mathematics, One round. Oracle: `theory.analyse_round`.
    """
    start = np.zeros(0, dtype=np.int64) if prefix is None else np.asarray(prefix, dtype=np.int64)
    depth = start.shape[-1] if start.ndim else 0
    length, end, batch = _checked_sizes(target, draft, length, depth + length + 1, depth + length, batch)
    if start.ndim not in (1, 2) or (start.ndim == 2 and len(start) != batch):
        raise ValueError(f"prefix must have shape (d,) or ({batch}, d), got {start.shape}")
    bad = np.argwhere((start < 0) | (start >= target.vocab_size))
    if len(bad):
        raise ValueError(
            f"prefix {bad[0].tolist()} is token {start[tuple(bad[0])]}; tokens lie in 0…{target.vocab_size - 1}"
        )
    plan = _plan(target, draft, verifier, length, length + 1, batch, rng, repeat=False, depth=depth)
    if plan is not None:
        walk = plan.build(verifier)
        return DecodedRound(*walk.rounds(walk.start(np.atleast_2d(start), batch), _child(rng)))
    draws = streams(rng)
    out = np.zeros((batch, end), dtype=np.int64)
    out[:, :depth] = start
    if batch == 0:
        return DecodedRound(out[:, depth:], np.zeros(0, dtype=np.int64))
    kept, lengths = play_round(target, draft, verifier, length, out, np.full(batch, depth), draws)
    continue_with_target(target, out, lengths, draws)
    return DecodedRound(out[:, depth:], kept)


@dataclass(frozen=True, eq=False)
class CompiledRound:
    """Rounds of one pair of chains from the start of a sequence, drawn from tables; see `compile_round`."""

    walk: Walk

    def run(self, batch: int, rng: np.random.Generator) -> DecodedRound:
        """As `decode_round`, with the generator itself; the same seed gives the same rounds."""
        batch = whole_number(batch, "batch", 0)
        return DecodedRound(*self.walk.rounds(self.walk.start(np.zeros((1, 0), dtype=np.int64), batch), rng))


def compile_round(
    target: theory.Chain, draft: theory.Chain, verifier: theory.AnyVerifier, length: int
) -> CompiledRound:
    """Tables of one round, to be drawn from any number of times.

    Parameters
    ----------
    target, draft : IIDChain, MarkovChain or TabularChain
    verifier : Verifier
        Token-wise.
    length : int
        L ≥ 1.

    Raises
    ------
    TypeError
        For other chains.
    ValueError
        As `decode_round`; for a verifier that carries a weight; for tables of more than `tables.LARGEST_RECORDS` bins.

    Notes
    -----
    16 bytes and about .2 µs a bin, 2^⌈log₂ 2V⌉ bins for each position and context: .05 MB for V = 16, 200 MB for
    V = 1024 between Markov chains at L = 5. Oracle: `theory.analyse_round`.

    >>> p, q = theory.IIDChain([0.5, 0.3, 0.2]), theory.IIDChain([0.2, 0.3, 0.5])
    >>> rounds = compile_round(p, q, theory.Verifier(theory.Lossless()), 3)
    >>> rounds.run(1000, np.random.default_rng(0)).tokens.shape
    (1000, 4)
    """
    length, _, _ = _checked_sizes(target, draft, length, length + 1, length, 0)
    return CompiledRound(Plan(target, draft, length, length + 1, repeat=False).build(verifier))


def _plan(
    target: theory.Chain,
    draft: theory.Chain,
    verifier: theory.AnyVerifier,
    length: int,
    tokens: int,
    batch: int,
    rng: np.random.Generator | Streams,
    *,
    repeat: bool,
    depth: int = 0,
) -> Plan | None:
    """Tables for this run, or None where only the mechanism will do or is cheaper."""
    if not isinstance(rng, np.random.Generator) or verifier.stateful or batch == 0:
        return None
    if merge_of(target, draft) is None:
        return None
    plan = Plan(target, draft, length, tokens, repeat, depth)
    pays = TABLES_PAY * plan.records <= batch * tokens * target.vocab_size
    return plan if pays and plan.records <= LARGEST_RECORDS else None


def _child(rng: Any) -> np.random.Generator:
    """A generator of its own, so that a second call with the same `rng` draws anew."""
    child: np.random.Generator = rng.spawn(1)[0]
    return child


def _sequences(walk: Walk, batch: int, rng: np.random.Generator) -> Decoded:
    """Rounds read off a walk: each ends at a return to position 0, with as many accepted drafts as it had then."""
    start = walk.start(np.zeros((1, 0), dtype=np.int64), batch)
    tokens, places = walk.run(start, rng)
    accepted, after = places[:-1], places[1:]
    ended = after == 0
    # The end of the sequence cuts a round off after a draft that was kept.
    kept = np.where(ended, accepted, after)[-1]
    ended[-1] = True
    calls = ended.sum(axis=0)
    table = np.full((batch, int(calls.max())), -1, dtype=np.int64)
    found = np.zeros(batch, dtype=np.int64)
    for step in range(len(ended)):
        at = np.flatnonzero(ended[step])
        table[at, found[at]] = accepted[step, at]
        found[at] += 1
    table[np.arange(batch), calls - 1] = kept
    return Decoded(tokens, table, calls)


def sample(
    chain: theory.Chain, tokens: int, batch: int, rng: np.random.Generator | Streams, *, progress: bool = False
) -> Integers:
    """Sequences drawn token by token from a chain itself, shape (B, T); arguments as for `decode`."""
    tokens, batch = whole_number(tokens, "tokens", 0), whole_number(batch, "batch", 0)
    check_depth(chain, tokens, "chain", f"a sequence of {tokens} tokens")
    draws = streams(rng).bonus
    out = np.zeros((batch, tokens), dtype=np.int64)
    for t in tqdm(range(tokens), unit="token", disable=not progress):
        out[:, t] = categorical(laws_after(chain, out[:, :t]), draws.random(batch))
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
