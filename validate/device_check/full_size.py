"""LlamaGen XL with B as its draft at full size, random values in bfloat16: what steps cost and what is predicted.

Without CUDA, or quickly, networks of the same vocabulary and a few layers stand in: the parts run, their numbers say
nothing about the public models.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np
import torch

import theory
from validate.decoder import Decoder
from validate.device_check.checks import check_at_most, left_out
from validate.device_check.networks import SMALL_DRAFT, SMALL_TARGET, XL, B, random_llamagen, random_pair
from validate.models import Pair
from validate.noise import image_noise
from validate.speed import fixed_acceptance, speed_report
from validate.step_costs import step_costs

LENGTH, RATE = 5, 0.7
MOST_ARITHMETIC = 0.05
"""Largest share of a round that acceptance arithmetic may take at full size on CUDA."""
MOST_ERROR = 0.25
"""Largest relative error of the predicted speed-up: single steps are timed with warm caches and an idle queue."""


@torch.no_grad()
def waits_of_a_round(pair: Pair, rows: int) -> int:
    """How often the host waits for the CUDA device in one round, as torch's own debugging mode counts."""
    noise = image_noise(0, range(rows), pair.num_tokens, LENGTH, pair.device)
    decoder = Decoder(pair, pair.encode_conditions(rows), noise, pair.guidance, pair.warp)
    verifier = theory.cool_sd(LENGTH, 1.1, floor=1.0)
    decoder.round(verifier, LENGTH)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            decoder.round(verifier, LENGTH)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("called a synchronizing" in str(warning.message) for warning in caught)


def full_size_section(setting: Any, record: dict[str, Any]) -> None:
    """Step costs against context, share of the arithmetic, error of the speed model, waits of a round."""
    full = setting.cuda and not setting.quick
    device, dtype = setting.device, torch.bfloat16 if full else torch.float32
    shapes = (XL, B) if full else (SMALL_TARGET, SMALL_DRAFT)
    target, draft = (random_llamagen(shape, device, dtype, seed) for seed, shape in enumerate(shapes))
    pair = random_pair(target, draft, 1.75)
    rows = 8 if full else 2
    if not full:
        left_out(record, "LlamaGen XL and B at full size: stood in for by networks of a few layers")
    record["setting"] = {"dtype": str(dtype), "batch": rows, "length": LENGTH, "guidance": 1.75,
                         "target": vars(shapes[0]), "draft": vars(shapes[1])}  # fmt: skip
    shares = (0.02, 0.25, 0.5, 0.75, 0.95) if full else (0.1, 0.8)
    real = theory.cool_sd(LENGTH, 1.1, floor=1.0)
    costs = step_costs(pair, LENGTH, rows, verifier=real, contexts=shares, repeats=7 if full else 3)
    record["verify_cost"] = [
        {"context": context, "target": t, "draft": d, "verify": w, "v": w / t, "kappa": d / t}
        for context, t, d, w in zip(costs.contexts, costs.target, costs.draft, costs.verify, strict=True)
    ]
    record["accept_seconds"], record["accept_share"] = costs.accept, costs.accept_share
    if full:
        check_at_most(record, "acceptance arithmetic, share of a round", costs.accept_share, MOST_ARITHMETIC)
        record["waits_a_round"] = waits_of_a_round(pair, rows)
        fused = step_costs(pair.compiled(), LENGTH, rows, verifier=real, contexts=(0.5,), repeats=7)
        record["compiled_over_plain"] = {
            part: fused.mean(part) / float(np.interp(fused.contexts[0], costs.contexts, getattr(costs, part)))
            for part in ("target", "draft", "verify")
        }
    else:
        left_out(record, "share of the arithmetic is not checked at this size; waits of a round are CUDA's")
    # Plain sampling and a decoding run, and half as much again for what a first run makes.
    needed = 1.5 * 2 * pair.num_tokens * costs.mean("target")
    if setting.left < needed:
        left_out(record, f"speed model: some {needed:.0f} s needed, {setting.left:.0f} s left")
        return
    speed = speed_report(pair, fixed_acceptance(RATE), LENGTH, rows, device=str(device))
    record["speed"], record["acceptance_rate"] = speed.as_json(), RATE
    if full:
        check_at_most(record, "speed model, |relative error|", abs(speed.error), MOST_ERROR)
    else:
        # Milliseconds on a shared CPU: shown, and held to nothing but being a number.
        check_at_most(record, "speed model, |relative error| is finite", abs(speed.error), sys.float_info.max)
    record["summary"] = (
        f"kappa {costs.kappa:.2f}, v {costs.verify_ratio:.2f}, arithmetic {costs.accept_share:.1%} of a round, "
        f"speed-up predicted {speed.predicted_batch:.2f}, measured {speed.measured:.2f}"
    )
