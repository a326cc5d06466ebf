"""Numbers in README, docs and notebooks: each comes from a table that a command writes, or is declared no result.

A number in prose must be covered by one of three things, or the guard below fails and names its line:

- the README's answers, rewritten from the recorded tables by `python -m paper_figures --record`;
- a `Quote`: the sentence with its numbers left open, and a function that computes them;
- `NO_RESULTS`: a definition, a setting, an example, with the reason.

Code blocks are run by `tests/test_readme.py` and `tests/notebooks`; of them only the comments are prose.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import theory
from paper_figures import record
from paper_figures.tables import select
from simulate.testing import check_law, reference_sampler
from validate.comparison.sweep_table import summary

ROOT = Path(__file__).resolve().parents[1]
ROUNDED = 1.05
"""Largest factor between a count and the round number that is said for it."""
SPOKEN = {"80,000": 80_000, "two million": 2_000_000}


@dataclass(frozen=True)
class Quote:
    """A sentence of a text, its numbers as fields, and what computes them."""

    file: str
    template: str
    values: Callable[[], dict[str, object]]

    def text(self) -> str:
        """The sentence as it has to stand in the file."""
        return self.template.format(**self.values())


def near(said: str, value: float) -> str:
    """What is said, if the value rounds to it; else the value."""
    return said if abs(math.log(value / SPOKEN[said])) <= math.log(ROUNDED) else f"{value:.3g}"


def sampler() -> dict[str, object]:
    """transformers' sampler, pair by pair: python -m simulate.testing.adapters --out …/transformers_sampler.csv."""
    rows = record.recorded("transformers_sampler")
    passed = select(rows, passed=True)
    found = [row for row in passed if row["smallest_tv"] < 1]
    (tv,), (power,) = {row["tv"] for row in rows}, {row["power"] for row in found}
    numbers = {"passed": len(passed), "all": len(rows), "found": len(found)}
    return numbers | {"tv": f"{tv:.2f}"[1:], "power": f"{power:.2f}"[1:]}


@cache
def rounds(said: str, smallest_tv: float) -> str:
    """Rounds that a law test of a correct sampler takes."""
    lossless = theory.Verifier(theory.Lossless())
    return near(said, check_law(reference_sampler(lossless), smallest_tv=smallest_tv).rounds)


def sweep(name: str) -> dict[str, object]:
    """Report of `python -m validate compare --sweep`."""
    return dict(json.loads((ROOT / "validate" / "reports" / name).read_text(encoding="utf-8")))


def recommended() -> dict[str, object]:
    """The sentence on the recommended rule, and the settings of the sweep on other images."""
    ours, again = sweep("sweep-cpu-2026-11-30.json"), sweep("sweep-seed1-cpu-2026-11-30.json")
    return {"sentence": summary(ours), "images": ours["settings"]["images"], "cells": len(again["cells"])}  # type: ignore[index, arg-type]


README = "README.md"
QUOTES = [
    Quote(README, "{sentence} ([report]", lambda: {"sentence": recommended()["sentence"]}),
    Quote(README, "With {images} images a cell", lambda: {"images": recommended()["images"]}),
    Quote(README, "on other images ({cells} of the settings)", lambda: {"cells": recommended()["cells"]}),
    Quote(
        README,
        "on {passed} of the {all} built-in pairs; on {found} of them any law at TV ≥ {tv} would have been found with "
        "probability {power},",
        sampler,
    ),
    Quote(README, "about {n} rounds at .1,", lambda: {"n": rounds("80,000", 0.1)}),
    Quote(README, "{n} at the default .02;", lambda: {"n": rounds("two million", 0.02)}),
    Quote(README, "up to 2**{n} sequences", lambda: {"n": int(math.log2(theory.chains.LARGEST_LAW))}),
]

