"""Speculative decoding of image tokens with real networks.

A batch of images is decoded in rounds. In each round the draft proposes a block of up to L tokens, one target pass
verifies all of them, and every row keeps its own number of tokens: rows of one batch stand at different places.
Acceptance and residual are the theory's own `Verifier`, on the device's tensors, in float32; draws use float64
uniforms that belong to the image (`validate.noise`). A round of zero drafted tokens is one target step, so plain
autoregressive sampling is the same loop with L = 0.

Caches are static tables with a length per row (`TokenTransformer.extend`); dropping rejected tokens is passing a
smaller length. Where a row's block would run past the image, its window is moved back over tokens that are known
already, and what it recomputes is ignored.

A round near the end drafts only as many tokens as are left, and has no bonus token if all of them are accepted;
this leaves the law of the image unchanged (THEORY 6).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from simulate.draws import categorical
from theory import AnyVerifier, acceptance_of, block_tests, last_success, residual_after
from validate.models import Pair, TokenTransformer, guided_logits, resolve_device
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


class GuidedModel:
    """A network with its cache, its class (or both halves of the guidance) and one `probabilities` call."""

    def __init__(self, model: TokenTransformer, rows: int, guidance: float) -> None:
        self.model, self.rows, self.guidance = model, rows, guidance
        self.halves = 1 if guidance == 1.0 else 2
        self.cache = model.new_cache(rows * self.halves)

    def probabilities(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Laws after each new input, shape (B, n, V) in float32, after appending them to the cache.

        An input id at or above V is the class token; the second half of the guidance sees the null class there.
        """
        if self.halves == 2:
            null = torch.where(ids >= self.model.vocab_size, self.model.null_id, ids)
            ids, lengths = torch.cat([ids, null]), torch.cat([lengths, lengths])
        logits = self.model.extend(ids, lengths, self.cache, check=False).float()
        if self.halves == 2:
            conditional, null = logits.chunk(2)
            logits = guided_logits(conditional, null, self.guidance)
        return torch.softmax(logits, dim=-1)

    def keep(self, rows: Tensor) -> None:
        """Drop all rows but these from the cache."""
        both = rows if self.halves == 1 else torch.cat([rows, rows + self.rows])
        self.cache, self.rows = self.cache.gather(both), len(rows)


@dataclass
class _Clock:
    """Adds up seconds by part; waits for the device, since its work runs on after a call returns."""

    device: torch.device
    seconds: dict[str, float] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    _last: float = 0.0

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def start(self) -> None:
        self._last = self._now()

    def lap(self, part: str, steps: int = 0) -> None:
        now = self._now()
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self._last
        self.steps[part] = self.steps.get(part, 0) + steps
        self._last = now


def verify_block(
    verifier: AnyVerifier, tokens: Tensor, p: Tensor, q: Tensor, drafted: Tensor, uniforms: Tensor
) -> tuple[Tensor, Tensor]:
    """Accepted drafts of each row and the residual behind them.

    Parameters
    ----------
    verifier : AnyVerifier
        Token-wise: tested from left to right up to the first rejection. A block verifier: every index is tested,
        the last success counts.
    tokens : int64 Tensor, shape (B, L)
    p, q : Tensor, shape (B, L, V)
    drafted : int64 Tensor, shape (B,)
        How many of the L tokens each row really drafted.
    uniforms : float64 Tensor, shape (B, L)

    Returns
    -------
    accepted : int64 Tensor, shape (B,)
    residual : Tensor, shape (B, V)
        Of no meaning where all drafted tokens were accepted.
    """
    row, length = torch.arange(len(tokens), device=tokens.device), tokens.shape[1]
    if verifier.stateful:
        tests = block_tests(verifier, tokens, p, q, drafted.cpu().numpy())
        accepted = last_success(tests.success, uniforms).to(torch.int64)
        at = torch.clamp(accepted, max=length - 1)
        step = verifier.step(p[row, at], q[row, at], at.cpu().numpy(), tests.weights[row, at])
        return accepted, step.residual
    f = torch.broadcast_to(acceptance_of(verifier, p, q, np.arange(length)), q.shape)
    chance = torch.take_along_dim(f, tokens[..., None], -1)[..., 0]
    inside = torch.arange(length, device=row.device) < drafted[:, None]
    accepted = torch.cumprod((uniforms < chance) & inside, dim=1).sum(dim=1)
    at = torch.clamp(accepted, max=length - 1)
    return accepted, residual_after(verifier, p[row, at], q[row, at], f[row, at], tokens[row, at], at.cpu().numpy())


