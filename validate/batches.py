"""What every decoder of whole images shares: batches of images, rounds until all are whole, and what is told of them.

A decoder of a batch keeps, for every row, how many tokens it has; a round advances all rows that are not finished, each
by its own number of tokens. Finished rows leave the batch now and then, so that caches shrink. Images have their own
noise (`validate.noise`), hence batches do not matter to them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, TypedDict

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from theory.verifiers import check_verifier
from validate.clock import Clock
from validate.memory import naming_the_batch_that_fits
from validate.models import Pair, Warp, resolve_device
from validate.noise import Noise, image_noise

COMPACT_BELOW = 0.6
"""Finished rows leave the batch once fewer than this share of it are still running: copying the caches is not free."""


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


class BatchDecoder(Protocol):
    """A batch being decoded."""

    clock: Clock
    inputs: Tensor
    """(B, ≥ T+1): START, then the tokens known."""
    rows: Tensor
    """(B,): which row of the batch at its start each row is."""

    def progress(self) -> tuple[np.ndarray, np.ndarray]:
        """Tokens each row has, and is to have, on the host."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only."""
        ...

    def check(self) -> None:
        """Refuse laws that nothing could be drawn from; asked seldom, because it waits for the device."""
        ...


class Options(TypedDict, total=False):
    """Where and how images are decoded; all decoders of whole images take them.

    Attributes
    ----------
    device : {"auto", "cpu", "cuda"}
    seed : int
        0 by default. Image k of every run with this seed has the same noise, whatever the batch.
    guidance : float, optional
        Classifier-free guidance of both networks; the pair's own by default.
    warp : Warp, optional
        Temperature, top-k and top-p of both networks, after guidance; the pair's own by default.
    batch : int
        Images decoded together, 500 by default.
    progress : bool
        Show a bar of finished images; not by default.
    """

    device: str
    seed: int
    guidance: float | None
    warp: Warp | None
    batch: int
    progress: bool


@dataclass(frozen=True)
class Batch:
    """Images that are decoded together.

    Attributes
    ----------
    pair : Pair
        On its device.
    conditions : of target and draft
    numbers : range
        Which images of the run these are.
    seed, guidance, warp : as decoded with
    """

    pair: Pair
    conditions: tuple[Any, Any]
    numbers: range
    seed: int
    guidance: float
    warp: Warp

    def noise(self, attempts: int) -> Noise:
        """The images' own noise, for drafting every place so many times at most."""
        return image_noise(self.seed, self.numbers, self.pair.num_tokens, attempts, self.pair.device)


Round: TypeAlias = Callable[[], Tensor]
"""Plays one round of a batch: accepted drafts of each row (B,), −1 for rows that were finished."""

Begin: TypeAlias = Callable[[Batch], tuple[BatchDecoder, Round]]
"""Starts a batch."""


def check_batch(batch: Any) -> None:
    """Refuse what is no number of images to decode together."""
    if isinstance(batch, bool) or not isinstance(batch, (int, np.integer)) or batch < 1:
        raise ValueError(f"batch must be a whole number >= 1, got {batch!r}")


def check_round(verifier: Any, length: Any, least: int) -> None:
    """Refuse what is no number of drafted tokens, and what does not verify them.

    Raises
    ------
    ValueError
        For a length that is no whole number or below `least`; no verifier for a length ≥ 1.
    TypeError
        Something else in a verifier's place, a rule for instance.
    """
    if isinstance(length, bool) or not isinstance(length, (int, np.integer)) or length < least:
        raise ValueError(f"length must be a whole number >= {least}, got {length!r}")
    if length and verifier is None:
        raise ValueError(f"a round of {length} drafted tokens needs a verifier")
    if verifier is not None:
        check_verifier(verifier)


def rows_of(conditions: tuple[Any, Any], numbers: range) -> tuple[Any, Any]:
    """Some images' conditions, of target and draft."""
    rows = slice(numbers.start, numbers.stop)
    return conditions[0][rows], conditions[1][rows]


