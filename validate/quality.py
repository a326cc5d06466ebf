"""Quality of images without a download: likelihood under the target, a small judge's opinion, feature distance.

* nll per token under the guided target: exact, needs no judge, monotone in practice (MODELS: the first choice);
* accuracy of the judge on the class asked for, for a pair that has a judge;
* Fréchet distance of judge features to the tokenizer-*reconstructed* test images,
  d² = ‖μ−ν‖² + tr(A + B − 2 (A^½ B A^½)^½). It is not FID (whose features are another network's), it depends on the
  number of images, so only equal numbers compare, and at strong guidance it need not be monotone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from simulate.intervals import Interval, clopper_pearson, mean_interval
from validate.models import Pair

RIDGE = 1e-6
"""Added to the covariances' diagonals: with fewer images than features they are singular."""


@dataclass(frozen=True)
class Quality:
    """Quality of a set of images.

    Attributes
    ----------
    judge_accuracy : Interval
        Share recognised as the class asked for, with the exact binomial interval; NaN without a judge.
    frechet_distance : float
        Judge-feature distance d² to reconstructed test images (a point value, biased upwards by few images); NaN
        without a judge.
    nll_per_token : Interval
        Nats per token under the guided target.
    images : int
    """

    judge_accuracy: Interval
    frechet_distance: float
    nll_per_token: Interval
    images: int


def _root(matrix: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(matrix)
    root: np.ndarray = (vectors * np.sqrt(np.clip(values, 0.0, None))) @ vectors.T
    return root


def frechet_distance(features: np.ndarray, mean: np.ndarray, covariance: np.ndarray) -> float:
    """Squared Fréchet distance between the Gaussian fitted to features (n, F) and a given one.

    Raises
    ------
    ValueError
        For fewer than two images or mismatched sizes.
    """
    features = np.asarray(features, dtype=np.float64)
    if features.ndim != 2 or len(features) < 2 or features.shape[1:] != np.shape(mean):
        raise ValueError(f"features must be (n >= 2, {np.size(mean)}), got {features.shape}")
    ridge = RIDGE * np.eye(features.shape[1])
    ours, theirs = np.cov(features, rowvar=False) + ridge, np.asarray(covariance, dtype=np.float64) + ridge
    root = _root(ours)
    cross = np.trace(_root(root @ theirs @ root))
    gap = features.mean(axis=0) - np.asarray(mean, dtype=np.float64)
    return max(float(gap @ gap + np.trace(ours) + np.trace(theirs) - 2 * cross), 0.0)


@torch.no_grad()
def judge_images(
    pair: Pair, tokens: np.ndarray, classes: np.ndarray, *, batch: int = 500
) -> tuple[np.ndarray, np.ndarray]:
    """Whether each image is recognised as its class, (n,) bool, and its judge features, (n, F)."""
    if pair.judge is None:
        raise ValueError(f"pair {pair.name!r} has no judge; only pairs trained by validate.training have one")
    right, features = [], []
    for first in range(0, len(tokens), batch):
        ids = torch.from_numpy(tokens[first : first + batch]).to(pair.device)
        logits, values = pair.judge(pair.tokenizer.decode(ids))
        right.append(logits.argmax(-1).cpu().numpy() == classes[first : first + batch])
        features.append(values.double().cpu().numpy())
    return np.concatenate(right), np.concatenate(features)


def assess(
    pair: Pair, tokens: np.ndarray, classes: np.ndarray, log_likelihood: np.ndarray, confidence: float = 0.95
) -> Quality:
    """Quality of images given as tokens (n, T), with their exact log-likelihood (n,) under the guided target."""
    nll = mean_interval(
        [-np.asarray(log_likelihood, dtype=np.float64) / tokens.shape[1]], confidence, "normal", name="nll per token"
    )
    reference = pair.reference
    if pair.judge is None or reference is None:
        unknown = Interval(math.nan, math.nan, math.nan, confidence)
        return Quality(unknown, math.nan, nll, len(tokens))
    right, features = judge_images(pair, tokens, classes)
    low, high = clopper_pearson(int(right.sum()), len(right), confidence)
    return Quality(
        judge_accuracy=Interval(low, float(right.mean()), high, confidence),
        frechet_distance=frechet_distance(
            features, reference.feature_mean.double().cpu().numpy(), reference.feature_covariance.double().cpu().numpy()
        ),
        nll_per_token=nll,
        images=len(tokens),
    )
