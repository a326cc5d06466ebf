"""CASCADE's breadth on synthetic chains: what calling siblings of similar state interchangeable buys, and costs.

CASCADE (2605.07230) relaxes acceptance where the target's hidden states of sibling drafts are alike. Its formulas could
not be read; the rule is this project's CASCADE-style reconstruction, and a chain has no hidden state: the state after
a token is taken to be the centred logarithm of the next-token law it leads to, which is what a state is for. Every
token counts as a sibling: the most that a tree can offer. Two codebooks: clusters of near-duplicates, and no clusters.
Depth (convergence of states under different parents) is not here: in a Markov chain states under different parents
are the same by construction.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

import simulate
import theory
from paper_figures import pairs, style
from paper_figures.registry import Context, Figure, Row, Rows, register
from paper_figures.tables import column, distinct, group, select
from theory.rules.tree_states import cosine

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

LENGTH, VOCABULARY, DIMENSION, DISTANCE = 2, 16, 3, 0.3
CODEBOOKS = {"clustered": 4, "no clusters": VOCABULARY}
"""Name → number of clusters."""
CHAINS, QUICK_CHAINS = 6, 2
THRESHOLDS, QUICK_THRESHOLDS = (0.999, 0.99, 0.95, 0.9, 0.8, 0.7, 0.5), (0.99, 0.7)
FLAT = 1e-9
"""Accepted length above lossless that counts as none."""
LOOKS = {
    "clustered": {"color": style.BLUE, "marker": "s", "linestyle": "-"},
    "no clusters": {"color": style.RED, "marker": "^", "linestyle": "--"},
}
PANELS = {
    "bought": "accepted drafts bought a round",
    "tv_ratio": "TV over uniform's at equal N",
    "kl_ratio": "KL(out‖target) over uniform's",
}


def states(chain: theory.MarkovChain) -> np.ndarray:
    """Centred log p(·|x) of every token x, shape (V, V)."""
    logs = np.log(np.asarray(chain.transition))
    return np.asarray(logs - logs.mean(axis=1, keepdims=True))


def _chain(context: Context, codebook: str, index: int) -> Rows:
    rng = context.rng("chain", codebook, index)
    target = simulate.embedding_chain(VOCABULARY, DIMENSION, rng, clusters=CODEBOOKS[codebook]).chain
    pair = pairs.Pair("embedding", index, DISTANCE, target, simulate.make_draft(target, DISTANCE, rng, LENGTH + 1))
    measure = pairs.accepted_length(pair, LENGTH)
    scale, uniform = pairs.Scale(measure), theory.schedule_families(LENGTH)["uniform"]
    hidden = states(target)
    alike = cosine(hidden[:, None], hidden[None])[~np.eye(VOCABULARY, dtype=bool)]
    rows: Rows = []
    for tau in QUICK_THRESHOLDS if context.quick else THRESHOLDS:
        rule = theory.CascadeStyle(tau_b=tau).at(np.arange(VOCABULARY), hidden)
        ours = pairs.round_numbers(pair, theory.Verifier(rule), LENGTH)
        size = (ours["accepted"] - scale.lossless) / (scale.everything - scale.lossless)
        row: Row = {"codebook": codebook, "chain": index, "tau": tau, "seed": context.seed, "vocabulary": VOCABULARY}
        row |= {"length": LENGTH, "distance": DISTANCE, "alike": float((alike >= tau).mean()), "size": size}
        row |= {"bought": ours["accepted"] - scale.lossless} | ours
        same = None
        if ours["accepted"] - scale.lossless > FLAT:
            same = pairs.round_numbers(pair, scale.at(uniform, min(size, 1.0)), LENGTH)
        row |= {"tv_ratio": same and ours["tv"] / same["tv"]}
        rows.append(row | {"kl_ratio": same and ours["kl_output_target"] / same["kl_output_target"]})
    return rows


def build(context: Context) -> Rows:
    """One row per codebook, chain and threshold τ_b."""
    keys = [(name, i) for name in CODEBOOKS for i in range(QUICK_CHAINS if context.quick else CHAINS)]
    return [row for key in context.progress(keys) for row in context.cell(key, partial(_chain, context, *key))]


def means(rows: Rows, codebook: str, quantity: str) -> dict[float, float]:
    """τ_b → mean over chains (geometric for ratios), of those where the rule accepts more than lossless."""
    out = {}
    for (tau,), cell in group(select(rows, codebook=codebook), "tau").items():
        values = [value for value in column(cell, quantity) if value is not None]
        if values:
            out[tau] = pairs.geometric_mean(values) if quantity.endswith("ratio") else float(np.mean(values))
    return out


def draw(rows: Rows) -> Picture:
    """Over the threshold: what is bought, and the price beside uniform relaxation's."""
    figure, axes = style.subplots(1, 3, 11.4, 3.9)
    taus = distinct(rows, "tau")
    for panel, (quantity, label) in zip(axes[0], PANELS.items(), strict=True):
        for name, mark in LOOKS.items():
            curve = means(rows, name, quantity)
            places = [taus.index(tau) for tau in curve]
            panel.plot(places, list(curve.values()), label=name, **mark)
            cells = [[v for v in column(select(rows, codebook=name, tau=t), quantity) if v is not None] for t in curve]
            ends = [min(cell) for cell in cells], [max(cell) for cell in cells]
            panel.fill_between(places, *ends, color=mark["color"], alpha=0.12, lw=0)
        panel.set_xticks(range(len(taus)), [f"{tau:g}" for tau in taus])
        panel.set(xlabel="threshold τ_b (looser to the right)", title=label)
        if quantity.endswith("ratio"):
            panel.axhline(1, color="black", lw=1.2)
            panel.set_yscale("log")
            ticks = (0.8, 1, 1.2, 1.5, 2, 3, 5, 10, 20)
            panel.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
            panel.minorticks_off()
            top = max(row[quantity] for row in rows if row[quantity] is not None)
            panel.set_ylim(0.8, 1.1 * max(top, 1.0))
    axes[0, 0].set_ylim(bottom=0)
    axes[0, 0].legend(title="codebook")
    return figure


