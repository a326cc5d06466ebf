"""Networks with random values: small enough to enumerate, or of a public model's full size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import theory
from theory.chains import all_prefixes
from validate.models import Pair, TokenTransformer, Warp
from validate.models.interface import ImageModel
from validate.models.llamagen import Configuration, LlamaGen
from validate.scoring import laws_along

VOCABULARY, TOKENS = 3, 4


class NoPixels:
    """Stands where a pair's tokenizer does; these networks' tokens have no pixels."""

    def __init__(self, model: ImageModel) -> None:
        self.vocab_size, self.num_tokens, self.grid = model.vocab_size, model.num_tokens, model.grid

    def decode(self, tokens: Tensor) -> Tensor:
        """Refused."""
        raise ValueError("tokens of a random network have no pixels")

    def tables(self) -> Sequence[Tensor]:
        """None."""
        return []


def random_pair(target: ImageModel, draft: ImageModel, guidance: float) -> Pair:
    """A pair of two networks over tokens without meaning."""
    return Pair("random", target, {"random": draft}, "random", NoPixels(target), guidance=guidance)


def enumerable_pair(device: torch.device, guidance: float = 1.5) -> Pair:
    """Two transformers over three tokens, images of four: every law can be written down."""
    models = []
    for seed in (1, 2):
        model = TokenTransformer(vocab_size=VOCABULARY, num_classes=2, num_tokens=TOKENS, width=8, layers=2, heads=2)
        generator = torch.Generator().manual_seed(seed)
        model.initialise(generator)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.25 * torch.randn(parameter.shape, generator=generator))
        models.append(model.eval().requires_grad_(False).to(device))
    return random_pair(models[0], models[1], guidance)


def chain_of(model: ImageModel, condition: int, guidance: float) -> theory.TabularChain:
    """The model's laws after every prefix, from one teacher-forced pass over all V**T images."""
    size, total = model.vocab_size, model.num_tokens
    images = torch.from_numpy(all_prefixes(size, total)).to(model.device)
    laws = laws_along(model, images, model.encode_conditions([condition] * len(images)), guidance, Warp())
    table: Any = laws.cpu().numpy().reshape(*(size,) * total, total, size)
    levels = [table[(*(slice(None),) * depth, *(0,) * (total - depth), depth)] for depth in range(total)]
    return theory.TabularChain(levels)


XL = Configuration(16384, layers=36, heads=20, width=1280, hidden=3584, side=24, num_classes=1000)
B = Configuration(16384, layers=12, heads=12, width=768, hidden=2048, side=24, num_classes=1000)
SMALL_TARGET = Configuration(16384, layers=4, heads=4, width=128, hidden=256, side=6, num_classes=10)
SMALL_DRAFT = Configuration(16384, layers=1, heads=2, width=64, hidden=128, side=6, num_classes=10)


def random_llamagen(config: Configuration, device: torch.device, dtype: torch.dtype, seed: int = 0) -> LlamaGen:
    """A LlamaGen of any shape with random values, made on the device."""
    with torch.device("meta"):
        model = LlamaGen(config)
    generator = torch.Generator(device=device).manual_seed(seed)
    state = {}
    for name, value in model.state_dict().items():
        made = torch.empty(value.shape, dtype=dtype, device=device)
        if value.ndim == 1:
            state[name] = made.fill_(1.0)
        else:
            state[name] = made.normal_(0.0, 1 / math.sqrt(value.shape[-1]), generator=generator)
    model.load_state_dict(state, assign=True)
    model.rope = model.rope.to(device)
    return model.eval().requires_grad_(False)
