"""Tensors and text on disk: written whole or not at all, and read back only when they belong to the same run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from simulate.files import write_atomically

__all__ = ["fingerprint", "read_stage", "write_stage"]


def fingerprint(*parts: Any) -> str:
    """SHA-256 of anything JSON can hold."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def write_stage(path: Path, tensors: Mapping[str, Tensor], identity: str, record: Mapping[str, Any]) -> None:
    """Store a stage's tensors with the fingerprint of what made them and a record of how it went."""
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    metadata = {"identity": identity, "record": json.dumps(record)}
    write_atomically(path, save(contiguous, metadata))


def read_stage(path: Path, identity: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Tensors and record of a finished stage; None when absent, damaged, or made by another preset, seed or data."""
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("identity") != identity:
                return None
            tensors = {name: file.get_tensor(name) for name in file.keys()}
    except SafetensorError:
        return None
    return tensors, json.loads(metadata["record"])
