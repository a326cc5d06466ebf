"""One row of the comparison: decode with a method, and measure cost, divergences and quality as plain data.

Intervals are [lower, value, upper] at 95 %, images being the independent units; numbers that do not exist are None.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import theory
from simulate.estimation import estimate_from_filters
from simulate.intervals import Interval, mean_interval
from simulate.ratios import ratio_divergences
from theory import AnyVerifier, Verifier
from validate.comparison.lossless import image_numbers, same_law
from validate.comparison.matching import Matcher, OutOfReach
from validate.comparison.methods import Method, codebook_of, relaxed_methods
from validate.comparison.parts import file_name
from validate.comparison.ratios import plain
from validate.comparison.rounds import DraftedRounds, frontier_gap
from validate.comparison.schemes import Context, Scheme, chosen_schemes
from validate.decoding import Decoded, decode
from validate.measurement import Baseline, measured_rounds
from validate.models import Pair
from validate.quality import Quality, assess
from validate.scoring import AnyScores, filter_images, score

__all__ = ["Point", "measure_point", "points"]


@dataclass(frozen=True)
class Point:
    """One row: a chain method at a size, a chain verifier as it is, or a scheme (size NaN).

    Attributes
    ----------
    name : str
    size : float
    method : Method, optional
        To be matched at the size.
    verifier : AnyVerifier, optional
        Of chains of drafts.
    scheme : Scheme, optional
        Any other way of decoding images.
    """

    name: str
    size: float = math.nan
    method: Method | None = None
    verifier: AnyVerifier | None = None
    scheme: Scheme | None = None

    @property
    def key(self) -> str:
        """A file name."""
        name = file_name(self.name)
        return name if math.isnan(self.size) else f"{name}-t{self.size:g}"


def points(
    pair: Pair,
    length: int,
    sizes: Sequence[float],
    names: Sequence[str] | None = None,
    *,
    window: int = 16,
    drafter: Any = None,
    schemes: Sequence[str] | None = None,
) -> list[Point]:
    """The rows of a comparison: lossless ones, then every method at every size, then the schemes.

    Parameters
    ----------
    pair : Pair
    length : int
        L of chains, and depth of chains and budgets among the schemes.
    sizes : sequence of float
    names, schemes : sequence of str, optional
        Relaxed methods, and schemes; all by default.
    window : int
        W of Jacobi decoding.
    drafter : path, optional
        Folder of the feature drafter; the one that ships with the pair by default.
    """
    methods = relaxed_methods(length, codebook_of(pair))
    out = [
        Point("lossless", verifier=Verifier(theory.Lossless())),
        Point("lossless block", verifier=theory.block(length)),
    ]
    out += [Point(name, size, methods[name]) for size in sizes for name in (methods if names is None else names)]
    made = chosen_schemes(Context(pair, length, window, drafter), schemes)
    return out + [Point(name, scheme=scheme) for name, scheme in made.items()]


def measure_point(
    pair: Pair,
    point: Point,
    length: int,
    baseline: Baseline,
    matcher: Matcher | None,
    seed: int,
    confidence: float = 0.95,
    *,
    drafted: DraftedRounds | None = None,
) -> dict[str, Any]:
    """Decode with one method and measure it; see the module.

    Parameters
    ----------
    pair, point, length
    baseline : Baseline
        The target's own images.
    matcher : Matcher, optional
        Needed by a point that is to be matched.
    seed : int
    confidence : float
    drafted : DraftedRounds, optional
        Drafted rounds on which the distance to the frontier is taken.
    """
    verifier, setting = point.verifier, "" if point.scheme is None else point.scheme.setting
    if point.method is not None:
        assert matcher is not None
        try:
            strength = matcher.strength(point.method, point.size)
        except OutOfReach as error:
            return _head(point, str(error)) | {"out_of_reach": True}
        verifier, setting = point.method.build(strength), point.method.setting(strength)
    like = baseline.comparing
    options: dict[str, Any] = {
        "device": pair.device.type, "seed": seed + 1, "guidance": like.guidance, "warp": like.warp
    }  # fmt: skip
    if point.scheme is not None:
        run = point.scheme.decode(pair, like.asked, **options)
    else:
        run = decode(pair, verifier, length, like.asked, **options)
    scores = score(pair, run)
    quality = assess(pair, run.tokens, run.classes, scores.log_likelihood("target"), confidence)
    out = _head(point, setting) | _quality(quality)
    out["lossless"] = point.scheme.lossless if point.scheme is not None else bool(verifier and verifier.lossless)
    numbers = (image_numbers(s, length) for s in (scores, baseline.comparing_scores))
    out["same_as_target_p"] = same_law(*numbers)
    out["tokens_per_call"] = plain(_per_call(run, confidence))
    out["speed_up"] = plain(baseline.comparing.seconds["total"] / run.seconds["total"])
    if point.scheme is None:
        assert verifier is not None
        out |= _chain_numbers(verifier, length, run, scores, baseline, confidence)
        rounds = measured_rounds(pair, verifier, length, baseline, seed, confidence, 500)
        out |= {f"round_{name}": plain(value) for name, value in rounds.items()}
        if drafted is not None:
            out |= {name: plain(value) for name, value in frontier_gap(drafted, verifier, confidence).items()}
    else:
        out["accepted_length"] = plain(_accepted(run, confidence))
        out |= _scheme_numbers(pair, point.scheme, run, baseline, confidence)
    return out


def _head(point: Point, setting: str) -> dict[str, Any]:
    return {"method": point.name, "size": None if math.isnan(point.size) else point.size, "setting": setting}


def _quality(quality: Quality) -> dict[str, Any]:
    names = ("judge_accuracy", "frechet_distance", "nll_per_token")
    return {name: plain(getattr(quality, name)) for name in names}


def _per_call(run: Decoded, confidence: float) -> Interval:
    total = run.tokens.shape[1]
    calls = mean_interval([run.calls.astype(float)], confidence, "normal", least=1.0, most=float(total), name="calls")
    return calls.map(lambda c: total / max(c, 1.0))


def _accepted(run: Decoded, confidence: float) -> Interval:
    """Accepted drafts of a round, rounds cut short by the image's end included, averaged image by image."""
    played = run.accepted >= 0
    mean = np.where(played, run.accepted, 0).sum(axis=1) / played.sum(axis=1)
    return mean_interval([mean], confidence, "normal", most=float(max(run.accepted.max(), 1)))


