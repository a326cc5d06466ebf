"""How do the laws of whole images drift apart, token by token, if every step is a little biased?

For a sequence decoded over many rounds, TV(P̂, P) and KL(P̂‖P) of its first T tokens: their law does not depend on how
many tokens follow, so that one enumeration of all sequences gives every T. KL adds up over tokens (chain rule), TV
cannot exceed one. The same two numbers for whole images of the embedded pair are read from the committed report of
`python -m validate compare`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

import theory
from paper_figures import pairs, style
from paper_figures.registry import Context, Figure, Rows, register
from paper_figures.reports import newest_report
from paper_figures.tables import column, distinct, group, select

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

LENGTH, TOKENS, VOCABULARY, DISTANCE = 3, 10, 3, 0.3
QUICK_TOKENS = 6
KINDS = ("independent", "Markov", "Dirichlet tree")
SIZE = 0.3
IMAGE_TOKENS = 49
"""Of the embedded pair: 7 × 7."""
RULES = {
    "uniform": "uniform",
    "annealed, floored": "COOL-SD, floored",
    "annealed, no floor": "COOL-SD, no floor",
    "excess, ν = .7": "excess",
    "lifted uniform": "lifted uniform",
    "capped excess": "capped excess",
}
"""Name in the figures → name in the reports."""
BLOCKS = ("lifted uniform", "capped excess")
MARKS: dict[str, dict[str, Any]] = {
    **{name: style.MARKS[name] for name in RULES if name not in BLOCKS},
    "lifted uniform": {"color": style.ORANGE, "marker": "D", "linestyle": "--"},
    "capped excess": {"color": style.PURPLE, "marker": "P", "linestyle": "-"},
}
LABELS = {name: f"block, {name}" if name in BLOCKS else name for name in RULES}
EXACT_PART, REAL_PART = "exact chains", "real images"


def families(length: int) -> dict[str, Callable[[float], theory.AnyVerifier]]:
    """The rules of `RULES`, each a family in one strength."""
    known = {**theory.schedule_families(length), **theory.block_families(length)}
    return {name: known[name] for name in RULES}


def members(
    pair: pairs.Pair, length: int, tokens: int, sizes: tuple[float, ...]
) -> Iterator[tuple[str, float, theory.AnyVerifier]]:
    """Every rule at sizes t of tokens per call; block rules that are faster without any bias stay lossless."""
    scale = pairs.Scale(pairs.tokens_per_call(pair, length, tokens))
    for name, family in families(length).items():
        for size in sizes:
            goal = scale.lossless + size * (scale.everything - scale.lossless)
            free = name in BLOCKS and scale.measure(family(0.0)) >= goal  # type: ignore[arg-type]
            yield name, size, family(0.0) if free else scale.at(family, size)  # type: ignore[arg-type]


def _chain(context: Context, kind: str) -> Rows:
    tokens = QUICK_TOKENS if context.quick else TOKENS
    pair = pairs.pair(kind, 0, context.rng("pair", kind), VOCABULARY, tokens, DISTANCE)
    rows: Rows = []
    for rule, size, verifier in members(pair, LENGTH, tokens, (SIZE,)):
        a = theory.analyse_sequence(pair.target, pair.draft, verifier, LENGTH, tokens)
        kl, bound = np.cumsum(a.predictive().kl_output_target), np.cumsum(a.step_bias)
        for k, tv in enumerate(a.total_variation_by_prefix):
            rows.append(
                {"part": EXACT_PART, "kind": "exact", "chain": kind, "rule": rule, "size": size, "tokens": k + 1}
                | {"speed": float(a.tokens_per_call), "bound": float(bound[k])}
                | {"tv_lower": float(tv), "tv": float(tv), "tv_upper": float(tv)}
                | {"kl_lower": float(kl[k]), "kl": float(kl[k]), "kl_upper": float(kl[k])}
                | {"length": LENGTH, "vocabulary": VOCABULARY, "images": None, "seed": context.seed, "report": None}
            )
    return rows


def report() -> dict[str, Any] | None:
    """The newest committed comparison, if there is one and it is of the embedded pair."""
    try:
        found = newest_report("compare")
    except FileNotFoundError:
        return None
    return found if found["settings"]["pair"] == "fashion" else None


def reported(rows: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows of a report that are in `RULES`, with our name for them."""
    ours = {theirs: name for name, theirs in RULES.items()}
    return ((ours[row["method"]], row) for row in rows if row["method"] in ours)


def _real() -> Rows:
    found = report()
    if found is None:
        return []
    name, content = found["file"], found
    settings = content["settings"]
    rows: Rows = []
    for rule, row in reported(content["rows"]):
        tv, kl = row["image_tv"], [IMAGE_TOKENS * value for value in row["kl_output_target"]]
        rows.append(
            {"part": REAL_PART, "kind": "estimate", "chain": settings["pair"], "rule": rule, "size": row["size"]}
            | {
                "tokens": IMAGE_TOKENS,
                "speed": row["tokens_per_call"][1],
                "bound": IMAGE_TOKENS * row["predictive_tv"][1],
            }
            | {"tv_lower": tv[0], "tv": tv[1], "tv_upper": tv[2]}
            | {"kl_lower": kl[0], "kl": kl[1], "kl_upper": kl[2]}
            | {"length": settings["length"], "vocabulary": 256, "images": settings["images"]}
            | {"seed": settings["seed"], "report": name}
        )
    return rows


