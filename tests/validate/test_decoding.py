"""The decoding loop against the exact law of a network small enough to enumerate, and broken loops that must fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import theory
from simulate.draws import categorical
from tests.validate.networks import CLASSES, TOKENS, VOCABULARY, fits, table, tiny_pair
from validate import batches
from validate.acceptance import verify_block
from validate.decoder import Decoder
from validate.decoding import decode, decode_one_round
from validate.noise import image_noise

SAMPLES = 12_000
"""Images a test draws. A G-test of 81 cells at level 1e-6 with 12,000 draws sees TV of about .05 (power > .99)."""
FALSE_ALARM = 1e-6
LENGTH = 2


def exact(verifier: theory.Verifier, guidance: float, length: int = LENGTH) -> theory.SequenceAnalysis:
    pair = tiny_pair(guidance)
    chains = [table(model, 1, guidance) for model in (pair.target, pair.draft)]
    return theory.analyse_sequence(chains[0], chains[1], verifier, length, TOKENS)


VERIFIERS = [
    theory.Verifier(theory.Lossless()),
    theory.cool_sd(LENGTH, 1.6),
    theory.Verifier(theory.Ensemble(0.5), theory.target_residual),
    theory.Verifier(theory.AcceptAll()),
    theory.block(LENGTH),
    theory.capped_block([2.5, 1.5]),
    theory.lifted_block(theory.Verifier(theory.Relaxed(1.8))),
    theory.Verifier(theory.Cactus(0.5), theory.CactusResidual(0.5)),
]


@pytest.mark.parametrize("verifier", VERIFIERS, ids=lambda v: type(getattr(v, "rule", v)).__name__)
@pytest.mark.parametrize("guidance", [1.0, 1.5])
def test_decoded_images_follow_the_exact_law(verifier: theory.Verifier, guidance: float) -> None:
    analysis = exact(verifier, guidance)
    out = decode(tiny_pair(guidance), verifier, LENGTH, [1] * SAMPLES, device="cpu", batch=SAMPLES)
    assert fits(out.tokens, analysis.law) > FALSE_ALARM
    error = out.calls.std() / np.sqrt(SAMPLES)
    assert abs(out.calls.mean() - analysis.expected_calls) < 5 * error + 1e-9
    assert ((out.accepted >= 0).sum(1) == out.calls).all()


@pytest.mark.parametrize("length", [1, 3, 4, 7])
def test_blocks_longer_than_what_is_left(length: int) -> None:
    verifier = theory.Verifier(theory.Relaxed(1.7))
    out = decode(tiny_pair(), verifier, length, [1] * SAMPLES, device="cpu", batch=SAMPLES)
    assert fits(out.tokens, exact(verifier, 1.5, length).law) > FALSE_ALARM


def test_zero_drafted_tokens_is_sampling_from_the_target() -> None:
    out = decode(tiny_pair(), None, 0, [1] * SAMPLES, device="cpu", batch=SAMPLES)
    assert fits(out.tokens, exact(VERIFIERS[0], 1.5).target_law) > FALSE_ALARM
    assert (out.calls == TOKENS).all()
    assert out.tokens_per_call == 1


def test_relaxed_decoding_is_not_the_target() -> None:
    """The test has power: images of a relaxed rule are told from the target."""
    analysis = exact(VERIFIERS[3], 1.5)
    out = decode(tiny_pair(), VERIFIERS[3], LENGTH, [1] * SAMPLES, device="cpu", batch=SAMPLES)
    assert analysis.total_variation > 0.1
    assert fits(out.tokens, analysis.target_law) < FALSE_ALARM


def stuck_acceptance(noise: Any) -> Any:
    return replace(noise, acceptance=torch.zeros_like(noise.acceptance))


def shared_acceptance(noise: Any) -> Any:
    return replace(noise, acceptance=noise.acceptance[:, :1, :1].expand_as(noise.acceptance))


def residual_noise_is_draft_noise(noise: Any) -> Any:
    return replace(noise, residual=noise.draft[:, :, 0], bonus=noise.draft[:, :, 0])


@pytest.mark.parametrize("fault", [stuck_acceptance, shared_acceptance, residual_noise_is_draft_noise])
def test_broken_noise_is_noticed(fault: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "image_noise", lambda *a: fault(image_noise(*a)))
    out = decode(tiny_pair(), VERIFIERS[0], LENGTH, [1] * SAMPLES, device="cpu", batch=SAMPLES)
    assert fits(out.tokens, exact(VERIFIERS[0], 1.5).law) < FALSE_ALARM


@pytest.mark.parametrize("forgetful", [False, True], ids=["right", "token residual"])
def test_block_verification_and_the_token_residual(forgetful: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """FAULTS: with the token residual the first marginal stays exact and the joint law is off by TV 1/50."""
    p, q = (torch.tensor(law, dtype=torch.float64) for law in ([1 / 5, 2 / 5, 2 / 5], [1 / 10, 1 / 10, 4 / 5]))
    block, rows, generator = theory.block(2), 200_000, torch.Generator().manual_seed(0)
    original = type(block).step
    if forgetful:
        monkeypatch.setattr(
            type(block), "step", lambda s, a, b, i, w=None: original(s, a, b, i, None if np.ndim(i) else w)
        )

    def uniforms(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, dtype=torch.float64, generator=generator)

    laws = [law.expand(rows, 2, 3) for law in (p, q)]
    drafts = categorical(laws[1], uniforms(rows, 2))
    accepted, residual = verify_block(block, drafts, *laws, torch.full((rows,), 2), uniforms(rows, 2))
    following = torch.where((accepted < 2)[:, None], residual, p.expand(rows, 3))
    tokens = torch.cat([drafts, categorical(p.expand(rows, 3), uniforms(rows))[:, None]], dim=1)
    tokens[torch.arange(rows), accepted] = categorical(following, uniforms(rows))
    fresh = categorical(p.expand(rows, 3, 3), uniforms(rows, 3))
    tokens = torch.where(torch.arange(3) > accepted[:, None], fresh, tokens)
    joint = theory.analyse_round(theory.IIDChain(p), theory.IIDChain(q), theory.Verifier(theory.Lossless()), 2).law
    assert (fits(tokens.numpy(), np.asarray(joint), 3) > FALSE_ALARM) is not forgetful
    assert fits(tokens.numpy(), p.numpy(), 1) > FALSE_ALARM


def test_a_stale_cache_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropping rejected tokens by the wrong length must show in the law."""

    def stale(self: Decoder, length: int) -> torch.Tensor:
        laws = original(self, length)
        return torch.roll(laws, 1, dims=1) if length else laws

    original = Decoder._target_laws
    monkeypatch.setattr(Decoder, "_target_laws", stale)
    out = decode(tiny_pair(), VERIFIERS[0], LENGTH, [1] * SAMPLES, device="cpu", batch=SAMPLES)
    assert fits(out.tokens, exact(VERIFIERS[0], 1.5).law) < FALSE_ALARM


