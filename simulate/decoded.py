"""What decoders return, and the two loops that all of them end in: calls until the rows are full, and the target alone.

>>> def play(tokens, lengths):
...     tokens[np.arange(len(lengths)), lengths] = 1
...     return 0 * lengths, lengths + 1
>>> until_finished(play, 2, 3).calls.tolist()
[3, 3]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

import theory
from simulate.draws import Streams, categorical
from simulate.laws import Integers, laws_at


class Decoded(NamedTuple):
    """Sequences of T tokens, of `decode`, `decode_tree` or `decode_jacobi`."""

    tokens: Integers
    """Shape (B, T)."""
    accepted: Integers
    """Shape (B, R): accepted drafts of every round, −1 behind a sequence's last round. A round cut off by the end of
    the sequence counts the drafts that were kept."""
    calls: Integers
    """Shape (B,): rounds, hence target calls."""

    @classmethod
    def counted(cls, tokens: Integers, accepted: Integers) -> Decoded:
        """With the calls counted in the table of accepted drafts."""
        return cls(tokens, accepted, np.asarray((accepted >= 0).sum(axis=1), dtype=np.int64))


class DecodedRound(NamedTuple):
    """One round, of `decode_round` or `decode_tree_round`."""

    tokens: Integers
    """Shape (B, L+1): the round's output, continued with the target where it is shorter."""
    accepted: Integers
    """Shape (B,): accepted drafts."""


def until_finished(
    play: Callable[[Integers, Integers], tuple[Integers, Integers]], batch: int, tokens: int, progress: bool = False
) -> Decoded:
    """Rounds, one after the other, until every row has its tokens.

    Parameters
    ----------
    play : function (tokens, lengths) → (accepted, lengths)
        One round of every unfinished row: writes into tokens (B, T) behind lengths (B,). Accepted drafts are −1 for
        finished rows.
    batch, tokens : int
        B and T.
    progress : bool
        Show a bar of decoded tokens.
    """
    out, lengths = np.zeros((batch, tokens), dtype=np.int64), np.zeros(batch, dtype=np.int64)
    history: list[Integers] = []
    with tqdm(total=batch * tokens, unit="token", disable=not progress) as bar:
        while batch and int(lengths.min()) < tokens:
            accepted, after = play(out, lengths)
            history.append(accepted)
            bar.update(int((after - lengths).sum()))
            lengths = after
    return Decoded.counted(out, np.stack(history, axis=1) if history else np.zeros((batch, 0), dtype=np.int64))


def continue_with_target(target: theory.Chain, tokens: Integers, lengths: Integers, draws: Streams) -> None:
    """Fill rows that end after `lengths` (B,) tokens with tokens drawn from the target, in place; tokens (B, T)."""
    count, end = tokens.shape
    while count and int(lengths.min()) < end:
        u, rows = draws.bonus.random(count), np.flatnonzero(lengths < end)
        tokens[rows, lengths[rows]] = categorical(laws_at(target, tokens[rows], lengths[rows]), u[rows])
        lengths = lengths + (lengths < end)
