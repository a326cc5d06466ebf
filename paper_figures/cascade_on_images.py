"""CASCADE's two properties on the embedded image pair's draft trees, and what relaxing by them buys there.

h_v is the target's guided hidden state at node v of a draft tree, p_v the law of the next token behind v.
*Breadth*, siblings that could stand for each other: cos(h_u, h_v) of two children of one node should be high, and
TV(p_u, p_v) low with it. *Depth*, convergence: the same drafted tokens read behind two siblings; what is compared is
the d-th token behind the two. The control are *unrelated* nodes: the same node number of another image's tree.

A breadth rule accepts x where the class of x, the siblings whose cosine is at least τ_b, has mass enough under the
target p against the drafter's q; a depth rule (τ_d) takes a refused sibling's subtree over to one whose state is alike.
Exact laws of one node with two children compare the breadth rule with COOL-SD (at one node: one ω) and LANTERN++ at
equal probability that a child is accepted.

Source: reconstructed after CASCADE (2605.07230); the report of `python -m validate cascade`, where each number is
defined (`validate.cascade`).

>>> label({"tau_b": 0.9, "tau_d": -1.0})
'τ_b .9, τ_d −1'
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from paper_figures import style
from paper_figures.registry import Context, Figure, Row, Rows, register
from paper_figures.reports import interval, newest_report
from paper_figures.tables import column, distinct, select

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture

BIN, MEAN, NODE, IMAGE, TRAINING = "bin", "mean", "node", "image", "training"
SIBLINGS, UNRELATED, BEHIND = "siblings", "unrelated nodes", "same tokens behind two siblings"
TARGET, PLAIN = "target, no drafting", "lossless"
BREADTH, DEPTH, BOTH = "CASCADE-style, breadth", "CASCADE-style, depth", "CASCADE-style, both"
COOL, LANTERN = "COOL-SD, floored", "LANTERN++, G*"
ONE_NODE = {BREADTH: BREADTH, "COOL-SD (one node: uniform)": COOL, LANTERN: LANTERN}
"""Method of the report's nodes → method of its images."""
QUANTITIES = (
    "cosine", "tv", "accepted", "kl_output_target", "tokens_per_call", "accepted_depth", "nll_per_token",
    "judge_accuracy",
)  # fmt: skip
KEYS = ("part", "group", "setting", "tau", "least", "most", "pairs", "share")
FEW = 20
"""Pairs below which a bin's TV is not drawn."""
GROUPS: dict[str, dict[str, Any]] = {
    SIBLINGS: {"color": style.BLUE, "linestyle": "-", "marker": "s"},
    UNRELATED: {"color": style.BLACK, "linestyle": ":", "marker": "o"},
    BEHIND: {"color": style.RED, "linestyle": "--", "marker": "^"},
}
METHODS: dict[str, dict[str, Any]] = {
    PLAIN: {"color": style.BLACK, "marker": "*", "linestyle": "none", "markersize": 10},
    COOL: {"color": style.BLUE, "marker": "s", "linestyle": "-"},
    LANTERN: {"color": style.ORANGE, "marker": "D", "linestyle": "--"},
    BREADTH: {"color": style.RED, "marker": "o", "linestyle": "-."},
    DEPTH: {"color": style.PURPLE, "marker": "v", "linestyle": ":"},
    BOTH: {"color": style.GREEN, "marker": "X", "linestyle": "none", "markersize": 7},
}
SIGNS = {"delta": "δ", "lambda": "λ", "tau_b": "τ_b", "tau_d": "τ_d"}


def label(setting: dict[str, float]) -> str:
    """Strengths in signs."""
    number = {name: f"{value:g}".replace("-", "−").removeprefix("0") for name, value in setting.items()}
    return ", ".join(f"{SIGNS.get(name, name)} {value}" for name, value in number.items())


def _row(part: str, group: str, found: dict[str, Any], **own: Any) -> Row:
    row: Row = dict.fromkeys(KEYS) | {"part": part, "group": group} | own
    for name in QUANTITIES:
        row |= {key: None if v is None else float(v) for key, v in interval(found, name).items()}
    return row