def build(context: Context) -> Rows:
    """One row per chain, rule and number of tokens; then one per rule and size of the report."""
    rows = [row for kind in context.progress(KINDS) for row in context.cell(kind, partial(_chain, context, kind))]
    return rows + _real()


def over_chains(rows: Rows, rule: str, quantity: str) -> list[tuple[int, float]]:
    """(T, geometric mean over the exact chains) of a rule."""
    cells = group(select(rows, part=EXACT_PART, rule=rule), "tokens")
    return [(key[0], pairs.geometric_mean(column(cell, quantity))) for key, cell in cells.items()]


def growth(rows: Rows, rule: str, quantity: str) -> float:
    """By how much the quantity grows when the sequence becomes twice as long, to the largest even T."""
    points = dict(over_chains(rows, rule, quantity))
    half = max(points) // 2
    return points[2 * half] / points[half]


def draw(rows: Rows) -> Picture:
    """Above: exact chains over T. Below: whole real images over speed."""
    real = select(rows, part=REAL_PART)
    figure, axes = style.subplots(2 if real else 1, 2, 9.6, 7.4 if real else 4.2)
    labels = {"tv": "TV of the whole sequence", "kl": "KL(out‖target) of the whole, nats"}
    for panel, (quantity, label) in zip(axes[0], labels.items(), strict=True):
        for rule in RULES:
            points = over_chains(rows, rule, quantity)
            panel.plot(*zip(*points, strict=True), **MARKS[rule])
        panel.set(xlabel="tokens T of the sequence", ylabel=label, title="exact: small chains, all at one speed")
        panel.set_ylim(bottom=0)
    for panel, (quantity, label) in zip(axes[1] if real else (), labels.items(), strict=bool(real)):
        for rule in RULES:
            curve = sorted(select(real, rule=rule), key=lambda row: row["speed"])
            errors = [
                [row[quantity] - row[f"{quantity}_lower"] for row in curve],
                [row[f"{quantity}_upper"] - row[quantity] for row in curve],
            ]
            panel.errorbar(column(curve, "speed"), column(curve, quantity), yerr=errors, capsize=2, **MARKS[rule])
        panel.set(xlabel="tokens per target call", ylabel=label.replace("sequence", "image"))
        panel.set(title=f"estimated: real images of {IMAGE_TOKENS} tokens")
        panel.set_ylim(bottom=0)
    style.legend_below(figure, {LABELS[rule]: MARKS[rule] for rule in RULES}, 3)
    return figure


def claim(rows: Rows) -> str:
    """Growth with T, and what that comes to on images."""
    last = max(column(select(rows, part=EXACT_PART), "tokens"))
    at = {rule: dict(over_chains(rows, rule, "tv"))[last] for rule in RULES}
    kl, tv = ([growth(rows, rule, quantity) for rule in RULES] for quantity in ("kl", "tv"))
    words = (
        f"At equal tokens per call, from T = {last // 2} to {last // 2 * 2} tokens KL of the whole grows "
        f"{min(kl):.2f} to {max(kl):.2f} times, TV {min(tv):.2f} to {max(tv):.2f} times: at T = {last} uniform "
        f"relaxation has TV {at['uniform']:.2f}, floored annealing {at['annealed, floored']:.2f}, relaxed block "
        f"verification (capped excess) {at['capped excess']:.2f}."
    )
    real = {row["rule"]: row for row in select(rows, part=REAL_PART, size=SIZE)}
    if not real:
        return words
    numbers = ", ".join(
        f"{LABELS[rule]} {real[rule]['tv']:.2f} [{real[rule]['tv_lower']:.2f}, {real[rule]['tv_upper']:.2f}]"
        for rule in ("uniform", "annealed, floored", "capped excess")
    )
    return f"{words} On real images of {IMAGE_TOKENS} tokens TV is {numbers} at t = {SIZE:g}."


def caption(rows: Rows) -> str:
    """Settings and kinds of numbers."""
    one = select(rows, part=EXACT_PART)[0]
    real = select(rows, part=REAL_PART)
    below = (
        f"Below: {real[0]['images']} images a point of the embedded Fashion-MNIST pair, L = {real[0]['length']}, sizes "
        f"t = {', '.join(f'{size:g}' for size in distinct(real, 'size'))} by prediction, seed {real[0]['seed']}; "
        "estimates from exact likelihood ratios, bars: 95 % intervals; quoted from validate/reports/"
        f"{real[0]['report']}."
        if real
        else "No report on the embedded pair was found, hence no lower panels."
    )
    return (
        "Above: geometric mean over one pair of each of "
        f"{len(distinct(select(rows, part=EXACT_PART), 'chain'))} kinds ({', '.join(KINDS)}; V = {one['vocabulary']}, "
        f"mean TV {DISTANCE:g}, L = {one['length']}, seed {one['seed']}), every rule at t = {SIZE:g} of the way from "
        "lossless tokens per call to accepting all; exact, by enumeration. The table also has the proved bound on TV, "
        "the sum of the expected step biases, above 1 where it says nothing. A draft is accepted with min(1, ω_i p/q); "
        "annealed: ω_i ∝ e^(−.7i), floored: max(1, ω_i); excess: 1 + d e^(−.7i); block: the same ω in relaxed block "
        f"verification. {below}"
    )


register(
    Figure(
        name="whole_image_laws",
        title="Small biases add up: the law of a whole image against its number of tokens",
        claim=claim,
        caption=caption,
        build=build,
        draw=draw,
        uses=("theory", "simulate", "validate/reports"),
        order=56,
        group="many rounds",
    )
)
