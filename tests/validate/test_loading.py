"""Loading public files: every way a file, a pair or a request can be wrong is an error that names it."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import theory
import validate
from tests.validate.golden import GOLDEN, arrays, weights
from validate.decoding import decode
from validate.memory import image_bytes
from validate.models import Pair, WeightsError
from validate.models.checkpoints import read_checkpoint
from validate.models.llamagen import Captions, encode_captions, load_tokenizer, load_transformer, read_captions
from validate.models.llamagen.configuration import grid_of_name
from validate.models.llamagen.keys import family
from validate.models.pair import check_tokenizers

BAD = json.loads((GOLDEN / "bad" / "bad.json").read_text())
TINY: dict[str, Any] = {"grid": 2, "heads": 2}


def tiny(name: str = "good.pt", **options: Any) -> Any:
    return load_transformer(GOLDEN / "bad" / name, **(TINY | options))


def rewritten(folder: Path, name: str, change: Callable[[dict[str, torch.Tensor]], object] = lambda t: None) -> Path:
    """The sound file's tensors, changed, under a name whose suffix says the format."""
    tensors = {key: value.clone() for key, value in read_checkpoint(GOLDEN / "bad" / "good.pt").items()}
    change(tensors)
    path = folder / name
    if path.suffix == ".safetensors":
        save_file(tensors, path)
    else:
        torch.save({"model": tensors}, path)
    return path


# --- files ---------------------------------------------------------------------------------------------------------

MESSAGES = {
    "truncated.pt": "damaged or incomplete: cut off",
    "corrupted.pt": "checksum of .* does not fit",
    "missing_key.pt": r"lacks tensor 'layers\.0\.attention\.wo\.weight'",
    "wrong_shape.pt": r"'output\.weight' has shape \(15, 16\), expected \(16, 16\)",
    "nonfinite.pt": r"tensor '.*' holds nan at index",
    "train_state.pt": "more than tensors.*argparse.*Save its weights alone",
    "truncated.safetensors": "damaged or no safetensors file",
}


def test_every_bad_file_is_tried() -> None:
    assert {Path(entry["file"]).name for entry in BAD["files"]} == {"good.pt", *MESSAGES}


@pytest.mark.parametrize("name", MESSAGES)
def test_bad_files(name: str) -> None:
    with pytest.raises(WeightsError, match=MESSAGES[name]):
        tiny(name)


def test_the_sound_file_loads_frozen_and_leaves_the_global_random_state_alone() -> None:
    before = torch.get_rng_state()
    model = tiny()
    assert torch.equal(torch.get_rng_state(), before)
    assert not model.training
    assert all(not p.requires_grad and p.dtype == torch.float32 for p in model.parameters())
    assert (model.vocab_size, model.num_tokens, model.grid, model.num_classes) == (16, 4, (2, 2), 3)


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".safetensors"])
def test_a_flipped_byte_is_noticed(tmp_path: Path, suffix: str) -> None:
    path = rewritten(tmp_path, f"model{suffix}")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert load_transformer(path, **TINY, sha256={path.name: digest}).num_tokens == 4
    content = bytearray(path.read_bytes())
    # The lowest byte of a value in the middle of the file's largest stretch of values: finite before and after.
    tensor = read_checkpoint(path)["output.weight"].contiguous()
    at = content.find(tensor.view(torch.uint8).numpy().tobytes()[:64])
    assert at > 0
    content[at] ^= 1
    path.write_bytes(content)
    if suffix == ".safetensors":
        # No checksum in the format: only a hash shows it.
        load_transformer(path, **TINY)
    else:
        with pytest.raises(WeightsError, match="checksum"):
            load_transformer(path, **TINY)
    with pytest.raises(WeightsError, match="SHA-256"):
        load_transformer(path, **TINY, sha256={path.name: digest})
    (tmp_path / "SHA256SUMS").write_text(f"{digest}  {path.name}\n")
    with pytest.raises(WeightsError, match=r"SHA-256 .*SHA256SUMS says"):
        load_transformer(path, **TINY)
    load_transformer(path, **TINY, verify=False)


@pytest.mark.parametrize("layout", ["model", "module", "state_dict", None])
def test_layouts(tmp_path: Path, layout: str | None) -> None:
    tensors = read_checkpoint(GOLDEN / "bad" / "good.pt") | {"freqs_cis": torch.zeros(3)}
    torch.save(tensors if layout is None else {layout: tensors, "steps": 3}, tmp_path / "a.pt")
    found = load_transformer(tmp_path / "a.pt", **TINY).state_dict()
    assert all(torch.equal(found[name], value) for name, value in tiny().state_dict().items())


