"""What does a guarantee cost? Budgeted decoding: its speed, its certificate, and the exact distance beside it.

A budgeted decoder keeps one ledger of ε for the whole sequence and relaxes a step only while its price fits in what is
left, so that TV(P̂, P) ≤ ε, or KL(P̂‖P) ≤ ε, whatever the models. On chains small enough to enumerate the exact
distance of the law it emits is known too. Beside it uniform relaxation without a ledger at the very same speed, whose
distance nobody knows in advance.
"""

from __future__ import annotations

import statistics
from functools import partial
from typing import TYPE_CHECKING, Any

import theory
from paper_figures import pairs, style
from paper_figures.registry import Context, Figure, Row, Rows, register
from paper_figures.tables import column, distinct, group, select

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

LENGTH, TOKENS, VOCABULARY, DISTANCE = 3, 7, 3, 0.3
QUICK_TOKENS = 5
KINDS, QUICK_KINDS = ("independent", "Markov", "Dirichlet tree"), ("Markov",)
RULES: dict[str, theory.AnyVerifier] = {
    "uniform, ω = 1.15": theory.Verifier(theory.Relaxed(1.15)),
    "uniform, ω = 1.5": theory.Verifier(theory.Relaxed(1.5)),
    "COOL-SD, δ = 1.1, floored": theory.cool_sd(LENGTH, 1.1, floor=1.0),
}
MARKS: dict[str, dict[str, Any]] = {
    "uniform, ω = 1.15": {"color": style.BLUE, "marker": "o"},
    "uniform, ω = 1.5": {"color": style.RED, "marker": "^"},
    "COOL-SD, δ = 1.1, floored": {"color": style.GREEN, "marker": "s"},
}
CAUTIOUS, PUBLISHED = "uniform, ω = 1.15", "COOL-SD, δ = 1.1, floored"
LEDGERS = {"tv": "TV of the whole sequence", "kl": "KL(out‖target) of the whole, nats"}
DISTANCES = {"tv": "total_variation", "kl": "kl_output_target"}
BUDGETS, QUICK_BUDGETS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5), (0.1, 0.3)
SIZES, QUICK_SIZES = tuple(k / 24 for k in range(13)), (0.0, 0.25, 0.5)
"""Of uniform relaxation without a ledger."""
QUOTED = 0.1
USED = 1e-6
"""A certificate this much below its budget says that the rule needs no more."""


def _kind(context: Context, kind: str) -> Rows:
    tokens = QUICK_TOKENS if context.quick else TOKENS
    pair = pairs.pair(kind, 0, context.rng("pair", kind), VOCABULARY, tokens, DISTANCE)
    scale = pairs.Scale(pairs.tokens_per_call(pair, LENGTH, tokens))
    uniform = theory.schedule_families(LENGTH)["uniform"]

    def free(ledger: str, size: float) -> float:
        verifier = scale.at(uniform, size)
        a = theory.analyse_sequence(pair.target, pair.draft, verifier, LENGTH, tokens)
        return float(getattr(a, DISTANCES[ledger]))

    def row(ledger: str, rule: str, size: float, speed: float, budget: float | None = None) -> Row:
        found: Row = {"chain": kind, "ledger": ledger, "rule": rule, "budget": budget, "speed": speed, "size": size}
        return found | dict.fromkeys(("own_gain", "certificate", "exact", "spent")) | {"unbudgeted": free(ledger, size)}

    gap = scale.everything - scale.lossless
    rows: Rows = []
    for ledger in LEDGERS:
        for size in QUICK_SIZES if context.quick else SIZES:
            rows.append(row(ledger, "no ledger", size, scale.lossless + size * gap))
        for name, verifier in RULES.items():
            gain = scale.measure(verifier) - scale.lossless  # type: ignore[arg-type]
            for budget in QUICK_BUDGETS if context.quick else BUDGETS:
                rule = theory.budgeted(verifier, budget, ledger)  # type: ignore[arg-type]
                a = theory.analyse_budgeted(pair.target, pair.draft, rule, LENGTH, tokens)
                speed = float(a.tokens_per_call)
                size = min(max((speed - scale.lossless) / gap, 0.0), 1.0)
                found = {
                    "own_gain": (speed - scale.lossless) / gain,
                    "certificate": float(a.certificate),
                    "exact": float(a.budgeted_divergence),
                }
                rows.append(row(ledger, name, size, speed, budget) | found | {"spent": float(a.expected_spent)})
    settings = {"length": LENGTH, "tokens": tokens, "vocabulary": VOCABULARY, "seed": context.seed}
    return [row | settings for row in rows]


def build(context: Context) -> Rows:
    """One row per chain, ledger, rule and budget; and uniform relaxation without a ledger."""
    kinds = QUICK_KINDS if context.quick else KINDS
    return [row for kind in context.progress(kinds) for row in context.cell(kind, partial(_kind, context, kind))]


