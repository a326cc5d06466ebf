"""Images being written by a transformers network: slots, forced row ends, both halves of guidance, rows of any length.

Definitions.  A row's stream is its prompt, C slots with padding in front, then the image. Where a model writes an
end-of-row id after each of the image's rows of W tokens, that id is put into the stream here: nobody draws it. With
E = 1 where there are such ids and E = 0 where there are none, input index t (START at slot C − 1, then tokens x_t) has

    slot of x_t, t ≥ 1              C − 1 + t + E ⌊(t−1) / W⌋,
    slot whose output is x_{t+1}'s  C − 1 + t + E ⌊t / W⌋,

the two differing exactly where x_t ends a row. START is the prompt's last id, fed with the image rather than with the
prompt, so that a row can return to its first token. The slots of a block of n inputs are contiguous; rows that meet
fewer row ends write one slot beyond their last input, which their next block overwrites and no query sees before.

Guided batches run 2B rows, conditional first, both fed the same tokens; laws are `guided_logits` of the halves.
Oracle: the stock model's own forward on the whole stream, one row at a time (tests/validate/huggingface).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from validate.models.huggingface.cache import RowCache, attention_mask
from validate.models.huggingface.prompts import PADDING, Prompts
from validate.models.interface import START
from validate.models.sequences import GuidedSequences

if TYPE_CHECKING:
    from validate.models.huggingface.common import TransformerImageModel

__all__ = ["RowSequences"]


class RowSequences(GuidedSequences):
    """Images being written by a `TransformerImageModel`; see `validate.models.interface.Sequences`.

    Attributes
    ----------
    static : bool
        Whether passes have shapes that depend on no row's length (on a GPU), or the shortest that do (on the CPU).
    """

    def __init__(self, model: TransformerImageModel, prompts: Prompts, guidance: float) -> None:
        super().__init__(len(prompts), guidance)
        self.model = model
        ids = prompts.ids
        if self.halves == 2:
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

    def _forward(self, embedded: Tensor, slots: Tensor) -> Tensor:
        model, cache = self.model, self._cache
        cache.limit = cache.capacity if self.static or not slots.numel() else int(slots.max()) + 1
        cache.slots = slots
        positions = (slots - self._first[:, None]).clamp(min=0)
        mask = attention_mask(slots, self._first, cache.limit, embedded.dtype)
        with torch.no_grad():
            return model.run(embedded, mask, positions, cache)

    @torch.no_grad()
    def extend(self, inputs: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        model, period = self.model, self._row_length
        rows, new = inputs.shape
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
        embedded = torch.where((place < 0)[:, :, None], model.embed_ids(self._start), embedded)

        states = self._forward(embedded, slots)
        read = (law - begin[:, None])[:, :, None].expand(-1, -1, states.shape[2])
        states = states.gather(1, read)
        return model.head(states), states

    def gather(self, rows: Tensor) -> None:
        self._cache.select(rows)
        self._first, self._start = self._first[rows], self._start[rows]

    def check(self, inputs: Tensor, lengths: Tensor) -> None:
        """Ranges are checked on the CPU only, where that costs no synchronisation.

        Raises
        ------
        ValueError
            A shape or dtype is wrong; on the CPU also a length, token or START out of place (names row and value).
        """
        if inputs.ndim != 2 or inputs.dtype != torch.int64 or len(inputs) != self.rows or inputs.shape[1] < 1:
            raise ValueError(
                f"inputs must be int64 of shape ({self.rows}, n), n >= 1; "
                f"got {inputs.dtype} of shape {tuple(inputs.shape)}"
            )
        if lengths.shape != (self.rows,) or lengths.dtype != torch.int64:
            raise ValueError(
                f"lengths must be int64 of shape ({self.rows},); got {lengths.dtype} of shape {tuple(lengths.shape)}"
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
