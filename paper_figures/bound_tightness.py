"""Is COOL-SD's Theorem 2 tight? Rounds whose TV is the bound, and how far below it random rounds stay.

P̂ − P = Σ_i A_{i−1} (o_i − p_i) Π_{k>i} p_k is a sum over positions, and B adds up the absolute values of its terms. So
TV = B exactly where terms of different positions never have opposite signs on a sequence. This is so if one position
alone is biased, and also with every position biased if position i + 1 is biased only after tokens that position i emits
with the target's own probability (biases kept apart): there the pair has p = q after every other token.
"""

from __future__ import annotations

import statistics
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

import theory
from paper_figures import pairs, style
from paper_figures.registry import Context, Figure, Row, Rows, register
from paper_figures.tables import column, distinct, select

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

LENGTHS, QUICK_LENGTHS = (2, 3, 4, 5), (2, 3)
VOCABULARY, INDICES, QUICK_INDICES = 3, 5, 2
STRENGTHS = (0.5, 1.0, 2.0)
"""Of `theory.schedule_families`."""
SCHEDULES = ("uniform", "annealed, floored", "reversed")
EVERYWHERE = ("uniform", "excess, ν = .7")
"""Schedules above 1 at every position, hence biased everywhere."""
ALONE, APART, RANDOM = "one position biased", "biases kept apart", "random"
OMEGA = 3.0
"""Factor of the one relaxed position."""
EXACT = 1e-12
"""Sums of at most 1e4 float64 terms of order one."""
MARKS = {
    RANDOM: {"color": style.GREY, "marker": ".", "linestyle": "none"},
    ALONE: {"color": style.BLACK, "marker": "o", "linestyle": "none", "fillstyle": "none"},
    APART: {"color": style.RED, "marker": "D", "linestyle": "none"},
}


def apart(length: int, rng: np.random.Generator) -> tuple[theory.TabularChain, theory.TabularChain]:
    """A pair on tokens 0, 1, 2 that differs after 2 2 … 2 alone, and there agrees on token 2."""
    same = rng.uniform(0.3, 0.6)
    share = np.array([0.5, 0.5]) + rng.uniform(0.1, 0.3) * np.array([-1, 1])
    p, q = (np.array([*((1 - same) * split), same]) for split in (share, share[::-1]))
    target, draft = [], []
    for depth in range(length + 1):
        level = np.broadcast_to(p, (3,) * (depth + 1)).copy()
        target.append(level.copy())
        level[(2,) * depth] = q
        draft.append(level)
    return theory.TabularChain(target), theory.TabularChain(draft)


def _row(
    part: str, family: str, index: int, length: int, schedule: str, strength: float | None, biased: int, a: object
) -> Row:
    bound, tv = float(a.tv_bound), float(a.total_variation)  # type: ignore[attr-defined]
    row: Row = {"part": part, "family": family, "pair": index, "vocabulary": VOCABULARY, "length": length}
    return row | {
        "schedule": schedule,
        "strength": strength,
        "biased": biased,
        "bound": bound,
        "tv": tv,
        "tightness": tv / bound,
    }


def _pair(context: Context, family: str, index: int, length: int) -> Rows:
    pair = pairs.pair(family, index, context.rng("pair", family, index, length), VOCABULARY, length + 1)
    rows: Rows = []
    for position in range(length):
        omega = [OMEGA if i == position else 1.0 for i in range(length)]
        a = theory.analyse_round(pair.target, pair.draft, theory.Verifier(theory.Relaxed(omega)), length)
        if a.tv_bound > EXACT:  # else nothing there can be over-accepted
            rows.append(_row(ALONE, family, index, length, f"position {position + 1}", None, 1, a))
    for name in SCHEDULES:
        for strength in STRENGTHS:
            verifier = theory.schedule_families(length)[name](strength)
            a = theory.analyse_round(pair.target, pair.draft, verifier, length)
            if a.tv_bound > EXACT:
                biased = int((verifier.rule.omega > 1).sum())  # type: ignore[attr-defined]
                rows.append(_row(RANDOM, family, index, length, name, strength, biased, a))
    return rows


def _apart(context: Context, length: int, index: int) -> Rows:
    target, draft = apart(length, context.rng("apart", length, index))
    families = theory.schedule_families(length)
    rows = []
    for name in EVERYWHERE:
        for strength in STRENGTHS:
            a = theory.analyse_round(target, draft, families[name](strength), length)
            rows.append(_row(APART, "constructed", index, length, name, strength, length, a))
    return rows


def build(context: Context) -> Rows:
    """One row a pair of chains, draft length and schedule."""
    indices = range(QUICK_INDICES if context.quick else INDICES)
    lengths = QUICK_LENGTHS if context.quick else LENGTHS
    keys = [(family, i, length) for family in pairs.FAMILIES for i in indices for length in lengths]
    rows = [row for key in context.progress(keys) for row in context.cell(key, partial(_pair, context, *key))]
    for length in lengths:
        for i in indices:
            rows += context.cell(("apart", length, i), partial(_apart, context, length, i))
    return [row | {"seed": context.seed} for row in rows]


