"""Quality against accepted length for COOL-SD and uniform relaxation: COOL-SD's main plot, with distances of laws.

Above, the embedded image pair, from the comparison report in `validate/reports` (`python -m validate compare` makes
one): whole-image TV, KL per token, Fréchet distance and a judge's accuracy, with intervals. Below, the same curves on
a small grid image whose 4,096 sequences can be enumerated: exact. The curves to look at are uniform (UniformRSD) and
the two readings of COOL-SD: as reconstructed, and with max(1, ω_i).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import simulate
import theory
from paper_figures import pairs, style
from paper_figures.registry import Context, Figure, Row, Rows, register
from paper_figures.reports import interval, newest_report
from paper_figures.tables import column, distinct, select
from theory.comparison import block_families

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

HEIGHT, WIDTH, COLOURS, LENGTH, DISTANCE = 3, 4, 2, 4, 0.2
TOKENS = HEIGHT * WIDTH
SIZES, QUICK_SIZES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9), (0.3, 0.7)
REAL, GRID = "image pair", "grid"
LOSSLESS, BLOCK = "lossless", "lossless block"
UNIFORM, COOL, FLOORED, CAPPED = "uniform", "COOL-SD, no floor", "COOL-SD, floored", "capped excess"
LABELS = {
    LOSSLESS: "lossless",
    UNIFORM: "uniform (UniformRSD)",
    COOL: "COOL-SD, as reconstructed",
    FLOORED: "COOL-SD, floored",
    BLOCK: "lossless block (this project)",
    CAPPED: "capped block (this project)",
}
"""Method, as in the report → label."""
LOOKS: dict[str, dict[str, Any]] = {
    LOSSLESS: {"color": style.BLACK, "marker": "*", "markersize": 9, "linestyle": "none", "clip_on": False},
    UNIFORM: style.MARKS["uniform"],
    COOL: style.MARKS["annealed, no floor"],
    FLOORED: style.MARKS["annealed, floored"],
    BLOCK: {"color": style.GREEN, "marker": "*", "markersize": 9, "linestyle": "none", "clip_on": False},
    CAPPED: {"color": style.GREEN, "marker": "^", "linestyle": "-."},
}
QUANTITIES = ("image_tv", "kl_output_target", "kl_target_output", "predictive_tv", "judge_accuracy", "frechet_distance")
PANELS = {
    (REAL, "image_tv"): "TV of a whole image (estimate)",
    (REAL, "kl_output_target"): "KL(out‖target) a token (estimate)",
    (REAL, "judge_accuracy"): "images the judge recognises",
    (REAL, "frechet_distance"): "Fréchet distance (no interval)",
    (GRID, "image_tv"): "TV of a whole image (exact)",
    (GRID, "kl_output_target"): "KL(out‖target) a token (exact)",
    (GRID, "kl_target_output"): "KL(target‖out) a token (exact)",
    (GRID, "predictive_tv"): "predictive TV a token (exact)",
}


def _real() -> Rows:
    report = newest_report("compare")
    settings = {name: report["settings"][name] for name in ("pair", "draft", "guidance", "length", "images", "seed")}
    rows: Rows = []
    for found in report["rows"]:
        if found["method"] in LABELS and not found.get("out_of_reach"):
            row: Row = {"part": REAL, "method": found["method"], "size": found["size"]} | settings | {"tokens": None}
            row |= interval(found, "tokens_per_call")
            for name in QUANTITIES:
                row |= interval(found, name)
            rows.append(row)
    return rows


def _grid(context: Context) -> Rows:
    rng = context.rng("grid")
    target = simulate.potts_grid(HEIGHT, WIDTH, COLOURS, rng, coupling=1.0)
    pair = pairs.Pair("Potts grid", 0, DISTANCE, target, simulate.make_draft(target, DISTANCE, rng, TOKENS))
    scale = pairs.Scale(pairs.tokens_per_call(pair, LENGTH, TOKENS))
    known = theory.schedule_families(LENGTH)
    families: dict[str, Any] = {UNIFORM: known["uniform"], COOL: known["annealed, no floor"]}
    families |= {FLOORED: known["annealed, floored"], CAPPED: block_families(LENGTH)[CAPPED]}
    fixed: dict[str, Any] = {LOSSLESS: theory.Verifier(theory.Lossless()), BLOCK: theory.block(LENGTH)}
    found: list[tuple[str, float | None, Any]] = [(name, None, verifier) for name, verifier in fixed.items()]
    sizes = QUICK_SIZES if context.quick else SIZES
    lossless_block = float(scale.measure(fixed[BLOCK]))
    for name, family in families.items():
        for t in sizes:
            wanted = scale.lossless + t * (scale.everything - scale.lossless)
            if name != CAPPED or wanted > lossless_block:
                found.append((name, t, scale.at(family, t)))
    rows: Rows = []
    for name, size, verifier in found:
        numbers = pairs.sequence_numbers(pair, verifier, LENGTH, TOKENS)
        numbers["image_tv"] = numbers["tv"]
        row: Row = {"part": GRID, "method": name, "size": size, "pair": f"{HEIGHT} × {WIDTH} grid"}
        row |= {"draft": f"TV {DISTANCE:g}", "guidance": None, "length": LENGTH, "images": None}
        row |= {"seed": context.seed, "tokens": TOKENS} | interval(numbers, "tokens_per_call")
        for quantity in QUANTITIES:
            row |= interval(numbers, quantity)
        rows.append(row)
    return rows


def build(context: Context) -> Rows:
    """One row per part, method and size."""
    return _real() + context.cell(GRID, partial(_grid, context))


def draw(rows: Rows) -> Picture:
    """The image pair above, the grid below; tokens per call across."""
    figure, axes = style.subplots(2, 4, 12.6, 6.2)
    for panel, ((part, quantity), title) in zip(axes.flat, PANELS.items(), strict=True):
        for method, mark in LOOKS.items():
            cell = [row for row in select(rows, part=part, method=method) if row[quantity] is not None]
            cell.sort(key=lambda row: row["tokens_per_call"])
            x, y = column(cell, "tokens_per_call"), column(cell, quantity)
            ends = [[row[quantity] - row[f"{quantity}_lower"] for row in cell]]
            ends += [[row[f"{quantity}_upper"] - row[quantity] for row in cell]]
            if part == REAL:
                panel.errorbar(x, y, ends, elinewidth=0.8, **mark)
            else:
                panel.plot(x, y, **mark)
        panel.set_title(title, fontsize=9)
        panel.set_xlabel("tokens per target call")
        if quantity not in ("judge_accuracy", "frechet_distance"):
            panel.set_ylim(bottom=0)
    axes[0, 0].set_ylabel("embedded image pair")
    axes[1, 0].set_ylabel(f"{HEIGHT} × {WIDTH} grid, enumerated")
    style.legend_below(figure, {LABELS[method]: mark for method, mark in LOOKS.items()}, 6)
    return figure


def beside_uniform(rows: Rows, part: str, method: str, quantity: str) -> dict[float, float]:
    """Size → the method's number over uniform's at the same size, hence at equal predicted tokens per call."""
    uniform = {row["size"]: row[quantity] for row in select(rows, part=part, method=UNIFORM)}
    cell = select(rows, part=part, method=method)
    return {row["size"]: row[quantity] / uniform[row["size"]] for row in cell if row["size"] in uniform}


def _range(values: dict[float, float]) -> str:
    return f"{min(values.values()):.2f}–{max(values.values()):.2f}"


def overlapping(rows: Rows, quantity: str) -> tuple[int, int]:
    """On the image pair: how many COOL-SD intervals of a quantity overlap uniform's at the same size, of how many."""
    uniform = {row["size"]: row for row in select(rows, part=REAL, method=UNIFORM)}
    pairs_ = [(r, uniform[r["size"]]) for m in (COOL, FLOORED) for r in select(rows, part=REAL, method=m)]
    lower, upper = f"{quantity}_lower", f"{quantity}_upper"
    return sum(a[lower] <= b[upper] and b[lower] <= a[upper] for a, b in pairs_), len(pairs_)


