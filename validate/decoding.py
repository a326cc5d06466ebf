"""Speculative decoding of whole images with real networks, and of single rounds behind given prefixes.

Images are decoded in batches by `validate.decoder`; every image has its own noise, so batches do not matter to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tqdm import tqdm

from theory import AnyVerifier
from validate.decoder import Clock, Decoder
from validate.models import Pair, resolve_device
from validate.noise import image_noise


@dataclass(frozen=True)
class Decoded:
    """Images as tokens, and what decoding them took.

    Attributes
    ----------
    tokens : int64 array, shape (B, T)
    classes : int64 array, shape (B,)
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
    """

    tokens: np.ndarray
    classes: np.ndarray
    accepted: np.ndarray
    calls: np.ndarray
    starts: np.ndarray
    seconds: dict[str, float]
    steps: dict[str, int]
    guidance: float

    @property
    def tokens_per_call(self) -> float:
        """Tokens over target calls, all images together."""
        return float(self.tokens.size / self.calls.sum())


def class_numbers(images: int | Sequence[int], num_classes: int) -> np.ndarray:
    """Classes of the images: a count cycles through all classes, a list is taken as it is."""
    if isinstance(images, (int, np.integer)) and not isinstance(images, bool):
        if images < 1:
            raise ValueError(f"images must be a number >= 1 or a list of class numbers, got {images}")
        return np.arange(images) % num_classes
    classes = np.asarray(images)
    if classes.ndim != 1 or classes.size == 0 or classes.dtype.kind not in "iu":
        raise ValueError(f"images must be a number >= 1 or a list of class numbers, got {images!r}")
    bad = np.flatnonzero((classes < 0) | (classes >= num_classes))
    if bad.size:
        raise ValueError(f"images[{bad[0]}] is class {classes[bad[0]]}; classes lie in 0…{num_classes - 1}")
    return classes.astype(np.int64)


def _join(columns: list[np.ndarray]) -> np.ndarray:
    width = max(c.shape[1] for c in columns)
    return np.concatenate([np.pad(c, ((0, 0), (0, width - c.shape[1])), constant_values=-1) for c in columns])


@torch.no_grad()
def decode(
    pair: Pair,
    verifier: AnyVerifier | None,
    length: int,
    images: int | Sequence[int],
    *,
    device: str = "auto",
    seed: int = 0,
    guidance: float | None = None,
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
    images : int or sequence of int
        How many images (classes in turn), or the class of each.
    device : str
        "auto", "cpu" or "cuda".
    seed : int
        Image k of every run with this seed has the same noise, whatever the batch.
    guidance : float, optional
        Classifier-free guidance of both networks; the pair's own by default.
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
    classes = class_numbers(images, pair.num_classes)
    tokens: list[np.ndarray] = []
    accepted: list[np.ndarray] = []
    starts: list[np.ndarray] = []
    clock = Clock(place)
    began = clock.now()
    with tqdm(total=len(classes), unit="image", desc="decoding", disable=not progress, leave=False) as bar:
        for first in range(0, len(classes), batch):
            numbers = range(first, min(first + batch, len(classes)))
            noise = image_noise(seed, numbers, pair.num_tokens, max(length, 1), place)
            chosen = torch.from_numpy(classes[numbers.start : numbers.stop]).to(place)
            decoder = Decoder(pair, chosen, noise, scale)
            decoder.clock = clock
            for out, value in zip((tokens, accepted, starts), decoder.run(verifier, length, bar), strict=True):
                out.append(value)
    clock.seconds["total"] = clock.now() - began
    rounds = _join(accepted)
    return Decoded(
        tokens=np.concatenate(tokens),
        classes=classes,
        accepted=rounds,
        calls=(rounds >= 0).sum(axis=1),
        starts=_join(starts),
        seconds=clock.seconds,
        steps=clock.steps,
        guidance=scale,
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
    tokens, accepted = [], []
    for first in range(0, len(start), batch):
        rows = slice(first, min(first + batch, len(start)))
        noise = image_noise(seed, range(rows.start, rows.stop), pair.num_tokens, max(length, 1), place)
        placed = torch.from_numpy(start[rows].astype(np.int64)).to(place)
        decoder = Decoder(
            pair,
            torch.from_numpy(prefix.classes[rows]).to(place),
            noise,
            prefix.guidance,
            prefix=torch.from_numpy(prefix.tokens[rows]).to(place),
            placed=placed,
            end=placed + length + 1,
        )
        accepted.append(decoder.round(verifier, length).cpu().numpy())
        tokens.append(decoder.run(None, 0)[0])
    return np.concatenate(tokens), np.concatenate(accepted)
