"""Every published rule as a one-parameter family, from cautious to bold, so that rules can be met at equal acceptance.

Each rule comes with the residual it was published with and, where the rule is worth it, with the optimal and the KL
residual: what a method loses by its residual alone is the difference between its rows.

>>> families = rule_families([[0.0], [1.0], [2.0], [3.0]])
>>> sorted({family.rule for family in families})[:6]
['CASCADE-style', 'CSD', 'Cactus', 'FSD', 'FSD (JS)', 'GSD']
>>> step = families[0].build(1.0).step([0.5, 0.3, 0.1, 0.1], [0.1, 0.3, 0.5, 0.1], 0)  # omega = 2
>>> round(float(step.rejection), 12)
0.3
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, inf
from typing import Any

import numpy as np

from theory.published import lantern_verifier, published_verifier
from theory.residuals import Branch, Residual, kl_residual, optimal_residual
from theory.rules import (
    AtLeastLossless,
    Cactus,
    CascadeStyle,
    DivergenceThreshold,
    Ensemble,
    EntropyRelaxed,
    Grouped,
    Lantern,
    LanternPlusPlus,
    Mentored,
    NeighbourhoodPooling,
    PartitionGrouped,
    Relaxed,
    Rule,
    SpeculativeCascade,
    TopK,
    Typical,
    nearest_neighbours,
)
from theory.rules.neighbours import codebook_rows
from theory.schedules import exponential_schedule
from theory.verifiers import AnyVerifier, Verifier

IMPROVED: dict[str, Residual] = {"optimal": optimal_residual, "kl": kl_residual}


@dataclass(frozen=True)
class Family:
    """Verifiers of one kind, from cautious (`low`) to bold (`high`).

    Attributes
    ----------
    rule, residual : str
        Names in a table; residual is "published", a branch of LANTERN's code, "optimal" or "kl".
    build : function strength → verifier
    low, high : float
        Range of the strength. Acceptance need not be monotone in between.
    """

    rule: str
    residual: str
    build: Callable[[float], AnyVerifier]
    low: float
    high: float


def _improved(name: str, residual: str, rule: Callable[[float], Rule], low: float, high: float) -> Family:
    return Family(name, residual, lambda strength: Verifier(rule(strength), IMPROVED[residual]), low, high)


def with_residuals(
    name: str, rule: Callable[[float], Rule], low: float, high: float, published: bool = True
) -> list[Family]:
    """A rule with its published residual (if asked for), the optimal one and the KL one."""
    own = [Family(name, "published", lambda strength: published_verifier(rule(strength)), low, high)]
    return own * published + [_improved(name, residual, rule, low, high) for residual in IMPROVED]


def _lantern(near: np.ndarray[Any, Any], k: int, branch: Branch, plus: bool) -> Family:
    if plus:
        return Family("LANTERN++", branch, lambda s: lantern_verifier(near, k, lam=1 + s, branch=branch), 0.0, 1e4)
    return Family("LANTERN", branch, lambda s: lantern_verifier(near, k, delta=s, branch=branch), 0.0, 1.0)


def _clusters(points: np.ndarray[Any, Any], distance: float) -> np.ndarray[Any, Any]:
    from scipy.cluster.hierarchy import fcluster, linkage

    return np.asarray(fcluster(linkage(points, "complete"), distance, "distance"), dtype=np.int64)


def rule_families(embedding: Any, length: int = 1) -> list[Family]:
    """Every rule of `published_rules` that has a strength.

    Parameters
    ----------
    embedding : array, shape (V, D), V ≥ 3
        Codebook rows: neighbours, groups and (for the CASCADE-style rule) the states of all V tokens as siblings.
    length : int
        L; COOL-SD joins from L = 2 on, at one position it is the uniform rule.

    Notes
    -----
    So that any acceptance is reached, GSD's window is that of the codebook alone (all ranks, any probability), typical
    acceptance has ε = 1 and CSD no TV condition. LANTERN pools at most V/4 neighbours, LANTERN++ min(5, V/2), MuLo-SD
    V/4; the partition is complete-linkage clustering of the codebook.
    """
    points = codebook_rows(embedding)
    if len(points) < 3:
        raise ValueError(f"embedding must have shape (V, D) with V >= 3, got {points.shape}")
    size = len(points)
    far = 1e-9 + 1.01 * float(np.sqrt(np.sum((points.max(axis=0) - points.min(axis=0)) ** 2)))
    near = nearest_neighbours(points, size - 1)
    k, few = max(1, size // 4), max(1, min(5, size // 2))
    tokens = np.arange(size)
    branches: tuple[Branch, ...] = ("llamagen_static", "lumina_static", "dynamic")

    families = with_residuals("uniform", lambda s: Relaxed(1 + s), 0.0, 1e3, published=False)
    if length > 1:
        families += with_residuals(
            "COOL-SD", lambda s: Relaxed(exponential_schedule(length, s)), 0.0, 1e4, published=False
        )
        families += with_residuals(
            "COOL-SD, floored", lambda s: Relaxed(exponential_schedule(length, s, floor=1.0)), 0.0, 1e4, published=False
        )
    families += [_lantern(near, k, branch, False) for branch in branches]
    families += with_residuals("LANTERN", lambda s: Lantern(near, k, s), 0.0, 1.0, published=False)
    families += [_lantern(near, few, branch, True) for branch in branches]
    families += with_residuals("LANTERN++", lambda s: LanternPlusPlus(near, few, 1 + s), 0.0, 1e4, published=False)
    families += with_residuals("GSD", lambda s: Grouped(points, size, inf, s), 0.0, far)
    families += with_residuals(
        "GSD, repaired", lambda s: AtLeastLossless(Grouped(points, size, inf, s)), 0.0, far, published=False
    )
    families += with_residuals("GSD, fixed partition", lambda s: PartitionGrouped(_clusters(points, s)), 0.0, far)
    families += with_residuals("CSD", lambda s: EntropyRelaxed(s, 2.0), 0.0, 1e3)
    families += with_residuals("ensemble", Ensemble, 0.0, 1.0)
    families += with_residuals("speculative cascade", SpeculativeCascade, -1.01, 1.01)
    families += with_residuals(
        "speculative cascade, token-specific", lambda s: SpeculativeCascade(s, "token_3"), -0.01, 1.0
    )
    families += with_residuals("mentored", Mentored, 0.0, 20.0, published=False)
    families += with_residuals("Cactus", Cactus, 0.0, 1e4)
    families += with_residuals("FSD", DivergenceThreshold, 0.0, 1.0)
    families += with_residuals("FSD (JS)", lambda s: DivergenceThreshold(s, "js"), 0.0, 1.0)
    families += with_residuals("typical", lambda s: Typical(1.0, exp(-s)), -10.0, 50.0)
    families += with_residuals("top-k", lambda s: TopK(int(s)), 1.0, float(size))
    families += with_residuals("MuLo-SD pooling", lambda s: NeighbourhoodPooling(near, k, 1 - s), 0.0, 1.0)
    families += with_residuals(
        "CASCADE-style", lambda s: CascadeStyle(-s).at(tokens, points), -2.0, 1.0, published=False
    )
    return families
