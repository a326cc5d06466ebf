"""LlamaGen from its public files: transformer, tokenizer, and a pair of two transformers with one tokenizer.

    import validate

    pair = validate.load("llamagen:weights/c2i_XL_384.pt", draft="c2i_B_384.pt", tokenizer="vq_ds16_c2i.pt")
    pair = validate.load("llamagen:weights")  # largest transformer, smallest draft, the folder's only tokenizer

A transformer is an official file (.pt, .pth, .safetensors) or a Hugging-Face-style directory (config.json beside
model.safetensors or pytorch_model.bin). Every tensor of the network must be there, with its shape and finite, and no
other, except `freqs_cis` in a transformer and the encoder's part of a tokenizer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from validate.models.checkpoints import dtype_of, read_checkpoint
from validate.models.devices import resolve_device
from validate.models.llamagen.configuration import Configuration, grid_of_name, infer
from validate.models.llamagen.keys import expect_family, official_names, tokenizer_names, transformer_names
from validate.models.llamagen.transformer import LlamaGen
from validate.models.llamagen.vq import LlamaGenTokenizer
from validate.models.pair import Pair
from validate.models.weights import WeightsError, check_finite, compare

__all__ = ["load_pair", "load_tokenizer", "load_transformer"]

SELF = "itself"
"""Name of the draft of a pair without one: the target drafts for itself."""
SUFFIXES = (".pt", ".pth", ".safetensors")


def _fill(
    network: nn.Module, tensors: Mapping[str, Tensor], path: Path, device: torch.device, dtype: torch.dtype
) -> None:
    """Give a network of the meta device its values; every one comes from the file."""
    compare(path, tensors, {name: tuple(value.shape) for name, value in network.state_dict().items()})
    state = {}
    for name, value in tensors.items():
        if not value.is_floating_point():
            raise WeightsError(
                f"{path}: tensor {name!r} has dtype {value.dtype}, a network's values are floating point"
            )
        check_finite(path, name, value)
        # A copy: the file may change or go while the network lives.
        state[name] = value.detach().to(device=device, dtype=dtype, copy=True)
        if dtype != value.dtype:
            check_finite(path, f"{name} as {dtype}", state[name])
    network.load_state_dict(state, strict=True, assign=True)
    network.eval().requires_grad_(False)


def _side(grid: int | tuple[int, int] | None) -> int | None:
    if grid is None:
        return None
    sides = (grid, grid) if isinstance(grid, int) else tuple(grid)
    if len(sides) != 2 or sides[0] != sides[1] or sides[0] < 1:
        raise ValueError(f"grid must be the tokens a side of a square image, such as 16, 24 or 32; got {grid!r}")
    return int(sides[0])


def _read_config(path: Path, side: int | None) -> tuple[Configuration, Path]:
    """Configuration of a Hugging-Face-style directory and its weights file."""
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        if not isinstance(config, dict):
            raise ValueError(f"holds a {type(config).__name__}")
    except ValueError as error:
        raise WeightsError(f"{path / 'config.json'} is no JSON object: {error}") from error
    files = [path / name for name in ("model.safetensors", "pytorch_model.bin") if (path / name).is_file()]
    if not files:
        raise FileNotFoundError(f"{path} holds neither model.safetensors nor pytorch_model.bin")
    if "input_type" not in config or "block_size" not in config:
        kind = config.get("model_type", "unknown")
        raise WeightsError(
            f"{path / 'config.json'} is of a {kind!r} model, not a LlamaGen: no input_type or block_size"
        )
    try:
        text = str(config["input_type"]).startswith("t2i")
        block = int(config["block_size"])
        if math.isqrt(block) ** 2 != block or side not in (None, math.isqrt(block)):
            raise ValueError(f"block_size {block} is not the square of the grid{'' if side is None else f' {side}'}")
        if config.get("num_key_value_heads", config["num_attention_heads"]) != config["num_attention_heads"]:
            raise ValueError(
                "grouped-query attention (num_key_value_heads) is not supported; no published model has it"
            )
        shape = Configuration(
            vocab_size=int(config["vocab_size"]),
            layers=int(config["num_hidden_layers"]),
            heads=int(config["num_attention_heads"]),
            width=int(config["hidden_size"]),
            hidden=int(config["intermediate_size"]),
            side=math.isqrt(block),
            prefix=int(config["cls_token_num"]),
            num_classes=0 if text else int(config["num_classes"]),
            caption_width=int(config["caption_dim"]) if text else 0,
            has_null=text or float(config.get("class_dropout_p", 0.1)) > 0,
            eps=float(config["rms_norm_eps"]),
            rope_base=float(config.get("rope_base", 10000)),
        )
    except (KeyError, TypeError, ValueError) as error:
        what = f"lacks {error}" if isinstance(error, KeyError) else str(error)
        raise WeightsError(f"{path / 'config.json'}: {what}") from error
    return shape, files[0]


def load_transformer(
    path: str | Path,
    *,
    grid: int | tuple[int, int] | None = None,
    heads: int | None = None,
    device: str | torch.device = "cpu",
    dtype: str | torch.dtype = "float32",
    guidance_interval: int | None = None,
    verify: bool = True,
    sha256: Mapping[str, str] | None = None,
) -> LlamaGen:
    """A LlamaGen transformer, class- or text-conditional.

    Parameters
    ----------
    path : str or Path
        Official file, or Hugging-Face-style directory.
    grid : int, optional
        Tokens a side; by default from a resolution (256, 384, 512) in the file's name, or the directory's config.
    heads : int, optional
        Attention heads, for a width that no published model has.
    device, dtype
        Where, and in what precision, the network computes; logits are always float32.
    guidance_interval : int, optional
        See `LlamaGen`.
    verify, sha256
        See `validate.models.checkpoints.read_checkpoint`.

    Raises
    ------
    FileNotFoundError
    WeightsError
        Damaged; another family (named); a missing, extra, misshapen or non-finite tensor; an unknown shape.
    ValueError, RuntimeError
        An option that is wrong; CUDA asked for but absent.
    """
    place, number, path = resolve_device(device), dtype_of(dtype), Path(path)
    side, config = _side(grid), None
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise FileNotFoundError(f"{path} has no config.json; give a weights file, or a folder with its config")
        config, path = _read_config(path, side)
    tensors = read_checkpoint(path, verify=verify, sha256=sha256)
    if config is not None:
        expect_family(tensors, "LlamaGen transformer in Hugging-Face style", path)
        tensors = official_names(tensors, path)
    else:
        expect_family(tensors, "LlamaGen transformer", path)
        shapes = {name: tuple(value.shape) for name, value in tensors.items()}
        config = infer(shapes, grid_of_name(path.name) if side is None else side, heads, str(path))
    with torch.device("meta"):
        network = LlamaGen(config, guidance_interval)
    _fill(network, transformer_names(tensors), path, place, number)
    network.rope = network.rope.to(place)
    return network


def load_tokenizer(
    path: str | Path,
    *,
    grid: int | tuple[int, int],
    device: str | torch.device = "cpu",
    dtype: str | torch.dtype = "float32",
    unit: bool = True,
    verify: bool = True,
    sha256: Mapping[str, str] | None = None,
) -> LlamaGenTokenizer:
    """The decoder of a LlamaGen VQ tokenizer.

    Parameters
    ----------
    grid : int or (rows, columns)
        Of tokens.
    unit : bool
        Codes are normalised when looked up, as in all published tokenizers; the file does not say.
    path, device, dtype, verify, sha256
        As for `load_transformer`; errors likewise.
    """
    place, number, path = resolve_device(device), dtype_of(dtype), Path(path)
    tensors = read_checkpoint(path, verify=verify, sha256=sha256)
    expect_family(tensors, "LlamaGen VQ tokenizer", path)
    shape = (grid, grid) if isinstance(grid, int) else (int(grid[0]), int(grid[1]))
    kept = tokenizer_names(tensors)
    with torch.device("meta"):
        shapes = {name: tuple(value.shape) for name, value in kept.items()}
        network = LlamaGenTokenizer.like(shapes, shape, unit, str(path))
    _fill(network, kept, path, place, number)
    return network


def _in_folder(folder: Path) -> tuple[Path, Path | None, Path]:
    """Target, draft and tokenizer among the files of a folder with the public names."""
    files = sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES)
    models = [path for path in files if path.name.startswith(("c2i", "t2i"))]
    tokenizers = [path for path in files if path.name.startswith("vq")]
    if not models or len(tokenizers) != 1:
        raise FileNotFoundError(
            f"{folder} must hold transformers named c2i_… or t2i_… and one tokenizer named vq_…; it holds "
            f"{', '.join(path.name for path in files) or 'no weights files'}. Or name the files: "
            "llamagen:TARGET with draft=… and tokenizer=…"
        )
    models.sort(key=lambda path: path.stat().st_size)
    return models[-1], models[0] if len(models) > 1 else None, tokenizers[0]


def _find(name: str | Path, folder: Path) -> Path:
    """A path as given, or relative to the target's folder."""
    path = Path(name)
    if path.exists():
        return path
    for candidate in (folder / path, *(folder / f"{path}{suffix}" for suffix in SUFFIXES)):
        if candidate.exists():
            return candidate
    raise FileNotFoundError(f"{path} is missing, also in {folder}")


