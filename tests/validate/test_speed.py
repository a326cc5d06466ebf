"""The speed model on networks whose every step costs a known time, and acceptance at a fixed rate."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import theory
from tests.validate.networks import tiny_pair
from validate.__main__ import main
from validate.decoding import decode
from validate.device_check.networks import random_llamagen, random_pair
from validate.models import Pair
from validate.models.llamagen import Configuration
from validate.speed import fixed_acceptance, predicted_speed_up, speed_report
from validate.step_costs import step_costs

LENGTH, TOKENS = 3, 4


class FakeClock:
    """Time passes when a network works, and at no other time."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Costly:
    """A model whose step costs `fixed` seconds and `each` for every new token."""

    def __init__(self, model: Any, clock: FakeClock, fixed: float, each: float) -> None:
        self.model, self.clock, self.fixed, self.each = model, clock, fixed, each

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def start(self, conditions: Any, guidance: float = 1.0) -> Any:
        sequences = self.model.start(conditions, guidance)
        logits = sequences.logits

        def slow(inputs: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            self.clock.now += self.fixed + self.each * inputs.shape[1]
            return logits(inputs, lengths)

        sequences.logits = slow
        return sequences


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeClock]:
    clock = FakeClock()
    with monkeypatch.context() as patch:
        patch.setattr(time, "perf_counter", clock)
        yield clock


def costly(clock: FakeClock) -> Pair:
    pair = tiny_pair()
    # The first drafted token of a round may take two inputs: a draft's cost is all fixed here.
    return replace(
        pair,
        target=Costly(pair.target, clock, 9.0, 1.0),  # type: ignore[arg-type]
        drafts={"tiny": Costly(pair.drafts["tiny"], clock, 1.0, 0.0)},  # type: ignore[dict-item]
    )


def test_known_costs_are_found(clock: FakeClock) -> None:
    costs = step_costs(costly(clock), LENGTH - 1, 5, timer=clock)
    assert costs.target == (10.0,) * 3
    assert costs.verify == (12.0,) * 3
    assert (costs.kappa, costs.verify_ratio, costs.accept_ratio) == pytest.approx((0.1, 1.2, 0.0))
    assert costs.batch == 5


@pytest.mark.parametrize("rate", [0.0, 0.6, 1.0])
def test_predicted_equals_measured_where_costs_are_known(rate: float, clock: FakeClock) -> None:
    report = speed_report(costly(clock), fixed_acceptance(rate), 2, 1, device="cpu", seed=3, timer=clock)
    assert report.plain_seconds == 10.0 * TOKENS
    assert report.tokens_per_call == report.tokens_per_round  # one image
    # Blocks at the image's end are short: they verify fewer tokens than the model charges for.
    assert report.measured >= report.predicted_batch * (1 - 1e-9)
    assert report.predicted_batch == pytest.approx(report.measured, rel=0.15)
    assert report.predicted <= report.predicted_batch * (1 + 1e-9)
    assert report.as_json()["error"] == report.error
    assert "kappa 0.100" in str(report)


def test_a_batch_waits_for_its_slowest_row(clock: FakeClock) -> None:
    report = speed_report(costly(clock), fixed_acceptance(0.5), 2, 40, device="cpu", timer=clock)
    assert report.tokens_per_round < report.tokens_per_call
    assert report.predicted > report.measured  # what the simple formula promises, a batch does not keep
    assert abs(report.error) < 0.15


def test_fixed_acceptance_accepts_at_its_rate_and_claims_nothing() -> None:
    verifier = fixed_acceptance(0.7)
    claims = (verifier.lossless, verifier.rule.at_least_lossless, verifier.rule.support_safe)
    assert claims == (False, False, False)
    run = decode(tiny_pair(), verifier, LENGTH, 4000, device="cpu", batch=4000)
    first = run.accepted[:, 0]
    expected = sum(0.7**i for i in range(1, LENGTH + 1))
    assert first.mean() == pytest.approx(expected, abs=5 * first.std() / np.sqrt(len(first)))
    law = theory.IIDChain([0.5, 0.5]), theory.IIDChain([0.9, 0.1])
    assert theory.analyse_round(*law, verifier, 2).total_variation > 0.1
    with pytest.raises(ValueError, match=r"acceptance rate must be finite and lie in \[0.0, 1.0\], got 1.5"):
        fixed_acceptance(1.5)


def test_the_formula() -> None:
    assert predicted_speed_up(3.0, 5, 0.1, 1.1) == pytest.approx(1.875)
    assert predicted_speed_up(3.0, 5, 0.1, 1.1, 0.4) == pytest.approx(1.5)
    with pytest.raises(ValueError, match=r"length must lie in 1…3, got 4"):
        step_costs(tiny_pair(), 4, 3)


def test_the_command_reports_speed_at_a_fixed_rate(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    out = tmp_path / "speed.json"
    command = ["--synthetic-acceptance", "0.8", "--images", "4", "--device", "cpu", "--length", "2"]
    assert main([*command, "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "not the target's law" in printed
    assert "speed-up: predicted" in printed
    assert '"kappa"' in out.read_text()
    assert main([*command[:1], "1.2", *command[2:]]) == 2
    assert "acceptance rate" in capsys.readouterr().err


def test_compiled_networks_decode_the_same_images() -> None:
    shapes = [
        Configuration(24, layers=2, heads=2, width=16, hidden=24, side=3, num_classes=2),
        Configuration(24, layers=1, heads=2, width=16, hidden=24, side=3, num_classes=2),
    ]
    cpu = torch.device("cpu")
    pair = random_pair(*(random_llamagen(shape, cpu, torch.float32, seed) for seed, shape in enumerate(shapes)), 1.5)
    fused = pair.compiled(backend="aot_eager")
    # Fused, and not the plain passes under another name.
    assert fused.target.attend is not pair.target.attend
    assert hasattr(fused.target.attend, "_torchdynamo_orig_callable")
    runs = [decode(p, theory.cool_sd(LENGTH, 1.5), LENGTH, 6, device="cpu", seed=3) for p in (pair, fused)]
    np.testing.assert_array_equal(runs[0].tokens, runs[1].tokens)
    with pytest.raises(TypeError, match="none of its networks can be compiled"):
        tiny_pair().compiled()
