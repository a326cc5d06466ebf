"""Tokens to pixels, and the comparison of two tokenizers before their models become a pair."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from transformers import ChameleonVQVAEConfig, JanusVQVAEConfig
from transformers.models.janus.modeling_janus import JanusVQVAE

from validate.models.huggingface import (
    CausalImageModel,
    ChameleonImageModel,
    Emu3ImageModel,
    ImageGPTModel,
    JanusImageModel,
    check_pair,
)
from validate.models.huggingface.chameleon import decoder_of

from .tiny import CODES, SYNTAX, case, chameleon, emu3, imagegpt, janus, llama, seeded, vqgan


def test_clusters_become_the_published_bytes() -> None:
    model = case("imagegpt").model
    tokens = torch.arange(12)[None] % 7
    pixels = model.decoder.decode(tokens)
    assert pixels.shape == (1, 3, 3, 4)
    published = np.rint(127.5 * (model.decoder.clusters.numpy()[tokens[0]] + 1)).reshape(3, 4, 3)
    np.testing.assert_array_equal(np.rint(255 * pixels[0].permute(1, 2, 0).numpy()), published)


def test_janus_pixels_are_its_own_decoder_unnormalised() -> None:
    model = case("janus").model
    tokens = torch.arange(18).reshape(2, 9) % 7
    stock = model.network.decode_image_tokens(tokens).permute(0, 3, 1, 2)
    pixels = model.decoder.decode(tokens)
    torch.testing.assert_close(pixels, ((stock + 1) / 2).clamp(0, 1), rtol=0, atol=1e-6)
    assert float(pixels.std()) > 0


def test_emu3_pixels_are_the_stock_decoding_of_ids_with_row_ends() -> None:
    model = case("emu3").model
    tokens = torch.arange(12).reshape(2, 6) % CODES
    rows = model.image_ids[tokens].reshape(2, 3, 2)
    ends = torch.full((2, 3, 1), model.end_of_row)
    whole = torch.cat([torch.cat([rows, ends], 2).flatten(1), torch.zeros(2, 3, dtype=torch.int64)], 1)
    stock = model.network.decode_image_tokens(image_tokens=whole, height=3, width=2)
    pixels = model.decoder.decode(tokens)
    torch.testing.assert_close(pixels, ((stock + 1) / 2).clamp(0, 1), rtol=0, atol=1e-6)


def test_chameleon_decoder_mirrors_the_encoder() -> None:
    """Codes are looked up by code, not by id; sides double once per level."""
    model = case("anole").model
    tokens = torch.arange(9)[None] % CODES
    pixels = model.decoder.decode(tokens)
    assert pixels.shape == (1, 3, 6, 6)
    other = model.decoder.decode((tokens + 1) % CODES)
    assert float((pixels - other).abs().max()) > 1e-4
    latent = model.network.model.vqmodel.quantize.embedding.weight[tokens].reshape(1, 3, 3, -1).permute(0, 3, 1, 2)
    drawing = model.decoder.network
    with torch.no_grad():
        drawn = drawing.decoder(drawing.post_quant_conv(latent))
    torch.testing.assert_close(pixels, ((drawn + 1) / 2).clamp(0, 1), rtol=0, atol=1e-6)
    blind = ChameleonImageModel(chameleon(), ids=SYNTAX, grid=(3, 3))
    with pytest.raises(ValueError, match="give pixels="):
        blind.decoder.decode(tokens)


def test_vqgan_decoder_equals_transformers_janus_decoder() -> None:
    """Janus has the same network with its levels numbered from the other end and attention at the coarsest."""
    shape = {"base_channels": 32, "channel_multiplier": (1, 2, 2), "num_res_blocks": 1, "latent_channels": 8}
    other = seeded(lambda: JanusVQVAE(JanusVQVAEConfig(embed_dim=4, num_embeddings=CODES, num_patches=3, **shape)), 0)
    config = ChameleonVQVAEConfig(
        embed_dim=4, num_embeddings=CODES, resolution=12, attn_resolutions=[3], attn_type="vanilla", **shape
    )
    tensors = {}
    for key, value in other.state_dict().items():
        if key.startswith("decoder.up."):
            _, _, level, rest = key.split(".", 3)
            key = f"decoder.up.{2 - int(level)}.{rest}"
        if key.startswith(("decoder.", "post_quant_conv.", "quantize.embedding.")):
            tensors[key] = value
    # Janus normalises the codes it looks up; Chameleon does not.
    tensors["quantize.embedding.weight"] = torch.nn.functional.normalize(tensors["quantize.embedding.weight"], dim=-1)
    tokens = torch.arange(18).reshape(2, 9) % CODES
    drawn = decoder_of(config, tensors).draw(tokens.reshape(2, 3, 3))
    assert drawn.shape == (2, 3, 12, 12)
    with torch.no_grad():
        torch.testing.assert_close(drawn, other.decode(tokens), rtol=0, atol=1e-5)
    assert float(drawn.std()) > 0.01


@pytest.mark.parametrize("name", ["imagegpt", "janus", "anole", "emu3"])
def test_tokens_outside_are_named(name: str) -> None:
    model = case(name).model
    tokens = torch.zeros(2, model.num_tokens, dtype=torch.int64)
    tokens[1, 2] = model.vocab_size
    with pytest.raises(ValueError, match=rf"tokens\[1, 2\] = {model.vocab_size} is outside 0…{model.vocab_size - 1}"):
        model.decoder.decode(tokens)
    with pytest.raises(ValueError, match="tokens must be int64 of shape"):
        model.decoder.decode(tokens[:, 1:])


def test_a_decoder_file_is_used_whole_and_matched_to_the_codebook() -> None:
    network = chameleon()
    tensors = vqgan(network)
    for change, message in (
        (lambda t: t.pop("decoder.conv_in.weight"), "lacks tensor 'decoder.conv_in.weight'"),
        (lambda t: t.update({"decoder.spare": torch.zeros(1)}), "extra tensor 'decoder.spare'"),
        (lambda t: t.update({"decoder.conv_out.bias": torch.zeros(4)}), "'decoder.conv_out.bias' has shape"),
        (
            lambda t: t["decoder.conv_out.bias"].fill_(torch.nan),
            "'decoder.conv_out.bias' holds nan at index",
        ),
        (lambda t: t["quantize.embedding.weight"].add_(1), "another codebook than the checkpoint"),
    ):
        broken = copy.deepcopy(tensors)
        change(broken)
        with pytest.raises(ValueError, match=message):
            ChameleonImageModel(network, ids=SYNTAX, pixels=broken)


def test_equal_tokenizers_make_a_pair_and_others_are_named() -> None:
    colours = torch.linspace(-1, 1, 21).reshape(7, 3)
    target = ImageGPTModel(imagegpt(0), colours, grid=(3, 4))
    check_pair(target, ImageGPTModel(imagegpt(1), colours.clone(), grid=(3, 4)))
    shifted = colours.clone()
    shifted[2, 1] += 1e-3
    with pytest.raises(ValueError, match=r"table 0 of the draft's tokenizer holds .* at \(2, 1\) but the target's"):
        check_pair(target, ImageGPTModel(imagegpt(1), shifted, grid=(3, 4)))
    with pytest.raises(ValueError, match=r"target has grid \(3, 4\) but the draft \(4, 3\)"):
        check_pair(target, ImageGPTModel(imagegpt(1), colours, grid=(4, 3)))
    with pytest.raises(ValueError, match="draft has no pixel decoder"):
        check_pair(target, ImageGPTModel(imagegpt(1), grid=(3, 4)))
    with pytest.raises(ValueError, match="families differ"):
        check_pair(target, case("janus").model)


def test_pairs_of_the_other_families() -> None:
    target, draft = janus(0), janus(1)
    with pytest.raises(ValueError, match="table 0 of the draft's tokenizer holds"):
        check_pair(JanusImageModel(target), JanusImageModel(draft))
    draft.model.vqmodel.load_state_dict(target.model.vqmodel.state_dict())
    check_pair(JanusImageModel(target), JanusImageModel(draft))
    # The same tokenizer stored in two precisions.
    check_pair(JanusImageModel(target), JanusImageModel(draft.to(torch.bfloat16)))

    ours, theirs = emu3(0), emu3(1)
    theirs.model.vqmodel.load_state_dict(ours.model.vqmodel.state_dict())
    check_pair(Emu3ImageModel(ours, (3, 2)), Emu3ImageModel(theirs, (3, 2)))
    with pytest.raises(ValueError, match="null"):
        check_pair(Emu3ImageModel(ours, (3, 2)), Emu3ImageModel(theirs, (3, 2), null=[1, 9]))

    mine, yours = chameleon(0), chameleon(1)
    yours.model.vqmodel.load_state_dict(mine.model.vqmodel.state_dict())
    first = ChameleonImageModel(mine, ids=SYNTAX, pixels=vqgan(mine))
    check_pair(first, ChameleonImageModel(yours, ids=SYNTAX, pixels=vqgan(mine)))
    with pytest.raises(ValueError, match="the draft's tokenizer has 3 tables but the target's"):
        check_pair(first, ChameleonImageModel(yours, ids=SYNTAX))
    with pytest.raises(ValueError, match="no pixel decoder"):
        check_pair(*(CausalImageModel(llama(seed), (3, 4), (1, 2)) for seed in (0, 1)))
