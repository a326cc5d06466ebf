"""How good could any rule be, and what do the known ones leave on the table?

Of one round: the least bound B and the least exact TV at every expected accepted length N, and every published rule
beside them. Two kinds of rules: *token-wise* ones decide token by token; *any rule* keeps a prefix of the draft, chosen
with the whole draft in view (`theory.tv_frontier`).
"""

from __future__ import annotations

import statistics
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure as Canvas

import theory
from paper_figures import pairs, style
from paper_figures.every_rule import KINDS, names
from paper_figures.registry import Context, Figure, Row, Rows, register
from paper_figures.tables import column, distinct, group, select
from theory.every_rule import BLOCKS

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

LENGTH, VOCABULARY, DISTANCE = 3, 4, 0.3
QUICK_LENGTH, QUICK_VOCABULARY = 2, 3
SIZES, QUICK_SIZES = (0.2, 0.4, 0.6, 0.8), (0.3, 0.6)
QUICK_KINDS = ("Markov", "Dirichlet tree")
CURVE = 25
"""Points of each frontier."""
SHOWN = "tree"
ALLOWED = {"token-wise": True, "any rule": False}
LINES: dict[str, dict[str, Any]] = {
    "least of token-wise rules": {"color": style.BLACK, "linestyle": "-"},
    "least of any rule": {"color": style.BLACK, "linestyle": "--"},
}
GROUPS: dict[str, dict[str, Any]] = {
    "block (this project)": {"color": style.PURPLE, "marker": "P"},
    "uniform": {"color": style.BLACK, "marker": "o"},
    "COOL-SD, floored": {"color": style.BLUE, "marker": "s"},
    "COOL-SD, no floor": {"color": style.RED, "marker": "x"},
    "LANTERN, LANTERN++": {"color": style.GREEN, "marker": "^"},
    "other published rules": {"color": "#9A9A9A", "marker": "."},
}
SHADES = ("#000000", "#0072B2", "#D55E00", "#B0B0B0")
SIZE_MARKS = ("o", "^", "s", "D")
NOTHING = 1e-7
"""A TV below this is none."""
FARTHEST = 8.0
"""End of the axis of ratios; what lies beyond is drawn on it."""


def _columns() -> Row:
    keys: tuple[str, ...] = (
        "allowed",
        "rule",
        "residual",
        "size",
        "matched",
        "accepted",
        "bound",
        "tv",
        "kl_output_target",
    )
    keys += ("kl_target_output", "least_bound", "least_tv_token_wise", "least_tv_any", "left_at_bound")
    keys += ("left_at_tv_token_wise", "left_at_tv_any")
    return dict.fromkeys(keys)


def _curves(pair: pairs.Pair, length: int, programmes: dict[str, theory.TVFrontier]) -> Rows:
    front = theory.bound_frontier(pair.target, pair.draft, length)
    blocks = theory.block_frontier(pair.target, pair.draft, length, np.linspace(0, front.tv_bound[-1], CURVE))
    rows: Rows = []
    for allowed, solver in programmes.items():
        free = solver.most_accepted(0.0)
        for n in np.linspace(free, length, CURVE):
            bound = front.least_bound(float(n)) if allowed == "token-wise" else None
            found = {"accepted": float(n), "bound": bound, "tv": solver.least_tv(float(n) - 1e-9)}
            rows.append(_columns() | {"allowed": allowed} | found)
    for n, bound in zip(blocks.expected_accepted, blocks.tv_bound, strict=True):
        rows.append(_columns() | {"allowed": "any rule", "accepted": float(n), "bound": float(bound)})
    return [{"part": "frontier"} | row for row in rows]


def _rules(pair: pairs.Pair, length: int, sizes: Any, codebook: Any, programmes: dict[str, theory.TVFrontier]) -> Rows:
    front = theory.bound_frontier(pair.target, pair.draft, length)
    rows: Rows = []
    for line in theory.compare_every_rule(pair.target, pair.draft, length, codebook, sizes):
        n, bound, tv = line["cost"] - 1, line["tv_bound"], line["total_variation"]
        row = _columns() | {key: line[key] for key in ("rule", "residual", "size", "matched")}
        row |= {"accepted": n, "bound": bound, "tv": tv}
        row |= {key: line[key] for key in ("kl_output_target", "kl_target_output")}
        reach = min(n, float(length)) - 1e-9  # a programme's own accuracy
        row |= {"least_bound": front.least_bound(min(n, length))}
        row |= {"least_tv_token_wise": programmes["token-wise"].least_tv(reach)}
        row |= {"least_tv_any": programmes["any rule"].least_tv(reach)}
        row |= {"left_at_bound": front.at(bound) - n}
        row |= {"left_at_tv_token_wise": programmes["token-wise"].most_accepted(tv) - n}
        row |= {"left_at_tv_any": programmes["any rule"].most_accepted(tv) - n}
        rows.append({"part": "rule"} | row)
    return rows


