"""Small networks that belong to one target: stored beside it, refused for any other.

A folder holds config.json (kind, constructor arguments, SHA-256 of the target's weights and of its own, how it was
trained) and model.safetensors in half precision, the config written last.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse
from safetensors.torch import save
from torch import nn

from simulate.files import write_atomically
from validate.drafters.shipped import SHIPPED, target_sha256
from validate.models import Pair
from validate.models.tensors import WeightsError, give

__all__ = ["attached_folder", "load_attached", "store_attached"]


class _Configured(Protocol):
    @property
    def config(self) -> dict[str, Any]: ...


_Network = TypeVar("_Network", bound=nn.Module)


def attached_folder(pair: Pair, name: str) -> Path:
    """Where the network of that name ships for a pair."""
    return SHIPPED / pair.name / name


def store_attached(network: nn.Module, folder: Path, pair: Pair, record: dict[str, Any]) -> int:
    """Write both files; their size in bytes. `record` says how the network was trained."""
    content = save({name: value.to(torch.float16).contiguous() for name, value in network.state_dict().items()})
    about = {
        "kind": type(network).__name__,
        "config": network.config,
        "sha256": hashlib.sha256(content).hexdigest(),
        "target_sha256": target_sha256(pair),
        "record": record,
    }
    text = json.dumps(about, indent=1).encode() + b"\n"
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "model.safetensors", content)
    write_atomically(folder / "config.json", text)
    return len(content) + len(text)


def load_attached(kind: type[_Network], folder: Path, pair: Pair, train: str) -> _Network:
    """A stored network, in single precision on the pair's device.

    Parameters
    ----------
    kind : class of the network
    folder : Path
    pair : Pair
        Its target must be the one the network was trained on.
    train : str
        The command that makes such a folder, for the message.

    Raises
    ------
    FileNotFoundError
        No such folder.
    WeightsError
        Damaged, of another kind, or of another target.
    """
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder} holds no {kind.__name__}; make one: {train}")
    try:
        about = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        found = {name: about[name] for name in ("kind", "config", "sha256", "target_sha256")}
    except (ValueError, KeyError, TypeError) as error:
        raise WeightsError(f"{folder / 'config.json'} is damaged: {error!r}") from error
    if found["kind"] != kind.__name__:
        raise WeightsError(f"{folder} holds a {found['kind']}, expected a {kind.__name__}")
    if found["target_sha256"] != target_sha256(pair):
        raise WeightsError(
            f"{folder} was trained on a target with SHA-256 {found['target_sha256']}, pair {pair.name!r} has "
            f"{target_sha256(pair)}: it means nothing to another target"
        )
    path = folder / "model.safetensors"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; make the folder anew: {train}")
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != found["sha256"]:
        raise WeightsError(f"{path} has not the SHA-256 that config.json records")
    try:
        # On no device: the constructor's own random values are neither wanted nor drawn.
        with torch.device("meta"):
            network = kind(**found["config"])
        tensors = parse(content)
    except (SafetensorError, TypeError, ValueError) as error:
        raise WeightsError(f"{folder} is damaged: {error}") from error
    give(network, tensors, path, pair.device)
    return network
