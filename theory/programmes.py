"""Best residuals as convex programmes: what to draw after a rejection, for given p, q and f.

The step's law is o = q f + R G, R = Σ q (1 − f). Which G is best depends on how o is compared with p:

* **TV** [proved]: the least is Σ [q f − p]_+, reached exactly on the polytope {G : R G ≤ [p − q f]_+} (COOL-SD
  Theorem 2 has G*).
  G* = Norm[p − q f]_+ is one member, the only one iff nothing is over-accepted or one token only is under p.
* **every f-divergence** Σ p φ(o/p) at once, KL in both directions, χ², Hellinger and TV among them: R G = [c p − q f]_+
  with c ≤ 1 (`theory.kl_residual`). It lies in the polytope, so the best KL costs no TV.
* **transport** in an embedding: a linear programme over couplings of o and p. If staying costs nothing (cost[x, x] = 0)
  some best residual lies in the polytope [proved]: residual mass that the coupling ships on may as well be drawn where
  it arrives, and where it stands in for accepted mass that leaves z for w, that mass may stay and the residual be drawn
  at w; neither step costs anything, and in the end R G ≤ [p − q f]_+. Only over-accepted mass travels.

A solver's answer is normalised in float64 and its value recomputed; `lower` is a proved bound below every residual's
value (a test set for TV, a Lagrange bound for divergences, dual potentials for transport).

p = (.5, .3, .2), q = (.2, .3, .5), f = 1 but for token 1, rejected half the time: TV .3 whatever G in the polytope.

>>> p, q, f = [0.5, 0.3, 0.2], [0.2, 0.3, 0.5], [1.0, 0.5, 1.0]
>>> least_tv(p, q, f).round(6).item()
0.3
>>> best = best_residual(p, q, f, "kl_output_target")
>>> best.residual.round(4).tolist(), bool(best.value - best.lower < 1e-6)
([0.75, 0.25, 0.0], True)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from theory.arrays import first_index, probabilities, real_array, to_numpy
from theory.distances import kl_divergence, total_variation, transport_cost
from theory.frontier import Floats
from theory.solvers import load_cvxpy, solve

Objective: TypeAlias = Literal["tv", "kl_output_target", "kl_target_output", "chi2", "transport"]

LARGEST_GAP = 1e-6
"""Largest accepted value − lower, relative above one: interior-point values are good to about 1e-8."""


class Position(NamedTuple):
    """One position: p, q f (V,) and R."""

    p: Floats
    accepted: Floats
    rejection: float


def step_masses(p: Any, q: Any, f: Any) -> Position:
    rows = [to_numpy(probabilities(x, name)).astype(np.float64) for x, name in ((p, "p"), (q, "q"))]
    f = real_array(f, "f")
    if not rows[0].shape == rows[1].shape == f.shape or f.ndim != 1:
        raise ValueError(f"p, q and f must be one vector each, got {rows[0].shape}, {rows[1].shape} and {f.shape}")
    bad = ~((f >= 0) & (f <= 1))
    if bad.any():
        raise ValueError(f"f: entry {first_index(bad)} is {float(f[bad][0])}; acceptance lies in [0, 1]")
    return Position(rows[0], rows[1] * f, float(np.sum(rows[1] * (1 - f))))


def least_tv(p: Any, q: Any, f: Any) -> Floats:
    """min over G of TV(q f + R G, p) = Σ [q f − p]_+, shapes (..., V) → (...)."""
    p, q, f = (real_array(x, name) for x, name in ((p, "p"), (q, "q"), (f, "f")))
    return np.asarray(np.clip(q * f - p, 0.0, None).sum(axis=-1))


def chi2_divergence(o: Any, p: Any) -> float:
    """χ²(o‖p) = Σ (o − p)²/p over the tokens p charges, +∞ if o charges another one."""
    o, p = real_array(o, "o"), real_array(p, "p")
    if np.any((p == 0) & (o > 0)):
        return float("inf")
    return float(np.sum((o - p) ** 2 / np.where(p > 0, p, 1.0)))


def polytope_excess(p: Any, q: Any, f: Any, residual: Any) -> float:
    """Largest R G − [p − q f]_+ over tokens: at most 0 (up to rounding) iff G reaches the least TV."""
    at, g = step_masses(p, q, f), real_array(residual, "residual")
    return float(np.max(at.rejection * g - np.clip(at.p - at.accepted, 0.0, None)))


@dataclass(frozen=True, eq=False)
class ResidualProgramme:
    """A residual found by a convex programme; see `best_residual`.

    Attributes
    ----------
    objective : str
    residual : array, shape (V,)
        Normalised in float64.
    value : float
        Objective of this residual, recomputed.
    lower : float
        Proved bound below the objective of every admissible residual.
    """

    objective: Objective
    residual: Floats
    value: float
    lower: float


def _caps(at: Position, tv_optimal: bool) -> Floats:
    """Upper limits of G by token."""
    if not tv_optimal:
        return np.ones_like(at.p)
    caps = np.clip(at.p - at.accepted, 0.0, None) / at.rejection
    # Σ [p − q f]_+ ≥ R; rounding must not make the programme infeasible.
    return np.asarray(caps * max(1.0, 1.0 / caps.sum()))


def _smallest(weights: Floats, caps: Floats) -> float:
    """min of Σ weights·G over 0 ≤ G ≤ caps, Σ G = 1: fill the lightest tokens first."""
    order = np.argsort(weights)
    amounts = np.diff(np.minimum(np.cumsum(caps[order]), 1.0), prepend=0.0)
    return float(np.sum(amounts * weights[order]))


def _separable_lower(objective: Objective, at: Position, caps: Floats) -> float:
    """Lagrange bound Σ_x min_o [φ_x(o) − ν o] + ν over q f ≤ o ≤ q f + R caps, with ν = φ'(c) at a level c.

    The inner minimum is o = c p cut to its interval. The bound holds for every c; the c at which o sums to one is best.
    """
    from scipy.optimize import brentq

    low, high = at.accepted, at.accepted + at.rejection * np.where(at.p > 0, caps, 0.0)

    def law(c: float) -> Floats:
        return np.asarray(np.clip(c * at.p, low, high))

    top = max(1.0, float(np.max(np.where(at.p > 0, high / np.where(at.p > 0, at.p, 1.0), 0.0))))
    ends = [float(law(c).sum()) - 1 for c in (0.0, top)]
    c = brentq(lambda c: float(law(c).sum()) - 1, 0.0, top, xtol=1e-15) if ends[0] < 0 < ends[1] else top
    o = law(c)
    multiplier = {"kl_output_target": np.log(c), "kl_target_output": 1 - 1 / c, "chi2": 2 * (c - 1)}[objective]
    return _evaluate(objective, o, at.p, None) + float(multiplier) * (1 - float(o.sum()))


def _evaluate(objective: Objective, o: Floats, p: Floats, cost: Floats | None) -> float:
    if objective == "transport":
        return transport_cost(o, p, cost)
    measures: dict[str, Callable[[], Any]] = {
        "tv": lambda: total_variation(o, p),
        "kl_output_target": lambda: kl_divergence(o, p),
        "kl_target_output": lambda: kl_divergence(p, o),
        "chi2": lambda: chi2_divergence(o, p),
    }
    return float(measures[objective]())


def _check(objective: Objective, at: Position, cost: Any) -> Floats | None:
    """The transport cost, checked; refuse objectives that are infinite for every residual."""
    if objective not in get_args(Objective):
        raise ValueError(f"objective must be one of {get_args(Objective)}, got {objective!r}")
    if (objective == "transport") != (cost is not None):
        raise ValueError("the transport objective, and no other, takes cost, an array of shape (V, V)")
    alien = (at.p == 0) & (at.accepted > 0)
    if objective in ("kl_output_target", "chi2") and alien.any():
        x = int(np.argmax(alien))
        raise ValueError(
            f"infeasible: token {x} is accepted with mass {at.accepted[x]} where p is 0, so {objective} is infinite "
            "for every residual; use tv, kl_target_output or transport"
        )
    missed = (at.p > 0) & (at.accepted == 0)
    if objective == "kl_target_output" and at.rejection == 0 and missed.any():
        x = int(np.argmax(missed))
        raise ValueError(f"infeasible: nothing is rejected and token {x} is never drafted, so KL(p||o) is infinite")
    if cost is None:
        return None
    table = real_array(cost, "cost")
    if table.shape != (len(at.p),) * 2 or not np.all(np.isfinite(table) & (table >= 0)):
        raise ValueError(f"cost must be finite, non-negative and of shape {(len(at.p),) * 2}, got {table.shape}")
    return table


def _programme(objective: Objective, at: Position, caps: Floats, cost: Floats | None) -> tuple[Any, Any, list[Any]]:
    """cvxpy problem, its variable G, and the marginal constraints whose duals are transport potentials."""
    cp = load_cvxpy()
    g = cp.Variable(len(at.p), nonneg=True)
    o = at.accepted + at.rejection * g
    charged = np.flatnonzero(at.p > 0)
    p, inside = at.p[charged], o[charged]
    constraints, marginals = [cp.sum(g) == 1, g <= caps], []
    if objective == "tv":
        goal = cp.norm1(o - at.p) / 2
    elif objective == "kl_output_target":
        goal = cp.sum(cp.rel_entr(inside, p))
    elif objective == "kl_target_output":
        goal = cp.sum(cp.rel_entr(p, inside))
    elif objective == "chi2":
        goal = cp.sum(cp.multiply(cp.square(inside - p), 1 / p))
    else:
        coupling = cp.Variable((len(at.p),) * 2, nonneg=True)
        marginals = [cp.sum(coupling, axis=1) == o, cp.sum(coupling, axis=0) == at.p]
        goal = cp.sum(cp.multiply(cost, coupling))
    if objective in ("kl_output_target", "chi2") and len(charged) < len(at.p):
        constraints.append(g[np.flatnonzero(at.p == 0)] == 0)
    return cp.Problem(cp.Minimize(goal), constraints + marginals), g, marginals


def _lower(objective: Objective, at: Position, caps: Floats, cost: Floats | None, duals: list[Floats]) -> float:
    """Weak duality: a bound below every admissible residual's value."""
    if objective == "tv":
        return float(least_tv(at.p, at.accepted, 1.0))
    if cost is None:
        return max(0.0, _separable_lower(objective, at, caps))
    bounds = []
    for u in (duals[0], -duals[0]):  # the solver's sign convention does not matter: each is a bound
        v = np.min(cost - u[:, None], axis=0)
        bounds.append(float(at.accepted @ u + at.p @ v) + at.rejection * _smallest(u, caps))
    return max(0.0, *bounds)


