"""Target, drafts and everything needed to sample from them, look at the samples, and judge them."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from validate.models.devices import resolve_device
from validate.models.interface import ImageModel, PixelDecoder
from validate.models.judge import Judge, Reference
from validate.models.warping import Warp

__all__ = ["Pair", "check_tokenizers"]

_Part = TypeVar("_Part")


def check_tokenizers(ours: PixelDecoder, theirs: PixelDecoder, name: str) -> None:
    """Refuse a draft whose tokenizer is not the target's, tensor by tensor.

    Raises
    ------
    ValueError
        Another number of tables, or a table of other shape or values; names the first that differs.
    """
    left, right = list(ours.tables()), list(theirs.tables())
    if len(left) != len(right):
        raise ValueError(f"{name}'s tokenizer has {len(right)} tables but the target's {len(left)}")
    for index, (a, b) in enumerate(zip(left, right, strict=True)):
        if a.shape != b.shape:
            raise ValueError(
                f"table {index} of {name}'s tokenizer has shape {tuple(b.shape)} but the target's {tuple(a.shape)}"
            )
        # Two precisions of one tokenizer agree where the coarser rounds the finer.
        coarse = min(a.dtype, b.dtype, key=lambda dtype: dtype.itemsize)
        differs = (a.to(coarse) != b.to(a.device, coarse)).nonzero()
        if len(differs):
            at = tuple(differs[0].tolist())
            raise ValueError(
                f"table {index} of {name}'s tokenizer holds {float(b[at])} at {at} but the target's {float(a[at])}: "
                "their tokens mean different things, so one cannot draft for the other"
            )


@dataclass(frozen=True)
class Pair:
    """A target model and its drafts over the same image tokens.

    Attributes
    ----------
    name : str
        What `validate.models.load` calls it.
    target : ImageModel
    drafts : mapping of str to ImageModel
        Best first.
    draft_name : str
        The draft in use; `draft` is its network.
    tokenizer : PixelDecoder
    judge : Judge, optional
    reference : Reference, optional
        Feature mean and covariance, tokens and labels of the data set's test images.
    guidance : float
        Default classifier-free guidance scale.
    warp : Warp
        Default temperature, top-k and top-p.
    meta : mapping
        The manifest: data, seeds, steps and measured figures.
    """

    name: str
    target: ImageModel
    drafts: Mapping[str, ImageModel]
    draft_name: str
    tokenizer: PixelDecoder
    judge: Judge | None = None
    reference: Reference | None = None
    guidance: float = 2.0
    meta: Mapping[str, Any] = field(default_factory=dict)
    warp: Warp = field(default_factory=Warp)

    def __post_init__(self) -> None:
        if not self.drafts:
            raise ValueError("a pair needs at least one draft; got none")
        if self.draft_name not in self.drafts:
            raise ValueError(f"unknown draft {self.draft_name!r}; known drafts are {', '.join(self.drafts)}")
        if not math.isfinite(self.guidance):
            raise ValueError(f"guidance scale must be finite; got {self.guidance}")
        if self.guidance != 1.0 and self.target.unconditional:
            raise ValueError(f"the target is unconditional, so guidance must be 1; got {self.guidance}")
        for name, draft in self.drafts.items():
            for size in ("vocab_size", "num_tokens", "grid", "unconditional", "num_classes"):
                ours, theirs = getattr(self.target, size, None), getattr(draft, size, None)
                if ours != theirs:
                    raise ValueError(
                        f"draft {name!r} has {size} {theirs} but the target {ours}; they must share tokens"
                    )
            own = getattr(draft, "decoder", None)
            if own is not None and own is not self.tokenizer:
                check_tokenizers(self.tokenizer, own, f"draft {name!r}")
        for size in ("vocab_size", "num_tokens", "grid"):
            ours, theirs = getattr(self.target, size), getattr(self.tokenizer, size, None)
            if theirs is not None and ours != theirs:
                raise ValueError(f"the tokenizer has {size} {theirs} but the target {ours}; they must agree")
        if self.judge is not None and self.judge.num_classes != self.num_classes:
            raise ValueError(f"the judge knows {self.judge.num_classes} classes but the target {self.num_classes}")

    @property
    def draft(self) -> ImageModel:
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
    def num_classes(self) -> int | None:
        """C, without the null class; None for models without classes."""
        return getattr(self.target, "num_classes", None)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of tokens."""
        return self.target.grid

    @property
    def device(self) -> torch.device:
        """Where the networks are."""
        return self.target.device

    def encode_conditions(self, images: Any) -> tuple[Any, Any]:
        """What target and draft are to show, from a count, class numbers, captions or prompts."""
        ours, theirs = (model.encode_conditions(images) for model in (self.target, self.draft))
        return ours, theirs

    def classes(self, conditions: Any) -> np.ndarray:
        """Class numbers of the target's encoded conditions, int64; −1 for models without classes."""
        if self.num_classes is None:
            return np.full(len(conditions), -1, dtype=np.int64)
        return cast(Tensor, conditions).cpu().numpy()

    def with_draft(self, name: str) -> Pair:
        """The same pair using another of its drafts."""
        return replace(self, draft_name=name)

    def with_guidance(self, scale: float) -> Pair:
        """The same pair at another guidance scale."""
        return replace(self, guidance=scale)

    def with_warp(self, warp: Warp) -> Pair:
        """The same pair at another temperature, top-k and top-p."""
        return replace(self, warp=warp)

    def compiled(self, backend: str = "inductor") -> Pair:
        """The pair with networks fused by `torch.compile`, as far as their family offers it (LlamaGen does).

        Raises
        ------
        TypeError
            None of the networks offers it.
        """
        models: dict[str, Any] = {"": self.target, **self.drafts}
        if not any(hasattr(model, "compiled") for model in models.values()):
            raise TypeError(f"pair {self.name!r}: none of its networks can be compiled; LlamaGen's can")
        fused = {name: m.compiled(backend) if hasattr(m, "compiled") else m for name, m in models.items()}
        return replace(self, target=fused.pop(""), drafts=fused)

    def to(self, device: str | torch.device) -> Pair:
        """The pair on another device; this one stays where it is (unlike `torch.nn.Module.to`)."""
        place = resolve_device(device)
        if place.type == self.device.type and place.index in (None, self.device.index):
            return self
        there: dict[int, Any] = {}

        def moved(part: _Part) -> _Part:
            # A target that drafts for itself is moved once.
            if id(part) not in there:
                copied = copy.deepcopy(part) if isinstance(part, nn.Module) else part
                if not hasattr(copied, "to"):
                    raise ValueError(f"{type(part).__name__} cannot be moved: load it with device={str(place)!r}")
                there[id(part)] = cast(Any, copied).to(place)
            return cast(_Part, there[id(part)])

        return replace(
            self,
            target=moved(self.target),
            drafts={name: moved(draft) for name, draft in self.drafts.items()},
            tokenizer=moved(self.tokenizer),
            judge=None if self.judge is None else moved(self.judge),
            reference=None if self.reference is None else self.reference.to(place),
        )
