"""What the rest of validate asks of an image model, whatever its family.

A model turns a *condition* (a class, a caption's features, a prompt, or nothing) into a running batch of `Sequences`,
and a batch turns image tokens into guided next-token logits. Definitions: image tokens x_1, …, x_T in 0, …, V−1 in the
order the model writes them; inputs i_0, i_1, …, i_{T−1} with i_0 = START, the last slot of whatever precedes the image
(class token, caption, prompt), and i_t = x_t. The logits at input index t are those of x_{t+1}. A family's own ids,
its end-of-row tokens and its other syntax stay inside its module: only image tokens are seen here, and their laws are
over the V legal ones.

Every row of a batch has its own length. Going back after a rejected draft is passing a smaller length next time;
input START at length 0 is allowed again, so a block that begins at the image's first token needs no special case.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol, overload

import torch
from torch import Tensor

START = -1
"""Input id at index 0 of every row: the slot before the image's first token."""


class Sequences(Protocol):
    """A batch of B images being written by one model, with its cache and both halves of its guidance."""

    @property
    def rows(self) -> int:
        """B."""
        ...

    @overload
    def logits(self, inputs: Tensor, lengths: Tensor, *, hidden: Literal[False] = False) -> Tensor: ...

    @overload
    def logits(self, inputs: Tensor, lengths: Tensor, *, hidden: Literal[True]) -> tuple[Tensor, Tensor]: ...

    def logits(self, inputs: Tensor, lengths: Tensor, *, hidden: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """Guided logits after each new input, which is appended to the cache.

        Parameters
        ----------
        inputs : int64 Tensor, shape (B, n)
            START where lengths[b] + j = 0, image tokens elsewhere.
        lengths : int64 Tensor, shape (B,)
            Inputs of each row that are cached and valid; lengths[b] + n ≤ T.
        hidden : bool
            Also return the target's hidden states.

        Returns
        -------
        logits : float32 Tensor, shape (B, n, V)
            [b, j] is the law of token x_{lengths[b]+j+1}, guidance applied, over legal image tokens only.
        hidden : Tensor, shape (halves · B, n, width)
            Only on request: what the model's head reads, conditional rows first, then the null rows if it is guided.
        """
        ...

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows (indices, int64, shape (B',)) only."""
        ...


class ImageModel(Protocol):
    """A target or a draft.

    Attributes
    ----------
    vocab_size : int
        V, legal image tokens.
    num_tokens : int
        T, tokens of one image.
    grid : (rows, columns)
        Of image tokens; their product is T.
    unconditional : bool
        Whether there is no condition and hence no guidance.
    device : torch.device

    Notes
    -----
    A class-conditional model also has `num_classes`, without the null class. Optional are `decoder`, the model's own
    copy of its tokenizer, which is then compared with the pair's; `to(device)`, which moves a `torch.nn.Module` and
    answers another kind of model there; and `row_bytes()`, the cache of one unguided image, so that an error about
    memory can name the batch that would fit.
    """

    @property
    def vocab_size(self) -> int: ...

    @property
    def num_tokens(self) -> int: ...

    @property
    def grid(self) -> tuple[int, int]: ...

    @property
    def unconditional(self) -> bool: ...

    @property
    def device(self) -> torch.device: ...

    def start(self, conditions: Any, guidance: float = 1.0) -> Sequences:
        """Begin one image for each condition.

        Parameters
        ----------
        conditions : of the model's family
            What `encode_conditions` answers, or some of its rows: class numbers, int64 (B,); captions; for an
            unconditional model int64 zeros (B,).
        guidance : float
            s of null + s (conditional − null); 1 runs no null rows.

        Raises
        ------
        ValueError
            A class id outside the model's classes, a caption too long, guidance asked of an unconditional model.
        """
        ...

    def encode_conditions(self, conditions: Any) -> Any:
        """What `start` takes, checked and moved to the model's device, from what a user writes.

        A class-conditional model takes a list of class numbers, or how many images (classes in turn); an unconditional
        one how many images. The answer supports ``len`` and indexing by an int64 tensor of rows or a slice.
        """
        ...


class PixelDecoder(Protocol):
    """Image tokens to pixels; two models form a pair only if their decoders hold equal tables.

    Optional is `codebook`, shape (V, code width): the vectors that say which tokens look alike.
    """

    @property
    def vocab_size(self) -> int: ...

    def decode(self, tokens: Tensor) -> Tensor:
        """Pixels in [0, 1], shape (B, H, W) or (B, 3, H, W), of tokens (B, T)."""
        ...

    def tables(self) -> Sequence[Tensor]:
        """The tensors that give tokens their meaning (codebook, colour clusters, decoder), compared between models."""
        ...


def check_tokens(tokens: Tensor, num_tokens: int, vocab_size: int) -> None:
    """Shape (B, T), values 0, …, V − 1; errors name index and value."""
    if tokens.ndim != 2 or tokens.shape[1] != num_tokens or tokens.dtype != torch.int64:
        raise ValueError(
            f"tokens must be int64 of shape (B, {num_tokens}); got {tokens.dtype} of shape {tuple(tokens.shape)}"
        )
    outside = ((tokens < 0) | (tokens >= vocab_size)).nonzero()
    if len(outside):
        row, column = outside[0].tolist()
        raise ValueError(f"tokens[{row}, {column}] = {int(tokens[row, column])} is outside 0…{vocab_size - 1}")