def _pair(context: Context, family: str) -> Rows:
    length, vocabulary = (QUICK_LENGTH, QUICK_VOCABULARY) if context.quick else (LENGTH, VOCABULARY)
    rng = context.rng("pair", family)
    pair = pairs.pair(family, 0, rng, vocabulary, length + 1, DISTANCE)
    codebook = rng.standard_normal((vocabulary, 2))
    programmes = {
        name: theory.tv_frontier(pair.target, pair.draft, length, token_wise=flag) for name, flag in ALLOWED.items()
    }
    settings = {"kind": KINDS[family], "length": length, "vocabulary": vocabulary, "seed": context.seed}
    sizes = QUICK_SIZES if context.quick else SIZES
    rows = _curves(pair, length, programmes) + _rules(pair, length, sizes, codebook, programmes)
    return [settings | row for row in rows]


def build(context: Context) -> Rows:
    """Frontiers and rules of one pair of each kind."""
    families = QUICK_KINDS if context.quick else tuple(KINDS)
    return [row for f in context.progress(families) for row in context.cell(f, partial(_pair, context, f))]


def compared(rows: Rows) -> Rows:
    """Rules at the asked size that are not lossless there."""
    return [row for row in select(rows, part="rule") if row["matched"] and row["tv"] > NOTHING]


def excess(row: Row, over: str = "any") -> float:
    """A rule's TV over the least at its accepted length."""
    return float(row["tv"]) / max(float(row[f"least_tv_{over}"]), NOTHING)


def _group(rule: str) -> str:
    if rule in BLOCKS:
        return "block (this project)"
    named = {"COOL-SD": "COOL-SD, no floor", "LANTERN": "LANTERN, LANTERN++", "LANTERN++": "LANTERN, LANTERN++"}
    name = named.get(rule, rule)
    return name if name in GROUPS else "other published rules"


PANELS = {
    "bound": "bound B",
    "tv": "exact TV",
    "kl_output_target": "KL(out‖target), nats",
    "kl_target_output": "KL(target‖out), nats",
}


def _plane(panel: Any, rows: Rows, quantity: str) -> None:
    """Rules and, where there is one, the frontier, over accepted length."""
    rules, most = select(compared(rows), kind=SHOWN), 0.0
    for (rule, _), points in group(rules, "rule", "residual").items():
        name = _group(rule)
        shown: dict[str, Any] = {
            "lw": 0.0 if name == "other published rules" else 0.8,
            "zorder": 2 + (name != "other published rules"),
        }
        panel.plot(column(points, "accepted"), column(points, quantity), **(GROUPS[name] | shown))
        most = max(most, *(row[quantity] for row in points if row[quantity] < np.inf))
    for (allowed, label), look in zip(zip(ALLOWED, LINES, strict=True), LINES.values(), strict=True):
        curve = [row for row in select(rows, part="frontier", kind=SHOWN, allowed=allowed) if row[quantity] is not None]
        if quantity == "bound" and allowed == "any rule":
            curve = [row for row in curve if row["tv"] is None]
        if curve:
            panel.plot(column(curve, "accepted"), column(curve, quantity), label=label, zorder=5, lw=1.8, **look)
    panel.set(xlabel="expected accepted length N", ylabel=PANELS[quantity], ylim=(0, 1.03 * most))
    if quantity.startswith("kl"):
        panel.set_title("KL is not linear: no frontier drawn")


def order(rows: Rows) -> list[tuple[str, str]]:
    """Rules by median TV over the least of any rule, lowest first."""
    cells = group(compared(rows), "rule", "residual")
    return sorted(cells, key=lambda key: statistics.median(excess(row) for row in cells[key]))


