"""Names of tensors: what may stand in a LlamaGen file, and what a file of another family is.

The network carries the official names. The Hugging-Face-style directory of LANTERN (arXiv:2410.03355) holds the same
tensors under a Llama's names, with wqkv cut in three.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from validate.models.tensors import WeightsError

__all__ = ["expect_family", "family", "llama_names", "official_names", "tokenizer_names", "transformer_names"]

LAYER = {
    "self_attn.o_proj": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
}
OUTSIDE = {
    "model.embed_tokens.weight": "tok_embeddings.weight",
    "model.norm.weight": "norm.weight",
    "lm_head.weight": "output.weight",
}
SIGNS = {
    "LlamaGen transformer": r"layers\.0\.attention\.wqkv\.weight|tok_embeddings\.weight",
    "LlamaGen transformer in Hugging-Face style": r"model\.cls_embedding\.",
    "LlamaGen VQ tokenizer": r"quantize\.embedding\.weight",
    "EAGLE-style drafter": r"fc\.weight",
    "embedded pair's transformer": r"token_embedding\.weight",
    "Janus model": r"(model\.)?(generation_|gen_)",
    "ImageGPT model": r"transformer\.wte\.weight",
    "Chameleon-type model": r"model\.vqmodel\.",
    "Emu3 model": r"(model\.)?text_model\.",
    "Llama-type text model": r"model\.embed_tokens\.weight",
}
"""Families by a key that starts like this; the first that fits, top to bottom."""


def family(keys: Iterable[str]) -> str:
    """What kind of model has these tensors.

    >>> family(["quantize.embedding.weight", "decoder.conv_in.weight"])
    'LlamaGen VQ tokenizer'
    """
    keys = list(keys)
    for name, sign in SIGNS.items():
        if any(re.match(sign, key) for key in keys):
            return name
    return f"model of no known family (its first tensor is {keys[0]!r})" if keys else "file without tensors"


def expect_family(keys: Iterable[str], wanted: str, where: object) -> None:
    """Refuse tensors of another family, naming it."""
    found = family(keys)
    if found != wanted:
        raise WeightsError(f"{where} holds a {found}, not a {wanted}")


def transformer_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Without `freqs_cis`, a rotary table that old files stored and the network computes."""
    return {name: value for name, value in tensors.items() if name != "freqs_cis"}


def tokenizer_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Without what only encoding or training uses: the encoder, its projection, the usage counter."""
    unused = ("encoder.", "quant_conv.", "quantize.codebook_used")
    return {name: value for name, value in tensors.items() if not name.startswith(unused)}


def official_names(tensors: Mapping[str, Tensor], where: object) -> dict[str, Tensor]:
    """Tensors of a Hugging-Face-style directory under the official names; unknown names stay as they are.

    Raises
    ------
    WeightsError
        A layer has not all three of q_proj, k_proj and v_proj, or they do not fit together.
    """
    out: dict[str, Tensor] = {}
    for name, value in tensors.items():
        part = re.fullmatch(r"model\.layers\.(\d+)\.self_attn\.([qkv])_proj\.weight", name)
        inside = re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.weight", name)
        if part:
            three = [f"model.layers.{part[1]}.self_attn.{letter}_proj.weight" for letter in "qkv"]
            for needed in three:
                if needed not in tensors:
                    raise WeightsError(f"{where} lacks tensor {needed!r}")
                if tensors[needed].shape != value.shape:
                    found = tuple(tensors[needed].shape)
                    raise WeightsError(f"{where}: tensor {needed!r} has shape {found}, expected {tuple(value.shape)}")
            if part[2] == "q":
                out[f"layers.{part[1]}.attention.wqkv.weight"] = torch.cat([tensors[key] for key in three])
        elif inside and inside[2] in LAYER:
            out[f"layers.{inside[1]}.{LAYER[inside[2]]}.weight"] = value
        elif name.startswith("model.cls_embedding."):
            out[name.removeprefix("model.")] = value
        else:
            out[OUTSIDE.get(name, name)] = value
    return out


def llama_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors with official names under those of a Hugging-Face-style directory: `official_names` undone."""
    layer, outside = ({ours: theirs for theirs, ours in names.items()} for names in (LAYER, OUTSIDE))
    out: dict[str, Tensor] = {}
    for name, value in tensors.items():
        inside = re.fullmatch(r"layers\.(\d+)\.(.+)\.weight", name)
        if inside and inside[2] == "attention.wqkv":
            for letter, third in zip("qkv", value.chunk(3), strict=True):
                out[f"model.layers.{inside[1]}.self_attn.{letter}_proj.weight"] = third
        elif inside and inside[2] in layer:
            out[f"model.layers.{inside[1]}.{layer[inside[2]]}.weight"] = value
        elif name.startswith("cls_embedding."):
            out[f"model.{name}"] = value
        else:
            out[outside.get(name, name)] = value
    return out
