"""Loading public files: every way a file or a request can be wrong is an error that names it."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.validate.golden import GOLDEN, weights
from validate.models import WeightsError
from validate.models.checkpoints import read_checkpoint
from validate.models.llamagen import load_tokenizer, load_transformer
from validate.models.llamagen.configuration import grid_of_name
from validate.models.llamagen.keys import family

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
