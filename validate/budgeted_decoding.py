"""Budgeted decoding of images: a certificate for whole images, kept by an exact ledger in the decoder's loop.

At every prefix the price of a relaxed step is D(o, p), o = q f + R G, the dearest over the round's offsets; it is
charged to the image's ledger whatever becomes of the token, bonus tokens too, so that the ledger is a function of the
tokens alone (`theory.budget`, modes "prefix" and "prefix_partial"). A step is relaxed with the probability θ that the
ledger allows, else lossless: acceptance and residual mix, q f = θ q f_relaxed + (1 − θ) min(p, q). No image spends more
than ε, hence D(P̂, P) ≤ ε for the laws of whole images.

The ledger is kept in float64 on the laws the decoder really uses. The price behind a fully accepted block needs the
draft's law there too: one more draft step a round than plain decoding.

Source: this project. Oracles: `theory.analyse_budgeted` on networks small enough to enumerate; `theory.filter_budget`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Unpack

import numpy as np
import torch
from torch import Tensor

from theory import AnyVerifier, Budgeted, Step
from theory.budget import LOSSLESS
from theory.sequences import offset_steps
from validate.batches import Batch, Decoded, Options, Round, decode_in_batches
from validate.decoder import Decoder
from validate.models import Pair

__all__ = ["BudgetedImages", "decode_budgeted"]


@dataclass(frozen=True)
class BudgetedImages:
    """Images and what each spent.

    Attributes
    ----------
    images : Decoded
    spent : float64 array, shape (B,)
        Each image's ledger, ≤ ε.
    """

    images: Decoded
    spent: np.ndarray


class _Mixed:
    """The rule's steps, each relaxed with a probability θ of its own: `share` (B, L)."""

    stateful: ClassVar[bool] = False
    lossless = False

    def __init__(self, relaxed: AnyVerifier) -> None:
        self.relaxed, self.share = relaxed, torch.empty(0)

    def step(self, p: Any, q: Any, position: Any, weight: Any = None) -> Step:
        """For whole blocks, p (B, L, V) and positions 0…L−1, or one row of each block, p (B, V) and B positions."""
        where = torch.as_tensor(position, device=p.device)
        if p.ndim == 3:
            share = self.share[:, where]
        else:
            share = self.share[torch.arange(len(p), device=p.device), where]
        steps = [verifier.step(p, q, position) for verifier in (self.relaxed, LOSSLESS)]
        share = share[..., None]
        accepted, replaced = (
            share * a + (1 - share) * b
            for a, b in (
                [step.accepted for step in steps],
                [step.rejection[..., None] * step.residual for step in steps],
            )
        )
        rejection = replaced.sum(dim=-1)
        some = rejection[..., None] > 0
        residual = torch.where(some, replaced / torch.where(some, rejection[..., None], 1.0), p)
        return Step(accepted, rejection, residual)


class _BudgetedDecoder(Decoder):
    """A batch with a ledger for every row."""

    def __init__(self, rule: Budgeted, length: int, *args: Any) -> None:
        super().__init__(*args)
        self.rule, self.length = rule, length
        self.mixed = _Mixed(rule.verifier)
        self.ledger = torch.zeros(len(self.placed), dtype=torch.float64, device=self.placed.device)
        self.spent = self.ledger.clone()
        self._after = torch.empty(0)
        self._drafts = torch.empty(0)

    def keep(self, rows: Tensor) -> None:
        super().keep(rows)
        self.ledger = self.ledger[rows]

    def _draft_block(self, length: int) -> Tensor:
        laws = super()._draft_block(length + 1).double()
        self._drafts = laws / laws.sum(dim=-1, keepdim=True)
        return self._drafts[:, :length]

    def _target_laws(self, length: int) -> Tensor:
        p = super()._target_laws(length).double()
        p = p / p.sum(dim=-1, keepdim=True)
        # The ledger along the drafted path: what stands before a prefix decides, never the token behind it.
        _, output, _ = offset_steps(self.rule.verifier, p, self._drafts, self.length, None)
        prices = self.rule.prices(output, p[..., None, :]).amax(dim=-1)
        spent, closed, shares, after = self.ledger, torch.zeros_like(self.ledger, dtype=torch.bool), [], []
        for j in range(length + 1):
            decision = self.rule.decide(prices[:, j], spent, closed)
            spent, closed = decision.spent, decision.closed
            shares.append(decision.relaxed)
            after.append(spent)
        self.mixed.share, self._after = torch.stack(shares, dim=1), torch.stack(after, dim=1)
        return p

    def round_on_budget(self) -> Tensor:
        """One round; accepted drafts of each row."""
        before = self.placed
        counts = super().round(self.mixed, self.length)
        emitted = self.placed - before
        row = torch.arange(len(emitted), device=emitted.device)
        charged = self._after[row, (emitted - 1).clamp(min=0)]
        self.ledger = torch.where(emitted > 0, charged, self.ledger)
        self.spent[self.rows] = self.ledger
        return counts


def decode_budgeted(
    pair: Pair,
    rule: Budgeted,
    length: int,
    images: Any,
    **options: Unpack[Options],
) -> BudgetedImages:
    """Decode images under a budget for each.

    Parameters
    ----------
    pair : Pair
    rule : Budgeted
        From `theory.budgeted`, in mode "prefix" or "prefix_partial". Its certificate holds for the laws of whole images
        of one condition, up to float32 rounding of the networks.
    length : int
        L ≥ 1.
    images, **options
        As for `validate.decode`.

    Returns
    -------
    BudgetedImages

    Raises
    ------
    TypeError
        For a rule that is not budgeted.
    ValueError
        For another mode, whose ledger depends on hidden offsets; length < 1; and as `validate.decode`.
    """
    if not isinstance(rule, Budgeted):
        raise TypeError(f"expected budgeted(verifier, epsilon, ...), got {rule!r}")
    if not rule.by_prefix:
        raise ValueError(f"mode {rule.mode!r} spends by hidden offset; use mode 'prefix' or 'prefix_partial'")
    if isinstance(length, bool) or not isinstance(length, (int, np.integer)) or length < 1:
        raise ValueError(f"length must be a whole number >= 1, got {length!r}")
    decoders: list[_BudgetedDecoder] = []

    def begin(batch: Batch) -> tuple[Decoder, Round]:
        noise = batch.noise(length)
        decoders.append(
            _BudgetedDecoder(rule, int(length), batch.pair, batch.conditions, noise, batch.guidance, batch.warp)
        )
        return decoders[-1], partial(decoders[-1].round_on_budget)

    found = decode_in_batches(pair, images, begin, drafted=length, **options)
    return BudgetedImages(found, np.concatenate([decoder.spent.cpu().numpy() for decoder in decoders]))
