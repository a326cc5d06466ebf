"""The ledger of published claims as a table: who claims what, the verdict, and the smallest counterexample."""

from __future__ import annotations

import textwrap
from collections import Counter
from typing import TYPE_CHECKING

from matplotlib.patches import Rectangle

from paper_figures import style
from paper_figures.registry import Context, Figure, Rows, register
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
WIDTH, LINE, GAP, MOST = 13.0, 0.135, 0.1, 5
"""Inches: width, height of a text line, space between rows; most lines of one field."""


def build(context: Context) -> Rows:
    """One row a claim, of strings; quick: four of them."""
    names = list(QUICK) if context.quick else list(ledger_entries())
    rows: Rows = []
    for name in context.progress(names):
        (row,) = context.cell(name, lambda name=name: ledger_rows(claims_ledger([name])))  # type: ignore[misc]
        rows.append({"name": name} | {key: value or None for key, value in row.items()})
    return rows


def _lines(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, max_lines=MOST, placeholder=" […]")


def evidence(row: dict[str, str | None]) -> tuple[str, str]:
    """Heading and text of the last column: the counterexample if there is one, else what was computed."""
    if row["counterexample"]:
        return "counterexample", _symbols(row["counterexample"])
    return "computed", _symbols(row["computed"] or "")


def _symbols(text: str) -> str:
    """Names of the code in the symbols of the picture."""
    for name, symbol in (("total_variation", "TV"), ("tv_bound", "B"), ("kl_output_target", "KL(out‖target)")):
        text = text.replace(name, symbol)
    return text


def draw(rows: Rows) -> Picture:
    """Rows by verdict, in the order of `LOOKS`."""
    fields = []
    for row in sorted(rows, key=lambda row: list(LOOKS).index(row["verdict"])):
        heading, words = evidence(row)
        reading = {"sure": "", "reconstructed": " (wording reconstructed)", "not available": " (wording not available)"}
        texts = {
            "claim": f"{row['name']}: {row['claim']}",
            "source": row["source"] + reading[row["wording"]],
            "evidence": f"{heading}: {words}",
        }
        fields.append((row["verdict"], {key: _lines(text, COLUMNS[key][1]) for key, text in texts.items()}))
    heights = [max(2, *(len(lines) for lines in field.values())) * LINE + GAP for _, field in fields]
    total = sum(heights) + 0.35
    figure, grid = style.subplots(1, 1, WIDTH, total + 0.4)
    axes = grid[0, 0]
    axes.set(xlim=(0, WIDTH), ylim=(total, 0))
    axes.axis("off")
    for key, (left, _) in {"verdict": (0.1, 0), **COLUMNS}.items():
        title = "smallest counterexample, else what was computed" if key == "evidence" else key
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
    """What the verdicts mean, where the wording is not the source's own, and where the numbers come from."""
    words = Counter(row["wording"] for row in rows)
    cut = [row["name"] for row in rows if len(textwrap.wrap(": ".join(evidence(row)), COLUMNS["evidence"][1])) > MOST]
    return (
        "holds: proved, or no counterexample among the rational cases searched. holds for the bound only: the bound B "
        "obeys the claim, the exact distance of some chain does not. fails: the counterexample shown, the first in "
        "order of denominators. not decidable here: needs networks, or a wording that was not available. "
        f"The wording is reconstructed in {words['reconstructed']} rows of {len(rows)} and not available in "
        f"{words['not available']}; a verdict is about the claim as written in this table. Verdicts are computed, by "
        "proofs and by deterministic searches over small rational chains; nothing is sampled and no seed is used. "
        "p, q: target and draft laws of independent tokens; L: draft length; t: relaxation from lossless (0) to "
        f"accepting everything (1). […] marks {len(cut)} texts cut for space; the table holds all of them, and what "
        "was computed for every row."
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
        order=50,
    )
)
