"""The embedded pair: cache against teacher forcing, guidance at its edges, every way a weights folder can be wrong."""

from __future__ import annotations

import doctest
import hashlib
import importlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load as parse
from safetensors.torch import save
from torch import Tensor

import validate.models
from validate.models import (
    KVCache,
    Pair,
    TokenTransformer,
    VQTokenizer,
    WeightsError,
    guided_logits,
    known_models,
    load,
    resolve_device,
)
from validate.models.building import fresh

SHIPPED = Path(validate.models.__file__).resolve().parent.parent / "weights" / "fashion"
# float32 rounding through four layers; measured differences stay below 2e-6.
AGREEMENT = 1e-5


@pytest.fixture(scope="module")
def pair() -> Pair:
    return load("fashion")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SHIPPED, tmp_path / "fashion"))


def random_model(seed: int = 0) -> TokenTransformer:
    config = {"vocab_size": 11, "num_classes": 3, "num_tokens": 9, "width": 16, "layers": 2, "heads": 4}
    generator = torch.Generator().manual_seed(seed)
    model = fresh(TokenTransformer, config, generator).eval().requires_grad_(False)
    model.head.weight.normal_(generator=generator)
    return model


def random_ids(model: TokenTransformer, rows: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    classes = torch.randint(model.num_classes + 1, (rows, 1), generator=generator) + model.vocab_size
    tokens = torch.randint(model.vocab_size, (rows, model.num_tokens - 1), generator=generator)
    return torch.cat([classes, tokens], dim=1)


def rewrite(folder: Path, name: str, change: Callable[[dict[str, Tensor]], object], *, shapes: bool = True) -> None:
    """Change a file's tensors and record its new size, hash and (with ``shapes``) tensors in the manifest."""
    tensors = parse((folder / name).read_bytes())
    change(tensors)
    content = save(tensors)
    (folder / name).write_bytes(content)

    def record(manifest: dict) -> None:
        entry = manifest["files"][name]
        entry |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        if shapes:
            entry["tensors"] = {
                key: {"shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
                for key, value in tensors.items()
            }

    edit_manifest(folder, record)


def edit_manifest(folder: Path, change: Callable[[dict], object]) -> None:
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


# --- the transformer -----------------------------------------------------------------------------------------------


def test_teacher_forcing_is_causal() -> None:
    model = random_model()
    ids = random_ids(model, 4)
    changed = ids.clone()
    changed[:, 5] = (changed[:, 5] + 1) % model.vocab_size
    before, after = model(ids), model(changed)
    torch.testing.assert_close(before[:, :5], after[:, :5], rtol=0, atol=AGREEMENT)
    assert (before[:, 5:] - after[:, 5:]).abs().max() > 1e-3


@pytest.mark.parametrize("pieces", [[9], [1] * 9, [1, 4, 3, 1]])
def test_cached_equals_teacher_forced(pieces: list[int]) -> None:
    model = random_model()
    ids, cache, length, parts = random_ids(model, 3), model.new_cache(3), 0, []
    for new in pieces:
        parts.append(model.extend(ids[:, length : length + new], torch.full((3,), length), cache)[0])
        length += new
    torch.testing.assert_close(torch.cat(parts, dim=1), model(ids), rtol=0, atol=AGREEMENT)


def ragged_with_trimming(model: TokenTransformer, honest: bool) -> float:
    """Largest difference to the oracle over random rounds: write n ids per row, keep a random number of them."""
    rows, generator = 5, torch.Generator().manual_seed(2)
    ids, cache = random_ids(model, rows), model.new_cache(rows)
    oracle = model(ids)
    lengths, worst = torch.zeros(rows, dtype=torch.int64), 0.0
    for _ in range(12):
        new = 3
        lengths = lengths.clamp(max=model.num_tokens - new)
        columns = lengths[:, None] + torch.arange(new)
        guess = ids.gather(1, columns)
        # The last id is a rejected guess: wrong, then overwritten next round.
        wrong = (guess[:, -1] + 1) % model.vocab_size
        logits, _ = model.extend(torch.cat([guess[:, :-1], wrong[:, None]], dim=1), lengths, cache)
        expected = oracle.gather(1, columns[:, :-1, None].expand(-1, -1, model.vocab_size))
        worst = max(worst, float((logits[:, :-1] - expected).abs().max()))
        kept = torch.randint(1, new, (rows,), generator=generator) if honest else torch.full((rows,), new)
        lengths = lengths + kept
    return worst


def test_ragged_rows_and_trimming_agree_with_teacher_forcing() -> None:
    assert ragged_with_trimming(random_model(), honest=True) < AGREEMENT


def test_keeping_a_rejected_token_is_noticed() -> None:
    # Negative control of the test above: a caller that forgets to trim sees other logits.
    assert ragged_with_trimming(random_model(), honest=False) > 1e-3


def test_shipped_target_cached_equals_teacher_forced(pair: Pair) -> None:
    for model in (pair.target, *pair.drafts.values()):
        ids = torch.cat([model.class_ids(pair.reference.labels[:4])[:, None], pair.reference.tokens[:4, :-1]], dim=1)
        cache, lengths = model.new_cache(4), torch.tensor([0, 7, 20, 45])
        model.extend(ids, torch.zeros(4, dtype=torch.int64), cache)
        columns = lengths[:, None] + torch.arange(4)
        logits, _ = model.extend(ids.gather(1, columns), lengths, cache)
        expected = model(ids).gather(1, columns[..., None].expand(-1, -1, model.vocab_size))
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)


def test_hidden_states_are_what_the_head_reads() -> None:
    model = random_model()
    ids = random_ids(model, 2)
    logits, hidden = model(ids, return_hidden=True)
    torch.testing.assert_close(model.head(hidden), logits)
    cached, cached_hidden = model.extend(ids, torch.zeros(2, dtype=torch.int64), model.new_cache(2))
    torch.testing.assert_close(cached_hidden, hidden, rtol=0, atol=AGREEMENT)
    torch.testing.assert_close(cached, logits, rtol=0, atol=AGREEMENT)


def test_cache_gathers_rows() -> None:
    model = random_model()
    ids, cache = random_ids(model, 3), model.new_cache(3)
    model.extend(ids[:, :4], torch.zeros(3, dtype=torch.int64), cache)
    rows = torch.tensor([2, 2, 0])
    branched = cache.gather(rows)
    assert isinstance(branched, KVCache)
    assert branched.rows == 3
    logits, _ = model.extend(ids[rows][:, 4:], torch.full((3,), 4), branched)
    torch.testing.assert_close(logits, model(ids[rows])[:, 4:], rtol=0, atol=AGREEMENT)


def test_extend_names_row_and_value_out_of_range() -> None:
    model = random_model()
    ids, cache = random_ids(model, 2)[:, :3], model.new_cache(2)
    with pytest.raises(ValueError, match=r"lengths\[1\] = 7 with 3 new ids .* at most 6"):
        model.extend(ids, torch.tensor([6, 7]), cache)
    with pytest.raises(ValueError, match=r"lengths\[0\] = -1"):
        model.extend(ids, torch.tensor([-1, 0]), cache)
    with pytest.raises(ValueError, match=r"ids row 1 holds .*15"):
        model.extend(torch.tensor([[0], [15]]), torch.tensor([0, 0]), cache)
    with pytest.raises(ValueError, match="lengths must be int64"):
        model.extend(ids, torch.tensor([0.0, 0.0]), cache)
    with pytest.raises(ValueError, match="cache holds 2 rows but ids has 1"):
        model.extend(ids[:1], torch.tensor([0]), cache)
    with pytest.raises(ValueError, match="1 to 9 positions"):
        model(torch.zeros(1, 10, dtype=torch.int64))
    with pytest.raises(ValueError, match="class number 3 at index"):
        model.class_ids(torch.tensor([0, 3]))
    with pytest.raises(ValueError, match="heads must divide width"):
        TokenTransformer(vocab_size=2, num_classes=1, num_tokens=2, width=6, layers=1, heads=4)


def test_extend_moves_no_other_cache_entry() -> None:
    model = random_model()
    cache = model.new_cache(2)
    model.extend(random_ids(model, 2)[:, :2], torch.tensor([3, 5]), cache)
    written = cache.keys.abs().sum(dim=(0, 3, 4)) > 0
    assert written.nonzero().tolist() == [[0, 3], [0, 4], [1, 5], [1, 6]]


# --- guidance ------------------------------------------------------------------------------------------------------


def test_guidance_edges() -> None:
    cond, uncond = torch.tensor([1.0, -torch.inf, -torch.inf, 0.3]), torch.tensor([0.1, -torch.inf, 2.0, -torch.inf])
    before = cond.clone(), uncond.clone()
    assert torch.equal(guided_logits(cond, uncond, 1.0), cond)
    assert torch.equal(guided_logits(cond, uncond, 0.0), uncond)
    for scale in (-1.0, 0.5, 2.0, 7.5):
        guided = guided_logits(cond, uncond, scale)
        assert not guided.isnan().any()
        assert guided[0] == pytest.approx(0.1 + scale * 0.9)
        assert guided[1:].tolist() == [-torch.inf] * 3
        assert guided.softmax(-1).tolist() == [1.0, 0.0, 0.0, 0.0]
    assert torch.equal(cond, before[0])
    assert torch.equal(uncond, before[1])


def test_guidance_returns_a_new_tensor() -> None:
    cond = torch.zeros(3)
    guided_logits(cond, cond, 1.0).add_(1.0)
    assert cond.tolist() == [0.0] * 3


def test_guidance_errors() -> None:
    with pytest.raises(ValueError, match="must agree"):
        guided_logits(torch.zeros(2), torch.zeros(3), 2.0)
    with pytest.raises(ValueError, match="finite; got nan"):
        guided_logits(torch.zeros(2), torch.zeros(2), float("nan"))


# --- tokenizer and judge -------------------------------------------------------------------------------------------


def test_tokenizer_shapes_and_ranges(pair: Pair) -> None:
    images = pair.tokenizer.decode(pair.reference.tokens[:5])
    assert images.shape == (5, 28, 28)
    assert images.dtype == torch.float32
    assert 0 <= float(images.min()) <= float(images.max()) <= 1
    tokens = pair.tokenizer.encode(images)
    assert tokens.shape == (5, 49)
    assert tokens.dtype == torch.int64
    assert pair.grid == (7, 7)
    assert pair.num_tokens == pair.tokenizer.num_tokens == 49
    # Half precision keeps 11 bits: rows of eight entries stay unit to a few 1e-4.
    torch.testing.assert_close(pair.tokenizer.codebook.norm(dim=1), torch.ones(256), rtol=0, atol=1e-3)


def test_reconstructing_a_reconstruction_keeps_most_tokens(pair: Pair) -> None:
    tokens = pair.reference.tokens[:200]
    again = pair.tokenizer.encode(pair.tokenizer.decode(tokens))
    assert float((again == tokens).double().mean()) > 0.5


def test_tokenizer_and_judge_errors(pair: Pair) -> None:
    with pytest.raises(ValueError, match=r"shape \(B, 28, 28\)"):
        pair.tokenizer.encode(torch.zeros(2, 1, 28, 28))
    with pytest.raises(ValueError, match=r"shape \(B, 28, 28\)"):
        pair.judge(torch.zeros(2, 27, 28))
    with pytest.raises(ValueError, match=r"shape \(B, 49\)"):
        pair.tokenizer.decode(torch.zeros(1, 48, dtype=torch.int64))
    tokens = torch.zeros(2, 49, dtype=torch.int64)
    tokens[1, 7] = 256
    with pytest.raises(ValueError, match=r"tokens\[1, 7\] = 256"):
        pair.tokenizer.decode(tokens)


# --- the shipped pair ----------------------------------------------------------------------------------------------


def test_shipped_figures_hold(pair: Pair) -> None:
    """Recorded nll and lossless acceptance on the kept test images, recomputed from what ships."""
    tokens, labels = pair.reference.tokens, pair.reference.labels
    full = pair.meta["figures"]["kept"]
    assert full["images"] == len(pair.reference.tokens) == 1000
    laws = {}
    for name, model in {"target": pair.target, **pair.drafts}.items():
        first = model.class_ids(labels), torch.full_like(labels, model.null_id)
        cond, uncond = (model(torch.cat([ids[:, None], tokens[:, :-1]], dim=1)) for ids in first)
        laws[name] = [guided_logits(cond, uncond, scale).softmax(-1) for scale in (1.0, pair.guidance)]
    for name, both in laws.items():
        for key, law, target in zip(("guidance 1", "guidance 2"), both, laws["target"], strict=True):
            # Another machine rounds differently (float32); a wrong tensor shows in the first digit.
            nll = -law.gather(-1, tokens[..., None]).log().double().mean()
            assert float(nll) == pytest.approx(full["nll_per_token"][name][key], abs=1e-3)
            if name != "target":
                accepted = torch.minimum(law, target).sum(-1).double().mean()
                assert float(accepted) == pytest.approx(full["lossless_acceptance"][name][key], abs=1e-3)


def test_drafts_are_ordered_best_first_and_worse_than_the_target(pair: Pair) -> None:
    figures = pair.meta["figures"]
    nll = [figures["nll_per_token"][name]["guidance 1"] for name in ("target", *pair.drafts)]
    assert nll == sorted(nll)
    acceptance = [figures["lossless_acceptance"][name]["guidance 2"] for name in pair.drafts]
    assert acceptance == sorted(acceptance, reverse=True)
    assert pair.draft is pair.drafts[next(iter(pair.drafts))]


def test_judge_recognises_reconstructions(pair: Pair) -> None:
    reference = pair.reference
    logits, features = pair.judge(pair.tokenizer.decode(reference.tokens))
    accuracy = float((logits.argmax(-1) == reference.labels).double().mean())
    # 1,000 of the 10,000 images: four standard errors.
    assert accuracy == pytest.approx(reference.accuracy_reconstructed, abs=4 * (0.9 * 0.1 / 1000) ** 0.5)
    assert features.shape == (1000, pair.judge.features)
    spread = reference.feature_covariance.diagonal().sqrt()
    assert ((features.mean(dim=0) - reference.feature_mean).abs() < 5 * spread / 1000**0.5).all()
    assert reference.count == 10000
    assert reference.accuracy > 0.85


def test_shipped_files_are_small() -> None:
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) <= 4 * 2**20


