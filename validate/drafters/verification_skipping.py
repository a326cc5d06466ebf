"""Verification skipping on image models: behind a verified round, drafts are emitted unseen by the target.

The loop is `validate.decoder`'s. When a round has been verified, each row throws its own coin: with probability ρ the
next pass is skipped, that is, up to K tokens of the draft are emitted as they are, cut off before the first whose law
has no mass ≥ c (`theory.Skipping`). The next round is verified whatever happened, on top of tokens that the target
reads for the first time in that pass, K + L + 1 inputs wide. A skipped pass costs draft steps only.

The law is known exactly: `filter_skipped` gives the likelihood of finished images from one teacher-forced pass.

Source: partial verification skipping (Dong et al. 2511.13587). Reconstructed, as `theory.skipping` says: the coin, the
truncation, and a draft without features, which the paper's (a feature drafter that reuses stale features) is not.

>>> import theory, validate
>>> skipping = theory.Skipping(most=3, probability=0.5)
>>> lossless = theory.Verifier(theory.Lossless())
>>> run = decode_skipping(validate.load("fashion", device="cpu"), lossless, 4, 2, skipping, device="cpu")
>>> run.tokens.shape, skipped_tokens(run).shape
((2, 49), (2,))
"""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor

import theory
from theory import AnyVerifier, Skipping, SkippingFilter
from validate.batches import Batch, Decoded, Options, Round, check_round, decode_in_batches
from validate.decoder import Decoder
from validate.models import Pair
from validate.scoring import AnyScores

__all__ = ["decode_skipping", "filter_skipped", "skipped_tokens"]

COIN_STREAM = 11
"""Spawn key of the coins, apart from the streams of `validate.noise` and the races of Jacobi decoding."""


def coins(seed: int, numbers: range, tokens: int) -> np.ndarray:
    """One uniform for every place of some images, (n, T): the same whatever the batch."""
    bits = np.random.PCG64(np.random.SeedSequence(int(seed), spawn_key=(COIN_STREAM,)))
    bits.advance(numbers.start * tokens)
    return np.random.Generator(bits).random((len(numbers), tokens))


class SkippingDecoder(Decoder):
    """State of a batch; `turn` verifies a round of every unfinished row, then skips where the coin says so.

    Parameters
    ----------
    skipping : Skipping
    coin : float64 Tensor, shape (B, T)
    others : as for `Decoder`
    """

    def __init__(self, skipping: Skipping, coin: Tensor, *others: Any) -> None:
        super().__init__(*others)
        self.skipping, self.coin = skipping, coin

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only."""
        super().keep(rows)
        self.coin = self.coin[rows]

    def _target_laws(self, length: int) -> Tensor:
        # The target has not read what a skipped pass emitted: the window reaches that far back.
        total, back = self.pair.num_tokens, self.skipping.most
        window = min(back + length + 1, total)
        first = torch.clamp(torch.clamp(self.placed - back, min=0), max=total - window)
        row = torch.arange(len(self.placed), device=self.placed.device)[:, None]
        laws = self.target.laws(self.inputs[row, first[:, None] + torch.arange(window, device=row.device)], first)
        wanted = (self.placed - first)[:, None] + torch.arange(length + 1, device=row.device)
        return laws[row, torch.clamp(wanted, max=window - 1)]

    def turn(self, verifier: AnyVerifier, length: int) -> Tensor:
        """Accepted drafts of the verified round, −1 for rows that were finished."""
        accepted = self.round(verifier, length)
        row, last = torch.arange(len(self.placed), device=self.placed.device), self.pair.num_tokens - 1
        going = self.coin[row, torch.clamp(self.placed, max=last)] < self.skipping.probability
        for _ in range(self.skipping.most):
            going = going & (self.left > 0)
            if not bool(going.any()):
                break
            self.clock.start()
            newest = torch.clamp(self.placed, max=last)
            first = torch.clamp(newest - 1, min=0)
            # Two inputs, because a fully accepted block left one draft input uncached.
            width = torch.arange(2, device=row.device)
            law = self.draft.laws(self.inputs[row[:, None], first[:, None] + width], first)
            law = law[row, newest - first]
            going = going & self.skipping.trusted(law)
            drawn = self._draw(law, self.noise.draft[row, newest, self._attempt(row, newest)])
            slot = torch.clamp(self.placed + 1, max=last + 1)
            self.inputs[row, slot] = torch.where(going, drawn, self.inputs[row, slot])
            self.attempts[row, newest] += going.to(torch.int64)
            self.placed = self.placed + going.to(torch.int64)
            self.clock.lap("draft", 1)
        self.placed_host = self.placed.cpu().numpy().copy()
        return accepted


def decode_skipping(
    pair: Pair,
    verifier: AnyVerifier,
    length: int,
    images: Any,
    skipping: Skipping,
    **options: Unpack[Options],
) -> Decoded:
    """Decode images with skipped passes.

    Parameters
    ----------
    pair, verifier, images, **options
        As for `validate.decode`; the verifier is that of the rounds that are verified.
    length : int
        L ≥ 1 drafted tokens a verified round.
    skipping : Skipping

    Returns
    -------
    Decoded
        `calls`, `accepted` and `starts` tell of the verified rounds; what lies between the end of one and the start of
        the next was emitted unseen (`skipped_tokens`).

    Raises
    ------
    ValueError
        For a skipped pass with its verified round longer than the image, and as `validate.decode`.
    MemoryError
        The batch does not fit; the message names one that would.

    Notes
    -----
    Source: 2511.13587, reconstructed. Oracle: `theory.analyse_skipping` on a network of a few tokens. With ρ = 0 the
    images are those of `validate.decode` with the same seed.
    """
    check_round(verifier, length, 1)
    if not isinstance(skipping, Skipping):
        raise ValueError(f"skipping must be a theory.Skipping, got {skipping!r}")
    if skipping.most + length > pair.num_tokens:
        raise ValueError(
            f"a skipped pass of {skipping.most} tokens and a round of {length} do not fit into an image of "
            f"{pair.num_tokens} tokens; choose fewer"
        )

    def begin(batch: Batch) -> tuple[Decoder, Round]:
        noise = batch.noise(length)
        coin = torch.from_numpy(coins(batch.seed, batch.numbers, pair.num_tokens)).to(batch.pair.device)
        decoder = SkippingDecoder(skipping, coin, batch.pair, batch.conditions, noise, batch.guidance, batch.warp)
        return decoder, partial(decoder.turn, verifier, length)

    return decode_in_batches(pair, images, begin, drafted=length + skipping.most, **options)


def skipped_tokens(run: Decoded) -> np.ndarray:
    """Tokens of each image that no target call has seen before they were emitted, (B,)."""
    played = run.accepted >= 0
    total = run.tokens.shape[1]
    # Behind a round that ends the image there is no bonus token.
    emitted = np.where(played, np.minimum(run.accepted + 1, total - run.starts), 0).sum(axis=1)
    return np.asarray(total - emitted)


def filter_skipped(scores: AnyScores, verifier: AnyVerifier, length: int, skipping: Skipping) -> SkippingFilter:
    """`theory.filter_skipping` of all images, in pieces, as NumPy arrays."""
    pieces = [theory.filter_skipping(tokens, p, q, verifier, length, skipping) for tokens, p, q in scores.pieces()]
    names = [f.name for f in fields(SkippingFilter)]
    return SkippingFilter(*(np.concatenate([getattr(piece, n).cpu().numpy() for piece in pieces]) for n in names))
