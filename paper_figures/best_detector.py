"""Who could tell relaxed images from the target's, and from how many images?

The best detector knows both laws and flags a sequence if ρ = P̂(x)/P(x) is large (Neyman and Pearson): no person,
network or statistic has a curve of detections against false alarms above its own. The largest vertical distance of
that curve from the diagonal is TV(P̂, P).

How many independent images it needs is `theory.detectors`'.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

import theory
from paper_figures import pairs, style
from paper_figures.registry import Context, Figure, Row, Rows, register
from paper_figures.tables import column, distinct, select
from paper_figures.whole_image_laws import IMAGE_TOKENS, LABELS, MARKS, RULES, members, report, reported
from theory.detectors import detection_curve, hellinger_bounds, images_needed

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

LENGTH, TOKENS, VOCABULARY, DISTANCE = 3, 9, 3, 0.3
QUICK_TOKENS = 6
KIND = "Markov"
SIZES, QUICK_SIZES, SHOWN = (0.1, 0.3, 0.5, 0.7), (0.3, 0.7), 0.3
CURVE = 40
"""Points kept of each curve, besides the one of the largest gap: the curve is concave, they lie on it."""
ERROR = 0.05
"""Chance of a wrong verdict, both kinds averaged, at which images are told apart."""
NOTHING = 1e-9
"""A rule of smaller TV is lossless."""


def _kept(false: Any, detected: Any) -> tuple[list[int], int]:
    """Indices of points evenly along the curve, with both ends and the largest gap; and the latter."""
    gap = int(np.argmax(detected - false))
    along = (false + detected) / 2
    at = np.searchsorted(along, np.linspace(0, 1, CURVE)).clip(max=len(along) - 1)
    return sorted({0, *at.tolist(), gap, len(along) - 1}), gap


def _row(part: str, rule: str, size: float, speed: float, tv: float) -> Row:
    row: Row = {"part": part, "kind": "exact", "rule": rule, "size": size, "speed": speed, "tv": tv}
    return row | dict.fromkeys(("false_alarm", "detection", "largest_gap", "images_lower", "images_upper"))


def _rule(pair: pairs.Pair, rule: str, size: float, verifier: theory.AnyVerifier, tokens: int) -> Rows:
    a = theory.analyse_sequence(pair.target, pair.draft, verifier, LENGTH, tokens)
    law, target = np.ravel(a.law), np.ravel(a.target_law)
    speed, tv = float(a.tokens_per_call), float(a.total_variation)
    rows: Rows = []
    if size == SHOWN:
        false, detected = detection_curve(law, target)
        points, gap = _kept(false, detected)
        for k in points:
            point = {"false_alarm": float(false[k]), "detection": float(detected[k]), "largest_gap": k == gap}
            rows.append(_row("curve", rule, size, speed, tv) | point)
    needed = images_needed(law, target, ERROR) if tv > NOTHING else (None, None)
    counts = dict(zip(("images_lower", "images_upper"), needed, strict=True))
    return [*rows, _row("images", rule, size, speed, tv) | counts]


def _settings(tokens: int, length: int, vocabulary: int, seed: int) -> Row:
    return {"tokens": tokens, "length": length, "vocabulary": vocabulary, "seed": seed}


def _real() -> Rows:
    """Images needed on the embedded pair, between two bounds by the Hellinger distance estimated there."""
    found = report()
    if found is None:
        return []
    content, rows = found, []
    for rule, row in reported(content["rows"]):
        least, most = hellinger_bounds(row["image_hellinger"][1] ** 2, ERROR)
        counts = {"kind": "estimate", "images_lower": least, "images_upper": most}
        speed, tv = row["tokens_per_call"][1], row["image_tv"][1]
        settings = _settings(IMAGE_TOKENS, content["settings"]["length"], 256, content["settings"]["seed"])
        rows.append(_row("real images", rule, row["size"], speed, tv) | counts | settings)
    return rows


def build(context: Context) -> Rows:
    """Curves at one size, then images needed at all sizes, then the embedded pair's."""
    tokens = QUICK_TOKENS if context.quick else TOKENS
    pair = pairs.pair(KIND, 0, context.rng("pair"), VOCABULARY, tokens, DISTANCE)
    found = members(pair, LENGTH, tokens, QUICK_SIZES if context.quick else SIZES)
    rows = [
        row
        for rule, size, verifier in context.progress(list(found))
        for row in context.cell((rule, size), partial(_rule, pair, rule, size, verifier, tokens))
    ]
    settings = _settings(tokens, LENGTH, VOCABULARY, context.seed)
    return [row | settings for row in rows] + _real()