def _pairs(properties: dict[str, Any]) -> Rows:
    """Means, with the distance d of tokens behind two siblings as setting; and bins, all d ≥ 1 together."""
    edges, behind = properties["edges"], properties["convergence_by_distance"]
    parts = {SIBLINGS: [properties["siblings"]], UNRELATED: [properties["unrelated"]]}
    parts[BEHIND] = [part for d, part in behind.items() if int(d) >= 1]
    rows = [_row(MEAN, name, parts[name][0], pairs=parts[name][0]["pairs"]) for name in (SIBLINGS, UNRELATED)]
    rows += [
        _row(MEAN, BEHIND, p, pairs=p["pairs"], setting=f"d = {d}") for d, p in behind.items() if int(d) >= 1
    ]  # fmt: skip
    for name, found in parts.items():
        counts = np.array([part["histogram"] for part in found])
        tv = np.array([[x or 0.0 for x in part["tv_by_bin"]] for part in found])
        pooled, total = counts.sum(axis=0), int(counts.sum())
        for i, n in enumerate(pooled.tolist()):
            mean = float((counts * tv)[:, i].sum() / n) if n else None
            rows.append(_row(BIN, name, {"tv": mean}, least=edges[i], most=edges[i + 1], pairs=n, share=n / total))
    return rows


def rows_of(report: dict[str, Any]) -> Rows:
    """Rows of a report; a part it does not have gives none."""
    rows: Rows = _pairs(report["properties"]) if "properties" in report else []
    for found in report.get("nodes", ()):
        if found["method"] in ONE_NODE:
            rows.append(_row(NODE, ONE_NODE[found["method"]], found, tau=found["tau_b"]))
    for found in report.get("images", ()):
        setting = found.get("setting") or {}
        rows.append(_row(IMAGE, found["method"], found, setting=label(setting) or None, tau=setting.get("tau_b")))
    for found in report.get("training", {}).get("rows", ()):
        words = found["verifier"].replace("tau_b", "τ_b")
        rows.append(_row(TRAINING, words, found, setting=f"weight {found['cascade_weight']:g}"))
    if not rows:
        raise ValueError("the report has none of: properties, nodes, images, training; run python -m validate cascade")
    settings = {name: report["settings"].get(name) for name in ("pair", "guidance", "tree", "images", "seed")}
    return [row | settings for row in rows]


def build(context: Context) -> Rows:
    """Rows of the newest report."""
    return rows_of(newest_report("cascade"))


def _bars(cell: Rows, quantity: str) -> list[list[float]]:
    low = [row[quantity] - row[f"{quantity}_lower"] for row in cell]
    return [low, [row[f"{quantity}_upper"] - row[quantity] for row in cell]]


def _cross(panel: Axes, cell: Rows, x: str, y: str, mark: dict[str, Any]) -> None:
    """A curve with both intervals."""
    panel.errorbar(column(cell, x), column(cell, y), _bars(cell, y), _bars(cell, x), **({"elinewidth": 0.7} | mark))


def _draw_pairs(shares: Axes, laws: Axes, rows: Rows) -> None:
    for name, mark in GROUPS.items():
        cell = select(rows, part=BIN, group=name)
        if not cell:
            continue
        edges = [cell[0]["least"], *column(cell, "most")]
        shares.stairs(column(cell, "share"), edges, color=mark["color"], ls=mark["linestyle"], lw=1.5, label=name)
        drawn = [row for row in cell if row["pairs"] >= FEW]
        middle = [(row["least"] + row["most"]) / 2 for row in drawn]
        laws.plot(middle, column(drawn, "tv"), **(mark | {"markersize": 3}), lw=1.0, label=name)
        for row in select(rows, part=MEAN, group=name):
            _cross(laws, [row], "cosine", "tv", mark | {"markersize": 7, "mfc": "white", "linestyle": "none"})
    shares.set(xlabel="cosine of two states", title="a  share of pairs, by cosine (bins of .05)", ylim=(0, None))
    shares.legend(loc="upper left", title="states of")
    laws.set(xlabel="cosine of two states", title="b  TV of the next-token laws behind (hollow: means)", ylim=(0, 1.02))


def _draw_images(panel: Axes, rows: Rows) -> None:
    cells = select(rows, part=IMAGE)
    for name, mark in METHODS.items():
        cell = select(cells, group=name)
        if cell:
            _cross(panel, cell, "tokens_per_call", "nll_per_token", mark | {"alpha": 0.95})
    for row in select(cells, group=TARGET):
        panel.axhspan(row["nll_per_token_lower"], row["nll_per_token_upper"], color="#E4E4E4", zorder=0)
        panel.axhline(row["nll_per_token"], color=style.GREY, lw=0.9)
        panel.text(0.99, row["nll_per_token_lower"], "the target's own images", transform=panel.get_yaxis_transform(),
                   ha="right", va="bottom", fontsize=7)  # fmt: skip
    for row in select(cells, group=BREADTH):
        x, y = row["tokens_per_call"], row["nll_per_token"]
        panel.annotate(row["setting"], (x, y), (-4, 4), textcoords="offset points", ha="right", fontsize=7)
    panel.set(xlabel="tokens per target call", ylabel="nats a token under the target")
    panel.set_title("c  whole images: speed and likelihood")