NO_RESULTS = {
    README: {
        "Python 3.11 or newer": "version",
        "e^{−.2 i}": "the rule's definition",
        "under weak guidance ν = .7": "a setting",
        "about ten minutes on two cores": "expected time; each figure's own stands in the gallery",
        "in about two minutes": "expected time of a command",
        "in ninety seconds": "expected time of a command",
        "five minutes with CUDA": "expected time of a command",
        "A larger pair (14 × 14 tokens, a target of 10 M parameters)": "setting",
        "estimated at five minutes": "an estimate, and said to be one",
        "# 72 cells": "tests/test_readme.py",
        "a false-alarm level of 1e-9": "setting",
        "four times as many at half of it": "follows from the square law of the two numbers beside it",
        "once in ten million rounds": "an example of what is rare",
        "over 4096 ids": "setting",
        "p = [1e-9, 1 − 1e-9], q = [1e-8, 1 − 1e-8], draft 0: nine times in ten": "input; 1 − p/q at token 0",
        "of p [1.0000004, 0]": "input",
        "empty in float32: 0/0": "a formula",
        "p = q = [.1, .9]": "input",
        "agrees with rational arithmetic to 1e-12": "tolerance of the tests",
    },
    "notebooks/02_one_round.py": {"at a mean TV of 0.3": "setting"},
    "notebooks/06_testing_a_sampler.py": {"with 53 bits": "of a float64"},
    "notebooks/07_your_own_rule.py": {"at a mean TV of 0.3": "setting"},
    "docs/theory.rst": {"TV ≤ 2/5": "the paper's condition"},
    "notebooks/03_annealing.py": {"TV(p, q) ≤ 2/5": "the paper's condition"},
}
"""File → words with numbers that are no results, and why."""

_UNIT = "seconds?|minutes?|hours?|times|million|billion|in ten|orders of magnitude|per ?cent"
_WORD = (
    "two|three|four|five|six|seven|eight|nine|ten|twelve|fifteen|twenty|thirty|forty|fifty|sixty|ninety|hundred|"
    "thousand"
)
NUMBER = re.compile(
    r"(?<![\w.])(?:\d*\.\d+|\d+)e[-−]?\d+"  # 1e-9
    r"|(?<![\w.])\d*\.\d+(?![\w.]*\d)"  # 0.3, .3; not 5.24.0
    r"|(?<![\w.])\d{1,3}(?:,\d{3})+"  # 80,000
    r"|(?<![\w.])\d+ ?%"
    r"|(?<![\w.])\d+/\d+"
    r"|(?<![\w.])\d+ of (?:the )?\d+"
    r"|(?<![\w.])\d{2,}(?![\w]*[.\w]\d)"  # integers of two digits and more; single ones are formulas
    rf"|\b(?:{_WORD}|\d+) (?:{_UNIT})\b"
    r"|\ban? (?:minute|hour)\b",
    re.IGNORECASE,
)
NO_PROSE = {
    ".md": (
        re.escape(record.BEGIN) + ".*?" + re.escape(record.END),
        r"```.*?```",
        r"(?m)^    [^#\n]*",
        r"`[^`\n]*`",
        r"\]\([^)\s]*\)",
    ),
    ".rst": (r"(?m)^    .*$", r"``[^`]*``", r":\w+:`[^`]*`"),
    ".py": (r"`[^`\n]*`",),
}
"""Suffix → code, links and what else is not read as prose."""
ARXIV = r"\b\d{4}\.\d{5}\b"


