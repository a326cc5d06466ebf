"""LlamaGen against the official code's numbers, its cache against teacher forcing, its decoding against exact laws."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Tensor

import theory
from tests.validate.golden import CASES, FULL_SIZE, PIXELS, arrays, close, fill_by_recipe, weights
from validate.decoding import decode
from validate.models import Pair, Warp, guided_logits
from validate.models.interface import START
from validate.models.llamagen import (
    Captions,
    Configuration,
    LlamaGen,
    LlamaGenTokenizer,
    eight_bit,
    load_tokenizer,
    load_transformer,
)
from validate.scoring import score

HEADS = {"c2i_a": 4, "c2i_flat": 4, "t2i_a": 3, "t2i_hf": 3}
SIDES = {"c2i_a": 4, "c2i_flat": 6, "t2i_a": 4, "t2i_hf": 6}
SLOTS = {"t2i_a": 120, "t2i_hf": 8}
# Cached against teacher-forced, float32; the same bound as to the official code.
AGREEMENT = 2e-5


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


# --- golden data ---------------------------------------------------------------------------------------------------


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
    data = arrays("recipe_vq16")
    with torch.device("meta"):
        tokenizer = LlamaGenTokenizer(
            vocab_size=16384,
            code_width=8,
            inside=256,
            levels=[512, 256, 256, 128, 128],
            blocks=3,
            grid=(3, 3),
        )
    close(fill_by_recipe(tokenizer)(tokenizer.codes(data["tokens"])), data["pixels"], atol=FULL_SIZE, rtol=1e-4)


def test_full_size_transformer() -> None:
    data, case = arrays("recipe_c2i_B_384"), CASES["recipe_c2i_B_384"]
    shape = Configuration(
        vocab_size=16384, layers=12, heads=12, width=768, hidden=2048, side=24, num_classes=case["null_class"]
    )
    with torch.device("meta"):
        model = LlamaGen(shape)
    fill_by_recipe(model)
    tokens = torch.cat([data["tokens"], data["tokens"][:, :1]], dim=1)
    both = model.start(torch.tensor([case["class_id"]]), case["cfg_scale"])
    logits, _ = both.extend(inputs_of(tokens).repeat(2, 1), torch.zeros(2, dtype=torch.int64))
    for row, key in enumerate(("cond", "null")):
        close(logits[row, :, :48], data[f"logits_{key}_head"], atol=FULL_SIZE, rtol=1e-4)
        close(logits[row].double().logsumexp(-1), data[f"logits_{key}_lse"], atol=FULL_SIZE, rtol=1e-4)
    best = guided_logits(logits[0], logits[1], case["cfg_scale"]).topk(10)
    close(best.values, data["cfg_top10"], atol=FULL_SIZE * (1 + 2 * case["cfg_scale"]), rtol=1e-4)
    assert torch.equal(best.indices, data["cfg_top10_ids"])


# --- cache ---------------------------------------------------------------------------------------------------------


def tiny(seed: int, text: bool = False, vocabulary: int = 3, side: int = 2, sharpness: float = 0.35) -> LlamaGen:
    shape = Configuration(
        vocab_size=vocabulary, layers=2, heads=2, width=16, hidden=24, side=side, prefix=5 if text else 1,
        num_classes=0 if text else 2, caption_width=6 if text else 0,
    )  # fmt: skip
    model, generator = LlamaGen(shape), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in model.state_dict().items():
            value.copy_(sharpness * torch.randn(value.shape, generator=generator) + ("norm" in name))
    return model.eval().requires_grad_(False)


def tiny_captions(rows: int, seed: int) -> Captions:
    generator = torch.Generator().manual_seed(seed)
    mask = torch.arange(5) < torch.randint(1, 6, (rows, 1), generator=generator)
    return Captions.from_encoder(torch.randn(rows, 5, 6, generator=generator), mask, slots=5)


def uncached(model: LlamaGen, given: Any, tokens: Tensor, guidance: float) -> Tensor:
    used = given.used if isinstance(given, Captions) else None
    parts = [model.forward(model.prefix(given, null=null), tokens[:, :-1], used)[0] for null in (False, True)]
    return guided_logits(parts[0], parts[1], guidance)


VARIANTS = {f"{kind} {side}x{side}": (kind == "text", side) for kind in ("class", "text") for side in (2, 3)}
TINY = {name: tiny(11, text, vocabulary=7, side=side) for name, (text, side) in VARIANTS.items()}


@given(
    variant=st.sampled_from(sorted(VARIANTS)),
    rows=st.integers(1, 5),
    seed=st.integers(0, 2**16),
    guidance=st.sampled_from([1.0, 0.0, 1.75, 7.5]),
    kept=st.lists(st.integers(0, 3), min_size=1, max_size=30),
    permute=st.booleans(),
)
def test_cached_equals_uncached(
    variant: str, rows: int, seed: int, guidance: float, kept: list[int], permute: bool
) -> None:
    """Any trims, batch size and row order: every logit is that of one uncached pass."""
    model, generator = TINY[variant], torch.Generator().manual_seed(seed)
    given = tiny_captions(rows, seed) if VARIANTS[variant][0] else torch.randint(0, 2, (rows,), generator=generator)
    tokens = torch.randint(0, model.vocab_size, (rows, model.num_tokens), generator=generator)
    wanted, inputs = uncached(model, given, tokens, guidance), inputs_of(tokens)
    sequences, lengths, rest = model.start(given, guidance), torch.zeros(rows, dtype=torch.int64), iter(kept)
    for turn in range(len(kept)):
        new = min(3, model.num_tokens)
        lengths = lengths.clamp(max=model.num_tokens - new)
        at = lengths[:, None] + torch.arange(new)
        now = torch.arange(len(inputs))[:, None]
        found = sequences.logits(inputs[now, at], lengths)
        torch.testing.assert_close(found, wanted[now, at], atol=AGREEMENT * (1 + 2 * guidance), rtol=1e-5)
        # Wrong guesses behind the kept ones are overwritten later.
        if int(lengths.max()) + new < model.num_tokens:
            sequences.logits((inputs[now, at[:, :1]] + 1).clamp(max=model.vocab_size - 1), lengths + new)
        step = next(rest)
        lengths = lengths + torch.tensor([(step + row * turn) % (new + 1) for row in range(len(lengths))])
        if permute and turn == 1:
            order = torch.randperm(len(lengths), generator=generator)[: max(1, len(lengths) - 1)]
            sequences.keep(order)
            inputs, wanted, lengths = inputs[order], wanted[order], lengths[order]


def test_forgetting_to_trim_is_noticed() -> None:
    model = TINY["class 3x3"]
    tokens = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 0, 1]])
    sequences = model.start(torch.tensor([1]))
    sequences.logits(inputs_of(tokens)[:, :4], torch.tensor([0]))
    stale = sequences.logits(inputs_of(tokens)[:, 3:4], torch.tensor([4]))
    assert (stale[0, 0] - uncached(model, torch.tensor([1]), tokens, 1.0)[0, 3]).abs().max() > 1e-2


@pytest.mark.parametrize("text", [False, True])
def test_unturned_condition_slots_are_noticed(text: bool) -> None:
    """Condition slots are multiplied by zero; leaving them unrotated gives other logits."""
    model, given = tiny(3, text), tiny_captions(1, 0) if text else torch.tensor([0])
    tokens = torch.tensor([[0, 1, 2, 0]])
    right = whole(model, given, tokens)
    model.rope[: model.config.prefix, :, 0] = 1.0
    assert (whole(model, given, tokens) - right).abs().max() > 1e-3


def test_precision_follows_the_weights_and_logits_stay_float32() -> None:
    model = load_transformer(weights("c2i_a"), grid=4, heads=4, dtype="bfloat16")
    tokens = arrays("c2i_a")["tokens"]
    logits, hidden = whole(model, arrays("c2i_a")["class_ids"], tokens, 1.75, hidden=True)
    assert logits.dtype == torch.float32
    assert hidden.dtype == torch.bfloat16
    assert hidden.shape == (4, 16, 64)
    assert model.rope.dtype == torch.float32
    # Some 2^-8 of logits about 5.
    assert float((logits - arrays("c2i_a")["cfg_1.75"]).abs().median()) < 0.1


# --- decoding ------------------------------------------------------------------------------------------------------


class TinyPixels:
    vocab_size, num_tokens, grid = 3, 4, (2, 2)

    def decode(self, tokens: Tensor) -> Tensor:
        return tokens.float().reshape(-1, 2, 2) / 2

    def tables(self) -> list[Tensor]:
        return []


def tiny_pair(text: bool, guidance: float, warp: Warp) -> Pair:
    return Pair(
        name="tiny", target=tiny(1, text), drafts={"d": tiny(2, text)}, draft_name="d", tokenizer=TinyPixels(),
        guidance=guidance, warp=warp,
    )  # fmt: skip


def chain(model: LlamaGen, given: Any, guidance: float, warp: Warp) -> theory.TabularChain:
    """The model's laws after every prefix, uncached, in float64."""
    levels = []
    for depth in range(4):
        prefixes = torch.tensor(list(product(range(3), repeat=depth)), dtype=torch.int64).reshape(3**depth, depth)
        tokens = torch.cat([prefixes, torch.zeros(len(prefixes), 1, dtype=torch.int64)], dim=1)
        every = torch.zeros(len(prefixes), dtype=torch.int64)
        logits = uncached(model, given[every], tokens, guidance)[:, -1]
        levels.append(torch.softmax(warp(logits).double(), -1).numpy().reshape((3,) * (depth + 1)))
    return theory.TabularChain(levels)


