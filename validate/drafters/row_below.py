"""Draft heads that know the image's rows: tokens to the right, and tokens one row below, from the target's features.

A row of the image has W tokens; h_j is what the target's head reads after input j (it gives the law of x_j, tokens
numbered from 0). Behind n known tokens a block of L tokens is drafted at the places u = n + k − 1, k = 1…L:

* horizontal head k reads h_{n−1}, the newest feature: H_k = head(h + silu(A_k h + a_k));
* the vertical head reads h_{u−W+1}, which has just seen the token above u: V = head(h + silu(B h + b)). It needs
  nothing of u's own row: the draft of a row is there once the row above is verified, and waits until decoding arrives;
* q_u ∝ exp(α_k H_k + β_k V) where u has a row above, ∝ exp(H_k) in the first row; both halves of guidance are combined
  as the target's are.

The heads look at verified features alone, never at drafted tokens: one small matrix product drafts the block. What is
drafted is verified as any chain is (`validate.decoder`), with q_u as its declared law, so that lossless verification
keeps the target's law whatever the heads say. The first token has no feature before it and is a plain target step.

Source: spatial speculative decoding with horizontal and vertical draft heads (Chen et al. 2510.25739). Reconstructed:
the heads' form (Medusa's residual block over the target's own head), one row of depth, and one drafted chain from
the pool α H + β V; the paper samples a pool of both heads' tokens and verifies them as a tree.

>>> import torch
>>> heads = RowBelowHeads(width=8, length=2, columns=3)
>>> last, above = torch.zeros(1, 8), torch.zeros(1, 2, 8)
>>> heads.logits(torch.nn.Linear(8, 5), last, above, torch.tensor([[False, True]]), "both").shape
torch.Size([1, 2, 5])
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias, Unpack, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from theory import AnyVerifier
from validate.batches import Batch, Decoded, Options, Round, check_round, decode_in_batches
from validate.decoder import Decoder
from validate.drafters.attached import attached_folder, load_attached
from validate.models import Pair, Warp
from validate.models.interface import START
from validate.models.llamagen import LlamaGen
from validate.noise import Noise

__all__ = ["Mode", "RowBelowHeads", "decode_row_below", "laws_by_offset", "shipped_heads"]

Mode: TypeAlias = Literal["both", "horizontal", "vertical"]
"""Which heads draft; the first row has no row above, and the horizontal ones draft there always."""


class RowBelowHeads(nn.Module):
    """Horizontal heads 1…L and one vertical head over features of width D.

    Parameters
    ----------
    width, length, columns : int
        D; L ≥ 1; W, with L < W: the row above must be known as far as the block reaches.

    Raises
    ------
    ValueError
        For a block that reaches below itself.
    """

    def __init__(self, *, width: int, length: int, columns: int) -> None:
        super().__init__()
        if not 1 <= length < columns:
            raise ValueError(
                f"length must lie in 1…{columns - 1} for rows of {columns} tokens, got {length}: a longer block "
                "reaches places whose row above is not known yet"
            )
        self.width, self.length, self.columns = width, length, columns
        self.right = nn.Parameter(torch.zeros(length, width, width))
        self.right_bias = nn.Parameter(torch.zeros(length, width))
        self.below = nn.Linear(width, width)
        self.shares = nn.Parameter(torch.full((2, length), 0.6))

    @property
    def config(self) -> dict[str, int]:
        """The constructor's arguments."""
        return {"width": self.width, "length": self.length, "columns": self.columns}

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        """Fill every parameter, the matrices from `generator`."""
        for matrix in (self.right, self.below.weight):
            matrix.normal_(0.0, 0.5 / self.width**0.5, generator=generator)
        self.right_bias.zero_()
        self.below.bias.zero_()
        # Shares of the two heads in the pool: together about one, as for two equally good experts.
        self.shares.fill_(0.6)

    def horizontal(self, head: Callable[[Tensor], Tensor], last: Tensor) -> Tensor:
        """H_1…H_L (..., L, V) of features (..., D)."""
        moved = torch.einsum("...d,ked->...ke", last, self.right) + self.right_bias
        logits: Tensor = head(last[..., None, :] + functional.silu(moved))
        return logits

    def vertical(self, head: Callable[[Tensor], Tensor], above: Tensor) -> Tensor:
        """V (..., V) of features (..., D) that have just seen the token above."""
        logits: Tensor = head(above + functional.silu(self.below(above)))
        return logits

    def pool(self, horizontal: Tensor, vertical: Tensor, has_above: Tensor, mode: Mode) -> Tensor:
        """Logits (..., k, V) of the draft at the first k offsets, of both heads' (..., k, V); has_above is (..., k)."""
        alpha, beta = self.shares[:, : horizontal.shape[-2], None]
        pooled = vertical if mode == "vertical" else alpha * horizontal + beta * vertical
        return horizontal if mode == "horizontal" else torch.where(has_above[..., None], pooled, horizontal)

    def logits(
        self, head: Callable[[Tensor], Tensor], last: Tensor, above: Tensor, has_above: Tensor, mode: Mode
    ) -> Tensor:
        """Draft logits (..., L, V) of features `last` (..., D) and `above` (..., L, D)."""
        return self.pool(self.horizontal(head, last), self.vertical(head, above), has_above, mode)


