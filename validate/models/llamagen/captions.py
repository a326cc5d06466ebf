"""Captions as a text-conditional model takes them: features of a text encoder, moved to the end of the slots.

An encoder pads on the right: of C = 120 slots the first n hold a caption. The model was trained with the n used slots
at the *end* and zeros before them. A file of captions (.npz or .safetensors) holds

    features (B, n, width)   float, what the encoder answered, n ≤ 120 or padded beyond that;
    mask (B, n)              1 for a caption's tokens, 0 for padding behind them; without it all slots are used.

A caption of more than 120 tokens is refused, not cut: what would be lost is for the user to choose. `encode_captions`
runs transformers' T5 encoder (the models were trained on Flan-T5-XL, width 2048). Captions are lower-cased and
stripped before tokenising; the training set's further cleaning (links, markup, odd punctuation) is not repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["SLOTS", "Captions", "encode_captions", "read_captions"]

SLOTS = 120


@dataclass(frozen=True)
class Captions:
    """Captions, left-padded.

    Attributes
    ----------
    features : Tensor, shape (B, C, width)
        Zero in unused slots.
    used : bool Tensor, shape (B, C)
        Unused slots first, then the used ones, at least one.
    """

    features: Tensor
    used: Tensor

    def __post_init__(self) -> None:
        if self.features.ndim != 3 or self.used.shape != self.features.shape[:2] or self.used.dtype != torch.bool:
            raise ValueError(
                f"captions need features (B, C, width) and a bool mask (B, C); got {tuple(self.features.shape)} and "
                f"{self.used.dtype} {tuple(self.used.shape)}"
            )

    @classmethod
    def from_encoder(cls, features: Any, mask: Any = None, slots: int = SLOTS) -> Captions:
        """Captions of an encoder's answer, padded on the right: features (B, n, width), mask (B, n).

        Raises
        ------
        ValueError
            Wrong shapes, a value that is not finite, a mask that is not ones then zeros, an empty caption, or one
            longer than `slots`; names the caption.
        """
        features = torch.as_tensor(features)
        if features.ndim != 3 or not features.is_floating_point():
            raise ValueError(f"features must be floating point (B, n, width), got {tuple(features.shape)}")
        rows, given, width = features.shape
        mask = torch.ones(rows, given) if mask is None else torch.as_tensor(mask)
        if mask.shape != (rows, given):
            raise ValueError(f"mask must have shape ({rows}, {given}) like features, got {tuple(mask.shape)}")
        shown = mask.to(features.device) != 0
        lengths = shown.sum(dim=1)
        wrong = (shown != (torch.arange(given, device=shown.device) < lengths[:, None])).any(dim=1).nonzero()
        if len(wrong):
            raise ValueError(f"mask row {int(wrong[0])} must be ones followed by zeros (padding on the right)")
        for row, length in enumerate(lengths.tolist()):
            if not 1 <= length <= slots:
                raise ValueError(
                    f"caption {row} has {length} tokens; the model takes 1 to {slots}, so shorten it"
                    if length
                    else f"caption {row} is empty"
                )
        kept = min(given, slots)
        out = features.new_zeros(rows, slots, width)
        source = features.masked_fill(~shown[..., None], 0.0)[:, :kept]
        bad = (~torch.isfinite(source)).nonzero()
        if len(bad):
            raise ValueError(f"features hold {float(source[tuple(bad[0])])} at index {tuple(bad[0].tolist())}")
        place = torch.arange(kept, device=shown.device) + slots - lengths[:, None]
        row_index = torch.arange(rows, device=shown.device)[:, None].expand_as(place)
        inside = shown[:, :kept]
        out[row_index[inside], place[inside]] = source[inside]
        return cls(out, torch.arange(slots, device=shown.device) >= slots - lengths[:, None])

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, rows: Tensor | slice) -> Captions:
        return Captions(self.features[rows], self.used[rows])

    def to(self, device: str | torch.device) -> Captions:
        """The captions on another device."""
        return Captions(self.features.to(device), self.used.to(device))


def read_captions(path: str | Path, slots: int = SLOTS) -> Captions:
    """Captions of a file, .npz or .safetensors; see the module for its arrays.

    Raises
    ------
    ValueError
        Another suffix, no `features`, or what `Captions.from_encoder` refuses.
    """
    path = Path(path)
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as archive:
            arrays: dict[str, Any] = {name: archive[name] for name in ("features", "mask") if name in archive}
    elif path.suffix == ".safetensors":
        from safetensors.torch import load_file

        arrays = dict(load_file(path))
    else:
        raise ValueError(f"{path} must be .npz or .safetensors")
    if "features" not in arrays:
        raise ValueError(f"{path} holds no array 'features'")
    try:
        return Captions.from_encoder(arrays["features"], arrays.get("mask"), slots)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


@torch.no_grad()
def encode_captions(
    texts: Sequence[str], encoder: str | Path, *, device: str | torch.device = "cpu", slots: int = SLOTS
) -> Captions:
    """Captions through a T5 encoder in transformers' format (a local folder, or a name its cache knows).

    Raises
    ------
    ImportError
        transformers is not installed (extra ``hf``).
    ValueError
        A caption is empty or has more than `slots` tokens, or the encoder's weights are incomplete.
    """
    try:
        from transformers import AutoTokenizer, T5EncoderModel
    except ImportError as error:
        raise ImportError("captions need transformers: install relaxsd[hf]") from error
    tokenizer = AutoTokenizer.from_pretrained(encoder, local_files_only=True)
    loaded: Any = T5EncoderModel.from_pretrained(encoder, local_files_only=True, output_loading_info=True)
    model, report = loaded
    # The encoder's embedding is tied to the shared one, so files hold either.
    missing = set(report["missing_keys"]) - {"encoder.embed_tokens.weight", "shared.weight"}
    if missing or len(report["missing_keys"]) > 1:
        raise ValueError(f"{encoder} lacks tensor {sorted(missing or report['missing_keys'])[0]!r} of a T5 encoder")
    ids = tokenizer([text.lower().strip() for text in texts], padding=True, return_tensors="pt")
    for row, length in enumerate(ids["attention_mask"].sum(dim=1).tolist()):
        if length > slots:
            raise ValueError(f"caption {row} has {length} tokens; the model takes 1 to {slots}, so shorten it")
    model = model.eval().to(device)
    mask = ids["attention_mask"].to(device)
    features = model(input_ids=ids["input_ids"].to(device), attention_mask=mask).last_hidden_state
    return Captions.from_encoder(features, mask, slots)