def _kind(path: Path) -> str | None:
    return next((kind for kind in ("c2i", "t2i") if kind in path.name), None)


def load_pair(
    path: str | Path,
    *,
    draft: str | Path | None = None,
    tokenizer: str | Path | None = None,
    guidance: float | None = None,
    unit: bool = True,
    device: str | torch.device = "cpu",
    **options: Any,
) -> Pair:
    """Target, draft and tokenizer.

    Parameters
    ----------
    path : str or Path
        The target (file, or directory with a config.json); or a folder of files with the public names, whose largest
        transformer is the target.
    draft : str or Path, optional
        Another transformer, as a path or a name in the target's folder. Without one the folder's smallest other
        transformer, or else the target itself.
    tokenizer : str or Path
        The VQ file, likewise; may be left out for a folder that holds one.
    guidance : float, optional
        Default scale; the authors' own for published shapes.
    unit, device
        As for `load_tokenizer`.
    **options
        grid, heads, dtype, guidance_interval, verify, sha256: as for `load_transformer`.

    Raises
    ------
    FileNotFoundError, WeightsError, ValueError, RuntimeError
        As for the parts; and where they do not fit together.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing")
    folder, drafting, pixels = path.parent, None, None
    if path.is_dir() and not (path / "config.json").is_file():
        folder = path
        path, drafting, pixels = _in_folder(path)
    if draft is not None:
        drafting = _find(draft, folder)
    if tokenizer is not None:
        pixels = _find(tokenizer, folder)
    if pixels is None:
        raise ValueError(f"llamagen:{path} needs the tokenizer that its tokens belong to: tokenizer='vq_ds16_….pt'")
    for other in (drafting, pixels):
        if other is not None and _kind(path) and _kind(other) not in (None, _kind(path)):
            raise WeightsError(
                f"{other.name} is a {_kind(other)} file but {path.name} a {_kind(path)} file: class- and "
                "text-conditional models have tokenizers of their own, with one shape and different codes"
            )
    target = load_transformer(path, device=device, **options)
    drafts = {SELF: target}
    if drafting is not None and drafting.resolve() != path.resolve():
        # A draft's own name or config tells its resolution; only where neither does is it taken to be the target's.
        told = drafting.is_dir() or grid_of_name(drafting.name) is not None
        own = options if told else {"grid": target.grid} | options
        drafts = {drafting.stem: load_transformer(drafting, device=device, **own)}
    names = {name: value for name, value in options.items() if name in ("dtype", "verify", "sha256")}
    return Pair(
        name=f"llamagen:{path.stem}",
        target=target,
        drafts=drafts,
        draft_name=next(iter(drafts)),
        tokenizer=load_tokenizer(pixels, grid=target.grid, unit=unit, device=device, **names),
        guidance=target.config.default_guidance if guidance is None else float(guidance),
        meta={"target": path.name, "draft": drafting.name if drafting else SELF, "tokenizer": pixels.name},
    )