def best_residual(
    p: Any, q: Any, f: Any, objective: Objective = "tv", *, cost: Any = None, tv_optimal: bool = False
) -> ResidualProgramme:
    """The residual that brings one step's law closest to the target, by a convex programme.

    Parameters
    ----------
    p, q, f : array, shape (V,)
        Target, draft and acceptance probabilities.
    objective : {"tv", "kl_output_target", "kl_target_output", "chi2", "transport"}
        TV(o, p), KL(o‖p) and KL(p‖o) in nats, χ²(o‖p), or the least cost of moving o onto p.
    cost : array, shape (V, V), for "transport"
        Finite and ≥ 0, for instance distances between token embeddings.
    tv_optimal : bool
        Only residuals of the TV polytope, R G ≤ [p − q f]_+.

    Returns
    -------
    ResidualProgramme

    Raises
    ------
    ValueError
        For bad p, q, f or cost, or an objective that is infinite whatever the residual.
    RuntimeError
        If the solver does not converge (its status is named) or its answer cannot be certified to `LARGEST_GAP`.

    Notes
    -----
    Source: the statements at the module's head. Oracles: `least_tv` and `kl_residual`, which the programme does not
    use.
    """
    at = step_masses(p, q, f)
    costs = _check(objective, at, cost)
    if at.rejection <= 0:
        value = _evaluate(objective, at.accepted / at.accepted.sum(), at.p, costs)
        return ResidualProgramme(objective, at.p.copy(), value, value)
    caps = _caps(at, tv_optimal)
    problem, variable, marginals = _programme(objective, at, caps, costs)
    linear = objective in ("tv", "transport")
    solve(problem, "HIGHS" if linear else "CLARABEL", f"the {objective} residual programme")
    g = np.clip(np.asarray(variable.value, dtype=np.float64), 0.0, None)
    if objective in ("kl_output_target", "chi2"):
        g[at.p == 0] = 0.0
    g /= g.sum()
    value = _evaluate(objective, at.accepted + at.rejection * g, at.p, costs)
    duals = [np.asarray(constraint.dual_value) for constraint in marginals]
    lower = _lower(objective, at, caps, costs, duals)
    if not value - lower <= LARGEST_GAP * max(1.0, value):
        raise RuntimeError(
            f"the {objective} residual programme is certified to {value - lower:.3g} only ({lower} to {value}); "
            "nothing is returned"
        )
    return ResidualProgramme(objective, g, value, min(lower, value))
