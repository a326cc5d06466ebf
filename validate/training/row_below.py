"""Row-below and horizontal draft heads on the target's own samples: ``python -m validate.training row-below``.

On images that the target wrote at the pair's guidance, with features h and guided laws p of a teacher-forced pass, each
of the horizontal heads alone, the vertical head alone and their pool learns KL(p_u ‖ q_u) at all places u it can reach
(definitions: `validate.drafters.row_below`). The pool's loss moves its shares only, so that each head is as good as it
can be by itself and a comparison with and without the vertical head is one of equally trained heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional

from validate.drafters.attached import store_attached
from validate.drafters.row_below import RowBelowHeads
from validate.models import Pair
from validate.models.transformer import TokenTransformer
from validate.training.drafter import guided, halves
from validate.training.fitting import batches, optimiser, step
from validate.training.on_samples import parser, train_on_samples
from validate.training.presets import Plan

__all__ = ["fit_heads", "main"]

BATCH = 32


def _loss(logits: Tensor, p: Tensor, guidance: float) -> Tensor:
    """Mean KL over places, of both halves' logits (2B, n, V) from log-laws (B, n, V)."""
    q = guided(logits, guidance).log_softmax(dim=-1)
    return functional.kl_div(q.flatten(0, 1), p.flatten(0, 1), log_target=True, reduction="batchmean")


def fit_heads(
    target: TokenTransformer,
    tokens: Tensor,
    classes: Tensor,
    guidance: float,
    length: int,
    plan: Plan,
    generator: torch.Generator,
) -> RowBelowHeads:
    """Heads on the target's samples, tokens (N, T) and classes (N,)."""
    columns = target.grid[1]
    with torch.device("meta"):
        heads = RowBelowHeads(width=target.width, length=length, columns=columns)
    heads = heads.to_empty(device="cpu")
    heads.initialise(generator)
    adamw, schedule = optimiser(heads, plan)
    for index in batches(len(tokens), plan, generator, "row below"):
        features, laws = halves(target, tokens[index], classes[index], guidance)
        right = heads.horizontal(target.head, features)
        down = heads.vertical(target.head, features[:, 1 : -columns + 1])
        # Places W, …, T − 1 have a row above.
        loss = _loss(down, laws[:, columns:], guidance)
        for i in range(length):
            alone = right[:, : -i - 1, i]
            loss = loss + _loss(alone, laws[:, i + 1 :], guidance)
            reach = alone[:, columns - i - 1 :].detach()
            pooled = heads.shares[0, i] * reach + heads.shares[1, i] * down.detach()
            loss = loss + _loss(pooled, laws[:, columns:], guidance)
        step(loss / (2 * length + 1), heads, adamw, "row below")
        schedule.step()
    return heads.eval().requires_grad_(False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train heads for a pair's target and write their folder; returns the exit status."""
    p = parser("row-below", "draft heads", steps=300)
    p.add_argument("--length", type=int, default=5)
    options = p.parse_args(arguments)

    def train(
        pair: Pair, tokens: Tensor, classes: Tensor, plan: Plan, generator: torch.Generator, record: dict[str, Any]
    ) -> int:
        target = cast(TokenTransformer, pair.target)
        heads = fit_heads(target, tokens, classes, pair.guidance, options.length, plan, generator)
        return store_attached(heads, options.out, pair, record)

    return train_on_samples(options, "row below", BATCH, 40, train)