def test_model_card_is_the_manifest_s(pair: Pair) -> None:
    from validate.training.card import model_card

    assert (SHIPPED / "MODEL_CARD.md").read_text() == model_card(pair.meta)


def test_loading_leaves_the_global_random_state_alone() -> None:
    before = torch.get_rng_state()
    load("fashion")
    assert torch.equal(torch.get_rng_state(), before)


def test_loaded_networks_are_frozen_single_precision(pair: Pair) -> None:
    for network in (pair.target, *pair.drafts.values(), pair.tokenizer, pair.judge):
        assert not network.training
        assert all(not p.requires_grad for p in network.parameters())
        assert all(v.dtype == torch.float32 for v in network.state_dict().values())


def test_pair_changes_draft_and_guidance_without_changing_itself(pair: Pair) -> None:
    worst = list(pair.drafts)[-1]
    other = pair.with_draft(worst).with_guidance(1.0)
    assert other.draft is pair.drafts[worst]
    assert (other.guidance, pair.guidance) == (1.0, 2.0)
    assert pair.draft is not other.draft
    assert pair.to("cpu") is pair
    with pytest.raises(ValueError, match="unknown draft 'x'; known drafts are 64x1"):
        pair.with_draft("x")
    with pytest.raises(ValueError, match="finite; got inf"):
        pair.with_guidance(float("inf"))
    with pytest.raises(ValueError, match="draft 'odd' has vocab_size 11 but the target 256"):
        replace(pair, drafts={"odd": random_model()}, draft_name="odd")
    with pytest.raises(ValueError, match="tokenizer has vocab_size 8"):
        replace(pair, tokenizer=VQTokenizer(vocab_size=8, width=8))
    with pytest.raises(ValueError, match="at least one draft"):
        replace(pair, drafts={})


