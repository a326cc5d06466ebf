"""A low-resolution drafter on the target's own samples: ``python -m validate.training multiscale``.

The coarse transformer learns the anchors of images that the target wrote at the pair's guidance, by cross-entropy with
their class; the upsampler learns the other cells from the true anchors (`validate.drafters.multiscale_network`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional

from validate.drafters.attached import store_attached
from validate.drafters.multiscale_network import MultiScaleDrafter
from validate.models import Pair
from validate.models.transformer import TokenTransformer
from validate.training.fitting import batches, optimiser, step
from validate.training.on_samples import parser, train_on_samples
from validate.training.presets import Plan

__all__ = ["fit_multiscale", "main"]

WIDTH, HEADS, CHANNELS = 64, 4, 48
BATCH = 64


def fit_multiscale(
    config: dict[str, int], tokens: Tensor, classes: Tensor, plan: Plan, generator: torch.Generator
) -> MultiScaleDrafter:
    """Drafter of the given constructor's arguments on samples, tokens (N, T) and classes (N,)."""
    with torch.device("meta"):
        drafter = MultiScaleDrafter(**config)
    drafter = drafter.to_empty(device="cpu").train()
    drafter.initialise(generator)
    adamw, schedule = optimiser(drafter, plan)
    anchors = drafter.anchors
    others = torch.ones(drafter.num_tokens, dtype=torch.bool)
    others[anchors] = False
    for index in batches(len(tokens), plan, generator, "multiscale"):
        image, known = tokens[index], tokens[index][:, anchors]
        coarse = drafter.coarse_logits(known, classes[index]).flatten(0, 1)
        fine = drafter.upsample(known, classes[index])[:, others].flatten(0, 1)
        loss = functional.cross_entropy(coarse, known.flatten()) + functional.cross_entropy(
            fine, image[:, others].flatten()
        )
        step(loss, drafter, adamw, "multiscale")
        schedule.step()
    return drafter.eval().requires_grad_(False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train a drafter for a pair's target and write its folder; returns the exit status."""
    options = parser("multiscale", "a low-resolution drafter", steps=600).parse_args(arguments)

    def train(
        pair: Pair, tokens: Tensor, classes: Tensor, plan: Plan, generator: torch.Generator, record: dict[str, Any]
    ) -> int:
        target = cast(TokenTransformer, pair.target)
        config = {
            "vocab_size": target.vocab_size,
            "num_classes": target.num_classes,
            "side": target.grid[0],
            "width": WIDTH,
            "heads": HEADS,
            "channels": CHANNELS,
        }
        drafter = fit_multiscale(config, tokens, classes, plan, generator)
        return store_attached(drafter, options.out, pair, record)

    return train_on_samples(options, "multiscale", BATCH, 40, train)
