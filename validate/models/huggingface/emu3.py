"""Emu3: one vocabulary of text and 32768 visual tokens, rows closed by an end-of-line id.

Source: Wang et al., "Emu3: Next-Token Prediction is All You Need", arXiv:2409.18869; transformers'
``Emu3ForConditionalGeneration``. Visual token v is named ``<|visual token NNNNNN|>`` in the configuration's
``vocabulary_map``. A prompt is followed by the opening: begin-of-image, the grid's size as text ("90*90"), the image
wrapper; each row of tokens is closed by ``<|extra_200|>``. The network's forward masks nothing, so laws are restricted
to the visual tokens here; guidance mixes log-probabilities, which gives the law that mixing logits gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from validate.models.huggingface.causal import CausalImageModel
from validate.models.huggingface.pixels import NetworkDecoder

__all__ = ["Emu3ImageModel"]

BEGIN, WRAPPER = "<|image start|>", "<|image token|>"


class Emu3ImageModel(CausalImageModel):
    """Emu3, `transformers.Emu3ForConditionalGeneration`.

    Parameters
    ----------
    network : transformers.Emu3ForConditionalGeneration
    grid : (rows, columns)
        90 × 90 for 720 × 720 pixels.
    null : sequence of int, optional
        Ids of the negative prompt; beginning-of-text alone by default.
    tokenizer : optional
    mean, std : sequence of float
        Of the decoder's channels.
    """

    default_guidance = 3.0

    def __init__(
        self,
        network: Any,
        grid: tuple[int, int] = (90, 90),
        *,
        null: Sequence[int] | None = None,
        tokenizer: Any = None,
        mean: Sequence[float] = (0.5, 0.5, 0.5),
        std: Sequence[float] = (0.5, 0.5, 0.5),
    ) -> None:
        mapping, vision = network.model.vocabulary_mapping, network.model.vqmodel
        codes = mapping.img2bpe
        count = network.config.vq_config.codebook_size
        if sorted(codes) != list(range(count)):
            raise ValueError(
                f"vocabulary_map names {len(codes)} visual tokens; the codebook has {count}, numbered from 0"
            )
        names = mapping.vocab_map
        pieces = [BEGIN, *f"{grid[0]}*{grid[1]}", WRAPPER]
        absent = [piece for piece in (*pieces, "<|extra_200|>") if piece not in names]
        if absent:
            raise ValueError(f"vocabulary_map lacks {absent[0]!r}, which every image needs")
        self.begin_of_text = network.config.text_config.bos_token_id
        decoder = NetworkDecoder(
            (vision.quantize, vision.post_quant_conv, vision.decoder),
            vision.decode,
            count,
            (int(grid[0]), int(grid[1])),
            mean=mean,
            std=std,
        )
        super().__init__(
            network,
            [codes[code] for code in range(count)],
            grid,
            opening=[names[piece] for piece in pieces],
            null=[self.begin_of_text] if null is None else null,
            end_of_row=mapping.eol_token_id,
            decoder=decoder,
            tokenizer=tokenizer,
            probe=False,
        )

    def tokenise(self, texts: Sequence[str]) -> list[list[int]]:
        """Beginning-of-text, then the text as it stands."""
        return [[self.begin_of_text, *self.tokenizer(text, add_special_tokens=False).input_ids] for text in texts]
