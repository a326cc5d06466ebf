"""Accepted length over 1,000 sampled rounds: what a t-test between schedules says, beside the exact expectation.

Two ways of calling schedules equal. At equal predicted accepted length N a correct decoder must give a t-test nothing
to find: 5 tests of 100 come out below p = .05, whatever the shape. At equal mean factor δ, which is how schedules are
usually compared, lengths differ, and the test finds what the exact N says without a sample.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

import simulate
import theory
from paper_figures import pairs, style
from paper_figures.registry import Context, Figure, Rows, register
from paper_figures.tables import column, select
from simulate.intervals import clopper_pearson, mean_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

LENGTH, VOCABULARY, DISTANCE = 5, 8, 0.3
ROUNDS = 1000
REPEATS, QUICK_REPEATS = 400, 40
SIZE, DELTA = 0.4, 1.5
LEVEL, CONFIDENCE = 0.05, 0.95
EQUAL_N, EQUAL_DELTA = "equal predicted N", "equal mean factor δ"
UNIFORM = "uniform"
NAMES = (UNIFORM, "annealed, floored", "annealed, no floor", "linear, floored", "reversed")


def _schedules(pair: pairs.Pair, group: str) -> dict[str, theory.Verifier]:
    if group == EQUAL_N:
        scale, families = pairs.Scale(pairs.accepted_length(pair, LENGTH)), theory.schedule_families(LENGTH)
        return {name: scale.at(families[name], SIZE) for name in NAMES}
    exponential = theory.exponential_schedule(LENGTH, DELTA)
    floored = theory.exponential_schedule(LENGTH, DELTA, floor=1.0)
    omegas = {
        UNIFORM: theory.uniform_schedule(LENGTH, DELTA),
        "annealed, floored": floored,
        "annealed, no floor": exponential,
        "linear, floored": theory.linear_schedule(LENGTH, 1.5 * DELTA, 0.5 * DELTA, floor=1.0),
        "reversed": theory.reversed_schedule(floored),
    }
    return {name: theory.Verifier(theory.Relaxed(omegas[name])) for name in NAMES}


def p_value(first: Any, second: Any) -> float:
    """Welch's t-test of equal means, two-sided."""
    from scipy.stats import ttest_ind

    return float(ttest_ind(first, second, equal_var=False).pvalue)


def _group(context: Context, group: str) -> Rows:
    pair = pairs.pair("Markov", 0, context.rng("pair"), VOCABULARY, LENGTH + 1, DISTANCE)
    repeats = QUICK_REPEATS if context.quick else REPEATS
    verifiers = _schedules(pair, group)
    samples = {
        name: simulate.decode_round(
            pair.target, pair.draft, verifier, LENGTH, repeats * ROUNDS, context.rng("rounds", group, name)
        ).accepted.reshape(repeats, ROUNDS)
        for name, verifier in verifiers.items()
    }
    rows: Rows = []
    for name, verifier in verifiers.items():
        a = theory.analyse_round(pair.target, pair.draft, verifier, LENGTH)
        survival = np.array([1.0, *map(float, a.survival), 0.0])
        law = survival[:-1] - survival[1:]
        first = samples[name][0]
        interval = mean_interval([first], CONFIDENCE, "normal", most=LENGTH, name="accepted length")
        row = {"group": group, "schedule": name, "length": LENGTH, "vocabulary": VOCABULARY, "distance": DISTANCE}
        row |= {"seed": context.seed, "rounds": ROUNDS, "repeats": repeats, "size": SIZE, "delta": DELTA}
        row |= {f"omega_{i + 1}": float(w) for i, w in enumerate(verifier.rule.omega)}  # type: ignore[attr-defined]
        row |= {f"law_{k}": float(x) for k, x in enumerate(law)}
        row |= {
            "exact": a.expected_accepted,
            "exact_sd": float(np.sqrt(law @ np.arange(LENGTH + 1) ** 2 - a.expected_accepted**2)),
        }
        row |= {"lower": interval.lower, "mean": interval.value, "upper": interval.upper}
        means = samples[name].mean(axis=1)
        row |= {"grand_mean": float(means.mean()), "sd_of_means": float(means.std(ddof=1))}
        if name == UNIFORM:
            row |= {"p_value": None, "found": None, "found_lower": None, "found_upper": None}
        else:
            ps = [p_value(x, y) for x, y in zip(samples[name], samples[UNIFORM], strict=True)]
            found = sum(p < LEVEL for p in ps)
            low, high = clopper_pearson(found, repeats, CONFIDENCE)
            row |= {"p_value": ps[0], "found": found / repeats, "found_lower": low, "found_upper": high}
        rows.append(row)
    return rows


def build(context: Context) -> Rows:
    """One row per schedule and group."""
    groups = [EQUAL_N, EQUAL_DELTA]
    return [row for g in context.progress(groups) for row in context.cell(g, partial(_group, context, g))]


