"""The embedded pair: guidance at its edges, tokenizer and judge, what ships, devices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import validate.models
from validate.models import (
    Pair,
    TokenTransformer,
    VQTokenizer,
    guided_logits,
    load,
    resolve_device,
)

SHIPPED = Path(validate.models.__file__).resolve().parent.parent / "weights" / "fashion"


@pytest.fixture(scope="module")
def pair() -> Pair:
    return load("fashion")


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
    odd = TokenTransformer(vocab_size=11, num_classes=3, num_tokens=9, width=16, layers=2, heads=4)
    with pytest.raises(ValueError, match="draft 'odd' has vocab_size 11 but the target 256"):
        replace(pair, drafts={"odd": odd}, draft_name="odd")
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


# --- devices -------------------------------------------------------------------------------------------------------


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