def _draw_nodes(panel: Axes, rows: Rows, quantity: str, title: str) -> None:
    for name in (COOL, LANTERN, BREADTH):
        cell = sorted(select(rows, part=NODE, group=name), key=lambda row: -row["tau"])
        places = np.arange(len(cell)) + {COOL: 0.0, LANTERN: 0.09, BREADTH: -0.09}[name]
        panel.errorbar(places, column(cell, quantity), _bars(cell, quantity), elinewidth=0.8, **METHODS[name])
    cell = sorted(select(rows, part=NODE, group=BREADTH), key=lambda row: -row["tau"])
    ticks = [f"{row['tau']:g}".replace("-", "−") + f"\n{row['accepted']:.3f}" for row in cell]
    panel.set_xticks(range(len(cell)), ticks)
    panel.set(xlabel="τ_b, and below it the probability that a child is accepted", title=title, ylim=(0, None))


def _draw_training(panel: Axes, rows: Rows) -> None:
    cells = select(rows, part=TRAINING)
    weights = distinct(cells, "setting")
    for verifier, mark in zip(distinct(cells, "group"), (METHODS[PLAIN], METHODS[BREADTH]), strict=False):
        cell = select(cells, group=verifier)
        x = [weights.index(row["setting"]) for row in cell]
        panel.errorbar(x, column(cell, "accepted_depth"), _bars(cell, "accepted_depth"), elinewidth=0.9,
                       **(mark | {"linestyle": "none"}), label=verifier)  # fmt: skip
    panel.set_xticks(range(len(weights)), weights)
    panel.set(xlim=(-0.6, len(weights) - 0.4), ylim=(0, None), ylabel="accepted drafts a round")
    panel.set_title("f  drafters trained with CASCADE's loss (two short runs)")
    panel.legend(loc="lower left")


def draw(rows: Rows) -> Picture:
    """Properties, images, nodes, training; a part that the report does not have is an empty panel that says so."""
    figure, axes = style.subplots(2, 3, 13.2, 7.6)
    panels = axes.ravel()
    have = set(distinct(rows, "part"))
    if BIN in have:
        _draw_pairs(panels[0], panels[1], rows)
    if IMAGE in have:
        _draw_images(panels[2], rows)
    if NODE in have:
        _draw_nodes(panels[3], rows, "tv", "d  one node, equal acceptance: TV (exact)")
        _draw_nodes(panels[4], rows, "kl_output_target", "e  one node, equal acceptance: KL(out‖target), nats")
    if TRAINING in have:
        _draw_training(panels[5], rows)
    for panel, part in zip(panels, (BIN, BIN, IMAGE, NODE, NODE, TRAINING), strict=True):
        if part not in have:
            panel.axis("off")
            panel.text(0.5, 0.5, "not in this report", ha="center", color=style.GREY)
    style.legend_below(figure, METHODS, 6)
    return figure


def mean_of(rows: Rows, group: str) -> Rows:
    """Means with intervals: one row for siblings and unrelated nodes, one a distance for tokens behind two siblings."""
    return select(rows, part=MEAN, group=group)


def properties_hold(rows: Rows) -> tuple[bool, bool]:
    """Whether breadth and depth hold: cosines clearly above the control's, and laws clearly closer.

    Breadth: the interval of siblings' cosine lies above that of unrelated nodes, and of TV below. Depth: the same for
    every distance d ≥ 1 against siblings themselves: states come closer once the same tokens follow.
    """
    (siblings,), (control,), behind = (mean_of(rows, name) for name in (SIBLINGS, UNRELATED, BEHIND))

    def closer(a: Row, b: Row) -> bool:
        return bool(a["cosine_lower"] > b["cosine_upper"] and a["tv_upper"] < b["tv_lower"])

    return closer(siblings, control), bool(behind) and all(closer(row, siblings) for row in behind)


def node_ratios(rows: Rows, rival: str, quantity: str) -> list[float]:
    """The breadth rule's distance over a rival's at equal acceptance, one a threshold."""
    theirs = {row["tau"]: row[quantity] for row in select(rows, part=NODE, group=rival)}
    return [
        row[quantity] / theirs[row["tau"]] for row in select(rows, part=NODE, group=BREADTH) if row["tau"] in theirs
    ]


