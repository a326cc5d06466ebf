"""Networks without values: their shapes come from a config, every value from a file or an explicit generator.

Building on torch's meta device leaves the caller's global random state alone and makes a forgotten tensor
fail loudly instead of staying at a random initial value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import nn

from validate.models.judge import Judge
from validate.models.transformer import TokenTransformer
from validate.models.vq import VQTokenizer

__all__ = ["blank", "fresh"]

Network = TypeVar("Network", VQTokenizer, TokenTransformer, Judge)


def blank(kind: type[Network], config: Mapping[str, int]) -> Network:
    """Network of the given config on the meta device: shapes without storage."""
    with torch.device("meta"):
        network = kind(**config)
    assert isinstance(network, nn.Module)
    return network


def fresh(kind: type[Network], config: Mapping[str, int], generator: torch.Generator) -> Network:
    """Network on the CPU whose every value is drawn from ``generator``."""
    network = blank(kind, config).to_empty(device="cpu")
    network.initialise(generator)
    return network
