"""A decoder-only transformer over image tokens, with a cache whose rows may differ in length.

Definitions.  An image is a token sequence x_1, …, x_T with x_t in {0, …, V−1}, in raster order, and belongs
to a class c. The network reads the inputs i_0, i_1, …, i_{T−1} with i_0 = V + c (the class token) or i_0 = V
+ C (the null class, for classifier-free guidance) and i_t = x_t for t >= 1.  The output at input index t is
the logit vector of x_{t+1}: the conditional p_{t+1}(· | c, x_1, …, x_t) over the V image tokens only.

Two entry points compute the same function:

``forward``
    teacher forcing: all inputs from index 0, no cache;
``extend``
    new inputs behind cached ones.  Row b holds ``lengths[b]`` valid cached inputs; the new ones land at cache
    positions ``lengths[b], …, lengths[b] + n − 1`` and attend to positions up to their own.  Going back
    (after a rejected draft) is passing a smaller length next time: entries beyond it are overwritten or
    masked.

``forward`` is the oracle of ``extend``: they agree to 1e-5 in float32 (tests/validate/test_models.py).

>>> import torch
>>> from validate.models.transformer import TokenTransformer
>>> model = TokenTransformer(vocab_size=5, num_classes=2, num_tokens=4, width=8, layers=1, heads=2)
>>> model.class_ids(torch.tensor([0, 1])).tolist(), model.null_id
([5, 6], 7)
>>> model(torch.tensor([[5, 3, 0]])).shape
torch.Size([1, 3, 5])
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, overload

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from validate.models.conditions import class_numbers
from validate.models.token_sequences import KVCache, TokenSequences

__all__ = ["TokenTransformer"]


class _Block(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp_in = nn.Linear(width, 4 * width)
        self.mlp_out = nn.Linear(4 * width, width)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value, each (B, n, heads, head width)."""
        query, key, value = self.qkv(self.attention_norm(x)).unflatten(-1, (3, self.heads, -1)).unbind(2)
        return query, key, value

    def finish(self, x: Tensor, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Attend (causally where there is no mask) and apply the MLP."""
        mixed = functional.scaled_dot_product_attention(
            query.transpose(1, 2),
            keys.transpose(1, 2),
            values.transpose(1, 2),
            attn_mask=mask,
            is_causal=mask is None,
        )
        x = x + self.attention_out(mixed.transpose(1, 2).flatten(2))
        change: Tensor = self.mlp_out(functional.gelu(self.mlp_in(self.mlp_norm(x))))
        return x + change


class TokenTransformer(nn.Module):
    """Class-conditional GPT decoder over image tokens.

    Parameters
    ----------
    vocab_size : int
        V, the number of image tokens.
    num_classes : int
        C; ids V, …, V + C − 1 are the class tokens, V + C the null class.
    num_tokens : int
        T, tokens of an image, hence also the number of input positions.
    width, layers, heads : int
        Shape of the network; ``heads`` divides ``width``.
    """

    def __init__(
        self, *, vocab_size: int, num_classes: int, num_tokens: int, width: int, layers: int, heads: int
    ) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"heads must divide width: width {width}, heads {heads}")
        self.vocab_size, self.num_classes, self.num_tokens = vocab_size, num_classes, num_tokens
        self.width, self.layers, self.heads = width, layers, heads
        self.token_embedding = nn.Embedding(vocab_size + num_classes + 1, width)
        self.position_embedding = nn.Embedding(num_tokens, width)
        self.blocks = nn.ModuleList(_Block(width, heads) for _ in range(layers))
        self.final_norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab_size)

    unconditional = False

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of tokens: square where T is, else one row."""
        side = math.isqrt(self.num_tokens)
        return (side, side) if side * side == self.num_tokens else (1, self.num_tokens)

    @property
    def device(self) -> torch.device:
        """Where the values are."""
        return self.head.weight.device

    def encode_conditions(self, conditions: int | Sequence[int] | np.ndarray | Tensor) -> Tensor:
        """Class numbers (a count cycles through them), checked, int64 on the model's device."""
        return torch.from_numpy(class_numbers(conditions, self.num_classes)).to(self.device)

    def start(self, conditions: Tensor, guidance: float = 1.0) -> TokenSequences:
        """Begin one image for each class number."""
        return TokenSequences(self, self.class_ids(conditions), guidance)

    def row_bytes(self) -> int:
        """Cache of one unguided image."""
        return 2 * self.layers * self.num_tokens * self.width * self.head.weight.element_size()

    @property
    def config(self) -> dict[str, int]:
        """The constructor's arguments."""
        names = ("vocab_size", "num_classes", "num_tokens", "width", "layers", "heads")
        return {name: getattr(self, name) for name in names}

    @property
    def null_id(self) -> int:
        """Input id of the null class."""
        return self.vocab_size + self.num_classes

    def class_ids(self, classes: Tensor) -> Tensor:
        """Input ids V + c of class numbers c, checked to lie in 0, …, C − 1."""
        outside = ((classes < 0) | (classes >= self.num_classes)).nonzero()
        if len(outside):
            index = tuple(outside[0].tolist())
            raise ValueError(f"class number {int(classes[index])} at index {index} is outside 0…{self.num_classes - 1}")
        return classes + self.vocab_size

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        """Fill every parameter from ``generator``; the head starts at zero, so the first prediction is uniform."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                module.weight.normal_(0.0, 0.5 / math.sqrt(module.in_features), generator=generator)
                module.bias.zero_()
            elif isinstance(module, nn.Embedding):
                module.weight.normal_(0.0, 0.05, generator=generator)
            elif isinstance(module, nn.LayerNorm):
                module.weight.fill_(1.0)
                module.bias.zero_()
        for block in self.blocks:
            assert isinstance(block, _Block)
            # Each layer adds two terms to the residual stream; this keeps its variance independent of depth.
            for linear in (block.attention_out, block.mlp_out):
                linear.weight.div_(math.sqrt(2 * self.layers))
        self.head.weight.zero_()

    @overload
    def forward(self, ids: Tensor, *, return_hidden: Literal[False] = False) -> Tensor: ...

    @overload
    def forward(self, ids: Tensor, *, return_hidden: Literal[True]) -> tuple[Tensor, Tensor]: ...

    def forward(self, ids: Tensor, *, return_hidden: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """Logits of every next token, teacher-forced from position 0.

        Parameters
        ----------
        ids : Tensor of int64, shape (B, n), 1 <= n <= T
            Input ids: a class id, then image tokens.
        return_hidden : bool
            Also return what the head reads.

        Returns
        -------
        logits : Tensor, shape (B, n, V)
            ``logits[:, t]`` predicts x_{t+1}.
        hidden : Tensor, shape (B, n, width)
            Only with ``return_hidden``: last layer's output after the final norm.
        """
        self._check_ids(ids)
        positions = torch.arange(ids.shape[1], device=ids.device)
        x = self.token_embedding(ids) + self.position_embedding(positions)
        for block in self.blocks:
            assert isinstance(block, _Block)
            x = block.finish(x, *block.project(x), mask=None)
        hidden = self.final_norm(x)
        logits = self.head(hidden)
        return (logits, hidden) if return_hidden else logits

    def new_cache(self, rows: int) -> KVCache:
        """Empty cache for ``rows`` sequences, all T positions, on the model's device and in its dtype."""
        like = self.head.weight
        shape = (self.layers, rows, self.num_tokens, self.heads, self.width // self.heads)
        # Zeros, not uninitialised memory: a masked NaN would still poison attention (0 · NaN).
        return KVCache(like.new_zeros(shape), like.new_zeros(shape))

    @torch.no_grad()
    def extend(self, ids: Tensor, lengths: Tensor, cache: KVCache, *, check: bool = True) -> tuple[Tensor, Tensor]:
        """Logits of the tokens after new inputs placed behind cached ones; writes the cache in place.

        Parameters
        ----------
        ids : Tensor of int64, shape (B, n)
            New input ids; B is the cache's number of rows.
        lengths : Tensor of int64, shape (B,)
            Valid cached inputs of each row; rows may differ.  ``lengths[b] + n`` is at most T: a caller that
            pads a finished row clamps its length.
        cache : KVCache
            From `new_cache`.
        check : bool
            Check the ranges of ``lengths`` and ``ids``; costs one device synchronisation on CUDA.

        Returns
        -------
        logits : Tensor, shape (B, n, V)
            ``[b, j]`` predicts the token after input ``lengths[b] + j``.
        hidden : Tensor, shape (B, n, width)
            What the head reads.

        Raises
        ------
        ValueError
            A shape or dtype is wrong, or (with ``check``) a length or id is out of range; names row and value.
        """
        self._check_ids(ids)
        rows, new = ids.shape
        if lengths.shape != (rows,) or lengths.dtype != torch.int64:
            raise ValueError(
                f"lengths must be int64 of shape ({rows},), one per row of ids; "
                f"got {lengths.dtype} of shape {tuple(lengths.shape)}"
            )
        if cache.rows != rows:
            raise ValueError(f"the cache holds {cache.rows} rows but ids has {rows}; use new_cache({rows})")
        if check:
            self._check_ranges(ids, lengths)
        slots = lengths[:, None] + torch.arange(new, device=ids.device)
        visible = None
        # A whole image fits behind nothing but length 0: plain causal attention, which is faster than a mask.
        if new < self.num_tokens:
            visible = torch.arange(self.num_tokens, device=ids.device) <= slots[:, :, None]
        return self.extend_nodes(ids, slots, slots, visible, cache.keys, cache.values)

    @torch.no_grad()
    def extend_nodes(
        self, ids: Tensor, index: Tensor, slots: Tensor, visible: Tensor | None, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Logits and hidden states of inputs anywhere: see `validate.models.forest.TreeSequences`.

        Keys and values have shape (layers, B, slots, heads, head width) and are written in place. Without `visible` the
        inputs fill all slots and attend causally.
        """
        row = torch.arange(len(ids), device=ids.device)[:, None]
        mask = None if visible is None else visible[:, None]
        x = self.token_embedding(ids) + self.position_embedding(index.clamp(max=self.num_tokens - 1))
        for block, cached_keys, cached_values in zip(self.blocks, keys, values, strict=True):
            assert isinstance(block, _Block)
            query, cached_keys[row, slots], cached_values[row, slots] = block.project(x)
            x = block.finish(x, query, cached_keys, cached_values, mask)
        hidden = self.final_norm(x)
        return self.head(hidden), hidden

    def _check_ids(self, ids: Tensor) -> None:
        if ids.ndim != 2 or ids.dtype != torch.int64:
            raise ValueError(f"ids must be int64 of shape (B, n); got {ids.dtype} of shape {tuple(ids.shape)}")
        if not 1 <= ids.shape[1] <= self.num_tokens:
            raise ValueError(f"ids must hold 1 to {self.num_tokens} positions per row; got {ids.shape[1]}")

    def _check_ranges(self, ids: Tensor, lengths: Tensor) -> None:
        new = ids.shape[1]
        bad_length = (lengths < 0) | (lengths + new > self.num_tokens)
        bad_id = ((ids < 0) | (ids > self.null_id)).any(dim=1)
        if not bool((bad_length | bad_id).any()):
            return
        if bool(bad_length.any()):
            row = int(bad_length.nonzero()[0])
            raise ValueError(
                f"lengths[{row}] = {int(lengths[row])} with {new} new ids leaves 0…{self.num_tokens - 1}; "
                f"clamp it to at most {self.num_tokens - new}"
            )
        row = int(bad_id.nonzero()[0])
        raise ValueError(f"ids row {row} holds {ids[row].tolist()}; ids lie in 0…{self.null_id}")
