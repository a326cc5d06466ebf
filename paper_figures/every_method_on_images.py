"""Every method of the newest comparison report on one image pair: how fast, and how far from the target's law.

P is the target's law of whole images, P̂ a method's; T tokens an image. Where P̂ can be written down, images decoded
with the method have exact likelihood ratios, from which the report estimates KL(P̂‖P)/T, nats a token, and TV(P̂, P).
Methods whose law is P (lossless), and those without a likelihood (relaxed Jacobi windows, draft trees), have no place
on those axes; they stand below by their speed alone, with what can be told of their images: nats a token under the
target and how many a judge recognises. Tokens per target call: T over the mean calls an image.

Source: the report, `python -m validate compare` (`validate.comparison` says how each number is measured).

>>> place({"lossless": False, "kl_output_target": 0.02}), place({"lossless": False, "kl_output_target": None})
('law', 'no likelihood')
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from matplotlib.lines import Line2D

from paper_figures import style
from paper_figures.registry import Context, Figure, Row, Rows, register
from paper_figures.reports import interval, newest_report
from paper_figures.tables import column, distinct, select

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture

LAW, LOSSLESS, UNKNOWN, OUT_OF_REACH = "law", "lossless", "no likelihood", "out of reach"
UNIFORM, BLOCK, PLAIN = "uniform", "lossless block", "lossless"
EXACT = (PLAIN, BLOCK, "SJD", "coupled SJD", "coupled SJD, Gumbel", "tree", "feature chain")
"""Lossless methods of reports that do not say it of each row."""
SCHEDULE: dict[str, Any] = {"color": style.BLUE, "linestyle": "-"}
LANTERN: dict[str, Any] = {"color": style.ORANGE, "linestyle": "--"}
TILTED: dict[str, Any] = {"color": style.PURPLE, "linestyle": ":"}
LIFTED: dict[str, Any] = {"color": style.GREEN, "linestyle": "-."}
CAPPED: dict[str, Any] = {"color": style.SKY, "linestyle": "-", "markerfacecolor": "white"}
BUDGET: dict[str, Any] = {"color": style.RED, "linestyle": "none", "markerfacecolor": "none", "markersize": 6}
SKIPPED: dict[str, Any] = {"color": style.BLACK, "linestyle": "none", "markersize": 9}
LOOKS: dict[str, dict[str, Any]] = {
    UNIFORM: {"color": style.BLACK, "linestyle": "-", "marker": "o", "linewidth": 2.0},
    "COOL-SD, floored": SCHEDULE | {"marker": "s"},
    "COOL-SD, no floor": SCHEDULE | {"marker": "x"},
    "excess": SCHEDULE | {"marker": "^"},
    "LANTERN++, G*": LANTERN | {"marker": "D"},
    "LANTERN++, published": LANTERN | {"marker": "d", "markerfacecolor": "white"},
    "Cactus": TILTED | {"marker": "P"},
    "CSD": TILTED | {"marker": "X"},
    "mentored": TILTED | {"marker": "*"},
    "lifted uniform": LIFTED | {"marker": "o"},
    "lifted excess": LIFTED | {"marker": "^"},
    "lifted mild": LIFTED | {"marker": "v"},
    "capped uniform": CAPPED | {"marker": "o"},
    "capped excess": CAPPED | {"marker": "^"},
    "capped mild": CAPPED | {"marker": "v"},
    "budgeted uniform, TV": BUDGET | {"marker": "<"},
    "budgeted uniform, KL(out|p)": BUDGET | {"marker": "p"},
    "budgeted uniform, KL(p|out)": BUDGET | {"marker": ">"},
    "feature chain, uniform": {"color": style.GREY, "linestyle": "none", "marker": "h"},
    "optimal by position": {"color": style.GREY, "linestyle": "--", "marker": "o", "markerfacecolor": "white"},
    "VVS-style, K 1, rho 1": SKIPPED | {"marker": "1"},
    "VVS-style, K 3, rho 0.5": SKIPPED | {"marker": "2"},
    "VVS-style, K 3, rho 1": SKIPPED | {"marker": "+"},
}
"""One colour and dash a family, markers for its members; hollow: capped blocks, budgets, a published residual."""
OTHER: dict[str, Any] = {"color": style.GREY, "linestyle": ":", "marker": "."}
ALSO = ("SJD", "coupled SJD", "tree")
"""Methods off the axes that a report may lack, for the caption."""
DISTANCES = {"kl_output_target": "KL(out‖target) a token, nats (log scale)", "image_tv": "TV of a whole image"}
OFF_AXES = {"nll_per_token": "nats a token under the target", "judge_accuracy": "share of images the judge recognises"}
QUANTITIES = ("tokens_per_call", *DISTANCES, *OFF_AXES)
PLACES = {LOSSLESS: (style.BLACK, "*"), UNKNOWN: (style.RED, "o")}


def place(row: Row) -> str:
    """Where a measured method is shown: on the axes of distance, or below as lossless or without a likelihood."""
    if row["lossless"]:
        return LOSSLESS
    return UNKNOWN if row["kl_output_target"] is None else LAW


def rows_of(report: dict[str, Any]) -> Rows:
    """Rows of a report; a number it does not have is None."""
    settings = {
        name: report["settings"].get(name) for name in ("pair", "draft", "guidance", "length", "images", "seed")
    }
    rows: Rows = []
    for found in report["rows"]:
        row: Row = {"method": found["method"], "size": found["size"], "setting": found["setting"] or None}
        row["lossless"] = bool(found.get("lossless", found["method"] in EXACT))
        for name in QUANTITIES:
            row |= {key: None if v is None else float(v) for key, v in interval(found, name).items()}
        row["place"] = OUT_OF_REACH if found.get("out_of_reach") else place(row)
        rows.append(row | settings)
    return rows


def build(context: Context) -> Rows:
    """One row per method and size."""
    return rows_of(newest_report("compare"))


def shown(rows: Rows, quantity: str) -> Rows:
    """Rows on the axes of a distance, slow to fast; an infinite distance cannot be drawn."""
    cell = [row for row in select(rows, place=LAW) if row[quantity] is not None and math.isfinite(row[quantity])]
    return sorted(cell, key=lambda row: row["tokens_per_call"])


def panels(rows: Rows) -> list[str]:
    """Distances that the report has."""
    return [quantity for quantity in DISTANCES if shown(rows, quantity)]


def _bars(cell: Rows, quantity: str) -> list[list[float]]:
    """Lengths of error bars; an infinite end is drawn to ten times the value."""
    low = [row[quantity] - row[f"{quantity}_lower"] for row in cell]
    high = [min(row[f"{quantity}_upper"], 10 * row[quantity]) - row[quantity] for row in cell]
    return [[max(x, 0.0) for x in ends] for ends in (low, high)]


def _mark(method: str) -> dict[str, Any]:
    return LOOKS.get(method, OTHER)


def _draw_distance(panel: Axes, rows: Rows, quantity: str) -> None:
    cell = shown(rows, quantity)
    for method in distinct(cell, "method"):
        line = select(cell, method=method)
        x, y = column(line, "tokens_per_call"), column(line, quantity)
        up, across, mark = _bars(line, quantity), _bars(line, "tokens_per_call"), _mark(method)
        panel.errorbar(x, y, up, across, color=mark["color"], linestyle="none", elinewidth=0.5, alpha=0.4, zorder=1)
        panel.plot(x, y, **({"linewidth": 1.0, "zorder": 3} | mark))
    for row in select(rows, place=LOSSLESS):
        if row["method"] in (PLAIN, BLOCK):
            panel.axvline(row["tokens_per_call"], color=style.BLACK, lw=0.9, ls="--" if row["method"] == BLOCK else ":")
            panel.text(
                row["tokens_per_call"], 0.99, f"{row['method']} ", rotation=90, ha="right", va="top", fontsize=7,
                transform=panel.get_xaxis_transform(),
            )  # fmt: skip
    if quantity == "image_tv":
        panel.set_ylim(0, 1)
    else:
        panel.set_yscale("log")
    panel.set(xlabel="tokens per target call", title=f"{DISTANCES[quantity]}: the law is known")


def _off_axes(rows: Rows) -> Rows:
    """Lossless methods, then those without a likelihood, each slow to fast."""
    return [row for name in PLACES for row in sorted(select(rows, place=name), key=lambda row: row["tokens_per_call"])]


def _draw_strip(axes: list[Axes], rows: Rows) -> None:
    lines = _off_axes(rows)
    quantities = ("tokens_per_call", *(q for q in OFF_AXES if any(row[q] is not None for row in lines)))
    for panel, quantity in zip(axes, quantities, strict=False):
        for y, row in enumerate(lines):
            if row[quantity] is None:
                continue
            colour, marker = PLACES[row["place"]]
            size = 8 if marker == "*" else 5
            face = "white" if row["place"] == UNKNOWN else colour
            panel.plot([row[f"{quantity}_lower"], row[f"{quantity}_upper"]], [y, y], color=colour, lw=1.3)
            panel.plot(row[quantity], y, marker=marker, color=colour, markersize=size, ls="none", mfc=face)
        own = [row[quantity] for row in lines if row["method"] == PLAIN and row[quantity] is not None]
        if own and quantity != "tokens_per_call":
            panel.axvline(own[0], color=style.BLACK, lw=0.9, ls=":")
        panel.set_ylim(len(lines) - 0.4, -0.6)
        panel.set_yticks(range(len(lines)), [row["method"] for row in lines] if quantity == "tokens_per_call" else [])
        panel.set_xlabel({"tokens_per_call": "tokens per target call"}.get(quantity, OFF_AXES.get(quantity, "")))
        panel.grid(axis="y", visible=False)
        panel.tick_params(axis="y", length=0)
        panel.axhline(len(select(lines, place=LOSSLESS)) - 0.5, color=style.GREY, lw=0.7)
    for panel in axes[len(quantities) :]:
        panel.axis("off")
    axes[0].set_title("speed alone: lossless (stars), and without a known law (circles)", loc="left")


def draw(rows: Rows) -> Picture:
    """Distances above, what has none below."""
    from matplotlib.figure import Figure as New

    known = panels(rows)
    lines = len(_off_axes(rows))
    figure = New(figsize=(12.6, 6.3 + 0.19 * lines), layout="constrained")
    parts: Any = figure.subfigures(2, 1, height_ratios=(5.6, 1.2 + 0.19 * lines), hspace=0.03)
    above, below = parts
    for panel, quantity in zip(above.subplots(1, max(len(known), 1), squeeze=False)[0], known, strict=False):
        _draw_distance(panel, rows, quantity)
    _draw_strip(list(below.subplots(1, 3, width_ratios=(2.2, 1.4, 1.4))), rows)
    names = distinct(select(rows, place=LAW), "method")
    marks = [name for name in LOOKS if name in names] + [name for name in names if name not in LOOKS]
    handles = [Line2D([], [], label=name, **({"linewidth": 1.0} | _mark(name))) for name in marks]
    above.legend(handles=handles, loc="outside lower center", ncols=6, fontsize=8)
    return figure


def least(rows: Rows, size: float) -> tuple[Row, Rows]:
    """At a size: the row of least KL a token, and the other rows whose interval reaches below its upper end."""
    cell = sorted(
        (row for row in shown(rows, "kl_output_target") if row["size"] == size), key=lambda r: r["kl_output_target"]
    )
    first = cell[0]
    return first, [row for row in cell[1:] if row["kl_output_target_lower"] <= first["kl_output_target_upper"]]


def no_faster(rows: Rows) -> tuple[Rows, Rows]:
    """Rows with a distance that make no more tokens per call than lossless block verification, and all of them."""
    cell = shown(rows, "kl_output_target")
    block = select(rows, method=BLOCK)
    slow = [row for row in cell if block and row["tokens_per_call"] <= block[0]["tokens_per_call"]]
    return slow, cell


def _sizes(rows: Rows) -> list[float]:
    return sorted(size for size in distinct(shown(rows, "kl_output_target"), "size") if size is not None)


def claim(rows: Rows) -> str:
    """The least KL at the least and the greatest size, and what is no faster than a lossless rule."""
    parts = []
    sizes = _sizes(rows)
    for size in dict.fromkeys((*sizes[:1], *sizes[-1:])):
        first, near = least(rows, size)
        uniform = select(rows, method=UNIFORM, size=size)
        share = first["kl_output_target"] / uniform[0]["kl_output_target"] if uniform else None
        beside = "" if share is None else f", {share:.2f} times uniform's"
        names = f"; not told apart: {', '.join(row['method'] for row in near)}" if near else ""
        parts.append(f"at t = {size:g} {first['method']} ({first['kl_output_target']:.4f}{beside}{names})")
    fast = max(select(rows, place=LOSSLESS), key=lambda row: row["tokens_per_call"])
    slow, of = no_faster(rows)
    return (
        f"Least KL a token of the rules matched to equal tokens per call: {'; '.join(parts)}. The fastest lossless "
        f"method is {fast['method']}, {fast['tokens_per_call']:.2f} tokens a call; {len(slow)} of {len(of)} relaxed "
        "points are no faster than lossless block verification."
    )


def missing(rows: Rows) -> str:
    """What the report does not have, in words; empty if nothing."""
    absent = [DISTANCES[q].split(" (")[0] for q in DISTANCES if not shown(rows, q)]
    absent += [text for q, text in OFF_AXES.items() if all(row[q] is None for row in rows)]
    names = distinct(rows, "method")
    methods = [name for name in (*LOOKS, *ALSO) if name not in names]
    beyond = [f"{row['method']} at t = {row['size']:g}" for row in select(rows, place=OUT_OF_REACH)]
    endless = [
        row["method"] for q in DISTANCES for row in select(rows, place=LAW) if row[q] is not None and math.isinf(row[q])
    ]
    words = [
        f"{head}: {', '.join(dict.fromkeys(found))}. "
        for head, found in (
            ("Columns not in this report", absent),
            ("Methods not in it", methods),
            ("Speeds out of reach", beyond),
            ("Infinite, not drawn", endless),
        )
        if found
    ]
    return "".join(words)


def caption(rows: Rows) -> str:
    """Settings, kinds of numbers, what is left out."""
    one = rows[0]
    return (
        f"Embedded pair {one['pair']}, draft {one['draft']}, guidance {one['guidance']:g}, L = {one['length']}, "
        f"{one['images']} images a point, seed {one['seed']}; committed comparison report. Above: estimates from exact "
        f"likelihood ratios, 95 % intervals both ways; curves join sizes t = "
        f"{', '.join(f'{s:g}' for s in _sizes(rows))} (shares of the way from lossless to accepting every draft, at "
        "matched predicted tokens per call). Below: lossless methods (distance 0 by proof) and methods without a "
        "likelihood, whose law, hence distance, is NOT known; dotted: lossless chains; the judge is a small "
        "classifier. Calls of the target alone: trees and feature chains have another drafter, Jacobi none. "
        f"{missing(rows)}"
    )


register(
    Figure(
        name="every_method_on_images",
        title="Every method on one image pair: distance against speed, and speed alone where no law is known",
        claim=claim,
        caption=caption,
        build=build,
        draw=draw,
        uses=("paper_figures/quality_against_length.py", "validate/reports"),
        order=65,
        group="real images",
    )
)
