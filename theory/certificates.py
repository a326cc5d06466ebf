"""From a solver's numbers to proved ones: rules rebuilt in float64, and weak-duality bounds.

*Lower.* Acceptance and residual are read off the primal solution, clipped and normalised, which gives a rule that
exists; its N and its spending are computed afresh. If the solver's slack makes it spend more than the budget, it is
mixed with a rule of spending zero: N is linear and the spending convex in the masses, so the mixture fits.

*Upper, exact TV.* For any test y on the L-token sequences with 0 ≤ y ≤ λ, Σ y (P̂ − P) ≤ λ TV(P̂, P). So for every rule

    N ≤ λ TV + h_0 + W_0,    h_{i−1}(c) = Σ_x p h_i(cx),    W_{i−1}(c) = Σ_x q max(1 + W_i(cx), −min_x h_i(cx)),

with h_L = y and W_L = −y: h is what an ended prefix pays under the target, W the best a running one can earn by
accepting each token or giving its mass to the cheapest residual.

*Upper, block rules.* For any μ_i ≥ 0 and 0 ≤ y_i ≤ λ the Lagrangian of the programme is linear in A_i ∈ [0, Q_i], so
its maximum is the sum of Q times the positive part of its coefficients.

One position, p = (¾, ¼), q = (¼, ¾), the test y = (0, 1): N ≤ TV + ½, which the lossless rule attains at TV = 0.

>>> exact_upper([(np.array([[0.75, 0.25]]), np.array([[0.25, 0.75]]))], np.array([0.0, 1.0]))
(1.0, 0.5)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from theory.frontier import Floats
from theory.residuals import optimal_residual

NEGLIGIBLE = 1e-10
"""A solver's mass below this is its noise: rows of such prefixes are made lossless."""

Levels = list[tuple[Floats, Floats]]


class Flows(NamedTuple):
    """A rule with what it earns and spends; A_i (V**i,), f and G of shape (V**(i−1), V)."""

    accepted: list[Floats]
    acceptance: list[Floats]
    residual: list[Floats]
    total: float
    spent: float


def _ratio(part: Floats, whole: Floats, otherwise: Floats) -> Floats:
    """part/whole where whole is positive."""
    positive = np.broadcast_to(whole > 0, part.shape)
    return np.where(positive, part / np.where(positive, whole, 1.0), otherwise)


def _measure(
    levels: Levels, acceptance: list[Floats], residual: list[Floats]
) -> tuple[list[Floats], list[Floats], float]:
    """A_i, D_i and exact TV of the rule (f, G)."""
    mass, ended, law = np.ones(1), np.zeros(1), np.ones(1)
    accepted, flows = [], []
    for (p, q), f, g in zip(levels, acceptance, residual, strict=True):
        kept = mass[:, None] * q * f
        flow = np.maximum(mass - kept.sum(axis=1), 0.0)[:, None] * g
        ended, law = (ended[:, None] * p + flow).reshape(-1), (law[:, None] * p).reshape(-1)
        mass = kept.reshape(-1)
        accepted.append(kept)
        flows.append(flow)
    return accepted, flows, float(np.abs(mass + ended - law).sum()) / 2


def _lossless(p: Floats, q: Floats) -> tuple[Floats, Floats]:
    f = _ratio(np.minimum(p, q), q, np.ones_like(q))
    return f, optimal_residual(p, q, f)


