"""COOL-SD's Prop. 1 and Prop. 2 on random pairs: where they hold, and what the paper's TV = 2/5 has to do with it.

* Prop. 1: if f ≥ min(1, p/q) everywhere, the residual G* = Norm[p − q f]_+ is Norm[p − q]_+. One factor ω < 1 is enough
  to break it: Norm[p − q]_+ then adds bias, G* none.
* Prop. 2: at L = 2 and equal accepted length N, relaxing position 1 alone costs less TV than relaxing position 2 alone;
  the paper asks for TV(p, q) ≤ 2/5. With independent tokens the ratio of the two is 1/(2 − TV(p, q)), whatever N:
  with β = 1 − TV(p, q) and rates α_1, α_2, the costs are e = α_1 − β and l = β (α_2 − β), and N = α_1 (1 + β) =
  β (1 + α_2) makes l = (1 + β) e. On every pair of chains e ≤ N − N_lossless = l.
* It compares the two ends. Between them the exact TV is lower than at both: relaxing both positions, each a little,
  lets the second correct the first.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

import simulate
import theory
from paper_figures import pairs, style
from paper_figures.registry import Context, Figure, Row, Rows, register
from paper_figures.tables import column, distinct, group, select

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

MARK = 0.4
"""TV(p, q) up to which the paper states Prop. 2."""
OMEGAS = tuple(round(0.3 * 1.15**k, 4) for k in range(18))
QUICK_OMEGAS = (0.4, 0.7, 1.0, 1.5, 2.5)
POSITIONS, QUICK_POSITIONS = 12, 4
CHAINS, QUICK_CHAINS = 40, 8
PEAKED = 0.4
"""Dirichlet parameter of the laws: peaked ones can be far apart."""
KINDS: dict[str, tuple[int, Any]] = {
    "independent": (4, lambda size, rng: simulate.dirichlet_iid(size, rng, PEAKED)),
    "Markov": (4, lambda size, rng: simulate.random_markov(size, rng, PEAKED)),
    "Dirichlet tree": (3, lambda size, rng: simulate.dirichlet_tree(size, 3, rng, PEAKED)),
}
"""Family of chains → V, and how one is drawn."""
SHARE = 0.5
"""How far N lies between lossless and the most that position 2 alone can reach."""
PATHS = (0.2, 0.4, 0.7)
STEPS, QUICK_STEPS = 24, 8
SAME = 1e-9
"""Strengths are matched to 1e-10, which moves a TV by less."""
LOOKS = {
    "independent": {"color": style.BLACK, "marker": "o", "linestyle": "none", "fillstyle": "none"},
    "Markov": {"color": style.BLUE, "marker": "^", "linestyle": "none", "fillstyle": "none"},
    "Dirichlet tree": {"color": style.RED, "marker": "x", "linestyle": "none"},
}
PATH_LOOKS = dict(zip(PATHS, ((style.BLACK, "-"), (style.BLUE, "--"), (style.RED, "-.")), strict=True))


def _row(part: str, kind: str, index: int, **values: float | None) -> Row:
    names = ("distance", "omega", "place", "accepted", "tv_star", "tv_vanilla", "tv_early", "tv_late", "tv", "bound")
    return {"part": part, "kind": kind, "pair": index} | {name: values.get(name) for name in names}


def _position(context: Context, index: int) -> Rows:
    """Prop. 1: one position at every ω with both residuals."""
    pair = pairs.pair("independent", index, context.rng("position", index), 5, 1)
    p, q = pair.target.p, pair.draft.p
    rows: Rows = []
    for omega in QUICK_OMEGAS if context.quick else OMEGAS:
        rule = theory.Relaxed(omega)
        star, vanilla = (
            float(theory.total_variation(theory.Verifier(rule, g).step(p, q, 0).output, p))
            for g in (theory.optimal_residual, theory.vanilla_residual)
        )
        values = {"distance": float(theory.total_variation(p, q)), "tv_star": star, "tv_vanilla": vanilla}
        rows.append(_row("Prop. 1", "independent", index, omega=omega, **values))
    return rows


def _verifier(place: int) -> Any:
    """One position of two relaxed by ω = e^s."""
    return lambda s: theory.Verifier(theory.Relaxed([math.exp(s) if i == place else 1.0 for i in range(2)]))


def _ends(context: Context, kind: str, index: int) -> Rows:
    """Prop. 2: either position relaxed alone, at equal N."""
    rng = context.rng("ends", kind, index)
    size, draw_chain = KINDS[kind]
    target, other = (draw_chain(size, rng) for _ in range(2))
    # From nearly the target itself to an independent draw, so that all distances occur.
    draft = _mixed(target, other, (index + 0.5) / (QUICK_CHAINS if context.quick else CHAINS))
    analyse = partial(theory.analyse_round, target, draft, length=2)
    none = theory.Verifier(theory.Lossless())
    lossless = analyse(verifier=none).expected_accepted
    most = min(analyse(verifier=_verifier(i)(pairs.LARGEST_STRENGTH)).expected_accepted for i in range(2))
    goal = lossless + SHARE * (most - lossless)
    reached = []
    for place in range(2):
        family = _verifier(place)
        strength = theory.match(family, lambda v: analyse(verifier=v).expected_accepted, goal, 0.0, 64.0)
        reached.append(analyse(verifier=family(strength)))
    early, late = (float(a.total_variation) for a in reached)
    first = (chain.conditional(np.zeros((1, 0), int))[0] for chain in (target, draft))
    distance = float(theory.total_variation(*first))
    return [_row("Prop. 2", kind, index, distance=distance, accepted=goal, tv_early=early, tv_late=late)]


def _mixed(target: Any, other: Any, weight: float) -> Any:
    """Next-token laws (1 − w) p + w r."""

    def mix(a: Any, b: Any) -> Any:
        return (1 - weight) * np.asarray(a) + weight * np.asarray(b)

    if isinstance(target, theory.IIDChain):
        return theory.IIDChain(mix(target.p, other.p))
    if isinstance(target, theory.MarkovChain):
        return theory.MarkovChain(mix(target.initial, other.initial), mix(target.transition, other.transition))
    return theory.TabularChain([mix(a, b) for a, b in zip(target.levels, other.levels, strict=True)])


def _path(context: Context, distance: float) -> Rows:
    """From position 2 alone to position 1 alone at equal N, two independent tokens."""
    p, q = ([0.5 + distance / 2 * sign, 0.5 - distance / 2 * sign] for sign in (1, -1))
    chains = theory.IIDChain(p), theory.IIDChain(q)
    beta = 1 - distance
    last = beta + SHARE * beta * (1 - beta) / (1 + beta)  # α_1 where position 2 is lossless
    accepted = last * (1 + beta)
    steps = QUICK_STEPS if context.quick else STEPS
    rows: Rows = []
    for k in range(steps + 1):
        first = beta + (last - beta) * k / steps
        rates = first, accepted / first - 1
        omega = [(rate - q[0]) / p[1] for rate in rates]
        a = theory.analyse_round(*chains, theory.Verifier(theory.Relaxed(omega)), 2)
        values = {"accepted": a.expected_accepted, "tv": a.total_variation, "bound": a.tv_bound}
        rows.append(_row("between", "two tokens", 0, distance=distance, place=k / steps, **values))
    return rows


def build(context: Context) -> Rows:
    """One row per ω (Prop. 1), pair (Prop. 2) and step between the two ends."""
    rows: Rows = []
    for i in context.progress(range(QUICK_POSITIONS if context.quick else POSITIONS)):
        rows += context.cell(("position", i), partial(_position, context, i))
    for kind in KINDS:
        for i in context.progress(range(QUICK_CHAINS if context.quick else CHAINS)):
            rows += context.cell((kind, i), partial(_ends, context, kind, i))
    for distance in PATHS:
        rows += context.cell(("between", distance), partial(_path, context, distance))
    return [row | {"seed": context.seed} for row in rows]


def extra(row: Row) -> float:
    """TV that Norm[p − q]_+ adds to G*."""
    return float(row["tv_vanilla"] - row["tv_star"])


def ratio(row: Row) -> float:
    """TV with position 1 relaxed alone over TV with position 2 relaxed alone."""
    return float(row["tv_early"] / row["tv_late"])


def draw(rows: Rows) -> Picture:
    """Extra TV of the plain residual over ω; early over late by TV(p, q); between the two ends."""
    figure, axes = style.subplots(1, 3, 11.4, 3.9)
    panel = axes[0, 0]
    for (i,), curve in group(select(rows, part="Prop. 1"), "pair").items():
        shade = {"color": style.BLUE, "lw": 0.9, "marker": ".", "label": "a pair (p, q)" if i == 0 else None}
        panel.plot(column(curve, "omega"), [extra(row) for row in curve], **shade)
    panel.axvline(1, color="black", lw=1, ls="--", label="ω = 1, lossless")
    panel.set_xscale("log")
    panel.set_xticks([0.3, 0.5, 1, 2, 3], ["0.3", "0.5", "1", "2", "3"])
    panel.minorticks_off()
    panel.set(
        xlabel="relaxation factor ω", ylabel="extra TV of Norm[p − q]₊ over G*", title="Prop. 1: one residual for ω ≥ 1"
    )
    panel.legend()
    panel = axes[0, 1]
    for kind, mark in LOOKS.items():
        cell = select(rows, part="Prop. 2", kind=kind)
        panel.plot(column(cell, "distance"), [ratio(row) for row in cell], label=f"{kind} pairs", markersize=4, **mark)
    grid = np.linspace(0, 1, 101)
    panel.plot(grid, 1 / (2 - grid), color=style.BLACK, lw=0.9, label="1 / (2 − TV(p, q))")
    panel.axhline(1, color=style.GREY, lw=1)
    panel.axvline(MARK, color="black", lw=1, ls=":")
    panel.text(MARK + 0.01, 0.03, "the paper's 2/5", fontsize=8)
    panel.set(xlabel="TV(p, q) of the first token", ylabel="TV early / TV late", xlim=(0, 1), ylim=(0, 1.08))
    two = select(rows, part="Prop. 2")
    won = sum(ratio(row) <= 1 + SAME for row in two)
    panel.set_title(f"Prop. 2: early costs no more on {won} of {len(two)} pairs")
    panel.legend(loc="lower right", bbox_to_anchor=(1.0, 0.08))
    panel = axes[0, 2]
    for distance, (colour, dash) in PATH_LOOKS.items():
        curve = select(rows, part="between", distance=distance)
        places, top = column(curve, "place"), curve[0]["tv"]
        label = f"TV(p, q) = {distance:g}"
        panel.plot(places, [row["tv"] / top for row in curve], color=colour, ls=dash, label=f"TV, {label}")
        panel.plot(places, [row["bound"] / top for row in curve], color=colour, ls=dash, lw=0.7, alpha=0.6)
    panel.text(0.5, 0.92, "thin: bound B", fontsize=8)
    panel.set_xticks([0, 0.5, 1], ["position 2\nalone", "both", "position 1\nalone"])
    panel.set(ylabel="relative to position 2 alone", ylim=(0, 1.08), title="between the ends: B falls, TV has a dip")
    panel.legend(loc="lower left")
    return figure


def dips(rows: Rows) -> dict[float, float]:
    """By TV(p, q): least exact TV between the ends over the TV of position 1 alone."""
    out = {}
    for (distance,), curve in group(select(rows, part="between"), "distance").items():
        out[distance] = min(column(curve, "tv")) / curve[-1]["tv"]
    return out


def claim(rows: Rows) -> str:
    """Both propositions, counted."""
    one, two = select(rows, part="Prop. 1"), select(rows, part="Prop. 2")
    above = [extra(row) for row in one if row["omega"] >= 1]
    below = [extra(row) for row in one if row["omega"] < 1]
    far = [row for row in two if row["distance"] > MARK]
    won, won_far = (sum(ratio(row) <= 1 + SAME for row in cell) for cell in (two, far))
    dip = ", ".join(f"{value:.2f} (TV(p, q) = {d:g})" for d, value in dips(rows).items())
    return (
        f"Prop. 1 holds for ω ≥ 1 (extra TV at most {max(max(above), 1e-16):.0e}) and fails below (up to "
        f"{max(below):.2f}). Prop. 2 holds on all pairs tried: early costs no more than late on {won} of {len(two)}, "
        f"{won_far} of {len(far)} with TV(p, q) beyond 2/5, where nothing changes. But it compares two ends: relaxing "
        f"both positions has {dip} of the TV of position 1 alone."
    )


def caption(rows: Rows) -> str:
    """Settings."""
    two = select(rows, part="Prop. 2")
    each = len(two) // len(distinct(two, "kind"))
    vocabularies = ", ".join(f"{kind} V = {size}" for kind, (size, _) in KINDS.items())
    return (
        "All numbers exact; the propositions' wording is reconstructed. Left: one position, V = 5, "
        f"{len(distinct(select(rows, part='Prop. 1'), 'pair'))} random pairs, f = min(1, ω p/q). G*: Norm[p − q f]₊. "
        f"Middle: L = 2 drafts, {each} random pairs a family ({vocabularies}), draft (1 − w) p + w r with r like p; "
        "either "
        f"position alone is relaxed until the accepted length N is {SHARE:g} of the way from lossless to the most that "
        "both can reach. Here B = TV. Curve: proved for independent tokens. Right: two independent tokens, p and q "
        "mirror images, acceptance moved from position 2 to position 1 at equal N; bound B (thin) falls all the way, "
        f"the exact TV is least in between. Seed {rows[0]['seed']}."
    )


register(
    Figure(
        name="propositions",
        title="COOL-SD's Prop. 1 and Prop. 2: where they hold, and what they leave out",
        claim=claim,
        caption=caption,
        build=build,
        draw=draw,
        uses=("theory", "simulate"),
        order=42,
        group="papers",
    )
)
