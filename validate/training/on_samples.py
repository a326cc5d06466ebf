"""What is trained on a target's own images: they are written once, kept, and used by every drafter and head."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from validate.decoding import decode
from validate.drafters.shipped import target_sha256
from validate.models import Pair, load
from validate.models.tensors import WeightsError
from validate.models.transformer import TokenTransformer
from validate.training.fitting import TrainingError
from validate.training.presets import Plan
from validate.training.storage import fingerprint, read_stage, write_stage

__all__ = ["parser", "samples", "train_on_samples"]

RATE = 3e-3
INTERRUPTED = 130


def parser(command: str, what: str, steps: int) -> argparse.ArgumentParser:
    """Options that all these commands have."""
    p = argparse.ArgumentParser(prog=f"python -m validate.training {command}", description=f"Train {what}.")
    p.add_argument("--model", default="fashion", help="name of the pair")
    p.add_argument("--weights", type=Path, help="weights folder of a pair of your own")
    p.add_argument("--out", type=Path, required=True, help="folder to write")
    p.add_argument("--work", type=Path, default=Path("training-drafter"), help="folder of the samples")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--samples", type=int, default=4000)
    p.add_argument("--steps", type=int, default=steps)
    p.add_argument("--threads", type=int)
    return p


def samples(pair: Pair, count: int, seed: int, work: Path) -> tuple[Tensor, Tensor]:
    """Tokens (n, T) and classes (n,) of images that the target writes, from the folder if they are there."""
    identity = fingerprint("drafter samples", target_sha256(pair), count, seed, pair.guidance)
    path = work / "samples.safetensors"
    stored = read_stage(path, identity)
    if stored is None:
        print(f"samples: the target writes {count} images")
        out = decode(pair, None, 0, count, device="cpu", seed=seed, progress=True)
        tensors = {"tokens": torch.from_numpy(out.tokens), "classes": torch.from_numpy(out.classes)}
        write_stage(path, tensors, identity, {})
    else:
        tensors = stored[0]
    return tensors["tokens"], tensors["classes"]


def train_on_samples(
    options: argparse.Namespace,
    name: str,
    batch: int,
    warmup: int,
    train: Callable[[Pair, Tensor, Tensor, Plan, torch.Generator, dict[str, Any]], int],
) -> int:
    """Train and store; the exit status.

    Parameters
    ----------
    options : of `parser`
    name : str
        Of the random stream.
    batch, warmup : int
        Images a step; steps of rising rate.
    train : function
        Of the pair, tokens, classes, plan, generator and what is recorded of the run; stores what it trained and
        answers its bytes.
    """
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    try:
        pair = load(options.model, weights=options.weights, device="cpu")
        if not isinstance(pair.target, TokenTransformer):
            raise WeightsError(f"{options.model} is no embedded pair; only those can be trained here")
        plan = Plan(options.steps, batch, RATE, warmup=min(warmup, options.steps))
        tokens, classes = samples(pair, options.samples, options.seed, options.work)
        generator = torch.Generator().manual_seed(int(fingerprint(options.seed, name)[:15], 16))
        record = {"seed": options.seed, "samples": options.samples, "steps": plan.steps, "guidance": pair.guidance}
        size = train(pair, tokens, classes, plan, generator, record)
    except (FileNotFoundError, TrainingError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"interrupted: finished samples are in {options.work}, the same command uses them", file=sys.stderr)
        return INTERRUPTED
    print(f"wrote {options.out}: {size:,} bytes")
    return 0
