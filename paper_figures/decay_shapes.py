"""Exponential, linear and uniform decay at equal accepted length: COOL-SD's ablation, exact.

The paper's schedules fall below 1, where acceptance is thrown away and the law does not change; each shape is shown as
the paper has it and with max(1, ω_i). `annealing_truth` has more chains and schedules in cells of numbers; here the
shapes of the paper alone, with the schedules themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import theory
from paper_figures import pairs, style
from paper_figures.registry import Context, Figure, Rows, register
from paper_figures.tables import column, distinct, group, select

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

ROUND = {"length": 5, "tokens": 6, "vocabulary": 3}
SEQUENCE = {"length": 3, "tokens": 8, "vocabulary": 3}
FAMILIES, QUICK_FAMILIES = ("independent", "Markov", "Dirichlet tree", "Potts grid"), ("Markov", "Potts grid")
SIZES, QUICK_SIZES = (0.1, 0.3, 0.5, 0.7, 0.9), (0.3, 0.7)
SHOWN_SIZE = 0.7
UNIFORM = "uniform"
SHAPES = {
    "exponential, floored": style.MARKS["annealed, floored"],
    "exponential, no floor": style.MARKS["annealed, no floor"],
    "linear, floored": style.MARKS["linear, floored"],
    "linear, no floor": {"color": style.PURPLE, "marker": "P", "linestyle": ":"},
}
PANELS = {
    ("one round", "bound"): "one round: bound B",
    ("one round", "tv"): "one round: exact TV",
    ("one round", "kl_output_target"): "one round: KL(out‖target)",
    ("sequence", "predictive_tv"): "sequence: predictive TV a token",
    ("sequence", "kl_output_target"): "sequence: KL(out‖target) a token",
}
TOP = 4.0
"""Ratios above are drawn at the edge."""


def shapes(length: int) -> dict[str, Callable[[float], theory.Verifier]]:
    """Families in one strength s, by shape; δ = e^s − 1 is the mean of the unfloored factors, but for uniform ω = "
    "e^s."""

    def linear(strength: float) -> theory.Verifier:
        delta = math.expm1(strength)
        return theory.Verifier(theory.Relaxed(theory.linear_schedule(length, 1.5 * delta, 0.5 * delta)))

    known = theory.schedule_families(length)
    return {
        UNIFORM: known["uniform"],
        "exponential, floored": known["annealed, floored"],
        "exponential, no floor": known["annealed, no floor"],
        "linear, floored": known["linear, floored"],
        "linear, no floor": linear,
    }


def _numbers(part: str, pair: pairs.Pair, verifier: Any) -> dict[str, float]:
    if part == "one round":
        return pairs.round_numbers(pair, verifier, ROUND["length"])
    return pairs.sequence_numbers(pair, verifier, SEQUENCE["length"], SEQUENCE["tokens"])


def _pair(context: Context, part: str, index: int, family: str) -> Rows:
    setting = ROUND if part == "one round" else SEQUENCE
    rng = context.rng("pair", part, family)
    pair = pairs.pair(family, index, rng, setting["vocabulary"], setting["tokens"])
    measure = pairs.accepted_length if part == "one round" else pairs.tokens_per_call
    size = (setting["length"],) if part == "one round" else (setting["length"], setting["tokens"])
    scale = pairs.Scale(measure(pair, *size))
    rows: Rows = []
    for t in QUICK_SIZES if context.quick else SIZES:
        base: dict[str, float] = {}
        for shape, builder in shapes(setting["length"]).items():
            verifier = scale.at(builder, t)
            numbers = _numbers(part, pair, verifier)
            base = base or numbers
            omega = [*map(float, verifier.rule.omega)]  # type: ignore[attr-defined]
            shared = {"part": part, "family": family, "distance": pair.distance, "seed": context.seed} | setting
            shared |= {"shape": shape, "size": t}
            shared |= {f"omega_{i + 1}": omega[i] if i < len(omega) else None for i in range(ROUND["length"])}
            for quantity, value in numbers.items():
                rows.append(shared | {"quantity": quantity, "value": value, "ratio": value / base[quantity]})
    return rows


def build(context: Context) -> Rows:
    """One row per part, family, shape, size and quantity; ratios are to uniform at the same size."""
    families = QUICK_FAMILIES if context.quick else FAMILIES
    keys = [(part, i, family) for part in ("one round", "sequence") for i, family in enumerate(families)]
    return [row for key in context.progress(keys) for row in context.cell(key, partial(_pair, context, *key))]


def means(rows: Rows, part: str, quantity: str, shape: str) -> dict[float, float]:
    """Size → geometric mean over families of the ratio to uniform."""
    cells = group(select(rows, part=part, quantity=quantity, shape=shape), "size")
    return {key[0]: pairs.geometric_mean(column(cell, "ratio")) for key, cell in cells.items()}


