"""Several candidates at one position: the best acceptance they allow, and how far the sequential rule is from it.

k candidates are drawn from q (one node of a tree, see `theory.trees`). A token with law exactly p is among them at best
with probability

    max Σ π(S, x)   subject to π(S, x) = 0 for x ∉ S, Σ_x π(S, x) ≤ P(S), Σ_S π(S, x) ≤ p(x)
    = min over token sets A of p(A) + 1 − P(all candidates in A)                (maximum flow, minimum cut)

with S the set of distinct candidates: optimal transport with k candidates (SpecTr, Sun et al. 2310.15141). It is the
yardstick for every lossless way to use k candidates; for k = 1 both are Σ min(p, q).

>>> best = best_acceptance([1/2, 1/3, 1/6], [1/6, 1/3, 1/2], 2, "without_replacement")
>>> round(best.upper, 12) == round(11 / 12, 12), round(best.sequential, 12) == round(7 / 9, 12)
(True, True)
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, permutations, product
from typing import Any

import numpy as np

from theory.arrays import probabilities, to_numpy, whole_number
from theory.numbers import Bound, Exact
from theory.rules import Lossless
from theory.trees import LARGEST_TREE, Sampling, check_sampling, sibling_steps
from theory.verifiers import Verifier

LARGEST_CANDIDATES = 200_000
"""Most tuples of candidates the transport programme enumerates."""


@dataclass(frozen=True)
class BestAcceptance:
    """How much of the best possible acceptance the sequential rule reaches; see `best_acceptance`.

    Attributes
    ----------
    lower, upper : float
        The optimum lies between: a feasible transport plan, and a dual solution (weak duality).
    sequential : float
        Acceptance of the sequential lossless rule of `analyse_tree`.
    """

    lower: float
    upper: Bound
    sequential: Exact

    @property
    def gap(self) -> float:
        """Acceptance that the sequential rule leaves on the table."""
        return self.upper - self.sequential


def candidate_law(q: Any, k: int, sampling: Sampling) -> dict[frozenset[int], float]:
    """Law of the set of distinct tokens among k candidates drawn from q, shape (V,)."""
    size = len(q)
    if sampling == "top_k":
        return {frozenset(np.argsort(-np.asarray(q), kind="stable")[:k].tolist()): 1.0}
    support = [x for x in range(size) if q[x] > 0]
    count = k if sampling == "with_replacement" else min(k, len(support))
    if len(support) ** count > LARGEST_CANDIDATES:
        raise ValueError(
            f"{count} candidates over {len(support)} tokens have {len(support)}**{count} orders, more than "
            f"{LARGEST_CANDIDATES}; use fewer candidates or a smaller vocabulary"
        )
    law: dict[frozenset[int], float] = {}
    orders = product(support, repeat=count) if sampling == "with_replacement" else permutations(support, count)
    for order in orders:
        weight, left = 1.0, list(support)
        for x in order:
            weight *= q[x] / (1.0 if sampling == "with_replacement" else sum(q[y] for y in left))
            if sampling == "without_replacement":
                left.remove(x)
        key = frozenset(order)
        law[key] = law.get(key, 0.0) + weight
    return law


def best_acceptance(p: Any, q: Any, k: int, sampling: Sampling = "without_replacement") -> BestAcceptance:
    """Largest probability that a token with law exactly p is one of k candidates drawn from q.

    Parameters
    ----------
    p, q : array, shape (V,)
        Target and draft laws.
    k : int
        Candidates, k ≥ 1.
    sampling : {"with_replacement", "without_replacement", "top_k"}

    Returns
    -------
    BestAcceptance
        Certified interval of the optimum, and the sequential rule's acceptance beside it.

    Raises
    ------
    ValueError
        For laws that are no probabilities, k < 1, or too many orders of candidates to enumerate.
    RuntimeError
        If the solver does not converge; its status is named and nothing is returned.

    Notes
    -----
    Maximise Σ π(S, x) over plans with π(S, x) = 0 for x ∉ S, Σ_x π(S, x) ≤ P(S), Σ_S π(S, x) ≤ p(x) (HiGHS through
    scipy). Source: optimal transport with k candidates, SpecTr (Sun et al. 2310.15141). The reported numbers are
    recomputed from the solver's plan, made feasible by scaling, and from its prices, made feasible by completion.
    Oracle: `smallest_cut`, the minimum over all 2^V token sets.
    """
    from scipy.optimize import linprog
    from scipy.sparse import csr_array

    p, q = (to_numpy(probabilities(law, name)).astype(np.float64) for law, name in ((p, "p"), (q, "q")))
    if p.ndim != 1 or q.shape != p.shape:
        raise ValueError(f"expected p and q of one shape (V,), got {p.shape} and {q.shape}")
    k = whole_number(k, "k", 1)
    if k > LARGEST_TREE:
        raise ValueError(f"k is {k}; more than {LARGEST_TREE} candidates are no tree a decoder can verify")
    check_sampling(sampling)
    sets = candidate_law(q, k, sampling)
    weights = np.array(list(sets.values()))
    edges = [(s, x) for s, members in enumerate(sets) for x in sorted(members)]
    source, token = np.array(edges).T
    ones, columns = np.ones(len(edges)), np.arange(len(edges))
    rows = csr_array((np.tile(ones, 2), (np.concatenate([source, len(sets) + token]), np.tile(columns, 2))))
    limit = np.zeros(rows.shape[0])
    limit[: len(sets)] = weights
    limit[len(sets) :] = p[: rows.shape[0] - len(sets)]
    solution = linprog(-ones, A_ub=rows, b_ub=limit, bounds=(0, None), method="highs")
    if not solution.success:
        raise RuntimeError(f"transport linear programme did not converge: {solution.message}")
    plan = np.clip(solution.x, 0, None)
    for index, capacity in ((source, weights), (token, p)):
        used = np.bincount(index, plan, minlength=len(capacity))
        plan *= np.minimum(1, capacity / np.where(used > 0, used, 1))[index]
    prices = np.zeros(len(p))
    prices[: rows.shape[0] - len(sets)] = np.clip(-solution.ineqlin.marginals[len(sets) :], 0, 1)
    cover = sum(w * max(1 - prices[x] for x in members) for members, w in sets.items())
    steps = sibling_steps(p[None], q[None], Verifier(Lossless()), 0, k, sampling)
    return BestAcceptance(
        float(plan.sum()), Bound(prices @ p + cover), Exact(sum(float(mass.sum()) for mass in steps.accepted))
    )


def smallest_cut(p: Any, q: Any, k: int, sampling: Sampling = "without_replacement") -> Exact:
    """min over token sets A of p(A) + 1 − P(all candidates in A): the optimum of `best_acceptance`, by enumeration."""
    sets, size = candidate_law(q, k, sampling), len(p)
    chosen = (frozenset(c) for count in range(size + 1) for c in combinations(range(size), count))
    return Exact(min(sum(p[x] for x in a) + sum(w for s, w in sets.items() if not s <= a) for a in chosen))
