"""LlamaGen against the official code's numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.validate.golden import CASES, FULL_SIZE, PIXELS, arrays, close, weights
from validate.device_check.recipe import differences_of_tokenizer, differences_of_transformer
from validate.models import Warp
from validate.models.interface import START
from validate.models.llamagen import (
    Captions,
    LlamaGen,
    eight_bit,
    load_tokenizer,
    load_transformer,
)

HEADS = {"c2i_a": 4, "c2i_flat": 4, "t2i_a": 3, "t2i_hf": 3}
SIDES = {"c2i_a": 4, "c2i_flat": 6, "t2i_a": 4, "t2i_hf": 6}
SLOTS = {"t2i_a": 120, "t2i_hf": 8}


CPU = torch.device("cpu")


def golden_model(name: str) -> LlamaGen:
    path = weights(name)
    if name == "t2i_hf":
        return load_transformer(path.parent)
    return load_transformer(path, grid=SIDES[name], heads=HEADS[name])


def conditions(name: str, model: LlamaGen, data: dict[str, Tensor]) -> Any:
    if name in SLOTS:
        return model.encode_conditions(Captions(data["caption"], data["mask"].bool()))
    return model.encode_conditions(data["class_ids"])


def inputs_of(tokens: Tensor) -> Tensor:
    return torch.cat([torch.full_like(tokens[:, :1], START), tokens[:, :-1]], dim=1)


def whole(model: LlamaGen, given: Any, tokens: Tensor, guidance: float = 1.0, **options: Any) -> Any:
    rows = torch.zeros(len(tokens), dtype=torch.int64)
    return model.start(given, guidance).logits(inputs_of(tokens), rows, **options)


@pytest.mark.parametrize("name", HEADS)
def test_golden_logits_and_features(name: str) -> None:
    model, data = golden_model(name), arrays(name)
    given, tokens = conditions(name, model, data), data["tokens"]
    used = given.used if isinstance(given, Captions) else None
    for null, key in ((False, "cond"), (True, "null")):
        logits, hidden = model.forward(model.prefix(given, null=null), tokens[:, :-1], used)
        close(logits, data[f"logits_{key}"])
        if f"features_{key}" in data:
            close(hidden[:, model.config.prefix - 1 :], data[f"features_{key}"])
    close(whole(model, given, tokens), data["logits_cond"])
    sequences, cached = model.start(given, 2.0), []
    for t in range(tokens.shape[1]):
        at = torch.full((len(tokens),), t)
        sequences.logits(inputs_of(tokens)[:, t : t + 1], at)
        both, lengths = inputs_of(tokens)[:, t : t + 1].repeat(2, 1), at.repeat(2)
        cached.append(sequences.extend(both, lengths)[0][:, 0])
    close(torch.stack(cached, dim=1), data.get("logits_cached", torch.cat([data["logits_cond"], data["logits_null"]])))
    for key, value in data.items():
        if key.startswith("cfg_") and "probs" not in key:
            scale = float(key[4:])
            close(whole(model, given, tokens, scale), value, atol=2e-5 * (1 + 2 * scale))


@pytest.mark.parametrize("name", ["c2i_a", "c2i_flat", "t2i_a"])
def test_golden_rotary_table(name: str) -> None:
    close(golden_model(name).rope, arrays(name)["rope_table"][: golden_model(name).rope.shape[0]], atol=1e-6)
    assert golden_model(name).rope.shape == arrays(name)["rope_table"].shape


def test_golden_features_of_used_caption_slots() -> None:
    model, data = golden_model("t2i_hf"), arrays("t2i_hf")
    given = conditions("t2i_hf", model, data)
    halves = [
        model.forward(model.prefix(given, null=null), data["tokens"][:, :-1], given.used)[1] for null in (False, True)
    ]
    shown = torch.nn.functional.pad(given.used, (0, 35), value=True).repeat(2, 1)
    close(torch.cat(halves)[shown], data["features_all_positions"][shown])
    _, hidden = whole(model, given, data["tokens"], 7.5, hidden=True)
    close(hidden, data["features_all_positions"][:, 7:])


@pytest.mark.parametrize("name", ["c2i_a", "c2i_flat"])
def test_golden_warped_laws(name: str) -> None:
    data, seen = arrays(name), 0
    for key, wanted in data.items():
        scale, _, warped = key.removeprefix("cfg_").partition("_probs_")
        if not warped:
            continue
        letters = {part[0]: float(part[1:]) for part in warped.split("_")}
        warp = Warp(temperature=letters["t"], top_k=int(letters.get("k", 0)), top_p=letters.get("p", 1.0))
        law = torch.softmax(warp(data[f"cfg_{scale}"]), dim=-1)
        close(law, wanted, atol=1e-5)
        assert torch.equal(law > 0, wanted > 0)
        seen += 1
    assert seen == 4


def greedy(model: LlamaGen, given: Any, guidance: float) -> Tensor:
    sequences, rows = model.start(given, guidance), len(given)
    newest, out = torch.full((rows, 1), START), []
    for t in range(model.num_tokens):
        newest = sequences.logits(newest, torch.full((rows,), t)).argmax(-1)
        out.append(newest)
    return torch.cat(out, dim=1)


@pytest.mark.parametrize("name", ["c2i_a", "c2i_flat", "t2i_a"])
def test_golden_greedy_images(name: str) -> None:
    model, data, seen = golden_model(name), arrays(name), 0
    given = conditions(name, model, data)
    for key, wanted in data.items():
        if not key.startswith("greedy"):
            continue
        scale, _, interval = key.split("cfg_")[1].partition("_interval_")
        model.guidance_interval = int(interval) if interval else None
        asked = Captions(given.features, torch.ones_like(given.used)) if "nomask" in key else given
        assert torch.equal(greedy(model, asked, float(scale)), wanted.long()), key
        seen += 1
    assert seen >= 3


@pytest.mark.parametrize("name", ["vq_a", "vq_nol2"])
def test_golden_pixels(name: str) -> None:
    data, case = arrays(name), CASES[name]
    for index, (_, rows, columns) in enumerate(case["grids"]):
        tokenizer = load_tokenizer(weights(name), grid=(rows, columns), unit=name == "vq_a")
        codes = tokenizer.codes(data[f"tokens_{index}"])
        close(codes, data[f"codes_{index}"], atol=1e-6)
        close(tokenizer(codes), data[f"pixels_{index}"], atol=PIXELS)
        pixels = tokenizer.decode(data[f"tokens_{index}"])
        assert 0 <= float(pixels.min()) <= float(pixels.max()) <= 1
        bytes_apart = eight_bit(pixels).permute(0, 2, 3, 1).int() - data[f"uint8_{index}"].int()
        assert int(bytes_apart.abs().max()) <= 1
    wrong = load_tokenizer(weights(name), grid=(rows, columns), unit=name != "vq_a")
    assert (wrong.codes(data["tokens_0"][:1, : rows * columns]) - codes[:1]).abs().max() > 1e-2 or name == "vq_a"


def test_full_size_tokenizer() -> None:
    assert differences_of_tokenizer(arrays("recipe_vq16"), CPU)["pixels"] <= FULL_SIZE


def test_full_size_transformer() -> None:
    data, case = arrays("recipe_c2i_B_384"), CASES["recipe_c2i_B_384"]
    found = differences_of_transformer(data, case, CPU)
    assert found.pop("ids") == 0
    assert max(found.values()) <= FULL_SIZE
    # Another class, and the numbers are far off.
    wrong = differences_of_transformer(data, {**case, "class_id": case["class_id"] + 1}, CPU)
    assert min(wrong["head"], wrong["ids"]) > FULL_SIZE
