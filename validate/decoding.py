"""Speculative decoding of whole images with real networks, and of single rounds behind given prefixes.

Images are decoded in batches by `validate.decoder`; every image has its own noise, so batches do not matter to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from theory import AnyVerifier
from validate.decoder import Clock, Decoder
from validate.memory import naming_the_batch_that_fits
from validate.models import Pair, Warp, resolve_device
from validate.noise import image_noise


@dataclass(frozen=True)
class Decoded:
    """Images as tokens, and what decoding them took.

    Attributes
    ----------
    tokens : int64 array, shape (B, T)
    classes : int64 array, shape (B,)
        −1 for a model without classes.
    accepted : int64 array, shape (B, R)
        Accepted drafts of each round, −1 after an image's last round.
    calls : int64 array, shape (B,)
        Target calls of each image.
    starts : int64 array, shape (B, R)
        Tokens the image had when the round began, −1 likewise.
    seconds : dict
        Wall-clock seconds by part: "draft", "verify", "accept", "total".
    steps : dict
        How many batched "draft" and "verify" passes were made.
    guidance : float
    warp : Warp
    conditions : what the images were asked to show
        As given to `decode`: a count, class numbers, captions, prompts.
    """

    tokens: np.ndarray
    classes: np.ndarray
    accepted: np.ndarray
    calls: np.ndarray
    starts: np.ndarray
    seconds: dict[str, float]
    steps: dict[str, int]
    guidance: float
    warp: Warp = field(default_factory=Warp)
    conditions: Any = None

    @property
    def asked(self) -> Any:
        """What the images were asked to show: `conditions`, or the classes where those were not kept."""
        return self.classes if self.conditions is None else self.conditions

    @property
    def tokens_per_call(self) -> float:
        """Tokens over target calls, all images together."""
        return float(self.tokens.size / self.calls.sum())


def _rows(conditions: tuple[Any, Any], numbers: range) -> tuple[Any, Any]:
    """Some images' conditions, of target and draft."""
    rows = slice(numbers.start, numbers.stop)
    return conditions[0][rows], conditions[1][rows]


def _join(columns: list[np.ndarray]) -> np.ndarray:
    width = max(c.shape[1] for c in columns)
    return np.concatenate([np.pad(c, ((0, 0), (0, width - c.shape[1])), constant_values=-1) for c in columns])


@torch.no_grad()
def decode(
    pair: Pair,
    verifier: AnyVerifier | None,
    length: int,
    images: Any,
    *,
    device: str = "auto",
    seed: int = 0,
    guidance: float | None = None,
    warp: Warp | None = None,
    batch: int = 500,
    progress: bool = False,
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
    device : str
        "auto", "cpu" or "cuda".
    seed : int
        Image k of every run with this seed has the same noise, whatever the batch.
    guidance : float, optional
        Classifier-free guidance of both networks; the pair's own by default.
    warp : Warp, optional
        Temperature, top-k and top-p of both networks, after guidance; the pair's own by default.
    batch : int
        Images decoded together.
    progress : bool
        Show a bar of finished images.

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
    if isinstance(length, bool) or not isinstance(length, (int, np.integer)) or length < 0:
        raise ValueError(f"length must be a whole number >= 0, got {length!r}")
    if length and verifier is None:
        raise ValueError(f"a round of {length} drafted tokens needs a verifier")
    if isinstance(batch, bool) or not isinstance(batch, (int, np.integer)) or batch < 1:
        raise ValueError(f"batch must be a whole number >= 1, got {batch!r}")
    place = resolve_device(device)
    pair = pair.to(place)
    scale = pair.guidance if guidance is None else float(guidance)
    if not np.isfinite(scale):
        raise ValueError(f"guidance must be finite, got {guidance!r}")
    warp = pair.warp if warp is None else warp
    conditions = pair.encode_conditions(images)
    count = len(conditions[0])
    tokens: list[np.ndarray] = []
    accepted: list[np.ndarray] = []
    starts: list[np.ndarray] = []
    clock = Clock(place)
    began = clock.now()
    with (
        tqdm(total=count, unit="image", desc="decoding", disable=not progress, leave=False) as bar,
        naming_the_batch_that_fits(pair, scale, min(batch, count), length, place),
    ):
        for first in range(0, count, batch):
            numbers = range(first, min(first + batch, count))
            noise = image_noise(seed, numbers, pair.num_tokens, max(length, 1), place)
            decoder = Decoder(pair, _rows(conditions, numbers), noise, scale, warp)
            decoder.clock = clock
            for out, value in zip((tokens, accepted, starts), decoder.run(verifier, length, bar), strict=True):
                out.append(value)
    clock.seconds["total"] = clock.now() - began
    rounds = _join(accepted)
    return Decoded(
        tokens=np.concatenate(tokens),
        classes=pair.classes(conditions[0]),
        accepted=rounds,
        calls=(rounds >= 0).sum(axis=1),
        starts=_join(starts),
        seconds=clock.seconds,
        steps=clock.steps,
        guidance=scale,
        warp=warp,
        conditions=images,
    )


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
    start = np.asarray(start)
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
            _rows(conditions, numbers),
            noise,
            prefix.guidance,
            prefix.warp,
            prefix=torch.from_numpy(prefix.tokens[rows]).to(place),
            placed=placed,
            end=placed + length + 1,
        )
        accepted.append(decoder.round(verifier, length).cpu().numpy())
        tokens.append(decoder.run(None, 0)[0])
    return np.concatenate(tokens), np.concatenate(accepted)
