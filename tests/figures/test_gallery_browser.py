"""The page in headless Chromium: no network, no error, contrast, narrow screens, keyboard, sorting and filtering."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from paper_figures import record
from paper_figures.claims_ledger import LOOKS, symbols
from paper_figures.page.ledger import COLUMNS
from tests.figures.recorded_store import recorded_store

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")

ROWS = record.recorded("claims_ledger")
NARROW = 360
"""Pixels: a small telephone."""
AA = {"text": 4.5, "large": 3.0}
"""WCAG 2.2, 1.4.3: least contrast of text, and of text from 24 px, or 18.66 px bold."""
CONTROLS = "a[href], button, input, select, summary, textarea, [tabindex='0']"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One Chromium for this file."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the recorded tables."""
    folder = tmp_path_factory.mktemp("gallery")
    recorded_store(folder)
    return folder


@pytest.fixture
def visit(browser: Any, folder: Path) -> Iterator[Callable[..., Any]]:
    """Opens the page, with any context option, `change` applied to its text before; errors and requests are kept."""
    contexts = []

    def visit(change: Callable[[str], str] | None = None, **options: Any) -> Any:
        path = folder / "index.html"
        if change is not None:
            before = path.read_text(encoding="utf-8")
            path = folder / "changed.html"
            path.write_text(change(before), encoding="utf-8")
            assert path.read_text(encoding="utf-8") != before
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.asked, page.errors = [], []
        page.on("request", lambda request: page.asked.append(request.url))
        page.on("console", lambda message: page.errors.append(message.text) if message.type != "log" else None)
        page.on("pageerror", lambda error: page.errors.append(str(error)))
        page.goto(path.as_uri())
        return page

    yield visit
    for context in contexts:
        context.close()


def names(page: Any) -> list[str]:
    """The visible claims, by the name of their row."""
    return page.evaluate(
        """() => [...document.querySelectorAll("#ledger tbody tr")].filter((row) => row.checkVisibility())
        .map((row) => row.cells[1].querySelector("strong").textContent)"""
    )


def test_no_request_and_no_error(visit: Callable[..., Any], folder: Path) -> None:
    """Nothing is asked for but the page itself and what is inside it; the console is silent."""
    page = visit()
    page.wait_for_load_state("networkidle")
    assert page.asked[0] == (folder / "index.html").as_uri()
    assert all(url.startswith("data:image/png;base64,") for url in page.asked[1:])
    assert page.errors == []
    fetching = visit(lambda text: text.replace("</main>", '<img src="http://127.0.0.1:9/x.png" alt="x"></main>'))
    fetching.wait_for_load_state("networkidle")
    assert fetching.asked[-1].startswith("http://127.0.0.1:9/")
    assert fetching.errors


