"""Shapes of a LlamaGen transformer, read off its tensors.

An official file states neither the number of heads nor the grid. Published widths have one head count each; the grid is
the training resolution over the tokenizer's stride of 16 (256, 384 and 512 pixels: 16, 24 and 32 tokens a side), which
only the file's name, a config or the user can tell. A Hugging-Face-style directory states both in its config.json.

Source: Sun et al., LlamaGen, arXiv:2406.06525, and the public files' key lists.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from validate.models.tensors import WeightsError, read_object

__all__ = ["Configuration", "entries_of", "grid_of_name", "infer", "llama_entries", "read_configuration", "side_of"]

HEADS = {768: 12, 1024: 16, 1280: 20, 1536: 24, 2560: 40, 3200: 32, 2048: 32, 4096: 32}
"""Heads of every width in the public code: B, L, XL, XXL, XXXL, 3B, 1B, 7B (XXXL, 1B and 7B without public weights)."""
GUIDANCE = {768: 2.0, 1024: 2.0, 1280: 1.75, 1536: 1.75, 3200: 1.65}
"""The scale behind the published quality figures of the class-conditional models."""
TEXT_GUIDANCE = 7.5
STRIDE = 16


@dataclass(frozen=True)
class Configuration:
    """Shape of a LlamaGen transformer.

    Attributes
    ----------
    vocab_size, layers, heads, width, hidden : int
        V; blocks; attention heads; model width D; feed-forward width F.
    side : int
        Tokens in a row and in a column of the image.
    prefix : int
        Slots before the image, C: 1 for a class, 120 for a caption.
    num_classes : int
        Without the null class; 0 for a text model.
    caption_width : int
        Width of caption features; 0 for a class model.
    has_null : bool
        Whether there is a null condition to guide against.
    eps, rope_base : float
        Of the norms; of the rotary embedding.
    """

    vocab_size: int
    layers: int
    heads: int
    width: int
    hidden: int
    side: int
    prefix: int = 1
    num_classes: int = 0
    caption_width: int = 0
    has_null: bool = True
    eps: float = 1e-5
    rope_base: float = 10000.0

    def __post_init__(self) -> None:
        for name in ("vocab_size", "layers", "heads", "width", "hidden", "side", "prefix"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}")
        if (self.num_classes > 0) == (self.caption_width > 0):
            raise ValueError(
                "a model is conditioned either on classes or on captions; "
                f"got num_classes {self.num_classes}, caption_width {self.caption_width}"
            )
        if self.width % (4 * self.heads):
            raise ValueError(
                f"the head width must be a multiple of 4 for the two-axis rotary embedding; "
                f"got width {self.width} over {self.heads} heads"
            )

    @property
    def num_tokens(self) -> int:
        """T = side²."""
        return self.side**2

    @property
    def default_guidance(self) -> float:
        """The authors' own scale, 2 for shapes they did not publish."""
        return TEXT_GUIDANCE if self.caption_width else GUIDANCE.get(self.width, 2.0)


def grid_of_name(name: str) -> int | None:
    """Tokens a side from a resolution in a file's name.

    >>> grid_of_name("c2i_XL_384.pt"), grid_of_name("t2i_XL_stage2_512.pt"), grid_of_name("model.pt")
    (24, 32, None)
    """
    found = re.search(r"(?<!\d)(256|384|512)(?!\d)", name)
    return int(found[1]) // STRIDE if found else None


def infer(shapes: Mapping[str, tuple[int, ...]], side: int | None, heads: int | None, where: str) -> Configuration:
    """Configuration of tensors with the official names.

    Raises
    ------
    WeightsError
        A tensor that decides the shape is missing, or grid or heads cannot be told and are not given.
    """

    def of(key: str, axis: int) -> int:
        if key not in shapes:
            raise WeightsError(f"{where} lacks tensor {key!r}")
        if len(shapes[key]) != 2:
            raise WeightsError(f"{where}: tensor {key!r} has shape {shapes[key]}, expected two dimensions")
        return shapes[key][axis]

    width = of("tok_embeddings.weight", 1)
    if heads is None and width not in HEADS:
        raise WeightsError(f"{where} has width {width}, which no public model has: give its number of heads, heads=…")
    if side is None:
        raise WeightsError(f"{where} does not tell its resolution: give the tokens a side, grid=16, 24 or 32")
    text = "cls_embedding.uncond_embedding" in shapes
    layers = [int(found[1]) for key in shapes if (found := re.match(r"layers\.(\d+)\.", key))]
    try:
        return Configuration(
            vocab_size=of("tok_embeddings.weight", 0),
            layers=max(layers, default=-1) + 1,
            heads=HEADS[width] if heads is None else heads,
            width=width,
            hidden=of("layers.0.feed_forward.w1.weight", 0),
            side=side,
            prefix=of("cls_embedding.uncond_embedding", 0) if text else 1,
            num_classes=0 if text else of("cls_embedding.embedding_table.weight", 0) - 1,
            caption_width=of("cls_embedding.uncond_embedding", 1) if text else 0,
        )
    except ValueError as error:
        raise error if isinstance(error, WeightsError) else WeightsError(f"{where}: {error}") from error


@contextmanager
def entries_of(path: Path) -> Iterator[None]:
    """Turn what reading a config may raise into a `WeightsError` that names the file."""
    try:
        yield
    except WeightsError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        what = f"lacks {error}" if isinstance(error, KeyError) else str(error)
        raise WeightsError(f"{path}: {what}") from error


def side_of(config: Mapping[str, Any]) -> int:
    """Tokens a side of the image whose tokens a config counts in `block_size`."""
    block = int(config["block_size"])
    side = math.isqrt(block)
    if side**2 != block:
        raise ValueError(f"block_size {block} is not a square")
    return side


def llama_entries(config: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a `Configuration` that a config gives under a Llama's names: all but the image's."""
    heads = int(config["num_attention_heads"])
    if config.get("num_key_value_heads", heads) != heads:
        raise ValueError("grouped-query attention (num_key_value_heads) is not supported; no published model has it")
    return {
        "vocab_size": int(config["vocab_size"]),
        "layers": int(config["num_hidden_layers"]),
        "heads": heads,
        "width": int(config["hidden_size"]),
        "hidden": int(config["intermediate_size"]),
        "eps": float(config["rms_norm_eps"]),
        "rope_base": float(config.get("rope_base", 10000)),
    }


def read_configuration(path: Path, side: int | None) -> Configuration:
    """Configuration of a Hugging-Face-style config.json; `side` is what the user says of the grid, if anything.

    Raises
    ------
    WeightsError
        Not JSON, of another kind of model, an entry missing or wrong, or another grid.
    """
    config = read_object(path)
    if "input_type" not in config or "block_size" not in config:
        kind = config.get("model_type", "unknown")
        raise WeightsError(f"{path} is of a {kind!r} model, not a LlamaGen: no input_type or block_size")
    with entries_of(path):
        text = str(config["input_type"]).startswith("t2i")
        own = side_of(config)
        if side not in (None, own):
            raise ValueError(f"block_size {own**2} is not the square of the grid {side}")
        return Configuration(
            **llama_entries(config),
            side=own,
            prefix=int(config["cls_token_num"]),
            num_classes=0 if text else int(config["num_classes"]),
            caption_width=int(config["caption_dim"]) if text else 0,
            has_null=text or float(config.get("class_dropout_p", 0.1)) > 0,
        )
