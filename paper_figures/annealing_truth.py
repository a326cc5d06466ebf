"""Where annealing helps and where it does not: every quantity beside uniform relaxation's at equal speed.

The table holds one row per chain, schedule, size and quantity, with its ratio to uniform; the picture shows geometric
means and ranges over all chains. The last round of a sequence is cut at T tokens, which moves the ratios with T modulo
L + 1: floored annealing is computed at the lengths below T too, for the claim.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import theory
from paper_figures import pairs, style
from paper_figures.registry import Context, Figure, Rows, register
from paper_figures.tables import distinct, group, select

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

ROUND = {"length": 4, "tokens": 5, "vocabulary": 4}
SEQUENCE = {"length": 3, "tokens": 8, "vocabulary": 3}
QUICK_SEQUENCE = SEQUENCE | {"tokens": 6}
SIZES = (0.1, 0.25, 0.5, 0.75, 0.9)
QUICK_SIZES = (0.1, 0.5)
MIDDLE = 0.5
SHORTER = "shorter sequence"
QUICK_FAMILIES = ("Markov", "Dirichlet tree", "Potts grid")
SCHEDULES = ("annealed, floored", "excess, ν = .7", "excess, ν = .2", "annealed, no floor", "reversed")
PANELS = {
    ("one round", "bound"): "one round: bound B",
    ("one round", "tv"): "one round: exact TV",
    ("one round", "kl_output_target"): "one round: KL(out‖target)",
    ("one round", "kl_target_output"): "one round: KL(target‖out)",
    ("sequence", "predictive_tv"): "sequence: predictive TV a token",
    ("sequence", "tv"): "sequence: TV of the whole",
    ("sequence", "kl_output_target"): "sequence: KL(out‖target) a token",
    ("sequence", "kl_target_output"): "sequence: KL(target‖out) a token",
}


def _numbers(part: str, pair: pairs.Pair, verifier: Any, setting: dict[str, int]) -> dict[str, float]:
    if part == "one round":
        return pairs.round_numbers(pair, verifier, setting["length"])
    return pairs.sequence_numbers(pair, verifier, setting["length"], setting["tokens"])


def _beside_uniform(
    context: Context,
    part: str,
    pair: pairs.Pair,
    setting: dict[str, int],
    schedules: Sequence[str],
    sizes: Sequence[float],
) -> Rows:
    if part == "one round":
        scale = pairs.Scale(pairs.accepted_length(pair, setting["length"]))
    else:
        scale = pairs.Scale(pairs.tokens_per_call(pair, setting["length"], setting["tokens"]))
    families = theory.schedule_families(setting["length"])
    rows: Rows = []
    for size in sizes:
        uniform = _numbers(part, pair, scale.at(families["uniform"], size), setting)
        for schedule in schedules:
            numbers = _numbers(part, pair, scale.at(families[schedule], size), setting)
            for quantity, value in numbers.items():
                rows.append(
                    {"part": part, "family": pair.family, "chain": pair.index, "distance": pair.distance}
                    | {"seed": context.seed, "length": setting["length"], "tokens": setting["tokens"]}
                    | {"vocabulary": setting["vocabulary"], "schedule": schedule, "size": size, "quantity": quantity}
                    | {"value": value, "uniform": uniform[quantity], "ratio": value / uniform[quantity]}
                )
    return rows


def _chain(context: Context, part: str, family: str, index: int) -> Rows:
    sequence = QUICK_SEQUENCE if context.quick else SEQUENCE
    setting = ROUND if part == "one round" else sequence
    rng = context.rng("pair", part, family, index)
    pair = pairs.pair(family, index, rng, setting["vocabulary"], setting["tokens"])
    rows = _beside_uniform(context, part, pair, setting, SCHEDULES, QUICK_SIZES if context.quick else SIZES)
    if part == "sequence":
        for tokens in range(setting["length"] + 2, setting["tokens"]):
            other = setting | {"tokens": tokens}
            rows += _beside_uniform(context, SHORTER, pair, other, ("annealed, floored",), (MIDDLE,))
    return rows


def build(context: Context) -> Rows:
    """Chains of every family, one round and whole sequences."""
    counts = {"one round": 1, "sequence": 1} if context.quick else {"one round": 3, "sequence": 2}
    families = QUICK_FAMILIES if context.quick else tuple(pairs.FAMILIES)
    keys = [(part, family, i) for part, count in counts.items() for family in families for i in range(count)]
    return [row for key in context.progress(keys) for row in context.cell(key, partial(_chain, context, *key))]


def draw_panels(rows: Rows, panels: dict[tuple[str, str], str], columns: int) -> Picture:
    """One small table per quantity: schedules down, sizes across, mean and range of the ratio in each cell."""
    cells = {
        key: pairs.geometric_mean_and_range([row["ratio"] for row in cell])
        for key, cell in group(rows, "part", "quantity", "schedule", "size").items()
    }
    sizes, lines = distinct(rows, "size"), len(panels) // columns
    figure, axes = style.subplots(lines, columns, 11.5, 0.6 + 2.6 * lines)
    for panel, ((part, quantity), label) in zip(axes.flat, panels.items(), strict=True):
        table = [[cells[part, quantity, schedule, size] for size in sizes] for schedule in SCHEDULES]
        names = SCHEDULES if panel in axes[:, 0] else ("",) * len(SCHEDULES)
        means = [[cell[0] for cell in line] for line in table]
        texts = [[style.ratio_text(*cell) for cell in line] for line in table]
        image = style.ratio_table(panel, means, names, [f"{size:g}" for size in sizes], texts)
        panel.set_title(label)
        if panel in axes[-1]:
            panel.set_xlabel("size t")
    bar = figure.colorbar(image, ax=axes, shrink=0.8, aspect=30, pad=0.01, ticks=[-1, -0.5, 0, 0.5, 1])
    bar.ax.set_yticklabels(["≤ .5", ".71", "1", "1.41", "≥ 2"])
    bar.set_label("ratio to uniform (below 1: better)")
    return figure


def draw(rows: Rows) -> Picture:
    """One round above, whole sequences below."""
    return draw_panels(rows, PANELS, 4)


def sizes_won(rows: Rows, part: str, quantity: str, schedule: str) -> str:
    """At which sizes the geometric mean of the ratio is clearly below one (`pairs.EVEN`), in words."""
    cells = group(select(rows, part=part, quantity=quantity, schedule=schedule), "size")
    chosen = [(key[0], pairs.geometric_mean([row["ratio"] for row in cell])) for key, cell in cells.items()]
    won = [size for size, mean in chosen if mean < 1 - pairs.EVEN]
    if len(won) == len(chosen):
        return "at every size"
    if not won:
        return "at no size"
    if won == [size for size, _ in chosen if size >= won[0]]:
        return f"only from t = {won[0]:g}"
    return f"only at t = {', '.join(f'{size:g}' for size in won)}"


def by_tokens(rows: Rows, quantity: str) -> str:
    """Geometric mean of floored annealing's ratio at the middle size, for each length T of the sequences, in words."""
    chosen = select(rows, quantity=quantity, schedule="annealed, floored", size=MIDDLE)
    cells = group([row for row in chosen if row["part"] != "one round"], "tokens")
    means = {key[0]: pairs.geometric_mean([row["ratio"] for row in cell]) for key, cell in sorted(cells.items())}
    return ", ".join(f"{mean:.2f} (T = {tokens})" for tokens, mean in means.items())


