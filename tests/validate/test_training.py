"""Training on a tiny synthetic folder: stages run, interrupted runs resume, bad data and bad training are refused."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from validate.models import load
from validate.models.building import blank
from validate.models.transformer import TokenTransformer
from validate.models.vq import VQTokenizer
from validate.training import PRESETS, DataError, Plan, Run, TrainingError, export, load_folder, stages
from validate.training.__main__ import main
from validate.training.fitting import code_perplexity, fit_decoder, fit_judge
from validate.training.idx import FILES

SMOKE = PRESETS["smoke"]


def write_idx(path: Path, values: np.ndarray, magic: bytes | None = None, cut: int = 0) -> None:
    header = magic or bytes((0, 0, 8, values.ndim))
    content = header + struct.pack(f">{values.ndim}I", *values.shape) + values.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(content[: len(content) - cut]))


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Threads cost more than they bring at this size, and the suite may share the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bars whose row tells the class, on noise: 160 training and 40 test images."""
    path, rng = tmp_path_factory.mktemp("idx"), np.random.default_rng(0)
    for part, count in (("train", 160), ("test", 40)):
        labels = np.arange(count) % 10
        images = rng.integers(0, 60, (count, 28, 28))
        for image, label in zip(images, labels, strict=True):
            image[2 * label + 4 : 2 * label + 7, rng.integers(2, 8) : rng.integers(16, 26)] = 220
        write_idx(path / FILES[f"{part}_images"], images)
        write_idx(path / FILES[f"{part}_labels"], labels)
    return path


@pytest.fixture
def make_run(folder: Path, tmp_path: Path) -> Callable[..., Run]:
    def make(preset=SMOKE, seed: int = 0, work: str = "work") -> Run:
        return Run(load_folder(folder), preset, seed, tmp_path / work, say=lambda line: None)

    return make


# --- whole runs ----------------------------------------------------------------------------------------------------


