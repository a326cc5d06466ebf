"""Warping: order, ties and edges against a plain loop, and laws of decoding under it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import theory
from tests.validate.networks import TOKENS, VOCABULARY, counts, table, tiny_pair
from validate.decoding import decode
from validate.models import Warp
from validate.scoring import filter_images, score


def by_hand(logits: list[float], warp: Warp) -> list[float]:
    """One row, token by token."""
    row = [x / max(warp.temperature, 1e-5) for x in logits]
    if warp.top_k:
        least = sorted(row, reverse=True)[min(warp.top_k, len(row)) - 1]
        row = [x if x >= least else -math.inf for x in row]
    if warp.top_p < 1:
        most = max(row)
        mass = [math.exp(x - most) for x in row]
        before, out = 0.0, [-math.inf] * len(row)
        for index in sorted(range(len(row)), key=lambda i: (-row[i], i)):
            if before <= warp.top_p * (1 + 1e-12):
                out[index] = row[index]
            before += mass[index] / sum(mass)
        row = out
    return row


@given(
    logits=st.lists(st.integers(-6, 6), min_size=1, max_size=10),
    temperature=st.sampled_from([0.5, 1.0, 2.0]),
    top_k=st.integers(0, 12),
    top_p=st.sampled_from([1.0, 0.93, 0.51, 0.17]),
)
def test_against_a_plain_loop(logits: list[int], temperature: float, top_k: int, top_p: float) -> None:
    warp = Warp(temperature, top_k, top_p)
    rows = torch.tensor([logits, logits], dtype=torch.float32)
    before = rows.clone()
    found = warp(rows)
    assert torch.equal(rows, before)
    assert found[0].tolist() == by_hand([float(x) for x in logits], warp)
    assert torch.equal(found[0], found[1])
    assert torch.isfinite(found).any(dim=-1).all()


def test_excluded_tokens_stay_excluded_and_nothing_is_nan() -> None:
    logits = torch.tensor([-torch.inf, 1.0, 2.0, -torch.inf])
    for warp in (Warp(), Warp(0.0), Warp(2.0, 3, 0.5), Warp(top_k=1), Warp(top_p=1e-9)):
        law = torch.softmax(warp(logits), dim=-1)
        assert torch.isfinite(law).all()
        assert law[0] == law[3] == 0
    assert torch.softmax(Warp(0.0)(logits), -1)[2] == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1.0}, "temperature must be finite and >= 0, got -1"),
        ({"temperature": math.inf}, "temperature must be finite"),
        ({"top_k": -1}, "top_k must be a whole number >= 0"),
        ({"top_k": 1.5}, "top_k must be a whole number >= 0"),
        ({"top_k": True}, "top_k must be a whole number >= 0"),
        ({"top_p": 0.0}, r"top_p must lie in \(0, 1\]"),
        ({"top_p": math.nan}, r"top_p must lie in \(0, 1\]"),
    ],
)
def test_bad_settings(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Warp(**options)  # type: ignore[arg-type]


def warped_table(model: object, warp: Warp) -> theory.TabularChain:
    levels = table(model, 1, 1.5).levels  # type: ignore[arg-type]
    return theory.TabularChain([torch.softmax(warp(torch.from_numpy(level).log()), -1).numpy() for level in levels])


@pytest.mark.parametrize("warp", [Warp(temperature=0.6), Warp(top_k=2), Warp(temperature=1.5, top_p=0.8)], ids=str)
def test_warped_decoding_and_likelihoods(warp: Warp) -> None:
    pair, verifier, samples = tiny_pair(), theory.cool_sd(2, 1.6), 12_000
    chains = [warped_table(model, warp) for model in (pair.target, pair.draft)]
    law = theory.analyse_sequence(chains[0], chains[1], verifier, 2, TOKENS).law
    out = decode(pair, verifier, 2, [1] * samples, device="cpu", batch=samples, warp=warp)
    assert out.warp == warp
    seen = counts(out.tokens, TOKENS)
    # Half the total variation of the empirical law: its mean is about sqrt(cells / (2 pi n)).
    apart = np.abs(seen / samples - law.reshape(-1)).sum() / 2
    assert apart < 3 * math.sqrt(VOCABULARY**TOKENS / (2 * math.pi * samples))
    few = replace(out, tokens=out.tokens[:50], conditions=[1] * 50)
    found = np.exp(filter_images(score(pair, few), verifier, 2).log_likelihood)
    np.testing.assert_allclose(found, law[tuple(few.tokens.T)], atol=1e-6)
    same = decode(pair.with_warp(warp), verifier, 2, [1] * 100, device="cpu")
    np.testing.assert_array_equal(same.tokens, decode(pair, verifier, 2, [1] * 100, device="cpu", warp=warp).tokens)
    assert (same.tokens != decode(pair, verifier, 2, [1] * 100, device="cpu").tokens).any()