def shipped_heads(pair: Pair, folder: str | Path | None = None) -> RowBelowHeads:
    """Heads of an embedded pair's target, by default those that ship.

    Raises
    ------
    FileNotFoundError
        No heads there; `python -m validate.training row-below` makes them.
    WeightsError
        Damaged, or of another target.
    """
    place = attached_folder(pair, "row_below") if folder is None else Path(folder)
    return load_attached(RowBelowHeads, place, pair, "python -m validate.training row-below --out …")


def target_head(pair: Pair) -> Callable[[Tensor], Tensor]:
    """What turns the target's features into logits."""
    target: Any = pair.target
    head = target.output if isinstance(target, LlamaGen) else getattr(target, "head", None)
    if head is None:
        raise ValueError(f"{type(target).__name__} shows no head over its features; draft heads cannot be used with it")
    return head


class RowBelowDecoder(Decoder):
    """State of a batch; `turn` plays a plain target step first, then rounds drafted by the heads."""

    def __init__(
        self, heads: RowBelowHeads, mode: Mode, pair: Pair, conditions: Any, noise: Noise, *others: Any
    ) -> None:
        super().__init__(pair, conditions, noise, *others)
        self.heads, self.mode, self.head = heads, mode, target_head(pair)
        halves = getattr(self.target.sequences, "halves", 1)
        shape = (len(self.placed), halves, pair.num_tokens, heads.width)
        self.features = torch.zeros(shape, dtype=heads.right.dtype, device=pair.device)

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only."""
        super().keep(rows)
        self.features = self.features[rows]

    def turn(self, verifier: AnyVerifier, length: int) -> Tensor:
        """One round of every unfinished row; accepted drafts, −1 for rows that were finished."""
        plain = bool((self.placed_host == 0).any())
        return self.round(None, 0) if plain else self.round(verifier, length)

    def _draft_block(self, length: int) -> Tensor:
        total, columns = self.pair.num_tokens, self.heads.columns
        row = torch.arange(len(self.placed), device=self.placed.device)
        places = torch.clamp(self.placed[:, None] + torch.arange(self.heads.length, device=row.device), max=total - 1)
        has_above = places >= columns
        seen = torch.where(has_above, places - columns + 1, 0)
        last = self.features[row, :, self.placed - 1]
        above = self.features[row[:, None], :, seen].transpose(1, 2)
        logits = self.heads.logits(self.head, last, above, has_above[:, None], self.mode)
        both = logits.transpose(0, 1).flatten(0, 1)
        guided = self.target.sequences.guide(both.float(), places)  # type: ignore[attr-defined]
        laws = torch.softmax(self.target.warp(guided), dim=-1)[:, :length]
        for i in range(length):
            place = places[:, i]
            drawn = self._draw(laws[:, i], self.noise.draft[row, place, self._attempt(row, place)])
            writable = self.placed + i < self.end
            slot = torch.clamp(self.placed + i + 1, max=total)
            self.inputs[row, slot] = torch.where(writable, drawn, self.inputs[row, slot])
        return laws

    def _target_laws(self, length: int) -> Tensor:
        total = self.pair.num_tokens
        window = min(length + 1, total)
        first = torch.clamp(self.placed, max=total - window)
        row = torch.arange(len(self.placed), device=self.placed.device)[:, None]
        read = first[:, None] + torch.arange(window, device=row.device)
        logits, hidden = self.target.sequences.logits(self.inputs[row, read], first, hidden=True)
        halves = self.features.shape[1]
        self.features[row, :, read] = (
            hidden.reshape(halves, -1, *hidden.shape[1:]).permute(1, 2, 0, 3).to(self.features.dtype)
        )
        laws = torch.softmax(self.target.warp(logits), dim=-1)
        wanted = (self.placed - first)[:, None] + torch.arange(length + 1, device=row.device)
        return laws[row, torch.clamp(wanted, max=window - 1)]


def _check(heads: Any, pair: Pair, verifier: Any, length: Any, mode: Any) -> None:
    if not isinstance(heads, RowBelowHeads):
        raise TypeError(
            f"heads must be RowBelowHeads, from shipped_heads(pair) for instance, got {type(heads).__name__}"
        )
    if isinstance(length, bool) or not isinstance(length, (int, np.integer)) or not 1 <= length <= heads.length:
        raise ValueError(f"length must be a whole number in 1…{heads.length}, the heads there are; got {length!r}")
    check_round(verifier, length, 1)
    if mode not in get_args(Mode):
        raise ValueError(f"mode must be one of {', '.join(get_args(Mode))}, got {mode!r}")
    if heads.columns != pair.grid[1]:
        raise ValueError(
            f"the heads know rows of {heads.columns} tokens, pair {pair.name!r} has rows of {pair.grid[1]}"
        )


def decode_row_below(
    pair: Pair,
    heads: RowBelowHeads,
    verifier: AnyVerifier,
    length: int,
    images: Any,
    mode: Mode = "both",
    **options: Unpack[Options],
) -> Decoded:
    """Decode images with drafts from horizontal and row-below heads.

    Parameters
    ----------
    pair : Pair
        Only its target is used.
    heads : RowBelowHeads
        From `shipped_heads`, or trained with `python -m validate.training row-below`.
    verifier : AnyVerifier
        A lossless one keeps the target's law.
    length : int
        1 ≤ L ≤ heads.length drafted tokens a round.
    mode : {"both", "horizontal", "vertical"}
    images, **options
        As for `validate.decode`.

    Returns
    -------
    Decoded
        The first round of every image is the plain step that writes its first token.

    Raises
    ------
    ValueError
        For more drafted tokens than heads, rows of another length, an unknown mode, a target without a head; and as
        `validate.decode`.

    Notes
    -----
    Source: 2510.25739, reconstructed. Oracle: the enumerated law of a network of few tokens, with the draft laws of
    `laws_by_offset` (relaxed verifiers too).
    """
    _check(heads, pair, verifier, length, mode)

    def begin(batch: Batch) -> tuple[Decoder, Round]:
        noise = batch.noise(length)
        # Moved as a copy: the caller keeps heads where the pair is.
        own = copy.deepcopy(heads).to(batch.pair.device)
        decoder = RowBelowDecoder(own, mode, batch.pair, batch.conditions, noise, batch.guidance, batch.warp)
        return decoder, partial(decoder.turn, verifier, length)

    return decode_in_batches(pair, images, begin, drafted=length, **options)


@torch.no_grad()
def laws_by_offset(
    pair: Pair, heads: RowBelowHeads, tokens: Tensor, conditions: Any, guidance: float, warp: Warp, mode: Mode = "both"
) -> tuple[Tensor, Tensor]:
    """Target laws (n, T, V) and draft laws (n, L, T, V) along images, in float64.

    [b, i, t] is the draft of token t in a round that has accepted i tokens, hence began behind t − i of them; where
    that is none (t ≤ i) there is no draft, and a uniform law stands there. With the first token taken from p,
    ``theory.filter_offsets(tokens[:, 1:], p[:, 1:], q[:, :, 1:], verifier, L)`` follows the rest.
    """
    inputs = torch.cat([torch.full_like(tokens[:, :1], START), tokens[:, :-1]], dim=1)
    sequences: Any = pair.target.start(conditions, guidance)
    start = torch.zeros(len(tokens), dtype=torch.int64, device=tokens.device)
    logits, hidden = sequences.logits(inputs, start, hidden=True)
    p = torch.softmax(warp(logits).double(), dim=-1)
    head, columns, total = target_head(pair), heads.columns, tokens.shape[1]
    right = heads.horizontal(head, hidden)
    # V of the place one row below what each feature has just seen: feature j saw token j − 1.
    down = heads.vertical(head, hidden)
    places = torch.arange(total, device=tokens.device)
    has_above = places >= columns
    vertical = down[:, torch.where(has_above, places - columns + 1, 0)]
    q = torch.full((len(tokens), heads.length, total, p.shape[-1]), 1.0 / p.shape[-1], dtype=p.dtype, device=p.device)
    for i in range(min(heads.length, total - 1)):
        # Offset i at place t reads feature t − i − 1.
        alone = right[:, : total - i - 1, i]
        shares = heads.shares[:, i, None]
        own, where = vertical[:, i + 1 :], has_above[i + 1 :, None]
        pooled = own if mode == "vertical" else shares[0] * alone + shares[1] * own
        drafted = alone if mode == "horizontal" else torch.where(where, pooled, alone)
        index = places[i + 1 :].expand(len(tokens), -1)
        q[:, i, i + 1 :] = torch.softmax(warp(sequences.guide(drafted.float(), index)).double(), dim=-1)
    return p, q
