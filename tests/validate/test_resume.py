"""What resumed commands take from disk: only what was made with these very networks, and never a damaged file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import validate
from validate.cascade import command as cascade
from validate.comparison import command as compare
from validate.comparison import sweep_command
from validate.comparison.parts import Parts, weights_fingerprint
from validate.drafters.attached import attached_folder


@pytest.fixture
def pair() -> validate.Pair:
    return validate.load("fashion", device="cpu")


def test_another_training_is_another_run(pair: validate.Pair, tmp_path: Path) -> None:
    """Folders of one name and one file changed: the fingerprints differ."""
    shipped = attached_folder(pair, "drafter")
    copied = tmp_path / "drafter"
    shutil.copytree(shipped, copied)
    assert weights_fingerprint(pair, [shipped]) == weights_fingerprint(pair, [copied])
    content = (copied / "model.safetensors").read_bytes()
    (copied / "model.safetensors").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert weights_fingerprint(pair, [shipped]) != weights_fingerprint(pair, [copied])
    assert set(compare._attached(pair, None)) == {
        attached_folder(pair, name) for name in ("drafter", "row_below", "multiscale")
    }
    assert compare._attached(pair, copied)[0] == copied


def test_damaged_parts_are_measured_again(tmp_path: Path) -> None:
    out = tmp_path / "o.json"
    parts = Parts(out, {"length": 5})
    parts.put("uniform", {"method": "uniform"})
    assert parts.get("uniform") == {"method": "uniform"}
    for damaged in ("", '{"method": "uni', "[]", "{}", "null"):
        (tmp_path / "o.json.parts" / "uniform.json").write_text(damaged)
        assert parts.get("uniform") is None
    for damaged in ("", "[]", "nul"):
        (tmp_path / "o.json.parts" / "settings.json").write_text(damaged)
        with pytest.raises(ValueError, match=r"settings\.json is damaged: choose another --out, or delete"):
            Parts(out, {"length": 5})


@pytest.mark.parametrize("content", ['{"settings": ', "[1]"])
def test_a_damaged_report_is_named(content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "k.json"
    out.write_text(content)
    assert cascade.main(["--quick", "--images", "4", "--out", str(out)]) == 2
    assert "k.json" in capsys.readouterr().err
    assert out.read_text() == content


def test_a_report_of_another_drafter_is_refused(
    pair: validate.Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "k.json"
    out.write_text(json.dumps({"settings": {"pair": "fashion", "weights": "others"}}))
    assert cascade.main(["--quick", "--images", "4", "--out", str(out)]) == 2
    assert "was made with" in capsys.readouterr().err


def test_no_images_are_not_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    for main in (compare.main, sweep_command.sweep):
        with pytest.raises(SystemExit):
            main(["--images", "0", "--quick"])
        assert "--images is 0" in capsys.readouterr().err
    assert cascade.main(["--images", "0", "--quick"]) == 2
    assert "--images is 0" in capsys.readouterr().err