def spread(rows: Rows, part: str, quantity: str, schedule: str, sizes: tuple[float, ...] | None = None) -> str:
    chosen = select(rows, part=part, quantity=quantity, schedule=schedule)
    ratios = [row["ratio"] for row in chosen if sizes is None or row["size"] in sizes]
    return f"{min(ratios):.2f}–{max(ratios):.2f}"


def claim(rows: Rows) -> str:
    """Sizes at which floored annealing beats uniform, quantity by quantity."""
    floored = "annealed, floored"
    words = {key: sizes_won(rows, *key, floored) for key in PANELS}
    tokens = select(rows, part="sequence")[0]["tokens"]
    return (
        f"Floored annealing beats uniform relaxation on average: bound of one round {words['one round', 'bound']}; "
        f"exact TV of one round {words['one round', 'tv']}, KL(out‖target) {words['one round', 'kl_output_target']}; "
        f"in whole sequences of T = {tokens} tokens predictive TV {words['sequence', 'predictive_tv']}, whole-sequence "
        f"TV {words['sequence', 'tv']}, KL a token {words['sequence', 'kl_output_target']}. There T, which cuts the "
        f"last round, decides: at t = {MIDDLE:g} KL is {by_tokens(rows, 'kl_output_target')} times uniform's."
    )


def caption(rows: Rows) -> str:
    """Settings and symbols, single chains, and the milder schedule."""
    setting = {part: select(rows, part=part)[0] for part in distinct(rows, "part")}
    chains = {part: len(group(select(rows, part=part), "family", "chain")) for part in setting}
    mild = {q: sizes_won(rows, "sequence", q, "excess, ν = .2") for q in ("predictive_tv", "kl_output_target")}
    lower = [row["ratio"] < 1 for row in select(rows, part="one round", quantity="bound", schedule="annealed, floored")]
    one, many = setting["one round"], setting["sequence"]
    return (
        "Each cell: geometric mean of (schedule / uniform) over chains, below it least and greatest; * marks means "
        f"below {1 - pairs.EVEN:g}. Above: one round at equal accepted length, {chains['one round']} pairs, L = "
        f"{one['length']} drafts, V = {one['vocabulary']}; below: sequences of T = {many['tokens']} tokens at equal "
        f"tokens per call, {chains['sequence']} pairs, L = {many['length']}, V = {many['vocabulary']} (many rounds: "
        f"annealing_long). Families: {', '.join(distinct(rows, 'family'))}; seed {one['seed']}. Size t: share "
        "of the way from lossless speed to accepting everything. B is a proved bound, the rest exact. A draft is "
        "accepted with min(1, ω_i p/q); annealed: ω_i ∝ e^(−.7i), floored: max(1, ω_i); excess: 1 + d e^(−νi); "
        "reversed: annealed backwards. Floored annealing "
        f"lowers B in {sum(lower)} of {len(lower)} single cases. Excess with ν = .2 beats uniform in predictive TV "
        f"{mild['predictive_tv']}, in KL(out‖target) a token {mild['kl_output_target']}."
    )


register(
    Figure(
        name="annealing_truth",
        title="Where annealing beats uniform relaxation at equal speed, and where it does not",
        claim=claim,
        caption=caption,
        build=build,
        draw=draw,
        uses=("theory", "simulate"),
        order=20,
        group="many rounds",
    )
)
