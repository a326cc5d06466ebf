"""A test of one declared law that may stop at any time, from counts alone.

The law P has K cells; n_k of n independent rounds fell into cell k. A sampler in narrow floats is not held to P exactly
but to some law θ with |θ(A) − P(A)| ≤ r for every event A, r the *rounding* allowed. Two tests, each exactly valid at
finite n.

**Evidence.** For any law W over laws η and P̄_k = min(1, P_k + r) ≥ θ_k, the number
E_n = ∫ Π_k (η_k / P̄_k)^{n_k} dW(η) is a non-negative supermartingale of starting value one under every such θ, since
Σ θ_k η_k / P̄_k ≤ 1. So P(E_n ≥ 1/α for some n) ≤ α (Ville), however one stops. With W = Dirichlet(c π), π ∝ P̄,
it is a closed form:

    E_n = Γ(c)/Γ(c+n) · Π_k Γ(c π_k + n_k)/Γ(c π_k) · P̄_k^{−n_k}.

A mean of such E_n is one again: over c (a small c looks for large deviations) and over coarser views of the cells,
whose counts are rounds of a coarser law. Cells of mass below `RARE` are also watched as one event with a Beta(½, ½)
prior, so that very few hits of an all but impossible event tell; with r = 0 the first hit of a cell of mass zero makes
E_n infinite.

**Distance.** T_n = ½ Σ |n_k/n − P_k|. One round moves T_n by at most 1/n, so (McDiarmid) under θ
P(T_n ≥ E T_n + √(ln(1/α) / 2n)) ≤ α, and E T_n ≤ E_P T_n + r (couple the rounds of θ with rounds of P); E_P T_n is
exact (de Moivre's mean absolute deviation of a binomial). If a true law η has TV(η, P) ≥ ε, take A = {η > P}: T_n ≥
n(A)/n − P(A), and n(A)/n ≥ η(A) − √(ln(1/β) / 2n) but for probability β (Hoeffding). Hence the power statement: with
probability 1 − β every law at distance

    ε ≥ E_P T_n + r + √(ln(1/α) / 2n) + √(ln(1/β) / 2n)

is rejected. It is a guarantee, not a prediction: most faults need far fewer rounds, since the evidence sees them
earlier.

>>> law = np.array([0.5, 0.3, 0.2])
>>> round(float(np.exp(log_evidence(np.array([0, 0, 0]), law, 0.0).max())), 12)
1.0
>>> float(log_evidence(np.array([1, 0]), np.array([0.0, 1.0]), 0.0).max())
inf
>>> [round(smallest_distance(law, n, 1e-9, 0.01, 0.0), 3) for n in (2000, 200_000)]
[0.118, 0.012]
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import betaln, gammaln

from simulate.testing.protocol import Floats, Integers

CONCENTRATIONS = 4.0 ** np.arange(10)
"""c of the Dirichlet priors: deviations of χ² from about K down to K/10⁵."""

RARE = 1e-6
"""Cells below this mass are watched together."""


def log_evidence(counts: Integers, law: Floats, rounding: float) -> Floats:
    """ln E_n for every prior, shape (11,); the last one watches the rare cells.

    Parameters
    ----------
    counts : integer array, shape (K,)
    law : array, shape (K,)
        Summing to one.
    rounding : float
        r ≥ 0.
    """
    seen = counts > 0
    ceiling = np.minimum(law + rounding, 1.0)
    k, p = counts[seen], ceiling[seen]
    n = int(k.sum())
    if np.any(p <= 0):
        return np.full(len(CONCENTRATIONS) + 1, np.inf)
    c = CONCENTRATIONS
    a = c[:, None] * (p / ceiling.sum())
    terms = gammaln(a + k) - gammaln(a) - k * np.log(p)
    mixtures = terms.sum(axis=1) - (gammaln(c + n) - gammaln(c))
    rare = law < RARE
    mass, hits = float(law[rare].sum()) + rounding, int(counts[rare].sum())
    if mass <= 0:
        return np.append(mixtures, 0.0)
    others = min(1.0, 1 - mass + 2 * rounding)
    watch = (
        betaln(hits + 0.5, n - hits + 0.5) - betaln(0.5, 0.5) - hits * math.log(mass) - (n - hits) * math.log(others)
    )
    return np.append(mixtures, watch)


def log_pair_evidence(counts: Integers, agree: float, rounding: float) -> Floats:
    """ln E_n for every prior of the two cells "equal" and "not equal", shape (m, 10); counts (m, 2).

    Each row of counts is of rounds of its own; a mean over rows is evidence as well.
    """
    ceiling = np.minimum(np.array([agree, 1 - agree]) + rounding, 1.0)
    if ceiling.min() <= 0:
        impossible = counts[:, ceiling <= 0].any(axis=1, keepdims=True)
        return np.where(impossible, np.inf, np.zeros(len(CONCENTRATIONS)))
    a, b = CONCENTRATIONS * (ceiling / ceiling.sum())[:, None]
    mixtures = betaln(a + counts[:, :1], b + counts[:, 1:]) - betaln(a, b)
    return np.asarray(mixtures - (counts @ np.log(ceiling))[:, None])


def mean_evidence(logs: list[Floats]) -> float:
    """ln of the mean of E_n over views and priors."""
    table = np.concatenate([log.ravel() for log in logs])
    top = float(table.max())
    return top if math.isinf(top) else top + math.log(float(np.exp(table - top).mean()))


def expected_distance(law: Floats, rounds: int) -> float:
    """E T_n under the law itself: ½ Σ_k 2 m (1−P_k)/n · b(m; n, P_k), m = ⌊n P_k⌋ + 1 (de Moivre)."""
    n, p = rounds, law[(law > 0) & (law < 1)]
    m = np.floor(n * p) + 1
    m = np.minimum(m, n)
    log_b = gammaln(n + 1) - gammaln(m + 1) - gammaln(n - m + 1) + m * np.log(p) + (n - m) * np.log1p(-p)
    return float(np.sum(m * (1 - p) * np.exp(log_b)) / n)


def distance_threshold(law: Floats, rounds: int, alpha: float, rounding: float) -> float:
    """T_n at or above this rejects at level α."""
    return expected_distance(law, rounds) + rounding + math.sqrt(math.log(1 / alpha) / (2 * rounds))


def smallest_distance(law: Floats, rounds: int, alpha: float, beta: float, rounding: float) -> float:
    """ε such that every law at TV ≥ ε is rejected with probability ≥ 1 − β; at most 1 (nothing is promised then)."""
    return min(1.0, distance_threshold(law, rounds, alpha, rounding) + math.sqrt(math.log(1 / beta) / (2 * rounds)))


FIRST_LOOK = 256
"""Rounds before the first look; each later look doubles them."""


def look_level(alpha: float, look: int) -> float:
    """Share of the level that the distance test spends at look 1, 2, …: α / (j (j+1)), which sums to α."""
    return alpha / (look * (look + 1))


def looks(law: Floats, alpha: float, beta: float, rounding: float, smallest: float, most: int) -> list[int]:
    """Rounds at each look: 256, 512, …, and at last the least even number at which `smallest` is promised, or `most`.

    The numbers depend on the law and never on the data.
    """
    most = max(2, most - most % 2)
    rounds: list[int] = []
    n = min(FIRST_LOOK, most)
    while True:
        level = look_level(alpha, len(rounds) + 1)
        if smallest_distance(law, n, level, beta, rounding) <= smallest:
            low, high = (rounds[-1] if rounds else 0) // 2, n // 2
            while high - low > 1:
                middle = (low + high) // 2
                if smallest_distance(law, 2 * middle, level, beta, rounding) <= smallest:
                    high = middle
                else:
                    low = middle
            return [*rounds, 2 * high]
        rounds.append(n)
        if n >= most:
            return rounds
        n = min(2 * n, most)
