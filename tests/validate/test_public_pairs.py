"""Pairs of public files: found, decoded, reported; parts that do not fit together are named."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import theory
import validate
from tests.validate.golden import arrays, weights
from validate.decoding import decode
from validate.models import Pair, WeightsError
from validate.models.checkpoints import read_checkpoint
from validate.models.llamagen import Captions, load_tokenizer, load_transformer
from validate.models.pair import check_tokenizers


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A class model of 4×4 tokens with its tokenizer, and the same model as a draft, under public names."""
    shutil.copy(weights("c2i_a"), tmp_path / "c2i_XL.pt")
    content = {"model": read_checkpoint(weights("c2i_a")), "padding": torch.zeros(1)}
    content["model"]["norm.weight"] = content["model"]["norm.weight"] * 0.9
    torch.save({"model": content["model"]}, tmp_path / "c2i_B.pt")
    shutil.copy(weights("vq_a"), tmp_path / "vq_ds16_c2i.pt")
    with (tmp_path / "c2i_XL.pt").open("rb") as file, (tmp_path / "c2i_B.pt").open("rb") as other:
        assert file.read(2) == other.read(2) == b"PK"
    return tmp_path


OPTIONS: dict[str, Any] = {"grid": 4, "heads": 4}


def test_pair_by_name_and_decoding(folder: Path) -> None:
    by_name = validate.load(f"llamagen:{folder / 'c2i_XL.pt'}", draft="c2i_B", tokenizer="vq_ds16_c2i.pt", **OPTIONS)
    assert (by_name.draft_name, by_name.name, by_name.judge) == ("c2i_B", "llamagen:c2i_XL", None)
    assert (by_name.grid, by_name.num_tokens, by_name.vocab_size, by_name.guidance) == ((4, 4), 16, 64, 2.0)
    verifier = theory.cool_sd(3, 1.3, floor=1.0)
    runs = [
        decode(by_name, verifier, 3, [0, 9, 3], device="cpu", batch=batch, warp=validate.Warp(top_k=40))
        for batch in (1, 3)
    ]
    np.testing.assert_array_equal(runs[0].tokens, runs[1].tokens)
    assert by_name.tokenizer.decode(torch.from_numpy(runs[0].tokens)).shape == (3, 3, 8, 8)
    report = validate.measure(by_name, verifier, 3, 40, device="cpu")
    assert np.isnan(report.quality.frechet_distance)
    assert np.isnan(report.quality.judge_accuracy.value)
    assert report.quality.nll_per_token.value > 0
    from validate.report import as_json, table

    assert "NaN" not in json.dumps(as_json("x", report))
    assert "nan" not in table("x", report)


def test_pair_of_a_folder_and_a_target_alone(folder: Path) -> None:
    pair = validate.load(f"llamagen:{folder}", **OPTIONS)
    assert {pair.meta["target"], pair.meta["draft"]} == {"c2i_XL.pt", "c2i_B.pt"}
    (folder / "c2i_B.pt").unlink()
    alone = validate.load(f"llamagen:{folder}", **OPTIONS, guidance=1.5)
    assert alone.draft is alone.target
    assert alone.guidance == 1.5
    same = decode(alone, theory.Verifier(theory.Lossless()), 3, 8, device="cpu")
    assert (same.accepted[:, 0] == 3).mean() > 0.9
    (folder / "vq_ds16_c2i.pt").unlink()
    with pytest.raises(FileNotFoundError, match=r"one tokenizer named vq_….*it holds c2i_XL\.pt"):
        validate.load(f"llamagen:{folder}", **OPTIONS)
    with pytest.raises(ValueError, match="needs the tokenizer"):
        validate.load(f"llamagen:{folder / 'c2i_XL.pt'}", **OPTIONS)


def test_the_report_of_public_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from validate.__main__ import main

    common = [
        "--grid",
        "4",
        "--heads",
        "4",
        "--images",
        "25",
        "--length",
        "2",
        "--schedules",
        "--device",
        "cpu",
        "--quiet",
    ]
    out = folder / "report.json"
    assert main(["--pair", f"llamagen:{folder}", "--top-k", "30", "--out", str(out), *common]) == 0
    report = json.loads(out.read_text())
    assert len(report["results"]) == 3
    assert "lossless decoding is not told from plain sampling" in capsys.readouterr().out
    assert main(["--pair", f"llamagen:{folder / 'absent.pt'}", *common]) == 2
    assert main(["--pair", f"llamagen:{folder}", "--top-p", "0", *common]) == 2
    captions = folder / "captions.npz"
    np.savez(captions, features=np.zeros((2, 3, 24), dtype=np.float32))
    assert main(["--pair", f"llamagen:{folder}", "--captions", str(captions), *common]) == 2
    errors = capsys.readouterr().err
    for message in ("absent.pt is missing", "top_p must lie in", "conditioned on classes"):
        assert message in errors


