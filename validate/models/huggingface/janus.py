"""Janus and Janus-Pro: a language model that reads text and writes 24 × 24 image tokens through a head of their own.

Source: Chen et al., "Janus-Pro", arXiv:2501.17811; transformers' ``JanusForConditionalGeneration``. Image tokens are
codes 0, …, 16383 of the VQ tokenizer and never ids of the text vocabulary: they enter through ``generation_embeddings``
and ``generation_aligner`` and leave through ``generation_head``. The prompt ends with the begin-of-image id. The null
prompt is the prompt with every id but beginning-of-text and begin-of-image replaced by padding's id, which is seen like
any other; guidance is null + s (conditional − null), 5 by default.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from validate.models.huggingface.common import TransformerImageModel
from validate.models.huggingface.pixels import NetworkDecoder

__all__ = ["JanusImageModel"]


class JanusImageModel(TransformerImageModel):
    """Janus, `transformers.JanusForConditionalGeneration`.

    Parameters
    ----------
    network : transformers.JanusForConditionalGeneration
    begin_of_text, begin_of_image, padding : int, optional
        Ids; by default the ones the checkpoint's generation configuration names.
    tokenizer : optional
        Texts become prompts through its chat template.
    mean, std : sequence of float
        Of the decoder's channels.
    """

    default_guidance = 5.0

    def __init__(
        self,
        network: Any,
        *,
        begin_of_text: int | None = None,
        begin_of_image: int | None = None,
        padding: int | None = None,
        tokenizer: Any = None,
        mean: Sequence[float] = (0.5, 0.5, 0.5),
        std: Sequence[float] = (0.5, 0.5, 0.5),
    ) -> None:
        generation = network.generation_config
        extra = getattr(generation, "generation_kwargs", None) or {}
        named = {
            "begin_of_text": (begin_of_text, generation.bos_token_id),
            "begin_of_image": (begin_of_image, extra.get("boi_token_id")),
            "padding": (padding, generation.pad_token_id),
        }
        ids = {name: given if given is not None else stored for name, (given, stored) in named.items()}
        missing = [name for name, value in ids.items() if value is None]
        if missing:
            raise ValueError(
                f"the checkpoint's generation_config.json does not name {', '.join(missing)}; give {missing[0]}=…"
            )
        self.begin_of_text, self.padding = ids["begin_of_text"], ids["padding"]
        vision, codes = network.model.vqmodel, network.config.vq_config.num_embeddings
        side = network.config.vq_config.num_patches
        written = network.config.vision_config.num_image_tokens
        if side * side != written:
            raise ValueError(f"the decoder's grid is {side} × {side} but the model writes {written} tokens")
        decoder = NetworkDecoder(
            (vision.quantize.embedding, vision.post_quant_conv, vision.decoder),
            lambda tokens: vision.decode(tokens.flatten(1)),
            codes,
            (side, side),
            mean=mean,
            std=std,
        )
        super().__init__(
            network,
            network.model.language_model,
            vocab_size=codes,
            grid=(side, side),
            prompt_vocab=network.config.text_config.vocab_size,
            opening=(ids["begin_of_image"],),
            decoder=decoder,
            tokenizer=tokenizer,
        )

    def embed_tokens(self, tokens: Tensor) -> Tensor:
        """Input vectors of codes."""
        embedded: Tensor = self.network.prepare_embeddings_for_image_generation(tokens)
        return embedded

    def head(self, hidden: Tensor) -> Tensor:
        """Logits of the codes."""
        logits: Tensor = self.network.model.generation_head(hidden)
        return logits

    def null_prompt(self, prompt: list[int]) -> list[int]:
        """The prompt with all but beginning-of-text and begin-of-image replaced by padding's id."""
        kept = {self.begin_of_text, *self.opening}
        return [one if one in kept else self.padding for one in prompt]

    def tokenise(self, texts: Sequence[str]) -> list[list[int]]:
        """Prompts of texts through the tokenizer's chat template."""
        if not getattr(self.tokenizer, "chat_template", None):
            raise ValueError("the checkpoint's tokenizer has no chat template; give the whole prompt as token ids")
        prompts = []
        for text in texts:
            message = [{"role": "user", "content": [{"type": "text", "text": text}]}]
            whole = self.tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
            ids = self.tokenizer(whole, add_special_tokens=False).input_ids
            # A template may or may not write the beginning of text.
            prompts.append(ids if ids[:1] == [self.begin_of_text] else [self.begin_of_text, *ids])
        return prompts