CONTRAST = """() => {
  const parse = (c) => { const v = c.match(/[\\d.]+/g).map(Number); return v.length < 4 ? [...v, 1] : v; };
  const light = (c) => { const [r, g, b] = c.map((v) => { v /= 255;
    return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = (e) => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor);
    if (c[3] === 1) return c; if (c[3] > 0) throw Error("translucent background"); } return [255, 255, 255, 1]; };
  const out = [];
  for (const e of document.body.querySelectorAll("*")) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!(own || e.matches("input, select")) || !e.checkVisibility() || e.closest("script, style, option")) continue;
    const style = getComputedStyle(e), size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    const kinds = [[style.color, "text"]];
    for (const part of ["::before", "::after"]) {
      const s = getComputedStyle(e, part); if (s.content !== "none") kinds.push([s.color, "text"]);
    }
    const back = light(behind(e).slice(0, 3));
    for (const [colour, kind] of kinds) {
      const front = light(parse(colour).slice(0, 3));
      out.push([(Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05), large ? "large" : kind,
        e.outerHTML.slice(0, 80)]);
    }
  }
  return out;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(visit: Callable[..., Any], scheme: str) -> None:
    """WCAG AA for all text, glossary open, in both themes, which differ."""
    page = visit(color_scheme=scheme)
    page.evaluate("() => document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    found = page.evaluate(CONTRAST)
    assert len(found) > 150
    assert [line for line in found if line[0] < AA[line[1]]] == []
    dark = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert (max(map(int, re.findall(r"\d+", dark))) < 60) == (scheme == "dark")


def test_contrast_would_be_missed(visit: Callable[..., Any]) -> None:
    """Negative control: soft text made softer."""
    page = visit(lambda text: text.replace("--soft: #55585e", "--soft: #9a9da4"), color_scheme="light")
    assert any(line[0] < AA[line[1]] for line in page.evaluate(CONTRAST))


@pytest.mark.parametrize("script", [True, False])
def test_no_sideways_scrolling_on_a_telephone(visit: Callable[..., Any], script: bool) -> None:
    """Nothing sticks out at 360 pixels, but inside the pictures' own scrolling boxes."""
    page = visit(viewport={"width": NARROW, "height": 700}, java_script_enabled=script)
    assert page.locator("html").evaluate("(e) => e.scrollWidth") <= NARROW
    wide = visit(lambda text: text.replace("</main>", "<pre>" + "x" * 200 + "</pre></main>"),
                 viewport={"width": NARROW, "height": 700})  # fmt: skip
    assert wide.locator("html").evaluate("(e) => e.scrollWidth") > NARROW


def test_tab_reaches_every_control_in_order(visit: Callable[..., Any]) -> None:
    """From the skip link to the last download, in the order of the page, each with a visible mark."""
    page = visit()
    wanted = page.evaluate(
        f"() => {{ window.controls = [...document.querySelectorAll(`{CONTROLS}`)].filter((e) => e.checkVisibility());"
        " return window.controls.length; }"
    )
    reached, unmarked = [], []
    for _ in range(wanted):
        page.keyboard.press("Tab")
        at, marked = page.evaluate(
            """() => { const e = document.activeElement, s = getComputedStyle(e);
            return [window.controls.indexOf(e), s.outlineStyle !== "none" && parseFloat(s.outlineWidth) >= 2]; }"""
        )
        reached.append(at)
        if not marked:
            unmarked.append(at)
    assert wanted > 40
    assert reached == list(range(wanted))
    assert unmarked == []


def test_skip_link_leads_to_the_figures(visit: Callable[..., Any]) -> None:
    page = visit()
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.textContent") == "Skip to the figures"
    page.keyboard.press("Enter")
    assert page.evaluate("() => document.activeElement.id") == "figures"


def test_words_are_opened_by_key(visit: Callable[..., Any]) -> None:
    page = visit()
    page.locator("summary").focus()
    page.keyboard.press("Enter")
    assert page.locator("dl").is_visible()


def keys(column: str) -> dict[str, str]:
    """Claim → what its row is sorted by in a column, from the table."""
    if column == "verdict":
        return {row["name"]: str(list(LOOKS).index(row["verdict"])) for row in ROWS}
    return {row["name"]: symbols(row["name" if column == "claim" else column] or "–") for row in ROWS}


SORTED = """([names, keys, sign]) => { const order = new Intl.Collator("en", { numeric: true });
  return names.toSorted((a, b) => sign * order.compare(keys[a], keys[b])); }"""


def check_sorting(page: Any) -> None:
    """Every header, by key, twice: up, then down, the others unmarked; equal ones keep their order."""
    for i, (column, label) in enumerate(COLUMNS.items()):
        button = page.get_by_role("button", name=label, exact=True)
        for direction, sign in (("ascending", 1), ("descending", -1)):
            before = names(page)
            button.focus()
            page.keyboard.press("Enter")
            assert page.evaluate("() => [...document.querySelectorAll('#ledger th')].map((h) => h.ariaSort)") == [
                direction if j == i else None for j in range(len(COLUMNS))
            ]
            assert names(page) == page.evaluate(SORTED, [before, keys(column), sign]), (column, direction)


