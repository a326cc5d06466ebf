"""What the transformers families share: slots, forced row ends, both halves of guidance, rows of different lengths.

Definitions.  A row's stream is its prompt, C slots with padding in front, then the image. Where a model writes an
end-of-row id after each of the image's rows of W tokens, that id is put into the stream here: nobody draws it. With
E = 1 where there are such ids and E = 0 where there are none, input index t (START at t = 0, else token x_t) has

    slot of x_t                     C − 1 + t + E ⌊(t−1) / W⌋,
    slot whose output is x_{t+1}'s  C − 1 + t + E ⌊t / W⌋,

the two differing exactly where x_t ends a row. START is the prompt's last id, fed with the image rather than with the
prompt, so that a row can return to its first token. The slots of a block of n inputs are contiguous; rows that meet
fewer row ends write one slot beyond their last input, which their next block overwrites and no query sees before.

Guided batches run 2B rows, conditional first, both fed the same tokens; laws are `guided_logits` of the halves.
Oracle: the stock model's own forward on the whole stream, one row at a time (tests/validate/huggingface).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn

from validate.models.guidance import guided_logits
from validate.models.huggingface.cache import RowCache, attention_mask
from validate.models.huggingface.prompts import PADDING, Prompts, check_ids
from validate.models.interface import START, PixelDecoder

__all__ = ["RowSequences", "TransformerImageModel"]


class TransformerImageModel:
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

    def embed_tokens(self, tokens: Tensor) -> Tensor:
        """Input vectors of image tokens 0, …, V − 1, shape (…, width)."""
        raise NotImplementedError

    def head(self, hidden: Tensor) -> Tensor:
        """Logits of the V image tokens from the last hidden states."""
        raise NotImplementedError

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
        return RowSequences(self, prompts, float(guidance))

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


class RowSequences:
    """Images being written by a `TransformerImageModel`; see `validate.models.interface.Sequences`.

    Attributes
    ----------
    static : bool
        Whether passes have shapes that depend on no row's length (on a GPU), or the shortest that do (on the CPU).
    """

    def __init__(self, model: TransformerImageModel, prompts: Prompts, guidance: float) -> None:
        self.model, self.guidance = model, guidance
        self._rows = len(prompts)
        ids = prompts.ids
        if guidance != 1.0:
            assert prompts.nulls is not None
            ids = torch.cat([ids, prompts.nulls])
        self._width = ids.shape[1]
        self._first = (ids == PADDING).sum(dim=1)
        self._start = ids[:, -1:]
        self._row_length = model.grid[1] if model.end_of_row is not None else model.num_tokens + 1
        length = self._width + model.num_tokens - 1 + (model.num_tokens - 1) // self._row_length
        longest = getattr(model.text_config, "max_position_embeddings", None)
        if longest is not None and length > longest:
            raise ValueError(
                f"a prompt of {self._width} ids and the image take {length} positions; the model has {longest}"
            )
        # Reading the longest row would stall a GPU's queue: there shapes follow from the block's alone.
        self.static = ids.device.type != "cpu"
        # One slot more where a row may write beyond its last input.
        self._cache = RowCache(length + (model.end_of_row is not None))
        if self._width > 1:
            slots = torch.arange(self._width - 1, device=ids.device).expand(len(ids), -1)
            self._forward(model.embed_ids(ids[:, :-1].clamp(min=0)), slots)

    @property
    def rows(self) -> int:
        """B."""
        return self._rows

    def _forward(self, embedded: Tensor, slots: Tensor) -> Tensor:
        model, cache = self.model, self._cache
        cache.limit = cache.capacity if self.static or not slots.numel() else int(slots.max()) + 1
        cache.slots = slots
        positions = (slots - self._first[:, None]).clamp(min=0)
        mask = attention_mask(slots, self._first, cache.limit, embedded.dtype)
        with torch.no_grad():
            return model.run(embedded, mask, positions, cache)

    @overload
    def logits(self, inputs: Tensor, lengths: Tensor, *, hidden: Literal[False] = False) -> Tensor: ...

    @overload
    def logits(self, inputs: Tensor, lengths: Tensor, *, hidden: Literal[True]) -> tuple[Tensor, Tensor]: ...

    @torch.no_grad()
    def logits(self, inputs: Tensor, lengths: Tensor, *, hidden: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """Guided logits after each new input; ranges are checked on the CPU only, where that costs no synchronisation.

        Raises
        ------
        ValueError
            A shape or dtype is wrong; on the CPU also a length, token or START out of place (names row and value).
        """
        self._check(inputs, lengths)
        model, period = self.model, self._row_length
        rows, new = inputs.shape
        halves = 1 if self.guidance == 1.0 else 2
        index = lengths[:, None] + torch.arange(new, device=inputs.device)
        law = self._width - 1 + index + index // period
        begin = self._width - 1 + lengths + (lengths - 1).clamp(min=0) // period
        if self.static:
            block = new + (-(-new // period) if model.end_of_row is not None else 0)
        else:
            block = int((law[:, -1] - begin).max()) + 1 if rows else new
        slots = begin[:, None] + torch.arange(block, device=inputs.device)

        place = slots - self._width  # 0 at the image's first token
        within = place % (period + 1) if model.end_of_row is not None else place.clamp(max=0)
        token_index = place + 1 - place.clamp(min=0) // (period + 1) if model.end_of_row is not None else place + 1
        column = (token_index - lengths[:, None]).clamp(0, new - 1)
        tokens = inputs.gather(1, column).clamp(min=0)
        embedded = model.embed_tokens(tokens)
        if model.end_of_row is not None:
            ends = (within == period) & (place >= 0)
            end = model.embed_ids(torch.full((1,), model.end_of_row, device=inputs.device))
            embedded = torch.where(ends[:, :, None], end, embedded)
        embedded = embedded.repeat(halves, 1, 1)
        first = (place < 0).repeat(halves, 1)[:, :, None]
        embedded = torch.where(first, model.embed_ids(self._start), embedded)

        states = self._forward(embedded, slots.repeat(halves, 1))
        read = (law - begin[:, None]).repeat(halves, 1)[:, :, None].expand(-1, -1, states.shape[2])
        states = states.gather(1, read)
        logits = model.head(states).float()
        if halves == 2:
            logits = guided_logits(logits[:rows], logits[rows:], self.guidance)
        return (logits, states) if hidden else logits

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only."""
        both = rows if self.guidance == 1.0 else torch.cat([rows, rows + self._rows])
        self._cache.select(both)
        self._first, self._start = self._first[both], self._start[both]
        self._rows = len(rows)

    def _check(self, inputs: Tensor, lengths: Tensor) -> None:
        if inputs.ndim != 2 or inputs.dtype != torch.int64 or len(inputs) != self._rows or inputs.shape[1] < 1:
            raise ValueError(
                f"inputs must be int64 of shape ({self._rows}, n), n >= 1; "
                f"got {inputs.dtype} of shape {tuple(inputs.shape)}"
            )
        if lengths.shape != (self._rows,) or lengths.dtype != torch.int64:
            raise ValueError(
                f"lengths must be int64 of shape ({self._rows},); got {lengths.dtype} of shape {tuple(lengths.shape)}"
            )
        if inputs.device.type != "cpu":
            return
        new, tokens = inputs.shape[1], self.model.num_tokens
        wrong = ((lengths < 0) | (lengths + new > tokens)).nonzero()
        if len(wrong):
            row = int(wrong[0])
            raise ValueError(
                f"lengths[{row}] = {int(lengths[row])} with {new} new inputs leaves 0…{tokens - 1}; "
                f"clamp it to at most {tokens - new}"
            )
        first = lengths[:, None] + torch.arange(new) == 0
        least = torch.where(first, START, 0)
        most = torch.where(first, START, self.model.vocab_size - 1)
        wrong = ((inputs < least) | (inputs > most)).nonzero()
        if len(wrong):
            row, column = wrong[0].tolist()
            raise ValueError(
                f"inputs[{row}, {column}] = {int(inputs[row, column])} at input index {int(lengths[row]) + column}; "
                f"index 0 holds START ({START}), later ones image tokens 0…{self.model.vocab_size - 1}"
            )