def test_one_round_behind_a_prefix_follows_the_round_law() -> None:
    verifier = theory.cool_sd(LENGTH, 1.6)
    pair = tiny_pair()
    chains = [table(model, 0, 1.5) for model in (pair.target, pair.draft)]
    prefix = decode(pair, None, 0, [0] * SAMPLES, device="cpu", batch=SAMPLES, seed=3)
    whole = theory.analyse_round(chains[0], chains[1], verifier, LENGTH)
    tokens, accepted = decode_one_round(pair, verifier, LENGTH, prefix, np.zeros(SAMPLES, int), batch=5000)
    assert fits(tokens, whole.law, LENGTH + 1) > FALSE_ALARM
    assert accepted.mean() == pytest.approx(whole.expected_accepted, abs=5 * accepted.std() / np.sqrt(SAMPLES))
    # Behind one token: the law of a round in the chain that starts after it.
    start = np.ones(SAMPLES, dtype=int)
    tokens, _ = decode_one_round(pair, verifier, LENGTH, prefix, start, batch=5000)
    np.testing.assert_array_equal(tokens[:, 0], prefix.tokens[:, 0])
    law = np.zeros((VOCABULARY,) * TOKENS)
    for x in range(VOCABULARY):
        after = [theory.TabularChain([level[x] for level in chain.levels[1:]]) for chain in chains]
        law[x] = chains[0].levels[0][x] * theory.analyse_round(after[0], after[1], verifier, LENGTH).law
    assert fits(tokens, law) > FALSE_ALARM


