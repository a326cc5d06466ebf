"""Tensors of a file against those a network asks for: all of them, no others, with their shapes, finite."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["WeightsError", "check_finite", "compare", "give", "read_object", "shapes_of"]


class WeightsError(ValueError):
    """Weights are not what their manifest, their configuration or the network says they should be."""


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object a file holds.

    Raises
    ------
    WeightsError
        Not JSON, or not an object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise WeightsError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise WeightsError(f"{path} holds a {type(content).__name__}, expected an object")
    return content


def shapes_of(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Names and shapes."""
    return {name: tuple(values.shape) for name, values in tensors.items()}


def compare(path: object, found: Mapping[str, Tensor], expected: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse other names or shapes than expected, naming the first."""
    for tensor, shape in expected.items():
        if tensor not in found:
            raise WeightsError(f"{path} lacks tensor {tensor!r} of shape {shape}")
        if tuple(found[tensor].shape) != shape:
            raise WeightsError(f"{path}: tensor {tensor!r} has shape {tuple(found[tensor].shape)}, expected {shape}")
    for tensor, values in found.items():
        if tensor not in expected:
            raise WeightsError(f"{path} holds an extra tensor {tensor!r} of shape {tuple(values.shape)}")


def check_finite(path: object, tensor: str, values: Tensor) -> None:
    """Refuse NaN and infinity, naming the first."""
    if not values.is_floating_point():
        return
    outside = (~torch.isfinite(values)).nonzero()
    if len(outside):
        index = tuple(outside[0].tolist())
        raise WeightsError(f"{path}: tensor {tensor!r} holds {float(values[index])} at index {index}")


def give(
    network: nn.Module,
    tensors: Mapping[str, Tensor],
    path: object,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> None:
    """Give a network of the meta device its values, every one from the file; evaluation mode, gradients off.

    Raises
    ------
    WeightsError
        A tensor is missing, extra, misshapen, of whole numbers, or not finite before or after conversion.
    """
    compare(path, tensors, shapes_of(network.state_dict()))
    state = {}
    for name, values in tensors.items():
        if not values.is_floating_point():
            number = str(values.dtype).removeprefix("torch.")
            raise WeightsError(f"{path}: tensor {name!r} has dtype {number}, a network's values are floating point")
        check_finite(path, name, values)
        # A copy: the file may change or go while the network lives.
        state[name] = values.detach().to(device=device, dtype=dtype, copy=True)
        if dtype != values.dtype:
            check_finite(path, f"{name} as {dtype}", state[name])
    network.load_state_dict(state, strict=True, assign=True)
    network.eval().requires_grad_(False)
