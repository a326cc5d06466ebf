"""What a CASCADE-style rule knows of a draft tree: the target's hidden states at its nodes, from the verify pass.

Definitions. h_v is the state that the target's head reads at node v, hence after v's token. Under classifier-free
guidance s it is the guided state h = h_null + s (h_cond − h_null): the head is affine, so its guided logits are those
of h. Reconstructed rule (`theory.CascadeStyle`), for the children x_1, …, x_k of one node, tried in order against
p^(1) = p, p^(2), … with draft laws q^(1) = q, q^(2), … (`validate.siblings`):

* breadth: C(x_j) holds x_j and the siblings x_i with cos(h_i, h_j) ≥ τ_b, and
  f(x_j) = max(min(1, p^(j)(C)/q^(j)(C)), min(1, p^(j)/q^(j)(x_j)));
* depth: let v be accepted and u be refused at the same depth, cos(h_u, h_v) ≥ τ_d. Once v has no child left to try,
  u's children are tried behind v, against v's own law with their own draft law q(·|u). Behind an accepted child c of u
  the target's law is *taken from u's branch*, p(·|…u c) for p(·|…v c), and so are the keys and values of c: the cache
  goes on with them to the image's end.

What this does to the law:

* f ≥ min(1, p/q), hence [p − q f]_+ = [p − q]_+ whatever the class: the residual is the lossless one, p^(j) does not
  depend on the classes, and all bias comes from what is accepted beyond lossless. Coupling a node with the lossless
  one through draws and uniforms, both emit the same token unless a child is accepted that lossless refuses, so

      TV(output law of the node, p) ≤ P(a child is accepted that lossless refuses at its turn).               [proved]

  This is more than the gain in acceptance: a child accepted in excess stands in the way of its younger siblings.
* one child has no sibling: f is lossless. On chains breadth does nothing.
* u's children are drawn from q(·|u) apart from all tests above them, so trying them behind v is lossless by itself;
  the bias of depth is that of the laws taken from u's branch behind c, TV(p(·|…u c), p(·|…v c)) a step.
* A candidate for the image's last token is never read by the target: it has no state and is tested losslessly.

Source: reconstruction after arXiv:2605.07230. Oracle: enumeration of all candidates of a tree on chains of three
tokens (tests/validate/cascade/test_cascade_states.py).

>>> cascade_verifier(0.9, None).rule
CascadeStyle(tau_b=0.9, tau_d=2.0)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from theory import CascadeStyle, Verifier
from theory.arrays import real_number

__all__ = ["TreeStates", "cascade_verifier", "guided_states", "tree_states"]

OFF = 2.0
"""A threshold that no cosine reaches."""


def cascade_verifier(tau_b: float | None = 0.7, tau_d: float | None = None) -> Verifier:
    """The CASCADE-style verifier of draft trees.

    Parameters
    ----------
    tau_b, tau_d : float or None
        Least cosine of interchangeable siblings, and of nodes one of which may take over the other's subtree, in
        [−1, 1]; None switches breadth or depth off.

    Raises
    ------
    ValueError
        A threshold outside [−1, 1].
    """
    given = [
        OFF if value is None else real_number(value, name, least=-1.0, most=1.0)
        for name, value in (("tau_b", tau_b), ("tau_d", tau_d))
    ]
    return Verifier(CascadeStyle(*given))


def guided_states(hidden: Tensor, guidance: float, rows: int) -> Tensor:
    """Guided hidden states (B, n, D) of the states (halves · B, n, D) of both halves."""
    if len(hidden) == rows:
        return hidden
    conditional, null = hidden.chunk(2)
    return null + guidance * (conditional - null)


def tree_states(verifier: Any, hidden: Any, guidance: float, tokens: Tensor) -> TreeStates | None:
    """The states of a round, if the verifier's rule looks at them; else None.

    Parameters
    ----------
    hidden : Tensor, shape (halves · B, nodes, D)
        From the verify pass.
    tokens : int64 Tensor, shape (B, nodes)

    Raises
    ------
    TypeError
        The rule needs states and the target gave none.
    """
    if not isinstance(getattr(verifier, "rule", None), CascadeStyle):
        return None
    if not isinstance(hidden, Tensor) or hidden.ndim != 3 or hidden.shape[1] != tokens.shape[1]:
        found = tuple(hidden.shape) if isinstance(hidden, Tensor) else hidden
        raise TypeError(
            f"a CASCADE-style rule reads hidden states (rows, {tokens.shape[1]}, D) of all tree nodes, the target gave "
            f"{found!r}; use a target whose tree_logits answers hidden=True"
        )
    return TreeStates(verifier, guided_states(hidden, guidance, len(tokens)))


class TreeStates:
    """Hidden states of the B trees of one round, and which of their nodes were refused.

    Parameters
    ----------
    verifier : Verifier
        Of a `theory.CascadeStyle`.
    states : Tensor, shape (B, nodes, D)
    """

    def __init__(self, verifier: Verifier, states: Tensor) -> None:
        assert isinstance(verifier.rule, CascadeStyle)
        self.verifier, self.rule, self.states = verifier, verifier.rule, states
        self.row = torch.arange(len(states), device=states.device)[:, None]
        self.refused: list[Tensor] = []

    def bind(self, below: Tensor, ids: Tensor, last: Tensor) -> Verifier:
        """The verifier of children `below` (B, k) with tokens `ids`, −1 where there is none.

        Rows of `last` (B,) would place the image's last token: their candidates were never read and have no siblings.
        """
        # The rule allows repetitions: a child that is not there repeats the eldest, and so adds nothing.
        there = (ids >= 0) & ~last[:, None]
        tokens = torch.where(there, ids, ids[:, :1]).clamp(min=0)
        nodes = torch.where(there, below, below[:, :1]).clamp(min=0)
        return replace(self.verifier, rule=self.rule.at(tokens, self.states[self.row, nodes]))

    def refuse(self, below: Tensor, ids: Tensor, child: Tensor) -> None:
        """Remember children that were tried in vain: all with a token, or those elder than an accepted one."""
        count = below.shape[1]
        elder = torch.arange(count, device=below.device) < torch.where(child < 0, count, child)[:, None]
        self.refused.append(torch.where((ids >= 0) & elder, below, -1))

    def converged(self, node: Tensor) -> Tensor:
        """Nodes refused since the last call that are like the accepted node (B,), int64 (B, m), −1 elsewhere."""
        others = torch.cat(self.refused, dim=1)
        self.refused = []
        if self.rule.tau_d > 1:
            return others[:, :0]
        alike = self.rule.converged(self.states[self.row, others.clamp(min=0)], self.states[self.row, node[:, None]])
        return torch.where(alike, others, -1)