class Uncached:
    """The same model without a cache: every call is a pass over all of a row's inputs so far."""

    def __init__(self, model: LlamaGen) -> None:
        self.model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def start(self, conditions: Any, guidance: float = 1.0) -> Any:
        model, state = self.model, SimpleNamespace(given=conditions)
        state.inputs = torch.zeros(len(conditions), model.num_tokens, dtype=torch.int64)

        def logits(inputs: Tensor, lengths: Tensor) -> Tensor:
            at, row = lengths[:, None] + torch.arange(inputs.shape[1]), torch.arange(len(inputs))[:, None]
            state.inputs[row, at] = inputs
            tokens = torch.cat([state.inputs[:, 1:], state.inputs[:, :1]], dim=1)
            return uncached(model, state.given, tokens.clamp(min=0), guidance)[row, at]

        def keep(rows: Tensor) -> None:
            state.given, state.inputs = state.given[rows], state.inputs[rows]

        return SimpleNamespace(logits=logits, keep=keep)


@pytest.mark.parametrize("text", [False, True], ids=["class", "text"])
@pytest.mark.parametrize("batch", [1, 4, 11])
def test_decoding_with_the_cache_is_decoding_without_it(text: bool, batch: int) -> None:
    pair = tiny_pair(text, 1.75, Warp(temperature=1.2))
    plain = replace(pair, target=Uncached(pair.target), drafts={"d": Uncached(pair.draft)})  # type: ignore[arg-type]
    images = tiny_captions(11, 3) if text else [0, 1] * 5 + [1]
    for verifier in (theory.Verifier(theory.Lossless()), theory.cool_sd(3, 1.6)):
        one, other = (decode(p, verifier, 3, images, device="cpu", batch=batch, seed=2) for p in (pair, plain))
        np.testing.assert_array_equal(one.tokens, other.tokens)
        np.testing.assert_array_equal(one.accepted, other.accepted)
        assert len(set(one.accepted[:, 0])) > 1
        whole_batch = decode(pair, verifier, 3, images, device="cpu", seed=2)
        np.testing.assert_array_equal(one.tokens, whole_batch.tokens)


