"""The children of one node of a draft tree: drawn without replacement, tried one after another.

Sibling j is accepted while u_j < f(p^(j), q^(j))(x_j), with

    p^(1) = p,    p^(j+1) = residual of (p^(j), q^(j), f) after x_j was refused,

and q^(j) the draft law without the siblings already tried, renormalised.

Source: SpecInfer (arXiv:2305.09781). Oracle: `theory.trees.sibling_steps`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from simulate.draws import categorical
from theory import AnyVerifier
from theory.verifiers import acceptance_of, residual_after


def draw_children(law: Tensor, uniforms: Tensor) -> Tensor:
    """Children drawn without replacement: laws (..., V), uniforms (..., k) → tokens (..., k), −1 once q ran out."""
    left, drawn = law.clone(), []
    for j in range(uniforms.shape[-1]):
        total = left.sum(dim=-1)
        token = categorical(torch.where((total > 0)[..., None], left, law), uniforms[..., j])
        drawn.append(torch.where(total > 0, token, -1))
        left = left.scatter(-1, token[..., None], 0.0)
    return torch.stack(drawn, dim=-1)


def try_siblings(
    verifier: AnyVerifier, p: Tensor, q: Tensor | None, tokens: Tensor, uniforms: Tensor, depth: int
) -> tuple[Tensor, Tensor]:
    """Which of a node's children is accepted, and what law stands behind the refused ones.

    Parameters
    ----------
    verifier : Verifier
        Token-wise.
    p, q : Tensor, shape (B, V)
        q is None for chosen candidates, each drafted by a point mass.
    tokens : int64 Tensor, shape (B, k)
        Drawn from q without replacement, in order; −1 where there is no child.
    uniforms : float64 Tensor, shape (B, k)
    depth : int
        0-based position in the round, for the rule's schedule.

    Returns
    -------
    child : int64 Tensor, shape (B,)
        −1 where all are refused.
    law : Tensor, shape (B, V)
        p^(k+1) where all are refused.
    """
    child = torch.full(tokens.shape[:1], -1, dtype=torch.int64, device=p.device)
    law, left = p, torch.zeros_like(p) if q is None else q
    for j in range(tokens.shape[1]):
        token = tokens[:, j : j + 1].clamp(min=0)
        if q is None:
            left = torch.zeros_like(p).scatter(1, token, 1.0)
        total = left.sum(dim=-1, keepdim=True)
        tried = (child < 0) & (tokens[:, j] >= 0) & (total[:, 0] > 0)
        if not bool(tried.any()):
            break
        drafted = torch.where(total > 0, left / torch.where(total > 0, total, 1.0), law)
        f = acceptance_of(verifier, law, drafted, depth)
        taken = tried & (uniforms[:, j] < f.gather(1, token)[:, 0])
        child = torch.where(taken, j, child)
        refused = tried & ~taken
        law = torch.where(refused[:, None], residual_after(verifier, law, drafted, f, token[:, 0], depth), law)
        left = torch.where(refused[:, None], left.scatter(1, token, 0.0), left)
    return child, law
