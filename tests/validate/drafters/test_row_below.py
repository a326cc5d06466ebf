"""Row-below heads: lossless whatever they say, relaxed laws exact, broken features noticed, training and storage."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import theory
import validate
from tests.validate.drafters.grids import CLASSES, SIDE, TOKENS, VOCABULARY, every_image, fits, grid_pair, image_law
from validate import batches
from validate.drafters.attached import attached_folder
from validate.drafters.row_below import (
    RowBelowDecoder,
    RowBelowHeads,
    decode_row_below,
    laws_by_offset,
    shipped_heads,
    target_head,
)
from validate.measurement import two_sample
from validate.models import Warp
from validate.models.tensors import WeightsError
from validate.training.__main__ import main
from validate.training.presets import Plan
from validate.training.row_below import fit_heads

LOSSLESS = theory.Verifier(theory.Lossless())
RELAXED = theory.Verifier(theory.AcceptAll())
MODES: tuple[Any, ...] = ("both", "horizontal", "vertical")
SAMPLES, FALSE_ALARM, GUIDANCE = 8_000, 1e-6, 1.5


def random_heads(length: int = 2, sharpness: float = 0.8) -> RowBelowHeads:
    heads = RowBelowHeads(width=8, length=length, columns=SIDE)
    generator = torch.Generator().manual_seed(3)
    heads.initialise(generator)
    with torch.no_grad():
        for parameter in heads.parameters():
            parameter.add_(sharpness * torch.randn(parameter.shape, generator=generator))
    return heads.requires_grad_(False)


def run(verifier: Any, mode: Any = "both", samples: int = SAMPLES, length: int = 2, **options: Any) -> Any:
    arguments: dict[str, Any] = {"device": "cpu", "batch": samples} | options
    return decode_row_below(grid_pair(), random_heads(), verifier, length, [1] * samples, mode, **arguments)


def laws(mode: Any = "both") -> tuple[torch.Tensor, torch.Tensor]:
    tokens = every_image()
    return laws_by_offset(
        grid_pair(), random_heads(), tokens, torch.ones(len(tokens), dtype=torch.int64), GUIDANCE, Warp(), mode
    )


def exact(verifier: Any, mode: Any, length: int = 2) -> tuple[np.ndarray, float]:
    """Law of all images and expected calls; the first token is a step of its own."""
    p, q = laws(mode)
    tokens = every_image()
    found = theory.filter_offsets(tokens[:, 1:], p[:, 1:], q[:, :length, 1:], verifier, length)
    first = torch.take_along_dim(p[:, 0], tokens[:, :1], -1)[:, 0]
    law = np.asarray(first * found.log_likelihood.exp())
    return law, float(1 + (law * np.asarray(found.starts.sum(-1))).sum())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("length", [1, 2])
def test_lossless_images_follow_the_targets_law(mode: Any, length: int) -> None:
    out = run(LOSSLESS, mode, length=length)
    assert fits(out.tokens, image_law(laws()[0])) > FALSE_ALARM
    calls = exact(LOSSLESS, mode, length)[1]
    assert abs(out.calls.mean() - calls) < 5 * out.calls.std() / np.sqrt(SAMPLES) + 1e-9


@pytest.mark.parametrize("mode", MODES)
def test_relaxed_images_follow_the_law_of_drafts_that_know_their_offset(mode: Any) -> None:
    law, calls = exact(RELAXED, mode)
    out = run(RELAXED, mode)
    assert fits(out.tokens, law) > FALSE_ALARM
    assert abs(out.calls.mean() - calls) < 5 * out.calls.std() / np.sqrt(SAMPLES) + 1e-9
    assert fits(out.tokens, image_law(laws()[0])) < FALSE_ALARM
    others = [other for other in MODES if other != mode]
    assert all(fits(out.tokens, exact(RELAXED, other)[0]) < FALSE_ALARM for other in others)


original = RowBelowDecoder._draft_block


def test_a_draft_that_is_not_the_declared_one_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Declaring the horizontal law for tokens that the pool drew breaks losslessness."""

    def misdeclared(self: Any, length: int) -> Any:
        pooled = original(self, length)
        kept = self.inputs.clone()
        self.mode = "horizontal"
        declared = original(self, length)
        self.mode, self.inputs = "both", kept
        assert not torch.equal(pooled, declared) or bool((self.placed < SIDE).all())
        return declared

    monkeypatch.setattr(RowBelowDecoder, "_draft_block", misdeclared)
    assert fits(run(LOSSLESS, samples=40_000).tokens, image_law(laws()[0])) < FALSE_ALARM


def test_features_of_refused_drafts_do_not_survive(monkeypatch: pytest.MonkeyPatch) -> None:
    """If rejected tokens' features stayed, the drafts would not have the laws that a teacher-forced pass gives."""
    seen = RowBelowDecoder._target_laws

    def only_once(self: Any, length: int) -> Any:
        before = self.features.clone()
        out = seen(self, length)
        old = before.abs().sum(dim=(1, 3), keepdim=True) > 0
        self.features = torch.where(old, before, self.features)
        return out

    monkeypatch.setattr(RowBelowDecoder, "_target_laws", only_once)
    verifier = theory.Verifier(theory.Relaxed(2.5))
    assert fits(run(verifier, samples=40_000).tokens, exact(verifier, "both")[0]) < FALSE_ALARM


