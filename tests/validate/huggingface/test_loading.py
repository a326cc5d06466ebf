"""Checkpoints on disk: every family, both formats, and everything that must be refused."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from validate.models import WeightsError
from validate.models.huggingface import TransformerImageModel, check_pair, load

from .tiny import IMAGE_IDS, SYNTAX, chameleon, emu3, imagegpt, janus, llama, vqgan

COLOURS = [[-1.0 + 0.25 * row, 0.0, 0.5] for row in range(7)]
OPTIONS: dict[str, dict[str, Any]] = {
    "imagegpt": {"grid": (3, 4)},
    "janus": {},
    "chameleon": {"ids": SYNTAX},
    "emu3": {"grid": (3, 2)},
}
BUILD: dict[str, Callable[..., Any]] = {"imagegpt": imagegpt, "janus": janus, "chameleon": chameleon, "emu3": emu3}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("checkpoints")
    for name, build in BUILD.items():
        build().save_pretrained(root / name)
    (root / "imagegpt" / "preprocessor_config.json").write_text(json.dumps({"clusters": COLOURS}))
    (root / "emu3" / "preprocessor_config.json").write_text(
        json.dumps({"image_mean": [0.25, 0.5, 0.5], "image_std": [0.5] * 3})
    )
    return root


@pytest.fixture
def copied(checkpoints: Path, tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a checkpoint that a test may spoil."""

    def copy(name: str) -> Path:
        shutil.copytree(checkpoints / name, tmp_path / name)
        return tmp_path / name

    return copy


def edit(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> Path:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})
    return folder


def first_laws(model: TransformerImageModel) -> torch.Tensor:
    rows = model.start(1 if model.unconditional else [[1, 9]])
    return rows.logits(torch.tensor([[-1, 2]]), torch.tensor([0]))


@pytest.mark.parametrize("name", BUILD)
def test_a_folder_gives_the_saved_network(name: str, checkpoints: Path) -> None:
    model = load(checkpoints / name, **OPTIONS[name])
    saved = BUILD[name]().state_dict()
    for key, value in model.network.state_dict().items():
        torch.testing.assert_close(value, saved[key], rtol=0, atol=0)
    assert not any(parameter.requires_grad for parameter in model.network.parameters())
    assert not model.network.training
    assert model.dtype == torch.float32
    half = load(str(checkpoints / name), dtype="bfloat16", **OPTIONS[name])
    assert half.dtype == torch.bfloat16
    laws = first_laws(half)
    assert laws.dtype == torch.float32
    # Unit roundoff 2^-8 through two layers.
    torch.testing.assert_close(laws, first_laws(model), rtol=0, atol=0.15)
    check = load(checkpoints / name, **OPTIONS[name])
    check_pair(model, check)


def test_processors_settings_reach_the_decoder(checkpoints: Path) -> None:
    model = load(checkpoints / "imagegpt", grid=(3, 4))
    assert model.decoder is not None
    torch.testing.assert_close(model.decoder.tables()[0], torch.tensor(COLOURS))
    assert load(checkpoints / "emu3", grid=(3, 2)).decoder.mean == (0.25, 0.5, 0.5)  # type: ignore[union-attr]


def test_pickles_are_read_as_weights_only(copied: Callable[[str], Path]) -> None:
    folder = copied("imagegpt")
    tensors = load_file(folder / "model.safetensors")
    # Files of older versions store the triangular masks, which the network computes.
    tensors["transformer.h.0.attn.bias"] = torch.tril(torch.ones(1, 1, 12, 12, dtype=torch.bool))
    tensors["transformer.h.0.attn.masked_bias"] = torch.tensor(-1e4)
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    model = load(folder, grid=(3, 4))
    torch.testing.assert_close(model.network.lm_head.weight, tensors["lm_head.weight"])

    class Code:
        def __reduce__(self) -> Any:
            return (print, ("run",))

    torch.save({**tensors, "code": Code()}, folder / "pytorch_model.bin")
    with pytest.raises(WeightsError, match="cannot be loaded"):
        load(folder, grid=(3, 4))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("imagegpt", lambda t: t.pop("lm_head.weight"), r"lacks 1 tensors .* first 'lm_head.weight'; they would stay"),
        ("janus", lambda t: t.pop("model.generation_head.vision_head.bias"), "vision_head.bias"),
        ("emu3", lambda t: t.pop("vqmodel.post_quant_conv.conv.weight"), "post_quant_conv"),
        ("chameleon", lambda t: t.pop("model.vqmodel.quantize.embedding.weight"), "quantize.embedding"),
        ("chameleon", lambda t: t.update(spare=torch.zeros(1)), r"holds 1 tensors .* first 'spare'"),
        ("imagegpt", lambda t: t.update(spare=torch.zeros(1)), r"holds 1 tensors .* first 'spare'"),
        ("janus", lambda t: t.update({"model.language_model.norm.weight": torch.zeros(3)}), "cannot be loaded"),
        ("emu3", lambda t: t["text_model.model.norm.weight"][2:3].fill_(torch.nan), r"holds nan at index \(2,\)"),
        ("chameleon", lambda t: t["lm_head.weight"][1, 2].fill_(torch.inf), r"holds inf at index \(1, 2\)"),
    ],
)  # fmt: skip
def test_spoilt_tensors_are_named(
    name: str, change: Callable[[dict[str, torch.Tensor]], Any], message: str, copied: Callable[[str], Path]
) -> None:
    with pytest.raises(WeightsError, match=message):
        load(edit(copied(name), change), **OPTIONS[name])


