"""One page with all figures: OUT/index.html, readable from disk with no network.

Pictures, style sheet and the small script of the claims ledger are inside the page, so that it can be passed on as a
single file and read without the script; tables and PDFs are linked beside it. What is not there, or is not what was
written, is named with the command that makes it again.
"""

from __future__ import annotations

import base64
import re
from html import escape
from pathlib import Path
from typing import Any

from paper_figures import tables
from paper_figures.page import answers, ledger
from paper_figures.registry import GROUPS, Figure, Rows, figures
from paper_figures.store import Store
from simulate.files import write_atomically

INTRODUCTION = (
    "Image models write a picture token by token, and every token costs a call of a large network, the target. "
    "Speculative decoding lets a small network, the draft, propose several tokens, which one call of the target checks "
    "together. The exact check keeps the target's law but refuses many tokens; relaxed checks accept more, need fewer "
    "calls, and change the law of what comes out. This page shows by how much, which ways of relaxing change it least, "
    "and by which measure."
)

LEDGER = "claims_ledger"
"""The figure whose table is shown as a table."""
PAGE = Path(__file__).parent / "page"
SHOWN = ("csv", "png")
"""Kinds of file that the page shows or is made from."""


def _command(store: Store, name: str, entry: dict[str, Any] | None = None) -> str:
    """The command that makes a figure of this folder."""
    quick, seed = (store.quick, store.seed) if entry is None else (entry.get("quick"), entry.get("seed"))
    return f"python -m paper_figures {name}" + " --quick" * bool(quick) + (f" --seed {seed}" if seed else "")


def _rows(store: Store, name: str) -> Rows:
    return tables.loads(store.path(name, "csv").read_text(encoding="utf-8"))


def _shown(store: Store, name: str, entry: dict[str, Any]) -> str:
    """The picture, or for the claims the table."""
    caption = f"<figcaption>{escape(entry['caption'])}</figcaption>"
    if name == LEDGER:
        return f"<figure>{ledger.table(_rows(store, name))}\n{caption}\n</figure>"
    picture = base64.b64encode(store.path(name, "png").read_bytes()).decode()
    return f"""<figure>
<a class="picture" href="{name}.png"><img src="data:image/png;base64,{picture}"
alt="{escape(entry["title"])}. {escape(entry["claim"])}"></a>
{caption}
</figure>"""


def _article(store: Store, figure: Figure, entry: dict[str, Any]) -> str:
    name, rows = figure.name, entry["rows"]
    title = escape(entry["title"])
    labels = {"csv": f"Table (CSV, {rows} row{'s' * (rows != 1)})", "pdf": "Figure (PDF)", "png": "Figure (PNG)"}
    links = [
        f'<a href="{name}.{kind}" aria-label="{label}: {title}"{" download" * (kind == "csv")}>{label}</a>'
        for kind, label in labels.items()
        if store.path(name, kind).is_file()
    ]
    return f"""
<article id="{name}" aria-labelledby="{name}-title">
<h3 id="{name}-title">{title}{" (small version)" * bool(entry.get("quick"))}</h3>
<p class="claim">{escape(entry["claim"])}</p>
{_shown(store, name, entry)}
<p class="meta">{" · ".join(links)}</p>
<p class="meta">Made by <code>{escape(_command(store, name, entry))}</code> in {entry["seconds"]:.1f} s.</p>
</article>"""


def _unbroken(text: str) -> str:
    """Equations and percentages that no line end tears apart."""
    return re.sub(r" (?=[=%] ?)|(?<==) ", "\u00a0", text)


