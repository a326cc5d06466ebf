"""A CASCADE-style rule: the target's own hidden states say which siblings of a tree are interchangeable.

CASCADE (2605.07230) relaxes acceptance by two properties of the target's hidden states h_v over a verified tree,
without training. Its formulas could not be read; everything here is **reconstructed** and called CASCADE-style:

* breadth: siblings u, v are interchangeable iff cos(h_u, h_v) ≥ τ_b; with C(v) the distinct tokens among v and its
  interchangeable siblings, f(v) = max(min(1, p(C)/q(C)), min(1, p/q)); the residual is Norm[p − q f]_+
* depth: the states under two different parents have converged iff their cosine is ≥ τ_d, and then the subtree of a
  rejected parent may be kept

>>> rule = CascadeStyle(tau_b=0.9).at([0, 1], [[1.0, 0.0], [1.0, 0.1]])
>>> rule.acceptance([0.5, 0.1, 0.4], [0.1, 0.7, 0.2], 0).round(12).tolist()
[1.0, 0.75, 1.0]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from theory.arrays import Array, array_namespace, as_floats, device, first_index, real_number
from theory.rules.base import Position, accept_up_to, pair


def cosine(a: Any, b: Any) -> Array:
    """Cosine similarity on the last axis; a vector of length zero has similarity 0."""
    a, b = as_floats(a), as_floats(b)
    xp = array_namespace(a, b)
    # Squares of entries beyond 1e19 (float32) or below 1e-19 leave the range; the angle does not see the length.
    largest = [xp.max(xp.abs(x), axis=-1, keepdims=True) for x in (a, b)]
    a, b = (x / xp.where(most > 0, most, xp.ones_like(most)) for x, most in zip((a, b), largest, strict=True))
    norm = xp.sqrt(xp.sum(a * a, axis=-1)) * xp.sqrt(xp.sum(b * b, axis=-1))
    return xp.where(norm > 0, xp.sum(a * b, axis=-1) / xp.where(norm > 0, norm, xp.ones_like(norm)), 0.0)


@dataclass(frozen=True)
class CascadeStyle:
    """f = max(min(1, p(C)/q(C)), min(1, p/q)), C = x and its siblings of similar target state (see module head).

    Parameters
    ----------
    tau_b, tau_d : float
        Cosine thresholds across siblings and along depth. The default .7 is what VVS 2511.13587 reports of candidate
        paths (cosine above .7 in three iterations of four); CASCADE's own values are not known.
    """

    tau_b: float = 0.7
    tau_d: float = 0.7
    source: ClassVar[str] = "CASCADE-style, after 2605.07230"
    reconstructed: ClassVar[bool] = True
    lossless: ClassVar[bool] = False
    at_least_lossless: ClassVar[bool] = True
    support_safe: ClassVar[bool] = False

    def __post_init__(self) -> None:
        # Above one no two states are alike: the rule is then lossless.
        object.__setattr__(self, "tau_b", real_number(self.tau_b, "tau_b", least=-1.0, most=2.0))
        object.__setattr__(self, "tau_d", real_number(self.tau_d, "tau_d", least=-1.0, most=2.0))

    def acceptance(self, p: Any, q: Any, position: Position, siblings: Any = None, hidden: Any = None) -> Array:
        """Acceptance probability of every token; tokens that are no sibling keep min(1, p/q).

        Parameters
        ----------
        p, q, position
            As in `Rule.acceptance`.
        siblings : integer array, shape (..., K)
            Tokens drafted at this node, repetitions allowed.
        hidden : array, shape (..., K, D)
            The target's hidden state at each of them.

        Raises
        ------
        ValueError
            If siblings or hidden states are missing, of other shapes, or not finite.
        """
        xp, p, q = pair(p, q)
        if siblings is None or hidden is None:
            missing = "siblings" if siblings is None else "hidden"
            raise ValueError(
                f"CascadeStyle needs {missing}: drafted tokens (..., K) and the target's hidden states (..., K, D) at "
                "them; pass both, or bind them with rule.at(siblings, hidden)"
            )
        tokens = xp.asarray(siblings, device=device(p))
        states = xp.asarray(hidden, dtype=p.dtype, device=device(p))
        if tuple(states.shape[:-1]) != tuple(tokens.shape):
            raise ValueError(
                f"expected siblings (..., K) and hidden (..., K, D), got {tuple(tokens.shape)} and "
                f"{tuple(states.shape)}"
            )
        if not xp.isdtype(tokens.dtype, "integral"):
            raise ValueError(f"siblings must be integers, got dtype {tokens.dtype}")
        size = p.shape[-1]
        for bad, what, values in (
            (~xp.isfinite(states), "hidden states must be finite", states),
            ((tokens < 0) | (tokens >= size), f"tokens lie in 0…{size - 1}", tokens),
        ):
            if bool(xp.any(bad)):
                index = first_index(bad)
                raise ValueError(f"{what}: entry {index} is {values[index]}")
        alike = cosine(states[..., :, None, :], states[..., None, :, :]) >= self.tau_b
        same = tokens[..., :, None] == tokens[..., None, :]
        # One column for each vocabulary token: does the class of sibling u hold it?
        member = xp.astype(tokens[..., None] == xp.arange(size, device=device(p)), p.dtype)
        held = xp.astype((xp.astype(alike | same, p.dtype) @ member) > 0, p.dtype)
        f = accept_up_to(p, q)
        ratio = accept_up_to(xp.sum(held * p[..., None, :], axis=-1), xp.sum(held * q[..., None, :], axis=-1))
        return xp.maximum(f, xp.max(member * ratio[..., None], axis=-2))

    def at(self, siblings: Any, hidden: Any) -> BoundCascadeStyle:
        """The rule with the states of one node (or one batch of nodes), as a `Rule` a verifier can take."""
        return BoundCascadeStyle(self, siblings, hidden)

    def converged(self, hidden: Any, other: Any) -> Array:
        """Boolean (...): whether states (..., D) under two parents are alike, so that a rejected subtree may stay."""
        return cosine(hidden, other) >= self.tau_d


@dataclass(frozen=True, eq=False)
class BoundCascadeStyle:
    """`CascadeStyle` with the siblings (..., K) and hidden states (..., K, D) of the node being verified."""

    rule: CascadeStyle
    siblings: Any
    hidden: Any
    source: ClassVar[str] = CascadeStyle.source
    reconstructed: ClassVar[bool] = True
    lossless: ClassVar[bool] = False
    at_least_lossless: ClassVar[bool] = True
    support_safe: ClassVar[bool] = False

    def acceptance(self, p: Any, q: Any, position: Position) -> Array:
        return self.rule.acceptance(p, q, position, self.siblings, self.hidden)
