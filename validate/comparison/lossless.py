"""Are a lossless method's images the target's? A likelihood-ratio test, with the departure it would have found.

The alternative H₁ is stated: images of token-wise relaxed decoding, f = min(1, ω p/q) with ω = `SUSPECT`, whose law P̂
has an exact likelihood. Each image gives three numbers, log P̂/P (by Neyman and Pearson the best single number against
H₁), log P and the draft's log-likelihood; a method's images and the target's are compared in each by a
Kolmogorov–Smirnov test, joined by Bonferroni. The *power* is the share of samples of H₁ that the test rejects at level
`LEVEL`, by resampling images decoded under H₁ against images of the target; the *false alarms* those of two samples of
the target. Only departures of H₁'s kind and size are covered by that power.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import ks_2samp

import theory
from simulate.intervals import Interval, clopper_pearson
from theory import AnyVerifier, Verifier
from validate.decoding import decode
from validate.measurement import Baseline
from validate.models import Pair
from validate.scoring import AnyScores, filter_images, score

__all__ = ["LEVEL", "SUSPECT", "Power", "image_numbers", "power_of_test", "same_law", "suspect_verifier"]

SUSPECT = 1.2
LEVEL = 0.01
RESAMPLES = 200


def suspect_verifier() -> AnyVerifier:
    """H₁."""
    return Verifier(theory.Relaxed(SUSPECT))


def image_numbers(scores: AnyScores, length: int) -> np.ndarray:
    """The three numbers of every image, shape (n, 3)."""
    found = filter_images(scores, suspect_verifier(), length)
    ratio = found.log_likelihood - found.target_log_likelihood
    return np.stack([ratio, scores.log_likelihood("target"), scores.log_likelihood("draft")], axis=1)


def same_law(ours: np.ndarray, theirs: np.ndarray) -> float:
    """p-value that two sets of images, given by their numbers (n, 3), have one law."""
    columns = range(ours.shape[1])
    return float(min(1.0, len(columns) * min(ks_2samp(ours[:, c], theirs[:, c]).pvalue for c in columns)))


@dataclass(frozen=True)
class Power:
    """What the test finds; see `power_of_test`.

    Attributes
    ----------
    images : int
        A sample's size.
    power, false_alarms : Interval
        Shares of resampled tests that reject, under H₁ and between samples of the target.
    kl_per_image : float
        KL(P̂‖P) of a whole image under H₁, in nats.
    """

    images: int
    power: Interval
    false_alarms: Interval
    kl_per_image: float

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "suspect_omega": SUSPECT, "level": LEVEL, "images": self.images, "power": list(self.power),
            "false_alarms": list(self.false_alarms), "kl_per_image": self.kl_per_image,
        }  # fmt: skip

    def __str__(self) -> str:
        return (
            f"at level {LEVEL:g} the test on {self.images} images finds uniform relaxation with omega {SUSPECT:g} "
            f"({self.kl_per_image:.2f} nats an image) with probability {self.power.value:.2f} "
            f"[{self.power.lower:.2f}, {self.power.upper:.2f}] and raises false alarms with "
            f"{self.false_alarms.value:.3f} [{self.false_alarms.lower:.3f}, {self.false_alarms.upper:.3f}]"
        )


def _rejected(one: np.ndarray, other: np.ndarray, rng: np.random.Generator) -> Interval:
    """Share of pairs of samples, half of each pool, that are told apart; where both are one pool, its two halves."""
    hits, half = 0, len(one) // 2
    for _ in range(RESAMPLES):
        order = rng.permutation(len(one))
        theirs = order[half:] if one is other else rng.permutation(len(other))[:half]
        hits += same_law(one[order[:half]], other[theirs]) < LEVEL
    low, high = clopper_pearson(hits, RESAMPLES, 0.95)
    return Interval(low, hits / RESAMPLES, high, 0.95)


def power_of_test(pair: Pair, baseline: Baseline, length: int, seed: int) -> Power:
    """Power and false alarms of the test on as many images as the baseline compares.

    Notes
    -----
    Samples are halves of pools twice as large, of which many overlap: both shares are estimates whose intervals are
    those of the resampling alone.
    """
    like = baseline.comparing
    runs = [
        decode(
            pair, suspect_verifier(), length, like.asked, device=pair.device.type, seed=seed + shift,
            guidance=like.guidance, warp=like.warp,
        )
        for shift in (2, 3)
    ]  # fmt: skip
    relaxed = np.concatenate([image_numbers(score(pair, run), length) for run in runs])
    own = np.concatenate([image_numbers(s, length) for s in (baseline.comparing_scores, baseline.predicting_scores)])
    rng = np.random.default_rng([seed, 77])
    return Power(len(like.tokens), _rejected(relaxed, own, rng), _rejected(own, own, rng), float(relaxed[:, 0].mean()))
