"""Frontiers as linear programmes: accepted length against exact TV, and over block rules.

**Exact TV** [proved]. Over acceptance functions and residuals together the law of a round is linear in
the accepted-path masses A_i ≤ A_{i−1} q_i and the residual flows D_i = A_{i−1} R_i G_i ≥ 0, Σ_x (A_i + D_i) = A_{i−1}.
With M_i = M_{i−1} p_i + D_i the mass of rounds ended by token i, P̂(x_{1:L}) = A_L + M_L; the token after it is the
target's in every case, so L tokens carry the whole TV. Maximising N = Σ A_i subject to TV(P̂, P) ≤ ε is a linear
programme.

**Block rules** [proved]. The realisable masses are 0 ≤ A_i ≤ Q_i, Σ_x A_i(·x) ≤ A_{i−1}, Q_i the draft
mass; maximising N subject to B = Σ [A_i − A_{i−1} p_i]_+ ≤ ε is one too. ε = 0 is the best lossless block rule.

cvxpy and HiGHS solve them, but a solver's numbers are not read as truth (`theory.certificates`): a rule is rebuilt from
the primal solution in float64 and measured (lower), and the dual solution gives a weak-duality bound (upper).

>>> from theory.chains import IIDChain
>>> front = exact_frontier(IIDChain([0.75, 0.25]), IIDChain([0.25, 0.75]), 2, [0.0, 0.25])
>>> front.expected_accepted.round(6).tolist(), bool((front.upper - front.lower < 1e-9).all())
([0.75, 1.375], True)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from theory.arrays import real_array, to_numpy
from theory.certificates import Flows, block_lower, block_upper, exact_lower, exact_upper
from theory.chains import Chain, joint_layers
from theory.frontier import Floats, check_round
from theory.optimal import TableVerifier
from theory.solvers import load_cvxpy, solve

LARGEST_PROGRAMME = 2**14
"""Most prefixes V^L of a linear programme: minutes of HiGHS, not hours."""

LARGEST_GAP = 1e-6
"""Largest accepted distance between feasible rule and dual bound, in tokens: HiGHS works to 1e-7 a constraint."""

Levels = list[tuple[Floats, Floats]]


@dataclass(frozen=True, eq=False)
class CertifiedFrontier:
    """Largest accepted length at given budgets, each between a rule that exists and a proved bound.

    Attributes
    ----------
    budgets : array, shape (K,)
    spent : array, shape (K,)
        What the rule found spends, recomputed; never above the budget by more than rounding.
    expected_accepted : array, shape (K,)
        N of the rule found, recomputed: attained, hence the lower end.
    upper : array, shape (K,)
        Weak-duality bound on N of every rule within the budget.
    slopes, intercepts : array, shape (K,)
        N ≤ intercept + slope·spent for **every** rule: the supporting lines behind `upper`.
    """

    budgets: Floats
    spent: Floats
    expected_accepted: Floats
    upper: Floats
    slopes: Floats
    intercepts: Floats
    _rules: tuple[Flows, ...] = field(repr=False)

    @property
    def lower(self) -> Floats:
        """N that a rule within the budget attains."""
        return self.expected_accepted

    def upper_at(self, spent: Any) -> Any:
        """Proved bound on N at any spending, the least of all supporting lines; shapes (...) → (...)."""
        lines = self.intercepts + self.slopes * real_array(spent, "spent")[..., None]
        return lines.min(axis=-1)


@dataclass(frozen=True, eq=False)
class ExactFrontier(CertifiedFrontier):
    """Frontier of exact TV; see `exact_frontier`."""

    @property
    def total_variation(self) -> Floats:
        """Exact TV of the rule found, at most the budget; smaller only where more TV buys nothing."""
        return self.spent

    def verifier(self, index: int) -> TableVerifier:
        """The rule found for one budget, with its acceptance function and residual at every prefix."""
        flows = self._rules[index]
        return TableVerifier(tuple(flows.acceptance), tuple(flows.residual))


@dataclass(frozen=True, eq=False)
class BlockFrontier(CertifiedFrontier):
    """Frontier of the bound over block rules; see `block_frontier`."""

    @property
    def tv_bound(self) -> Floats:
        """B of the rule found, at most the budget; smaller only where more B buys nothing."""
        return self.spent

    def masses(self, index: int) -> list[Floats]:
        """A_i of the rule found for one budget, shape (V**i,) for i = 1…L."""
        return list(self._rules[index].accepted)


def _levels(target: Chain, draft: Chain, length: int) -> Levels:
    length, size = check_round(target, draft, length), target.vocab_size
    if size**length > LARGEST_PROGRAMME:
        raise ValueError(
            f"a linear programme over {length} tokens of {size} ids has {size}**{length} prefixes, more than "
            f"{LARGEST_PROGRAMME}; use a shorter round, or bound_frontier, which needs no programme"
        )
    layers = joint_layers(target, draft, length, enumerate_prefixes=True)
    return [(to_numpy(x.target).astype(np.float64), to_numpy(x.draft).astype(np.float64)) for x in layers]


def _budgets(budgets: Any, most: float) -> Floats:
    values = np.atleast_1d(real_array(budgets, "budgets"))
    bad = ~((values >= 0) & (values <= most))
    if values.ndim != 1 or bad.any():
        at = int(np.argmax(bad)) if values.ndim == 1 else 0
        raise ValueError(
            f"budgets must be numbers in [0, {most}], got {float(values.reshape(-1)[at])} at index {at}; "
            "zero is lossless decoding"
        )
    return values


def _children(rows: int, size: int) -> Any:
    """Sparse (rows·V, rows) matrix that repeats a prefix's value for each of its tokens."""
    from scipy import sparse

    return sparse.kron(sparse.identity(rows), np.ones((size, 1)), format="csr")


