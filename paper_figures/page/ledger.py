"""The claims ledger as an HTML table: complete without a script; with it, headers sort and two fields filter."""

from __future__ import annotations

from html import escape

from paper_figures.registry import Row, Rows

COLUMNS = {
    "verdict": "Verdict",
    "claim": "Claim",
    "source": "Source",
    "computed": "What was computed",
    "counterexample": "Counterexample",
}
"""Column of the table → heading."""


def _cell(row: Row, key: str) -> str:
    from paper_figures.claims_ledger import LOOKS, symbols  # not at the top: the page outlives a figure that is broken

    if key == "verdict":
        rank = list(LOOKS).index(row["verdict"]) if row["verdict"] in LOOKS else len(LOOKS)
        sign = LOOKS[row["verdict"]][2] if row["verdict"] in LOOKS else "?"
        words = f'<b aria-hidden="true">{sign}</b> {escape(row["verdict"])}'
        return f'data-key="{rank}"><span class="verdict v{rank}">{words}</span>'
    if key == "claim":
        return f'data-key="{escape(row["name"])}"><strong>{escape(row["name"])}</strong><br>{escape(row["claim"])}'
    if key == "source":
        wording = f"<small>wording {escape(row['wording'])}</small>"
        return f'data-key="{escape(row["source"])}">{escape(row["source"])}<br>' + wording
    return f">{escape(symbols(row[key] or '–'))}"


def table(rows: Rows) -> str:
    """The ledger's controls and table.

    Parameters
    ----------
    rows : list of dict
        As in `claims_ledger.csv`.

    Returns
    -------
    str
        HTML. Cells carry their column's heading for narrow screens, where each row is shown as a card; `data-key` is
        what a column is sorted by where that is not its text.
    """
    heads = "".join(f'<th role="columnheader" scope="col">{label}</th>' for label in COLUMNS.values())
    body = "\n".join(
        '<tr role="row">'
        + "".join(f'<td role="cell" data-label="{label}" {_cell(row, key)}</td>' for key, label in COLUMNS.items())
        + "</tr>"
        for row in rows
    )
    options = "".join(f"<option>{escape(v)}</option>" for v in dict.fromkeys(row["verdict"] for row in rows))
    return f"""
<form class="controls" id="ledger-controls" hidden>
<label>Search <input type="search" id="ledger-text" autocomplete="off"></label>
<label>Verdict <select id="ledger-verdict"><option value="">all</option>{options}</select></label>
<button type="reset">Show all</button>
<output id="ledger-count" for="ledger-text ledger-verdict" aria-live="polite">{len(rows)} of {len(rows)} claims</output>
</form>
<table id="ledger" role="table" aria-label="Published claims and their verdicts">
<thead role="rowgroup"><tr role="row">{heads}</tr></thead>
<tbody role="rowgroup">
{body}
</tbody>
</table>"""
