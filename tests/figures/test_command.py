"""The command: exit statuses, messages, the page."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from paper_figures import registry
from paper_figures.__main__ import main
from paper_figures.registry import Context, Figure, Rows


def explode(context: Context) -> Rows:
    """A figure that fails."""
    raise RuntimeError("no convergence")


def interrupt(context: Context) -> Rows:
    """A figure during which Ctrl-C is pressed."""
    raise KeyboardInterrupt


class Page(HTMLParser):
    """Tags of a page with their attributes; complains of unbalanced ones."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_all_made_then_up_to_date(
    small: Figure, empty_registry: dict[str, Figure], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 0 both times; quick goes to its own folder; the page holds the figure and needs no network."""
    registry.register(small)
    assert main(["--out", str(tmp_path)]) == 0
    assert "made" in capsys.readouterr().out
    assert main(["small_one", "--out", str(tmp_path)]) == 0
    assert "up to date" in capsys.readouterr().out
    full = (tmp_path / "small_one.csv").read_bytes()
    assert main(["--quick", "--seed", "3", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "small_one.csv").read_bytes() == full
    assert (tmp_path / "quick" / "small_one.csv").read_bytes() != full
    text = (tmp_path / "quick" / "index.html").read_text(encoding="utf-8")
    assert "python -m paper_figures small_one --quick --seed 3" in text
    assert text.count("(small version)") == 1
    assert "the figures, small versions" in text
    assert "small version" not in (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "Three &lt;rows&gt; &amp; no more." in text
    page = Page(text)
    links = [attrs.get(key) or "" for _, attrs in page.tags for key in ("href", "src") if key in attrs]
    assert all(link.startswith(("#", "small_one.", "data:image/png;base64,")) for link in links)
    pictures = [attrs for tag, attrs in page.tags if tag == "img"]
    assert len(pictures) == 1
    assert "y starts at" in (pictures[0]["alt"] or "")


def test_one_failure_does_not_stop_the_others(
    small: Figure, empty_registry: dict[str, Figure], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 1, the failed one named at the end, the other made, the page says what is missing."""
    registry.register(replace(small, name="a_broken_one", build=explode))
    registry.register(small)
    assert main(["--out", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert printed.err.rstrip().endswith("failed: a_broken_one")
    assert "RuntimeError: no convergence" in printed.out
    assert (tmp_path / "small_one.png").exists()
    assert "Not made yet: <code>a_broken_one</code>" in (tmp_path / "index.html").read_text(encoding="utf-8")


def test_interruption_keeps_what_is_finished(
    small: Figure, empty_registry: dict[str, Figure], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 130 and the command to go on with."""
    registry.register(small)
    registry.register(replace(small, name="z_last", build=interrupt))
    assert main(["--force", "--out", str(tmp_path)]) == 130
    assert f"Resume with: python -m paper_figures --out {tmp_path}" in capsys.readouterr().err
    assert (tmp_path / "small_one.png").exists()


def test_side_by_side_makes_the_same_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two processes and one leave the same files; a figure that fails is named and does not stop the other."""
    names = ["lossless_floor", "propositions"]
    assert main([*names, "--quick", "--jobs", "2", "--out", str(tmp_path / "two")]) == 0
    printed = capsys.readouterr()
    assert all(f"{name}  " in printed.out for name in names)
    assert printed.out.count("gallery: ") == 1
    assert main([*names, "--quick", "--jobs", "2", "--out", str(tmp_path / "two")]) == 0
    assert capsys.readouterr().out.count("up to date") == 2
    assert main([*names, "--quick", "--out", str(tmp_path / "one")]) == 0
    for name in names:
        one, two = (tmp_path / folder / "quick" / f"{name}.csv" for folder in ("one", "two"))
        assert one.read_bytes() == two.read_bytes()
    page = (tmp_path / "two" / "quick" / "index.html").read_text(encoding="utf-8")
    assert all(f'id="{name}"' in page for name in names)


def test_side_by_side_names_what_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The children's interpreter is one that fails for one figure."""
    fake = tmp_path / "python"
    fake.write_text('#!/bin/sh\necho "made $3"\n[ "$3" != propositions ]\n', encoding="utf-8")
    fake.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(fake))
    assert main(["propositions", "lossless_floor", "--jobs", "2", "--out", str(tmp_path / "out")]) == 1
    printed = capsys.readouterr()
    assert "made propositions" in printed.out
    assert "made lossless_floor" in printed.out
    assert printed.err.rstrip().endswith("failed: propositions")
    fake.write_text("#!/bin/sh\nexit 130\n", encoding="utf-8")
    assert main(["propositions", "lossless_floor", "--jobs", "2", "--out", str(tmp_path / "out")]) == 130
    assert "Resume with: python -m paper_figures propositions" in capsys.readouterr().err


def test_wrong_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Unknown name, unwritable folder, negative seed: status 2 and one clear line."""
    assert main(["losless_floor", "--out", str(tmp_path / "new")]) == 2
    assert capsys.readouterr().err == "paper_figures: unknown figure 'losless_floor'; nearest: lossless_floor\n"
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert main(["lossless_floor", "--out", str(tmp_path / "file")]) == 2
    assert str(tmp_path / "file") in capsys.readouterr().err
    with pytest.raises(SystemExit) as stopped:
        main(["--seed", "-1"])
    assert stopped.value.code == 2
    with pytest.raises(SystemExit):
        main(["--jobs", "0"])
    assert "--jobs must be >= 1, got 0" in capsys.readouterr().err


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    """One line a figure."""
    assert main(["--list"]) == 0
    assert "lossless_floor" in capsys.readouterr().out
