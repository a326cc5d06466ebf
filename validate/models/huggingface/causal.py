"""Any causal language model whose vocabulary holds the image's tokens.

Definitions.  The model's vocabulary is 0, …, N − 1; image token v is its id `image_ids[v]`. The law of an image token
is the model's law given that it is one of the V image ids: softmax over those logits alone. Restricting before or
after guidance, and guiding logits or log-probabilities, give the same law: the difference is a constant in each row.

Only the V rows of the head are multiplied; the other ids' logits are never formed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from validate.models.huggingface.common import TransformerImageModel
from validate.models.huggingface.prompts import check_ids
from validate.models.interface import PixelDecoder

__all__ = ["CausalImageModel"]

PROBE_TOLERANCE = 1e-2
"""Relative to the largest logit; covers bfloat16 (unit roundoff 2^-8) over a few operations, no missing factor."""


class CausalImageModel(TransformerImageModel):
    """An image model on a causal language model of transformers.

    Parameters
    ----------
    network : transformers.PreTrainedModel
        Its ``base_model`` takes ``inputs_embeds``, a 4-D ``attention_mask`` and ``position_ids``.
    image_ids : sequence of int
        Id of each image token, in the decoder's order.
    grid : (rows, columns)
    opening : sequence of int
        Ids between prompt and image, such as begin-of-image; appended to prompts that do not end with them.
    null : sequence of int, optional
        The null prompt, without the opening.
    end_of_row : int, optional
        Id after each row of image tokens.
    decoder : PixelDecoder, optional
    tokenizer : optional
    probe : bool
        Compare one forward pass with the network's own logits, which shows scaled, capped or masked heads.

    Raises
    ------
    ValueError
        An id outside the vocabulary or given twice; attention that takes no mask of its own; with ``probe`` a network
        that does more to its logits than its head.
    """

    def __init__(
        self,
        network: Any,
        image_ids: Sequence[int] | Tensor,
        grid: tuple[int, int],
        *,
        opening: Sequence[int] = (),
        null: Sequence[int] | None = None,
        end_of_row: int | None = None,
        decoder: PixelDecoder | None = None,
        tokenizer: Any = None,
        probe: bool = True,
    ) -> None:
        table = network.get_input_embeddings()
        ids = check_ids(image_ids, table.num_embeddings, "image_ids")
        if len(ids) < 2:
            raise ValueError(f"a model needs at least two image ids; got {len(ids)}")
        if len(set(ids)) < len(ids):
            twice = next(one for position, one in enumerate(ids) if one in ids[:position])
            raise ValueError(f"image_ids holds {twice} twice; each image token is one id")
        if end_of_row is not None and end_of_row in set(ids):
            raise ValueError(f"end_of_row {end_of_row} is also an image id")
        super().__init__(
            network,
            network.base_model,
            vocab_size=len(ids),
            grid=grid,
            prompt_vocab=table.num_embeddings,
            opening=opening,
            null=null,
            end_of_row=end_of_row,
            decoder=decoder,
            tokenizer=tokenizer,
        )
        head: nn.Linear = network.get_output_embeddings()
        self.image_ids = torch.tensor(ids, device=head.weight.device)
        self._weight = head.weight[self.image_ids]
        self._bias = None if head.bias is None else head.bias[self.image_ids]
        if probe:
            self._probe()

    def embed_tokens(self, tokens: Tensor) -> Tensor:
        """Input vectors of image tokens."""
        return self.embed_ids(self.image_ids[tokens])

    def head(self, hidden: Tensor) -> Tensor:
        """The image ids' rows of the head."""
        return functional.linear(hidden, self._weight, self._bias)

    @torch.no_grad()
    def _probe(self) -> None:
        ids = self.image_ids[None, :2]
        stock = self.network(input_ids=ids).logits[..., self.image_ids].float()
        ours = self.head(self.backbone(input_ids=ids).last_hidden_state).float()
        apart = float((stock - ours).abs().max())
        if apart > PROBE_TOLERANCE * max(float(ours.abs().max()), 1.0):
            raise ValueError(
                f"{type(self.network).__name__} changes its head's logits (by up to {apart:.3g}): they are scaled, "
                "capped or masked; pass probe=False if the head alone is what you want"
            )
