"""Verification skipping against a plain recursion over all a decoder can do, and decoders it must not agree with."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import theory
from tests.theory.helpers import random_tree

LOSSLESS = theory.Verifier(theory.Lossless())
VERIFIERS = [
    LOSSLESS,
    theory.cool_sd(3, 1.6),
    theory.Verifier(theory.Typical(), theory.target_residual),
    theory.Verifier(theory.AcceptAll()),
    theory.block(3),
    theory.capped_block([2.5, 1.5, 1.2]),
]
SCHEMES = [theory.Skipping(1), theory.Skipping(2, 0.4), theory.Skipping(3, 1.0, 0.5), theory.Skipping(3, 0.7, 0.45)]
SIZE, TOKENS = 3, 5


def walk(
    target: theory.Chain,
    draft: theory.Chain,
    verifier: Any,
    length: int,
    tokens: int,
    skipping: theory.Skipping,
    *,
    twice: bool = False,
    bonus: bool = False,
) -> tuple[np.ndarray, float]:
    """Law and expected calls, pass by pass; `twice` skips passes in a row, `bonus` ends a skipped pass with p."""
    law = np.zeros((target.vocab_size,) * tokens)
    calls = 0.0

    def laws(prefix: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        row = np.array([prefix], dtype=np.int64).reshape(1, len(prefix))
        return np.asarray(target.conditional(row))[0], np.asarray(draft.conditional(row))[0]

    def emit(prefix: tuple[int, ...], weights: np.ndarray, then: Callable[[tuple[int, ...], float], None]) -> None:
        for x, w in enumerate(weights):
            if w > 0 and len(prefix) + 1 == tokens:
                law[(*prefix, x)] += w
            elif w > 0:
                then((*prefix, x), w)

    def verified(prefix: tuple[int, ...], mass: float) -> None:
        nonlocal calls
        calls += mass
        drafted(prefix, mass, 0, np.ones(1))

    def drafted(prefix: tuple[int, ...], mass: float, i: int, weight: np.ndarray) -> None:
        p, q = laws(prefix)
        if i == length:
            emit(prefix, mass * p, over)
            return
        step = verifier.step(p, q, i, weight[0] if verifier.stateful else None)
        emit(prefix, mass * step.rejection * step.residual, over)
        for x, kept in enumerate(step.accepted):
            carried = np.ones(1) if step.weight is None else step.weight[x : x + 1]
            one = np.where(np.arange(len(p)) == x, mass * kept, 0.0)
            emit(prefix, one, lambda c, w, carried=carried: drafted(c, w, i + 1, carried))

    def over(prefix: tuple[int, ...], mass: float) -> None:
        if skipping.probability > 0:
            skipped(prefix, mass * skipping.probability, 0)
        if skipping.probability < 1:
            verified(prefix, mass * (1 - skipping.probability))

    def skipped(prefix: tuple[int, ...], mass: float, j: int) -> None:
        p, q = laws(prefix)
        done = over if twice and j else verified
        if j == skipping.most and bonus:
            emit(prefix, mass * p, done)
        elif j == skipping.most or q.max() < skipping.confidence:
            done(prefix, mass)
        else:
            emit(prefix, mass * q, lambda c, w: skipped(c, w, j + 1))

    verified((), 1.0)
    return law, calls


def pair(seed: int, size: int = SIZE, tokens: int = TOKENS) -> tuple[theory.TabularChain, theory.TabularChain]:
    rng = np.random.default_rng(seed)
    return random_tree(rng, size, tokens), random_tree(rng, size, tokens)


@pytest.mark.parametrize("verifier", VERIFIERS, ids=lambda v: type(getattr(v, "rule", v)).__name__)
@pytest.mark.parametrize("skipping", SCHEMES, ids=str)
@pytest.mark.parametrize("length", [1, 3])
def test_law_and_calls_agree_with_the_plain_recursion(verifier: Any, skipping: theory.Skipping, length: int) -> None:
    if length == 1 and not isinstance(verifier, theory.Verifier):
        verifier = theory.block(1)
    target, draft = pair(3)
    a = theory.analyse_skipping(target, draft, verifier, length, TOKENS, skipping)
    law, calls = walk(target, draft, verifier, length, TOKENS, skipping)
    np.testing.assert_allclose(a.law, law, rtol=0, atol=1e-14)
    np.testing.assert_allclose(a.law.sum(), 1, rtol=0, atol=1e-12)
    np.testing.assert_allclose(TOKENS / a.tokens_per_call, calls, rtol=0, atol=1e-12)
    assert a.total_variation <= a.tv_bound + 1e-12
    np.testing.assert_allclose(a.predictive_kl_output_target.sum(), a.kl_output_target, rtol=0, atol=1e-11)


@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 3), st.integers(0, 10), st.integers(0, 10))
def test_random_schemes(seed: int, length: int, most: int, coin: int, confidence: int) -> None:
    target, draft = pair(seed, 2, 4)
    skipping = theory.Skipping(most, coin / 10, confidence / 10)
    a = theory.analyse_skipping(target, draft, LOSSLESS, length, 4, skipping)
    law, calls = walk(target, draft, LOSSLESS, length, 4, skipping)
    np.testing.assert_allclose(a.law, law, rtol=0, atol=1e-13)
    np.testing.assert_allclose(a.starts.sum(), calls, rtol=0, atol=1e-12)


@pytest.mark.parametrize("wrong", ["twice", "bonus"])
def test_another_decoder_has_another_law(wrong: str) -> None:
    target, draft = pair(3)
    law, calls = walk(target, draft, LOSSLESS, 2, TOKENS, SCHEMES[0], **{wrong: True})
    a = theory.analyse_skipping(target, draft, LOSSLESS, 2, TOKENS, SCHEMES[0])
    assert np.abs(law - a.law).sum() > 0.02
    assert abs(calls - a.starts.sum()) > 0.05 or wrong == "bonus"


@pytest.mark.parametrize("verifier", VERIFIERS[1:5], ids=lambda v: type(getattr(v, "rule", v)).__name__)
@pytest.mark.parametrize("skipping", [theory.Skipping(2, 0.0), theory.Skipping(2, 1.0, 1.0)], ids=str)
def test_nothing_skipped_is_ordinary_decoding(verifier: Any, skipping: theory.Skipping) -> None:
    target, draft = pair(4)
    ours = theory.analyse_skipping(target, draft, verifier, 3, TOKENS, skipping)
    plain = theory.analyse_sequence(target, draft, verifier, 3, TOKENS)
    np.testing.assert_allclose(ours.law, plain.law, rtol=0, atol=1e-14)
    np.testing.assert_allclose(ours.starts, plain.starts, rtol=0, atol=1e-14)
    np.testing.assert_allclose(ours.step_bias, plain.step_bias, rtol=0, atol=1e-14)
    assert not ours.skipped.any()


def test_a_perfect_draft_may_be_skipped_for_nothing() -> None:
    target, draft = pair(5)
    same = theory.analyse_skipping(target, target, LOSSLESS, 2, TOKENS, theory.Skipping(3))
    assert same.total_variation < 1e-14
    assert abs(same.tokens_per_call - TOKENS) < 1e-12  # three tokens verified, the rest not
    other = theory.analyse_skipping(target, draft, LOSSLESS, 2, TOKENS, theory.Skipping(3))
    assert other.total_variation > 0.1


def test_torch_and_batches_of_sequences() -> None:
    target, draft = pair(6)
    tokens = np.array(list(product(range(SIZE), repeat=TOKENS)))
    p, q = (np.stack([c.conditional(tokens[:, :t]) for t in range(TOKENS)], axis=1) for c in (target, draft))
    ours = theory.filter_skipping(tokens, p, q, VERIFIERS[1], 2, SCHEMES[3])
    theirs = theory.filter_skipping(*map(torch.from_numpy, (tokens, p, q)), VERIFIERS[1], 2, SCHEMES[3])
    single = theory.filter_skipping(tokens[7], p[7], q[7], VERIFIERS[1], 2, SCHEMES[3])
    for name in ("log_likelihood", "starts", "skipped", "total_variation", "kl_target_output"):
        np.testing.assert_allclose(np.asarray(getattr(theirs, name)), getattr(ours, name), rtol=0, atol=1e-13)
        np.testing.assert_allclose(getattr(single, name), getattr(ours, name)[7], rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"most": 0}, "most"), ({"probability": 1.2}, "probability"), ({"confidence": -0.1}, "confidence")],
)
def test_bad_schemes(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        theory.Skipping(**({"most": 2} | change))


def test_bad_input() -> None:
    target, draft = pair(7)
    with pytest.raises(ValueError, match=f"{TOKENS} levels"):
        theory.analyse_skipping(target, draft, LOSSLESS, 2, TOKENS + 1, SCHEMES[0])
    iid = theory.IIDChain(np.full(8, 0.125))
    with pytest.raises(ValueError, match="sequences are more than"):
        theory.analyse_skipping(iid, iid, LOSSLESS, 2, 9, SCHEMES[0])
    p = np.full((4, 2), 0.5)
    with pytest.raises(ValueError, match="axis of offsets"):
        theory.filter_skipping(np.zeros(4, dtype=int), p, np.stack([p, p]), LOSSLESS, 2, SCHEMES[0])