def draw(rows: Rows) -> Picture:
    """Left: curves, gaps marked. Right: images needed over speed."""
    figure, axes = style.subplots(1, 2, 10.4, 4.9)
    panel = axes[0, 0]
    panel.plot([0, 1], [0, 1], color=style.GREY, lw=0.9, ls=(0, (1, 2)))
    panel.text(0.62, 0.57, "lossless: a coin", rotation=41, color="#555555", fontsize=8)
    for rule in RULES:
        points = select(rows, part="curve", rule=rule)
        look = {key: MARKS[rule][key] for key in ("color", "linestyle")}
        panel.plot(column(points, "false_alarm"), column(points, "detection"), **look)
        (gap,) = select(points, largest_gap=True)
        panel.plot(
            [gap["false_alarm"]] * 2, [gap["false_alarm"], gap["detection"]], color=look["color"], lw=0.8, ls=":"
        )
        panel.plot(gap["false_alarm"], gap["detection"], **(MARKS[rule] | {"linestyle": "none"}))
    panel.set(xlabel="false alarms: target's images flagged", ylabel="detections: relaxed images flagged")
    panel.set(title=f"one image, t = {SHOWN:g}: dotted lines are TV", xlim=(0, 1), ylim=(0, 1), aspect="equal")
    panel = axes[0, 1]
    for rule in RULES:
        points = [row for row in select(rows, part="images", rule=rule) if row["images_lower"]]
        middle = [math.sqrt(row["images_lower"] * row["images_upper"]) for row in points]
        panel.plot(column(points, "speed"), middle, **MARKS[rule])
        for row in points:
            panel.plot([row["speed"]] * 2, [row["images_lower"], row["images_upper"]], color=MARKS[rule]["color"], lw=1)
    panel.set_yscale("log")
    panel.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    panel.set(
        xlabel="tokens per target call", ylabel="images needed", title=f"images needed to err {ERROR:.0%} of the time"
    )
    style.legend_below(figure, {LABELS[rule]: MARKS[rule] for rule in RULES}, 3)
    return figure


def needed(rows: Rows, part: str, rule: str, size: float = SHOWN) -> str:
    """Images needed, in words."""
    (row,) = select(rows, part=part, rule=rule, size=size)
    lower, upper = row["images_lower"], row["images_upper"]
    return f"{lower}" if lower == upper else f"{lower}–{upper}"


def claim(rows: Rows) -> str:
    """Advantage of the best detector and how many images it takes."""
    tv = {row["rule"]: row["tv"] for row in select(rows, part="images", size=SHOWN)}
    three = ("annealed, floored", "uniform", "capped excess")
    words = "; ".join(f"{LABELS[rule]}: TV {tv[rule]:.2f}, {needed(rows, 'images', rule)} images" for rule in three)
    real = select(rows, part="real images")
    more = "; ".join(f"{LABELS[rule]} {needed(rows, 'real images', rule)}" for rule in three) if real else ""
    return (
        f"Even the best detector cannot be sure from one image, but few images give relaxation away. At t = {SHOWN:g} "
        f"({rows[0]['tokens']} tokens), to err {ERROR:.0%} of the time: {words}."
        + (f" On the embedded pair ({IMAGE_TOKENS} tokens): {more}." if more else "")
    )


def caption(rows: Rows) -> str:
    """Settings and kinds of numbers."""
    one = rows[0]
    sizes = ", ".join(f"{size:g}" for size in distinct(select(rows, part="images"), "size"))
    wide = max(
        row["images_upper"] / row["images_lower"] - 1 for row in select(rows, part="images") if row["images_lower"]
    )
    free = [
        f"{LABELS[row['rule']]} at t = {row['size']:g}"
        for row in select(rows, part="images")
        if not row["images_lower"]
    ]
    return (
        f"One {KIND} pair (V = {one['vocabulary']}, mean TV {DISTANCE:g}, L = {one['length']}, sequences of "
        f"{one['tokens']} tokens, seed {one['seed']}); sizes t = {sizes} of the way from lossless tokens per call to "
        "accepting all. Left: the best detector flags a sequence if P̂/P is large; a mark stands where detections "
        "exceed false alarms most, by TV; exact, from all sequences. Right: the least number of independent images, "
        "all relaxed or all the target's, from which the best detector names the right one with "
        f"{1 - ERROR:.0%}; proved lower and upper ends, at most {wide:.0%} apart"
        f"{'; not shown, as never told: ' + ', '.join(free) if free else ''}. In the table also the embedded "
        "Fashion-MNIST pair: bounds by the Hellinger distance estimated from its report, not certified."
    )


register(
    Figure(
        name="best_detector",
        title="Who could tell? The best possible detector of relaxed decoding",
        claim=claim,
        caption=caption,
        build=build,
        draw=draw,
        uses=("theory", "simulate", "paper_figures/whole_image_laws.py", "validate/reports"),
        order=57,
        group="many rounds",
    )
)
