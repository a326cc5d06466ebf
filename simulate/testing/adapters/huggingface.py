"""transformers' `_speculative_sampling` as a sampler.

The function verifies one sequence a call and draws from torch's global generator; it takes no other. So the adapter
calls it round by round, with that generator seeded from `rng` inside `torch.random.fork_rng`: the caller finds it as it
was. Only the CPU's is touched, where all tensors lie.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from simulate.testing.adapters.extras import needed
from simulate.testing.protocol import Emitted, Rounds, Sampler


def transformers_sampler(function: Callable[..., Any] | None = None, dtype: Any = None) -> Sampler:
    """A sampler around transformers' function, or around another with its arguments.

    Parameters
    ----------
    function : (candidate_input_ids, candidate_logits, candidate_length, new_logits) → (valid_tokens, n_matches)
        `transformers.generation.utils._speculative_sampling` by default.
    dtype : torch.dtype
        Of the logits; float32 by default, as models give them. Zero probabilities are logits of −inf.

    Raises
    ------
    ImportError
        Naming the extra, if torch or transformers is missing.
    """
    torch = needed("torch", "hf")
    verify = function or needed("transformers.generation.utils", "hf")._speculative_sampling
    dtype = torch.float32 if dtype is None else dtype

    def sampler(rounds: Rounds, rng: np.random.Generator) -> Emitted:
        ids = torch.from_numpy(rounds.draft_ids)
        drafted = torch.from_numpy(rounds.draft_logits).to(dtype)
        wanted = torch.from_numpy(rounds.target_logits).to(dtype)
        tokens, accepted = np.full((rounds.count, rounds.length + 1), -1), np.zeros(rounds.count, dtype=np.int64)
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.default_generator.manual_seed(int(rng.integers(2**62)))
            for row in range(rounds.count):
                at = slice(row, row + 1)
                emitted, matches = verify(ids[at], drafted[at], rounds.length, wanted[at])
                tokens[row, : emitted.shape[1]] = emitted[0].numpy()
                accepted[row] = int(matches)
        return Emitted(tokens, accepted)

    return sampler
