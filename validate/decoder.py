"""One batch being decoded: draft, verify, accept, round after round.

In each round the draft proposes a block of up to L tokens, one target pass verifies all of them, and every row keeps
its own number of tokens: rows of one batch stand at different places. Acceptance and residual are the theory's own
verifier, on the device's tensors, in float32; draws use float64 uniforms that belong to the image (`validate.noise`).
A round of zero drafted tokens is one target step, so plain autoregressive sampling is the same loop with L = 0.

Networks are seen through `validate.models.interface` alone: caches have a length per row, and dropping rejected tokens
is passing a smaller one. Where a row's block would run past the image, its window is moved back over tokens that are
known already, and what it recomputes is ignored.

A round near the end drafts only as many tokens as are left, and has no bonus token if all of them are accepted;
this leaves the law of the image unchanged (THEORY 6).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from simulate.draws import categorical
from theory import AnyVerifier, acceptance_of, block_tests, last_success, residual_after
from validate.models import Pair, Warp
from validate.models.interface import START, ImageModel, Sequences
from validate.noise import Noise

COMPACT_BELOW = 0.6
"""Finished rows leave the batch once fewer than this share of it are still running: copying the caches is not free."""


FILL_AT_ONCE = 64
"""Known inputs cached by one pass: their logits, which nobody reads, would fill the memory for a whole large image."""


class Writer:
    """A model's batch of images under a warp: laws instead of logits."""

    def __init__(self, model: ImageModel, conditions: Any, guidance: float, warp: Warp) -> None:
        self.sequences: Sequences = model.start(conditions, guidance)
        self.warp = warp

    def laws(self, inputs: Tensor, lengths: Tensor) -> Tensor:
        """Laws after each new input, shape (B, n, V) in float32, after appending the inputs to the cache."""
        return torch.softmax(self.warp(self.sequences.logits(inputs, lengths)), dim=-1)

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only."""
        self.sequences.keep(rows)


@dataclass
class Clock:
    """Adds up seconds by part; waits for the device, since its work runs on after a call returns."""

    device: torch.device
    seconds: dict[str, float] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    _last: float = 0.0

    def now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def start(self) -> None:
        self._last = self.now()

    def lap(self, part: str, steps: int = 0) -> None:
        now = self.now()
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
    conditions : of target and of draft
        What `ImageModel.encode_conditions` of each answered, B rows.
    noise : Noise
        Of the same images.
    guidance : float
    warp : Warp
    prefix : int64 Tensor, shape (B, T), optional
        Known tokens; row b has `placed[b]` of them.
    placed, end : int64 Tensor, shape (B,), optional
        Tokens known at the start (0 by default) and wanted at the end (T by default).
    """

    def __init__(
        self,
        pair: Pair,
        conditions: tuple[Any, Any],
        noise: Noise,
        guidance: float,
        warp: Warp,
        prefix: Tensor | None = None,
        placed: Tensor | None = None,
        end: Tensor | None = None,
    ) -> None:
        rows, total = len(conditions[0]), pair.num_tokens
        device = pair.device
        self.pair, self.noise = pair, noise
        self.inputs = torch.zeros((rows, total + 1), dtype=torch.int64, device=device)
        self.inputs[:, 0] = START
        self.placed = torch.zeros(rows, dtype=torch.int64, device=device) if placed is None else placed.clone()
        self.end = torch.full_like(self.placed, total) if end is None else end
        self.attempts = torch.zeros((rows, total), dtype=torch.int64, device=device)
        self.rows = torch.arange(rows, device=device)
        self.target = Writer(pair.target, conditions[0], guidance, warp)
        self.draft = Writer(pair.draft, conditions[1], guidance, warp)
        self.clock = Clock(device)
        if prefix is not None:
            self.inputs[:, 1:] = prefix
            self._fill()

    def _fill(self) -> None:
        """Cache all known inputs of both networks (those behind a row's prefix are overwritten before use)."""
        for first in range(0, int(self.placed.max()), FILL_AT_ONCE):
            inputs = self.inputs[:, first : min(first + FILL_AT_ONCE, self.pair.num_tokens)]
            for model in (self.target, self.draft):
                model.sequences.logits(inputs, torch.full_like(self.placed, first))

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
            law = self.draft.laws(ids, first)[:, -1]
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
        laws = self.target.laws(ids, first)
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
