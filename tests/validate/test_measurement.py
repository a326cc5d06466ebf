"""Predictions and measurements against exact values of a network small enough to enumerate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import theory
import validate
import validate.batches as batches
from tests.validate.networks import TOKENS, table, tiny_pair
from validate.__main__ import main
from validate.decoder import Decoder
from validate.decoding import decode
from validate.measurement import measure, sample_baseline, two_sample
from validate.noise import image_noise
from validate.prediction import match_tokens_per_call, predict, predicted_tokens_per_call
from validate.quality import frechet_distance
from validate.report import as_json, quantities
from validate.report import table as report_table
from validate.scoring import Scores, filter_images, score

LENGTH, IMAGES = 2, 4000
CONFIDENCE = 0.9999
"""Seeds are fixed; an interval of this confidence that misses the exact value is a fault, not bad luck."""
LOSSLESS = theory.Verifier(theory.Lossless())
BOOKKEEPING = {torch.float64: 1e-5, torch.float32: 1e-4}
"""Log-likelihood of an image of 49 tokens, cached against uncached: laws are float32, some 1e-7 a token; networks in
float32 add some 1e-6 a token (logits to 1e-6, tripled and more by guidance). Measured: 3e-6; 3e-5 in float32."""
RELAXED = theory.cool_sd(LENGTH, 1.6)


def exact(verifier: theory.Verifier) -> theory.SequenceAnalysis:
    pair = tiny_pair()
    chains = [table(model, 1, pair.guidance) for model in (pair.target, pair.draft)]
    return theory.analyse_sequence(chains[0], chains[1], verifier, LENGTH, TOKENS)


@pytest.fixture(scope="module")
def baseline() -> Any:
    return sample_baseline(tiny_pair(), [1] * IMAGES, device="cpu", confidence=CONFIDENCE)


def run(verifier: theory.Verifier, baseline: Any, **options: Any) -> Any:
    return measure(
        tiny_pair(),
        verifier,
        LENGTH,
        [1] * IMAGES,
        baseline=baseline,
        device="cpu",
        confidence=CONFIDENCE,
        **options,
    )


@pytest.mark.parametrize("verifier", [LOSSLESS, RELAXED], ids=["lossless", "relaxed"])
def test_measured_intervals_hold_the_exact_values(verifier: theory.Verifier, baseline: Any) -> None:
    m, s = run(verifier, baseline), exact(verifier)
    p, e = s.predictive(), m.estimate
    for value, interval in (
        (s.tokens_per_call, e.tokens_per_call),
        (s.total_variation, e.total_variation),
        (float(np.mean(p.total_variation)), e.predictive.total_variation),
        (float(np.mean(p.kl_output_target)), e.predictive.kl_output_target),
        (float(np.mean(p.kl_target_output)), e.predictive.kl_target_output),
    ):
        # 1e-12: what lossless decoding leaves of zero after rounding.
        assert interval.lower - 1e-12 <= value <= interval.upper + 1e-12
    for label, left, right in quantities(m):
        if left is not None and right is not None and "speed" not in label and "call" not in label:
            # Prefixes drift, so predictions are not the exact values; here the drift is small.
            slack = 0.15 * abs(right.value) + 1e-9
            assert left.lower <= right.upper + slack, label
            assert right.lower <= left.upper + slack, label


def test_predictions_of_a_lossless_rule_are_exact(baseline: Any) -> None:
    found, s = predict(baseline.predicting_scores, LOSSLESS, LENGTH, CONFIDENCE), exact(LOSSLESS)
    assert s.tokens_per_call in found.tokens_per_call
    for name in ("round_bound", "round_tv", "token_tv", "token_kl_output_target"):
        assert getattr(found, name).upper < 1e-9, name


def test_round_predictions_on_independent_tokens_are_the_exact_round() -> None:
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])
    rng = np.random.default_rng(0)
    tokens = torch.from_numpy(rng.choice(3, (5000, 6), p=p))
    scores = Scores(tokens, *(torch.from_numpy(a).expand(5000, 6, 3) for a in (p, q)))
    a = theory.analyse_round(theory.IIDChain(p), theory.IIDChain(q), RELAXED, LENGTH)
    found = predict(scores, RELAXED, LENGTH, CONFIDENCE)
    assert a.expected_accepted in found.accepted_length
    assert a.tv_bound in found.round_bound
    assert a.total_variation in found.round_tv
    assert a.kl_output_target in found.round_kl_output_target
    assert a.kl_target_output in found.round_kl_target_output
    wrong = theory.analyse_round(theory.IIDChain(p), theory.IIDChain(q), theory.cool_sd(LENGTH, 2.0), LENGTH)
    assert wrong.expected_accepted not in found.accepted_length
    assert wrong.total_variation not in found.round_tv


def test_lossless_is_not_told_from_the_target_and_faults_are(baseline: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    suspect = theory.Verifier(theory.Lossless(), theory.target_residual)
    assert run(LOSSLESS, baseline, suspect=suspect).same_as_target > 1e-4
    assert run(suspect, baseline).same_as_target < 1e-4
    with monkeypatch.context() as patch:
        patch.setattr(
            batches,
            "image_noise",
            lambda *a: replace(image_noise(*a), acceptance=torch.zeros_like(image_noise(*a).acceptance)),
        )
        assert run(LOSSLESS, baseline, suspect=suspect).same_as_target < 1e-4


def test_scores_are_the_network_s_own_laws(baseline: Any) -> None:
    pair, scores = tiny_pair(), baseline.predicting_scores
    chain = table(pair.target, 1, pair.guidance)
    rows = scores.tokens[:50].numpy()
    for t in range(TOKENS):
        np.testing.assert_allclose(scores.target_probs[:50, t], chain.conditional(rows[:, :t]), atol=1e-6)
    images = decode(pair, RELAXED, LENGTH, [1] * 300, device="cpu")
    found = filter_images(score(pair, images), RELAXED, LENGTH)
    law = exact(RELAXED).law
    np.testing.assert_allclose(np.exp(found.log_likelihood), law[tuple(images.tokens.T)], atol=1e-6)
    assert len(found.log_likelihood) == 300


@pytest.mark.parametrize(
    ("length", "lossless", "dtype"),
    [(1, True, torch.float64), (4, False, torch.float64), (4, False, torch.float32)],
)
def test_likelihood_of_one_pass_is_the_decoder_s_bookkeeping(
    length: int, lossless: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds of the decoder itself, behind every prefix and forced onto the image; their probabilities are summed over
    the places where rounds can start."""
    verifier = LOSSLESS if lossless else theory.cool_sd(length, 1.6)
    pair = validate.load("fashion")
    drafts = {key: draft.to(dtype) for key, draft in pair.drafts.items()}
    pair = replace(pair, target=pair.target.to(dtype), drafts=drafts)
    run = decode(pair, verifier, length, [3, 8, 1, 0], device="cpu", seed=5)
    tokens, total = torch.from_numpy(run.tokens), pair.num_tokens
    row = torch.arange(len(tokens))
    begins = torch.zeros(len(tokens), total + 1, dtype=torch.float64)
    begins[:, 0] = 1
    for start in range(total):
        ahead = min(length, total - start)
        place = torch.full((len(tokens),), start)
        noise = image_noise(0, range(len(tokens)), total, length, torch.device("cpu"))
        decoder = Decoder(
            pair, pair.encode_conditions(run.asked), noise, run.guidance, run.warp, prefix=tokens, placed=place
        )
        forced = iter(range(start, start + ahead))
        with monkeypatch.context() as patch:
            patch.setattr(Decoder, "_draw", lambda self, law, u, forced=forced: tokens[:, next(forced)])
            q = decoder._draft_block(ahead)
            p = decoder._target_laws(ahead)
        drafts = tokens[:, start : start + ahead]
        drawn = torch.take_along_dim(q, drafts[..., None], -1)[..., 0].double().cumprod(-1)
        following = tokens[:, start : start + ahead + 1, None]
        wanted = torch.take_along_dim(p[:, : following.shape[1]], following, -1)[..., 0].double()
        f = torch.broadcast_to(theory.acceptance_of(verifier, p[:, :ahead], q, np.arange(ahead)), q.shape)
        kept = torch.take_along_dim(f, drafts[..., None], -1)[..., 0].double().cumprod(-1)
        for accepted in range(ahead + 1):
            before = drawn[:, accepted - 1] * kept[:, accepted - 1] if accepted else torch.ones(len(tokens)).double()
            if accepted == ahead:
                last = wanted[:, ahead] if start + ahead < total else torch.ones(len(tokens))
            else:
                # A rejected draft of any kind, then the residual behind it.
                lost = (q[:, accepted].double() * (1 - f[:, accepted].double())).sum(-1)
                residual = theory.residual_after(
                    verifier, p[:, accepted], q[:, accepted], f[:, accepted], drafts[:, accepted],
                    np.full(len(tokens), accepted),
                )  # fmt: skip
                last = lost * residual[row, tokens[:, start + accepted]].double()
            begins[:, min(start + accepted + 1, total)] += begins[:, start] * before * last
    scores = score(pair, run)
    found = theory.sequence_log_likelihood(scores.tokens, scores.target_probs, scores.draft_probs, verifier, length)
    np.testing.assert_allclose(np.asarray(found), begins[:, total].log().numpy(), rtol=0, atol=BOOKKEEPING[dtype])
    np.testing.assert_allclose(filter_images(scores, verifier, length).log_likelihood, found, atol=1e-9)
    other = theory.sequence_log_likelihood(
        scores.tokens, scores.target_probs, scores.draft_probs, theory.cool_sd(length, 2.5), length
    )
    assert np.abs(np.asarray(other) - np.asarray(found)).min() > 1e-3