def test_batches_and_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    pair, classes, heads = grid_pair(), [0, 1, 1, 0, 1, 0, 0], random_heads()
    options: dict[str, Any] = {"device": "cpu", "seed": 4}
    whole = decode_row_below(pair, heads, LOSSLESS, 2, classes, **options)
    cut = decode_row_below(pair, heads, LOSSLESS, 2, classes, batch=3, **options)
    monkeypatch.setattr(batches, "COMPACT_BELOW", 0.0)
    loose = decode_row_below(pair, heads, LOSSLESS, 2, classes, **options)
    for other in (cut, loose):
        assert np.array_equal(whole.tokens, other.tokens)
        assert np.array_equal(whole.accepted, other.accepted)
    assert (whole.accepted[:, 0] == 0).all()
    assert (whole.starts[:, 1] == 1).all()


def test_unguided_and_warped_images_are_the_targets_too() -> None:
    tokens = every_image()
    ones = torch.ones(len(tokens), dtype=torch.int64)
    warp = Warp(temperature=0.7)
    p, _ = laws_by_offset(grid_pair(1.0), random_heads(), tokens, ones, 1.0, warp)
    out = run(LOSSLESS, guidance=1.0, warp=warp)
    assert fits(out.tokens, image_law(p)) > FALSE_ALARM


def test_training_lowers_the_rejections() -> None:
    pair = grid_pair()
    rng = np.random.default_rng(0)
    tokens = torch.from_numpy(rng.integers(0, VOCABULARY, (64, TOKENS)))
    classes = torch.from_numpy(rng.integers(0, CLASSES, 64))
    accepted = []
    for steps in (1, 150):
        generator = torch.Generator().manual_seed(0)
        heads = fit_heads(pair.target, tokens, classes, GUIDANCE, 2, Plan(steps, 32, 1e-2, warmup=1), generator)  # type: ignore[arg-type]
        p, q = laws_by_offset(pair, heads, tokens, classes, GUIDANCE, Warp())
        accepted.append(float(torch.minimum(p[:, None, 2:], q[:, :, 2:]).sum(-1).mean()))
    assert accepted[1] > accepted[0] + 0.01


def test_the_command_writes_heads_that_load(tmp_path: Path) -> None:
    out = tmp_path / "heads"
    arguments = ["--out", str(out), "--work", str(tmp_path), "--samples", "8", "--steps", "1", "--length", "2"]
    assert main(["row-below", *arguments]) == 0
    assert shipped_heads(validate.load("fashion", device="cpu"), out).length == 2
    assert main(["row-below", *arguments[:-1], "7"]) == 1


def test_the_shipped_heads_draft_better_with_the_row_above() -> None:
    pair = validate.load("fashion", device="cpu")
    heads = shipped_heads(pair)
    runs = {mode: decode_row_below(pair, heads, LOSSLESS, 3, 40, mode, device="cpu") for mode in MODES}
    assert runs["both"].tokens_per_call > runs["horizontal"].tokens_per_call > 1.2
    plain = validate.decode(pair, None, 0, 40, device="cpu", seed=1)
    assert two_sample(validate.score(pair, runs["both"]), validate.score(pair, plain)) > 1e-3


def test_heads_belong_to_their_target(tmp_path: Path) -> None:
    pair = validate.load("fashion", device="cpu")
    files = pair.meta["files"] | {"target.safetensors": pair.meta["files"]["target.safetensors"] | {"sha256": "00"}}
    with pytest.raises(WeightsError, match="was trained on a target with SHA-256"):
        shipped_heads(replace(pair, meta=pair.meta | {"files": files}))
    with pytest.raises(FileNotFoundError, match="holds no RowBelowHeads; make one"):
        shipped_heads(pair, tmp_path)
    source = attached_folder(pair, "row_below")
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((source / name).read_bytes())
    (tmp_path / "model.safetensors").write_bytes((source / "model.safetensors").read_bytes()[:-2])
    with pytest.raises(WeightsError, match="SHA-256"):
        shipped_heads(pair, tmp_path)
    about = json.loads((source / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(about | {"kind": "FeatureDrafter"}))
    with pytest.raises(WeightsError, match="holds a FeatureDrafter"):
        shipped_heads(pair, tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(WeightsError, match="damaged"):
        shipped_heads(pair, tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"length": 3}, "1…2, the heads there are; got 3"),
        ({"length": 0}, "1…2"),
        ({"mode": "up"}, "mode must be one of both, horizontal, vertical, got 'up'"),
        ({"heads": RowBelowHeads(width=8, length=2, columns=4)}, "rows of 4 tokens"),
        ({"batch": 0}, "batch"),
    ],
)
def test_bad_input(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"heads": random_heads(), "verifier": LOSSLESS, "length": 2, "images": [0]} | change
    with pytest.raises(ValueError, match=message):
        decode_row_below(grid_pair(), device="cpu", **arguments)
    with pytest.raises(ValueError, match="row above is not known yet"):
        RowBelowHeads(width=8, length=3, columns=3)


def test_a_target_without_a_head_is_refused() -> None:
    pair: Any = grid_pair()
    bare = type("Bare", (), {name: getattr(pair.target, name) for name in ("vocab_size", "num_tokens", "grid")})()
    with pytest.raises(ValueError, match="shows no head"):
        target_head(type("P", (), {"target": bare})())  # type: ignore[arg-type]