def draw(rows: Rows) -> Picture:
    """Left: one pair, rules in four planes. Right: every rule's distance from the frontier of exact TV."""
    figure = Canvas(figsize=(12.8, 8.2), layout="constrained")
    grid = figure.add_gridspec(2, 3, width_ratios=(1, 1, 0.95))
    for k, quantity in enumerate(PANELS):
        _plane(figure.add_subplot(grid[k // 2, k % 2]), rows, quantity)
    panel, rules, labels = figure.add_subplot(grid[:, 2]), order(rows), names(select(rows, part="rule"))
    sizes = distinct(compared(rows), "size")
    for i, size in enumerate(sizes):
        found = {
            y: statistics.median(excess(row) for row in cell)
            for y, key in enumerate(rules)
            if (cell := select(compared(rows), rule=key[0], residual=key[1], size=size))
        }
        across = [min(ratio, FARTHEST) for ratio in found.values()]
        look: dict[str, Any] = {
            "marker": SIZE_MARKS[i],
            "color": SHADES[i],
            "markeredgecolor": "black",
            "markeredgewidth": 0.4,
        }
        panel.plot(across, list(found), linestyle="none", label=f"t = {size:g}", **look)
    panel.axvline(1.0, color="black", lw=1.2)
    panel.set_xscale("log")
    panel.set_xticks([1, 1.5, 2, 3, 5, FARTHEST], ["1", "1.5", "2", "3", "5", f"≥ {FARTHEST:g}"])
    panel.minorticks_off()
    panel.set_ylim(len(rules) - 0.4, -0.6)
    panel.set_yticks(range(len(rules)), [labels[rule] for rule in rules], fontsize=7)
    for tick, (rule, _) in zip(panel.get_yticklabels(), rules, strict=True):
        tick.set_fontweight("bold" if rule in BLOCKS else "normal")
    panel.set(xlabel="exact TV / least TV of any rule at the same N", title="distance from the frontier, all pairs")
    panel.legend(loc="upper right", fontsize=7.5)
    style.legend_below(figure, LINES | {name: look | {"linestyle": "none"} for name, look in GROUPS.items()}, 4)
    return figure


def closest(rows: Rows, over: str, block: bool) -> tuple[float, str, int, int]:
    """The smallest TV over the least, by which rule; and how many comparisons lie on that frontier, of how many."""
    labels = names(select(rows, part="rule"))
    chosen = [row for row in compared(rows) if (row["rule"] in BLOCKS) == block]
    best = min(chosen, key=lambda row: excess(row, over))
    on = sum(excess(row, over) < 1 + 1e-6 for row in chosen)
    return excess(best, over), labels[best["rule"], best["residual"]], on, len(chosen)


def _median(rows: Rows, rule: str) -> float:
    return statistics.median(excess(row) for row in select(compared(rows), rule=rule))


def claim(rows: Rows) -> str:
    """How far rules are from what is possible."""
    ratio, name, on, of = closest(rows, "token_wise", False)
    published = [key for key in order(rows) if key[0] not in BLOCKS]
    first = names(select(rows, part="rule"))[published[0]]
    left = [row["left_at_tv_any"] for row in select(compared(rows), rule=published[0][0], residual=published[0][1])]
    block = min(_median(rows, rule) for rule in BLOCKS)
    return (
        f"{on} of {of} published points lie on the frontier of exact TV, even of token-wise rules (closest: {name}, "
        f"{ratio:.2f} times the least). Against any rule at equal accepted length the best published one on the median "
        f"({first}) has {_median(rows, published[0][0]):.2f} times the least TV and leaves {min(left):.2f} to "
        f"{max(left):.2f} tokens a round, floored COOL-SD has {_median(rows, 'COOL-SD, floored'):.2f} times, the best "
        f"block rule {block:.2f} times."
    )


def caption(rows: Rows) -> str:
    """Settings, what the frontiers are, kinds of numbers."""
    one = rows[0]
    sizes = ", ".join(f"{size:g}" for size in distinct(select(rows, part="rule"), "size"))
    unmet = sum(not row["matched"] for row in select(rows, part="rule"))
    return (
        f"One round of L = {one['length']} drafts on one pair of each kind ({', '.join(distinct(rows, 'kind'))}; V = "
        f"{one['vocabulary']}, mean TV {DISTANCE:g}, seed {one['seed']}); the {SHOWN} at the left. Every rule with its "
        f"published residual at t = {sizes} of the way from lossless N to L; {unmet} points out of reach or lossless "
        "there are left out. Right: median over pairs. B is a proved bound on TV, all else exact. Lines: the least a "
        "rule can have at each N, by linear programmes (solid: rules that decide token by token; dashed: any rule that "
        "keeps a prefix of the draft, block verification included), solved to 1e-9; bang-bang rules reach the solid "
        "line of B exactly. In the table: tokens left at a rule's own B and TV. Ends of the lines: N of the best "
        "lossless rule. Points: sizes of one rule, joined for the named ones."
    )


register(
    Figure(
        name="frontiers",
        title="Of all known rules relaxed block verification comes nearest to the frontier of exact TV",
        claim=claim,
        caption=caption,
        build=build,
        draw=draw,
        uses=("theory", "simulate", "paper_figures/every_rule.py"),
        order=54,
        group="one round",
    )
)
