"""Golden data on the device: LlamaGen's networks against numbers of the official code on random weights.

Float32 must agree to 2e-5 + 1e-5 |x| (the official code disagrees with itself by 4e-6); pixels to 5e-5. In bfloat16
every operation rounds to 2⁻⁸ relative, and logits pass through some 2·layers + 1 of them: the root mean square error is
held below 2⁻⁸·√(2·layers + 1) of the logits' own root mean square times BFLOAT_ALLOWANCE; single logits are recorded.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from validate.device_check.checks import check_at_most, left_out
from validate.device_check.recipe import differences_of_tokenizer, differences_of_transformer
from validate.models.interface import START
from validate.models.llamagen import Captions, LlamaGen, load_tokenizer, load_transformer

ATOL, RTOL, PIXELS = 2e-5, 1e-5, 5e-5
BFLOAT_ALLOWANCE = 4.0
FULL_SIZE = 2e-4
FULL_SIZE_SECONDS = 10.0
"""What networks of full size are begun with, at least."""
TRANSFORMERS = {"c2i_a": (4, 4), "c2i_flat": (6, 4), "t2i_a": (4, 3), "t2i_hf": (6, 3)}
"""Tokens a side and heads."""


def find_golden(given: Path | None) -> Path | None:
    """The folder of the golden data: as given, or in the tests beside the package."""
    place = given or Path(__file__).resolve().parents[2] / "tests/data/golden"
    return place if (place / "manifest.json").is_file() else None


def _arrays(folder: Path) -> dict[str, Tensor]:
    with np.load(folder / "data.npz") as archive:
        return {key: torch.from_numpy(archive[key]) for key in archive}


def _model(folder: Path, name: str, device: torch.device, dtype: str, manifest: dict[str, Any]) -> LlamaGen:
    side, heads = TRANSFORMERS[name]
    if name == "t2i_hf":
        return load_transformer(folder / name, device=device, dtype=dtype)
    weights = next(case for case in manifest["cases"] if case["name"] == name)["weights"][0]["file"]
    return load_transformer(folder / str(weights), grid=side, heads=heads, device=device, dtype=dtype)


@torch.no_grad()
def _logits(model: LlamaGen, data: dict[str, Tensor], cached: bool) -> Tensor:
    """Conditional logits of all tokens, (B, T, V), from one pass or token by token through the cache."""
    text = model.config.caption_width > 0
    asked: Any = Captions(data["caption"], data["mask"].bool()) if text else data["class_ids"]
    tokens = data["tokens"].to(model.device)
    inputs = torch.cat([torch.full_like(tokens[:, :1], START), tokens[:, :-1]], dim=1)
    sequences, out = model.start(model.encode_conditions(asked)), []
    width = 1 if cached else inputs.shape[1]
    for first in range(0, inputs.shape[1], width):
        at = torch.full((len(tokens),), first, dtype=torch.int64, device=model.device)
        out.append(sequences.logits(inputs[:, first : first + width], at))
    return torch.cat(out, dim=1).cpu()


def golden_section(setting: Any, record: dict[str, Any]) -> None:
    """Transformers in float32 and bfloat16, teacher-forced and cached; the tokenizer's pixels."""
    folder = find_golden(setting.golden)
    if folder is None:
        left_out(record, "golden data not found; name its folder with --golden")
        return
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    try:
        for name in TRANSFORMERS:
            if setting.left <= 0:
                left_out(record, f"{name}: the section's time was over")
                continue
            data = _arrays(folder / name)
            wanted = data["logits_cond"]
            for dtype in ("float32", "bfloat16"):
                model = _model(folder, name, setting.device, dtype, manifest)
                for cached in (False, True):
                    found = _logits(model, data, cached)
                    what = f"{name} {dtype} {'cached' if cached else 'one pass'}"
                    if dtype == "float32":
                        excess = float(((found - wanted).abs() - RTOL * wanted.abs()).max())
                        check_at_most(record, f"{what}: largest |difference| − {RTOL}|x|", excess, ATOL)
                        continue
                    error = float((found - wanted).square().mean().sqrt() / wanted.square().mean().sqrt())
                    limit = BFLOAT_ALLOWANCE * 2**-8 * (2 * model.config.layers + 1) ** 0.5
                    check_at_most(record, f"{what}: rms difference over rms", error, limit)
                    record.setdefault("largest_bfloat16_difference", {})[what] = float((found - wanted).abs().max())
        case = next(case for case in manifest["cases"] if case["name"] == "vq_a")
        data, (_, rows, columns) = _arrays(folder / "vq_a"), case["grids"][0]
        tokenizer = load_tokenizer(folder / case["weights"][0]["file"], grid=(rows, columns), device=setting.device)
        with torch.no_grad():
            pixels = tokenizer(tokenizer.codes(data["tokens_0"].to(setting.device))).cpu()
        check_at_most(record, "vq_a float32: pixels", float((pixels - data["pixels_0"]).abs().max()), PIXELS)
        _full_size(setting, record, folder, manifest)
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
    worst = max(c["value"] for c in record["checks"] if "float32" in c["what"])
    record["summary"] = f"float32 within {worst:.1e}; bfloat16 within its tolerance"


def _full_size(setting: Any, record: dict[str, Any], folder: Path, manifest: dict[str, Any]) -> None:
    """The published decoder and LlamaGen-B at full size, weights by recipe, in float32."""
    if setting.quick or setting.left <= FULL_SIZE_SECONDS:
        left_out(record, "networks of full size: no time for them")
        return
    case = next(case for case in manifest["cases"] if case["name"] == "recipe_c2i_B_384")
    found = {
        "recipe_vq16": differences_of_tokenizer(_arrays(folder / "recipe_vq16"), setting.device),
        "recipe_c2i_B_384": differences_of_transformer(_arrays(folder / case["name"]), case, setting.device),
    }
    for name, differences in found.items():
        for what, value in differences.items():
            check_at_most(record, f"{name}: {what}", value, 0.0 if what == "ids" else FULL_SIZE)