def test_seeds_and_batches() -> None:
    pair, verifier = tiny_pair(), theory.cool_sd(LENGTH, 1.6)

    def run(**options: Any) -> np.ndarray:
        return decode(pair, verifier, LENGTH, 60, device="cpu", **options).tokens

    first = run(seed=1)
    torch.rand(3)
    np.random.default_rng().random(3)
    np.testing.assert_array_equal(first, run(seed=1))
    np.testing.assert_array_equal(first, run(seed=1, batch=7))
    assert (first != run(seed=2)).any()
    np.testing.assert_array_equal(first[:20], decode(pair, verifier, LENGTH, 20, device="cpu", seed=1).tokens)


def test_dropping_finished_rows_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both halves of the guidance cache must follow the rows that stay."""
    out = []
    for share in (0.0, 1.0):
        monkeypatch.setattr(batches, "COMPACT_BELOW", share)
        out.append(decode(tiny_pair(), theory.cool_sd(LENGTH, 1.6), LENGTH, 300, device="cpu", guidance=3.0))
    np.testing.assert_array_equal(out[0].tokens, out[1].tokens)
    np.testing.assert_array_equal(out[0].calls, out[1].calls)


def test_counts_add_up() -> None:
    out = decode(tiny_pair(), theory.cool_sd(LENGTH, 1.6), LENGTH, 500, device="cpu")
    accepted, starts = out.accepted, out.starts
    ends = np.where(starts >= 0, starts + accepted + 1, 0).max(axis=1)
    assert set(ends) <= {TOKENS, TOKENS + 1}  # a last round whose drafts are all accepted has no bonus token
    assert (accepted.max(axis=1) <= LENGTH).all()
    assert (out.classes == np.arange(500) % CLASSES).all()
    assert {"draft", "verify", "accept", "total"} <= set(out.seconds)


def test_equal_models_accept_everything() -> None:
    pair = tiny_pair()
    same = replace(pair, drafts={"same": pair.target}, draft_name="same")
    out = decode(same, VERIFIERS[0], 3, 50, device="cpu")
    assert (out.calls == 1).all() or (out.accepted[:, 0] == 3).mean() > 0.99


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"length": -1}, ValueError, "length must be a whole number >= 0, got -1"),
    ({"verifier": None}, ValueError, "needs a verifier"),
    ({"images": 0}, ValueError, "images must be a number >= 1"),
    ({"images": [0, 2]}, ValueError, r"images\[1\] is class 2; classes lie in 0…1"),
    ({"images": []}, ValueError, "list of class numbers"),
    ({"seed": -1}, ValueError, "seed must be a whole number >= 0, got -1"),
    ({"batch": 0}, ValueError, "batch must be a whole number >= 1, got 0"),
    ({"guidance": float("nan")}, ValueError, "guidance must be finite"),
    ({"device": "abacus"}, ValueError, "abacus"),
]


@pytest.mark.parametrize(("change", "kind", "message"), BAD)
def test_bad_input(change: dict[str, Any], kind: type[Exception], message: str) -> None:
    arguments = {"verifier": VERIFIERS[0], "length": 2, "images": 3, "device": "cpu"} | change
    with pytest.raises(kind, match=message):
        decode(tiny_pair(), **arguments)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the error is about a machine without CUDA")
def test_cuda_asked_for_and_absent() -> None:
    with pytest.raises(RuntimeError, match=r"(?i)cuda"):
        decode(tiny_pair(), VERIFIERS[0], 2, 3, device="cuda")


def test_a_round_must_fit_into_the_image() -> None:
    prefix = decode(tiny_pair(), None, 0, 3, device="cpu")
    with pytest.raises(ValueError, match=r"start\[1\] is 2; a round of 2 drafted tokens"):
        decode_one_round(tiny_pair(), VERIFIERS[0], 2, prefix, np.array([0, 2, 0]))