def test_smoke_run_writes_loadable_weights(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = torch.get_rng_state()
    command = ["--data", str(folder), "--preset", "smoke", "--out", "weights"]
    assert main(command) == 0
    assert torch.equal(torch.get_rng_state(), before), "training used the global generator"
    assert 'validate.models.load("smoke", weights="weights")' in capsys.readouterr().out

    pair = load("smoke", weights=tmp_path / "weights")
    assert list(pair.drafts) == ["8x1", "4x1"]
    assert pair.draft_name == "8x1"
    assert pair.reference.tokens.shape == (16, 49)
    assert pair.reference.count == 40
    assert torch.linalg.eigvalsh(pair.reference.feature_covariance.double()).min() > -1e-5
    figures = pair.meta["figures"]
    assert figures["code_perplexity"] >= SMOKE.min_perplexity
    assert 0 < figures["lossless_acceptance"]["4x1"]["guidance 2"] <= 1
    # Twelve steps on forty images: already better than uniform over 256 codes.
    assert figures["nll_per_token"]["target"]["guidance 1"] < np.log(256)
    assert pair.meta["data"]["licence"].startswith("not recorded")
    assert str(tmp_path) not in (tmp_path / "weights" / "manifest.json").read_text()
    assert "# Model card: smoke" in (tmp_path / "weights" / "MODEL_CARD.md").read_text()
    assert not list(tmp_path.rglob("*.tmp"))

    # The same command again repeats no stage and writes the same weights.
    written = {path.name: path.read_bytes() for path in (tmp_path / "weights").iterdir()}
    monkeypatch.setattr(stages, "fit_tokenizer", None)
    monkeypatch.setattr(stages, "fit_decoder", None)
    assert main(command) == 0
    assert {path.name: path.read_bytes() for path in (tmp_path / "weights").iterdir()} == written


def test_interrupted_run_resumes(make_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch) -> None:
    fitted: list[str] = []

    def interrupting(*arguments: object) -> torch.nn.Module:
        what = str(arguments[-1])
        if what == "draft-8x1" and "target" in fitted and "interrupted" not in fitted:
            fitted.append("interrupted")
            raise KeyboardInterrupt
        fitted.append(what)
        return fit_decoder(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(stages, "fit_decoder", interrupting)
    run = make_run()
    run.ensure("target")
    with pytest.raises(KeyboardInterrupt):
        run.ensure("draft-8x1")

    resumed = make_run()
    monkeypatch.setattr(stages, "fit_tokenizer", None)
    assert torch.equal(resumed.ensure("tokens")["test"], run.ensure("tokens")["test"])
    resumed.ensure("target")
    resumed.ensure("draft-8x1")
    assert fitted == ["target", "interrupted", "draft-8x1"]

    # More steps for one draft retrain that draft alone; another seed retrains what depends on it.
    longer = replace(SMOKE.drafts[0], plan=replace(SMOKE.drafts[0].plan, steps=13))
    changed = make_run(replace(SMOKE, drafts=(longer, *SMOKE.drafts[1:])))
    changed.ensure("target")
    changed.ensure("draft-8x1")
    assert fitted == ["target", "interrupted", "draft-8x1", "draft-8x1"]
    assert make_run(seed=1).identity("target") != run.identity("target")


def test_damaged_checkpoint_is_made_again(make_run: Callable[..., Run], tmp_path: Path) -> None:
    first = make_run()
    codebook = first.ensure("tokenizer")["codebook"]
    path = tmp_path / "work" / "tokenizer.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    assert torch.equal(make_run().ensure("tokenizer")["codebook"], codebook), "the same seed gave another tokenizer"
    other = make_run(seed=1, work="other").ensure("tokenizer")["codebook"]
    assert not torch.equal(other, codebook)


def test_stage_option_runs_only_what_it_needs(folder: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    assert main(["--data", str(folder), "--preset", "smoke", "--work", str(work), "--stage", "tokens"]) == 0
    assert sorted(path.name for path in work.iterdir()) == ["tokenizer.safetensors", "tokens.safetensors"]


# --- failing loudly ------------------------------------------------------------------------------------------------


def test_collapsed_tokenizer_is_refused(make_run: Callable[..., Run], tmp_path: Path) -> None:
    run = make_run(replace(SMOKE, min_perplexity=255.9, tokenizer=replace(SMOKE.tokenizer, steps=5)))
    with pytest.raises(TrainingError, match=r"collapsed: code perplexity \d+\.\d on test images, at least 255\.9"):
        export(run, tmp_path / "out")
    assert not list((tmp_path / "work").glob("*")), "a collapsed tokenizer was stored as finished"
    assert not (tmp_path / "out").exists()


def test_diverging_training_is_refused(make_run: Callable[..., Run]) -> None:
    data = make_run().data
    preset = replace(SMOKE, judge=Plan(steps=5, batch=8, learning_rate=float("inf"), warmup=0))
    generator = torch.Generator().manual_seed(0)
    tokenizer = make_run().tokenizer
    with pytest.raises(TrainingError, match="judge: the loss became nan; lower the learning rate"):
        fit_judge(data.train_images, data.train_labels, tokenizer, preset, generator)


def test_plan_and_stage_errors(make_run: Callable[..., Run]) -> None:
    with pytest.raises(ValueError, match="got steps 3, batch 8, warmup 4"):
        Plan(steps=3, batch=8, learning_rate=1e-3, warmup=4)
    with pytest.raises(ValueError, match="unknown stage 'draft-9x9'; stages are tokenizer, tokens, target, draft-8x1"):
        make_run().ensure("draft-9x9")


def test_perplexity_known_answers() -> None:
    assert code_perplexity(torch.zeros(4, 49, dtype=torch.int64), 256) == pytest.approx(1.0)
    assert code_perplexity(torch.arange(256), 256) == pytest.approx(256.0)
    assert code_perplexity(torch.tensor([0, 1]), 256) == pytest.approx(2.0)


# --- bad data ------------------------------------------------------------------------------------------------------


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    return copy


def test_data_as_written(folder: Path) -> None:
    data = load_folder(folder)
    assert data.train_images.shape == (160, 28, 28)
    assert data.test_labels[:12].tolist() == [*range(10), 0, 1]
    assert set(data.sha256) == set(FILES.values())


def test_missing_data(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copied / FILES["test_labels"]).unlink()
    with pytest.raises(FileNotFoundError, match=r"t10k-labels-idx1-ubyte\.gz is missing; a data folder holds"):
        load_folder(copied)
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        load_folder(copied / "nowhere")
    assert main(["--data", str(copied), "--preset", "smoke"]) == 1
    assert "t10k-labels-idx1-ubyte.gz is missing" in capsys.readouterr().err


def test_bad_idx_files(copied: Path) -> None:
    images, labels = copied / FILES["train_images"], copied / FILES["train_labels"]
    good_images, good_labels = images.read_bytes(), labels.read_bytes()
    values = np.zeros((160, 28, 28))

    def expect(message: str) -> None:
        with pytest.raises(DataError, match=message):
            load_folder(copied)
        images.write_bytes(good_images)
        labels.write_bytes(good_labels)

    images.write_bytes(good_images[:-20])
    expect(r"train-images.* is truncated or damaged")
    images.write_bytes(b"no gzip at all")
    expect("is not a gzip file")
    write_idx(images, values, magic=bytes((0, 0, 13, 3)))
    expect("has magic number 0x00000d03, expected 0x00000803")
    images.write_bytes(good_labels)
    expect("has magic number 0x00000801, expected 0x00000803")
    images.write_bytes(gzip.compress(bytes((0, 0, 8, 3, 0, 0))))
    expect("its header needs 16 bytes, it holds 6")
    write_idx(images, values, cut=1)
    expect(r"is truncated: shape \(160, 28, 28\) needs 125440 values, it holds 125439")
    images.write_bytes(gzip.compress(gzip.decompress(good_images) + b"x"))
    expect("is too long")
    write_idx(images, np.zeros((160, 8, 8)))
    expect(r"holds images of shape \(160, 8, 8\)")
    write_idx(images, np.zeros((0, 28, 28)))
    expect("N >= 1")
    write_idx(images, values[:159])
    expect("holds 159 images but .* 160 labels")
    write_idx(labels, np.r_[np.zeros(159), 10])
    expect(r"label 10 at index 159 is outside 0…9")


# --- the large pair ------------------------------------------------------------------------------------------------

LARGE = PRESETS["large"]


def test_large_preset_has_the_sizes_it_names() -> None:
    def parameters(shape) -> int:
        config = {"vocab_size": LARGE.vocab_size, "num_classes": 10, "num_tokens": LARGE.side**2}
        network = blank(TokenTransformer, config | {k: getattr(shape, k) for k in ("width", "layers", "heads")})
        return sum(value.numel() for value in network.parameters())

    assert LARGE.side**2 == 196
    assert 9.5e6 < parameters(LARGE.target) < 10.5e6
    sizes = [parameters(shape) for shape in LARGE.drafts]
    assert len(sizes) == 3
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] < parameters(LARGE.target) / 8


def test_one_step_of_every_stage_of_the_large_preset(folder: Path, tmp_path: Path) -> None:
    """Its networks at full width; two test images, for the figures go through every network."""

    def one_step(plan: Plan) -> Plan:
        return replace(plan, steps=1, batch=4, warmup=1)

    def shortened(shape):
        return replace(shape, plan=one_step(shape.plan))

    preset = replace(
        LARGE,
        tokenizer=one_step(LARGE.tokenizer),
        target=shortened(LARGE.target),
        drafts=tuple(map(shortened, LARGE.drafts)),
        judge=one_step(LARGE.judge),
        min_perplexity=1.0,
        kept=2,
        samples_per_class=0,
    )
    data = load_folder(folder)
    data = replace(data, train_images=data.train_images[:8], train_labels=data.train_labels[:8],
                   test_images=data.test_images[:2], test_labels=data.test_labels[:2])  # fmt: skip
    run = Run(data, preset, 0, tmp_path / "work", say=lambda line: None)
    run.ensure("tokenizer")
    assert run.ensure("tokens")["train"].shape == (8, 196)
    assert run.tokenizer.decode(run.ensure("tokens")["test"]).shape == (2, 28, 28)
    for stage in ("target", *(f"draft-{shape.name}" for shape in LARGE.drafts), "judge"):
        assert run.ensure(stage)
        assert run.records[stage]["steps"] == 1


def test_tokens_on_a_finer_grid_travel_through_a_weights_folder(folder: Path, tmp_path: Path) -> None:
    preset = replace(SMOKE, name="fine", side=14, tokenizer=Plan(10, 16, 3e-3, warmup=2), samples_per_class=1)
    run = Run(load_folder(folder), preset, 0, tmp_path / "work", say=lambda line: None)
    export(run, tmp_path / "weights")
    pair = load("fine", weights=tmp_path / "weights")
    assert (pair.num_tokens, pair.grid) == (196, (14, 14))
    assert "196 per 28 × 28 grey image" in (tmp_path / "weights" / "MODEL_CARD.md").read_text()
    with pytest.raises(ValueError, match="side must be 7 or 14 tokens of a 28 × 28 image; got 9"):
        VQTokenizer(side=9)
    assert "side" not in VQTokenizer().config