def draw(rows: Rows) -> Picture:
    """TV against B; then TV/B of random rounds over draft length and over strength."""
    figure, axes = style.subplots(1, 3, 11.0, 3.8)
    panel = axes[0, 0]
    for part, mark in MARKS.items():
        points = select(rows, part=part)
        panel.plot(column(points, "bound"), column(points, "tv"), label=part, zorder=2 + (part != RANDOM), **mark)
    panel.plot([0, 1], [0, 1], color=style.GREY, lw=0.9, zorder=1)
    panel.text(0.8, 0.9, "TV = B", color="#505050", fontsize=8, ha="right", va="bottom")
    panel.set(xlabel="bound B", ylabel="exact TV of one round", title="attained, and not", xlim=(0, None))
    panel.set_ylim(bottom=0)
    panel.legend(loc="lower right")
    chosen = select(rows, part=RANDOM)
    for panel, name, label in (
        (axes[0, 1], "length", "draft length L"),
        (axes[0, 2], "biased", "positions with ω_i > 1"),
    ):
        values = sorted(distinct(chosen, name))
        for i, schedule in enumerate(SCHEDULES):
            mark = style.MARKS[schedule]
            cells = [column(select(chosen, schedule=schedule, **{name: v}), "tightness") for v in values]
            found = [(j + 0.16 * (i - 1), cell) for j, cell in enumerate(cells) if cell]
            places = [place for place, _ in found]
            ends = [min(c) for _, c in found], [max(c) for _, c in found]
            panel.vlines(places, *ends, color=mark["color"], lw=1.0)
            medians = [statistics.median(c) for _, c in found]
            panel.plot(places, medians, label=schedule, **(mark | {"linestyle": "none"}))
        panel.set_xticks(range(len(values)), [f"{v:g}" for v in values])
        panel.axhline(1, color=style.GREY, lw=0.9)
        panel.set(xlabel=label, ylabel="TV / B", ylim=(0, 1.05))
    axes[0, 1].set_title("random rounds, over draft length")
    axes[0, 2].set_title("… and over how many positions are relaxed")
    axes[0, 1].legend(loc="lower left", title="median; bars: least to greatest")
    return figure


def _ratios(rows: Rows, **values: object) -> list[float]:
    return column(select(rows, **values), "tightness")


def claim(rows: Rows) -> str:
    """Where the bound is attained, and the range of TV/B elsewhere."""
    attained = [row for row in rows if row["part"] != RANDOM]
    off = max(abs(row["tv"] - row["bound"]) for row in attained)
    several = select(rows, part=APART)
    loose = _ratios(rows, part=RANDOM)
    return (
        f"The bound cannot be improved as it stands: TV = B (to {max(off, 1e-16):.0e}) in all {len(attained)} rounds "
        f"built to attain it, {len(several)} of them with every position biased. On {len(loose)} random rounds TV/B "
        f"runs from {min(loose):.2f} to {max(loose):.2f}, median {statistics.median(loose):.2f}."
    )


def caption(rows: Rows) -> str:
    """Settings and kinds of numbers."""
    by_length = {n: statistics.median(_ratios(rows, part=RANDOM, length=n)) for n in distinct(rows, "length")}
    medians = ", ".join(f"{value:.2f} (L = {n})" for n, value in by_length.items())
    pairs_ = {(row["family"], row["pair"], row["length"]) for row in select(rows, part=RANDOM)}
    return (
        f"{len(pairs_)} random pairs of chains (V = {rows[0]['vocabulary']} tokens; "
        f"{', '.join(distinct(select(rows, part=RANDOM), 'family'))}; drafts at mean TV "
        f"{', '.join(map(str, pairs.DISTANCES))} in turn), seed {rows[0]['seed']}. B: proved bound Σ_i E TV(o_i, p_i) "
        "over accepted prefixes, the reconstruction of COOL-SD's Theorem 2; TV: exact, by enumeration. Circles: ω = "
        f"{OMEGA:g} at one position, 1 elsewhere. Diamonds: pairs that differ only after tokens on which draft and "
        "target agree, so that biases of different positions meet on no sequence with opposite signs. Random: uniform, "
        f"floored annealed and reversed schedules at strengths {', '.join(map(str, STRENGTHS))}; medians of TV/B: "
        f"{medians}. With one position relaxed nothing can cancel."
    )


register(
    Figure(
        name="bound_tightness",
        title="Theorem 2's bound: attained where biases of positions cannot cancel, loose elsewhere",
        claim=claim,
        caption=caption,
        build=build,
        draw=draw,
        uses=("theory", "simulate"),
        order=12,
        group="papers",
    )
)
