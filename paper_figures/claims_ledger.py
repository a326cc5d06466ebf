"""The ledger of published claims as a table: who claims what, the verdict, and the smallest counterexample."""

from __future__ import annotations

import textwrap
from collections import Counter
from typing import TYPE_CHECKING

from matplotlib.patches import Rectangle

from paper_figures import style
from paper_figures.registry import Context, Figure, Row, Rows, register
from theory.claims import claims_ledger, ledger_entries, ledger_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

QUICK = ("COOL-SD, Prop. 1 below lossless", "LANTERN, TV budget", "SJD, losslessness", "GSD, Theorem 1")
LOOKS = {
    "fails with a counterexample": (style.RED, "white", "✗"),
    "holds for the bound only": (style.ORANGE, "black", "◐"),
    "holds": (style.BLUE, "white", "✓"),
    "not decidable here": ("#D9D9D9", "black", "?"),
}
"""Verdict → colour of its field, of its words, and a sign; told apart by all common kinds of colour vision."""
COLUMNS = {"claim": (1.75, 50), "source": (4.85, 32), "evidence": (6.95, 104)}
"""Column → left edge in inches and characters a line."""
WIDTH, LINE, GAP, MOST = 13.0, 0.135, 0.1, 3
"""Inches: width, height of a text line, space between rows; most lines of what was computed and of a counterexample."""


SYMBOLS = {
    "total_variation": "TV",
    "tv_bound": "B",
    "kl_output_target": "KL(out‖target)",
    "kl_target_output": "KL(target‖out)",
}
"""Names of the code → symbols of the picture."""


def build(context: Context) -> Rows:
    """One row a claim, of strings; quick: four of them."""
    names = list(QUICK) if context.quick else list(ledger_entries())
    rows: Rows = []
    for name in context.progress(names):
        (row,) = context.cell(name, lambda name=name: ledger_rows(claims_ledger([name])))  # type: ignore[misc]
        rows.append({"name": name} | {key: value or None for key, value in row.items()})
    return rows


def _lines(text: str, width: int, most: int | None = None) -> list[str]:
    return textwrap.wrap(text, width, max_lines=most, placeholder=" […]")


def evidence(row: Row) -> list[str]:
    """Lines of the last column: what was computed, then the counterexample if there is one."""
    lines = _lines(f"computed: {symbols(row['computed'])}", COLUMNS["evidence"][1], MOST)
    if row["counterexample"]:
        lines += _lines(f"counterexample: {symbols(row['counterexample'])}", COLUMNS["evidence"][1], MOST)
    return lines


def symbols(text: str) -> str:
    """Names of the code in the symbols of the picture."""
    for name, symbol in SYMBOLS.items():
        text = text.replace(name, symbol)
    return text


def draw(rows: Rows) -> Picture:
    """Rows by verdict, in the order of `LOOKS`."""
    fields = []
    for row in sorted(rows, key=lambda row: list(LOOKS).index(row["verdict"])):
        reading = {"sure": "", "reconstructed": " (wording reconstructed)", "not available": " (wording not available)"}
        texts = {"claim": f"{row['name']}: {row['claim']}", "source": row["source"] + reading[row["wording"]]}
        field = {key: _lines(text, COLUMNS[key][1]) for key, text in texts.items()} | {"evidence": evidence(row)}
        fields.append((row["verdict"], field))
    heights = [max(2, *(len(lines) for lines in field.values())) * LINE + GAP for _, field in fields]
    total = sum(heights) + 0.35
    figure, grid = style.subplots(1, 1, WIDTH, total + 0.4)
    axes = grid[0, 0]
    axes.set(xlim=(0, WIDTH), ylim=(total, 0))
    axes.axis("off")
    for key, (left, _) in {"verdict": (0.1, 0), **COLUMNS}.items():
        title = "what was computed, and the smallest counterexample found" if key == "evidence" else key
        axes.text(left, 0.2, title, fontsize=9, fontweight="bold", va="center")
    top = 0.35
    for (verdict, field), height in zip(fields, heights, strict=True):
        back, front, sign = LOOKS[verdict]
        axes.add_patch(Rectangle((0.06, top + 0.02), 1.6, height - 0.04, facecolor=back, edgecolor="none"))
        words_ = "\n".join([f"{sign} {verdict}"] if len(verdict) < 12 else textwrap.wrap(f"{sign} {verdict}", 17))
        axes.text(0.86, top + height / 2, words_, color=front, fontsize=8, ha="center", va="center")
        for key, (left, _) in COLUMNS.items():
            axes.text(left, top + GAP / 2, "\n".join(field[key]), fontsize=7.5, va="top", linespacing=1.2)
        top += height
        axes.axhline(top, color="#CCCCCC", lw=0.6)
    return figure


def claim(rows: Rows) -> str:
    """How many claims got which verdict."""
    counts = Counter(row["verdict"] for row in rows)
    return f"Of {len(rows)} published claims " + ", ".join(
        f"{counts[verdict]} {_verb(verdict, counts[verdict])}" for verdict in LOOKS if counts[verdict]
    ) + "."  # fmt: skip


def _verb(verdict: str, count: int) -> str:
    if verdict.startswith("not"):
        return f"{'is' if count == 1 else 'are'} {verdict}"
    first, _, rest = verdict.partition(" ")
    return " ".join([first if count == 1 else first.removesuffix("s"), rest]).strip()


def caption(rows: Rows) -> str:
    """What the verdicts mean, and where the wording is not the source's own."""
    wording = Counter(row["wording"] for row in rows)
    cut = sum("[…]" in " ".join(evidence(row)) for row in rows)
    return (
        "holds: proved, or no counterexample among the cases counted. Holds for the bound only: the bound B on "
        "TV obeys the claim, the exact distance of the chain shown does not. Not decidable here: needs networks, or a "
        f"wording that was not available. Wording reconstructed in {wording['reconstructed']} rows of {len(rows)}; a "
        "verdict is about the claim as written here. All computed by proofs and by deterministic searches over small "
        "rational chains, smallest denominators first. p, q: target and draft laws of independent tokens; ω: "
        "relaxation factor; f: acceptance; G: residual; L: draft length; N: expected accepted drafts; t: relaxation "
        f"from lossless (0) to accept all (1).{f' […] in the picture: cut, whole in the table ({cut}).' if cut else ''}"
    )


register(
    Figure(
        name="claims_ledger",
        title="Published claims about relaxed decoding, and what exact computation says",
        claim=claim,
        caption=caption,
        build=build,
        draw=draw,
        uses=("theory",),
        order=58,
        group="papers",
    )
)
