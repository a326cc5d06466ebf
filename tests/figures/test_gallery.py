"""The page as text: answers from the tables on disk, sections, what is missing or damaged, record."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from paper_figures import gallery, record, registry, tables
from paper_figures.__main__ import main
from paper_figures.page import answers, ledger
from paper_figures.registry import Figure, Rows
from tests.figures.helpers import figure, table
from tests.figures.recorded_store import recorded_store
from tests.figures.test_command import Page

FOUND = {name: record.recorded(name) for name in answers.NEEDED}


def said(found: dict[str, Rows]) -> str:
    """All sentences."""
    return "\n".join(text for lines in answers.answers(found).values() for text, _ in lines)


def test_every_sentence_has_its_numbers() -> None:
    """With the recorded tables nothing is left out, and the three questions come first."""
    every = answers.answers(FOUND)
    assert sum(len(lines) for lines in every.values()) == len(answers.SENTENCES)
    assert list(every) == [answers.TRADE, answers.ANNEALING, answers.USE, answers.CLAIMS]
    for lines in every.values():
        for text, figures in lines:
            assert 60 < len(text) < 700
            assert not any(bad in text for bad in ("nan", "None", "inf ", "{"))
            assert figures or not re.search(r"\d", text)


@pytest.mark.parametrize("name", answers.NEEDED)
def test_a_missing_table_takes_its_sentences_along(name: str) -> None:
    """No more and no fewer than those that name it."""
    rest = answers.answers({key: rows for key, rows in FOUND.items() if key != name})
    kept = [figures for lines in rest.values() for _, figures in lines]
    assert kept == [s.figures for s in answers.SENTENCES if name not in s.figures]
    assert len(kept) < len(answers.SENTENCES)


def changed(name: str, column: str, change: float, **where: object) -> dict[str, Rows]:
    """The tables with some cells of one multiplied."""
    rows = [
        row | {column: row[column] * change} if all(row[k] == v for k, v in where.items()) else row
        for row in FOUND[name]
    ]
    return FOUND | {name: rows}


def test_words_follow_the_numbers() -> None:
    """Other ratios, other verdicts."""
    floored = {"schedule": "annealed, floored"}
    assert "in part for their KL" in said(FOUND)
    assert "no for the exact TV of one round" in said(FOUND)
    better = said(changed("annealing_long", "ratio", 0.1, quantity="kl_output_target", **floored))
    assert "the predictive TV of long sequences, their KL" in better
    worse = said(changed("annealing_long", "ratio", 10.0, quantity="step_bias", **floored))
    assert re.search(r"no for .*the predictive TV of long sequences", worse)
    steep = said(changed("annealing_long", "ratio", 10.0, quantity="step_bias"))
    assert "no schedule tried is below uniform relaxation" in steep
    kind = said(changed("annealing_truth", "ratio", 0.1, part="one round", quantity="tv", **floored))
    assert "is not what one round does" in said(FOUND)
    assert "is not what one round does" not in kind
    refuted = [row | {"verdict": "fails with a counterexample"} for row in FOUND["claims_ledger"]]
    assert "No rule escapes" not in said(FOUND | {"claims_ledger": refuted})


def test_some_numbers_by_hand() -> None:
    """Straight from the rows."""
    rows = {(row["schedule"], row["size"]): row for row in FOUND["real_pair"]}
    boldest = max(size for schedule, size in rows if schedule == "uniform")
    last = rows["uniform", boldest]
    assert f"from {rows['lossless', 0.0]['tokens_per_call']:.2f} (lossless) to {last['tokens_per_call']:.2f}" in said(
        FOUND
    )
    assert f"in {50 * (1 + last['image_tv']):.0f} % of the cases" in said(FOUND)
    lower = [
        row["ratio"] < 1
        for row in FOUND["annealing_truth"]
        if (row["part"], row["quantity"], row["schedule"]) == ("one round", "bound", "annealed, floored")
    ]
    assert f"in {sum(lower)} of {len(lower)} cases" in said(FOUND)


def test_small_versions_give_what_they_can() -> None:
    """A quick table without the rows a sentence needs leaves it out and raises nothing."""
    small = {name: table(name) for name in ("claims_ledger", "lossless_floor")}
    assert answers.CLAIMS in answers.answers(small)
    assert answers.TRADE not in answers.answers(small)


def test_page_of_recorded_tables(tmp_path: Path) -> None:
    """Sections in order, each figure once, every claim in the table, every answer linked to an article."""
    store = recorded_store(tmp_path)
    text = (tmp_path / "index.html").read_text(encoding="utf-8")
    for name in answers.NEEDED:
        assert text.count(f'<article id="{name}"') == 1
        assert f"<code>python -m paper_figures {name}</code> in 1.0 s" in text
        assert f'href="{name}.csv"' in text
    headings = re.findall(r"<h2[^>]*>(.*?)</h2>", text)
    shown = [heading.replace("'", "&#x27;") for key, heading in registry.GROUPS.items()
             if any(figure(name).group == key for name in answers.NEEDED)]  # fmt: skip
    assert headings == ["In short", "Figures", *shown]
    anchors = set(re.findall(r'href="#([^"]+)"', text))
    assert anchors <= set(re.findall(r'id="([^"]+)"', text))
    assert text.count('<tr role="row">') == 1 + len(FOUND["claims_ledger"])
    assert "Not made yet" in text
    assert store.intact("claims_ledger", "csv")


@pytest.mark.parametrize("harm", ["missing", "changed"])
def test_damage_is_named_with_its_command(tmp_path: Path, harm: str) -> None:
    """The page is written, leaves the figure and its sentences out, and says how to get them back."""
    store = recorded_store(tmp_path)
    path = store.path("real_pair", "csv")
    path.unlink() if harm == "missing" else path.write_text("schedule,size\nlossless,0.0\n", encoding="utf-8")
    gallery.write(store)
    text = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "missing or changed on disk: <code>real_pair.csv</code>" in text
    assert "To make it again: <code>python -m paper_figures real_pair</code>" in text
    assert '<article id="real_pair"' not in text
    assert "Speed for likeness" not in text
    assert '<article id="annealing_long"' in text


def test_without_a_state_the_page_is_written(tmp_path: Path) -> None:
    """A damaged state: nothing is trusted, everything is named."""
    store = recorded_store(tmp_path)
    (tmp_path / "state.json").write_text("{", encoding="utf-8")
    gallery.write(store)
    text = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "<article" not in text
    assert "<code>python -m paper_figures</code>" in text


def test_ledger_escapes_and_is_balanced() -> None:
    """Text of the table is text, whatever is in it; an unknown verdict is shown as it is."""
    row = dict.fromkeys(ledger.COLUMNS, "<b>&") | {"name": "<i>", "wording": "sure", "counterexample": None}
    page = ledger.table([row])
    assert "<i>" not in page
    assert "&lt;b&gt;&amp;" in page
    tags = Page(page.replace("<input", "<img")).tags
    assert sum(tag == "td" for tag, _ in tags) == len(ledger.COLUMNS)


def test_groups_are_checked(small: Figure) -> None:
    """A misspelt section is refused by name."""
    with pytest.raises(ValueError, match=r"small_one: group 'two rounds' must be one of one round, many rounds"):
        replace(small, group="two rounds")


def test_record_copies_and_rewrites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables to the byte, README between its marks and nowhere else; a damaged table or lost marks stop it."""
    store = recorded_store(tmp_path / "out")
    before = record.FOLDER
    monkeypatch.setattr(record, "FOLDER", tmp_path / "recorded")
    monkeypatch.setattr(record, "README", tmp_path / "README.md")
    record.README.write_text(f"before 1.5\n{record.BEGIN}old\n{record.END}after\n", encoding="utf-8")
    written = record.record(store)
    assert {path.name for path in written} == {*(f"{n}.csv" for n in answers.NEEDED), "README.md"}
    for name in answers.NEEDED:
        assert (record.FOLDER / f"{name}.csv").read_bytes() == (before / f"{name}.csv").read_bytes()
    text = record.README.read_text(encoding="utf-8")
    assert text == f"before 1.5\n{record.BEGIN}{record.block()}{record.END}after\n"
    record.README.write_text("no marks\n", encoding="utf-8")
    with pytest.raises(ValueError, match="put both lines back"):
        record.record(store)
    store.path("real_pair", "csv").write_text("x\n1\n", encoding="utf-8")
    with pytest.raises(FileNotFoundError, match="no intact table of real_pair"):
        record.record(store)


@pytest.mark.parametrize("more", [["--quick"], ["--seed", "1"], ["lossless_floor"]])
def test_record_is_of_the_full_figures(more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--record", "--out", str(tmp_path), *more])
    assert stopped.value.code == 2
    assert "leave out names, --quick and --seed" in capsys.readouterr().err


def test_recorded_tables_are_of_this_code() -> None:
    """Same columns as the small versions; where those are some of the full one's rows, the very same rows."""
    for name in ("lossless_floor", "claims_ledger"):
        small = table(name)
        assert list(small[0]) == list(FOUND[name][0])
        assert all(row in FOUND[name] for row in small)
    for name in answers.NEEDED:
        assert registry.text(figure(name).claim, FOUND[name])
        assert tables.dumps(FOUND[name]) == (record.FOLDER / f"{name}.csv").read_text(encoding="utf-8")
