"""What the transformers families share: an image model is a network, how tokens enter it, and how its head is read.

Everything about rows, slots and caches is `validate.models.huggingface.sequences`; prompts are
`validate.models.huggingface.prompts`. A family overrides `embed_tokens` and `head`, and what its prompts look like.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from validate.models.huggingface.cache import RowCache
from validate.models.huggingface.prompts import Prompts, check_ids
from validate.models.huggingface.sequences import RowSequences
from validate.models.huggingface.trees import TreeRowSequences
from validate.models.interface import PixelDecoder

__all__ = ["TransformerImageModel"]


class TransformerImageModel(ABC):
    """An image model on a transformers network; families say how tokens enter it and how its head is read.

    Parameters
    ----------
    network : transformers.PreTrainedModel
        Put into evaluation mode, gradients off.
    backbone : torch.nn.Module
        The part of it that turns embeddings into hidden states.
    vocab_size : int
        V.
    grid : (rows, columns)
    prompt_vocab : int
        Ids a prompt may hold are 0, …, prompt_vocab − 1.
    opening : sequence of int
        Ids between a prompt and the image, appended to prompts that do not end with them.
    null : sequence of int, optional
        Ids of the null prompt, before the opening.
    end_of_row : int, optional
        Id after each row of tokens.
    decoder : PixelDecoder, optional
    tokenizer : transformers.PreTrainedTokenizerBase, optional
        Makes prompts of texts.
    """

    unconditional = False
    default_guidance = 1.0
    sequences: type[RowSequences] = TreeRowSequences
    """What `start` answers; a network that masks attention by its own count of keys cannot read trees."""

    def __init__(
        self,
        network: Any,
        backbone: nn.Module,
        *,
        vocab_size: int,
        grid: tuple[int, int],
        prompt_vocab: int,
        opening: Sequence[int] = (),
        null: Sequence[int] | None = None,
        end_of_row: int | None = None,
        decoder: PixelDecoder | None = None,
        tokenizer: Any = None,
    ) -> None:
        rows, columns = grid
        if rows < 1 or columns < 1:
            raise ValueError(f"grid must be (rows, columns), both at least 1; got {grid}")
        self.network, self.backbone = network.eval().requires_grad_(False), backbone
        self.vocab_size, self.grid, self.prompt_vocab = vocab_size, (int(rows), int(columns)), prompt_vocab
        self.opening = check_ids(opening, prompt_vocab, "opening")
        self.null = None if null is None else check_ids(null, prompt_vocab, "null")
        if end_of_row is not None:
            check_ids([end_of_row], prompt_vocab, "end_of_row")
        self.end_of_row, self.decoder, self.tokenizer = end_of_row, decoder, tokenizer
        # transformers renamed the argument between 5.17 and 5.24.
        names = inspect.signature(backbone.forward).parameters
        self._cache_argument = "cache" if "cache" in names else "past_key_values"
        self._check_attention()

    @property
    def num_tokens(self) -> int:
        """T."""
        return self.grid[0] * self.grid[1]

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return next(self.backbone.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """Of the network's weights."""
        return next(self.backbone.parameters()).dtype

    @property
    def text_config(self) -> Any:
        """Configuration of the transformer that reads the stream."""
        return self.backbone.config.get_text_config()  # type: ignore[union-attr,operator]

    # How tokens enter the network and how its head is read; families override.

    def embed_ids(self, ids: Tensor) -> Tensor:
        """Input vectors of the text vocabulary's ids, shape (…, width)."""
        embedded: Tensor = self.backbone.get_input_embeddings()(ids)  # type: ignore[operator]
        return embedded

    @abstractmethod
    def embed_tokens(self, tokens: Tensor) -> Tensor:
        """Input vectors of image tokens 0, …, V − 1, shape (…, width)."""

    @abstractmethod
    def head(self, hidden: Tensor) -> Tensor:
        """Logits of the V image tokens from the last hidden states."""

    def run(self, embedded: Tensor, mask: Tensor, positions: Tensor, cache: RowCache) -> Tensor:
        """Last hidden states (after the final norm) of new inputs, shape (rows, m, width)."""
        output = self.backbone(
            inputs_embeds=embedded,
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
            **{self._cache_argument: cache},
        )
        hidden: Tensor = output.last_hidden_state
        return hidden

    def null_prompt(self, prompt: list[int]) -> list[int] | None:
        """The null prompt that stands beside a prompt, opening included; None where the model has none."""
        return None if self.null is None else self.null + self.opening

    def tokenise(self, texts: Sequence[str]) -> list[list[int]]:
        """Prompts of texts, before the opening."""
        raise ValueError(f"{type(self).__name__} takes prompts as token ids, not as text")

    # The interface.

    def encode_conditions(self, conditions: Any) -> Prompts:
        """Prompts on the model's device.

        Parameters
        ----------
        conditions : Prompts, sequence of str, or sequence of sequences of int
            One prompt for each image; ids may also be int64 tensors. The opening is appended where it is missing.

        Returns
        -------
        Prompts

        Raises
        ------
        ValueError
            An id outside the text vocabulary (names prompt, index and value), text without a tokenizer, one prompt
            where a list of prompts is wanted.
        """
        if isinstance(conditions, Prompts):
            return conditions.to(self.device)
        if isinstance(conditions, str) or not isinstance(conditions, Sequence):
            raise ValueError(f"conditions must be a list with one prompt for each image; got {conditions!r}")
        if any(isinstance(one, str) for one in conditions):
            if not all(isinstance(one, str) for one in conditions):
                raise ValueError("prompts must be all text or all token ids; got a mixture")
            if self.tokenizer is None:
                raise ValueError("text prompts need the checkpoint's tokenizer files; without them give token ids")
            conditions = self.tokenise(list(conditions))
        prompts = []
        for number, one in enumerate(conditions):
            if isinstance(one, int):
                raise ValueError(f"conditions must be a list of prompts; conditions[{number}] is the number {one}")
            ids = check_ids(one, self.prompt_vocab, f"prompts[{number}]")
            if self.opening and ids[-len(self.opening) :] != self.opening:
                ids = ids + self.opening
            if not ids:
                raise ValueError(f"prompts[{number}] is empty; a model needs at least one id before the image")
            prompts.append(ids)
        nulls = [self.null_prompt(ids) for ids in prompts]
        if any(one is None for one in nulls):
            return Prompts.of(prompts).to(self.device)
        return Prompts.of(prompts, [one or [] for one in nulls]).to(self.device)

    def start(self, conditions: Any, guidance: float = 1.0) -> RowSequences:
        """Begin one image for each condition; see `validate.models.interface.ImageModel`."""
        if not math.isfinite(guidance):
            raise ValueError(f"guidance must be finite; got {guidance}")
        if self.unconditional and guidance != 1.0:
            raise ValueError(f"guidance {guidance} was asked of an unconditional model; it can only be 1")
        prompts = self.encode_conditions(conditions)
        if guidance != 1.0 and prompts.nulls is None:
            raise ValueError(f"guidance {guidance} needs a null prompt; give null=… when making the model, or use 1")
        return self.sequences(self, prompts, float(guidance))

    def _check_attention(self) -> None:
        config = self.text_config
        kind = getattr(config, "_attn_implementation", None)
        if kind not in ("sdpa", "eager", None):
            raise ValueError(
                f"attention {kind!r} takes no mask of its own for each row; load with attention='sdpa' or 'eager'"
            )
        window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
        other = [one for one in getattr(config, "layer_types", None) or () if one != "full_attention"]
        if window is not None or other:
            raise ValueError(f"only full attention is supported; the network has {other[0] if other else 'a window'}")
