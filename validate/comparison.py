"""Every chain method on one pair at equal tokens per call.

A *size* t says how much faster than lossless decoding a method is brought by its one strength: its tokens per call,
predicted by renewal along the target's own images, are τ₀ + t (τ₁ − τ₀), with τ₀ of token-wise lossless decoding and τ₁
of accepting every draft. Predictions need the acceptance only, so a method is matched with the quick residual
Norm[p − q f]_+ whatever residual it runs with. All methods use the same images for matching and the same seeds.

What is measured: decoded images and their exact likelihood ratios (KL(out‖p), predictive TV, whole-image TV, the
largest predictive ratio m_t(x)/p_t(x) seen), and the target's own images (KL(p‖out)). The latter are the same images
for every method, so ratios to uniform relaxation of KL(p‖out) are taken image by image: the sharpest comparison here.

Jacobi decoding has no closed-form law: of its relaxed versions only cost and quality are known, and its lossless ones
have no divergence to measure.

>>> sorted(relaxed_methods(5, [[0.0], [1.0], [3.0]]))[:3]
['COOL-SD, floored', 'COOL-SD, no floor', 'CSD']
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import theory
from simulate.estimation import estimate_from_filters
from simulate.intervals import Interval, mean_interval
from theory import AnyVerifier, Verifier
from theory.comparison import block_families
from theory.families import DECAY
from theory.schedules import excess_schedule
from validate.decoding import Decoded, decode
from validate.drafters.jacobi import Coupling, decode_jacobi
from validate.measurement import Baseline, two_sample
from validate.models import Pair
from validate.prediction import predicted_tokens_per_call
from validate.quality import Quality, assess
from validate.scoring import AnyScores, filter_images, score

__all__ = ["OutOfReach", "Point", "measure_point", "paired_ratio", "points", "relaxed_methods"]

NEIGHBOURS = 10
"""LANTERN++'s k at its published λ = 5 (2502.06352)."""
MENTORED_MATCHING = 12
"""Images that mentored decoding is matched on: its factor is found anew at every prefix, 1 s for 3 images."""
LARGEST_STRENGTH = 12.0
STRENGTH_TOLERANCE = 3e-4
"""Absolute, of a strength near one: tokens per call agree within about .1 %."""
CSD_STRENGTHS = (0.05, 0.1, 0.5)
"""λ; .5 is the published one, with δ = .65 (2606.27829)."""
GSD_RANKS = (1, 7)
"""Ranks on either side, groups of G = 3 and 15 tokens; δ_p = .15 and d = .5 are the published ones (2508.07747)."""


class OutOfReach(ValueError):
    """A method that cannot become as fast as asked."""


@dataclass(frozen=True)
class Method:
    """A family of verifiers in one strength s ≥ 0, and what it is matched by.

    Attributes
    ----------
    build : function strength → verifier
    accepting : function strength → verifier
        The same acceptance, quick to predict.
    setting : function strength → str
        The strength in the method's own terms.
    matching : int, optional
        Most images to match on, for acceptance that is dear to compute.
    """

    build: Callable[[float], AnyVerifier]
    accepting: Callable[[float], AnyVerifier]
    setting: Callable[[float], str]
    matching: int | None = None


@dataclass(frozen=True)
class Point:
    """One row of the comparison: a method at a size, or a method that has none (size NaN)."""

    name: str
    size: float = math.nan
    coupling: Coupling | None = None
    verifier: AnyVerifier | None = None

    @property
    def key(self) -> str:
        """A file name."""
        name = "".join(c if c.isalnum() else "-" for c in self.name.replace("G*", "optimal"))
        return name if math.isnan(self.size) else f"{name}-t{self.size:g}"


def _own(build: Callable[[float], AnyVerifier], setting: str) -> Method:
    return Method(build, build, lambda s: setting.format(w=math.exp(s), d=math.expm1(s)))


def _ruled(rule: Callable[[float], Any], build: Callable[[float], AnyVerifier], setting: str) -> Method:
    return Method(build, lambda s: Verifier(rule(s)), lambda s: setting.format(w=math.exp(s), d=math.expm1(s)))


