"""The device check on the CPU: independent sections, recorded failures, controls that must fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import theory
from validate.device_check import SECTIONS, Section, Setting, run_checks, summary
from validate.device_check import golden as golden_part
from validate.device_check.__main__ import main
from validate.device_check.checks import check_at_least, check_at_most
from validate.device_check.full_size import full_size_section
from validate.device_check.networks import XL, B, chain_of, enumerable_pair
from validate.device_check.sections import round_decoder, whole_image_p_value
from validate.models.llamagen import LlamaGen

CPU = torch.device("cpu")


def good(setting: Any, record: dict[str, Any]) -> None:
    check_at_most(record, "one", 1.0, 2.0)
    check_at_least(record, "three", 3.0, 2.0)


def bad(setting: Any, record: dict[str, Any]) -> None:
    record["found"] = 7
    check_at_most(record, "not a number", float("nan"), 2.0)


def broken(setting: Any, record: dict[str, Any]) -> None:
    record["found"] = 8
    raise RuntimeError("out of luck")


def test_a_failing_section_does_not_stop_the_others(tmp_path: Path) -> None:
    out = tmp_path / "check.json"
    parts = [Section(job.__name__, job, 1, 1) for job in (broken, bad, good)]
    report = run_checks(CPU, out=out, sections=parts)
    assert json.loads(out.read_text()) == json.loads(json.dumps(report))
    assert [record["status"] for record in report["sections"].values()] == ["failed", "failed", "passed"]
    assert report["sections"]["broken"]["error"] == "RuntimeError: out of luck"
    assert report["sections"]["broken"]["found"] == 8
    assert "not a number" in report["sections"]["bad"]["error"]
    assert report["passed"] is False
    assert "no CUDA device" in report["left_out"][0]
    assert list(tmp_path.iterdir()) == [out]
    table = summary(report)
    assert "out of luck" in table
    assert "left out: no CUDA device" in table
    only = run_checks(CPU, names=["good"], sections=parts)
    assert list(only["sections"]) == ["good"]
    assert only["passed"] is True
    with pytest.raises(ValueError, match="unknown section 'gold'; sections are golden, law"):
        run_checks(CPU, names=["gold"])


def test_time_of_all_sections() -> None:
    """Five minutes on CUDA and ninety seconds without, as long as no part overruns by itself."""
    assert sum(section.cuda_seconds for section in SECTIONS) <= 300
    assert sum(section.cpu_seconds for section in SECTIONS) <= 90
    ticks = iter(range(100))
    setting = Setting(CPU, True, None, 3.0, timer=lambda: float(next(ticks)))
    assert [setting.left for _ in range(3)] == [2.0, 1.0, 0.0]


def test_golden_data_on_the_device_and_off_by_a_little(monkeypatch: pytest.MonkeyPatch) -> None:
    record: dict[str, Any] = {"checks": []}
    golden_part.golden_section(Setting(CPU, True, None, 60.0), record)
    assert len(record["checks"]) == 17
    assert all(check["passed"] for check in record["checks"])
    original = golden_part._logits
    monkeypatch.setattr(golden_part, "_logits", lambda *a: 1.05 * original(*a))
    off: dict[str, Any] = {"checks": []}
    golden_part.golden_section(Setting(CPU, True, None, 60.0), off)
    assert [check["passed"] for check in off["checks"]] == [False] * 16 + [True]


def test_golden_data_absent(tmp_path: Path) -> None:
    report = run_checks(CPU, names=["golden"], golden_data=tmp_path)
    assert report["sections"]["golden"]["status"] == "left out"
    assert "name its folder" in summary(report)


def test_laws_of_the_networks_are_chains() -> None:
    pair = enumerable_pair(CPU)
    chain = chain_of(pair.target, 1, pair.guidance)
    assert [level.shape for level in chain.levels] == [(3,) * (i + 1) for i in range(4)]
    assert all(np.allclose(level.sum(-1), 1) for level in chain.levels)
    other = chain_of(pair.target, 0, pair.guidance)
    assert np.abs(chain.levels[1] - other.levels[1]).max() > 1e-3
    verifier = theory.Verifier(theory.Relaxed(2.0))
    chains = chain, chain_of(pair.draft, 1, pair.guidance)
    analysis = theory.analyse_sequence(*chains, verifier, 2, 4)
    assert whole_image_p_value(pair, verifier, analysis.law, 4000, 1) > 1e-6
    assert whole_image_p_value(pair, verifier, analysis.target_law, 20_000, 1) < 1e-6
    emitted = round_decoder(pair, verifier, 1).run(*chains, 2, 6, np.random.default_rng(0))
    assert emitted.tokens.shape == (6, 3)


def test_small_networks_stand_in_for_the_full_ones() -> None:
    record: dict[str, Any] = {"checks": []}
    full_size_section(Setting(CPU, True, None, 60.0), record)
    assert len(record["verify_cost"]) == 2
    assert 0 < record["accept_share"] < 1
    assert record["speed"]["tokens_per_call"] > 1
    assert "stood in for" in record["left_out"][0]
    hurried: dict[str, Any] = {"checks": []}
    full_size_section(Setting(CPU, True, None, 0.0), hurried)
    assert "speed" not in hurried
    assert "speed model: some" in hurried["left_out"][-1]


def test_full_size_shapes() -> None:
    for shape, count in ((XL, 774_699_520), (B, 110_888_448)):
        with torch.device("meta"):
            model = LlamaGen(shape)
        assert sum(value.numel() for value in model.state_dict().values()) == count


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "check.json"
    assert main(["--device", "cpu", "--out", str(out), "--sections", "memory"]) == 0
    assert "a fitting batch named" in capsys.readouterr().out
    assert json.loads(out.read_text())["sections"]["memory"]["status"] == "passed"
    assert main(["--device", "cpu", "--out", str(out), "--sections", "memery"]) == 2
    assert "unknown section 'memery'" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["--out", str(tmp_path)])
