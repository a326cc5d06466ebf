"""Plain torch rejection samplers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from simulate.testing.adapters.extras import needed
from simulate.testing.protocol import Emitted, Rounds, Sampler


def torch_sampler(
    function: Callable[[Any, Any, Any, Any], tuple[Any, Any]],
    *,
    logits: bool = False,
    dtype: Any = None,
    device: Any = "cpu",
) -> Sampler:
    """A sampler around a function of torch tensors.

    Parameters
    ----------
    function : (draft_ids, draft, target, generator) → (tokens, accepted)
        draft_ids (B, L) int64, draft (B, L, V), target (B, L+1, V), a seeded torch.Generator; tokens (B, L+1) of which
        the first accepted+1 count, or a list of rows; accepted (B,).
    logits : bool
        Whether draft and target are log-probabilities (−inf for zero) instead of probabilities.
    dtype : torch.dtype
        float32 by default.
    device : torch.device or str
        Of tensors and generator.

    Raises
    ------
    ImportError
        Naming the extra, if torch is missing.
    """
    torch = needed("torch", "validate")
    dtype = torch.float32 if dtype is None else dtype

    def sampler(rounds: Rounds, rng: np.random.Generator) -> Emitted:
        draft, target = (
            (rounds.draft_logits, rounds.target_logits) if logits else (rounds.draft_probs, rounds.target_probs)
        )
        generator = torch.Generator(device=device).manual_seed(int(rng.integers(2**62)))
        ids = torch.from_numpy(rounds.draft_ids).to(device)
        laws = [torch.from_numpy(law).to(device=device, dtype=dtype) for law in (draft, target)]
        tokens, accepted = function(ids, laws[0], laws[1], generator)
        return Emitted(tokens, accepted)

    return sampler