def prose(path: str, text: str) -> str:
    """The text with everything else replaced by blanks, so that lines keep their numbers."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match[0])

    if path.endswith(".py"):
        cells = re.split(r"(?m)^(?=# %%)", text)
        text = "".join(cell if cell.startswith("# %% [markdown]") else re.sub(r"[^\n]", " ", cell) for cell in cells)
    for pattern in (*NO_PROSE[Path(path).suffix], ARXIV):
        text = re.sub(pattern, blank, text, flags=re.DOTALL)
    return text


def spans(words: str, text: str) -> list[tuple[int, int]]:
    """Where the words stand, however the lines are broken."""
    pattern = r"[\s#]+".join(re.escape(word) for word in words.removeprefix("# ").split())
    return [match.span() for match in re.finditer(pattern, text)]


def undeclared(path: str, text: str, declared: list[str]) -> list[str]:
    """Numbers in prose that none of the declared words cover, with their lines."""
    covered = [span for words in declared for span in spans(words, text)]
    return [
        f"{path}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]!r} in {_line(text, match.start())!r}"
        for match in NUMBER.finditer(prose(path, text))
        if not any(start < match.end() and match.start() < end for start, end in covered)
    ]


def _line(text: str, at: int) -> str:
    start = text.rfind("\n", 0, at) + 1
    return text[start : text.find("\n", at)].strip()[:90]


TEXTS = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("README.md", "CONTRIBUTING.md", "docs/*.rst", "notebooks/*.py")
    for path in ROOT.glob(pattern)
)


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


@pytest.mark.parametrize("quote", QUOTES, ids=lambda quote: quote.template[:30])
def test_quoted_numbers_are_the_computed_ones(quote: Quote) -> None:
    """The sentence stands in the text as the tables say it."""
    assert len(spans(quote.text(), read(quote.file))) == 1, f"{quote.file} must say: {quote.text()}"


def test_answers_are_those_of_the_recorded_tables() -> None:
    """To the letter; python -m paper_figures --record renews both."""
    assert record.with_block(read(README)) == read(README)
    assert NUMBER.search(record.block())


@pytest.mark.parametrize("path", TEXTS)
def test_every_number_is_declared(path: str) -> None:
    """A new number fails here until it is a quote, or no result."""
    declared = [quote.text() for quote in QUOTES if quote.file == path] + list(NO_RESULTS.get(path, ()))
    assert undeclared(path, read(path), declared) == []


@pytest.mark.parametrize(("path", "words"), [(path, words) for path, listed in NO_RESULTS.items() for words in listed])
def test_no_declaration_is_stale(path: str, words: str) -> None:
    """What is excused still stands there, and has a number to excuse."""
    assert spans(words, read(path)), f"{path} no longer says {words!r}: take it off the list"
    assert NUMBER.search(words)


@pytest.mark.parametrize(
    "said",
    ["falls by 37 %", "is 0.82 times", "ratio .3.", "in 74 of 75", "cost 1e-3", "about 12,000", "ran 40 times",
     "in nine minutes", "in an hour",
        "3 in ten", "a TV of 1/3", "needs 128 images"],
)  # fmt: skip
@pytest.mark.parametrize("path", [README, "docs/theory.rst", "notebooks/01_one_position.py"])
def test_the_guard_sees(said: str, path: str) -> None:
    """Negative controls: a new result in each kind of text is found, on its line."""
    text = f"# %% [markdown]\n# KL {said}\n" if path.endswith(".py") else f"Words.\n\nKL {said}\n"
    (found,) = {line.split(":")[1] for line in undeclared(path, text, [])}
    assert int(found) == text.rstrip().count("\n") + 1


def test_the_guard_lets_formulas_be() -> None:
    """Indices, versions, papers and code are not results."""
    text = "f = min(1, p/q), L + 1, x₁, `size=0.3`, arXiv 2601.09212, torch 2.13.0.\n\n    python -m x --tv 0.7\n"
    assert undeclared(README, text, []) == []
    assert undeclared(README, text.replace("0.7\n", "0.7  # in 12 seconds\n"), []) != []


def test_a_quote_notices_another_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: change the recorded table and the sentence no longer stands."""
    real = record.recorded
    monkeypatch.setattr(record, "recorded", lambda name: real(name)[1:])
    (quote,) = [quote for quote in QUOTES if quote.values is sampler]
    assert not spans(quote.text(), read(README))
    assert near("80,000", 78_000) == "80,000"
    assert near("80,000", 60_000) == "6e+04"
