"""One image model from a checkpoint in transformers' layout: a folder, or a name on a hub when that is asked for.

A checkpoint is refused unless every tensor of the network is in it with its shape and finite, and nothing else is: what
transformers would fill at random with a warning is an error here. Weights are read as safetensors, or from a pickle by
torch's weights-only loader. Exceptions, by family: tensors that old files stored and the network computes (ImageGPT's
triangular masks); Chameleon files without any of the tokenizer's tensors, which then needs ``pixels``, or with the
pixel decoder's, which transformers' network lacks and this package reads.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
import transformers
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers.utils.hub import cached_file

from validate.models.devices import resolve_device
from validate.models.huggingface.chameleon import ChameleonIds, ChameleonImageModel
from validate.models.huggingface.common import TransformerImageModel
from validate.models.huggingface.emu3 import Emu3ImageModel
from validate.models.huggingface.imagegpt import ImageGPTModel
from validate.models.huggingface.janus import JanusImageModel
from validate.models.huggingface.vqgan import read_vqgan

__all__ = ["CheckpointError", "load"]

FAMILIES = {
    "imagegpt": ("ImageGPTForCausalImageModeling", {"grid"}),
    "janus": ("JanusForConditionalGeneration", {"begin_of_text", "begin_of_image", "padding"}),
    "chameleon": ("ChameleonForConditionalGeneration", {"grid", "layout", "pixels", "ids"}),
    "emu3": ("Emu3ForConditionalGeneration", {"grid", "null"}),
}
RECOMPUTED = re.compile(r"\.attn\.(masked_)?bias$")
VISION = "model.vqmodel."
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class CheckpointError(ValueError):
    """A checkpoint is not what its configuration says it should be, or of no family known here."""


def load(
    path_or_name: str | Path,
    *,
    device: str | torch.device = "cpu",
    dtype: str | torch.dtype = "float32",
    hub: bool = False,
    attention: str | None = None,
    sha256: Mapping[str, str] | None = None,
    **options: Any,
) -> TransformerImageModel:
    """An image model, ready to write images.

    Parameters
    ----------
    path_or_name : str or Path
        A folder with config.json and weights; else a name, looked for among the files transformers has already stored
        and, with ``hub``, on the hub.
    device : str or torch.device
        "cpu", "cuda", "cuda:N" or "auto".
    dtype : str or torch.dtype
        float32, bfloat16 or float16.
    hub : bool
        Whether files may be downloaded.
    attention : {"sdpa", "eager"}, optional
        ImageGPT has only "eager"; "sdpa" for the others by default.
    sha256 : mapping of file name to hexadecimal digest, optional
        Every weights file is hashed and compared; the formats themselves hold no checksum.
    **options
        Of the family: ``grid`` (ImageGPT, Chameleon, Emu3), ``layout``, ``ids`` and ``pixels`` (Chameleon; a path),
        ``null`` (Emu3), ``begin_of_text``, ``begin_of_image`` and ``padding`` (Janus). See the models.

    Returns
    -------
    ImageGPTModel, JanusImageModel, ChameleonImageModel or Emu3ImageModel

    Raises
    ------
    FileNotFoundError
        No such folder or name; a file it needs is missing.
    CheckpointError
        Another kind of model (named); a missing, extra, misshapen or non-finite tensor; a wrong digest; an
        unreadable file.
    ValueError, RuntimeError
        An option or value the family does not know; CUDA asked for but absent.
    """
    place = resolve_device(device)
    number = DTYPES.get(str(dtype).removeprefix("torch."))
    if number is None:
        raise ValueError(f"unknown dtype {dtype!r}; choose {', '.join(DTYPES)}")
    source = str(path_or_name)
    config = _json(source, "config.json", hub)
    if config is None:
        hint = (
            ""
            if hub
            else " and transformers has stored nothing under that name; give a folder, or hub=True to download"
        )
        raise FileNotFoundError(f"{source}: no config.json there{hint}")
    family = str(config.get("model_type"))
    if family not in FAMILIES:
        raise CheckpointError(
            f"{source} holds a model of type {family!r}; the families known here are {', '.join(FAMILIES)}. "
            "Checkpoints in their authors' own layout need the version converted for transformers"
        )
    kind, known = FAMILIES[family]
    unknown = sorted(set(options) - known)
    if unknown:
        raise ValueError(f"{family} takes no option {unknown[0]!r}; it takes {', '.join(sorted(known))}")
    files = _weights(source, hub)
    if sha256 is not None:
        _check_digests(files, sha256)

    network, stray = _network(source, kind, family, number, hub, attention)
    if family == "chameleon":
        layout = options.pop("layout", None)
        if layout is None:
            layout = "lumina" if any("XLLMX" in name for name in config.get("architectures") or ()) else "anole"
        return _chameleon(network.to(place), layout, files, stray, _tokenizer(source, hub), **options)
    if family == "imagegpt":
        clusters = (_json(source, "preprocessor_config.json", hub) or {}).get("clusters")
        colours = None if clusters is None else torch.tensor(clusters, dtype=torch.float32, device=place)
        return ImageGPTModel(network.to(place), colours, **options)
    processor = _json(source, "preprocessor_config.json", hub) or {}
    scale = {
        short: processor[name] for short, name in (("mean", "image_mean"), ("std", "image_std")) if name in processor
    }
    if family == "emu3":
        return Emu3ImageModel(network.to(place), tokenizer=_tokenizer(source, hub), **scale, **options)
    # transformers forgets this entry when the file says it was derived from the model's configuration.
    stored = (_json(source, "generation_config.json", hub) or {}).get("generation_kwargs") or {}
    options.setdefault("begin_of_image", stored.get("boi_token_id"))
    return JanusImageModel(network.to(place), tokenizer=_tokenizer(source, hub), **scale, **options)


def _file(source: str, name: str, hub: bool) -> Path | None:
    """A file of the checkpoint, or None where it has no such file."""
    if Path(source).is_dir():
        path = Path(source) / name
        return path if path.is_file() else None
    try:
        found = cached_file(
            source,
            name,
            local_files_only=not hub,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=hub,
            _raise_exceptions_for_gated_repo=hub,
        )
    except OSError as error:
        raise FileNotFoundError(f"{source}: neither a folder nor a name the hub knows ({error})") from error
    return None if found is None else Path(found)


def _json(source: str, name: str, hub: bool) -> dict[str, Any] | None:
    path = _file(source, name, hub)
    if path is None:
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds a {type(content).__name__}, expected an object")
    return content


def _weights(source: str, hub: bool) -> list[Path]:
    """The checkpoint's weights files, in the order transformers prefers."""
    for whole in ("model.safetensors", "pytorch_model.bin"):
        path = _file(source, whole, hub)
        if path is not None:
            return [path]
        index = _json(source, f"{whole}.index.json", hub)
        if index is not None:
            names = sorted(set(index.get("weight_map", {}).values()))
            found = {name: _file(source, name, hub) for name in names}
            missing = [name for name, path in found.items() if path is None]
            if missing or not names:
                raise FileNotFoundError(f"{source}: {whole}.index.json lists {missing[0] if missing else 'no file'}")
            return [path for path in found.values() if path is not None]
    raise FileNotFoundError(f"{source} holds neither model.safetensors nor pytorch_model.bin")


