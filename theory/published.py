"""Published rules with the residuals they were published with, and a table of what each claims.

A residual belongs to a method as much as its acceptance does: swapping G changes the output law. `published_verifier`
pairs a rule with its own, `published_rules` lists every point rule with source, formulas, defaults and claims; the
claims are read off the classes, so the table cannot disagree with them.

>>> step = published_verifier(DivergenceThreshold(0.2)).step([0.5, 0.3, 0.2], [0.2, 0.3, 0.5], 0)  # TV .3: refused
>>> step.output.tolist()
[0.5, 0.3, 0.2]
>>> [row["name"] for row in published_rules() if not row["at_least_lossless"]][:3]
['COOL-SD', 'GSD', 'GSD, fixed partition']
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from theory.residuals import (
    Branch,
    CactusResidual,
    ClusterResidual,
    LanternResidual,
    Residual,
    SurrogateResidual,
    kl_residual,
    optimal_residual,
    target_residual,
    vanilla_residual,
)
from theory.rules import (
    AcceptAll,
    AtLeastLossless,
    BoundCascadeStyle,
    Cactus,
    CascadeStyle,
    DivergenceThreshold,
    Ensemble,
    EntropyRelaxed,
    Grouped,
    Lantern,
    LanternPlusPlus,
    Lossless,
    Mentored,
    NeighbourhoodPooling,
    PartitionGrouped,
    RankGrouped,
    Relaxed,
    Rule,
    SpeculativeCascade,
    TopK,
    Typical,
)
from theory.schedules import excess_schedule, exponential_schedule
from theory.verifiers import Verifier

RESIDUALS: dict[type, Callable[[Any], Residual]] = {
    Lossless: lambda rule: vanilla_residual,
    Relaxed: lambda rule: optimal_residual,
    AcceptAll: lambda rule: vanilla_residual,
    Ensemble: lambda rule: vanilla_residual,
    EntropyRelaxed: lambda rule: vanilla_residual,
    AtLeastLossless: lambda rule: optimal_residual,
    Cactus: lambda rule: CactusResidual(rule.delta),
    Mentored: lambda rule: kl_residual,
    SpeculativeCascade: SurrogateResidual,
    Grouped: lambda rule: vanilla_residual,
    PartitionGrouped: ClusterResidual,
    RankGrouped: ClusterResidual,
    DivergenceThreshold: lambda rule: target_residual,
    TopK: lambda rule: target_residual,
    Typical: lambda rule: target_residual,
    NeighbourhoodPooling: lambda rule: target_residual,
    CascadeStyle: lambda rule: optimal_residual,
    BoundCascadeStyle: lambda rule: optimal_residual,
}
"""Rule class → the residual it was published with, given an instance. LANTERN's depends on the branch of its code."""


def published_verifier(rule: Rule) -> Verifier:
    """The rule with the residual of its own paper.

    Raises
    ------
    TypeError
        For LANTERN and LANTERN++, whose residual depends on the branch of the published code (`lantern_verifier`),
        and for a class that is not in the table.
    """
    if isinstance(rule, (Lantern, LanternPlusPlus)):
        raise TypeError(
            f"{type(rule).__name__} was published with several residuals; use lantern_verifier(..., branch=...)"
        )
    if type(rule) not in RESIDUALS:
        raise TypeError(f"no published residual is known for {type(rule).__name__}; build Verifier(rule, residual)")
    return Verifier(rule, RESIDUALS[type(rule)](rule))


def lantern_verifier(
    neighbours: Any, k: int, delta: float | None = None, lam: float | None = None, branch: Branch = "llamagen_static"
) -> Verifier:
    """LANTERN (delta) or LANTERN++ (lam) with the residual of one branch of its public code.

    Parameters
    ----------
    neighbours : integer array, shape (V, at least min(k+1, V−1))
    k, delta, lam, branch
        See `LanternResidual`. In the dynamic branches the public code takes the drafted probability as one; declare a
        one-hot q for that.
    """
    residual = LanternResidual(neighbours, k, delta, lam, branch)
    rule: Rule
    if residual.delta is not None:
        rule = Lantern(neighbours, k, residual.delta)
    else:
        rule = LanternPlusPlus(neighbours, k, 1.0 if lam is None else lam)
    return Verifier(rule, residual)


@dataclass(frozen=True)
class _Entry:
    name: str
    example: Rule
    formula: str
    residual: str
    defaults: str
    side_information: str = ""
    reconstructed: bool | None = None
    source: str | None = None


_TOY = np.array([[1, 2], [0, 2], [1, 0]])
_ROWS = np.array([[0.0], [1.0], [2.0]])
_NEAR = "neighbour lists (V, k)"


