"""Conditions as token ids: the prompt of every image beside the null prompt of its guidance.

Definitions.  A prompt is the ids a model reads before the image's first token. Prompts of one batch, and the null
prompts beside them, differ in length; they are aligned at their ends, so that the image begins at one slot for all, and
the slots in front of a shorter one are padding that nobody sees.

>>> from validate.models.huggingface.prompts import Prompts
>>> prompts = Prompts.of([[5, 6], [7]], nulls=[[1], [1]])
>>> prompts.ids.tolist(), prompts.nulls.tolist()
([[5, 6], [-1, 7]], [[-1, 1], [-1, 1]])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["PADDING", "Prompts", "check_ids"]

PADDING = -1
"""Stands where a shorter prompt has no id."""


@dataclass(frozen=True)
class Prompts:
    """Prompts of B images.

    Attributes
    ----------
    ids : int64 Tensor, shape (B, C)
        Aligned at the end, `PADDING` in front; the last id is the input START stands for.
    nulls : int64 Tensor, shape (B, C), or None
        The null prompts; None where the model has none.
    """

    ids: Tensor
    nulls: Tensor | None = None

    def __post_init__(self) -> None:
        for name, ids in (("ids", self.ids), ("nulls", self.nulls)):
            if ids is None:
                continue
            if ids.ndim != 2 or ids.dtype != torch.int64 or ids.shape[1] < 1:
                raise ValueError(
                    f"{name} must be int64 of shape (B, C), C >= 1; got {ids.dtype} of shape {tuple(ids.shape)}"
                )
            if ids.shape != self.ids.shape:
                raise ValueError(f"nulls have shape {tuple(ids.shape)} but ids {tuple(self.ids.shape)}; align them")

    @classmethod
    def of(cls, prompts: Sequence[Sequence[int]], nulls: Sequence[Sequence[int]] | None = None) -> Prompts:
        """Align lists of ids."""
        every = [*prompts, *(nulls or ())]
        width = max((len(one) for one in every), default=1)
        rows = [[PADDING] * (width - len(one)) + list(one) for one in every]
        ids = torch.tensor(rows, dtype=torch.int64).reshape(len(every), width)
        return cls(ids[: len(prompts)], ids[len(prompts) :] if nulls is not None else None)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, rows: Tensor) -> Prompts:
        return Prompts(self.ids[rows], None if self.nulls is None else self.nulls[rows])

    def to(self, device: torch.device) -> Prompts:
        """The same prompts on a device."""
        return Prompts(self.ids.to(device), None if self.nulls is None else self.nulls.to(device))


def check_ids(prompt: Any, vocabulary: int, name: str) -> list[int]:
    """Ids of one prompt as a list, each in 0, …, vocabulary − 1; errors name ``name``, index and value."""
    if isinstance(prompt, Tensor):
        if prompt.ndim != 1 or prompt.is_floating_point() or prompt.dtype == torch.bool:
            raise ValueError(
                f"{name} must be token ids in one dimension; got {prompt.dtype} of shape {tuple(prompt.shape)}"
            )
        prompt = prompt.tolist()
    ids = list(prompt)
    for index, value in enumerate(ids):
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise ValueError(f"{name}[{index}] is {value!r}; token ids are whole numbers")
        if not 0 <= value < vocabulary:
            raise ValueError(f"{name}[{index}] = {int(value)} is outside the text vocabulary 0…{vocabulary - 1}")
    return [int(value) for value in ids]
