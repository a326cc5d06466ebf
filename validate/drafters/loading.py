"""A feature drafter from a published directory: config.json beside pytorch_model.bin or model.safetensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from validate.drafters.feature import DrafterConfiguration, FeatureDrafter
from validate.models.checkpoints import dtype_of, read_checkpoint, weights_in
from validate.models.devices import resolve_device
from validate.models.llamagen.configuration import entries_of, llama_entries, side_of
from validate.models.llamagen.keys import expect_family, official_names
from validate.models.tensors import WeightsError, compare, give, read_object

__all__ = ["check_target", "load_drafter"]

PUBLISHED = {"t2i": (16, 119), "t2i2": (32, 119), "c2i": (24, 0)}
"""Grid and leading zero rows that the published drafters take from their input_type, whatever else the config says."""


def published_shapes(config: DrafterConfiguration) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a published drafter's tensors."""
    width, hidden = config.width, config.hidden
    shapes: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (config.vocab_size, width),
        "fc.weight": (width, 2 * width),
    }
    if config.bias:
        shapes["fc.bias"] = (width,)
    for i in range(config.layers):
        shapes |= {f"layers.{i}.self_attn.{letter}_proj.weight": (width, width) for letter in "qkvo"}
        shapes |= {f"layers.{i}.mlp.{part}_proj.weight": (hidden, width) for part in ("gate", "up")}
        shapes[f"layers.{i}.mlp.down_proj.weight"] = (width, hidden)
        shapes[f"layers.{i}.post_attention_layernorm.weight"] = (width,)
        if i:
            shapes[f"layers.{i}.input_layernorm.weight"] = (width,)
    return shapes


def _configuration(path: Path) -> DrafterConfiguration:
    config = read_object(path)
    with entries_of(path):
        shape, kind = llama_entries(config), str(config["input_type"])
        if kind in PUBLISHED:
            side, zero_rows = PUBLISHED[kind]
            shape["rope_base"] = 10000.0
        else:
            side, zero_rows = side_of(config), int(config["cls_token_num"])
        return DrafterConfiguration(**shape, side=side, zero_rows=zero_rows, bias=bool(config.get("bias", True)))


def load_drafter(
    path: str | Path,
    *,
    target: Any = None,
    device: str | torch.device = "cpu",
    dtype: str | torch.dtype = "float32",
    verify: bool = True,
    sha256: Mapping[str, str] | None = None,
) -> FeatureDrafter:
    """A published drafter.

    Parameters
    ----------
    path : str or Path
        Directory of config.json and model.safetensors or pytorch_model.bin.
    target : LlamaGen, optional
        The model it is to draft for; vocabulary, width and grid are compared.
    device, dtype, verify, sha256
        As for `validate.models.llamagen.load_transformer`.

    Raises
    ------
    FileNotFoundError
    WeightsError
        Damaged, or of another family; a missing, extra, misshapen or non-finite tensor; a config that makes no
        drafter; a drafter of another target.
    """
    place, number, folder = resolve_device(device), dtype_of(dtype), Path(path)
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder} has no config.json; a drafter is a directory of config.json and weights")
    file = weights_in(folder)
    config = _configuration(folder / "config.json")
    if target is not None:
        check_target(config, target, str(folder))
    tensors = read_checkpoint(file, verify=verify, sha256=sha256)
    expect_family(tensors, "EAGLE-style drafter", file)
    compare(file, tensors, published_shapes(config))
    prefixed = {name if name.startswith("fc.") else f"model.{name}": value for name, value in tensors.items()}
    with torch.device("meta"):
        network = FeatureDrafter(config)
    give(network, official_names(prefixed, file), file, place, number)
    network.rope = network.rope.to(place)
    return network


def check_target(config: DrafterConfiguration, target: Any, name: str) -> None:
    """Refuse a target with other tokens, another grid or features of another width."""
    width = target.config.width if hasattr(target.config, "width") else target.width
    ours = {"vocab_size": target.vocab_size, "feature width": width, "grid": target.grid}
    theirs = {"vocab_size": config.vocab_size, "feature width": config.width, "grid": (config.side, config.side)}
    for what, value in theirs.items():
        if value != ours[what]:
            raise WeightsError(f"{name} drafts for a target of {what} {value}, this one has {ours[what]}")