def test_spoilt_files_are_refused(copied: Callable[[str], Path], tmp_path: Path) -> None:
    folder = copied("imagegpt")
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    digest = hashlib.sha256(whole).hexdigest()
    assert load(folder, grid=(3, 4), sha256={file.name: digest}).vocab_size == 7
    with pytest.raises(WeightsError, match=r"no SHA-256 was given for model\.safetensors"):
        load(folder, grid=(3, 4), sha256={})
    flipped = bytearray(whole)
    flipped[-10] ^= 1
    file.write_bytes(flipped)
    with pytest.raises(WeightsError, match="has SHA-256"):
        load(folder, grid=(3, 4), sha256={file.name: digest})
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(WeightsError, match="cannot be loaded"):
        load(folder, grid=(3, 4))
    file.unlink()
    with pytest.raises(FileNotFoundError, match=r"neither model\.safetensors nor pytorch_model\.bin"):
        load(folder, grid=(3, 4))
    (folder / "config.json").write_text("{")
    with pytest.raises(WeightsError, match="is not JSON"):
        load(folder)


def test_other_kinds_of_model_are_named(tmp_path: Path, checkpoints: Path) -> None:
    llama().save_pretrained(tmp_path / "llama")
    with pytest.raises(WeightsError, match="of type 'llama'; the families known here are imagegpt, janus"):
        load(tmp_path / "llama")
    with pytest.raises(FileNotFoundError, match="hub=True"):
        load("nobody/no-such-model")
    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        load(tmp_path)
    with pytest.raises(ValueError, match="janus takes no option 'grid'"):
        load(checkpoints / "janus", grid=(3, 3))
    with pytest.raises(ValueError, match="unknown dtype 'int8'"):
        load(checkpoints / "janus", dtype="int8")
    with pytest.raises(ValueError, match="imagegpt takes eager"):
        load(checkpoints / "imagegpt", attention="sdpa", grid=(3, 4))


def test_chameleon_files_with_a_decoder_and_without_a_tokenizer(copied: Callable[[str], Path], tmp_path: Path) -> None:
    network = chameleon()
    decoder = vqgan(network)
    whole = edit(
        copied("chameleon"), lambda t: t.update({f"model.vqmodel.{key}": value for key, value in decoder.items()})
    )
    inside = load(whole, ids=SYNTAX)
    tokens = torch.arange(16)[None] % 6
    assert inside.decoder is not None
    picture = inside.decoder.decode(tokens)

    bare = edit(whole, lambda t: [t.pop(key) for key in list(t) if key.startswith("model.vqmodel.")])
    blind = load(bare, ids=SYNTAX, layout="lumina", grid=(2, 4))
    assert blind.vocab_size == len(IMAGE_IDS)
    with pytest.raises(ValueError, match="holds no codebook to compare"):
        check_pair(blind, blind)
    spare = {"encoder.conv_in.weight": torch.zeros(1), "loss.discriminator": torch.zeros(1)}
    torch.save({"state_dict": {**decoder, **spare}}, tmp_path / "vqgan.ckpt")
    save_file(decoder, tmp_path / "vqgan.safetensors")
    for file in ("vqgan.ckpt", "vqgan.safetensors"):
        model = load(bare, ids=SYNTAX, pixels=tmp_path / file)
        assert model.decoder is not None
        torch.testing.assert_close(model.decoder.decode(tokens), picture, rtol=0, atol=0)
    check_pair(model, load(bare, ids=SYNTAX, pixels=tmp_path / "vqgan.ckpt"))
    save_file(spare, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="holds no decoder"):
        load(bare, ids=SYNTAX, pixels=tmp_path / "other.safetensors")
    with pytest.raises(FileNotFoundError, match="is missing"):
        load(bare, ids=SYNTAX, pixels=tmp_path / "none.ckpt")
    torch.save({"state_dict": Path()}, tmp_path / "code.ckpt")
    with pytest.raises(ValueError, match=r"more than tensors.*pathlib"):
        load(bare, ids=SYNTAX, pixels=tmp_path / "code.ckpt")


def test_the_layout_follows_the_published_architecture(copied: Callable[[str], Path]) -> None:
    folder = copied("chameleon")
    config = json.loads((folder / "config.json").read_text())
    config["architectures"] = ["ChameleonXLLMXForConditionalGeneration"]
    (folder / "config.json").write_text(json.dumps(config))
    model = load(folder, ids=SYNTAX, grid=(2, 2))
    assert model.end_of_row == SYNTAX.end_of_row


def test_text_prompts_use_the_checkpoints_tokenizer(copied: Callable[[str], Path]) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {"<unk>": 0, "a": 8, "cat": 9, "dog": 10}
    inner = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    folder = copied("chameleon")
    PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>").save_pretrained(folder)
    model = load(folder, ids=SYNTAX)
    assert model.encode_conditions(["a cat", "dog"]).ids.tolist() == [[0, 8, 9, 4, 5], [-1, 0, 10, 4, 5]]
    other = load(folder, ids=SYNTAX)
    check_pair(model, other)
    other.tokenizer.add_tokens(["bird"])
    with pytest.raises(ValueError, match="text tokenizers differ, for instance in 'bird'"):
        check_pair(model, other)


def test_validate_needs_no_transformers_and_says_what_does() -> None:
    program = (
        "import sys; import validate, validate.models\n"
        "assert 'transformers' not in sys.modules\n"
        "sys.modules['transformers'] = None\n"
        "try:\n    import validate.models.huggingface\n"
        "except ImportError as error:\n    assert 'relaxsd[hf]' in str(error), error\n"
        "else:\n    raise SystemExit('imported')\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