def draw(rows: Rows) -> Picture:
    """One test of each kind with its exact expectation; laws of the accepted count; how often a test finds "
    "something."""
    figure, axes = style.subplots(2, 2, 10.2, 6.4, width_ratios=(1.5, 1))
    for line, group in zip(axes, (EQUAL_N, EQUAL_DELTA), strict=True):
        cell = select(rows, group=group)
        panel = line[0]
        for i, row in enumerate(cell):
            mark = style.MARKS[row["schedule"]]
            panel.plot([row["lower"], row["upper"]], [i, i], color=mark["color"], lw=2.2, solid_capstyle="butt")
            panel.plot(row["mean"], i, color=mark["color"], marker=mark["marker"], markersize=7, ls="none")
            panel.plot(row["exact"], i, color="black", marker="|", markersize=20, ls="none", markeredgewidth=1.6)
            words = "reference" if row["p_value"] is None else f"p = {_p(row['p_value'])}"
            panel.text(1.02, i, words, transform=panel.get_yaxis_transform(), va="center", fontsize=8)
        panel.set_yticks(range(len(cell)), column(cell, "schedule"))
        panel.set_ylim(len(cell) - 0.4, -0.6)
        panel.set(
            xlabel="accepted drafts a round", title=f"{group}: mean of {cell[0]['rounds']:,} rounds, 95 % interval"
        )
        panel = line[1]
        tested = [row for row in cell if row["found"] is not None]
        for i, row in enumerate(tested):
            mark = style.MARKS[row["schedule"]]
            panel.plot(
                [row["found_lower"], row["found_upper"]], [i, i], color=mark["color"], lw=2.2, solid_capstyle="butt"
            )
            panel.plot(row["found"], i, color=mark["color"], marker=mark["marker"], markersize=7, ls="none")
        panel.axvline(LEVEL, color="black", lw=1, ls=":")
        panel.text(LEVEL + 0.015, len(tested) - 0.55, f"level {LEVEL:g}", fontsize=8, va="center")
        panel.set_yticks(range(len(tested)), column(tested, "schedule"))
        panel.set_ylim(len(tested) - 0.4, -0.6)
        panel.set(xlim=(-0.03, 1.05), xlabel="share of tests that reject")
        panel.set_title(f"{cell[0]['repeats']} such tests against uniform")
    panel = axes[0, 0]
    panel.plot([], [], color="black", marker="|", ls="none", markersize=12, label="exact expectation N")
    panel.legend(loc="upper left")
    for panel in axes[:, 0]:
        panel.set_xlim(min(column(rows, "lower")) - 0.05, max(column(rows, "upper")) + 0.05)
    return figure


def _p(value: float) -> str:
    return f"{value:.2f}" if value >= 0.005 else f"{value:.0e}"


def detectable(row: dict[str, Any]) -> float:
    """Difference of two means of `rounds` rounds that a test of level .05 finds four times in five (normal law)."""
    return float((1.959964 + 0.841621) * row["exact_sd"] * (2 / row["rounds"]) ** 0.5)


def claim(rows: Rows) -> str:
    """What the tests find in either group."""
    same, other = ([r for r in select(rows, group=g) if r["found"] is not None] for g in (EQUAL_N, EQUAL_DELTA))
    uniform = select(rows, group=EQUAL_DELTA, schedule=UNIFORM)[0]
    cool = select(rows, group=EQUAL_DELTA, schedule="annealed, no floor")[0]
    shares = [row["found"] for row in same]
    return (
        "At equal predicted accepted length a t-test over 1,000 rounds has nothing to find: "
        f"{min(shares):.1%} to {max(shares):.1%} of tests reject, by chance. At equal mean factor δ = "
        f"{uniform['delta']:g} "
        f"the schedules differ, N = {cool['exact']:.2f} for COOL-SD as reconstructed against {uniform['exact']:.2f} "
        "for uniform, "
        f"and {min(r['found'] for r in other):.0%} to {max(r['found'] for r in other):.0%} reject: a longer accepted "
        "length shows "
        "how much was relaxed, not a better shape."
    )


def caption(rows: Rows) -> str:
    """Settings."""
    one = rows[0]
    missed = sum(not row["lower"] <= row["exact"] <= row["upper"] for row in rows)
    return (
        f"One Markov pair (V = {one['vocabulary']}, draft at mean TV {one['distance']:g}, seed {one['seed']}), L = "
        f"{one['length']} drafts. Left: one sample of {one['rounds']:,} rounds a schedule, intervals by Student's t "
        "with a "
        f"correction for skewness; black bars: exact expectation N, missed by {missed} of {len(rows)} intervals; p: "
        "Welch's two-sided t-test against uniform. Right: the "
        f"same test on {one['repeats']} fresh samples, with 95 % Clopper–Pearson intervals; uniform's samples serve "
        "all "
        f"schedules. A difference of {detectable(one):.2f} tokens is found four times in five. Above: every schedule "
        "at "
        f"size t = {one['size']:g}, the share of the way from lossless N to L. Below: mean ω_i = δ = "
        f"{one['delta']:g} before the "
        "floor max(1, ω_i). Annealed: ω_i ∝ e^(−.7i); linear: from 1.5 δ to .5 δ; reversed: floored annealed backwards."
    )


register(
    Figure(
        name="accepted_length_test",
        title="A t-test on accepted length: nothing to find at equal N, and at equal δ it measures relaxation",
        claim=claim,
        caption=caption,
        build=build,
        draw=draw,
        uses=("theory", "simulate"),
        order=46,
        group="papers",
    )
)
