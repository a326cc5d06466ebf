"""Captions of files and through a text encoder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.validate.golden import arrays
from validate.models.llamagen import Captions, encode_captions, read_captions


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