def relaxed_methods(length: int, codebook: Any) -> dict[str, Method]:
    """Every relaxed chain method by name, for blocks of `length` tokens; codebook (V, D) gives LANTERN++ neighbours.

    ======================  ======================================================================
    uniform                 ω = e^s, residual G*
    COOL-SD, floored        exponential ν = .7, arithmetic mean δ = e^s − 1, max(1, ω)
    COOL-SD, no floor       the same as reconstructed from the paper
    excess                  ω_i = 1 + d e^{−.7 i} (this project)
    LANTERN++, G*           k = 10, λ = e^s, residual G*
    LANTERN++, published    the same with the residual of its code for static trees
    Cactus, mentored, CSD   published residuals; CSD without its condition on TV
    lifted …                block verification against that rule's own output law (this project)
    capped …                capped block verification (this project)
    ======================  ======================================================================
    """
    token_wise, blocks = theory.schedule_families(length), block_families(length)
    near = theory.nearest_neighbours(codebook, min(2 * NEIGHBOURS, len(codebook) - 1))
    k = min(NEIGHBOURS, near.shape[1] - 1)

    def excess(s: float) -> Any:
        return excess_schedule(length, math.expm1(s), DECAY)

    def lantern(s: float) -> Any:
        return theory.LanternPlusPlus(near, k, math.exp(s))

    def entropy(s: float) -> Any:
        return theory.EntropyRelaxed(math.expm1(s), 2.0)

    def published(rule: Callable[[float], Any]) -> Callable[[float], AnyVerifier]:
        return lambda s: theory.published_verifier(rule(s))

    def cactus(s: float) -> Any:
        return theory.Cactus(math.expm1(s))

    def mentored(s: float) -> Any:
        return theory.Mentored(math.expm1(s))

    def with_branch(s: float) -> AnyVerifier:
        return theory.lantern_verifier(near, k, lam=math.exp(s))

    return {
        "uniform": _own(token_wise["uniform"], "omega {w:.4g}"),
        "COOL-SD, floored": _own(token_wise["annealed, floored"], "delta {d:.4g}"),
        "COOL-SD, no floor": _own(token_wise["annealed, no floor"], "delta {d:.4g}"),
        "excess": _own(lambda s: Verifier(theory.Relaxed(excess(s))), "d {d:.4g}"),
        "LANTERN++, G*": _ruled(lantern, lambda s: Verifier(lantern(s)), f"k {k}, lambda {{w:.4g}}"),
        "LANTERN++, published": _ruled(lantern, with_branch, f"k {k}, lambda {{w:.4g}}"),
        "Cactus": _ruled(cactus, published(cactus), "delta {d:.4g}"),
        "mentored": replace(_ruled(mentored, published(mentored), "KL {d:.4g} a step"), matching=MENTORED_MATCHING),
        "CSD": _ruled(entropy, published(entropy), "lambda {d:.4g}"),
        "lifted uniform": _own(blocks["lifted uniform"], "omega {w:.4g}"),
        "lifted excess": _own(lambda s: theory.lifted_block(Verifier(theory.Relaxed(excess(s)))), "d {d:.4g}"),
        "capped uniform": _own(blocks["capped uniform"], "omega {w:.4g}"),
        "capped excess": _own(blocks["capped excess"], "d {d:.4g}"),
    }


def points(pair: Pair, length: int, sizes: Sequence[float], names: Sequence[str] | None = None) -> list[Point]:
    """The rows of a comparison: lossless ones, then every method at every size, then Jacobi decoding."""
    lossless = Verifier(theory.Lossless())
    codebook = _codebook(pair)
    out = [Point("lossless", verifier=lossless), Point("lossless block", verifier=theory.block(length))]
    chosen = list(relaxed_methods(length, codebook)) if names is None else names
    out += [Point(name, size) for size in sizes for name in chosen]
    for coupling, label in (("independent", "SJD"), ("maximal", "coupled SJD"), ("gumbel", "coupled SJD, Gumbel")):
        out.append(Point(label, coupling=coupling, verifier=lossless))  # type: ignore[arg-type]
    for lam in CSD_STRENGTHS:
        verifier = theory.published_verifier(theory.EntropyRelaxed(lam, 0.65))
        out.append(Point(f"coupled SJD with CSD, lambda {lam:g}", coupling="maximal", verifier=verifier))
    for ranks in GSD_RANKS:
        verifier = theory.published_verifier(theory.Grouped(codebook, ranks))
        out.append(Point(f"coupled SJD with GSD, G {2 * ranks + 1}", coupling="maximal", verifier=verifier))
    return out


def _codebook(pair: Pair) -> np.ndarray:
    table = getattr(pair.tokenizer, "codebook", None)
    if table is None or len(table) != pair.vocab_size:
        raise ValueError(f"pair {pair.name!r} has no codebook of {pair.vocab_size} rows; LANTERN++ and GSD need one")
    return np.asarray(table.detach().float().cpu().numpy(), dtype=np.float64)


