"""Likelihood of images that a feature drafter's chains were drafted for.

A feature drafter's law of token t depends on the round: the target's features are known up to the token before the
round's start t − i, and the drafter's own from there on. So along a finished image it has one law for every offset,

    q[i, t] = draft law of x_t in a round that started at token t − i,    i = 0 … L−1,

and the offset recursion (a_{t+1}(i+1) = a_t(i) q[i, t] f_{i+1}(x_t); see `theory.sequences`) takes q of shape
(L, T, V). The drafter proposes along the image exactly as it does in decoding: L passes of one layer behind each token.

The first token of an image has no features before it and is drawn from the target; it counts as a round of its own.

Oracle: `validate.tree_decoding.decode_tree` with chains, whose images have this law, on networks of a few tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from theory import AnyVerifier, OffsetFilter, filter_offsets
from validate.batches import Decoded, rows_of
from validate.drafters.feature import FeatureDrafter
from validate.drafters.trees import feature_proposer
from validate.models import Pair, Warp
from validate.models.forest import Forest
from validate.models.interface import START
from validate.tree_proposers import tree_sequences
from validate.tree_shapes import TreeShape, tree_of_paths

__all__ = ["OffsetLaws", "filter_feature_chains", "offset_laws"]

IMAGES_AT_ONCE = 25
"""Images whose laws are held together: 63 MB at T = 49, V = 256 and L = 5."""


@dataclass(frozen=True)
class OffsetLaws:
    """Images with the target's laws along them and the drafter's at every offset.

    Attributes
    ----------
    tokens : int64 Tensor, shape (n, T)
    target_probs : float64 Tensor, shape (n, T, V)
    draft_probs : float64 Tensor, shape (n, L, T, V)
        [k, i, t]; uniform where no round can have started at t − i.
    """

    tokens: Tensor
    target_probs: Tensor
    draft_probs: Tensor


@torch.no_grad()
def _laws(
    pair: Pair, drafter: FeatureDrafter, tokens: Tensor, conditions: Any, length: int, guidance: float, warp: Warp
) -> OffsetLaws:
    total = tokens.shape[1]
    inputs = torch.cat([torch.full_like(tokens[:, :1], START), tokens], dim=1)
    target = tree_sequences(pair.target, conditions[0], guidance)
    chain = Forest.of(torch.arange(total, device=tokens.device) - 1)
    logits, hidden = target.tree_logits(inputs[:, :total], torch.zeros_like(tokens[:, 0]), chain, hidden=True)
    p = torch.softmax(warp(logits).double(), dim=-1)
    q = torch.full_like(p, 1.0 / p.shape[-1])[:, None].repeat(1, length, 1, 1)
    shape = TreeShape(tree_of_paths([(0,) * depth for depth in range(1, length + 1)]))
    proposer: Any = feature_proposer(drafter)(pair, conditions, guidance, warp, shape)
    one = torch.ones_like(tokens[:, 0])
    for start in range(1, total):
        # As after a round that ended with token `start`: one more of the target's features is known.
        proposer.fresh = (hidden[:, start - 1 : start], (start - 1) * one, one)
        q[:, 0, start] = proposer.root(inputs, start * one).double()
        for i in range(1, min(length, total - start)):
            law = proposer.below(tokens[:, start + i - 1, None], i, start * one)
            q[:, i, start + i] = law[:, 0].double()
    return OffsetLaws(tokens, p, q / q.sum(dim=-1, keepdim=True))


def offset_laws(pair: Pair, drafter: FeatureDrafter, images: Decoded, length: int) -> Iterator[OffsetLaws]:
    """Laws along images, some images at a time, at the guidance and warp they were decoded with.

    Parameters
    ----------
    pair : Pair
    drafter : FeatureDrafter
        Of the pair's target.
    images : Decoded
    length : int
        L ≥ 1, the chain's depth.

    Raises
    ------
    ValueError
        For length < 1, or a chain deeper than the image.
    WeightsError
        For a drafter of another target.
    """
    if not 1 <= length <= pair.num_tokens:
        raise ValueError(f"length must lie in 1…{pair.num_tokens} (the image's tokens), got {length}")
    conditions = pair.encode_conditions(images.asked)
    tokens = torch.from_numpy(images.tokens).to(pair.device)
    for first in range(0, len(tokens), IMAGES_AT_ONCE):
        numbers = range(first, min(first + IMAGES_AT_ONCE, len(tokens)))
        own = tokens[numbers.start : numbers.stop]
        yield _laws(pair, drafter, own, rows_of(conditions, numbers), length, images.guidance, images.warp)


def filter_feature_chains(
    pair: Pair, drafter: FeatureDrafter, images: Decoded, verifier: AnyVerifier, length: int
) -> OffsetFilter:
    """`theory.filter_offsets` of images for feature-drafted chains of L tokens, as NumPy arrays.

    Likelihoods are those of whole images; rows of tokens start at the image's second token, since the first is always
    the target's own. Parameters as for `offset_laws`.
    """
    parts = []
    for laws in offset_laws(pair, drafter, images, length):
        found = filter_offsets(
            laws.tokens[:, 1:], laws.target_probs[:, 1:], laws.draft_probs[:, :, 1:], verifier, length
        )
        first = torch.take_along_dim(laws.target_probs[:, 0], laws.tokens[:, :1], -1)[:, 0].log()
        parts.append(
            replace(
                found,
                log_likelihood=found.log_likelihood + first,
                target_log_likelihood=found.target_log_likelihood + first,
            )
        )
    names = [field.name for field in fields(OffsetFilter)]
    return OffsetFilter(*(np.concatenate([getattr(part, name).cpu().numpy() for part in parts]) for name in names))
