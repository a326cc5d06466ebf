"""Block verification against every published rule at equal cost: one round and whole sequences.

The table holds one row per pair of chains, rule and size, with exact distances and their ratios to token-wise uniform
relaxation; the picture shows geometric means and ranges. Cells: `Cell`.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import simulate
import theory
from paper_figures import pairs, style
from paper_figures.registry import Context, Figure, Rows, register
from paper_figures.tables import distinct, group, select
from theory.comparison import as_published, compare_rounds, compare_sequences, every_family, ratios

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

ROUND = {"length": 3, "tokens": 4, "vocabulary": 4}
SEQUENCE = {"length": 2, "tokens": 7, "vocabulary": 3}
QUICK = {"length": 2, "vocabulary": 3}
SIZES = (0.1, 0.3, 0.5, 0.7)
QUICK_SIZES = (0.3, 0.7)
QUICK_CHAINS = ("Markov", "embedding")
CHAINS = ("independent", "Markov", "Dirichlet tree", "embedding")
ZEROS, ZEROS_SIZE = "Markov with zeros", 0.3
"""A target that gives one token no probability after every prefix, which the draft does propose."""
BLOCKS = ("capped excess block", "capped uniform block", "lifted uniform block", "lossless block")
RELAXED_BLOCKS = BLOCKS[:3]
QUANTITIES = {
    "bound": "tv_bound",
    "tv": "total_variation",
    "kl_output_target": "kl_output_target",
    "kl_target_output": "kl_target_output",
}
"""Column → name in `theory.comparison`."""
PANELS = {
    ("one round", "kl_output_target"): "ONE ROUND\nKL(out‖target)",
    ("one round", "tv"): "ONE ROUND\nexact TV",
    ("one round", "bound"): "ONE ROUND\nbound B",
    ("sequence", "kl_output_target"): "SEQUENCE\nKL(out‖target) a token",
    ("sequence", "tv"): "SEQUENCE\nexact TV of the whole",
}
EQUAL = ("met", "coin")
LABELS = {
    "mentored": "mentored (KL residual)",
    "speculative cascade, token-specific": "spec. cascade, token-specific",
}


def _with_draft(target: Any, distance: float, rng: np.random.Generator, depth: int) -> Any:
    try:
        return simulate.make_draft(target, distance, rng, depth)
    except ValueError:  # this target's noise cannot reach the distance: another target is drawn
        return None


def _pair(kind: str, rng: np.random.Generator, vocabulary: int, depth: int) -> tuple[Any, Any, Any, float]:
    """Target, draft, codebook and the mean TV between target and draft; the codebook means something for embeddings."""
    distance = pairs.DISTANCES[(*CHAINS, ZEROS).index(kind) % len(pairs.DISTANCES)]
    if kind == "embedding":
        for _ in range(pairs.ATTEMPTS):
            made = simulate.embedding_chain(vocabulary, 3, rng, clusters=2)
            draft = _with_draft(made.chain, distance, rng, depth)
            if draft is not None:
                return made.chain, draft, made.embedding, distance
        raise ValueError(f"no draft at mean TV {distance} in {pairs.ATTEMPTS} attempts")
    pair = pairs.pair("Markov" if kind == ZEROS else kind, 0, rng, vocabulary, depth, distance)
    codebook = rng.standard_normal((vocabulary, 2))
    if kind != ZEROS:
        return pair.target, pair.draft, codebook, distance
    laws = np.vstack([pair.target.initial, pair.target.transition])
    laws[np.arange(len(laws)), laws.argmin(axis=1)] = 0.0
    laws /= laws.sum(axis=1, keepdims=True)
    return theory.MarkovChain(laws[0], laws[1:]), pair.draft, codebook, distance


def _rows(context: Context, part: str, kind: str) -> Rows:
    setting = ROUND if part == "one round" else SEQUENCE
    if context.quick:
        setting = QUICK | {"tokens": 3 if part == "one round" else 4}
    length, tokens = setting["length"], setting["tokens"]
    rng = context.rng("pair", part, kind)
    target, draft, codebook, distance = _pair(kind, rng, setting["vocabulary"], max(tokens, length + 1))
    families = as_published(every_family(codebook, length))
    sizes = (ZEROS_SIZE,) if kind == ZEROS else QUICK_SIZES if context.quick else SIZES
    if part == "one round":
        found = compare_rounds(target, draft, families, length, sizes)
    else:
        found = compare_sequences(target, draft, families, length, tokens, sizes)
    return [
        {"part": part, "chain": kind, "distance": distance, "seed": context.seed}
        | {"length": length, "tokens": tokens, "vocabulary": setting["vocabulary"]}
        | {"rule": row.family, "residual": row.residual, "size": row.size, "status": row.status}
        | {"strength": row.strength, "wanted": row.wanted, "cost": float(row.cost)}
        | {name: float(getattr(row, key)) for name, key in QUANTITIES.items()}
        | {f"ratio_{name}": line[key] for name, key in QUANTITIES.items()}
        for row, line in zip(found, ratios(found, "uniform"), strict=True)
    ]


def build(context: Context) -> Rows:
    """One row per part, pair of chains, rule and size."""
    chains = QUICK_CHAINS if context.quick else CHAINS
    keys = [(part, kind) for part in ("one round", "sequence") for kind in (*chains, ZEROS)]
    return [row for key in context.progress(keys) for row in context.cell(key, partial(_rows, context, *key))]


class Cell(NamedTuple):
    """A rule at one size over the pairs: geometric mean of the ratios at equal cost, and a text.

    Pairs on which a block verifier is lossless at the wanted cost ("free") and pairs on which the rule cannot be
    brought to it stay out of the mean and are counted in the text.
    """

    mean: float
    text: str


def cell(rows: Rows, quantity: str) -> Cell:
    """The cell of these rows."""
    values = [row[f"ratio_{quantity}"] for row in rows if row["status"] in EQUAL]
    free = sum(row["status"] == "faster" and row["tv"] < 1e-9 for row in rows)
    if not values:
        return Cell(0.0, "free") if free else Cell(1.0, "–")
    mean = geometric_mean(values)
    ends = f"{_short(min(values))}–{_short(max(values))}" if len(values) > 1 else ""
    notes = [ends] * (len(values) > 1) + [f"{free} free"] * (free > 0)
    left = len(rows) - len(values) - free
    notes += [f"{left} not met"] * (left > 0)
    return Cell(mean, "\n".join([_short(mean) + "*" * (mean < 1 - pairs.EVEN), *notes]))


def geometric_mean(values: list[float]) -> float:
    """∞ if one value is, 0 if one is zero."""
    return math.exp(math.fsum(map(math.log, values)) / len(values)) if min(values) > 0 else 0.0


def _short(value: float) -> str:
    if math.isinf(value):
        return "∞"
    return f"{value:.2f}" if value < 9.95 else f"{value:.0f}"


def order(rows: Rows) -> list[str]:
    """Blocks, then the other rules by mean KL(out‖target) of both parts, best first."""
    chosen = [row for row in rows if row["chain"] != ZEROS and row["status"] in EQUAL]
    scores = {
        rule: geometric_mean([row["ratio_kl_output_target"] for row in some])
        for (rule,), some in group(chosen, "rule").items()
    }
    others = [rule for rule in distinct(rows, "rule") if rule not in BLOCKS]
    return [*BLOCKS, *sorted(others, key=lambda rule: scores.get(rule, math.inf))]


def draw(rows: Rows) -> Picture:
    """A heat table a quantity: rules down, sizes across, the target with zeros in the last column."""
    rules, sizes = order(rows), distinct(select(rows, chain="Markov"), "size")
    figure, axes = style.subplots(1, len(PANELS), 14.0, 0.9 + 0.345 * len(rules))
    full = [row for row in rows if row["chain"] != ZEROS]
    for panel, ((part, quantity), label) in zip(axes.flat, PANELS.items(), strict=True):
        table = []
        for rule in rules:
            line = [cell(select(full, part=part, rule=rule, size=size), quantity) for size in sizes]
            table.append([*line, cell(select(rows, part=part, rule=rule, chain=ZEROS), quantity)])
        names = [LABELS.get(rule, rule) for rule in rules] if panel is axes[0, 0] else [""] * len(rules)
        columns = [*(f"t={size:g}" for size in sizes), f"p=0\nt={ZEROS_SIZE:g}"]
        texts = [[entry.text for entry in line] for line in table]
        image = style.ratio_table(panel, [[e.mean for e in line] for line in table], names, columns, texts)
        panel.set_title(label)
        panel.axhline(len(BLOCKS) - 0.5, color="black", lw=1.5)
        panel.axvline(len(sizes) - 0.5, color="black", lw=0.8)
    for tick in axes[0, 0].get_yticklabels()[: len(BLOCKS)]:
        tick.set_fontweight("bold")
    bar = figure.colorbar(image, ax=axes, shrink=0.5, aspect=40, pad=0.01, ticks=[-1, -0.5, 0, 0.5, 1])
    bar.ax.set_yticklabels(["≤ .5", ".71", "1", "1.41", "≥ 2"])
    bar.set_label("ratio to token-wise uniform at equal cost (below 1: better)")
    return figure


def rivals(rows: Rows, part: str, quantity: str, size: float) -> list[tuple[str, str, str]]:
    """(chain, best relaxed block, best token-wise rule if it is strictly better, else "") for every pair at a size."""
    out = []
    for (chain,), some in group(select(rows, part=part, size=size), "chain").items():
        if chain == ZEROS:
            continue
        blocks = [row for row in some if row["rule"] in RELAXED_BLOCKS and row["status"] != "short"]
        others = [row for row in some if row["rule"] not in BLOCKS and row["status"] in EQUAL]
        block, other = (min(group_, key=lambda row: row[quantity]) for group_ in (blocks, others))
        out.append((chain, block["rule"], other["rule"] if other[quantity] < block[quantity] - 1e-9 else ""))
    return out


def sizes_won(rows: Rows, part: str, quantity: str) -> str:
    """At how many pairs of each size a relaxed block is below every token-wise rule."""
    words = []
    for size in distinct(select(rows, chain="Markov"), "size"):
        found = rivals(rows, part, quantity, size)
        words.append(f"{sum(not other for *_, other in found)} of {len(found)} (t = {size:g})")
    return ", ".join(words)


def claim(rows: Rows) -> str:
    """Where the best relaxed block is below every token-wise rule, and who beats it elsewhere."""
    sizes = distinct(select(rows, chain="Markov"), "size")
    beaten = Counter(
        other
        for part in ("one round", "sequence")
        for size in sizes
        for *_, other in rivals(rows, part, "kl_output_target", size)
        if other
    )
    names = ", ".join(f"{name} ({count})" for name, count in beaten.most_common()) or "nobody"
    return (
        "At equal cost relaxed block verification has less KL(out‖target) than every token-wise rule on "
        f"{sizes_won(rows, 'one round', 'kl_output_target')} pairs in one round and on "
        f"{sizes_won(rows, 'sequence', 'kl_output_target')} in sequences; elsewhere it is beaten by {names}."
    )


def _means(rows: Rows, part: str, rule: str) -> str:
    full = [row for row in select(rows, part=part, rule=rule) if row["chain"] != ZEROS]
    return " / ".join(
        cell(some, "kl_output_target").text.split("\n")[0].rstrip("*") for some in group(full, "size").values()
    )


def caption(rows: Rows) -> str:
    """How to read a cell, settings, means of the blocks, TV and B, and who leaks."""
    one, many = (select(rows, part=part)[0] for part in ("one round", "sequence"))
    zero = select(rows, chain=ZEROS)
    chains = [chain for chain in distinct(rows, "chain") if chain != ZEROS]
    leaks = [
        rule for (rule,), some in group(zero, "rule").items() if any(math.isinf(r["kl_output_target"]) for r in some)
    ]
    unmet = Counter(row["rule"] for row in rows if row["status"] not in EQUAL and row["tv"] > 1e-9)
    coins = sum(row["status"] == "coin" for row in rows)
    means = "; ".join(
        f"{rule}: {_means(rows, 'one round', rule)} in one round, {_means(rows, 'sequence', rule)} in sequences"
        for rule in RELAXED_BLOCKS
    )
    return (
        "Each cell: geometric mean of (rule / token-wise uniform) over pairs of chains, below it least and greatest; * "
        f"marks means below {1 - pairs.EVEN:g}. Rules below the line are token-wise, each with the residual of its own "
        "paper (LANTERN's that of the first branch of its code), best first. free: lossless block verification is "
        "already that fast, so there is no divergence to compare; –: the rule cannot be brought to that cost (lossless "
        f"rules have no strength{'; so do ' + ', '.join(unmet) + ' on some pair' if unmet else ''}). Size t: share of "
        "the way from lossless token-wise speed to accepting everything. One round: equal accepted length, L = "
        f"{one['length']}, V = {one['vocabulary']}. Sequences: {many['tokens']} tokens at equal tokens per call, L = "
        f"{many['length']}, V = {many['vocabulary']}. {len(chains)} pairs a panel: {', '.join(chains)} (the codebook "
        "is the embedding there, random elsewhere), mean TV between target and draft "
        f"{', '.join(f'{d:g}' for d in distinct(rows, 'distance'))} in turn; seed {one['seed']}. Last column: one "
        "Markov target with a token of probability zero after every prefix; ∞ marks rules that emit it: "
        f"{'; '.join(leaks) or 'none'}. Where cost jumps with the strength, a coin between the two sides meets it "
        f"({coins} of {len(rows)} rows). Everything is exact, by enumeration; B is a proved bound. Mean KL ratio at "
        f"t = {' / '.join(f'{s:g}' for s in distinct(select(rows, chain='Markov'), 'size'))}: {means}. A relaxed block "
        f"has less exact TV than every token-wise rule on {sizes_won(rows, 'one round', 'tv')} pairs in one round and on "
        f"{sizes_won(rows, 'sequence', 'tv')} in sequences. Short sequences cut the last round, where blocks gain "
        "little: they show the sign of the effect, not its size over hundreds of tokens."
    )


register(
    Figure(
        name="every_rule",
        title="Relaxed block verification against every published rule at equal cost",
        claim=claim,
        caption=caption,
        build=build,
        draw=draw,
        uses=("theory", "simulate"),
        order=45,
    )
)