SAMPLES, LENGTH = 12_000, 2
"""A G-test of 81 cells at level 1e-6 with 12,000 draws sees a TV of about .05 (power > .99)."""


def fits(tokens: np.ndarray, law: np.ndarray) -> float:
    seen = np.bincount(tokens @ (3 ** np.arange(3, -1, -1)), minlength=81)
    wanted = law.reshape(-1) * len(tokens)
    rare = wanted < 5
    seen, wanted = (np.append(a[~rare], a[rare].sum()) for a in (seen, wanted))
    if wanted[-1] < 1e-9:
        assert seen[-1] == 0
        seen, wanted = seen[:-1], wanted[:-1]
    return float(chisquare(seen, wanted).pvalue)


@pytest.mark.parametrize(
    ("text", "warp"),
    [(False, Warp()), (True, Warp()), (False, Warp(temperature=1.4, top_p=0.9)), (True, Warp(top_k=2))],
    ids=["class", "text", "class, warped", "text, top-k"],
)
@pytest.mark.parametrize(
    "verifier", [theory.Verifier(theory.Lossless()), theory.cool_sd(LENGTH, 1.6)], ids=["lossless", "relaxed"]
)
def test_decoded_images_follow_the_exact_law(text: bool, warp: Warp, verifier: theory.Verifier) -> None:
    pair = tiny_pair(text, 1.5, warp)
    given = tiny_captions(1, 5) if text else torch.tensor([1])
    chains = [chain(model, given, 1.5, warp) for model in (pair.target, pair.draft)]  # type: ignore[arg-type]
    analysis = theory.analyse_sequence(chains[0], chains[1], verifier, LENGTH, 4)
    rows = torch.zeros(SAMPLES, dtype=torch.int64)
    images = given[rows] if text else [1] * SAMPLES
    out = decode(pair, verifier, LENGTH, images, device="cpu", batch=SAMPLES)
    assert fits(out.tokens, analysis.law) > 1e-6
    assert (out.classes == (-1 if text else 1)).all()
    if not verifier.lossless:
        assert analysis.total_variation > 0.05
        assert fits(out.tokens, analysis.target_law) < 1e-6
    laws = score(pair, replace(out, tokens=out.tokens[:20], conditions=given[rows[:20]] if text else [1] * 20))
    for t in range(4):
        np.testing.assert_allclose(laws.target_probs[:, t], chains[0].conditional(out.tokens[:20, :t]), atol=1e-5)
