"""The sweep over settings: what is counted, stopping and going on, and schemes that cannot be made."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import theory
from tests.validate.networks import TinyTokenizer, network, tiny_pair
from validate import __main__ as command
from validate.comparison import Matcher, relaxed_methods, sweep_command
from validate.comparison import sweep as sweeping
from validate.comparison.lossless import image_numbers, power_of_test, same_law
from validate.comparison.schemes import SCHEMES, Context, chosen_schemes
from validate.comparison.sweep import CANDIDATE, RIVAL, Setting, cells, counts, settings_of, sweep_setting
from validate.decoding import decode
from validate.measurement import sample_baseline
from validate.prediction import predicted_tokens_per_call
from validate.scoring import score

CODEBOOK = np.array([[0.0], [1.0], [3.0]])


class WithCodebook(TinyTokenizer):
    codebook = torch.tensor(CODEBOOK)


def pair() -> Any:
    drafts = {"tiny": network(2, 0.25), "other": network(3, 0.3)}
    return replace(tiny_pair(), drafts=drafts, tokenizer=WithCodebook())


def row(method: str, values: Any, size: float = 0.3, length: int = 3) -> dict[str, Any]:
    terms = {measure: list(values) for measure in ("kl_target_output", "predictive_tv", "round_bound")}
    return {"setting": Setting("d", 1.0, length), "method": method, "size": size, "strength": "", "terms": terms}


def test_counts_are_those_of_paired_ratios() -> None:
    rng = np.random.default_rng(0)
    base = rng.gamma(4.0, size=40)
    noise = np.exp(0.4 * rng.normal(size=40))
    noise *= base.sum() / (noise * base).sum()
    rows = [
        row("uniform", base),
        row(CANDIDATE, 0.5 * base),
        row(RIVAL, 0.51 * base * noise),
        row("excess", 0.4 * base),
    ]
    rows += [row("uniform", base, 0.5), row(CANDIDATE, 1.1 * base, 0.5), {**row(RIVAL, base, 0.5), "terms": None}]
    found = cells(rows)
    assert [cell["size"] for cell in found] == [0.3, 0.5]
    assert found[0]["methods"][CANDIDATE]["kl_target_output_over_uniform"] == [0.5, 0.5, 0.5]
    assert found[0]["methods"]["excess"]["kl_target_output_of_candidate_over_this"][1] == 1.25
    tally = counts(found, "kl_target_output")
    assert tally["best"] == {"excess": 1, "uniform": 1}
    against = tally["candidate_against"]
    assert (against["uniform"]["less"], against["uniform"]["more"]) == (1, 1)
    assert against[RIVAL]["not told apart"] == 1
    assert against["excess"]["more"] == 1
    assert against["uniform"]["most"] == 1.1
    assert "strength" in found[1]["methods"][RIVAL]


def test_methods_are_matched_on_the_images_they_are_compared_on() -> None:
    scores = score(pair(), decode(pair(), None, 0, 24, device="cpu"))
    matcher = Matcher(scores, 2)
    wanted = matcher.ends[0] + 0.4 * (matcher.ends[1] - matcher.ends[0])
    names = ["uniform", "excess", RIVAL, CANDIDATE]
    for name, part in sweep_setting(scores, Setting("tiny", 1.5, 2), CODEBOOK, (0.4,), names):
        (cell,) = part["cells"]
        assert len(cell["terms"]["kl_target_output"]) == 24
        strength = float(cell["setting"].split()[-1])
        method = relaxed_methods(2, CODEBOOK)[name]
        verifier = method.build(np.log(strength) if name == "uniform" else np.log1p(strength))
        assert predicted_tokens_per_call(scores, verifier, 2) == pytest.approx(wanted, rel=1e-3), name
        assert np.mean(cell["terms"]["kl_target_output"]) > 0


@pytest.fixture
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(sweep_command, "load", lambda *a, **k: pair())
    return ["compare", "--sweep", "--images", "8", "--sizes", ".3", "--lengths", "1", "2", "--guidance", "1", "1.5",
            "--device", "cpu", "--out", str(tmp_path / "sweep.json")]  # fmt: skip


def test_a_stopped_sweep_goes_on_and_gives_the_same_file(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert command.main(arguments) == 0
    printed = capsys.readouterr().out
    assert f"{CANDIDATE}/{RIVAL}" in printed
    assert "KL(p|out): best of 8 cells" in printed
    whole = json.loads(Path(arguments[-1]).read_text())
    assert len(whole["cells"]) == len(settings_of(["tiny", "other"], [1.0, 1.5], [1, 2])) == 8
    central = [c for c in whole["cells"] if "mentored" in c["methods"]]
    assert [(c["draft"], c["guidance"], c["length"]) for c in central] == [("tiny", 1.5, 2)]
    assert sum("LANTERN++, G*" in c["methods"] for c in whole["cells"]) == 4

    arguments[-1] = str(tmp_path / "again.json")
    original, done = sweeping.terms_along, []

    def some(*a: Any) -> Any:
        if len(done) == 7:
            raise KeyboardInterrupt
        done.append(1)
        return original(*a)

    monkeypatch.setattr(sweeping, "terms_along", some)
    assert command.main(arguments) == 130
    assert "start it again to go on" in capsys.readouterr().err
    kept = len(list((tmp_path / "again.json.parts").glob("*-L*.json")))
    assert 0 < kept <= 7
    monkeypatch.setattr(sweeping, "terms_along", original)
    assert command.main(arguments) == 0
    assert json.loads(Path(arguments[-1]).read_text()) == whole
    capsys.readouterr()
    assert command.main([*arguments, "--seed", "1"]) == 2
    assert "was begun with seed = 0, now it is 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--drafts", "no"], "unknown draft 'no'; known drafts are tiny, other"),
        (["--lengths", "4"], "--lengths must lie in 1…3, got 4"),
    ],
)
def test_settings_that_cannot_be(
    change: list[str], message: str, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([*arguments, *change]) == 2
    assert message in capsys.readouterr().err


def test_schemes_that_cannot_be_made() -> None:
    own = pair()
    with pytest.raises(ValueError, match="unknown scheme 'magic'; known: SJD"):
        chosen_schemes(Context(own, 2), ["magic"])
    with pytest.raises(ValueError, match=r"--window must lie in 1…4 \(the image's tokens\), got 5"):
        chosen_schemes(Context(own, 2, window=5), ["SJD"])
    with pytest.raises(FileNotFoundError, match="holds no drafter; train one"):
        chosen_schemes(Context(own, 2), ["feature chain"])
    with pytest.raises(ValueError, match="the tree is 5 deep but an image has 4 tokens"):
        chosen_schemes(Context(own, 2), ["tree"])
    assert set(chosen_schemes(Context(own, 2, window=2), ["SJD", "coupled SJD"])) == {"SJD", "coupled SJD"}
    assert len(SCHEMES) >= 13


def test_a_budgeted_scheme_has_a_likelihood_and_a_certificate() -> None:
    own = pair()
    (scheme,) = chosen_schemes(Context(own, 2), ["budgeted uniform, KL(out|p)"]).values()
    run = scheme.decode(own, [1] * 600, device="cpu", seed=1, guidance=1.5, warp=None)
    assert scheme.log_ratio is not None
    ratio = scheme.log_ratio(own, run)
    assert 0 < ratio.mean() < scheme.certificate["image_kl_output_target"]  # type: ignore[index]
    assert not scheme.lossless


def test_the_test_of_lossless_methods_has_power_and_few_false_alarms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four tokens carry little: the alternative is made strong."""
    monkeypatch.setattr("validate.comparison.lossless.SUSPECT", 3.0)
    own = tiny_pair()
    baseline = sample_baseline(own, 300, device="cpu")
    power = power_of_test(own, baseline, 2, 0)
    assert power.power.lower > 0.9
    assert power.false_alarms.value < 0.03
    assert power.kl_per_image > 0
    assert "finds uniform relaxation with omega 3" in str(power)
    target = image_numbers(baseline.comparing_scores, 2)
    for verifier, same in ((theory.Verifier(theory.Lossless()), True), (theory.Verifier(theory.Relaxed(3.0)), False)):
        run = decode(own, verifier, 2, 300, device="cpu", seed=9)
        assert (same_law(image_numbers(score(own, run), 2), target) > 1e-3) == same
