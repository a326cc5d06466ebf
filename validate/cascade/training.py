"""A term of drafter training that rewards draft mass on tokens interchangeable with likely ones.

Definitions. At some places of the training images the K likeliest tokens of the target's law p are its candidates; the
target reads each of them behind the place's prefix, and h_x is the guided state there. A_xy = 1 where
cos(h_x, h_y) ≥ τ, so A_xx = 1. With p̃ = p on the candidates, renormalised, and q the drafter's law at that place,

    term = − Σ_x p̃(x) log Σ_y A_xy q(y),

the cross-entropy in which a token counts as drafted when an interchangeable one is. Without interchangeable tokens it
is plain cross-entropy on the candidates; its least value is 0, with all mass on tokens that are like every candidate.
It is added to the distillation loss with weight λ (`validate.training.drafter`).

Source: reconstruction; that CASCADE (arXiv:2605.07230) adds "the same signal" to the drafter's loss is all that is
known of its term.

>>> import torch
>>> p, q = torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([[0.2, 0.6, 0.2]])
>>> alike = torch.tensor([[[True, True], [True, True]]])
>>> term = interchangeable_term(q.log(), p, torch.tensor([[0, 1]]), alike)
>>> round(float(term.neg().exp()), 4)
0.8
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from validate.cascade.states import guided_states
from validate.models.forest import Forest
from validate.models.interface import START
from validate.models.transformer import TokenTransformer

__all__ = ["Candidates", "interchangeable_candidates", "interchangeable_term"]

CANDIDATES = 8
"""K: with some 90 % of the embedded target's mass."""
PLACES = 4
"""Places an image whose candidates are read: K states a place, so that the term costs about a target pass."""
THRESHOLD = 0.9
"""τ: at .7 nearly all candidates are alike (94 % of siblings), which would reward anything likely."""


class Candidates(NamedTuple):
    """Candidates of some places.

    Attributes
    ----------
    places : int64 Tensor, shape (B, P)
        Input indices t: the law at stake is that of token t + 1.
    tokens : int64 Tensor, shape (B, P, K)
    alike : bool Tensor, shape (B, P, K, K)
    """

    places: Tensor
    tokens: Tensor
    alike: Tensor


@torch.no_grad()
def interchangeable_candidates(
    target: TokenTransformer,
    tokens: Tensor,
    classes: Tensor,
    laws: Tensor,
    guidance: float,
    generator: torch.Generator,
    threshold: float = THRESHOLD,
) -> Candidates:
    """Candidates at random places of images.

    Parameters
    ----------
    tokens : int64 Tensor, shape (B, T)
    classes : int64 Tensor, shape (B,)
    laws : Tensor, shape (B, T, V)
        log p of every token; index t is the law of token t + 1.
    generator : torch.Generator
        For the places, from 1 (the first that a drafter proposes) to T − 2 (the last whose candidates are read).
    """
    rows, total = tokens.shape
    sequences = target.start(classes, guidance)
    inputs = torch.cat([torch.full_like(tokens[:, :1], START), tokens[:, :-1]], dim=1)
    sequences.logits(inputs, torch.zeros_like(tokens[:, 0]))
    count = min(CANDIDATES, target.vocab_size)
    forest = Forest.of(torch.cat([torch.full((1,), -1), torch.zeros(count, dtype=torch.int64)]))
    row = torch.arange(rows)
    places = torch.randint(1, total - 1, (rows, PLACES), generator=generator)
    chosen, alike = [], []
    for place in places.unbind(1):
        best = laws[row, place].topk(count, dim=-1).indices
        nodes = torch.cat([inputs[row, place][:, None], best], dim=1)
        _, hidden = sequences.tree_logits(nodes, place, forest, hidden=True)
        units = torch.nn.functional.normalize(guided_states(hidden, guidance, rows)[:, 1:], dim=-1)
        likeness = units @ units.transpose(1, 2) >= threshold
        chosen.append(best)
        alike.append(likeness | torch.eye(count, dtype=torch.bool))
    return Candidates(places, torch.stack(chosen, dim=1), torch.stack(alike, dim=1))


def interchangeable_term(q: Tensor, p: Tensor, tokens: Tensor, alike: Tensor) -> Tensor:
    """The term, mean over places.

    Parameters
    ----------
    q : Tensor, shape (..., V)
        Log-law of the drafter.
    p : Tensor, shape (..., V)
        Law of the target.
    tokens : int64 Tensor, shape (..., K)
        Candidates.
    alike : bool Tensor, shape (..., K, K)
    """
    share = p.gather(-1, tokens)
    share = share / share.sum(dim=-1, keepdim=True)
    # log Σ_y A_xy q(y) in log space: a drafter may give a candidate next to nothing.
    mass = torch.where(alike, q.gather(-1, tokens)[..., None, :], -torch.inf).logsumexp(dim=-1)
    return -(share * mass).sum(dim=-1).mean()