def _check_digests(files: Sequence[Path], sha256: Mapping[str, str]) -> None:
    for path in files:
        if path.name not in sha256:
            raise CheckpointError(f"no SHA-256 was given for {path.name}; given are {', '.join(sha256) or 'none'}")
        with path.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
        if found != sha256[path.name].lower():
            raise CheckpointError(f"{path} has SHA-256 {found}, expected {sha256[path.name]}")


def _network(
    source: str, kind: str, family: str, dtype: torch.dtype, hub: bool, attention: str | None
) -> tuple[Any, list[str]]:
    """The network with every tensor from the file, and the names of tensors it has no place for."""
    known = ("eager",) if family == "imagegpt" else ("sdpa", "eager")
    attention = attention or known[0]
    if attention not in known:
        raise ValueError(f"attention {attention!r} is not supported; {family} takes {' or '.join(known)}")
    try:
        network, report = getattr(transformers, kind).from_pretrained(
            source,
            dtype=dtype,
            attn_implementation=attention,
            local_files_only=not hub,
            weights_only=True,
            output_loading_info=True,
        )
    except (SafetensorError, UnpicklingError, RuntimeError, OSError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{source} cannot be loaded as {kind}: {error}") from error
    missing = sorted(report["missing_keys"])
    stray = sorted(report["unexpected_keys"])
    if family == "chameleon":
        absent = {name for name in network.state_dict() if name.startswith(VISION)}
        if absent and absent <= set(missing):
            network.model.vqmodel = None
            missing = [name for name in missing if name not in absent]
    if missing:
        raise CheckpointError(
            f"{source} lacks {len(missing)} tensors of {kind}, first {missing[0]!r}; they would stay random"
        )
    if report["mismatched_keys"]:
        raise CheckpointError(f"{source}: {sorted(report['mismatched_keys'])[0]} has another shape than {kind} needs")
    if family == "imagegpt":
        stray = [name for name in stray if not RECOMPUTED.search(name)]
    decoding = [name for name in stray if family == "chameleon" and name.startswith(f"{VISION}decoder.")]
    extra = [name for name in stray if name not in decoding]
    if extra:
        raise CheckpointError(f"{source} holds {len(extra)} tensors {kind} has no place for, first {extra[0]!r}")
    return _finite(network, source), decoding


def _finite(network: Any, source: str) -> Any:
    for name, values in network.state_dict().items():
        if values.is_floating_point() and not bool(torch.isfinite(values).all()):
            index = tuple((~torch.isfinite(values)).nonzero()[0].tolist())
            raise CheckpointError(f"{source}: tensor {name!r} holds {float(values[index])} at index {index}")
    return network


def _chameleon(
    network: Any,
    layout: str,
    files: Sequence[Path],
    stray: Sequence[str],
    tokenizer: Any,
    *,
    grid: tuple[int, int] | None = None,
    ids: ChameleonIds | None = None,
    pixels: str | Path | None = None,
) -> ChameleonImageModel:
    tensors = None
    if pixels is not None:
        tensors = read_vqgan(pixels)
    elif stray:
        prefixes = tuple(f"{VISION}{part}" for part in ("decoder.", "post_quant_conv.", "quantize.embedding."))
        tensors = {name.removeprefix(VISION): value for name, value in _read(files, prefixes).items()}
    return ChameleonImageModel(network, layout=layout, grid=grid, ids=ids, pixels=tensors, tokenizer=tokenizer)


def _read(files: Sequence[Path], prefixes: tuple[str, ...]) -> dict[str, Tensor]:
    """Tensors whose names begin so."""
    found: dict[str, Tensor] = {}
    for path in files:
        if path.suffix == ".safetensors":
            with safe_open(path, framework="pt") as stream:
                names = [name for name in stream.keys() if name.startswith(prefixes)]
                found.update({name: stream.get_tensor(name) for name in names})
        else:
            stored = torch.load(path, map_location="cpu", weights_only=True)
            found.update({name: value for name, value in stored.items() if name.startswith(prefixes)})
    return found


def _tokenizer(source: str, hub: bool) -> Any:
    """The text tokenizer, or None where the checkpoint has no such files."""
    if not any(_file(source, name, hub) for name in ("tokenizer.json", "tokenizer_config.json")):
        return None
    try:
        return transformers.AutoTokenizer.from_pretrained(source, local_files_only=not hub, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{source}: its tokenizer files cannot be read: {error}") from error
