"""LlamaGen from its public files: transformer, tokenizer, and a pair of two transformers with one tokenizer.

    import validate

    pair = validate.load("llamagen:weights/c2i_XL_384.pt", draft="c2i_B_384.pt", tokenizer="vq_ds16_c2i.pt")
    pair = validate.load("llamagen:weights")  # largest transformer, smallest draft, the folder's only tokenizer

A transformer is an official file (.pt, .pth, .safetensors) or a Hugging-Face-style directory (config.json beside
model.safetensors or pytorch_model.bin). Every tensor of the network must be there, with its shape and finite, and no
other, except `freqs_cis` in a transformer and the encoder's part of a tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from validate.models.checkpoints import dtype_of, read_checkpoint, weights_in
from validate.models.devices import resolve_device
from validate.models.llamagen.configuration import grid_of_name, infer, read_configuration
from validate.models.llamagen.keys import expect_family, official_names, tokenizer_names, transformer_names
from validate.models.llamagen.transformer import LlamaGen
from validate.models.llamagen.vq import LlamaGenTokenizer
from validate.models.pair import Pair
from validate.models.tensors import WeightsError, give, shapes_of

__all__ = ["load_pair", "load_tokenizer", "load_transformer"]

SELF = "itself"
"""Name of the draft of a pair without one: the target drafts for itself."""
SUFFIXES = (".pt", ".pth", ".safetensors")


def _side(grid: int | tuple[int, int] | None) -> int | None:
    if grid is None:
        return None
    sides = (grid, grid) if isinstance(grid, int) else tuple(grid)
    if len(sides) != 2 or sides[0] != sides[1] or sides[0] < 1:
        raise ValueError(f"grid must be the tokens a side of a square image, such as 16, 24 or 32; got {grid!r}")
    return int(sides[0])


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
        config, path = read_configuration(path / "config.json", side), weights_in(path)
    tensors = read_checkpoint(path, verify=verify, sha256=sha256)
    if config is not None:
        expect_family(tensors, "LlamaGen transformer in Hugging-Face style", path)
        tensors = official_names(tensors, path)
    else:
        expect_family(tensors, "LlamaGen transformer", path)
        config = infer(shapes_of(tensors), grid_of_name(path.name) if side is None else side, heads, str(path))
    with torch.device("meta"):
        network = LlamaGen(config, guidance_interval)
    give(network, transformer_names(tensors), path, place, number)
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
        network = LlamaGenTokenizer.like(shapes_of(kept), shape, unit, str(path))
    give(network, kept, path, place, number)
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
