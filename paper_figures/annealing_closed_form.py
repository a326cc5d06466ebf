"""The closed form of the bound, and what moving acceptance to an earlier position does to bound and law.

Between independent tokens acceptance does not depend on the prefix, so the closed form applies. A little acceptance is
given up at a later position (its log ω is lowered by a tenth) and ω at an earlier one is raised until the expected
accepted length is what it was.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import theory
from paper_figures import pairs, style
from paper_figures.registry import Context, Figure, Row, Rows, register
from paper_figures.tables import column, distinct, select

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

VOCABULARY, SIZE, STEP = 3, 0.5, 0.9
SCHEDULES = ("uniform", "annealed, floored", "excess, ν = .7", "reversed")
QUANTITIES = {
    "bound": ("bound B, exact", {"color": style.BLACK, "marker": "o", "linestyle": "none"}),
    "tv": ("TV", {"color": style.BLUE, "marker": "s", "linestyle": "-"}),
    "kl_output_target": ("KL(out‖target)", {"color": style.RED, "marker": "^", "linestyle": "--"}),
    "kl_target_output": ("KL(target‖out)", {"color": style.GREEN, "marker": "v", "linestyle": "-."}),
}
TICKS = (-10, -5, -2, -1, -0.5, 0, 0.5, 1, 2, 5, 10)
MOVES = ("last to first", "second to first")


def _rates(pair: pairs.Pair, verifier: theory.Verifier, length: int) -> list[float]:
    return [1.0 - float(verifier.step(pair.target.p, pair.draft.p, i).rejection) for i in range(length)]


def _described(pair: pairs.Pair, verifier: theory.Verifier, length: int) -> dict[str, Any]:
    rates = _rates(pair, verifier, length)
    overlap = theory.overlap(pair.target.p, pair.draft.p)
    price = theory.survival_price(rates)
    return {
        "closed_form": theory.closed_form_bound(rates, overlap),
        "price_first": price[0],
        "price_last": price[-1],
    } | (pairs.round_numbers(pair, verifier, length))


def _moved(pair: pairs.Pair, uniform: theory.Verifier, length: int, source: int) -> theory.Verifier:
    """Acceptance moved from position `source` to the first at equal accepted length."""
    omega = [float(w) for w in uniform.rule.omega]  # type: ignore[attr-defined]
    omega[source] **= STEP

    def raised(strength: float) -> theory.Verifier:
        return theory.Verifier(theory.Relaxed([omega[0] * math.exp(strength), *omega[1:]]))

    measure = pairs.accepted_length(pair, length)
    return raised(theory.match(raised, measure, measure(uniform), 0.0, pairs.LARGEST_STRENGTH))


def _chain(context: Context, index: int, length: int) -> Rows:
    pair = pairs.pair("independent", index, context.rng("pair", index), VOCABULARY, 1)
    scale, families = pairs.Scale(pairs.accepted_length(pair, length)), theory.schedule_families(length)
    setting = {
        "chain": index,
        "distance": pair.distance,
        "seed": context.seed,
        "vocabulary": VOCABULARY,
        "length": length,
    }
    verifiers = {("schedule", name): scale.at(families[name], SIZE) for name in SCHEDULES}
    uniform = verifiers["schedule", "uniform"]
    for move, source in zip(MOVES, (length - 1, 1), strict=True):
        verifiers["move", move] = _moved(pair, uniform, length, source)
    before = _described(pair, uniform, length)
    rows: Rows = []
    for (part, name), verifier in verifiers.items():
        after = _described(pair, verifier, length)
        row: Row = setting | {"part": part, "name": name} | after
        rows.append(row | {f"change_{key}": after[key] / before[key] - 1 for key in ("closed_form", *QUANTITIES)})
    return rows


def build(context: Context) -> Rows:
    """One row per chain, length and schedule or move; changes are relative to uniform."""
    chains, lengths = (2, (2, 5, 8)) if context.quick else (9, tuple(range(2, 9)))
    keys = [(index, length) for length in lengths for index in range(chains)]
    return [row for key in context.progress(keys) for row in context.cell(key, partial(_chain, context, *key))]


def draw(rows: Rows) -> Picture:
    """Closed form against the exact bound; then the relative change by either move, over L."""
    figure, axes = style.subplots(1, 3, 11.0, 3.9)
    panel = axes[0, 0]
    for schedule in SCHEDULES:
        points = select(rows, part="schedule", name=schedule)
        mark = style.MARKS[schedule] | {"linestyle": "none", "fillstyle": "none"}
        panel.plot(column(points, "closed_form"), column(points, "bound"), label=schedule, **mark)
    top = max(column(rows, "bound"))
    panel.plot([0, top], [0, top], color=style.GREY, lw=0.8, zorder=0)
    panel.set(xlabel="closed form (1 − β) N − β (1 − S_L)", ylabel="exact B by enumeration")
    panel.set_title(f"closed form, size {SIZE}")
    panel.legend(fontsize=7.5)
    lengths = distinct(rows, "length")
    spread = 1.15 * max(abs(100 * row[f"change_{key}"]) for row in select(rows, part="move") for key in QUANTITIES)
    for panel, move in zip(axes[0, 1:], MOVES, strict=True):
        moved = [select(rows, part="move", name=move, length=length) for length in lengths]
        quantities = {"closed_form": ("bound B, predicted", {"color": style.BLACK, "linestyle": "-"})} | QUANTITIES
        for i, (key, (label, mark)) in enumerate(quantities.items()):
            shifted = [length + 0.09 * (i - 1) for length in lengths]
            changes = [[100 * value for value in column(cell, f"change_{key}")] for cell in moved]
            means = [sum(cell) / len(cell) for cell in changes]
            panel.plot(lengths if key == "closed_form" else shifted, means, label=label, **mark)
            if key != "closed_form":
                panel.vlines(shifted, [min(c) for c in changes], [max(c) for c in changes], color=mark["color"], lw=0.7)
        panel.axhline(0, color=style.GREY, lw=0.8)
        panel.set(xlabel="draft length L", xticks=lengths, title=f"acceptance moved from {move}")
        panel.set_yscale("symlog", linthresh=1.0)
        panel.set_yticks(TICKS, [f"{tick:g}" for tick in TICKS])
        panel.set_ylim(-spread, spread)
    axes[0, 1].set_ylabel("change at equal N, %")
    handles, labels = axes[0, 1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5)
    return figure


def claim(rows: Rows) -> str:
    """Agreement of the closed form, and how often moving acceptance forward lowers each quantity."""
    off = max(abs(row["closed_form"] - row["bound"]) for row in rows)
    moves = select(rows, part="move")
    fell = {key: sum(row[f"change_{key}"] < 0 for row in moves) for key in QUANTITIES}
    lengths = distinct(rows, "length")
    return (
        f"The closed form is the exact bound (largest difference {off:.0e}), and moving acceptance to an earlier "
        f"position at equal accepted length lowers the bound in {fell['bound']} of {len(moves)} cases, L = "
        f"{lengths[0]}…{lengths[-1]}; the exact TV falls in only {fell['tv']} and KL(out‖target) in "
        f"{fell['kl_output_target']} of them."
    )


def caption(rows: Rows) -> str:
    """Symbols, what was moved, on which chains."""
    one = rows[0]
    return (
        f"Independent tokens, V = {one['vocabulary']}, {len(distinct(rows, 'chain'))} random pairs, draft at mean TV "
        f"{', '.join(str(d) for d in distinct(rows, 'distance'))} in turn, seed {one['seed']}. N: expected accepted "
        "drafts; β = Σ min(p, q): lossless acceptance rate; S_L: probability that all L drafts are accepted. Left: "
        "every pair, length and schedule at size .5, half of the way from lossless N to L; grey line: equality. Middle "
        "and right: from uniform relaxation of size .5, log ω of the later position is lowered by a tenth and ω of the "
        "first raised until N is as before; lines join means over pairs, bars run from least to greatest, the scale is "
        "linear within ± 1 %. B is a proved bound on TV; TV and KL are exact."
    )


register(
    Figure(
        name="annealing_closed_form",
        title="Why annealing lowers the bound: the closed form, and acceptance moved forward at equal accepted length",
        claim=claim,
        caption=caption,
        build=build,
        draw=draw,
        uses=("theory", "simulate"),
        order=40,
        group="one round",
    )
)
