"""One page with all figures: OUT/index.html, readable from disk, with no network and no script.

Pictures are inside the page, so that it can be passed on as a single file; tables and PDFs are linked beside it.
"""

from __future__ import annotations

import base64
from html import escape
from typing import Any

from paper_figures.registry import Figure, figures
from paper_figures.store import Store
from simulate.files import write_atomically

ANSWERS = (
    "Relaxed speculative decoding saves calls of a large image model by accepting drafted tokens that the exact "
    "method would reject, and so changes the law of what is generated; this page shows which ways of relaxing "
    "change it least for the calls they save, and by which measure. Every number is computed from the tables linked "
    "under the figures, and each caption says which numbers are exact, which are proved bounds and which are "
    "estimates."
)

CSS = """
:root { color-scheme: light dark; --back: #fdfdfc; --text: #1d1d1f; --soft: #55585e; --line: #d9dadd; --link: #0b5cad;
  --card: #ffffff; --code: #f1f2f4; }
@media (prefers-color-scheme: dark) { :root { --back: #17181b; --text: #e8e8ea; --soft: #a9adb5; --line: #3a3d43;
  --link: #7db8f5; --card: #1f2125; --code: #2a2d32; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem clamp(.8rem, 3vw, 2rem) 4rem; max-width: 62rem; background: var(--back);
  color: var(--text); font: 1rem/1.55 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.6rem; margin: 1rem 0 .5rem; } h2 { font-size: 1.2rem; margin: 0 0 .4rem; }
a { color: var(--link); } a:focus-visible, summary:focus-visible { outline: 3px solid var(--link);
  outline-offset: 2px; border-radius: 2px; }
.skip { position: absolute; left: -99rem; } .skip:focus { position: static; }
nav ol { columns: 22rem; padding-left: 1.4rem; } nav li { break-inside: avoid; margin-bottom: .25rem; }
article { margin: 2rem 0; padding: 1.2rem clamp(.8rem, 2.5vw, 1.6rem); background: var(--card);
  border: 1px solid var(--line); border-radius: .5rem; }
figure { margin: 1rem 0; } figure img { display: block; width: 100%; height: auto; background: #fff;
  padding: .4rem; border-radius: .3rem; }
figcaption { margin-top: .6rem; color: var(--soft); font-size: .93rem; }
.claim { font-weight: 600; margin: 0; } .meta { color: var(--soft); font-size: .9rem; margin: .3rem 0; }
code { background: var(--code); padding: .1rem .35rem; border-radius: .25rem; font-size: .88em; }
.notice { border-left: 4px solid #e69f00; padding-left: .8rem; }
.picture { display: block; overflow-x: auto; } @media (max-width: 40rem) { .picture img { min-width: 40rem; } }
@media print { nav, .skip { display: none; } article { break-inside: avoid; border: 0; } }
"""


def _command(figure: Figure, entry: dict[str, Any]) -> str:
    command = f"python -m paper_figures {figure.name}"
    if entry.get("quick"):
        command += " --quick"
    if entry.get("seed"):
        command += f" --seed {entry['seed']}"
    return command


def _article(store: Store, figure: Figure, entry: dict[str, Any]) -> str:
    name = figure.name
    picture = base64.b64encode(store.path(name, "png").read_bytes()).decode()
    rows = entry["rows"]
    return f"""
<article id="{name}" aria-labelledby="{name}-title">
<h2 id="{name}-title">{escape(entry["title"])}{" (small version)" * bool(entry.get("quick"))}</h2>
<p class="claim">{escape(entry["claim"])}</p>
<figure>
<a class="picture" href="{name}.png"><img src="data:image/png;base64,{picture}"
alt="{escape(entry["title"])}. {escape(entry["claim"])}"></a>
<figcaption>{escape(entry["caption"])}</figcaption>
</figure>
<p class="meta"><a href="{name}.csv">Table (CSV, {rows} row{"s" * (rows != 1)})</a> ·
<a href="{name}.pdf">Figure (PDF)</a> · <a href="{name}.png">Figure (PNG)</a></p>
<p class="meta">Made by <code>{escape(_command(figure, entry))}</code> in {entry["seconds"]:.1f} s.</p>
</article>"""


def page(store: Store) -> str:
    """The page's HTML, from the store's state."""
    state = store.state()
    ready = [f for f in figures() if f.name in state and all(store.intact(f.name, kind) for kind in ("csv", "png"))]
    missing = [figure for figure in figures() if figure not in ready]
    contents = "\n".join(
        f'<li><a href="#{figure.name}">{escape(state[figure.name]["title"])}</a></li>' for figure in ready
    )
    notices = ""
    if store.quick:
        notices += (
            '<p class="notice">Small versions, for a first look: fewer chains, settings and samples than the full '
            "figures, which <code>python -m paper_figures</code> makes. Numbers and claims here are those of the "
            "small versions.</p>"
        )
    if missing:
        names = ", ".join(f"<code>{figure.name}</code>" for figure in missing)
        notices += f'<p class="notice">Not made yet: {names}.</p>'
    articles = "".join(_article(store, figure, state[figure.name]) for figure in ready)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>relaxsd: figures</title>
<style>{CSS}</style>
</head>
<body>
<a class="skip" href="#figures">Skip to the figures</a>
<header>
<h1>Relaxed speculative decoding: the figures{", small versions" * store.quick}</h1>
<p>{ANSWERS}</p>
{notices}
</header>
<nav aria-label="Figures"><ol>
{contents}
</ol></nav>
<main id="figures">{articles}
</main>
</body>
</html>
"""


def write(store: Store) -> None:
    """Write OUT/index.html."""
    write_atomically(store.folder / "index.html", page(store).encode())
