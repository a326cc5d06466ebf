"""Golden data in tests/data/golden: numbers of the official code on random weights."""

from __future__ import annotations

import json
from pathlib import Path

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