class Decoder:
    """State of a batch that is being decoded; `round` advances every unfinished row.

    Parameters
    ----------
    pair : Pair
    classes : int64 Tensor, shape (B,)
    noise : Noise
        Of the same images.
    guidance : float
    prefix : int64 Tensor, shape (B, T), optional
        Known tokens; row b has `placed[b]` of them.
    placed, end : int64 Tensor, shape (B,), optional
        Tokens known at the start (0 by default) and wanted at the end (T by default).
    """

    def __init__(
        self,
        pair: Pair,
        classes: Tensor,
        noise: Noise,
        guidance: float,
        prefix: Tensor | None = None,
        placed: Tensor | None = None,
        end: Tensor | None = None,
    ) -> None:
        rows, total = len(classes), pair.num_tokens
        device = classes.device
        self.pair, self.noise = pair, noise
        self.inputs = torch.zeros((rows, total + 1), dtype=torch.int64, device=device)
        self.inputs[:, 0] = pair.target.class_ids(classes)
        self.placed = torch.zeros_like(classes) if placed is None else placed.clone()
        self.end = torch.full_like(classes, total) if end is None else end
        self.attempts = torch.zeros((rows, total), dtype=torch.int64, device=device)
        self.rows = torch.arange(rows, device=device)
        self.target = GuidedModel(pair.target, rows, guidance)
        self.draft = GuidedModel(pair.draft, rows, guidance)
        self.clock = _Clock(device)
        if prefix is not None:
            self.inputs[:, 1:] = prefix
            self._fill()

    def _fill(self) -> None:
        """Cache all known inputs of both networks (those behind a row's prefix are overwritten before use)."""
        lengths = torch.zeros_like(self.placed)
        for model in (self.target, self.draft):
            model.probabilities(self.inputs[:, :-1], lengths)

    @property
    def left(self) -> Tensor:
        """Tokens each row still lacks."""
        return self.end - self.placed

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only."""
        self.target.keep(rows)
        self.draft.keep(rows)
        self.noise = self.noise.rows(rows)
        for name in ("inputs", "placed", "end", "attempts", "rows"):
            setattr(self, name, getattr(self, name)[rows])

    def _attempt(self, row: Tensor, place: Tensor) -> Tensor:
        """How often a place was drafted before; finished rows, whose noise is not used, are clamped."""
        return torch.clamp(self.attempts[row, place], max=self.noise.draft.shape[-1] - 1)

    def _draft_block(self, length: int) -> Tensor:
        """Draft `length` tokens behind every row into `inputs`; laws (B, length, V)."""
        last = self.pair.num_tokens - 1
        row = torch.arange(len(self.placed), device=self.placed.device)
        laws = []
        for i in range(length):
            # The newest input alone is enough, except that a fully accepted block left one draft input uncached.
            back = 1 if i == 0 and bool((self.placed > 0).all()) else 0
            newest = torch.clamp(self.placed + i, max=last)
            first = torch.clamp(newest - back, min=0)
            ids = self.inputs[row[:, None], first[:, None] + torch.arange(back + 1, device=row.device)]
            law = self.draft.probabilities(ids, first)[:, -1]
            laws.append(law)
            drawn = categorical(law, self.noise.draft[row, newest, self._attempt(row, newest)])
            writable = self.placed + i < self.end
            slot = torch.clamp(self.placed + i + 1, max=last + 1)
            self.inputs[row, slot] = torch.where(writable, drawn, self.inputs[row, slot])
        return torch.stack(laws, dim=1)

    def _target_laws(self, length: int) -> Tensor:
        """Target laws of the block's tokens and the one after it, shape (B, length+1, V)."""
        total = self.pair.num_tokens
        window = min(length + 1, total)
        first = torch.clamp(self.placed, max=total - window)
        row = torch.arange(len(self.placed), device=self.placed.device)[:, None]
        ids = self.inputs[row, first[:, None] + torch.arange(window, device=row.device)]
        laws = self.target.probabilities(ids, first)
        wanted = (self.placed - first)[:, None] + torch.arange(length + 1, device=row.device)
        return laws[row, torch.clamp(wanted, max=window - 1)]

    def round(self, verifier: AnyVerifier | None, length: int) -> Tensor:
        """One round of every unfinished row; accepted drafts of each row, −1 for rows that were finished.

        `verifier` may be None for length 0, a plain step of the target.
        """
        row = torch.arange(len(self.placed), device=self.placed.device)
        left = self.left
        active = left > 0
        length = min(length, int(left.max()))
        self.clock.start()
        if length:
            q = self._draft_block(length)
        self.clock.lap("draft", length)
        p = self._target_laws(length)
        self.clock.lap("verify", 1)
        drafted = torch.clamp(left, max=length)
        accepted = torch.zeros_like(self.placed)
        last = self.pair.num_tokens - 1
        if length and verifier is not None:
            places = torch.clamp(self.placed[:, None] + torch.arange(length, device=row.device), max=last)
            tokens = self.inputs[row[:, None], places + 1]
            u = self.noise.acceptance[row[:, None], places, self._attempt(row[:, None], places)]
            inside = torch.arange(length, device=row.device) < drafted[:, None]
            accepted, residual = verify_block(verifier, tokens, p[:, :-1], q, drafted, u)
            # scatter_add_, because places behind the end are clamped onto the last one.
            self.attempts.scatter_add_(1, places, inside.to(torch.int64))
        place = torch.clamp(self.placed + accepted, max=last)
        following = p[row, accepted]
        uniform = self.noise.bonus[row, place]
        if length and verifier is not None:
            rejected = accepted < drafted
            following = torch.where(rejected[:, None], residual, following)
            uniform = torch.where(rejected, self.noise.residual[row, place], uniform)
        emits = active & (accepted < left)
        slot = torch.clamp(self.placed + accepted + 1, max=last + 1)
        self.inputs[row, slot] = torch.where(emits, categorical(following, uniform), self.inputs[row, slot])
        self.placed = self.placed + torch.where(active, accepted + emits, 0)
        self.clock.lap("accept")
        return torch.where(active, accepted, -1)

    def run(self, verifier: AnyVerifier | None, length: int, bar: tqdm | None = None) -> tuple[np.ndarray, ...]:
        """Rounds until every row is at its end: tokens (B, T), accepted (B, R), starts (B, R)."""
        rows = len(self.placed)
        tokens = torch.zeros((rows, self.pair.num_tokens), dtype=torch.int64, device=self.placed.device)
        accepted: list[np.ndarray] = []
        starts: list[np.ndarray] = []
        finished = 0
        while len(self.placed) and bool((self.left > 0).any()):
            for out, value in ((starts, self.placed), (accepted, self.round(verifier, length))):
                column = np.full(rows, -1, dtype=np.int64)
                column[self.rows.cpu().numpy()] = value.cpu().numpy()
                out.append(column)
            starts[-1][accepted[-1] < 0] = -1
            running = self.left > 0
            count = int(running.sum())
            if bar is not None:
                bar.update(rows - count - finished)
            finished = rows - count
            if count < COMPACT_BELOW * len(running):
                tokens[self.rows] = self.inputs[:, 1:]
                self.keep(torch.nonzero(running)[:, 0])
        tokens[self.rows] = self.inputs[:, 1:]
        empty = np.zeros((rows, 0), dtype=np.int64)
        columns = (np.stack(a, axis=1) if a else empty for a in (accepted, starts))
        return (tokens.cpu().numpy(), *columns)


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
    clock = _Clock(place)
    began = clock._now()
    with tqdm(total=len(classes), unit="image", desc="decoding", disable=not progress, leave=False) as bar:
        for first in range(0, len(classes), batch):
            numbers = range(first, min(first + batch, len(classes)))
            noise = image_noise(seed, numbers, pair.num_tokens, max(length, 1), place)
            chosen = torch.from_numpy(classes[numbers.start : numbers.stop]).to(place)
            decoder = Decoder(pair, chosen, noise, scale)
            decoder.clock = clock
            for out, value in zip((tokens, accepted, starts), decoder.run(verifier, length, bar), strict=True):
                out.append(value)
    clock.seconds["total"] = clock._now() - began
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