def _exact_programme(levels: Levels) -> tuple[Any, Any, list[Any], list[Any], Any]:
    """Problem, budget parameter, variables A_i and M_i, and the constraint whose dual tests P̂ − P."""
    cp = load_cvxpy()

    budget = cp.Parameter(nonneg=True)
    drafting, ended = cp.Constant(np.ones(1)), cp.Constant(np.zeros(1))
    accepted: list[Any] = []
    finished: list[Any] = []
    constraints: list[Any] = []
    law = np.ones(1)
    for p, q in levels:
        rows, size = p.shape
        up = _children(rows, size)
        a, m = cp.Variable(p.size, nonneg=True), cp.Variable(p.size)
        constraints += [
            a <= cp.multiply(q.reshape(-1), up @ drafting),
            m >= cp.multiply(p.reshape(-1), up @ ended),
            up.T @ (a + m) == drafting + ended,
        ]
        accepted.append(a)
        finished.append(m)
        drafting, ended, law = a, m, (law[:, None] * p).reshape(-1)
    excess = cp.Variable(law.size, nonneg=True)
    test = excess >= drafting + ended - law
    objective = cp.Maximize(sum(cp.sum(a) for a in accepted))
    return cp.Problem(objective, [*constraints, test, cp.sum(excess) <= budget]), budget, accepted, finished, test


def _block_programme(levels: Levels) -> tuple[Any, Any, list[Any], list[Any], list[Any]]:
    """Problem, budget parameter, variables A_i, and the constraints Σ_x A_i ≤ A_{i−1} and excess ≥ A_i − A_{i−1} p."""
    cp = load_cvxpy()

    budget = cp.Parameter(nonneg=True)
    before = cp.Constant(np.ones(1))
    drafted = np.ones(1)
    accepted: list[Any] = []
    nested: list[Any] = []
    tests: list[Any] = []
    excesses: list[Any] = []
    for p, q in levels:
        up = _children(*p.shape)
        a, excess = cp.Variable(p.size, nonneg=True), cp.Variable(p.size, nonneg=True)
        drafted = (drafted[:, None] * q).reshape(-1)
        nested += [up.T @ a <= before]
        tests += [excess >= a - cp.multiply(p.reshape(-1), up @ before)]
        excesses.append((a <= drafted, cp.sum(excess)))
        accepted.append(a)
        before = a
    constraints = [*nested, *tests, *(x for x, _ in excesses), sum(x for _, x in excesses) <= budget]
    return cp.Problem(cp.Maximize(sum(cp.sum(a) for a in accepted)), constraints), budget, accepted, nested, tests