def test_matching_reaches_the_wanted_tokens_per_call(baseline: Any) -> None:
    family = theory.schedule_families(LENGTH)["excess, ν = .7"]
    verifier = match_tokens_per_call(baseline.predicting_scores, family, LENGTH, 1.8)
    assert predicted_tokens_per_call(baseline.predicting_scores, verifier, LENGTH) == pytest.approx(1.8, rel=2e-3)
    with pytest.raises(ValueError, match="out of reach"):
        match_tokens_per_call(baseline.predicting_scores, family, LENGTH, 2.9)


def test_two_sample_is_even_handed() -> None:
    p = np.array([0.5, 0.3, 0.2])
    rng = np.random.default_rng(1)

    def scores(law: np.ndarray) -> Scores:
        q = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
        tokens = torch.from_numpy(rng.choice(3, (800, 6), p=law))
        return Scores(tokens, torch.from_numpy(p).expand(800, 6, 3), q.expand(800, 6, 3))

    assert two_sample(scores(p), scores(p)) > 1e-3
    assert two_sample(scores(p), scores(np.array([0.4, 0.3, 0.3]))) < 1e-4


def test_frechet_distance() -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(20000, 3))
    assert frechet_distance(features, np.zeros(3), np.eye(3)) < 0.01
    assert frechet_distance(features + 2, np.zeros(3), np.eye(3)) == pytest.approx(12, rel=0.05)
    assert frechet_distance(2 * features, np.zeros(3), np.eye(3)) == pytest.approx(3, rel=0.05)
    with pytest.raises(ValueError, match=r"n >= 2, 3"):
        frechet_distance(features[:1], np.zeros(3), np.eye(3))