def behind_cool(rows: Rows) -> tuple[int, int]:
    """Breadth settings on images that some COOL-SD setting beats in speed and, interval against interval, in nats."""
    cool, ours = select(rows, part=IMAGE, group=COOL), select(rows, part=IMAGE, group=BREADTH)
    beaten = [
        any(c["tokens_per_call"] >= row["tokens_per_call"] and c["nll_per_token_upper"] < row["nll_per_token_lower"]
            for c in cool)
        for row in ours
    ]  # fmt: skip
    return sum(beaten), len(ours)


def depth_like_target(rows: Rows) -> tuple[int, Rows]:
    """How many depth settings' nats have an interval that meets that of the target's own images; and all of them."""
    ours, target = select(rows, part=IMAGE, group=DEPTH), select(rows, part=IMAGE, group=TARGET)
    lower, upper = "nll_per_token_lower", "nll_per_token_upper"
    return sum(row[lower] <= t[upper] and t[lower] <= row[upper] for row in ours for t in target), ours


def _range(values: list[float]) -> str:
    return f"{min(values):.1f}–{max(values):.1f}"


def claim(rows: Rows) -> str:
    """Whether the properties hold, and the price of relaxing by them."""
    parts, have = [], distinct(rows, "part")
    if MEAN in have:
        (siblings,), (control,), behind = (mean_of(rows, name) for name in (SIBLINGS, UNRELATED, BEHIND))
        held = ("holds" if yes else "does not hold" for yes in properties_hold(rows))
        close = [row["cosine"] for row in behind]
        parts.append(
            f"Breadth {next(held)} on this pair (mean cosine {siblings['cosine']:.2f}, unrelated nodes "
            f"{control['cosine']:.2f}) and depth {next(held)} ({min(close):.2f}–{max(close):.2f} behind two siblings), "
            f"but siblings' next-token laws are still at TV {siblings['tv']:.2f}."
        )
    if NODE in have:
        parts.append(
            f"At equal acceptance of one node the breadth rule has {_range(node_ratios(rows, COOL, 'tv'))} times "
            f"COOL-SD's TV and {_range(node_ratios(rows, COOL, 'kl_output_target'))} times its KL."
        )
    if IMAGE in have:
        beaten, of = behind_cool(rows)
        parts.append(f"On images COOL-SD beats {beaten} of {of} breadth settings in speed with likelier images.")
        alike, depth = depth_like_target(rows)
        if depth:
            parts.append(
                f"By depth alone: {min(column(depth, 'tokens_per_call')):.2f}–"
                f"{max(column(depth, 'tokens_per_call')):.2f} tokens a call (lossless "
                f"{select(rows, part=IMAGE, group=PLAIN)[0]['tokens_per_call']:.2f}), {alike} of {len(depth)} settings "
                "not told from the target in nats."
            )
    return " ".join(parts)


def caption(rows: Rows) -> str:
    """What is reconstructed, sample sizes, kinds of numbers, what the report lacks."""
    one, have = rows[0], distinct(rows, "part")
    pairs = ", ".join(
        f"{sum(column(mean_of(rows, name), 'pairs')):,} of {name}" for name in GROUPS if mean_of(rows, name)
    )
    lacking = [part for part in (MEAN, NODE, IMAGE, TRAINING) if part not in have]
    trained = (
        "Panel f: two short runs of one training seed, both drafters worse than the shipped one: no verdict on the "
        "loss. "
        if TRAINING in have
        else ""
    )
    return (
        f"The rule is reconstructed (CASCADE's formulas could not be read). Pair {one['pair']}, guidance "
        f"{one['guidance']:g}, {one['tree']}, {one['images']} images, seed {one['seed']}; bars: 95 % intervals, images "
        f"as units. a, b: estimates on lossless decoding's trees ({pairs}; several d are pooled in bins); bins of "
        f"fewer than {FEW} pairs have no TV, and bins no intervals; the depth rule itself sees only the siblings' own "
        "cosine. c: estimates; trees have no closed likelihood, so nats under the target stand in for a distance: too "
        "low is as wrong as too high. d, e: exact laws of two-children nodes at the target's own prefixes, averaged; "
        "single steps, not images; COOL-SD at one node is one ω. "
        f"{trained}{'Not in this report: ' + ', '.join(lacking) + '.' if lacking else ''}"
    )


register(
    Figure(
        name="cascade_on_images",
        title="CASCADE's properties hold on the image pair; relaxing by breadth costs more than COOL-SD",
        claim=claim,
        caption=caption,
        build=build,
        draw=draw,
        uses=("paper_figures/quality_against_length.py", "validate/reports"),
        order=51,
        group="papers",
    )
)