def run_rounds(
    decoder: BatchDecoder, play: Round, total: int, bar: tqdm | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rounds until every row is at its end: tokens (B, T), accepted (B, R), starts (B, R); −1 where a row was finished.

    Parameters
    ----------
    total : int
        T.
    """
    placed, end = decoder.progress()
    count = len(placed)
    tokens = torch.zeros((count, total), dtype=torch.int64, device=decoder.inputs.device)
    numbers = np.arange(count)
    accepted, starts = [np.zeros((count, 0), dtype=np.int64)], [np.zeros((count, 0), dtype=np.int64)]
    finished = 0
    while (placed < end).any():
        counts = play().cpu().numpy()
        for out, value in ((starts, np.where(counts < 0, -1, placed)), (accepted, counts)):
            column = np.full((count, 1), -1, dtype=np.int64)
            column[numbers, 0] = value
            out.append(column)
        placed, end = decoder.progress()
        running = placed < end
        if bar is not None:
            bar.update(count - int(running.sum()) - finished)
        finished = count - int(running.sum())
        if running.sum() < COMPACT_BELOW * len(running):
            tokens[decoder.rows] = decoder.inputs[:, 1 : total + 1]
            decoder.check()
            decoder.keep(torch.from_numpy(np.flatnonzero(running)).to(tokens.device))
            numbers, placed, end = numbers[running], placed[running], end[running]
    tokens[decoder.rows] = decoder.inputs[:, 1 : total + 1]
    decoder.check()
    return tokens.cpu().numpy(), np.concatenate(accepted, axis=1), np.concatenate(starts, axis=1)


def join(columns: list[np.ndarray]) -> np.ndarray:
    """Tables of different widths below each other, −1 where a row has no more rounds."""
    width = max(c.shape[1] for c in columns)
    return np.concatenate([np.pad(c, ((0, 0), (0, width - c.shape[1])), constant_values=-1) for c in columns])


@torch.no_grad()
def decode_in_batches(
    pair: Pair,
    images: Any,
    begin: Begin,
    *,
    drafted: int,
    device: str = "auto",
    seed: int = 0,
    guidance: float | None = None,
    warp: Warp | None = None,
    batch: int = 500,
    progress: bool = False,
) -> Decoded:
    """Decode images batch by batch.

    Parameters
    ----------
    begin : function
        Starts a batch and says how a round of it is played.
    drafted : int
        Most tokens a row drafts in a round, for what a batch needs of memory.
    images : as for `validate.decode`
    device, seed, guidance, warp, batch, progress : as for `Options`

    Raises
    ------
    ValueError, MemoryError
        As `validate.decode`.
    """
    check_batch(batch)
    if warp is not None and not isinstance(warp, Warp):
        raise ValueError(f"warp must be a validate.Warp(temperature, top_k, top_p), got {warp!r}")
    if guidance is not None and (isinstance(guidance, bool) or not isinstance(guidance, (int, float, np.number))):
        raise ValueError(f"guidance must be a number, got {guidance!r}")
    if not isinstance(device, (str, torch.device)):
        raise ValueError(f'device must be "auto", "cpu" or "cuda", got {device!r}')
    place = resolve_device(device)
    pair = pair.to(place)
    scale = pair.guidance if guidance is None else float(guidance)
    if not np.isfinite(scale):
        raise ValueError(f"guidance must be finite, got {guidance!r}")
    warp = pair.warp if warp is None else warp
    conditions = pair.encode_conditions(images)
    count = len(conditions[0])
    outs: list[tuple[np.ndarray, ...]] = []
    clock = Clock(place)
    began = clock.now()
    with (
        tqdm(total=count, unit="image", desc="decoding", disable=not progress, leave=False) as bar,
        naming_the_batch_that_fits(pair, scale, min(batch, count), drafted, place),
    ):
        for first in range(0, count, batch):
            numbers = range(first, min(first + batch, count))
            decoder, play = begin(Batch(pair, rows_of(conditions, numbers), numbers, seed, scale, warp))
            decoder.clock = clock
            outs.append(run_rounds(decoder, play, pair.num_tokens, bar))
    clock.seconds["total"] = clock.now() - began
    tokens, accepted, starts = (list(column) for column in zip(*outs, strict=True))
    rounds = join(accepted)
    return Decoded(
        tokens=np.concatenate(tokens),
        classes=pair.classes(conditions[0]),
        accepted=rounds,
        calls=(rounds >= 0).sum(axis=1),
        starts=join(starts),
        seconds=clock.seconds,
        steps=clock.steps,
        guidance=scale,
        warp=warp,
        conditions=images,
    )