def test_draft_by_name() -> None:
    assert load("fashion", draft="32x1").draft.width == 32


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_pair_on_cuda_agrees_with_cpu(pair: Pair) -> None:
    moved = pair.to("cuda")
    assert moved.device.type == "cuda"
    assert pair.device.type == "cpu"
    ids = torch.cat([pair.target.class_ids(torch.arange(10))[:, None], pair.reference.tokens[:10, :-1]], dim=1)
    cache, lengths = moved.target.new_cache(10), torch.zeros(10, dtype=torch.int64, device="cuda")
    cached, _ = moved.target.extend(ids.cuda(), lengths, cache)
    torch.testing.assert_close(cached.cpu(), pair.target(ids), rtol=0, atol=1e-2)


# --- loading errors ------------------------------------------------------------------------------------------------


def test_unknown_names() -> None:
    assert "fashion" in known_models()
    with pytest.raises(WeightsError, match=r"unknown model 'fashon'; known models are .*fashion"):
        load("fashon")
    with pytest.raises(WeightsError, match="unknown draft 'tiny'; known drafts are 64x1, 32x1, 24x1"):
        load("fashion", draft="tiny")


def test_untampered_copy_loads(folder: Path, pair: Pair) -> None:
    copied = load("fashion", weights=folder)
    ids = torch.tensor([[256, 1, 2]])
    assert torch.equal(copied.target(ids), pair.target(ids))
    with pytest.raises(WeightsError, match="describes 'fashion', but 'mnist' was asked for"):
        load("mnist", weights=folder)