def claim(rows: Rows) -> str:
    """COOL-SD over uniform at equal speed, in law and in what images look like."""
    law = {
        (part, m): _range(beside_uniform(rows, part, m, "kl_output_target"))
        for part in (REAL, GRID)
        for m in (COOL, FLOORED)
    }
    tv = {part: _range(beside_uniform(rows, part, FLOORED, "image_tv")) for part in (REAL, GRID)}
    same, of = overlapping(rows, "judge_accuracy")
    return (
        f"At equal tokens per call COOL-SD as reconstructed has {law[REAL, COOL]} times uniform's KL a token on "
        "images and "
        f"{law[GRID, COOL]} on the grid; floored, {law[REAL, FLOORED]} and {law[GRID, FLOORED]}, and {tv[REAL]} and "
        f"{tv[GRID]} "
        f"times its whole-image TV. The judge's accuracy does not tell them apart: {same} of {of} intervals overlap "
        "uniform's."
    )


def caption(rows: Rows) -> str:
    """Settings, kinds of numbers."""
    real, grid = (select(rows, part=part)[0] for part in (REAL, GRID))
    sizes = [s for s in distinct(select(rows, part=REAL), "size") if s is not None]
    return (
        f"Above: embedded pair {real['pair']}, draft {real['draft']}, guidance {real['guidance']:g}, L = "
        f"{real['length']} drafts, "
        f"{real['images']} images a point, seed {real['seed']}, read from the committed comparison report; strengths "
        "are matched "
        f"to equal predicted tokens per call (sizes t = {', '.join(f'{s:g}' for s in sizes)}: shares of the way from "
        "lossless to "
        "accepting every draft), so points of one size lie above each other but for sampling. TV and KL: estimates "
        "from exact "
        "likelihood ratios, bars 95 % intervals; the Fréchet distance of so few images is noisy and biased, the "
        "judge a small "
        f"classifier. Below: exact, {grid['tokens']} tokens of {COLOURS} colours, draft at mean TV {DISTANCE:g}, L = "
        f"{grid['length']}, seed {grid['seed']}. Accepted length in the paper counts the target's own token: tokens "
        "per call here."
    )


register(
    Figure(
        name="quality_against_length",
        title="Quality against accepted length: on images COOL-SD as reconstructed is behind uniform relaxation",
        claim=claim,
        caption=caption,
        build=build,
        draw=draw,
        uses=("theory", "simulate", "validate/reports"),
        order=62,
        group="papers",
    )
)
