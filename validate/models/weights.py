"""A folder of weights: one manifest, several safetensors files, every departure from the manifest an error.

manifest.json holds ``name``, ``guidance``, ``draft`` (the default), ``drafts`` (best first) and ``files``:
file name to ``kind``, ``config`` (the network's constructor arguments), ``config_sha256`` (not every argument shows in
a shape: heads do not), ``bytes``, ``sha256`` and ``tensors`` (name to shape and dtype). Tensors are stored in half
precision and computed with in single precision; statistics are stored in single precision.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as parse
from torch import Tensor

from validate.models.building import Network, blank
from validate.models.tensors import WeightsError, check_finite, compare, give, read_object

__all__ = ["MANIFEST", "config_sha256", "fill", "read_manifest", "read_tensors"]

MANIFEST = "manifest.json"


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a weights folder, with its required entries present.

    Raises
    ------
    FileNotFoundError
        No folder or no manifest.
    WeightsError
        Not JSON, or an entry is missing.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; a weights folder holds {MANIFEST} and its safetensors files")
    manifest = read_object(path)
    for entry in ("name", "guidance", "draft", "drafts", "files", "figures"):
        if entry not in manifest:
            raise WeightsError(f"{path} has no entry {entry!r}")
    for entry, kind in (("name", str), ("draft", str), ("drafts", list), ("files", dict), ("figures", dict)):
        if not isinstance(manifest[entry], kind):
            raise WeightsError(f"{path}: entry {entry!r} is {manifest[entry]!r:.60}, expected a {kind.__name__}")
    if not all(isinstance(name, str) for name in manifest["drafts"]):
        raise WeightsError(f"{path}: entry 'drafts' is {manifest['drafts']!r:.60}, expected names")
    guidance = manifest["guidance"]
    if isinstance(guidance, bool) or not isinstance(guidance, int | float) or not math.isfinite(guidance):
        raise WeightsError(f"{path}: entry 'guidance' is {guidance!r:.60}, expected a finite number")
    return manifest


def config_sha256(kind: str, config: Mapping[str, Any]) -> str:
    """Hash of a network's class name and constructor arguments."""
    return hashlib.sha256(json.dumps([kind, dict(config)], sort_keys=True).encode()).hexdigest()


def read_tensors(folder: Path, manifest: Mapping[str, Any], name: str, *, verify: bool) -> dict[str, Tensor]:
    """Tensors of one file, checked against the manifest.

    Parameters
    ----------
    folder : Path
    manifest : mapping
    name : str
        File name, a key of ``manifest["files"]``.
    verify : bool
        Compare size and SHA-256 with the recorded ones first.

    Raises
    ------
    FileNotFoundError
        No such file.
    WeightsError
        Not in the manifest; size or hash differs; unreadable; a tensor is missing, extra, of another shape or
        type than recorded, or not finite.
    """
    entry = _entry(manifest, name)
    path = folder / name
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing although {MANIFEST} lists it")
    content = path.read_bytes()
    if verify:
        if len(content) != entry["bytes"]:
            what = "truncated" if len(content) < entry["bytes"] else "too long"
            raise WeightsError(f"{path} is {what}: {len(content)} bytes, {MANIFEST} records {entry['bytes']}")
        found = hashlib.sha256(content).hexdigest()
        if found != entry["sha256"]:
            raise WeightsError(f"{path} has SHA-256 {found}, {MANIFEST} records {entry['sha256']}")
    try:
        tensors = parse(content)
    except (SafetensorError, KeyError) as error:
        raise WeightsError(f"{path} is not a readable safetensors file: {error}") from error
    recorded = {tensor: tuple(about["shape"]) for tensor, about in entry["tensors"].items()}
    compare(path, tensors, recorded)
    for tensor, values in tensors.items():
        dtype = str(values.dtype).removeprefix("torch.")
        if dtype != entry["tensors"][tensor]["dtype"]:
            expected = entry["tensors"][tensor]["dtype"]
            raise WeightsError(f"{path}: tensor {tensor!r} has dtype {dtype}, {MANIFEST} records {expected}")
        check_finite(path, tensor, values)
    return tensors


def fill(kind: type[Network], folder: Path, manifest: Mapping[str, Any], name: str, *, verify: bool) -> Network:
    """Network of one file, in single precision, evaluation mode, gradients off.

    Raises
    ------
    FileNotFoundError, WeightsError
        As `read_tensors`; also when the config does not fit the network or its tensors.
    """
    tensors = read_tensors(folder, manifest, name, verify=verify)
    config, recorded = (_entry(manifest, name)[key] for key in ("config", "config_sha256"))
    try:
        network = blank(kind, config)
    except (TypeError, ValueError, RuntimeError) as error:
        raise WeightsError(f"{MANIFEST}: config {config} of {name} does not fit {kind.__name__}: {error}") from error
    if config_sha256(kind.__name__, config) != recorded:
        raise WeightsError(
            f"{MANIFEST}: config {config} of {name} is not the {kind.__name__} whose SHA-256 it records: it was changed"
        )
    give(network, tensors, folder / name)
    return network


def _entry(manifest: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    if Path(name).name != name:
        raise WeightsError(f"{MANIFEST}: {name!r} is not a plain file name")
    entry: Mapping[str, Any] | None = manifest["files"].get(name)
    if entry is None:
        raise WeightsError(f"{MANIFEST} lists no file {name!r}; it lists {', '.join(manifest['files'])}")
    if not isinstance(entry, dict):
        raise WeightsError(f"{MANIFEST}: entry of {name!r} is a {type(entry).__name__}, expected an object")
    for key in ("config", "config_sha256", "bytes", "sha256", "tensors"):
        if key not in entry:
            raise WeightsError(f"{MANIFEST}: file {name!r} has no entry {key!r}")
    return entry