def test_missing_folder_manifest_and_file(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere.manifest\.json is missing"):
        load("fashion", weights=tmp_path / "nowhere")
    (folder / "draft-32x1.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"draft-32x1\.safetensors is missing although manifest\.json lists it"):
        load("fashion", weights=folder)


def test_damaged_manifest(folder: Path) -> None:
    edit_manifest(folder, lambda manifest: manifest.pop("guidance"))
    with pytest.raises(WeightsError, match="has no entry 'guidance'"):
        load("fashion", weights=folder)
    (folder / "manifest.json").write_text("{")
    with pytest.raises(WeightsError, match="is not JSON"):
        load("fashion", weights=folder)
    (folder / "manifest.json").write_text("[]")
    with pytest.raises(WeightsError, match="holds a list"):
        load("fashion", weights=folder)


def test_manifest_entries_of_files(folder: Path) -> None:
    edit_manifest(folder, lambda manifest: manifest["files"]["judge.safetensors"].pop("sha256"))
    with pytest.raises(WeightsError, match=r"file 'judge\.safetensors' has no entry 'sha256'"):
        load("fashion", weights=folder)
    edit_manifest(folder, lambda manifest: manifest["files"].pop("target.safetensors"))
    with pytest.raises(WeightsError, match=r"lists no file 'target\.safetensors'; it lists tokenizer"):
        load("fashion", weights=folder)
    edit_manifest(folder, lambda manifest: manifest["files"].update({"target.safetensors": 3}))
    with pytest.raises(WeightsError, match=r"entry of 'target\.safetensors' is a int"):
        load("fashion", weights=folder)


@pytest.mark.parametrize("entry", ["name", "guidance", "draft", "drafts", "files", "figures"])
@pytest.mark.parametrize("value", [None, 3, "x", [], {}, [3], {"x": 3}, float("nan")], ids=str)
def test_manifest_entries_of_another_kind(folder: Path, entry: str, value: object) -> None:
    edit_manifest(folder, lambda manifest: manifest.update({entry: value}))
    if (entry, value) == ("guidance", 3):
        assert load("fashion", weights=folder).guidance == 3
        return
    with pytest.raises(WeightsError):
        load("fashion", weights=folder)


@pytest.mark.parametrize("key", ["config", "config_sha256", "tensors"])
@pytest.mark.parametrize("value", [None, 3, "x", [], {"x": 3}], ids=str)
def test_file_entries_of_another_kind(folder: Path, key: str, value: object) -> None:
    edit_manifest(folder, lambda manifest: manifest["files"]["target.safetensors"].update({key: value}))
    with pytest.raises(WeightsError):
        load("fashion", weights=folder)


@pytest.mark.parametrize("figure", ["test_images", "judge_accuracy"])
@pytest.mark.parametrize("value", [None, "many", []], ids=str)
def test_figures_of_another_kind(folder: Path, figure: str, value: object) -> None:
    edit_manifest(folder, lambda manifest: manifest["figures"].update({figure: value}))
    with pytest.raises(WeightsError, match="malformed"):
        load("fashion", weights=folder)


@pytest.mark.parametrize("verify", [True, False])
def test_config_that_fits_but_was_changed(folder: Path, verify: bool) -> None:
    """The number of heads shows in no shape, and another one is another network."""
    edit_manifest(folder, lambda manifest: manifest["files"]["target.safetensors"]["config"].update(heads=1))
    with pytest.raises(WeightsError, match=r"config .*'heads': 1.* was changed"):
        load("fashion", weights=folder, verify=verify)


def test_file_names_cannot_leave_the_folder(folder: Path) -> None:
    edit_manifest(folder, lambda manifest: manifest.update(drafts=["/../../x"], draft="/../../x"))
    with pytest.raises(WeightsError, match="not a plain file name"):
        load("fashion", weights=folder)


def test_truncated_file(folder: Path) -> None:
    path = folder / "target.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(WeightsError, match=r"target\.safetensors is truncated: \d+ bytes, manifest\.json records \d+"):
        load("fashion", weights=folder)
    with pytest.raises(WeightsError, match=r"target\.safetensors is not a readable safetensors file"):
        load("fashion", weights=folder, verify=False)
    path.write_bytes(b"")
    with pytest.raises(WeightsError, match=r"target\.safetensors is not a readable safetensors file"):
        load("fashion", weights=folder, verify=False)


def test_flipped_bit(folder: Path) -> None:
    path = folder / "tokenizer.safetensors"
    content = bytearray(path.read_bytes())
    recorded = hashlib.sha256(content).hexdigest()
    content[-1] ^= 1
    path.write_bytes(content)
    found = hashlib.sha256(content).hexdigest()
    with pytest.raises(WeightsError, match=rf"tokenizer\.safetensors has SHA-256 {found}, .* records {recorded}"):
        load("fashion", weights=folder)
    # The documented opt-out: without verification the flipped bit goes through.
    load("fashion", weights=folder, verify=False)


@pytest.mark.parametrize("shapes", [False, True], ids=["manifest says otherwise", "network says otherwise"])
def test_missing_extra_and_misshapen_tensors(folder: Path, shapes: bool) -> None:
    name = "draft-24x1.safetensors"

    def expect(change: Callable[[dict[str, Tensor]], object], message: str) -> None:
        shutil.copy(SHIPPED / name, folder / name)
        rewrite(folder, name, change, shapes=shapes)
        with pytest.raises(WeightsError, match=message):
            load("fashion", weights=folder)
        shutil.copy(SHIPPED / "manifest.json", folder / "manifest.json")

    expect(lambda t: t.pop("head.bias"), r"lacks tensor 'head\.bias' of shape \(256,\)")
    expect(lambda t: t.update(more=torch.zeros(2)), r"extra tensor 'more' of shape \(2,\)")
    expect(
        lambda t: t.update({"head.bias": torch.zeros(255).half()}),
        r"'head\.bias' has shape \(255,\), expected \(256,\)",
    )


def test_other_dtype_than_recorded(folder: Path) -> None:
    def change(tensors: dict[str, Tensor]) -> None:
        tensors["head.bias"] = tensors["head.bias"].to(torch.int16)

    rewrite(folder, "draft-24x1.safetensors", change, shapes=False)
    with pytest.raises(WeightsError, match=r"'head\.bias' has dtype int16, manifest\.json records float16"):
        load("fashion", weights=folder)
    rewrite(folder, "draft-24x1.safetensors", lambda tensors: None)
    with pytest.raises(WeightsError, match=r"'head\.bias' has dtype int16, a network's values are floating point"):
        load("fashion", weights=folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite(folder: Path, value: float) -> None:
    def change(tensors: dict[str, Tensor]) -> None:
        tensors["blocks.2.qkv.weight"][3, 5] = value

    rewrite(folder, "target.safetensors", change)
    with pytest.raises(WeightsError, match=rf"'blocks\.2\.qkv\.weight' holds {value} at index \(3, 5\)"):
        load("fashion", weights=folder, verify=False)


def test_config_that_does_not_fit(folder: Path) -> None:
    edit_manifest(folder, lambda manifest: manifest["files"]["target.safetensors"]["config"].update(depth=3))
    with pytest.raises(WeightsError, match=r"config .* of target\.safetensors does not fit TokenTransformer: .*depth"):
        load("fashion", weights=folder)


def test_reference_lacks_a_tensor(folder: Path) -> None:
    rewrite(folder, "reference.safetensors", lambda tensors: tensors.pop("labels"))
    with pytest.raises(WeightsError, match=r"reference\.safetensors lacks tensor 'labels'"):
        load("fashion", weights=folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t["labels"].__setitem__(5, 10), r"labels hold 10 at index \(5,\), outside 0…9"),
        (lambda t: t.update(labels=-t["labels"].to(torch.int64) - 1), r"labels hold -\d+ at index \(0,\)"),
        (lambda t: t.update(labels=t["labels"][:-1].clone()), r"'tokens' has shape \(1000, 49\), expected \(999, 49\)"),
        (lambda t: t.update(labels=t["labels"][:, None].clone()), r"'labels' has shape"),
        (lambda t: t.update(tokens=t["tokens"].to(torch.int32) + 250), r"tokens hold \d+ at index"),
        (lambda t: t.update(feature_mean=t["feature_mean"][:-1].clone()), "'feature_mean' has shape"),
    ],
)
def test_reference_that_does_not_fit(folder: Path, change: Callable[[dict[str, Tensor]], object], message: str) -> None:
    rewrite(folder, "reference.safetensors", change)
    with pytest.raises(WeightsError, match=message):
        load("fashion", weights=folder)


# --- devices and doctests ------------------------------------------------------------------------------------------


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_device("cpu") == torch.device("cpu")
    assert resolve_device(torch.device("cpu")).type == "cpu"
    for name in ("gpu", "", "meta"):
        with pytest.raises(ValueError, match="choose auto, cpu, cuda or cuda:N"):
            resolve_device(name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == torch.device("cpu")
    for name in ("cuda", "cuda:0"):
        with pytest.raises(RuntimeError, match="sees no CUDA device; use device='cpu'"):
            load("fashion", device=name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolve_device("auto") == torch.device("cuda")
    with pytest.raises(RuntimeError, match="there are 2 CUDA devices"):
        resolve_device("cuda:2")


@pytest.mark.parametrize("module", ["transformer", "guidance", "warping"])
def test_worked_examples(module: str) -> None:
    results = doctest.testmod(importlib.import_module(f"validate.models.{module}"))
    assert results.attempted > 0
    assert results.failed == 0