def exact_lower(levels: Levels, accepted: list[Any], finished: list[Any], budget: float) -> Flows:
    """The rule behind a primal solution (A_i, M_i), brought within the budget of exact TV."""
    acceptance, residual = [], []
    mass, ended = np.ones(1), np.zeros(1)
    lossless = [_lossless(p, q) for p, q in levels]
    for (p, q), a, m, (f0, g0) in zip(levels, accepted, finished, lossless, strict=True):
        kept = np.clip(np.asarray(a, dtype=np.float64).reshape(p.shape), 0.0, mass[:, None] * q)
        done = np.asarray(m, dtype=np.float64).reshape(p.shape)
        flow = np.maximum(done - ended[:, None] * p, 0.0)
        poured = flow.sum(axis=1, keepdims=True)
        seen = (mass > NEGLIGIBLE)[:, None]
        f = np.where(seen, np.minimum(_ratio(kept, mass[:, None] * q, f0), 1.0), f0)
        acceptance.append(f)
        residual.append(np.where(seen & (poured > NEGLIGIBLE), _ratio(flow, poured, g0), optimal_residual(p, q, f)))
        mass, ended = kept.reshape(-1), np.maximum(done, 0.0).reshape(-1)
    own, flows, spent = _measure(levels, acceptance, residual)
    if spent > budget:
        share = budget / spent
        plain, plain_flows, _ = _measure(levels, *map(list, zip(*lossless, strict=True)))
        own, flows = (
            [share * x + (1 - share) * y for x, y in zip(*pair, strict=True)]
            for pair in ((own, plain), (flows, plain_flows))
        )
        before = np.ones((1, 1))
        for i, ((_, q), (f0, g0)) in enumerate(zip(levels, lossless, strict=True)):
            acceptance[i] = np.minimum(_ratio(own[i], before * q, f0), 1.0)
            residual[i] = _ratio(flows[i], flows[i].sum(axis=1, keepdims=True), g0)
            before = own[i].reshape(-1, 1)
        own, _, spent = _measure(levels, acceptance, residual)
    masses = [x.reshape(-1) for x in own]
    return Flows(masses, acceptance, residual, float(sum(x.sum() for x in masses)), spent)


def exact_upper(levels: Levels, test: Floats) -> tuple[float, float]:
    """(λ, h_0 + W_0) from the dual solution y: N ≤ λ TV + h_0 + W_0 for every rule."""
    y = np.asarray(test, dtype=np.float64).reshape(-1)
    y = y - y.min()
    price, earns = y, -y
    for p, q in reversed(levels):
        price, earns = price.reshape(p.shape), earns.reshape(p.shape)
        refused = -price.min(axis=1, keepdims=True)
        price, earns = np.sum(p * price, axis=1), np.sum(q * np.maximum(1 + earns, refused), axis=1)
    return float(y.max()), float(price[0] + earns[0])


def block_lower(levels: Levels, accepted: list[Any], budget: float) -> Flows:
    """The block rule behind a primal solution A_i, brought within the budget of B."""
    own: list[Floats] = []
    exact: list[Floats] = []
    drafted, before, before_exact = np.ones(1), np.ones(1), np.ones(1)
    spent = 0.0
    for (p, q), a in zip(levels, accepted, strict=True):
        drafted = (drafted[:, None] * q).reshape(-1)
        kept = np.clip(np.asarray(a, dtype=np.float64), 0.0, drafted).reshape(p.shape)
        total = kept.sum(axis=1)
        kept = kept * np.minimum(1.0, _ratio(before, total, np.ones_like(total)))[:, None]
        spent += float(np.maximum(kept - before[:, None] * p, 0.0).sum())
        least = np.minimum(kept, before_exact[:, None] * p)
        before, before_exact = kept.reshape(-1), least.reshape(-1)
        own.append(before)
        exact.append(before_exact)
    if spent > budget:
        share = budget / spent
        own = [share * x + (1 - share) * y for x, y in zip(own, exact, strict=True)]
    before, spent = np.ones(1), 0.0
    for (p, _), kept in zip(levels, own, strict=True):
        spent += float(np.maximum(kept.reshape(p.shape) - before[:, None] * p, 0.0).sum())
        before = kept
    return Flows(own, [], [], float(sum(x.sum() for x in own)), spent)


def block_upper(levels: Levels, nested: list[Floats], tests: list[Floats]) -> tuple[float, float]:
    """(λ, constant) from the duals μ_i of Σ_x A_i ≤ A_{i−1} and y_i of the excess: N ≤ λ B + constant."""
    mu = [np.maximum(x, 0.0) for x in nested]
    y = [np.maximum(x, 0.0) for x in tests]
    constant = float(mu[0][0] + np.sum(y[0] * levels[0][0].reshape(-1)))
    drafted = np.ones(1)
    for i, (_, q) in enumerate(levels):
        drafted = (drafted[:, None] * q).reshape(-1)
        worth = 1 - y[i] - np.repeat(mu[i], q.shape[1])
        if i + 1 < len(levels):
            after = levels[i + 1][0]
            worth = worth + mu[i + 1] + np.sum(y[i + 1].reshape(after.shape) * after, axis=1)
        constant += float(np.sum(drafted * np.maximum(worth, 0.0)))
    return max(float(x.max()) for x in y), constant
