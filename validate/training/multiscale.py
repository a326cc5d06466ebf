"""A low-resolution drafter on the target's own samples: ``python -m validate.training multiscale``.

The coarse transformer learns the anchors of images that the target wrote at the pair's guidance, by cross-entropy with
their class; the upsampler learns the other cells from the true anchors (`validate.drafters.multiscale_network`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from validate.drafters.attached import store_attached
from validate.drafters.multiscale_network import MultiScaleDrafter
from validate.models import load
from validate.models.tensors import WeightsError
from validate.models.transformer import TokenTransformer
from validate.training.drafter import _samples
from validate.training.fitting import TrainingError, batches, optimiser, step
from validate.training.presets import Plan
from validate.training.storage import fingerprint

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
    parser = argparse.ArgumentParser(
        prog="python -m validate.training multiscale", description="Train a low-res draft."
    )
    parser.add_argument("--model", default="fashion", help="name of the pair")
    parser.add_argument("--out", type=Path, required=True, help="folder of the drafter to write")
    parser.add_argument("--work", type=Path, default=Path("training-drafter"), help="folder of the samples")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--steps", type=int, default=600)
    options = parser.parse_args(arguments)
    try:
        pair = load(options.model, device="cpu")
        if not isinstance(pair.target, TokenTransformer):
            raise WeightsError(f"{options.model} is no embedded pair; only those can be trained here")
        target = pair.target
        config = {
            "vocab_size": target.vocab_size,
            "num_classes": target.num_classes,
            "side": target.grid[0],
            "width": WIDTH,
            "heads": HEADS,
            "channels": CHANNELS,
        }
        plan = Plan(options.steps, BATCH, 3e-3, warmup=min(40, options.steps))
        tokens, classes = _samples(pair, options.samples, options.seed, options.work)
        generator = torch.Generator().manual_seed(int(fingerprint(options.seed, "multiscale")[:15], 16))
        drafter = fit_multiscale(config, tokens, classes, plan, generator)
        record = {"seed": options.seed, "samples": options.samples, "steps": plan.steps, "guidance": pair.guidance}
        size = store_attached(drafter, options.out, pair, record)
    except (FileNotFoundError, TrainingError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"interrupted: finished samples are in {options.work}, the same command uses them", file=sys.stderr)
        return 130
    print(f"wrote {options.out}: {size:,} bytes")
    return 0
