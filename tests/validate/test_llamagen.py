"""LlamaGen's cache against teacher forcing, its decoding against exact laws."""

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
from torch import Tensor

import theory
from tests.validate.golden import arrays, weights
from validate.decoding import decode
from validate.device_check.checks import law_p_value
from validate.models import Pair, Warp, guided_logits
from validate.models.interface import START
from validate.models.llamagen import (
    Captions,
    Configuration,
    LlamaGen,
    load_transformer,
)
from validate.scoring import score

# Cached against teacher-forced, float32; the same bound as to the official code.
AGREEMENT = 2e-5


def inputs_of(tokens: Tensor) -> Tensor:
    return torch.cat([torch.full_like(tokens[:, :1], START), tokens[:, :-1]], dim=1)


def whole(model: LlamaGen, given: Any, tokens: Tensor, guidance: float = 1.0, **options: Any) -> Any:
    rows = torch.zeros(len(tokens), dtype=torch.int64)
    return model.start(given, guidance).logits(inputs_of(tokens), rows, **options)


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
"""A chi-square test of 81 cells at level 1e-6 with 12,000 draws sees a TV of about .05 (power > .99)."""


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
    assert law_p_value(out.tokens, analysis.law) > 1e-6
    assert (out.classes == (-1 if text else 1)).all()
    if not verifier.lossless:
        assert analysis.total_variation > 0.05
        assert law_p_value(out.tokens, analysis.target_law) < 1e-6
    laws = score(pair, replace(out, tokens=out.tokens[:20], conditions=given[rows[:20]] if text else [1] * 20))
    for t in range(4):
        np.testing.assert_allclose(laws.target_probs[:, t], chains[0].conditional(out.tokens[:20, :t]), atol=1e-5)