def test_other_contents(tmp_path: Path) -> None:
    torch.save({"weights": {"a": torch.zeros(1)}}, tmp_path / "a.pt")
    with pytest.raises(
        WeightsError, match=r"no tensors under model, module, state_dict or flat; it holds 'weights' \(dict\)"
    ):
        load_transformer(tmp_path / "a.pt", **TINY)
    torch.save([torch.zeros(1)], tmp_path / "b.pt")
    with pytest.raises(WeightsError, match="holds a list"):
        load_transformer(tmp_path / "b.pt", **TINY)
    (tmp_path / "c.pt").write_bytes(b"not an archive")
    with pytest.raises(WeightsError, match="not an archive as torch"):
        load_transformer(tmp_path / "c.pt", **TINY)
    with pytest.raises(FileNotFoundError, match=r"d\.pt is missing"):
        load_transformer(tmp_path / "d.pt", **TINY)
    for change, message in (
        (lambda t: t.update(more=torch.zeros(2)), "extra tensor 'more'"),
        (lambda t: t.update({"norm.weight": torch.zeros(16, dtype=torch.int32)}), "dtype int32"),
        (lambda t: t.pop("tok_embeddings.weight"), "lacks tensor 'tok_embeddings"),
        (lambda t: t.update({"output.weight": torch.full((16, 16), 1e6)}), None),
    ):
        path = rewritten(tmp_path, "e.pt", change)
        if message:
            with pytest.raises(WeightsError, match=message):
                load_transformer(path, **TINY)
        else:
            with pytest.raises(WeightsError, match=r"as torch\.float16' holds inf"):
                load_transformer(path, **TINY, dtype="float16")


def test_unknown_shapes_are_asked_for() -> None:
    with pytest.raises(WeightsError, match=r"width 16, which no public model has.*heads="):
        tiny(heads=None)
    with pytest.raises(WeightsError, match=r"does not tell its resolution.*grid="):
        tiny(grid=None)
    with pytest.raises(WeightsError, match="multiple of 4"):
        tiny(heads=8)
    with pytest.raises(ValueError, match="tokens a side"):
        tiny(grid=(2, 3))
    with pytest.raises(ValueError, match="unknown dtype 'int8'"):
        tiny(dtype="int8")
    assert [grid_of_name(f"c2i_{n}.pt") for n in ("B_256", "XL_384", "1384", "L")] == [16, 24, None, None]


def test_published_shapes_are_told_by_their_tensors() -> None:
    from validate.models.llamagen.configuration import infer
    from validate.models.llamagen.transformer import LlamaGen

    published = json.loads((GOLDEN / "keys.json").read_text())
    sizes = {}
    for name, about in published.items():
        if "keys" not in about or "n_layer" not in about:
            continue
        shapes = {
            key.replace("{i}", str(layer)): tuple(shape)
            for key, shape in about["keys"].items()
            for layer in range(about["n_layer"] if "{i}" in key else 1)
        }
        config = infer(shapes, 24, None, name)
        assert (config.layers, config.heads, config.hidden) == (about["n_layer"], about["n_head"], about["ffn_hidden"])
        with torch.device("meta"):
            network = LlamaGen(config)
        assert {key: tuple(value.shape) for key, value in network.state_dict().items()} == shapes
        sizes[name] = sum(value.numel() for value in network.state_dict().values())
        assert sizes[name] == about["total_elements"]
    assert len(sizes) == 9


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("quantize.embedding.weight", "LlamaGen VQ tokenizer"),
        ("model.cls_embedding.uncond_embedding", "LlamaGen transformer in Hugging-Face style"),
        ("fc.weight", "EAGLE-style drafter"),
        ("transformer.wte.weight", "ImageGPT model"),
        ("model.vqmodel.quantize.embedding.weight", "Chameleon-type model"),
        ("model.layers.0.self_attn.q_proj.weight", "model of no known family"),
        ("model.embed_tokens.weight", "Llama-type text model"),
    ],
)
def test_other_families_are_named(tmp_path: Path, key: str, name: str) -> None:
    assert family([key]).startswith(name)
    torch.save({key: torch.zeros(2, 2)}, tmp_path / "c2i_B_256.pt")
    with pytest.raises(WeightsError, match=f"holds a {name}.*, not a LlamaGen transformer"):
        load_transformer(tmp_path / "c2i_B_256.pt")