def _answers(store: Store, ready: dict[str, Figure], titles: dict[str, str]) -> str:
    """Questions and answers, with links to the figures they come from."""
    out = []
    for question, said in answers.answers(
        {name: _rows(store, name) for name in answers.NEEDED if name in ready}
    ).items():
        lines = []
        for text, names in said:
            links = ", ".join(f'<a href="#{name}">{escape(titles[name])}</a>' for name in names)
            lines.append(
                f"<li>{_unbroken(escape(text))}" + (f' <span class="from">[{links}]</span>' if links else "") + "</li>"
            )
        out.append(f"<h3>{escape(question)}</h3>\n<ul>\n" + "\n".join(lines) + "\n</ul>")
    words = "".join(f"<dt>{escape(term)}</dt><dd>{escape(meaning)}</dd>" for term, meaning in answers.WORDS.items())
    return f"""<section id="answers" aria-labelledby="answers-title">
<h2 id="answers-title">In short</h2>
<details><summary>The words used here</summary>
<dl>{words}</dl>
</details>
{"".join(out)}
</section>"""


def _notices(store: Store, state: dict[str, Any], absent: list[Figure]) -> str:
    """What to know first: small versions; what is missing or damaged, and how to get it back."""
    out = ""
    if store.quick:
        out += (
            '<p class="notice">Small versions, for a first look: fewer chains, settings and samples than the full '
            "figures, which <code>python -m paper_figures</code> makes. Numbers and claims here are those of the "
            "small versions.</p>"
        )
    missing = [figure.name for figure in absent if figure.name not in state]
    if missing:
        names = ", ".join(f"<code>{name}</code>" for name in missing)
        command = _command(store, missing[0] if len(missing) == 1 else "").replace("  ", " ").strip()
        out += f'<p class="notice">Not made yet: {names}. To make: <code>{escape(command)}</code></p>'
    for figure in absent:
        if figure.name in state:
            files = [f"{figure.name}.{kind}" for kind in SHOWN if not store.intact(figure.name, kind)]
            command = _command(store, figure.name, state[figure.name])
            out += (
                f'<p class="notice">Left out, because missing or changed on disk: '
                f"{', '.join(f'<code>{escape(file)}</code>' for file in files)}. "
                f"To make it again: <code>{escape(command)}</code></p>"
            )
    return out


def page(store: Store) -> str:
    """The page's HTML, from the store's state."""
    state = store.state()
    ready = {f.name: f for f in figures() if f.name in state and all(store.intact(f.name, kind) for kind in SHOWN)}
    absent = [figure for figure in figures() if figure.name not in ready]
    titles = {name: str(state[name]["title"]) for name in ready}
    contents, sections = "", ""
    for group, heading in GROUPS.items():
        members = [figure for figure in ready.values() if figure.group == group]
        if members:
            items = "\n".join(f'<li><a href="#{f.name}">{escape(titles[f.name])}</a></li>' for f in members)
            contents += f"<h3>{escape(heading)}</h3>\n<ul>\n{items}\n</ul>\n"
            slug = group.replace(" ", "-")
            articles = "".join(_article(store, figure, state[figure.name]) for figure in members)
            sections += (
                f'\n<section aria-labelledby="{slug}"><h2 id="{slug}">{escape(heading)}</h2>{articles}\n</section>'
            )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>relaxsd: figures</title>
<style>{(PAGE / "style.css").read_text(encoding="utf-8")}</style>
</head>
<body>
<a class="skip" href="#figures">Skip to the figures</a>
<header>
<h1>Relaxed speculative decoding: the figures{", small versions" * store.quick}</h1>
<p>{INTRODUCTION}</p>
{_notices(store, state, absent)}
</header>
<main>
{_answers(store, ready, titles)}
<nav aria-labelledby="contents-title"><h2 id="contents-title">Figures</h2>
<p>Each caption says which numbers are exact, which are proved bounds and which are estimates; the table under a figure
holds every number in it.</p>
{contents}</nav>
<div id="figures" tabindex="-1">{sections}
</div>
</main>
<script>{(PAGE / "script.js").read_text(encoding="utf-8")}</script>
</body>
</html>
"""


def write(store: Store) -> None:
    """Write OUT/index.html."""
    write_atomically(store.folder / "index.html", page(store).encode())