class Matcher:
    """Strengths by size, found on some of the target's own images."""

    def __init__(self, scores: AnyScores, length: int) -> None:
        self.scores, self.length = scores, length
        self.ends = self._ends(scores)

    def _ends(self, scores: AnyScores) -> list[float]:
        rules = (theory.Lossless(), theory.AcceptAll())
        return [predicted_tokens_per_call(scores, Verifier(rule), self.length) for rule in rules]

    def strength(self, method: Method, size: float) -> float:
        """The strength at a size; 0 if the method is already as fast losslessly.

        Raises
        ------
        OutOfReach
            If no strength makes the method as fast.
        """
        scores, ends = self.scores, self.ends
        if method.matching is not None and method.matching < len(scores):
            scores = scores.first(method.matching)
            ends = self._ends(scores)

        def reached(verifier: AnyVerifier) -> float:
            return predicted_tokens_per_call(scores, verifier, self.length)

        value = ends[0] + size * (ends[1] - ends[0])
        if reached(method.accepting(0.0)) >= value:
            return 0.0
        high = 0.5
        while (most := reached(method.accepting(high))) < value:
            if high >= LARGEST_STRENGTH:
                raise OutOfReach(f"reaches {most:.3f} of {value:.3f} tokens per call")
            high *= 2
        low = high / 2 if high > 0.5 else 0.0
        return theory.match(method.accepting, reached, value, low, high, tolerance=STRENGTH_TOLERANCE)


def measure_point(
    pair: Pair,
    point: Point,
    length: int,
    window: int,
    baseline: Baseline,
    matcher: Matcher,
    seed: int,
    confidence: float = 0.95,
) -> dict[str, Any]:
    """Decode with one method and measure cost, divergences and quality, as plain data.

    Intervals are [lower, value, upper]; numbers that do not exist are None.
    """
    verifier, setting = point.verifier, ""
    if verifier is None:
        method = relaxed_methods(length, _codebook(pair))[point.name]
        try:
            strength = matcher.strength(method, point.size)
        except OutOfReach as error:
            return _head(point, str(error)) | {"out_of_reach": True}
        verifier, setting = method.build(strength), method.setting(strength)
    like = baseline.comparing
    options: dict[str, Any] = {
        "device": pair.device.type, "seed": seed + 1, "guidance": like.guidance, "warp": like.warp
    }  # fmt: skip
    if point.coupling is not None:
        run = decode_jacobi(pair, verifier, window, like.asked, point.coupling, **options)
    else:
        run = decode(pair, verifier, length, like.asked, **options)
    scores = score(pair, run)
    quality = assess(pair, run.tokens, run.classes, scores.log_likelihood("target"), confidence)
    out = _head(point, setting) | _quality(quality)
    out["same_as_target_p"] = two_sample(scores, baseline.comparing_scores)
    out["tokens_per_call"] = _plain(_per_call(run, confidence))
    if point.coupling is None:
        out |= _chain_numbers(verifier, length, run, scores, baseline, confidence)
    else:
        taken = (run.accepted >= 0).sum(axis=1)
        mean = np.where(run.accepted >= 0, run.accepted, 0).sum(axis=1) / taken
        out["accepted_length"] = _plain(mean_interval([mean], confidence, "normal", most=float(window)))
        out["window"] = window
    return out


def _head(point: Point, setting: str) -> dict[str, Any]:
    return {"method": point.name, "size": None if math.isnan(point.size) else point.size, "setting": setting}


def _plain(value: Interval | float) -> Any:
    if isinstance(value, Interval):
        return [_plain(x) for x in value]
    if math.isnan(value):
        return None
    return float(f"{value:.6g}") if math.isfinite(value) else str(value)


def _quality(quality: Quality) -> dict[str, Any]:
    names = ("judge_accuracy", "frechet_distance", "nll_per_token")
    return {name: _plain(getattr(quality, name)) for name in names}


def _per_call(run: Decoded, confidence: float) -> Interval:
    total = run.tokens.shape[1]
    calls = mean_interval([run.calls.astype(float)], confidence, "normal", least=1.0, most=float(total), name="calls")
    return calls.map(lambda c: total / max(c, 1.0))


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
    return {name: _plain(value) for name, value in numbers.items()} | {
        # Image by image, for ratios between methods on the same images of the target.
        "terms": {
            "kl_target_output": [float(f"{x:.6g}") for x in target.kl_target_output.mean(axis=1)],
            "calls": [float(f"{x:.6g}") for x in target.starts.sum(axis=1)],
        }
    }


def paired_ratio(ours: Sequence[float], reference: Sequence[float], confidence: float = 0.95) -> Interval | None:
    """Ratio of two means over the same images with the interval of their paired differences; None for 0/0 or ∞.

    With r = ā/b̄, the terms r + (a_k − r b_k)/b̄ have mean r, and to first order the variance of the ratio.

    >>> paired_ratio([1.0, 2.0, 3.0], [2.0, 4.0, 6.0]).value
    0.5
    """
    a, b = np.asarray(ours, dtype=np.float64), np.asarray(reference, dtype=np.float64)
    if a.shape != b.shape:
        raise ValueError(f"ratios need the same images, got {len(a)} and {len(b)}")
    if not (np.isfinite(a).all() and np.isfinite(b).all() and b.mean() > 0):
        return None
    ratio = a.mean() / b.mean()
    return mean_interval([ratio + (a - ratio * b) / b.mean()], confidence, "normal", name="ratio")