def _range(values: dict[float, float]) -> str:
    return f"{min(values.values()):.2f}–{max(values.values()):.2f}"


def claim(rows: Rows) -> str:
    """What is bought with and without clusters, and the price beside uniform's."""
    tightest = max(distinct(rows, "tau"))
    bought = {name: means(rows, name, "bought")[tightest] for name in CODEBOOKS}
    kl = {name: _range(means(rows, name, "kl_ratio")) for name in CODEBOOKS if means(rows, name, "kl_ratio")}
    tv = {name: _range(means(rows, name, "tv_ratio")) for name in CODEBOOKS if means(rows, name, "tv_ratio")}
    return (
        f"Interchangeable siblings exist where the codebook has near-duplicates: at τ_b = {tightest:g} a "
        "CASCADE-style rule "
        f"accepts {bought['clustered']:.2f} drafts a round more than lossless decoding there and "
        f"{bought['no clusters']:.2f} "
        f"without clusters. At equal accepted length its TV is {tv['clustered']} times uniform relaxation's on "
        "clustered "
        f"codebooks and its KL {kl['clustered']} times (means, by τ_b)."
    )


def caption(rows: Rows) -> str:
    """Settings, what is reconstructed, what is left out."""
    one = rows[0]
    share = {name: means(rows, name, "alike")[max(distinct(rows, "tau"))] for name in CODEBOOKS}
    return (
        f"{len(distinct(rows, 'chain'))} embedding chains a codebook (V = {one['vocabulary']}, draft at mean TV "
        f"{one['distance']:g}, seed {one['seed']}), L = {one['length']} drafts; all numbers exact; lines: means over "
        "chains, "
        "shades: ranges. The rule is reconstructed: f = max(min(1, p(C)/q(C)), min(1, p/q)), C the tokens whose "
        "state has cosine "
        "≥ τ_b with the drafted one's, residual Norm[p − q f]₊; all tokens are siblings (a real tree has a few). "
        "State: centred "
        f"log p(·|x). Pairs of tokens alike at the tightest τ_b: {share['clustered']:.0%} with clusters, "
        f"{share['no clusters']:.0%} without. Of CASCADE's two properties only breadth is here; depth is trivial in "
        "a Markov chain. "
        "A synthetic chain says nothing about where the properties hold in a real image model."
    )


register(
    Figure(
        name="cascade_style",
        title="A CASCADE-style rule on synthetic chains: near-duplicates buy acceptance, at more KL than uniform",
        claim=claim,
        caption=caption,
        build=build,
        draw=draw,
        uses=("theory", "simulate"),
        order=50,
        group="papers",
    )
)
