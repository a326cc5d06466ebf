"""Tiny random networks whose every law can be enumerated: the oracle of the decoding loop."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace

import numpy as np
import torch

import theory
from validate.device_check.checks import law_p_value
from validate.models import Pair, TokenTransformer, guided_logits

VOCABULARY, TOKENS, CLASSES = 3, 4, 2


def network(seed: int, sharpness: float, width: int = 8) -> TokenTransformer:
    model = TokenTransformer(
        vocab_size=VOCABULARY, num_classes=CLASSES, num_tokens=TOKENS, width=width, layers=2, heads=2
    )
    generator = torch.Generator().manual_seed(seed)
    model.initialise(generator)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(sharpness * torch.randn(parameter.shape, generator=generator))
    return model.eval()


class TinyTokenizer:
    """Pixels are token numbers."""

    vocab_size, num_tokens, grid = VOCABULARY, TOKENS, (2, 2)

    def decode(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens.float().reshape(-1, 2, 2)


class TinyJudge:
    """Recognises class 1 in a bright image; its features are the pixels."""

    num_classes = CLASSES

    def __call__(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        bright = images.flatten(1).mean(1, keepdim=True) - 1
        return torch.cat([-bright, bright], 1), images.flatten(1)


def tiny_pair(guidance: float = 1.5) -> Pair:
    return Pair(
        name="tiny",
        target=network(1, 0.25),
        drafts={"tiny": network(2, 0.25)},
        draft_name="tiny",
        tokenizer=TinyTokenizer(),  # type: ignore[arg-type]
        judge=TinyJudge(),  # type: ignore[arg-type]
        reference=SimpleNamespace(  # type: ignore[arg-type]
            feature_mean=torch.ones(TOKENS), feature_covariance=torch.eye(TOKENS)
        ),
        guidance=guidance,
    )


@torch.no_grad()
def table(model: TokenTransformer, label: int, guidance: float) -> theory.TabularChain:
    """The network's laws after every prefix, teacher-forced, in float64."""
    levels = []
    for depth in range(TOKENS):
        prefixes = torch.tensor(list(product(range(VOCABULARY), repeat=depth)), dtype=torch.int64)
        prefixes = prefixes.reshape(VOCABULARY**depth, depth)
        halves = []
        for first in (VOCABULARY + label, model.null_id):
            ids = torch.cat([torch.full((len(prefixes), 1), first), prefixes], dim=1)
            halves.append(model(ids)[:, -1])
        logits = guided_logits(halves[0], halves[1], guidance).double()
        levels.append(torch.softmax(logits, -1).numpy().reshape((VOCABULARY,) * (depth + 1)))
    return theory.TabularChain(levels)


def counts(tokens: np.ndarray, width: int) -> np.ndarray:
    """How often every sequence of `width` tokens occurs, in lexicographic order."""
    index = tokens[:, :width] @ (VOCABULARY ** np.arange(width - 1, -1, -1))
    return np.bincount(index, minlength=VOCABULARY**width)


def fits(tokens: np.ndarray, law: np.ndarray, width: int = TOKENS) -> float:
    """p-value of the first `width` tokens of images under a law of V^width cells."""
    return law_p_value(tokens, np.asarray(law).reshape((VOCABULARY,) * width))