def draw(rows: Rows) -> Picture:
    """The schedules at one size; then ratios to uniform over sizes, mean over families and range."""
    figure, axes = style.subplots(2, 3, 11.4, 6.6)
    panel = axes[0, 0]
    size = max(s for s in distinct(rows, "size") if s <= SHOWN_SIZE)
    family = distinct(rows, "family")[0]
    one = select(rows, part="one round", family=family, size=size, quantity="bound")
    positions = range(1, rows[0]["length"] + 1)
    for row in one:
        mark = style.MARKS["uniform"] if row["shape"] == UNIFORM else SHAPES[row["shape"]]
        panel.plot(positions, [row[f"omega_{i}"] for i in positions], label=row["shape"], **mark)
    panel.axhline(1, color=style.GREY, lw=0.9)
    panel.set_yscale("log")
    panel.set_yticks([0.25, 0.5, 1, 2, 4, 8, 16], ["0.25", "0.5", "1", "2", "4", "8", "16"])
    panel.minorticks_off()
    panel.set(xlabel="position i", ylabel="ω_i", xticks=positions)
    panel.set_title(f"equal N: the schedules at t = {size:g} ({family})")
    for i, (panel, ((part, quantity), label)) in enumerate(zip(axes.flat[1:], PANELS.items(), strict=True)):
        for shape, mark in SHAPES.items():
            cells = group(select(rows, part=part, quantity=quantity, shape=shape), "size")
            curve = means(rows, part, quantity, shape)
            shown = [min(value, TOP) for value in curve.values()]
            panel.plot(list(curve), shown, label=shape, **mark)
            ends = [(min(column(c, "ratio")), max(column(c, "ratio"))) for c in cells.values()]
            low, high = ([min(value, TOP) for value in end] for end in zip(*ends, strict=True))
            panel.fill_between(list(curve), low, high, color=mark["color"], alpha=0.1, lw=0)
        panel.axhline(1, color="black", lw=1.2)
        panel.set_yscale("log")
        panel.set_yticks([0.5, 0.7, 1, 1.5, 2, TOP], ["0.5", "0.7", "1", "1.5", "2", f"{TOP:g}+"])
        panel.minorticks_off()
        panel.set_ylim(0.5, TOP * 1.05)
        panel.set(xlabel="size t", title=label, ylabel="ratio to uniform" if i % 3 != 1 or i == 1 else None)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
    return figure


def best(rows: Rows, part: str, quantity: str) -> dict[float, str]:
    """Size → the floored shape of the least mean ratio, uniform if none is clearly below one (`pairs.EVEN`)."""
    out = {}
    for t in distinct(rows, "size"):
        ratios = {shape: means(rows, part, quantity, shape)[t] for shape in SHAPES if shape.endswith(", floored")}
        least = min(ratios, key=ratios.__getitem__)
        out[t] = least.removesuffix(", floored") if ratios[least] < 1 - pairs.EVEN else UNIFORM
    return out


def _in_words(winners: dict[float, str]) -> str:
    sizes: dict[str, list[float]] = {}
    for t, shape in winners.items():
        sizes.setdefault(shape, []).append(t)
    if len(sizes) == 1:
        return f"{next(iter(sizes))} at every size"
    return ", ".join(f"{shape} at t = {', '.join(f'{t:g}' for t in found)}" for shape, found in sizes.items())


def claim(rows: Rows) -> str:
    """Which shape is best by which measure."""
    named = {key: _in_words(best(rows, *key)) for key in PANELS}
    unfloored = [shape for shape in SHAPES if shape.endswith("no floor")]
    worst = max(max(means(rows, "one round", "kl_output_target", shape).values()) for shape in unfloored)
    return (
        "At equal cost the best floored shape of one round is, by the bound, "
        f"{named['one round', 'bound']}; by exact TV, {named['one round', 'tv']}; by KL(out‖target), "
        f"{named['one round', 'kl_output_target']}. In sequences, by predictive TV a token, "
        f"{named['sequence', 'predictive_tv']}; by KL a token, {named['sequence', 'kl_output_target']}. Without the "
        f"floor a decaying schedule's KL of one round reaches {worst:.1f} times uniform's."
    )


def caption(rows: Rows) -> str:
    """Settings, symbols."""
    one, many = (select(rows, part=part)[0] for part in ("one round", "sequence"))
    return (
        f"Means (lines) and ranges (shades) over {len(distinct(rows, 'family'))} pairs of chains "
        f"({', '.join(distinct(rows, 'family'))}; V = {one['vocabulary']}, drafts at mean TV "
        f"{', '.join(map(str, distinct(rows, 'distance')))}, seed {one['seed']}). One round: L = {one['length']} "
        "drafts, "
        f"equal accepted length N; sequences: T = {many['tokens']} tokens, L = {many['length']}, equal tokens per "
        "call. "
        "Size t: share of the way from lossless speed to accepting everything. A draft x is accepted with "
        "min(1, ω_i p(x)/q(x)). Exponential: ω_i ∝ e^(−.7i) (COOL-SD; normalisation reconstructed, without effect at "
        "equal N); linear: from 3 units down to 1; floored: max(1, ω_i). B is a proved bound on TV, all else exact. "
        "Below 1: better than uniform. The last round is cut at T, which moves sequence ratios (see annealing_long)."
    )


register(
    Figure(
        name="decay_shapes",
        title="Exponential, linear, uniform: at equal accepted length decay lowers the bound, TV only on some chains",
        claim=claim,
        caption=caption,
        build=build,
        draw=draw,
        uses=("theory", "simulate"),
        order=25,
        group="papers",
    )
)
