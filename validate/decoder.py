"""One batch being decoded: draft, verify, accept, round after round.

In each round the draft proposes a block of up to L tokens, one target pass verifies all of them, and every row keeps
its own number of tokens: rows of one batch stand at different places. Acceptance and residual are the theory's own
verifier, on the device's tensors, in float32 whatever the networks compute in; draws use float64 uniforms that belong
to the image (`validate.noise`). A round of zero drafted tokens is one target step, so plain autoregressive sampling is
the same loop with L = 0.

Networks are seen through `validate.models.interface` alone: caches have a length per row, and dropping rejected tokens
is passing a smaller one. Where a row's block would run past the image, its window is moved back over tokens that are
known already, and what it recomputes is ignored.

A round near the end drafts only as many tokens as are left, and has no bonus token if all of them are accepted: what is
left out nobody would see, and the law of the image is that of whole rounds cut off at the end (`theory.sequences`).

How many drafts each row accepted is the only thing a round asks of the device: how far every row is follows from it on
the host, and a draft step or a plain target step is queued without waiting.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from theory import AnyVerifier
from validate.acceptance import accepted_drafts, draw, residual_row
from validate.clock import Clock
from validate.models import Pair, Warp
from validate.models.interface import START, ImageModel, Sequences
from validate.noise import Noise

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
        # The host's copies: what a round needs to know of them must not wait for the device.
        self.placed_host, self.end_host = self.placed.cpu().numpy().copy(), self.end.cpu().numpy().copy()
        self.sound = torch.ones(rows, dtype=torch.bool, device=device)
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
        for first in range(0, int(self.placed_host.max()), FILL_AT_ONCE):
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
        host = rows.cpu().numpy()
        self.placed_host, self.end_host = self.placed_host[host], self.end_host[host]
        for name in ("inputs", "placed", "end", "attempts", "rows", "sound"):
            setattr(self, name, getattr(self, name)[rows])

    def check(self) -> None:
        """Refuse laws that nothing could be drawn from; asked seldom, because it waits for the device."""
        bad = torch.nonzero(~self.sound)
        if len(bad):
            raise ValueError(
                f"image {int(self.rows[bad[0]])} of the batch: a law of target or draft is not finite, or zero "
                f"everywhere, by token {int(self.placed_host[int(bad[0])])}; are the networks sound at this dtype?"
            )

    def _draw(self, laws: Tensor, uniforms: Tensor) -> Tensor:
        drawn = draw(laws, uniforms)
        self.sound &= drawn.sound
        return drawn.token

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
            back = 1 if i == 0 and bool((self.placed_host > 0).all()) else 0
            newest = torch.clamp(self.placed + i, max=last)
            first = torch.clamp(newest - back, min=0)
            ids = self.inputs[row[:, None], first[:, None] + torch.arange(back + 1, device=row.device)]
            law = self.draft.laws(ids, first)[:, -1]
            laws.append(law)
            drawn = self._draw(law, self.noise.draft[row, newest, self._attempt(row, newest)])
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
        """One round of every unfinished row; accepted drafts of each row, on the host, −1 for rows that were finished.

        `verifier` may be None for length 0, a plain step of the target.
        """
        row = torch.arange(len(self.placed), device=self.placed.device)
        left_host = self.end_host - self.placed_host
        left, active = self.left, left_host > 0
        length = min(length, int(left_host.max()))
        self.clock.start()
        if length:
            q = self._draft_block(length)
        self.clock.lap("draft", length)
        p = self._target_laws(length)
        self.clock.lap("verify", 1)
        count, host = torch.zeros_like(self.placed), np.zeros_like(self.placed_host)
        last = self.pair.num_tokens - 1
        rejected = None
        if length and verifier is not None:
            places = torch.clamp(self.placed[:, None] + torch.arange(length, device=row.device), max=last)
            tokens = self.inputs[row[:, None], places + 1]
            u = self.noise.acceptance[row[:, None], places, self._attempt(row[:, None], places)]
            accepted = accepted_drafts(verifier, tokens, p[:, :-1], q, np.minimum(left_host, length), u)
            count, host = accepted.kept, accepted.kept_host
            residual = residual_row(verifier, accepted, tokens, p[:, :-1], q)
            drafted = torch.clamp(left, max=length)
            rejected = count < drafted
            inside = torch.arange(length, device=row.device) < drafted[:, None]
            # scatter_add_, because places behind the end are clamped onto the last one.
            self.attempts.scatter_add_(1, places, inside.to(torch.int64))
        place = torch.clamp(self.placed + count, max=last)
        following, uniform = p[row, count], self.noise.bonus[row, place]
        if rejected is not None:
            following = torch.where(rejected[:, None], residual, following)
            uniform = torch.where(rejected, self.noise.residual[row, place], uniform)
        emits = count < left
        slot = torch.clamp(self.placed + count + 1, max=last + 1)
        self.inputs[row, slot] = torch.where(emits, self._draw(following, uniform), self.inputs[row, slot])
        self.placed = self.placed + torch.where(left > 0, count + emits, 0)
        self.placed_host = self.placed_host + np.where(active, host + (host < left_host), 0)
        self.clock.lap("accept")
        return torch.from_numpy(np.where(active, host, -1))

    def progress(self) -> tuple[np.ndarray, np.ndarray]:
        """Tokens each row has, and is to have, on the host."""
        return self.placed_host, self.end_host
