"""Predicted beside measured: what the theory says of a verifier on a real pair, and what decoding with it does.

*Predicted* numbers come from the target's own images only (`validate.prediction`).

*Measured* numbers come from decoding: counted calls and accepted drafts, and exact likelihood ratios of the images
that came out. Divergences of a round are measured on fresh rounds decoded behind the target's prefixes.

Every number is an interval at a stated confidence, with images as the independent units.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.stats import ks_2samp

from simulate.draws import categorical
from simulate.estimates import Estimate
from simulate.estimation import estimate_from_filters
from simulate.intervals import Interval, mean_interval
from simulate.ratios import ratio_divergences
from theory import AnyVerifier, OffsetFilter, round_along_paths
from theory.verifiers import check_verifier
from validate.decoding import Decoded, decode, decode_one_round
from validate.models import Pair, Warp, resolve_device
from validate.prediction import Prediction, predict, start_probabilities
from validate.quality import Quality, assess
from validate.scoring import AnyScores, filter_images, score

PREDICTION_SEED, ROUND_SEED = 1_000_003, 2_000_003
"""Added to a run's seed, so that predictions, rounds and decoding use different noise."""


@dataclass(frozen=True)
class Baseline:
    """The target's own images: what predictions are made from and measurements are held against.

    Attributes
    ----------
    predicting : Decoded and AnyScores
        Images for predictions; `comparing` are others, for likelihood ratios and as the standard of quality.
    quality : Quality
        Of the comparing images.
    """

    predicting: Decoded
    predicting_scores: AnyScores
    comparing: Decoded
    comparing_scores: AnyScores
    quality: Quality

    @property
    def target_step(self) -> float:
        """Seconds of one batched target step of plain sampling."""
        return self.comparing.seconds["verify"] / self.comparing.steps["verify"]


def sample_baseline(
    pair: Pair,
    images: Any,
    *,
    device: str = "auto",
    seed: int = 0,
    guidance: float | None = None,
    warp: Warp | None = None,
    confidence: float = 0.95,
    batch: int = 500,
    progress: bool = False,
) -> Baseline:
    """Draw images (as for `decode`) from the target twice, for predictions and comparison."""
    pair = pair.to(resolve_device(device))
    runs = [
        decode(
            pair, None, 0, images, device=device, seed=s, guidance=guidance, warp=warp, batch=batch, progress=progress
        )
        for s in (seed + PREDICTION_SEED, seed)
    ]
    scores = [score(pair, run) for run in runs]
    quality = assess(pair, runs[1].tokens, runs[1].classes, scores[1].log_likelihood("target"), confidence)
    return Baseline(runs[0], scores[0], runs[1], scores[1], quality)


@dataclass(frozen=True)
class SpeedUp:
    """Wall clock of decoding, in seconds of a batched pass; κ and v are relative to a target step.

    Attributes
    ----------
    target_step, draft_step, verify_step : float
        Seconds of one batched pass: plain sampling; one drafted token; verification of L+1 tokens.
    predicted : float
        τ / (L κ + v).
    measured : float
        Seconds of plain sampling over seconds of decoding, same images, batch and machine.
    acceptance_share : float
        Share of decoding spent on acceptance arithmetic and draws.
    """

    target_step: float
    draft_step: float
    verify_step: float
    predicted: float
    measured: float
    acceptance_share: float


@dataclass(frozen=True)
class Measurement:
    """Predicted beside measured for one verifier; see `measure`.

    Attributes
    ----------
    length, images, guidance, draft : the setting
    prediction : Prediction
    estimate : simulate.estimates.Estimate
        Measured on decoded images: accepted length, tokens per call, TV, KL, ROC, predictive divergences.
    rounds : dict
        "accepted_length", "total_variation", "kl_output_target", "kl_target_output" of fresh rounds decoded behind
        the target's prefixes.
    speed : SpeedUp
    quality, target_quality : Quality
    same_as_target : float
        p-value of the two-sample test that these images are the target's (see `two_sample`); a small one tells
        them apart.
    decoded : Decoded
    """

    length: int
    images: int
    guidance: float
    draft: str
    prediction: Prediction
    estimate: Estimate
    rounds: dict[str, Interval]
    speed: SpeedUp
    quality: Quality
    target_quality: Quality
    same_as_target: float
    decoded: Decoded


def two_sample(ours: AnyScores, theirs: AnyScores, log_ratios: tuple[np.ndarray, np.ndarray] | None = None) -> float:
    """p-value that two sets of images have one law.

    Kolmogorov–Smirnov tests of the image's log-likelihood under the target and under the draft and, where given, of a
    log-likelihood ratio between a suspected law and the target, joined by Bonferroni. The ratio of a fault makes
    the test as powerful against that fault as one number of an image can be.
    """
    pairs = [(ours.log_likelihood(w), theirs.log_likelihood(w)) for w in ("target", "draft")]
    if log_ratios is not None:
        pairs.append(log_ratios)
    return float(min(1.0, len(pairs) * min(ks_2samp(a, b).pvalue for a, b in pairs)))


