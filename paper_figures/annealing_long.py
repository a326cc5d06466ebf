"""Annealing beside uniform relaxation over many rounds, where laws are too large to enumerate."""

from __future__ import annotations

import statistics
from functools import partial
from typing import TYPE_CHECKING, Any

import simulate
import theory
from paper_figures import pairs
from paper_figures.annealing_truth import QUICK_SIZES, SCHEDULES, SIZES, draw_panels, sizes_won, spread
from paper_figures.registry import Context, Figure, Rows, register
from paper_figures.tables import distinct, group

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

PART = "long sequence"
LENGTH, TOKENS, VOCABULARY = 5, 40, 16
QUICK_TOKENS = 24
CHAINS = {"Markov": (0, 1), "embedding": (2,)}
"""Families whose tokens per call are exact without enumeration, and which of their chains (hence which distances)."""
SAMPLES, QUICK_SAMPLES = 240, 60
PANELS = {
    (PART, "step_bias"): "mean step bias (= predictive TV)",
    (PART, "kl_output_target"): "KL(out‖target) a token",
    (PART, "kl_target_output"): "KL(target‖out) a token",
    (PART, "tv"): "TV of the whole sequence",
}


def _numbers(pair: pairs.Pair, verifier: Any, tokens: int, samples: int, rng: Any) -> dict[str, tuple[float, ...]]:
    exact = theory.analyse_sequence(pair.target, pair.draft, verifier, LENGTH, tokens)
    e = simulate.estimate(pair.target, pair.draft, verifier, LENGTH, tokens, samples, rng)
    bias, speed = exact.tv_bound / tokens, exact.tokens_per_call
    return {
        "tokens_per_call": (speed, speed, speed),
        "step_bias": (bias, bias, bias),
        "predictive_tv": tuple(e.predictive.total_variation),
        "kl_output_target": tuple(e.predictive.kl_output_target),
        "kl_target_output": tuple(e.predictive.kl_target_output),
        "tv": tuple(e.total_variation),
    }


def _chain(context: Context, family: str, index: int, size: float) -> Rows:
    tokens, samples = (QUICK_TOKENS, QUICK_SAMPLES) if context.quick else (TOKENS, SAMPLES)
    pair = pairs.pair(family, index, context.rng("pair", family, index), VOCABULARY, tokens)
    scale = pairs.Scale(pairs.tokens_per_call(pair, LENGTH, tokens))
    families = theory.schedule_families(LENGTH)

    def numbers(schedule: str) -> dict[str, tuple[float, ...]]:
        rng = context.rng("sequences", family, index)  # one stream for all schedules: their noise is shared
        return _numbers(pair, scale.at(families[schedule], size), tokens, samples, rng)

    uniform = numbers("uniform")
    return [
        {"part": PART, "family": family, "chain": index, "distance": pair.distance, "seed": context.seed}
        | {"length": LENGTH, "tokens": tokens, "vocabulary": VOCABULARY, "samples": samples}
        | {"schedule": schedule, "size": size, "quantity": quantity}
        | {"kind": "exact" if quantity in ("tokens_per_call", "step_bias") else "estimate"}
        | {"lower": lower, "value": value, "upper": upper}
        | {"uniform": uniform[quantity][1], "ratio": value / uniform[quantity][1]}
        for schedule in SCHEDULES
        for quantity, (lower, value, upper) in numbers(schedule).items()
    ]


def build(context: Context) -> Rows:
    """One row per chain, size, schedule and quantity, with its interval."""
    sizes = QUICK_SIZES if context.quick else SIZES
    chains = [("Markov", 1)] if context.quick else [(family, i) for family, which in CHAINS.items() for i in which]
    keys = [(*chain, size) for chain in chains for size in sizes]
    return [row for key in context.progress(keys) for row in context.cell(key, partial(_chain, context, *key))]


def draw(rows: Rows) -> Picture:
    """The same tables as for short sequences."""
    return draw_panels(rows, PANELS, 4)


def claim(rows: Rows) -> str:
    """Sizes at which the schedules beat uniform, quantity by quantity."""
    words = {
        (schedule, quantity): sizes_won(rows, PART, quantity, schedule)
        for schedule in SCHEDULES
        for quantity in ("step_bias", "kl_output_target")
    }
    floored, steep, mild = "annealed, floored", "excess, ν = .7", "excess, ν = .2"
    return (
        f"Over {rows[0]['tokens']} tokens at equal tokens per call, on average: floored annealing lowers predictive TV "
        f"{words[floored, 'step_bias']} and KL(out‖target) {words[floored, 'kl_output_target']}; an excess decaying "
        f"with ν = .7 lowers predictive TV {words[steep, 'step_bias']} and KL {words[steep, 'kl_output_target']}, one "
        f"with ν = .2 predictive TV {words[mild, 'step_bias']} and KL {words[mild, 'kl_output_target']}; without the "
        f"floor KL is lower {words['annealed, no floor', 'kl_output_target']}."
    )


def caption(rows: Rows) -> str:
    """Samples, intervals and ranges."""
    one = rows[0]
    kl = [row for row in rows if row["quantity"] == "kl_output_target"]
    wide = statistics.median((row["upper"] - row["lower"]) / 2 / row["value"] for row in kl)
    chains = ", ".join(f"{family} at mean TV {chain[0]['distance']}" for (family, _), chain in
                       group(rows, "family", "chain").items())  # fmt: skip
    small = tuple(size for size in distinct(rows, "size") if size <= 0.25)
    return (
        f"Ratio to uniform, geometric mean over {len(group(rows, 'family', 'chain'))} pair(s) of chains, below it "
        f"least and greatest; * marks means below {1 - pairs.EVEN:g}. Pairs: {chains}; V = {one['vocabulary']}, L = "
        f"{one['length']} drafts, seed {one['seed']}. Size t: share of the way from lossless tokens per call to "
        "accepting everything. Exact: tokens per call and mean step bias (which equals predictive TV). Estimates: the "
        f"other distances, from {one['samples']} sequences a point with exact likelihoods (95 % interval of KL: ± "
        f"{100 * wide:.1f} % in the median). A draft is accepted with min(1, ω_i p/q); annealed: ω_i ∝ e^(−.7i), "
        f"floored: max(1, ω_i); excess: 1 + d e^(−νi); "
        "reversed: annealed backwards. Floored annealing's KL(out‖target) is "
        f"{spread(rows, PART, 'kl_output_target', 'annealed, floored', small)} times uniform's for t ≤ .25. Whole-"
        "sequence TV nears its ceiling of 1 at large sizes."
    )


register(
    Figure(
        name="annealing_long",
        title="Annealing over many rounds, beside uniform relaxation at equal tokens per call",
        claim=claim,
        caption=caption,
        build=build,
        draw=draw,
        uses=("theory", "simulate", "paper_figures/annealing_truth.py"),
        order=30,
        group="many rounds",
    )
)