def test_the_report_of_captions(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from validate.__main__ import main

    shutil.copy(weights("t2i_a"), folder / "t2i_XL.pt")
    shutil.copy(weights("vq_a"), folder / "vq_ds16_t2i.pt")
    data, captions = arrays("t2i_a"), folder / "captions.npz"
    np.savez(
        captions, features=data["caption_right_padded"].repeat(6, 1, 1), mask=data["mask_right_padded"].repeat(6, 1)
    )
    arguments = ["--pair", f"llamagen:{folder / 't2i_XL.pt'}", "--tokenizer", "vq_ds16_t2i.pt", "--grid", "4",
                 "--heads", "3", "--captions", str(captions), "--length", "2", "--schedules", "--device", "cpu",
                 "--quiet"]  # fmt: skip
    assert main(arguments) == 0
    assert "12 images" in capsys.readouterr().out


def test_parts_that_do_not_fit_together(folder: Path) -> None:
    target = f"llamagen:{folder / 'c2i_XL.pt'}"
    shutil.copy(weights("c2i_flat"), folder / "c2i_L_flat.pth")
    with pytest.raises(ValueError, match="draft 'c2i_L_flat' has vocab_size 80 but the target 64"):
        validate.load(target, draft="c2i_L_flat", tokenizer="vq_ds16_c2i", **OPTIONS)
    shutil.copy(weights("c2i_a"), folder / "c2i_B_256.pt")
    parts = {
        "target": load_transformer(folder / "c2i_XL.pt", **OPTIONS),
        "drafts": {"c2i_B_256": load_transformer(folder / "c2i_B_256.pt", heads=4)},
        "tokenizer": load_tokenizer(folder / "vq_ds16_c2i.pt", grid=4),
    }
    with pytest.raises(ValueError, match="draft 'c2i_B_256' has num_tokens 256 but the target 16"):
        Pair(name="x", draft_name="c2i_B_256", **parts)
    with pytest.raises(ValueError, match="the tokenizer has grid"):
        replace(
            Pair(name="x", draft_name="a", **(parts | {"drafts": {"a": parts["target"]}})),
            tokenizer=load_tokenizer(folder / "vq_ds16_c2i.pt", grid=(2, 8)),
        )
    shutil.copy(weights("vq_nol2"), folder / "vq_small.pt")
    with pytest.raises(ValueError, match="tokenizer has vocab_size 32 but the target 64"):
        validate.load(target, tokenizer="vq_small.pt", **OPTIONS)
    shutil.copy(weights("vq_a"), folder / "vq_ds16_t2i.pt")
    with pytest.raises(WeightsError, match=r"vq_ds16_t2i\.pt is a t2i file but c2i_XL\.pt a c2i file"):
        validate.load(target, tokenizer="vq_ds16_t2i.pt", **OPTIONS)
    with pytest.raises(FileNotFoundError, match="nowhere is missing, also in"):
        validate.load(target, tokenizer="nowhere", **OPTIONS)
    with pytest.raises(FileNotFoundError, match=r"absent\.pt is missing"):
        validate.load("llamagen:absent.pt")
    with pytest.raises(ValueError, match="option 'grid' is for llamagen: and hf: models"):
        validate.load("fashion", grid=7)


def test_tokenizers_are_compared_tensor_by_tensor() -> None:
    one, other = (load_tokenizer(weights("vq_a"), grid=4) for _ in range(2))
    check_tokenizers(one, other, "draft")
    other.decoder.conv_in.bias[3] += 1e-3
    with pytest.raises(ValueError, match=r"draft's tokenizer holds .* at \(3,\) but the target's"):
        check_tokenizers(one, other, "draft")
    with pytest.raises(ValueError, match="tables"):
        check_tokenizers(one, load_tokenizer(weights("vq_nol2"), grid=4), "draft")


def test_conditions(folder: Path) -> None:
    pair = validate.load(f"llamagen:{folder}", **OPTIONS)
    with pytest.raises(ValueError, match=r"images\[1\] is class 10; classes lie in 0…9"):
        decode(pair, None, 0, [0, 10], device="cpu")
    with pytest.raises(ValueError, match="conditioned on classes"):
        decode(pair, None, 0, Captions.from_encoder(torch.zeros(1, 3, 2)), device="cpu")
    text = load_transformer(weights("t2i_hf").parent)
    with pytest.raises(ValueError, match="give Captions"):
        text.encode_conditions(3)
    with pytest.raises(ValueError, match=r"captions have \[120, 20\]|captions have \(120, 20\)"):
        text.encode_conditions(Captions.from_encoder(torch.zeros(1, 3, 20)))
