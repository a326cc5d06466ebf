"""Random networks of every family, small enough to run whole images many times, and the streams they read.

Each `Case` also says, in plain loops over lists, what the stock network of transformers is fed for one row: the oracle
of every cached pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers import (
    ChameleonConfig,
    ChameleonForConditionalGeneration,
    ChameleonVQVAEConfig,
    Emu3Config,
    Emu3ForConditionalGeneration,
    Emu3TextConfig,
    Emu3VQVAEConfig,
    ImageGPTConfig,
    ImageGPTForCausalImageModeling,
    JanusConfig,
    JanusForConditionalGeneration,
    JanusVisionConfig,
    JanusVQVAEConfig,
    LlamaConfig,
    LlamaForCausalLM,
)

from validate.models.huggingface import (
    CausalImageModel,
    ChameleonImageModel,
    Emu3ImageModel,
    ImageGPTModel,
    JanusImageModel,
    TransformerImageModel,
)
from validate.models.huggingface.chameleon import ChameleonIds, mirrored_decoder
from validate.models.vqgan import original_name

SHARP = 0.15
"""Standard deviation of random weights: laws far from uniform, logits of a few units."""

TEXT = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": SHARP,
}


def seeded(build: Callable[[], Any], seed: int) -> Any:
    """A network whose weights depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = build()
        for name, parameter in network.named_parameters():
            if parameter.ndim == 1 and "norm" in name and "weight" in name:
                parameter.data.add_(SHARP * torch.randn(parameter.shape))
    return network.eval()


def imagegpt(seed: int = 0, positions: int = 12) -> Any:
    config = ImageGPTConfig(
        vocab_size=8, n_positions=positions, n_embd=32, n_layer=2, n_head=4, initializer_range=SHARP
    )
    return seeded(lambda: ImageGPTForCausalImageModeling(config), seed)


def janus(seed: int = 0, attention: str = "sdpa") -> Any:
    config = JanusConfig(
        text_config=LlamaConfig(vocab_size=24, **TEXT),
        vision_config=JanusVisionConfig(
            hidden_size=32, num_hidden_layers=1, num_attention_heads=2, image_size=6, patch_size=2, projection_dim=32,
            num_image_tokens=9,
        ),
        vq_config=JanusVQVAEConfig(
            num_embeddings=7, latent_channels=32, base_channels=32, channel_multiplier=(1, 1), num_res_blocks=1,
            projection_dim=32, image_token_embed_dim=32, initializer_range=SHARP,
        ),
        attn_implementation=attention,
    )  # fmt: skip

    def build() -> Any:
        network = JanusForConditionalGeneration(config)
        network.generation_config.bos_token_id, network.generation_config.pad_token_id = 1, 2
        network.generation_config.generation_kwargs = {"boi_token_id": 3}
        return network

    return seeded(build, seed)


CODES = 6
IMAGE_IDS = (14, 11, 16, 12, 13, 17)
"""Id of every code; not in order."""
SYNTAX = ChameleonIds(begin_of_text=0, separator=4, begin_of_image=5, end_of_row=6, size=20)


def chameleon(seed: int = 0, attention: str = "sdpa", swin_norm: bool = False) -> Any:
    vocabulary = {f"IMGIMG{'ABCDEFGHIJ'[code]}Z": image_id for code, image_id in enumerate(IMAGE_IDS)}
    config = ChameleonConfig(
        vocab_size=24,
        **TEXT,
        swin_norm=swin_norm,
        vocabulary_map={"<image>": 7, "<racm3:break>": 5, **vocabulary},
        vq_config=ChameleonVQVAEConfig(
            embed_dim=4, num_embeddings=CODES, latent_channels=8, resolution=8, base_channels=32,
            channel_multiplier=(1, 2), num_res_blocks=1,
        ),
        attn_implementation=attention,
    )  # fmt: skip
    return seeded(lambda: ChameleonForConditionalGeneration(config), seed)


def vqgan(network: Any, seed: int = 0) -> dict[str, Tensor]:
    """A decoder file's tensors that fit the network's own codebook."""
    tensors = seeded(lambda: mirrored_decoder(network.config.vq_config), seed).state_dict()
    levels = len(network.config.vq_config.channel_multiplier)
    renamed = {original_name(name, levels): value for name, value in tensors.items()}
    own = network.model.vqmodel
    renamed["quantize.embedding.weight"] = own.quantize.embedding.weight.detach().clone()
    return renamed


EMU3_NAMES = ("<image>", "<|image start|>", "<|image token|>", "<|extra_200|>", "*", *"0123456789")


def emu3(seed: int = 0, attention: str = "sdpa") -> Any:
    names = {name: 3 + index for index, name in enumerate(EMU3_NAMES)}
    visual = {f"<|visual token {code:06d}|>": 29 - code for code in range(CODES)}
    config = Emu3Config(
        text_config=Emu3TextConfig(vocab_size=32, bos_token_id=1, eos_token_id=2, pad_token_id=0, **TEXT),
        vq_config=Emu3VQVAEConfig(
            codebook_size=CODES, embed_dim=4, latent_channels=4, base_channels=32, channel_multiplier=(1, 2),
            num_res_blocks=1, attn_resolutions=(1,), hidden_size=64, temporal_downsample_factor=2,
        ),
        vocabulary_map={**names, **visual},
        attn_implementation=attention,
    )  # fmt: skip
    return seeded(lambda: Emu3ForConditionalGeneration(config), seed)