def _scheme_numbers(pair: Pair, scheme: Scheme, run: Decoded, baseline: Baseline, confidence: float) -> dict[str, Any]:
    """Divergences of whole images from exact likelihood ratios, where the scheme has them, and its certificates."""
    out: dict[str, Any] = {}
    if scheme.log_ratio is not None:
        total = run.tokens.shape[1]
        ratios = [scheme.log_ratio(pair, images) for images in (run, baseline.comparing)]
        found = ratio_divergences(ratios[0], ratios[1], confidence)
        out["image_tv"] = plain(found["total_variation"])
        for name in ("kl_output_target", "kl_target_output"):
            out[name] = [plain(x / total) for x in found[name]]
    if scheme.certificate is not None:
        out["certificate"] = {name: plain(value) for name, value in scheme.certificate.items()}
    return out


def _chain_numbers(
    verifier: AnyVerifier, length: int, run: Decoded, scores: AnyScores, baseline: Baseline, confidence: float
) -> dict[str, Any]:
    output, target = (filter_images(s, verifier, length) for s in (scores, baseline.comparing_scores))
    e = estimate_from_filters(
        output, target, calls=run.calls, accepted=run.accepted, length=length, tokens=run.tokens.shape[1],
        confidence=confidence,
    )  # fmt: skip
    leaked = mean_interval([output.support_leakage.mean(axis=1)], confidence, "normal", name="support leakage")
    numbers: dict[str, Interval | float] = {
        "accepted_length": e.accepted_length,
        "tokens_per_call_from_posterior": e.tokens_per_call_predicted,
        "predictive_tv": e.predictive.total_variation,
        "kl_output_target": e.predictive.kl_output_target,
        "kl_target_output": e.predictive.kl_target_output,
        "image_tv": e.total_variation,
        "image_hellinger": e.hellinger,
        "max_ratio": float(np.max(output.max_ratio)),
        "support_leakage": leaked,
    }
    return {name: plain(value) for name, value in numbers.items()} | {
        # Image by image, for ratios between methods on the same images of the target.
        "terms": {
            "kl_target_output": [float(f"{x:.6g}") for x in target.kl_target_output.mean(axis=1)],
            "calls": [float(f"{x:.6g}") for x in target.starts.sum(axis=1)],
        }
    }
