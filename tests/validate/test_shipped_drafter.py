"""The drafter that ships: it belongs to its target and no other; training one writes the published layout."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import theory
import validate
from tests.validate.networks import CLASSES, TOKENS, VOCABULARY, network, tiny_pair
from validate.drafters.loading import load_drafter
from validate.drafters.shipped import SHIPPED, shipped_drafter, target_sha256
from validate.drafters.trees import feature_proposer
from validate.models.tensors import WeightsError
from validate.training.__main__ import main
from validate.training.drafter import fit_drafter, store_drafter
from validate.training.presets import Plan
from validate.tree_decoding import decode_tree

ROOT = Path(__file__).resolve().parents[2]
LARGEST = 1_000_000


def test_the_shipped_drafter_drafts_well() -> None:
    pair = validate.load("fashion")
    drafter = shipped_drafter(pair)
    assert sum(path.stat().st_size for path in (SHIPPED / "fashion" / "drafter").iterdir()) < LARGEST
    out = decode_tree(
        pair,
        theory.Verifier(theory.Lossless()),
        [[[]]],
        20,
        proposer=feature_proposer(drafter),
        device="cpu",
    )
    # Chains of depth 2 from a drafter that knew nothing would give 1.0 tokens per call.
    assert out.tokens_per_call > 1.5


def test_other_targets_are_refused(tmp_path: Path) -> None:
    pair = validate.load("fashion")
    files = pair.meta["files"] | {"target.safetensors": pair.meta["files"]["target.safetensors"] | {"sha256": "00"}}
    with pytest.raises(WeightsError, match="was trained on a target with SHA-256"):
        shipped_drafter(replace(pair, meta=pair.meta | {"files": files}))
    with pytest.raises(FileNotFoundError, match="holds no drafter; train one"):
        shipped_drafter(pair, tmp_path)
    with pytest.raises(WeightsError, match="no manifest"):
        target_sha256(tiny_pair())
    with pytest.raises(WeightsError, match="vocab_size 256, this one has 3"):
        decode_tree(
            tiny_pair(),
            theory.Verifier(theory.Lossless()),
            [[]],
            1,
            proposer=feature_proposer(shipped_drafter(pair)),
            device="cpu",
        )


def test_training_lowers_the_rejections_and_the_layout_round_trips(tmp_path: Path) -> None:
    target = network(1, 0.25)
    rng = np.random.default_rng(0)
    tokens = torch.from_numpy(rng.integers(0, VOCABULARY, (64, TOKENS)))
    classes = torch.from_numpy(rng.integers(0, CLASSES, 64))
    pair, calls = tiny_pair(), []
    for steps in (1, 200):
        generator = torch.Generator().manual_seed(0)
        drafter = fit_drafter(target, tokens, classes, 1.5, Plan(steps, 32, 1e-2, warmup=1), generator)
        assert store_drafter(drafter, tmp_path, {"note": 1}) == sum(p.stat().st_size for p in tmp_path.iterdir())
        loaded = load_drafter(tmp_path, target=target)
        for name, value in drafter.state_dict().items():
            torch.testing.assert_close(loaded.state_dict()[name], value, atol=1e-3, rtol=1e-3)
        out = decode_tree(
            pair,
            theory.Verifier(theory.Lossless()),
            [[[]]],
            2000,
            proposer=feature_proposer(loaded),
            device="cpu",
            batch=2000,
        )
        calls.append(out.calls.mean())
    assert json.loads((tmp_path / "config.json").read_text())["note"] == 1
    assert calls[1] < calls[0] - 0.05


def test_the_command_reports_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = str(tmp_path / "none")
    assert main(["drafter", "--weights", missing, "--out", str(tmp_path / "out")]) == 1
    assert "error:" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_drafters_card_says_what_the_report_says() -> None:
    folder = ROOT / "validate/weights/fashion"
    card = (folder / "DRAFTERS.md").read_text(encoding="utf-8")
    (named,) = re.findall(r"`(validate/reports/[^`]+)`", card)
    report = json.loads((ROOT / named).read_text(encoding="utf-8"))
    speed = {row["method"]: f"{row['tokens_per_call'][1]:.2f}" for row in report["rows"] if row["size"] is None}
    for line in (
        f"{speed['tree']} (25 nodes), {speed['feature chain']} (chain)",
        f"{speed['Hawk-style']}, lossless",
        f"{speed['MuLo-SD-style, tau 0.05']} at τ = .05",
        f"64x1 reaches {speed['lossless']}.",
    ):
        assert line in card
    for name in ("drafter", "row_below", "multiscale"):
        assert f"{sum(path.stat().st_size for path in (folder / name).iterdir()):,}" in card
