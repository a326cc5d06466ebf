"""Speculative decoding of whole images with real networks, and of single rounds behind given prefixes.

Images are decoded in batches by `validate.decoder`; every image has its own noise, so batches do not matter to it.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Unpack

import numpy as np
import torch

from theory import AnyVerifier
from validate.batches import (
    Batch,
    Decoded,
    Options,
    Round,
    check_batch,
    check_round,
    decode_in_batches,
    rows_of,
    run_rounds,
)
from validate.decoder import Decoder
from validate.models import Pair
from validate.noise import image_noise

__all__ = ["Decoded", "decode", "decode_one_round"]


def decode(
    pair: Pair,
    verifier: AnyVerifier | None,
    length: int,
    images: Any,
    **options: Unpack[Options],
) -> Decoded:
    """Decode images speculatively.

    Parameters
    ----------
    pair : Pair
        From `validate.load`; its chosen draft proposes.
    verifier : Verifier or None
        The theory's verifier; None only for length 0.
    length : int
        L ≥ 0 drafted tokens a round; 0 is plain autoregressive sampling from the target.
    images : int or sequence
        How many images (classes in turn), or the class, caption or prompt of each (see `Pair.encode_conditions`).
    **options
        device, seed, guidance, warp, batch, progress: see `validate.Options`.

    Returns
    -------
    Decoded

    Raises
    ------
    ValueError
        For a bad count, class, length, seed, batch or guidance; RuntimeError for CUDA asked for and absent.
    MemoryError
        The batch does not fit; the message names one that would.

    Notes
    -----
    Equal seeds give equal images on one platform up to float32 rounding of the networks, which may depend on the
    batch's size. Oracle: `simulate.decode` and `theory.analyse_sequence` on a network of a few tokens.
    """
    check_round(verifier, length, 0)

    def begin(batch: Batch) -> tuple[Decoder, Round]:
        noise = batch.noise(max(length, 1))
        decoder = Decoder(batch.pair, batch.conditions, noise, batch.guidance, batch.warp)
        return decoder, partial(decoder.round, verifier, length)

    return decode_in_batches(pair, images, begin, drafted=length, **options)


@torch.no_grad()
def decode_one_round(
    pair: Pair,
    verifier: AnyVerifier,
    length: int,
    prefix: Decoded,
    start: np.ndarray,
    *,
    seed: int = 0,
    batch: int = 500,
) -> tuple[np.ndarray, np.ndarray]:
    """One round behind given prefixes, continued with the target to L+1 tokens.

    Parameters
    ----------
    prefix : Decoded
        Images whose first `start[b]` tokens are kept.
    start : integer array, shape (B,)
        At most T − L − 1.

    Returns
    -------
    tokens : int64 array, shape (B, T)
        Positions start…start+L are new; the prefix stands before them, what follows is of no meaning.
    accepted : int64 array, shape (B,)
    """
    check_round(verifier, length, 1)
    check_batch(batch)
    start = np.asarray(start)
    if not np.issubdtype(start.dtype, np.integer):
        raise ValueError(f"start must hold whole numbers, got {start.dtype}")
    if start.shape != (len(prefix.tokens),):
        raise ValueError(f"start must hold one place per image, shape ({len(prefix.tokens)},), got {start.shape}")
    late = np.flatnonzero((start < 0) | (start + length + 1 > pair.num_tokens))
    if late.size:
        raise ValueError(
            f"start[{late[0]}] is {start[late[0]]}; a round of {length} drafted tokens and one more must lie within "
            f"the image's {pair.num_tokens} tokens"
        )
    place = pair.device
    conditions = pair.encode_conditions(prefix.asked)
    tokens, accepted = [], []
    for first in range(0, len(start), batch):
        numbers = range(first, min(first + batch, len(start)))
        rows = slice(numbers.start, numbers.stop)
        noise = image_noise(seed, numbers, pair.num_tokens, max(length, 1), place)
        placed = torch.from_numpy(start[rows].astype(np.int64)).to(place)
        decoder = Decoder(
            pair,
            rows_of(conditions, numbers),
            noise,
            prefix.guidance,
            prefix.warp,
            prefix=torch.from_numpy(prefix.tokens[rows]).to(place),
            placed=placed,
            end=placed + length + 1,
        )
        accepted.append(decoder.round(verifier, length).cpu().numpy())
        tokens.append(run_rounds(decoder, partial(decoder.round, None, 0), pair.num_tokens)[0])
    return np.concatenate(tokens), np.concatenate(accepted)