def _entries() -> list[_Entry]:
    minus, optimal = "Norm[p-q]+", "Norm[p-qf]+"
    lantern = "one of three branches, see LanternResidual"
    ours = "this project (excess schedule)"
    return [
        _Entry("lossless", Lossless(), "min(1, p/q)", minus, ""),
        _Entry("uniform", Relaxed(1.5), "min(1, w p/q)", optimal, "w >= 1"),
        _Entry(
            "COOL-SD",
            Relaxed(exponential_schedule(5, 1.1)),
            "min(1, w_i p/q), w_i = d exp(-nu i - mu)",
            optimal,
            "nu=0.7; d=1.1, 2",
            reconstructed=True,
            source="COOL-SD 2601.09212",
        ),
        _Entry(
            "excess schedule",
            Relaxed(excess_schedule(5, 1.0)),
            "min(1, w_i p/q), w_i = 1 + d exp(-nu i)",
            minus,
            "nu=0.2 to 0.7",
            source=ours,
        ),
        _Entry("LANTERN", Lantern(_TOY, 2, 0.1), "min(1, (p+S_m)/q), S_m <= d", lantern, "k=1000, d=0.1; 0.4", _NEAR),
        _Entry(
            "LANTERN++",
            LanternPlusPlus(_TOY, 2, 5.0),
            "min(1, (p+S_m)/q), S_m <= (lam-1) p",
            lantern,
            "(k, lam) = (10, 5), (5, 10), (5, 20)",
            _NEAR,
        ),
        _Entry(
            "GSD",
            Grouped(_ROWS),
            "min(1, p(C)/q(C)), C a window in rank, probability and codebook",
            minus,
            "ranks=7, delta_p=0.15, distance=0.5; G 3 to 50",
            "codebook (V, D)",
        ),
        _Entry(
            "GSD, repaired",
            AtLeastLossless(Grouped(_ROWS)),
            "max(GSD, min(1, p/q))",
            optimal,
            "as GSD",
            "codebook (V, D)",
        ),
        _Entry(
            "GSD, fixed partition",
            PartitionGrouped(np.array([0, 0, 1])),
            "min(1, p(C)/q(C)), C a cluster",
            "Norm[p(C)-q(C)]+ p(x|C)",
            "",
            "labels (V,)",
        ),
        _Entry(
            "GSD, partition by rank",
            RankGrouped(15),
            "min(1, p(C)/q(C)), C a block of ranks",
            "Norm[p(C)-q(C)]+ p(x|C)",
            "size=15",
        ),
        _Entry("CSD", EntropyRelaxed(), "min(1, p/q + lam H 1[TV < d])", minus, "lam=0.5; d=0.65, 0.35, 0.8"),
        _Entry("ensemble", Ensemble(0.5), "min(1, m/q), m = (1-eta) p + eta q", minus, "eta in [0, 1]"),
        _Entry("speculative cascade", SpeculativeCascade(0.2), "min(1, m/q), m = q or p", "Norm[m-q]+", "alpha"),
        _Entry(
            "speculative cascade, token-specific",
            SpeculativeCascade(0.2, "token_3"),
            "min(1, m/q), m = q 1[kept] + q(deferred) p",
            "Norm[m-q]+",
            "alpha; token_1, token_2, token_3",
        ),
        _Entry("mentored", Mentored(0.05), "min(1, w p/q), w from the KL budget", "Norm[p/b-q]+", "KL budget"),
        _Entry("Cactus", Cactus(), "min(1, g/q), g = p + sqrt(2 d p (1-p))", "Norm[h_x-q]+", "d=1, 0.75"),
        _Entry("FSD", DivergenceThreshold(0.3), "1[D(p, q) <= T], D in TV, KL, JS", "p", "T"),
        _Entry("typical", Typical(), "1[p > min(eps, a exp(-H))]", "p", "eps=0.09, a=0.3"),
        _Entry("top-k", TopK(2), "1[x in top-k of p]", "p", "k"),
        _Entry("MuLo-SD pooling", NeighbourhoodPooling(_TOY, 2, 0.5), "1[p(B_k(x)) >= tau]", "p", "tau, k", _NEAR),
        _Entry(
            "CASCADE-style",
            CascadeStyle(),
            "max(min(1, p(C)/q(C)), min(1, p/q)), C siblings of similar state",
            optimal,
            "tau_b=0.7, tau_d=0.7",
            "siblings (..., K), target states (..., K, D)",
        ),
        _Entry("accept-all", AcceptAll(), "1", "none", ""),
    ]


def published_rules() -> list[dict[str, Any]]:
    """Every point rule with its source, formulas, defaults and claims, one plain dict a row.

    Returns
    -------
    list of dict
        Keys: name, rule (class name), source, reconstructed, formula, residual, defaults, side_information, and the
        claims lossless, at_least_lossless, support_safe of the rule at its defaults (or at an example strength where
        the paper names none). Verifiers that are no point rules (block, budgeted, optimal) are not listed.
    """
    return [
        {
            "name": entry.name,
            "rule": type(entry.example).__name__,
            "source": entry.source or entry.example.source,
            "reconstructed": entry.example.reconstructed if entry.reconstructed is None else entry.reconstructed,
            "formula": entry.formula,
            "residual": entry.residual,
            "defaults": entry.defaults,
            "side_information": entry.side_information,
            "lossless": entry.example.lossless,
            "at_least_lossless": entry.example.at_least_lossless,
            "support_safe": entry.example.support_safe,
        }
        for entry in _entries()
    ]
