"""The least exact TV of a round at every accepted length: of token-wise rules, and of any rule at all.

A rule keeps a prefix of the draft and replaces what follows; a *token-wise* one decides token by token, others may have
the whole draft in view (block verification). Write A_i for the mass of drafts whose first i tokens are kept, Q_i for
the draft's own mass, M_i for the mass of outputs already replaced by token i:

    0 ≤ A_i ≤ Q_i (any rule) or A_i ≤ A_{i−1} q_i (token-wise),
    M_i ≥ M_{i−1} p_i,   Σ_x (A_i + M_i) = A_{i−1} + M_{i−1},   P̂ = A_L + M_L.

N = Σ A_i is linear in these and TV is convex: one linear programme.

p = (½, 3/10, ⅕), q = (⅕, 3/10, ½), one drafted token: bias and rejection add up to TV(p, q) = 3/10.

>>> from theory.chains import IIDChain
>>> front = tv_frontier(IIDChain([0.5, 0.3, 0.2]), IIDChain([0.2, 0.3, 0.5]), 1)
>>> round(front.most_accepted(0.0), 9), round(front.most_accepted(0.1), 9), round(front.least_tv(0.8), 9)
(0.7, 0.8, 0.1)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from theory.chains import Chain, joint_layers
from theory.solvers import HIGHS_OPTIONS

__all__ = ["TVFrontier", "tv_frontier"]


@dataclass(frozen=True, eq=False)
class TVFrontier:
    """The linear programme in the variables (A, M, excess over the target): matrices of scipy's `linprog`.

    Attributes
    ----------
    accepted, excess : array
        Rows of N and of TV.
    """

    a_ub: Any
    b_ub: Any
    a_eq: Any
    b_eq: Any
    bounds: list[tuple[float, float | None]]
    accepted: Any
    excess: Any

    def least_tv(self, accepted: float) -> float:
        """Least exact TV of a rule that accepts N = `accepted` tokens a round; RuntimeError where none does."""
        return max(self._solved(self.excess, self.accepted, accepted), 0.0)

    def most_accepted(self, tv: float) -> float:
        """Largest N of a rule of exact TV at most `tv`."""
        return -self._solved(-self.accepted, -self.excess, -tv)

    def _solved(self, cost: Any, row: Any, least: float) -> float:
        """Least cost·z with row·z ≥ least."""
        from scipy import sparse
        from scipy.optimize import linprog

        options = {key: value for key, value in HIGHS_OPTIONS.items() if key != "method"}
        a_ub, b_ub = sparse.vstack([self.a_ub, -row[None]]), np.append(self.b_ub, -least)
        found = linprog(cost, a_ub, b_ub, self.a_eq, self.b_eq, self.bounds, method="highs", options=options)
        if found.status != 0:
            raise RuntimeError(f"a frontier's programme was not solved: {found.message}")
        return float(found.fun)


def tv_frontier(target: Chain, draft: Chain, length: int, *, token_wise: bool = False) -> TVFrontier:
    """Least exact TV against accepted length, over token-wise rules or over all that keep a prefix of the draft.

    Parameters
    ----------
    target, draft : Chain
        Of one vocabulary, the target at least L+1 tokens deep; V^L prefixes are written down.
    length : int
        L ≥ 1.
    token_wise : bool

    Returns
    -------
    TVFrontier

    Notes
    -----
    Source: this project. No certificate: `exact_frontier` proves both ends of the token-wise one, and is its oracle;
    N at TV 0 of the other is `block_frontier`'s, where block verification is optimal.
    """
    from scipy import sparse

    layers = list(joint_layers(target, draft, length, enumerate_prefixes=True))
    laws = [(np.asarray(layer.target), np.asarray(layer.draft)) for layer in layers]
    sizes = [p.size for p, _ in laws]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    count = int(starts[-1])
    total = 2 * count + sizes[-1]

    def variables(first: int, size: int) -> Any:
        return sparse.eye(size, total, k=first, format="csr")

    upper, upper_at, equal, equal_at = [], [], [], []
    bounds: list[tuple[float, float | None]] = []
    drafted, law = np.ones(1), np.ones(1)
    before_kept: Any = None
    before_ended: Any = None
    for i, (p, q) in enumerate(laws):
        up = sparse.kron(sparse.identity(len(p)), np.ones((p.shape[1], 1)), format="csr")
        drafted, law = (drafted[:, None] * q).reshape(-1), (law[:, None] * p).reshape(-1)
        kept, ended = variables(starts[i], sizes[i]), variables(count + starts[i], sizes[i])
        bounds += [(0.0, float(mass)) for mass in drafted]
        if before_kept is None:
            equal.append(up.T @ (kept + ended))
            equal_at.append(np.ones(1))
        else:
            equal.append(up.T @ (kept + ended) - before_kept - before_ended)
            equal_at.append(np.zeros(len(p)))
            upper.append(sparse.diags(p.reshape(-1)) @ up @ before_ended - ended)
            upper_at.append(np.zeros(p.size))
            if token_wise:
                upper.append(kept - sparse.diags(q.reshape(-1)) @ up @ before_kept)
                upper_at.append(np.zeros(p.size))
        before_kept, before_ended = kept, ended
    upper.append(before_kept + before_ended - variables(2 * count, sizes[-1]))
    upper_at.append(law)
    bounds += [(0.0, None)] * (count + sizes[-1])
    place = np.arange(total)
    return TVFrontier(
        sparse.vstack(upper), np.concatenate(upper_at), sparse.vstack(equal), np.concatenate(equal_at), bounds,
        (place < count).astype(float), (place >= 2 * count).astype(float),
    )  # fmt: skip
