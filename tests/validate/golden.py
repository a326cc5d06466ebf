"""Golden data in tests/data/golden: numbers of the official code on random weights, and the recipe of large ones."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

GOLDEN = Path(__file__).resolve().parents[1] / "data" / "golden"
MANIFEST = json.loads((GOLDEN / "manifest.json").read_text())
CASES = {case["name"]: case for case in MANIFEST["cases"]}

# The official code disagrees with itself by 4e-6 between its own paths.
ATOL, RTOL = 2e-5, 1e-5
PIXELS = 5e-5
FULL_SIZE = 2e-4


def arrays(name: str) -> dict[str, Tensor]:
    with np.load(GOLDEN / name / "data.npz") as archive:
        return {key: torch.from_numpy(archive[key]) for key in archive}


def weights(name: str) -> Path:
    return GOLDEN / str(CASES[name]["weights"][0]["file"])


def close(found: Tensor, wanted: Tensor, atol: float = ATOL, rtol: float = RTOL) -> None:
    torch.testing.assert_close(found, wanted, atol=atol, rtol=rtol)


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
