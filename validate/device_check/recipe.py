"""Networks of full size for the golden data: their weights follow from their names by a recipe, so none are stored.

An element is a splitmix64 hash of (CRC-32 of the tensor's name, flat index), scaled by the tensor's kind.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from validate.models.guidance import guided_logits
from validate.models.interface import START
from validate.models.llamagen import Configuration, LlamaGen, LlamaGenTokenizer

__all__ = ["differences_of_tokenizer", "differences_of_transformer", "fill_by_recipe"]


def recipe_tensor(name: str, shape: tuple[int, ...]) -> Tensor:
    """Tensor of a recipe case: splitmix64 of (CRC-32 of the key, flat index), scaled by kind."""
    count = int(np.prod(shape))
    with np.errstate(over="ignore"):
        z = np.arange(count, dtype=np.uint64)
        z += np.uint64(((zlib.crc32(name.encode()) << 32) + 0x9E3779B97F4A7C15) % 2**64)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    u = (z >> np.uint64(40)).astype(np.float64)
    u /= 2**24
    u -= 0.5
    if len(shape) == 1:
        u = 1 + 0.4 * u if name.endswith("weight") else 0.2 * u
    elif "embedding" in name:
        u *= 2
    else:
        u *= 3.4 / np.sqrt(np.prod(shape[1:]))
    return torch.from_numpy(u.astype(np.float32).reshape(shape))


def fill_by_recipe(network: torch.nn.Module) -> Any:
    """Give every tensor of a network on the meta device its recipe value."""
    state = {name: recipe_tensor(name, tuple(value.shape)) for name, value in network.state_dict().items()}
    network.load_state_dict(state, assign=True)
    return network.eval().requires_grad_(False)


def differences_of_tokenizer(data: dict[str, Tensor], device: torch.device) -> dict[str, float]:
    """Largest |difference| of the 16-fold tokenizer's pixels from the golden ones; 72 M elements."""
    with torch.device("meta"):
        tokenizer = LlamaGenTokenizer(
            vocab_size=16384, code_width=8, inside=256, levels=[512, 256, 256, 128, 128], blocks=3, grid=(3, 3)
        )
    network = fill_by_recipe(tokenizer).to(device)
    with torch.no_grad():
        pixels = network(network.codes(data["tokens"].to(device))).cpu()
    return {"pixels": float((pixels - data["pixels"]).abs().max())}


@torch.no_grad()
def differences_of_transformer(data: dict[str, Tensor], case: dict[str, Any], device: torch.device) -> dict[str, float]:
    """Largest |difference| of LlamaGen-B at 384 px from the golden numbers, and best tokens that differ.

    It has 111 M elements. "head" and "lse" are of the first 48 logits and their log-sum, of conditional and null rows;
    "best" of the ten largest guided logits, divided by 1 + 2 s, what guidance of scale s magnifies rounding by; "ids"
    counts those of another token.
    """
    with torch.device("meta"):
        model = LlamaGen(
            Configuration(
                vocab_size=16384, layers=12, heads=12, width=768, hidden=2048, side=24, num_classes=case["null_class"]
            )
        )
    fill_by_recipe(model).to(device)
    tokens = torch.cat([data["tokens"], data["tokens"][:, :1]], dim=1)
    inputs = torch.cat([torch.full_like(tokens[:, :1], START), tokens[:, :-1]], dim=1).to(device)
    scale = case["cfg_scale"]
    both = model.start(torch.tensor([case["class_id"]], device=device), scale)
    logits = both.extend(inputs.repeat(2, 1), torch.zeros(2, dtype=torch.int64, device=device))[0].cpu()
    out = {"head": 0.0, "lse": 0.0}
    for row, key in enumerate(("cond", "null")):
        found = {"head": logits[row, :, :48], "lse": logits[row].double().logsumexp(-1)}
        for name, value in found.items():
            out[name] = max(out[name], float((value - data[f"logits_{key}_{name}"]).abs().max()))
    best = guided_logits(logits[0], logits[1], scale).topk(10)
    out["best"] = float((best.values - data["cfg_top10"]).abs().max()) / (1 + 2 * scale)
    out["ids"] = float((best.indices != data["cfg_top10_ids"]).sum())
    return out