def draw(rows: Rows) -> Picture:
    """Ledgers down, chains across: certificates open, exact distances filled."""
    kinds = distinct(rows, "chain")
    figure, axes = style.subplots(len(LEDGERS), len(kinds), 0.6 + 3.9 * len(kinds), 7.2, sharex="col")
    for i, (ledger, label) in enumerate(LEDGERS.items()):
        for j, kind in enumerate(kinds):
            panel, cell = axes[i, j], select(rows, chain=kind, ledger=ledger)
            for rule, look in MARKS.items():
                curve = select(cell, rule=rule)
                promised = {"linestyle": "--", "fillstyle": "none", "lw": 1.0}
                panel.plot(column(curve, "speed"), column(curve, "certificate"), **look, **promised)
                panel.plot(column(curve, "speed"), column(curve, "exact"), **look)
            curve = select(cell, rule="no ledger")
            panel.plot(column(curve, "speed"), column(curve, "unbudgeted"), color=style.GREY, lw=2.2, zorder=1)
            drawn = [row for row in cell if row["rule"] != "no ledger"]
            panel.set_xlim(min(column(curve, "speed")) - 0.01, 1.03 * max(column(drawn, "speed")) - 0.06)
            panel.set_ylim(0, 1.05 * max(column(drawn, "certificate")))
            if i == 0:
                panel.set_title(kind)
            else:
                panel.set_xlabel("tokens per target call")
            if j == 0:
                panel.set_ylabel(label)
    marks: dict[str, dict[str, Any]] = {name: look | {"linestyle": "none"} for name, look in MARKS.items()}
    marks["certificate, known in advance"] = {"color": "#444444", "linestyle": "--"}
    marks["exact distance under the ledger"] = {"color": "#444444", "linestyle": "-"}
    marks["uniform, no ledger: exact, no promise"] = {"color": style.GREY, "linestyle": "-", "lw": 2.2}
    style.legend_below(figure, marks, 3)
    return figure


def budgeted(rows: Rows) -> Rows:
    """Points under a ledger."""
    return [row for row in rows if row["rule"] != "no ledger"]


def shares(rows: Rows, ledger: str) -> list[float]:
    """Exact distance over the certificate, where the certificate is used up."""
    chosen = select(budgeted(rows), ledger=ledger)
    return [row["exact"] / row["certificate"] for row in chosen if row["certificate"] > USED]


def cautious_first(rows: Rows, most: float = 0.2) -> tuple[int, int]:
    """At how many budgets up to `most` the cautious rule is faster than COOL-SD's schedule, of how many."""
    cells = group([row for row in budgeted(rows) if row["budget"] <= most], "chain", "ledger", "budget")
    speeds = [tuple(select(cell, rule=rule)[0]["speed"] for rule in (CAUTIOUS, PUBLISHED)) for cell in cells.values()]
    return sum(cautious > bold for cautious, bold in speeds), len(speeds)


def _percent(values: list[float]) -> str:
    low, high = f"{100 * min(values):.0f}", f"{100 * max(values):.0f}"
    return f"{low} %" if low == high else f"{low} to {high} %"


def claim(rows: Rows) -> str:
    """The promise is kept; what it leaves of the speed; cautious rules make more of it."""
    kept = sum(row["exact"] <= row["certificate"] + 1e-12 <= row["budget"] + 2e-12 for row in budgeted(rows))
    words = []
    for ledger, name in (("tv", "TV"), ("kl", "KL")):
        gains = {
            rule: column(select(budgeted(rows), ledger=ledger, budget=QUOTED, rule=rule), "own_gain")
            for rule in (CAUTIOUS, PUBLISHED)
        }
        words.append(
            f"{name} ≤ {QUOTED:g} leaves cautious uniform relaxation {_percent(gains[CAUTIOUS])} and COOL-SD "
            f"{_percent(gains[PUBLISHED])} of their own gain in speed"
        )
    tv, kl = (100 * statistics.median(shares(rows, ledger)) for ledger in LEDGERS)
    won, of = cautious_first(rows)
    return (
        f"The guarantee holds in {kept} of {len(budgeted(rows))} cases; the exact distance is {tv:.0f} % (TV) and "
        f"{kl:.0f} % (KL) of the certificate in the median. {'; '.join(words)}. Under one ledger of ε ≤ .2 the "
        f"cautious rule is the faster of the two in {won} of {of} cases."
    )


def caption(rows: Rows) -> str:
    """Settings and kinds of numbers."""
    one = rows[0]
    budgets = ", ".join(f"{value:g}" for value in distinct(budgeted(rows), "budget"))
    return (
        f"Sequences of T = {one['tokens']} tokens, L = {one['length']} drafts, V = {one['vocabulary']}, one pair of "
        f"chains a column (mean TV {DISTANCE:g}, seed {one['seed']}). A step is relaxed with the rule named if its "
        "price still fits the ledger of ε for the whole sequence, with a coin if it fits in part, else it is lossless "
        f"(mode prefix_partial); one point for each ε of {budgets}. Dashed, open: the certificate, a proved bound that "
        "holds in advance (the largest spending of any path, at most ε). Solid, filled: exact distance of the law "
        "emitted, by enumeration. Grey: exact distance of uniform relaxation without a ledger. Points of one rule end "
        "where it needs no more. In the table: share of a rule's own gain in tokens per call that is left."
    )


register(
    Figure(
        name="budgets",
        title="What a guarantee costs: decoding under a budget keeps its promise, at part of the speed",
        claim=claim,
        caption=caption,
        build=build,
        draw=draw,
        uses=("theory", "simulate"),
        order=57,
        group="many rounds",
    )
)
