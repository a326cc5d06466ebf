"""Does annealing's verdict depend on how many tokens are drafted, or on how many there are to choose from?

Floored annealing beside uniform relaxation at equal speed, for draft lengths L and vocabularies V: bound, exact TV and
KL of one round where all V^(L+1) outputs can be enumerated, and the predictive TV a token of long sequences, which is
the mean step bias [proved] and needs no enumeration between Markov chains.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import theory
from paper_figures import pairs, style
from paper_figures.registry import Context, Figure, Row, Rows, register
from paper_figures.tables import distinct, group, select

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

LENGTHS, QUICK_LENGTHS = (2, 3, 4, 6, 8), (2, 4)
VOCABULARIES, QUICK_VOCABULARIES = (2, 4, 8, 16), (2, 4)
LARGEST = 2**16
"""Most outputs of a round enumerated."""
TOKENS = 48
DISTANCE = 0.3
KINDS = ("independent", "Markov", "Dirichlet tree")
SIZES = (0.25, 0.75)
SCHEDULE = "annealed, floored"
QUANTITIES = {
    "bound": "one round: bound B",
    "tv": "one round: exact TV",
    "kl_output_target": "one round: KL(out‖target)",
    "step_bias": f"{TOKENS} tokens: predictive TV",
}


def _cell(context: Context, kind: str, length: int, vocabulary: int) -> Rows:
    families = theory.schedule_families(length)
    pair = pairs.pair(kind, 0, context.rng("pair", kind, length, vocabulary), vocabulary, length + 1, DISTANCE)
    rows: Rows = []

    def add(size: float, quantity: str, value: float, uniform: float) -> None:
        row: Row = {"kind": kind, "length": length, "vocabulary": vocabulary, "distance": DISTANCE}
        row |= {"seed": context.seed, "size": size, "quantity": quantity}
        rows.append(row | {"value": value, "uniform": uniform, "ratio": value / uniform})

    if vocabulary ** (length + 1) <= LARGEST:
        scale = pairs.Scale(pairs.accepted_length(pair, length))
        for size in SIZES:
            ours, theirs = (
                pairs.round_numbers(pair, scale.at(families[name], size), length) for name in (SCHEDULE, "uniform")
            )
            for quantity in ("bound", "tv", "kl_output_target"):
                add(size, quantity, ours[quantity], theirs[quantity])
    if kind == "Markov":
        scale = pairs.Scale(pairs.tokens_per_call(pair, length, TOKENS))
        for size in SIZES:
            found = (
                theory.analyse_sequence(pair.target, pair.draft, scale.at(families[name], size), length, TOKENS)
                for name in (SCHEDULE, "uniform")
            )
            add(size, "step_bias", *(float(a.tv_bound) / TOKENS for a in found))
    return rows


def build(context: Context) -> Rows:
    """One row per pair, size and quantity."""
    lengths = QUICK_LENGTHS if context.quick else LENGTHS
    vocabularies = QUICK_VOCABULARIES if context.quick else VOCABULARIES
    keys = [
        (kind, length, size)
        for kind in KINDS
        for length in lengths
        for size in vocabularies
        if kind == "Markov" or size ** (length + 1) <= LARGEST
    ]
    return [row for key in context.progress(keys) for row in context.cell(key, partial(_cell, context, *key))]


def means(rows: Rows, quantity: str, size: float) -> dict[tuple[int, int], tuple[float, float, float]]:
    """(L, V) → geometric mean of the ratio to uniform, least and greatest."""
    cells = group(select(rows, quantity=quantity, size=size), "length", "vocabulary")
    return {key: pairs.geometric_mean_and_range([row["ratio"] for row in cell]) for key, cell in cells.items()}


def _text(cell: tuple[float, float, float] | None) -> str:
    """What is written in a cell; no range where there is one pair."""
    if cell is None:
        return ""
    text = style.ratio_text(*cell)
    return text if cell[1] < cell[2] else text.split("\n")[0]


def draw(rows: Rows) -> Picture:
    """Quantities across, sizes down; in each, L down and V across."""
    lengths, vocabularies = sorted(distinct(rows, "length")), sorted(distinct(rows, "vocabulary"))
    figure, axes = style.subplots(len(SIZES), len(QUANTITIES), 11.5, 6.0)
    for i, size in enumerate(SIZES):
        for panel, (quantity, label) in zip(axes[i], QUANTITIES.items(), strict=True):
            cells = means(rows, quantity, size)
            values = [[cells.get((length, v), (math.nan,))[0] for v in vocabularies] for length in lengths]
            texts = [[_text(cells.get((length, v))) for v in vocabularies] for length in lengths]
            names = ([f"L = {length}" for length in lengths], [f"V = {v}" for v in vocabularies])
            image = style.ratio_table(panel, values, *names, texts)
            panel.set_title(f"{label}, t = {size:g}", fontsize=8.5)
    bar = figure.colorbar(image, ax=axes, shrink=0.8, aspect=30, pad=0.01, ticks=[-1, -0.5, 0, 0.5, 1])
    bar.ax.set_yticklabels(["≤ .5", ".71", "1", "1.41", "≥ 2"])
    bar.set_label("ratio to uniform (below 1: better)")
    return figure


def better(rows: Rows, quantity: str, size: float) -> tuple[int, int]:
    """In how many cells (L, V) the mean ratio is clearly below one (`pairs.EVEN`), of how many."""
    cells = means(rows, quantity, size).values()
    return sum(mean < 1 - pairs.EVEN for mean, _, _ in cells), len(cells)


def claim(rows: Rows) -> str:
    """In how many cells annealing wins, quantity by quantity."""
    names = {"bound": "bound", "tv": "exact TV", "kl_output_target": "KL(out‖target)", "step_bias": "predictive TV"}
    words = "; ".join(
        f"{name} {' and '.join(f'{better(rows, q, t)[0]} of {better(rows, q, t)[1]} (t = {t:g})' for t in SIZES)}"
        for q, name in names.items()
    )
    return (
        f"In how many settings (L, V) floored annealing beats uniform relaxation at equal speed, on average: {words}."
    )


def caption(rows: Rows) -> str:
    """Settings and kinds of numbers."""
    return (
        "Each cell: floored annealing over uniform relaxation at equal speed, geometric mean over one pair of each "
        f"kind ({', '.join(KINDS)}; mean TV {DISTANCE:g}, seed {rows[0]['seed']}), below it least and greatest; * "
        f"marks means below {1 - pairs.EVEN:g}. Predictive TV over {TOKENS} tokens: one Markov pair each. Speed: "
        "accepted length of a round, or tokens per call of the sequence, the share t of the way from lossless to "
        f"accepting all. Blank: more than {LARGEST} outputs to enumerate. B is a proved bound on TV, the rest exact. A "
        "draft is accepted with min(1, ω_i p/q), ω_i = max(1, c e^(−.7i)) for annealing."
    )


register(
    Figure(
        name="annealing_sizes",
        title="At every draft length and vocabulary annealing lowers the bound; near lossless it raises a round's KL",
        claim=claim,
        caption=caption,
        build=build,
        draw=draw,
        uses=("theory", "simulate"),
        order=25,
        group="many rounds",
    )
)