def test_files_in_each_other_s_place() -> None:
    with pytest.raises(WeightsError, match="holds a LlamaGen VQ tokenizer, not a LlamaGen transformer"):
        load_transformer(weights("vq_a"), grid=4, heads=4)
    with pytest.raises(WeightsError, match="holds a LlamaGen transformer, not a LlamaGen VQ tokenizer"):
        load_tokenizer(weights("c2i_a"), grid=4)


# --- Hugging-Face-style directories --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_size": 35}, "block_size 35 is not a square"),
        ({"num_attention_heads": 4}, "num_key_value_heads"),
        ({"num_hidden_layers": 3}, r"lacks tensor 'layers\.2\."),
        ({"vocab_size": 63}, r"has shape \(64, 48\), expected \(63, 48\)"),
        ({"rms_norm_eps": None}, "config.json"),
        ({"input_type": None}, r"has shape|lacks tensor"),
        ({"hidden_size": "wide"}, "config.json"),
    ],
)
def test_config_that_does_not_fit(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    folder = Path(shutil.copytree(weights("t2i_hf").parent, tmp_path / "hf"))
    config = json.loads((folder / "config.json").read_text()) | change
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(WeightsError, match=message):
        load_transformer(folder)


def test_directories(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(weights("t2i_hf").parent, tmp_path / "hf"))
    with pytest.raises(WeightsError, match="not the square of the grid 4"):
        load_transformer(folder, grid=4)
    tensors = load_file(folder / "model.safetensors")
    tensors.pop("model.layers.1.self_attn.k_proj.weight")
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(WeightsError, match=r"lacks tensor 'model\.layers\.1\.self_attn\.k_proj\.weight'"):
        load_transformer(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"neither model\.safetensors nor pytorch_model\.bin"):
        load_transformer(folder)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(WeightsError, match="of a 'llama' model, not a LlamaGen"):
        load_transformer(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(WeightsError, match="is not JSON"):
        load_transformer(folder)


# --- pairs ---------------------------------------------------------------------------------------------------------


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


def test_guidance_without_a_null_class(tmp_path: Path) -> None:
    """class_dropout_p = 0 means that there is no null row; the table then has one row less."""
    shape = {
        "vocab_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 48,
        "block_size": 4, "num_classes": 4, "input_type": "c2i", "cls_token_num": 1, "class_dropout_p": 0,
        "rms_norm_eps": 1e-5,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(shape))
    names = {"attention.wo": "self_attn.o_proj", "feed_forward.w1": "mlp.gate_proj", "feed_forward.w3": "mlp.up_proj",
             "feed_forward.w2": "mlp.down_proj", "attention_norm": "input_layernorm",
             "ffn_norm": "post_attention_layernorm"}  # fmt: skip
    tensors = {}
    for name, value in read_checkpoint(GOLDEN / "bad" / "good.pt").items():
        if name.endswith("wqkv.weight"):
            for letter, part in zip("qkv", value.chunk(3), strict=True):
                tensors[f"model.layers.0.self_attn.{letter}_proj.weight"] = part.contiguous()
            continue
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        name = name.replace("tok_embeddings", "embed_tokens")
        tensors["lm_head.weight" if name == "output.weight" else f"model.{name}"] = value.contiguous()
    save_file(tensors, tmp_path / "model.safetensors")
    model = load_transformer(tmp_path)
    assert model.num_classes == 4
    model.start(torch.tensor([3]), 1.0)
    with pytest.raises(ValueError, match=r"without a null class, so guidance must be 1; got 2\.0"):
        model.start(torch.tensor([3]), 2.0)
    official, inputs, start = tiny(), torch.tensor([[-1, 3, 2, 1]]), torch.tensor([0])
    ours, theirs = (m.start(torch.tensor([2])).logits(inputs, start) for m in (model, official))
    torch.testing.assert_close(ours, theirs)


# --- captions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_captions_of_a_file(tmp_path: Path, suffix: str) -> None:
    data, path = arrays("t2i_a"), tmp_path / f"captions{suffix}"
    stored = {"features": data["caption_right_padded"].contiguous(), "mask": data["mask_right_padded"].contiguous()}
    if suffix == ".npz":
        np.savez(path, **{key: value.numpy() for key, value in stored.items()})
    else:
        save_file(stored, path)
    captions = read_captions(path)
    torch.testing.assert_close(captions.features, data["caption"], rtol=0, atol=0)
    assert torch.equal(captions.used, data["mask"].bool())
    assert len(captions[torch.tensor([1, 0, 1])]) == 3
    assert len(captions[0:1]) == 1


def test_bad_captions(tmp_path: Path) -> None:
    mask = torch.ones(2, 130)
    mask[0, 5:], mask[1, 121:] = 0, 0
    with pytest.raises(ValueError, match="caption 1 has 121 tokens; the model takes 1 to 120"):
        Captions.from_encoder(torch.zeros(2, 130, 4), mask)
    with pytest.raises(ValueError, match="caption 0 is empty"):
        Captions.from_encoder(torch.zeros(1, 3, 4), torch.zeros(1, 3))
    with pytest.raises(ValueError, match="mask row 1 must be ones followed by zeros"):
        Captions.from_encoder(torch.zeros(2, 3, 4), torch.tensor([[1, 1, 0], [0, 1, 1]]))
    features = torch.zeros(1, 2, 4)
    features[0, 1, 2] = torch.nan
    with pytest.raises(ValueError, match=r"nan at index \(0, 1, 2\)"):
        Captions.from_encoder(features)
    with pytest.raises(ValueError, match=r"mask must have shape \(1, 3\)"):
        Captions.from_encoder(torch.zeros(1, 3, 4), torch.ones(1, 2))
    with pytest.raises(ValueError, match=r"\.npz or \.safetensors"):
        read_captions(tmp_path / "captions.npy")
    np.savez(tmp_path / "captions.npz", other=np.zeros(3))
    with pytest.raises(ValueError, match="no array 'features'"):
        read_captions(tmp_path / "captions.npz")


def test_captions_through_a_text_encoder(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    words = {"<pad>": 0, "</s>": 1, "<unk>": 2, "a": 3, "red": 4, "bird": 5}
    raw = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    raw.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    raw.post_processor = tokenizers.processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token="</s>")
    fast.save_pretrained(tmp_path)
    config = transformers.T5Config(vocab_size=6, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    encoder = transformers.T5EncoderModel(config).eval()
    encoder.save_pretrained(tmp_path)
    captions = encode_captions(["A red BIRD", " bird "], tmp_path, slots=6)
    assert captions.used.tolist() == [[False] * 2 + [True] * 4, [False] * 4 + [True] * 2]
    with torch.no_grad():
        wanted = encoder(input_ids=torch.tensor([[5, 1]])).last_hidden_state
    torch.testing.assert_close(captions.features[1, 4:], wanted[0], atol=1e-5, rtol=1e-4)
    with pytest.raises(ValueError, match="caption 1 has 7 tokens; the model takes 1 to 6"):
        encode_captions(["a", "a red bird a red bird"], tmp_path, slots=6)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors.pop("encoder.final_layer_norm.weight")
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"lacks tensor 'encoder\.final_layer_norm\.weight'"):
        encode_captions(["a"], tmp_path)


# --- memory --------------------------------------------------------------------------------------------------------


def test_a_batch_that_does_not_fit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import validate.memory as memory

    pair = validate.load("fashion")
    row = image_bytes(pair, 2.0)
    assert row == 2 * 2 * 49 * 4 * (4 * 128 + 64)
    table = 12 * 4 * 256 * 4
    monkeypatch.setattr(memory, "free_bytes", lambda device: 10 * (row + table))
    with pytest.raises(MemoryError, match=r"not enough memory for 40 images of pair 'fashion'.*try batch=8"):
        decode(pair, theory.cool_sd(3, 1.1), 3, 40, device="cpu")
    decode(pair, theory.cool_sd(3, 1.1), 3, 40, device="cpu", batch=8)
    monkeypatch.setattr(memory, "free_bytes", lambda device: 10)
    with pytest.raises(MemoryError, match="not even one image fits"):
        decode(pair, theory.cool_sd(3, 1.1), 3, 2, device="cpu")


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("full"), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_a_failed_allocation_names_the_batch(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    import validate.decoding as decoding
    import validate.memory as memory

    def fail(*arguments: object) -> None:
        raise error

    monkeypatch.setattr(memory, "free_bytes", lambda device: None)
    monkeypatch.setattr(decoding, "Decoder", fail)
    with pytest.raises(MemoryError, match=r"for 40 images .* try batch=20"):
        decode(validate.load("fashion"), theory.cool_sd(3, 1.1), 3, 40, device="cpu")
    monkeypatch.setattr(decoding, "Decoder", lambda *arguments: (_ for _ in ()).throw(RuntimeError("other")))
    with pytest.raises(RuntimeError, match="other"):
        decode(validate.load("fashion"), theory.cool_sd(3, 1.1), 3, 40, device="cpu")
