"""What a sampler under test is given, and what it must answer.

A *sampler* verifies: it is given a batch of drafted blocks with the target's and the draft's laws along each, and
answers with what the round emits. That is the part every framework writes anew, and the smallest one that can be
wrong. A *round decoder* drafts as well; faults between the law that is declared and the law that is drawn from
only show there.

>>> import numpy as np
>>> def accept_nothing(rounds, rng):
...     cumulative = rounds.target_probs[:, 0].cumsum(axis=-1)
...     token = (rng.random((rounds.count, 1)) >= cumulative).sum(axis=-1)
...     tokens = np.full((rounds.count, rounds.length + 1), -1)
...     tokens[:, 0] = token
...     return Emitted(tokens, np.zeros(rounds.count, dtype=int))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

import theory
from simulate.laws import Floats, Integers, teacher_forced

__all__ = ["Emitted", "Floats", "Integers", "RoundDecoder", "Rounds", "Sampler"]


@dataclass(frozen=True, eq=False)
class Rounds:
    """A batch of drafted blocks."""

    draft_ids: Integers
    """Shape (B, L): the drafted tokens."""
    target_probs: Floats
    """Shape (B, L+1, V): p after 0, 1, …, L drafted tokens."""
    draft_probs: Floats
    """Shape (B, L, V): the law q that each drafted token is declared to come from."""

    @classmethod
    def along(cls, target: theory.Chain, draft: theory.Chain, ids: Integers) -> Rounds:
        """Drafted blocks (B, L) with the laws of both chains along them."""
        length = ids.shape[1]
        return cls(ids, teacher_forced(target, ids, length + 1), teacher_forced(draft, ids))

    @property
    def count(self) -> int:
        """B."""
        return len(self.draft_ids)

    @property
    def length(self) -> int:
        """L."""
        return int(self.draft_ids.shape[1])

    @property
    def vocab_size(self) -> int:
        """V."""
        return int(self.target_probs.shape[-1])

    @property
    def target_logits(self) -> Floats:
        """log p, −inf where p = 0."""
        return _log(self.target_probs)

    @property
    def draft_logits(self) -> Floats:
        """log q, −inf where q = 0."""
        return _log(self.draft_probs)


class Emitted(NamedTuple):
    """What a round emits."""

    tokens: Any
    """Integers, shape (B, L+1): the accepted drafts, then one token more (the replacement of a rejected draft, or
    the bonus token); what lies behind is ignored. Rows of different lengths (a list of lists) are taken too."""
    accepted: Any
    """Integers, shape (B,): accepted drafts, so that row b emits accepted[b] + 1 tokens."""


class Sampler(Protocol):
    """Verifies drafted blocks. Every random number it uses must come from `rng`."""

    def __call__(self, rounds: Rounds, rng: np.random.Generator) -> Emitted: ...


@dataclass(frozen=True)
class RoundDecoder:
    """A system that drafts for itself.

    Parameters
    ----------
    run : function (target, draft, length, count, rng) → Emitted
        One round of `length` drafts from the start of the chains, `count` times.
    """

    run: Callable[[theory.Chain, theory.Chain, int, int, np.random.Generator], Emitted]


def _log(probs: Floats) -> Floats:
    positive = probs > 0
    return np.where(positive, np.log(np.where(positive, probs, 1.0)), -np.inf)
