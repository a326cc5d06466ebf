"""The exact law of one tree node with two children under the CASCADE-style rule.

Definitions. A node has the target law p and the draft law q over V tokens; `alike[x, y]` says whether the target's
states after x and after y have a cosine ≥ τ_b, which is certain once the node's prefix is given. Two children x ≠ y are
drawn from q without replacement. With g(a, b) = min(1, a/b),

    f(x | y) = max(g(p(x), q(x)), g(p(x) + p(y), q(x) + q(y)) if alike)     the elder's acceptance, given the younger,
    p' = Norm[p − q]_+,   q'_x = q without x, renormalised                  whatever y is,
    f'(y | x) = g(p'(y), q'_x(y))                                           the younger's: p'(x) q'_x(x) = 0 leave it
                                                                            alone in its class.
    o(z) = Σ_y q(z) q'_z(y) f(z|y) + Σ_x q(x) q'_x(z) (1 − f(x|z)) f'(z|x)
           + Σ_x Σ_y q(x) q'_x(y) (1 − f(x|y)) (1 − f'(y|x)) p''_x(z),      p''_x = Norm[p' − q'_x]_+.

The first sum is what the elder emits, the second the younger, the third the replacement. More than two children need
V^k orders of draws. An elder with f(x|y) < 1 has q(x) > p(x), hence p'(x) = 0. The *excess*, the probability that a
child is accepted that lossless verification refuses at its turn, bounds TV(o, p) for any number of children. It is not
the gain in acceptance: a child accepted in excess may stand in the way of a later one. Below breadth gains nothing.

Source: reconstruction after arXiv:2605.07230. Oracle: enumeration of ordered draws one by one
(tests/validate/cascade/test_nodes.py); `theory.trees.sibling_steps` where nothing is alike.

>>> import numpy as np
>>> p, q = np.array([1/2, 1/3, 1/6]), np.array([1/6, 1/3, 1/2])
>>> alone = two_children(p, q, np.eye(3, dtype=bool))
>>> pair = two_children(p, q, np.array([[1, 0, 1], [0, 1, 0], [1, 0, 1]], dtype=bool))
>>> [round(float(node.accepted), 4) for node in (alone, pair)], [round(float(x), 4) for x in pair.output]
([0.7778, 0.7778], [0.3889, 0.3333, 0.2778])
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from theory.arrays import first_index

__all__ = ["NodeLaw", "two_children"]


@dataclass(frozen=True)
class NodeLaw:
    """What one node emits.

    Attributes
    ----------
    output : float64 array, shape (V,)
        o.
    accepted : float
        Probability that a child is accepted.
    excess : float
        Probability that a child is accepted that lossless verification refuses at its turn; at least TV(o, p).
    """

    output: np.ndarray
    accepted: float
    excess: float


def _up_to(mass: np.ndarray, draft: np.ndarray) -> np.ndarray:
    covered = mass >= draft
    return np.where(covered, 1.0, mass / np.where(covered, 1.0, draft))


def two_children(p: Any, q: Any, alike: Any) -> NodeLaw:
    """Exact output law and acceptance of a node with two children.

    Parameters
    ----------
    p, q : array, shape (V,)
        q over at least two tokens.
    alike : bool array, shape (V, V)
        Symmetric; the diagonal is not looked at.

    Raises
    ------
    ValueError
        Shapes that do not fit, `alike` that is not symmetric, a draft law of one token.
    """
    p, q, alike = np.asarray(p, dtype=np.float64), np.asarray(q, dtype=np.float64), np.asarray(alike, dtype=bool)
    if p.ndim != 1 or q.shape != p.shape or alike.shape != (len(p), len(p)):
        raise ValueError(f"expected p, q (V,) and alike (V, V), got {p.shape}, {q.shape} and {alike.shape}")
    if (alike != alike.T).any():
        index = first_index(alike != alike.T)
        raise ValueError(f"alike{list(index)} differs from alike{list(index[::-1])}; likeness has no direction")
    if (q > 0).sum() < 2:
        raise ValueError("q has a single token; two children without replacement need two")
    # Rows are the elder x, columns the younger y.
    left = np.where(np.eye(len(q), dtype=bool), 0.0, q[None, :])
    total = left.sum(axis=1, keepdims=True)
    second = left / np.where(total > 0, total, 1.0)
    drawn = q[:, None] * second
    lossless = _up_to(p, q)
    pooled = _up_to(p[:, None] + p[None, :], q[:, None] + q[None, :])
    f = np.where(alike, np.maximum(lossless[:, None], pooled), lossless[:, None])
    law = np.maximum(p - q, 0.0)
    law = law / law.sum() if law.sum() > 0 else p
    g = _up_to(np.broadcast_to(law, second.shape), second)
    gap = np.maximum(law[None, :] - second, 0.0)
    gaps = gap.sum(axis=1, keepdims=True)
    replacement = np.where(gaps > 0, gap / np.where(gaps > 0, gaps, 1.0), law[None, :])
    elder, younger = drawn * f, drawn * (1 - f) * g
    lost = (drawn * (1 - f) * (1 - g)).sum(axis=1)
    output = elder.sum(axis=1) + younger.sum(axis=0) + lost @ replacement
    # The younger's class is itself alone: only the elder is ever accepted in excess.
    excess = float((drawn * (f - lossless[:, None])).sum())
    return NodeLaw(output, float(elder.sum() + younger.sum()), excess)