def _collect(kind: Any, what: str, budgets: Floats, results: list[tuple[Flows, float, float]]) -> Any:
    """Assemble a frontier; refuse a gap between primal and dual that rounding cannot explain."""
    slopes, intercepts = (np.array([r[k] for r in results]) for k in (1, 2))
    flows = tuple(r[0] for r in results)
    spent, lower = (np.array([getattr(x, name) for x in flows]) for name in ("spent", "total"))
    upper = np.maximum(intercepts + slopes * budgets, lower)
    gap = upper - lower
    if gap.size and not gap.max() <= LARGEST_GAP:
        k = int(np.argmax(gap))
        raise RuntimeError(
            f"{what} at budget {float(budgets[k])} (index {k}) is certified to {gap[k]:.3g} tokens only "
            f"({float(lower[k])} to {float(upper[k])}), more than {LARGEST_GAP}; nothing is returned"
        )
    return kind(budgets, spent, lower, upper, slopes, intercepts, flows)


def exact_frontier(target: Chain, draft: Chain, length: int, budgets: Any) -> ExactFrontier:
    """Largest expected accepted length for given exact TV of a round, over rules and residuals.

    Parameters
    ----------
    target, draft : Chain
        Of one vocabulary, at least L tokens deep; Markov and independent chains are tabulated.
    length : int
        L ≥ 1 drafted tokens.
    budgets : sequence of K floats in [0, 1]
        Of TV(P̂, P).

    Returns
    -------
    ExactFrontier
        `.total_variation`, `.expected_accepted`, `.lower`, `.upper`, one entry per budget.

    Raises
    ------
    ValueError
        For a budget outside [0, 1], a chain too shallow, or more prefixes than a programme may have.
    RuntimeError
        If the solver does not converge (its status is named), or its answer cannot be certified to `LARGEST_GAP`.

    Notes
    -----
    Source: this project, the programme at the module's head. Oracle: `analyse_round` of `ExactFrontier.verifier`, for
    the lower end.
    """
    values, levels = _budgets(budgets, 1.0), _levels(target, draft, length)
    problem, budget, accepted, finished, test = _exact_programme(levels)
    results = []
    for value in values:
        budget.value = value
        solve(problem, "HIGHS", f"the exact-TV programme at budget {float(value)}")
        flows = exact_lower(levels, [a.value for a in accepted], [m.value for m in finished], float(value))
        results.append((flows, *exact_upper(levels, np.asarray(test.dual_value))))
    found: ExactFrontier = _collect(ExactFrontier, "the exact-TV programme", values, results)
    return found


def block_frontier(target: Chain, draft: Chain, length: int, budgets: Any) -> BlockFrontier:
    """Largest expected accepted length for given values of the bound, over block rules.

    Parameters
    ----------
    target, draft : Chain
        Of one vocabulary, at least L tokens deep; Markov and independent chains are tabulated.
    length : int
        L ≥ 1 drafted tokens.
    budgets : sequence of K floats ≥ 0
        Of B = Σ [A_i − A_{i−1} p_i]_+; 0 is the best lossless block rule.

    Returns
    -------
    BlockFrontier
        `.tv_bound`, `.expected_accepted`, `.lower`, `.upper`, one entry per budget.

    Raises
    ------
    ValueError, RuntimeError
        As `exact_frontier`.

    Notes
    -----
    Source: this project, the realisable set at the module's head. Token-wise rules are block rules: it lies on or
    above `bound_frontier`.
    """
    values, levels = _budgets(budgets, np.inf), _levels(target, draft, length)
    problem, budget, accepted, nested, tests = _block_programme(levels)
    results = []
    for value in values:
        # A budget of L is never binding (B ≤ L); ∞ is no number for the solver.
        budget.value = min(value, float(len(levels)))
        solve(problem, "HIGHS", f"the block programme at budget {float(value)}")
        flows = block_lower(levels, [a.value for a in accepted], float(budget.value))
        duals = ([np.asarray(c.dual_value).reshape(-1) for c in part] for part in (nested, tests))
        results.append((flows, *block_upper(levels, *duals)))
    found: BlockFrontier = _collect(BlockFrontier, "the block programme", np.minimum(values, len(levels)), results)
    return found