def test_reports(baseline: Any) -> None:
    m = run(RELAXED, baseline)
    text, data = report_table("relaxed", m), as_json("relaxed", m)
    for label, _, _ in quantities(m):
        assert label in text
        assert label in data["quantities"]
    assert data["setting"] == {"draft": "tiny", "length": 2, "guidance": 1.5, "images": IMAGES}
    lower, value, upper = data["quantities"]["image: TV"]["measured"]
    assert lower <= value <= upper


def test_bad_input(baseline: Any) -> None:
    with pytest.raises(ValueError, match=r"length must lie in 1…3, got 4"):
        measure(tiny_pair(), RELAXED, 4, 10, device="cpu")
    with pytest.raises(ValueError, match=r"length must lie in 1…4, got 5"):
        predict(baseline.predicting_scores, RELAXED, 5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--schedules", "upside down"], "unknown schedule 'upside down'"),
        (["--pair", "mnist99"], "mnist99"),
        (["--draft", "nobody"], "nobody"),
        (["--images", "0"], "images must be a number >= 1"),
        (["--length", "49"], "length must lie in"),
        (["--out", "nowhere/at/all.json"], "nowhere/at"),
    ],
)
def test_command_line_errors(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = main(
            [*arguments, "--device", "cpu", "--quiet"] + ([] if "--images" in arguments else ["--images", "2"])
        )
    except SystemExit as stop:
        status = int(stop.code or 0)
    assert status == 2
    assert message in capsys.readouterr().err
