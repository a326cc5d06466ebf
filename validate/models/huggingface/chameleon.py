"""Chameleon, Anole and Lumina-mGPT: one vocabulary of text and 8192 image ids.

Sources: Chameleon, arXiv:2405.09818; Anole, arXiv:2407.06135; Lumina-mGPT, arXiv:2408.02657; transformers'
``ChameleonForConditionalGeneration``, whose own forward sets every image id's logit to the least finite number: the
inner model and the head are read here instead. Image token v is VQ code v; its id is the one whose name in the
configuration's ``vocabulary_map`` spells v (``IMGIMG`` + digits written A…J + ``Z``).

Two ways of writing an image, h × w in units of two tokens for the second:

==========  =============================  ======================  ===================
layout      after the prompt               after each row          null prompt
==========  =============================  ======================  ===================
"anole"     begin-of-image                 –                       beginning-of-text
"lumina"    begin-of-image, size h, w      end-of-row              nothing
==========  =============================  ======================  ===================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from validate.models.huggingface.causal import CausalImageModel
from validate.models.huggingface.pixels import NetworkDecoder
from validate.models.tensors import compare, give, shapes_of
from validate.models.vqgan import VQGANDecoder, original_name

__all__ = ["ChameleonDecoder", "ChameleonIds", "ChameleonImageModel"]


@dataclass(frozen=True)
class ChameleonIds:
    """Ids of the image's syntax in the published vocabulary.

    Attributes
    ----------
    begin_of_text, separator, begin_of_image, end_of_row : int
        The separator closes a text prompt.
    size : int
        Id of size 0; size h is ``size + h``.
    """

    begin_of_text: int = 0
    separator: int = 8710
    begin_of_image: int = 8197
    end_of_row: int = 8803
    size: int = 8804


def mirrored_decoder(config: Any) -> VQGANDecoder:
    """Pixel decoder of a `transformers.ChameleonVQVAEConfig`: its encoder's mirror image."""
    levels = len(config.channel_multiplier)
    vanilla, attending = config.attn_type == "vanilla", config.attn_resolutions or ()
    return VQGANDecoder(
        vocab_size=config.num_embeddings,
        code_width=config.embed_dim,
        inside=config.latent_channels,
        levels=[config.base_channels * factor for factor in reversed(config.channel_multiplier)],
        blocks=config.num_res_blocks + 1,
        attends=[vanilla and config.resolution // 2**level in attending for level in reversed(range(levels))],
        middle=vanilla,
    )


def decoder_of(config: Any, tensors: Mapping[str, Tensor]) -> VQGANDecoder:
    """Pixel decoder of tensors in the original code's layout, every one of them used and none missing.

    Raises
    ------
    WeightsError
        A tensor is missing, extra, of another shape or not finite; names it.
    """
    with torch.device("meta"):
        network = mirrored_decoder(config)
    shapes = shapes_of(network.state_dict())
    stored = {name: original_name(name, len(config.channel_multiplier)) for name in shapes}
    compare("the pixel decoder", tensors, {stored[name]: shape for name, shape in shapes.items()})
    give(network, {name: tensors[old] for name, old in stored.items()}, "the pixel decoder")
    return network


class ChameleonDecoder(NetworkDecoder):
    """Codes to pixels where the decoder's weights are at hand, else only the tables that tell tokenizers apart.

    Parameters
    ----------
    codebook : Tensor, shape (V, D), or None
    image_ids : Tensor, shape (V,)
        Which id each code is.
    network : VQGANDecoder, optional
    grid : (rows, columns)
    """

    def __init__(
        self, codebook: Tensor | None, image_ids: Tensor, network: VQGANDecoder | None, grid: tuple[int, int]
    ) -> None:
        parts: list[nn.Module | Tensor] = [] if codebook is None else [codebook]
        if network is not None:
            parts.extend([network.post_quant_conv, network.decoder])
        super().__init__([*parts, image_ids], self._drawn, len(image_ids), grid)
        self.codebook, self.network = codebook, network

    def _drawn(self, tokens: Tensor) -> Tensor:
        if self.network is None:
            raise ValueError(
                "transformers' Chameleon has no pixel decoder and the checkpoint holds none; "
                "give pixels=… the VQGAN file published with Chameleon (vqgan.ckpt)"
            )
        return self.network.draw(tokens)

    def tables(self) -> Sequence[Tensor]:
        """Codebook, decoder where present, ids."""
        if self.codebook is None:
            raise ValueError(
                "the checkpoint holds no codebook to compare; give pixels=… the VQGAN file it was trained with"
            )
        return super().tables()


class ChameleonImageModel(CausalImageModel):
    """A model of the Chameleon family, `transformers.ChameleonForConditionalGeneration`.

    Parameters
    ----------
    network : transformers.ChameleonForConditionalGeneration
        Its ``model.vqmodel`` may be None, for checkpoints published without the tokenizer.
    layout : {"anole", "lumina"}
    grid : (rows, columns), optional
        By default the tokenizer's resolution for "anole"; needed for "lumina", both even.
    ids : ChameleonIds
    pixels : mapping of str to Tensor, optional
        Decoding half of a VQGAN file, see `decoder_of`.
    tokenizer : optional
    """

    default_guidance = 3.0

    def __init__(
        self,
        network: Any,
        *,
        layout: str = "anole",
        grid: tuple[int, int] | None = None,
        ids: ChameleonIds | None = None,
        pixels: Mapping[str, Tensor] | None = None,
        tokenizer: Any = None,
    ) -> None:
        if layout not in ("anole", "lumina"):
            raise ValueError(f"unknown layout {layout!r}; choose anole or lumina")
        ids = ChameleonIds() if ids is None else ids
        config = network.config.vq_config
        codes = network.model.vocabulary_mapping.img2bpe
        if sorted(codes) != list(range(config.num_embeddings)):
            raise ValueError(
                f"vocabulary_map names {len(codes)} image ids; "
                f"the codebook has {config.num_embeddings}, numbered from 0"
            )
        named = network.config.vocabulary_map.get("<racm3:break>", ids.begin_of_image)
        if named != ids.begin_of_image:
            raise ValueError(f"vocabulary_map has begin-of-image at {named} but ids say {ids.begin_of_image}")
        if grid is None:
            if layout == "lumina":
                raise ValueError("layout 'lumina' needs the grid, for instance grid=(48, 48) for 768 × 768 pixels")
            side = config.resolution // 2 ** (len(config.channel_multiplier) - 1)
            grid = (side, side)
        opening = [ids.begin_of_image]
        if layout == "lumina":
            if grid[0] % 2 or grid[1] % 2:
                raise ValueError(f"layout 'lumina' writes sizes in units of two tokens; grid {grid} is odd")
            opening += [ids.size + grid[0] // 2, ids.size + grid[1] // 2]
        super().__init__(
            network,
            [codes[code] for code in range(config.num_embeddings)],
            grid,
            opening=opening,
            null=[ids.begin_of_text] if layout == "anole" else [],
            end_of_row=ids.end_of_row if layout == "lumina" else None,
            tokenizer=tokenizer,
            # The stock logits of image ids are masked: nothing to compare with.
            probe=False,
        )
        self.layout, self.ids = layout, ids
        vision = network.model.vqmodel
        codebook = None if vision is None else vision.quantize.embedding.weight
        drawing = None
        if pixels is not None:
            drawing = decoder_of(config, pixels).to(self.device)
            if codebook is None:
                codebook = drawing.codebook
            elif not bool((drawing.codebook.to(codebook.dtype) == codebook).all()):
                raise ValueError(
                    "pixels=… holds another codebook than the checkpoint; they must come from one tokenizer"
                )
        self.decoder = ChameleonDecoder(codebook, self.image_ids, drawing, self.grid)

    def tokenise(self, texts: Sequence[str]) -> list[list[int]]:
        """Beginning-of-text, the text as it stands, separator."""
        prompts = []
        for text in texts:
            ids = self.tokenizer(text, add_special_tokens=False).input_ids
            prompts.append([self.ids.begin_of_text, *ids, self.ids.separator])
        return prompts