def measured_rounds(
    pair: Pair, verifier: AnyVerifier, length: int, baseline: Baseline, seed: int, confidence: float, batch: int
) -> dict[str, Interval]:
    """Fresh rounds behind the target's prefixes: decoded ones against the target's own continuation."""
    images = baseline.comparing
    count, total = images.tokens.shape
    starts = start_probabilities(baseline.predicting_scores, verifier, length)[: total - length]
    rng = np.random.default_rng([seed, ROUND_SEED])
    start = categorical(np.tile(starts, (count, 1)), rng.random(count))
    tokens, accepted = decode_one_round(pair, verifier, length, images, start, seed=seed + ROUND_SEED, batch=batch)
    decoded = replace(images, tokens=tokens)
    window = torch.from_numpy(start[:, None] + np.arange(length)).to(pair.device)
    log_ratios = []
    for scores in (score(pair, decoded), baseline.comparing_scores):
        ratio = round_along_paths(*scores.at(window), verifier, length).ratio
        log_ratios.append(torch.log(ratio).cpu().numpy())
    return {
        "accepted_length": mean_interval([accepted.astype(float)], confidence, "normal", most=float(length)),
        **ratio_divergences(log_ratios[0], log_ratios[1], confidence),
    }


def _speed(run: Decoded, baseline: Baseline, tokens_per_call: float, length: int) -> SpeedUp:
    seconds, steps = run.seconds, run.steps
    target = baseline.target_step
    draft, verify = seconds["draft"] / max(steps["draft"], 1), seconds["verify"] / steps["verify"]
    return SpeedUp(
        target_step=target,
        draft_step=draft,
        verify_step=verify,
        predicted=tokens_per_call * target / (length * draft + verify),
        measured=baseline.comparing.seconds["total"] / seconds["total"],
        acceptance_share=seconds["accept"] / seconds["total"],
    )


def measure(
    pair: Pair,
    verifier: AnyVerifier,
    length: int,
    images: Any = 500,
    *,
    baseline: Baseline | None = None,
    suspect: AnyVerifier | None = None,
    device: str = "auto",
    seed: int = 0,
    guidance: float | None = None,
    warp: Warp | None = None,
    confidence: float = 0.95,
    batch: int = 500,
    progress: bool = False,
) -> Measurement:
    """Decode with a verifier and hold what happens against what the theory predicts.

    Parameters
    ----------
    pair : Pair
        From `validate.load`.
    verifier : AnyVerifier
    length : int
        1 ≤ L < T.
    images : int or sequence
        How many images to decode, or the class, caption or prompt of each.
    baseline : Baseline, optional
        From `sample_baseline`, to share the target's images between verifiers.
    suspect : Verifier, optional
        For a lossless verifier: the law whose likelihood ratio the two-sample test also looks at.
    device, seed, guidance, warp, batch, progress
        As for `decode`; guidance and warp are the baseline's where one is given.
    confidence : float
        Of each interval by itself.

    Returns
    -------
    Measurement

    Raises
    ------
    ValueError
        For what `decode` refuses, or a block as long as the image.
    """
    check_verifier(verifier)
    if not 1 <= length < pair.num_tokens:
        raise ValueError(f"length must lie in 1…{pair.num_tokens - 1}, got {length}")
    pair = pair.to(resolve_device(device))
    if baseline is None:
        baseline = sample_baseline(
            pair, images, device=device, seed=seed, guidance=guidance, warp=warp, confidence=confidence, batch=batch
        )
    run = decode(
        pair,
        verifier,
        length,
        images,
        device=device,
        seed=seed + 1,
        guidance=baseline.comparing.guidance,
        warp=baseline.comparing.warp,
        batch=batch,
        progress=progress,
    )
    scores = score(pair, run)
    output, target = (filter_images(s, verifier, length) for s in (scores, baseline.comparing_scores))
    estimate = estimate_from_filters(
        output,
        target,
        calls=run.calls,
        accepted=run.accepted,
        length=length,
        tokens=pair.num_tokens,
        confidence=confidence,
    )
    return Measurement(
        length=length,
        images=len(run.tokens),
        guidance=run.guidance,
        draft=pair.draft_name,
        prediction=predict(baseline.predicting_scores, verifier, length, confidence),
        estimate=estimate,
        rounds=measured_rounds(pair, verifier, length, baseline, seed, confidence, batch),
        speed=_speed(run, baseline, run.tokens_per_call, length),
        quality=assess(pair, run.tokens, run.classes, scores.log_likelihood("target"), confidence),
        target_quality=baseline.quality,
        same_as_target=_told_apart(scores, output, baseline.comparing_scores, target, verifier, suspect, length),
        decoded=run,
    )


def _told_apart(
    scores: AnyScores,
    output: OffsetFilter,
    theirs: AnyScores,
    target: OffsetFilter,
    verifier: AnyVerifier,
    suspect: AnyVerifier | None,
    length: int,
) -> float:
    if suspect is not None:
        output, target = (filter_images(s, suspect, length) for s in (scores, theirs))
    elif verifier.lossless:
        return two_sample(scores, theirs)
    ratios = tuple(f.log_likelihood - f.target_log_likelihood for f in (output, target))
    return two_sample(scores, theirs, (ratios[0], ratios[1]))