def verdicts() -> dict[str, str]:
    """Claim → verdict, from the table."""
    return {row["name"]: row["verdict"] for row in ROWS}


def check_filtering(page: Any) -> None:
    """Text and verdict, alone and together, against the table; the count says so; reset shows all."""
    from playwright.sync_api import expect

    texts = {
        row["name"]: " ".join(symbols(str(value)) for key, value in row.items() if value is not None).lower()
        for row in ROWS
    }
    search, select = page.get_by_label("Search"), page.get_by_role("combobox", name="Verdict")
    count = page.get_by_role("status")
    for words in ("", "lantern", "BOUND lantern", "2601.09212", "no such words"):
        for verdict in ("", *LOOKS):
            search.fill(words)
            select.select_option(verdict)
            wanted = [
                name
                for name, text in texts.items()
                if all(word in text for word in words.lower().split()) and verdict in ("", verdicts()[name])
            ]
            assert names(page) == wanted, (words, verdict)
            assert count.inner_text() == f"{len(wanted)} of {len(ROWS)} claims"
    page.get_by_role("button", name="Show all").click()
    expect(count).to_have_text(f"{len(ROWS)} of {len(ROWS)} claims", timeout=2000)
    assert len(names(page)) == len(ROWS)


@pytest.mark.parametrize("width", [NARROW, 1200])
def test_sorting_and_filtering(visit: Callable[..., Any], width: int) -> None:
    """On both layouts; filtering first, on the order of the table."""
    page = visit(viewport={"width": width, "height": 900})
    check_filtering(page)
    check_sorting(page)
    page.get_by_label("Search").press("Enter")
    assert page.errors == []
    assert page.url.endswith("index.html")


@pytest.mark.parametrize(
    ("check", "old", "new"),
    [
        (check_sorting, "sign * order.compare(key(a, i), key(b, i))", "0"),
        (check_sorting, "const sign = down ? -1 : 1;", "const sign = 1;"),
        (check_sorting, 'head.removeAttribute("aria-sort");', ";"),
        (check_sorting, "row.cells[i].dataset.key ?? ", ""),
        (check_filtering, "wanted.every(", "wanted.some("),
        (check_filtering, "!verdict.value ||", "true ||"),
        (check_filtering, "shown += !row.hidden;", "shown += 1;"),
        (check_filtering, 'controls.addEventListener("reset", () => setTimeout(filter));', ""),
    ],
)
def test_a_broken_script_is_noticed(visit: Callable[..., Any], check: Callable[..., None], old: str, new: str) -> None:
    """Negative controls: each takes one thing away that the checks above are about."""
    page = visit(lambda text: text.replace(old, new))
    with pytest.raises(AssertionError):
        check(page)


def test_complete_without_a_script(visit: Callable[..., Any]) -> None:
    """All claims and answers to read, no dead controls."""
    page = visit(java_script_enabled=False)
    assert page.locator("#ledger tbody tr:visible").count() == len(ROWS)
    assert page.locator("#ledger-controls:visible").count() == 0
    assert page.locator("#answers li:visible").count() > 8
    assert page.locator("#ledger th").first.inner_text() == "Verdict"


def test_every_link_is_there(visit: Callable[..., Any], folder: Path) -> None:
    """Files on disk, anchors on the page."""
    page = visit()
    links = page.evaluate("() => [...document.links].map((a) => a.getAttribute('href'))")
    files = [link for link in links if not link.startswith("#")]
    assert len(files) > 20
    assert [link for link in files if not (folder / link).is_file() or os.path.isabs(link)] == []
    anchors = [link for link in links if link.startswith("#")]
    assert [link for link in anchors if page.locator(f'[id="{link[1:]}"]').count() != 1] == []
