"""What the freedom that TV leaves to the residual is worth at one position.

All residuals with R G ≤ [p − q f]_+ have the least TV, Σ [q f − p]_+. G* = Norm[p − q f]_+ is the usual one; here it
stands beside the member of least KL (`kl_residual`, in closed form) and the member of least transport cost in an
embedding (`best_residual`, a linear programme). Both are best among all residuals too (transport: where
staying costs nothing), so that neither costs TV.

Token 2 is over-accepted and lies next to token 1: giving all of R to token 0 leaves only a short way to move.

>>> import numpy as np
>>> cost = np.abs(np.subtract.outer([0.0, 2.0, 2.1], [0.0, 2.0, 2.1]))
>>> choice = residual_choice([0.4, 0.4, 0.2], [0.3, 0.3, 0.4], [2 / 3, 2 / 3, 1.0], cost)
>>> round(choice.total_variation, 9), round(choice.transport_star, 9), round(choice.transport_best, 9)
(0.2, 0.22, 0.02)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from theory.distances import kl_divergence, transport_cost
from theory.programmes import best_residual, least_tv, step_masses
from theory.residuals import kl_residual, optimal_residual


@dataclass(frozen=True)
class ResidualChoice:
    """What the freedom TV leaves is worth at one position; see `residual_choice`.

    Attributes
    ----------
    total_variation : float
        Least TV, the same for every member of the polytope.
    kl_star, kl_best : float
        KL(o‖p) of G* and of `kl_residual`, the best of all residuals; both may be +∞.
    reverse_kl_star, reverse_kl_best : float
        KL(p‖o) likewise.
    transport_star, transport_best : float
        Transport cost of G* and of the best member of the polytope; NaN without a cost.
    """

    total_variation: float
    kl_star: float
    kl_best: float
    reverse_kl_star: float
    reverse_kl_best: float
    transport_star: float = float("nan")
    transport_best: float = float("nan")


def residual_choice(p: Any, q: Any, f: Any, cost: Any = None) -> ResidualChoice:
    """G* beside the KL-best and transport-best residuals of the same TV.

    Arguments and errors as `best_residual`; KL values by the closed form, transport costs by linear programmes.
    """
    at = step_masses(p, q, f)
    star, filled = optimal_residual(p, q, f), kl_residual(p, q, f)
    laws = [at.accepted + at.rejection * g for g in (star, filled)]
    kl = [float(kl_divergence(o, at.p)) for o in laws] + [float(kl_divergence(at.p, o)) for o in laws]
    moved: tuple[float, ...] = ()
    if cost is not None:
        best = best_residual(p, q, f, "transport", cost=cost, tv_optimal=True)
        moved = (transport_cost(laws[0], at.p, cost), best.value)
    return ResidualChoice(float(least_tv(p, q, f)), *kl, *moved)
