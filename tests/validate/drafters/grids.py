"""A random network over a 3 × 3 grid of two tokens: rows that matter, and every image can be enumerated."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from scipy.stats import chisquare

from validate.models import Pair, TokenTransformer

SIDE, VOCABULARY, CLASSES = 3, 2, 2
TOKENS = SIDE**2


def grid_network(seed: int, sharpness: float = 0.3, tokens: int = TOKENS) -> TokenTransformer:
    model = TokenTransformer(vocab_size=VOCABULARY, num_classes=CLASSES, num_tokens=tokens, width=8, layers=2, heads=2)
    generator = torch.Generator().manual_seed(seed)
    model.initialise(generator)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(sharpness * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def grid_pair(guidance: float = 1.5) -> Pair:
    codebook = torch.tensor([[0.0], [1.0]])
    tokenizer: Any = SimpleNamespace(vocab_size=VOCABULARY, num_tokens=TOKENS, grid=(SIDE, SIDE), codebook=codebook)
    return Pair("grid", grid_network(1), {"grid": grid_network(2)}, "grid", tokenizer, guidance=guidance)


def every_image() -> torch.Tensor:
    """All V**T images, in lexicographic order."""
    return torch.tensor(list(product(range(VOCABULARY), repeat=TOKENS)))


def image_law(laws: torch.Tensor) -> np.ndarray:
    """Probabilities of all images from the laws (V**T, T, V) along them."""
    chosen = torch.take_along_dim(laws.double(), every_image()[..., None], -1)[..., 0]
    return np.asarray(chosen.prod(dim=-1))


def fits(tokens: np.ndarray, law: np.ndarray) -> float:
    """p-value of images under a law; images expected fewer than five times are pooled."""
    index = tokens @ (VOCABULARY ** np.arange(TOKENS - 1, -1, -1))
    seen, wanted = np.bincount(index, minlength=len(law)), law * len(tokens)
    rare = wanted < 5
    seen, wanted = (np.append(a[~rare], a[rare].sum()) for a in (seen, wanted))
    return float(chisquare(seen, wanted * seen.sum() / wanted.sum()).pvalue)