def llama(seed: int = 0, attention: str = "sdpa", **changes: Any) -> Any:
    config = LlamaConfig(vocab_size=24, **{**TEXT, **changes}, attn_implementation=attention)
    return seeded(lambda: LlamaForCausalLM(config), seed)


@dataclass(frozen=True)
class Case:
    """A model and the oracle of one row.

    Attributes
    ----------
    model : TransformerImageModel
    prompts : list
        Some conditions of different lengths; a number of images for an unconditional model.
    laws : callable
        (prompt ids with opening, image tokens x_1 … x_n) to the stock network's logits of x_1 … x_{n+1}, unguided,
        shape (n + 1, V).
    null : callable
        Null prompt with opening, of a prompt with opening.
    """

    model: TransformerImageModel
    prompts: Any
    laws: Callable[[list[int], list[int]], Tensor]
    null: Callable[[list[int]], list[int]]


def stream(prompt: list[int], tokens: list[int], ids: tuple[int, ...], columns: int, end: int | None) -> list[int]:
    """Prompt and image as ids."""
    out = list(prompt)
    for place, token in enumerate(tokens):
        if end is not None and place and place % columns == 0:
            out.append(end)
        out.append(ids[token])
    return out


def reads(prompt: list[int], tokens: list[int], columns: int, end: int | None) -> tuple[list[int], bool]:
    """Where the laws of x_1 … x_{n+1} stand in the stream, and whether an end of row must be appended for the last."""
    places, place = [len(prompt) - 1], len(prompt) - 1
    appended = False
    for count in range(1, len(tokens) + 1):
        place += 1
        if end is not None and count % columns == 0:
            place += 1
            appended = count == len(tokens)
        places.append(place)
    return places, appended


def text_case(
    model: CausalImageModel, prompts: list[list[int]], null: list[int], logits: Callable[[Tensor], Tensor]
) -> Case:
    """A family whose image tokens are ids of its vocabulary; `logits` maps stream ids to logits of all ids."""
    ids, columns, end = tuple(model.image_ids.tolist()), model.grid[1], model.end_of_row

    def laws(prompt: list[int], tokens: list[int]) -> Tensor:
        whole = stream(prompt, tokens, ids, columns, end)
        places, appended = reads(prompt, tokens, columns, end)
        if appended:
            assert end is not None
            whole.append(end)
        with torch.no_grad():
            return logits(torch.tensor([whole]))[0][places][:, list(ids)].float()

    return Case(model, prompts, laws, lambda prompt: null + model.opening)


@cache
def case(name: str) -> Case:
    """The families by name, with ``:eager`` for transformers' plain attention."""
    family, _, attention = name.partition(":")
    attention = attention or "sdpa"
    network: Any
    model: Any
    if family == "imagegpt":
        network = imagegpt()
        model = ImageGPTModel(network, torch.linspace(-1, 1, 21).reshape(7, 3), grid=(3, 4))

        def colours(prompt: list[int], tokens: list[int]) -> Tensor:
            with torch.no_grad():
                return network(torch.tensor([prompt + tokens])).logits[0]

        return Case(model, 4, colours, lambda prompt: prompt)
    if family == "janus":
        network = janus(attention=attention)
        model = JanusImageModel(network)

        def codes(prompt: list[int], tokens: list[int]) -> Tensor:
            with torch.no_grad():
                text = network.get_input_embeddings()(torch.tensor([prompt]))
                image = network.prepare_embeddings_for_image_generation(torch.tensor([tokens], dtype=torch.int64))
                hidden = network.model.language_model(inputs_embeds=torch.cat([text, image], 1)).last_hidden_state
                return network.model.generation_head(hidden)[0, len(prompt) - 1 :]

        prompts = [[1, 9, 8, 7], [1, 12], [1, 5, 6, 7, 8, 9], [1]]
        return Case(model, prompts, codes, lambda prompt: [one if one in (1, 3) else 2 for one in prompt])
    if family in ("anole", "lumina", "swin"):
        network = chameleon(attention=attention, swin_norm=family == "swin")
        layout = "lumina" if family == "lumina" else "anole"
        model = ChameleonImageModel(
            network, layout=layout, grid=(4, 2) if family == "lumina" else (3, 3), ids=SYNTAX, pixels=vqgan(network)
        )
        return text_case(
            model,
            [[0, 9, 8, 4], [0, 4], [0, 8, 9, 10, 8, 4], [0, 18, 4]],
            [] if family == "lumina" else [0],
            lambda ids: network.lm_head(network.model(ids).last_hidden_state),
        )
    if family == "emu3":
        network = emu3(attention=attention)
        model = Emu3ImageModel(network, (3, 2), null=[1, 30])
        return text_case(model, [[1, 20, 21], [1], [1, 30, 31, 30], [1, 19]], [1, 30], lambda ids: network(ids).logits)
    if family == "llama":
        network = llama(attention=attention)
        model = CausalImageModel(network, (3, 4, 5, 9), (2, 3), opening=[1], null=[0], end_of_row=2)
        return text_case(model, [[7], [], [8, 9, 8], [10, 11]], [0], lambda ids: network(ids).logits)
    raise KeyError(name)


FAMILIES = ("imagegpt", "janus", "anole", "lumina", "swin", "emu3", "llama")
