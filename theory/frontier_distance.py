"""The fair score of a rule: accepted length it leaves on the table.

A rule with N, B and exact TV is compared with the largest N that any token-wise rule reaches at its own B
(`bound_frontier`) and that any rule and residual reach at its own exact TV (`exact_frontier`).

>>> from theory.chains import IIDChain
>>> from theory.rules import AcceptAll
>>> from theory.verifiers import Verifier
>>> target, draft = IIDChain([0.75, 0.25]), IIDChain([0.25, 0.75])
>>> d = distance_to_frontier(target, draft, Verifier(AcceptAll()), 2)
>>> d.tv_bound, d.total_variation, round(d.left_at_bound, 9), round(d.left_at_total_variation, 9)
(1.0, 0.5, 0.0, 0.0)
"""

from __future__ import annotations

from dataclasses import dataclass

from theory.chains import Chain
from theory.exact_frontier import exact_frontier
from theory.frontier import BoundFrontier, bound_frontier
from theory.numbers import Bound, Exact
from theory.rounds import analyse_round
from theory.verifiers import AnyVerifier


@dataclass(frozen=True)
class FrontierDistance:
    """How far a verifier is from both frontiers; see `distance_to_frontier`.

    Attributes
    ----------
    expected_accepted, tv_bound, total_variation : float
        N, B and exact TV of the verifier itself.
    best_at_bound : float
        Largest N of a token-wise rule at this B.
    best_at_total_variation : float
        N of a rule found at this exact TV.
    upper_at_total_variation : float
        Proved upper bound on N at this exact TV.
    """

    expected_accepted: Exact
    tv_bound: Bound
    total_variation: Exact
    best_at_bound: Exact
    best_at_total_variation: Exact
    upper_at_total_variation: Bound

    @property
    def left_at_bound(self) -> float:
        """Accepted tokens a round left at the verifier's own B; below 0 only for block rules."""
        return self.best_at_bound - self.expected_accepted

    @property
    def left_at_total_variation(self) -> float:
        """Accepted tokens a round left at the verifier's own exact TV; below 0 only for block rules."""
        return self.best_at_total_variation - self.expected_accepted


def distance_to_frontier(
    target: Chain, draft: Chain, verifier: AnyVerifier, length: int, *, frontier: BoundFrontier | None = None
) -> FrontierDistance:
    """Accepted length a verifier leaves on the table at its own bound and at its own exact TV.

    Parameters
    ----------
    target, draft : Chain
        Of one vocabulary, the target at least L+1 tokens deep; small enough for a linear programme.
    verifier : Verifier or a block verifier
        Block rules are not token-wise: they may lie above both frontiers (see `block_frontier`).
    length : int
        L ≥ 1.
    frontier : BoundFrontier, optional
        `bound_frontier(target, draft, length)` where it is at hand.

    Returns
    -------
    FrontierDistance

    Raises
    ------
    ValueError, RuntimeError
        As `analyse_round`, `bound_frontier` and `exact_frontier`.

    Notes
    -----
    Source: this project; both frontiers are over all token-wise rules, the exact one over residuals too.
    """
    a = analyse_round(target, draft, verifier, length)
    front = bound_frontier(target, draft, length) if frontier is None else frontier
    exact = exact_frontier(target, draft, length, [min(float(a.total_variation), 1.0)])
    return FrontierDistance(
        a.expected_accepted,
        a.tv_bound,
        a.total_variation,
        Exact(front.at(float(a.tv_bound))),
        Exact(exact.lower[0]),
        Bound(exact.upper[0]),
    )
