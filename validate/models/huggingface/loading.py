"""One image model from a checkpoint in transformers' layout: a folder, or a name on a hub when that is asked for.

A checkpoint is refused unless every tensor of the network is in it with its shape and finite, and nothing else is: what
transformers would fill at random with a warning is an error here. Weights are read as safetensors, or from a pickle by
torch's weights-only loader. Exceptions, by family: tensors that old files stored and the network computes (ImageGPT's
triangular masks); Chameleon files without any of the tokenizer's tensors, which then needs ``pixels``, or with the
pixel decoder's, which transformers' network lacks and this package reads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from torch import Tensor
from transformers.utils.hub import cached_file

from validate.models.checkpoints import check_hash, dtype_of, read_checkpoint
from validate.models.devices import resolve_device
from validate.models.huggingface.chameleon import ChameleonIds, ChameleonImageModel
from validate.models.huggingface.common import TransformerImageModel
from validate.models.huggingface.emu3 import Emu3ImageModel
from validate.models.huggingface.imagegpt import ImageGPTModel
from validate.models.huggingface.janus import JanusImageModel
from validate.models.tensors import WeightsError, check_finite, read_object

__all__ = ["load"]

FAMILIES = {
    "imagegpt": ("ImageGPTForCausalImageModeling", {"grid"}),
    "janus": ("JanusForConditionalGeneration", {"begin_of_text", "begin_of_image", "padding"}),
    "chameleon": ("ChameleonForConditionalGeneration", {"grid", "layout", "pixels", "ids"}),
    "emu3": ("Emu3ForConditionalGeneration", {"grid", "null"}),
}
RECOMPUTED = re.compile(r"\.attn\.(masked_)?bias$")
VISION = "model.vqmodel."
PIXELS = ("decoder.", "post_quant_conv.", "quantize.embedding.")
"""How the tensors of a VQGAN's decoding half begin."""


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
    WeightsError
        Another kind of model (named); a missing, extra, misshapen or non-finite tensor; a wrong digest; an
        unreadable file.
    ValueError, RuntimeError
        An option or value the family does not know; CUDA asked for but absent.
    """
    place, number = resolve_device(device), dtype_of(dtype)
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
        raise WeightsError(
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
    return None if path is None else read_object(path)


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
            raise WeightsError(f"no SHA-256 was given for {path.name}; given are {', '.join(sha256) or 'none'}")
        check_hash(path, sha256)


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
        raise WeightsError(f"{source} cannot be loaded as {kind}: {error}") from error
    missing = sorted(report["missing_keys"])
    stray = sorted(report["unexpected_keys"])
    if family == "chameleon":
        absent = {name for name in network.state_dict() if name.startswith(VISION)}
        if absent and absent <= set(missing):
            network.model.vqmodel = None
            missing = [name for name in missing if name not in absent]
    if missing:
        raise WeightsError(
            f"{source} lacks {len(missing)} tensors of {kind}, first {missing[0]!r}; they would stay random"
        )
    if report["mismatched_keys"]:
        raise WeightsError(f"{source}: {sorted(report['mismatched_keys'])[0]} has another shape than {kind} needs")
    if family == "imagegpt":
        stray = [name for name in stray if not RECOMPUTED.search(name)]
    decoding = [name for name in stray if family == "chameleon" and name.startswith(f"{VISION}decoder.")]
    extra = [name for name in stray if name not in decoding]
    if extra:
        raise WeightsError(f"{source} holds {len(extra)} tensors {kind} has no place for, first {extra[0]!r}")
    for name, values in network.state_dict().items():
        check_finite(source, name, values)
    return network, decoding


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
        inside = tuple(f"{VISION}{part}" for part in PIXELS)
        tensors = {
            name.removeprefix(VISION): value
            for path in files
            for name, value in read_checkpoint(path, verify=False, prefixes=inside).items()
        }
    return ChameleonImageModel(network, layout=layout, grid=grid, ids=ids, pixels=tensors, tokenizer=tokenizer)


def read_vqgan(path: str | Path) -> dict[str, Tensor]:
    """Decoding half of a VQGAN file.

    Raises
    ------
    FileNotFoundError, WeightsError
        As `read_checkpoint`; also a file that holds no decoder.
    """
    tensors = read_checkpoint(path, prefixes=PIXELS)
    if not any(name.startswith("decoder.") for name in tensors):
        raise WeightsError(f"{path} holds no decoder: none of its tensors is named 'decoder.…'")
    return tensors


def _tokenizer(source: str, hub: bool) -> Any:
    """The text tokenizer, or None where the checkpoint has no such files."""
    if not any(_file(source, name, hub) for name in ("tokenizer.json", "tokenizer_config.json")):
        return None
    try:
        return transformers.AutoTokenizer.from_pretrained(source, local_files_only=not hub, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise WeightsError(f"{source}: its tokenizer files cannot be read: {error}") from error
