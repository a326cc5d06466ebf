"""Images being written under classifier-free guidance: both halves of it in one batch.

Conditional rows come first, null rows second, and both are fed the same inputs. A model family says how its rows are
extended and gathered; what the halves have in common is here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal, overload

import torch
from torch import Tensor

from validate.models.guidance import guided_logits

__all__ = ["GuidedSequences"]


class GuidedSequences(ABC):
    """A `Sequences` over a network that extends all its rows at once.

    Parameters
    ----------
    rows : int
        B, images.
    guidance : float
        s; at 1 there are no null rows.
    guided_tokens : int, optional
        Only the first so many tokens of an image are guided, later ones are conditional.
    """

    def __init__(self, rows: int, guidance: float, guided_tokens: int | None = None) -> None:
        self.rows, self.guidance, self.guided_tokens = rows, guidance, guided_tokens
        self.halves = 1 if guidance == 1.0 else 2

    @abstractmethod
    def extend(self, inputs: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and hidden states of all halves · B rows behind new inputs, which are appended to the cache."""

    def check(self, inputs: Tensor, lengths: Tensor) -> None:  # noqa: B027
        """Refuse a block that cannot be; families that can afford it do."""

    @abstractmethod
    def gather(self, rows: Tensor) -> None:
        """Go on with these of the halves · B rows."""

    @overload
    def logits(self, inputs: Tensor, lengths: Tensor, *, hidden: Literal[False] = False) -> Tensor: ...

    @overload
    def logits(self, inputs: Tensor, lengths: Tensor, *, hidden: Literal[True]) -> tuple[Tensor, Tensor]: ...

    def logits(self, inputs: Tensor, lengths: Tensor, *, hidden: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """See `validate.models.interface.Sequences.logits`."""
        self.check(inputs, lengths)
        both = (inputs, lengths) if self.halves == 1 else (inputs.repeat(2, 1), lengths.repeat(2))
        logits, states = self.extend(*both)
        index = lengths[:, None] + torch.arange(inputs.shape[1], device=lengths.device)
        guided = self.guide(logits.float(), index)
        return (guided, states) if hidden else guided

    def guide(self, logits: Tensor, index: Tensor) -> Tensor:
        """Both halves' logits (halves · B, n, V) combined; `index` (B, n) tells which token each input precedes."""
        if self.halves == 1:
            return logits
        conditional, null = logits.chunk(2)
        guided = guided_logits(conditional, null, self.guidance)
        if self.guided_tokens is None:
            return guided
        return torch.where((index < self.guided_tokens)[..., None], guided, conditional)

    def keep(self, rows: Tensor) -> None:
        """Go on with these images only."""
        self.gather(rows if self.halves == 1 else torch.cat([rows, rows + self.rows]))
        self.rows = len(rows)
