"""Target, drafts and everything needed to sample from them, look at the samples, and judge them."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import nn

from validate.models.devices import resolve_device
from validate.models.judge import Judge, Reference
from validate.models.transformer import TokenTransformer
from validate.models.vq import VQTokenizer

__all__ = ["Pair"]

_Module = TypeVar("_Module", bound=nn.Module)


@dataclass(frozen=True)
class Pair:
    """A target model and its drafts over the same image tokens.

    Attributes
    ----------
    name : str
        What `validate.models.load` calls it.
    target : TokenTransformer
    drafts : mapping of str to TokenTransformer
        Best first.
    draft_name : str
        The draft in use; `draft` is its network.
    tokenizer : VQTokenizer
    judge : Judge
    reference : Reference
        Feature mean and covariance, tokens and labels of the data set's test images.
    guidance : float
        Default classifier-free guidance scale.
    meta : mapping
        The manifest: data, seeds, steps and measured figures.
    """

    name: str
    target: TokenTransformer
    drafts: Mapping[str, TokenTransformer]
    draft_name: str
    tokenizer: VQTokenizer
    judge: Judge
    reference: Reference
    guidance: float = 2.0
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.drafts:
            raise ValueError("a pair needs at least one draft; got none")
        if self.draft_name not in self.drafts:
            raise ValueError(f"unknown draft {self.draft_name!r}; known drafts are {', '.join(self.drafts)}")
        if not math.isfinite(self.guidance):
            raise ValueError(f"guidance scale must be finite; got {self.guidance}")
        for name, draft in self.drafts.items():
            for size in ("vocab_size", "num_tokens", "num_classes"):
                ours, theirs = getattr(self.target, size), getattr(draft, size)
                if ours != theirs:
                    raise ValueError(
                        f"draft {name!r} has {size} {theirs} but the target {ours}; they must share tokens"
                    )
        for size in ("vocab_size", "num_tokens"):
            ours, theirs = getattr(self.target, size), getattr(self.tokenizer, size)
            if ours != theirs:
                raise ValueError(f"the tokenizer has {size} {theirs} but the target {ours}; they must agree")
        if self.judge.num_classes != self.target.num_classes:
            raise ValueError(
                f"the judge knows {self.judge.num_classes} classes but the target {self.target.num_classes}"
            )

    @property
    def draft(self) -> TokenTransformer:
        """The draft in use."""
        return self.drafts[self.draft_name]

    @property
    def num_tokens(self) -> int:
        """T, tokens of an image."""
        return self.target.num_tokens

    @property
    def vocab_size(self) -> int:
        """V, the number of image tokens."""
        return self.target.vocab_size

    @property
    def num_classes(self) -> int:
        """C, without the null class."""
        return self.target.num_classes

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of tokens."""
        return self.tokenizer.grid

    @property
    def device(self) -> torch.device:
        """Where the networks are."""
        return self.target.head.weight.device

    def with_draft(self, name: str) -> Pair:
        """The same pair using another of its drafts."""
        return replace(self, draft_name=name)

    def with_guidance(self, scale: float) -> Pair:
        """The same pair at another guidance scale."""
        return replace(self, guidance=scale)

    def to(self, device: str | torch.device) -> Pair:
        """The pair on another device; this one stays where it is (unlike `torch.nn.Module.to`)."""
        place = resolve_device(device)
        if place.type == self.device.type and place.index in (None, self.device.index):
            return self

        def moved(module: _Module) -> _Module:
            return copy.deepcopy(module).to(place)

        return replace(
            self,
            target=moved(self.target),
            drafts={name: moved(draft) for name, draft in self.drafts.items()},
            tokenizer=moved(self.tokenizer),
            judge=moved(self.judge),
            reference=self.reference.to(place),
        )
