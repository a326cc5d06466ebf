"""What the synthetic figures share: pairs of chains, schedules of one strength, and equal accepted length.

A figure compares schedules at equal *size* t, the share of the way from lossless acceptance to accepting everything:
N = N_lossless + t·(L − N_lossless) in one round, and likewise for tokens per call in whole sequences. Every schedule
is a family in one strength; `theory.match` finds the strength at which it reaches the size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import simulate
import theory
from theory.families import Family
from theory.known_steps import KnownRun

FIRST_STRENGTH = 1.0
LARGEST_STRENGTH = 64.0
"""Logarithm of the largest ω tried: at e^64 every token of probability above 1e-27 is accepted."""
DISTANCES = (0.2, 0.3, 0.45)
"""Mean TV between target and draft, one after the other over the chains of a family."""
ATTEMPTS = 100
EVEN = 0.005
"""Mean ratios this near to one are called even."""


@dataclass(frozen=True)
class Pair:
    """A target and its draft.

    Attributes
    ----------
    family : str
    index : int
        Which of the family.
    distance : float
        Mean TV between target and draft.
    """

    family: str
    index: int
    distance: float
    target: Any
    draft: Any


def _grid(size: int, depth: int, rng: np.random.Generator) -> simulate.GridChain:
    return simulate.potts_grid(2, (depth + 1) // 2, size, rng, coupling=1.0)


FAMILIES: dict[str, Callable[[int, int, np.random.Generator], Any]] = {
    "independent": lambda size, depth, rng: simulate.dirichlet_iid(size, rng),
    "Markov": lambda size, depth, rng: simulate.random_markov(size, rng),
    "Dirichlet tree": lambda size, depth, rng: simulate.dirichlet_tree(size, depth, rng),
    "embedding": lambda size, depth, rng: simulate.embedding_chain(size, 3, rng, clusters=2).chain,
    "Potts grid": _grid,
}
"""Chain families: vocabulary, depth, generator → target."""


def pair(
    family: str, index: int, rng: np.random.Generator, vocabulary: int, depth: int, distance: float | None = None
) -> Pair:
    """A random pair of a family; the distance between its chains goes round `DISTANCES` unless given.

    A draft is its target tilted by noise; where that noise cannot reach the distance (a peaked law whose largest token
    it favours) another pair is drawn, `ATTEMPTS` times at most.
    """
    distance = DISTANCES[index % len(DISTANCES)] if distance is None else distance
    for attempt in range(ATTEMPTS):
        target = FAMILIES[family](vocabulary, depth, rng)
        try:
            draft = simulate.make_draft(target, distance, rng, depth)
        except ValueError:
            if attempt == ATTEMPTS - 1:
                raise
        else:
            break
    return Pair(family, index, distance, target, draft)


def bang_bang(length: int, free: int) -> theory.Verifier:
    """Accept outright at the first `free` positions, lossless at the rest."""
    return theory.Verifier(theory.Relaxed(theory.bang_bang_schedule(length, free)))


class Scale:
    """A measure of verifiers, from lossless (size 0) to accepting everything (size 1).

    Parameters
    ----------
    measure : function verifier → float
        Such as expected accepted length.
    """

    def __init__(self, measure: Callable[[theory.Verifier], float]) -> None:
        self.measure = measure
        self.lossless, self.everything = (
            float(measure(theory.Verifier(rule))) for rule in (theory.Lossless(), theory.AcceptAll())
        )

    def at(self, family: Family, size: float) -> theory.Verifier:
        """The verifier of a family that has gone the share `size` of the way.

        Raises
        ------
        ValueError
            If the family cannot get there.
        """
        goal = self.lossless + size * (self.everything - self.lossless)
        known: dict[float, float] = {}

        def reached(strength: float) -> float:
            if strength not in known:
                known[strength] = self.measure(family(strength))
            return known[strength]

        high = FIRST_STRENGTH
        while high < LARGEST_STRENGTH and reached(high) < goal:
            high = min(2 * high, LARGEST_STRENGTH)
        low = high / 2 if high > FIRST_STRENGTH and reached(high / 2) < goal else 0.0
        return family(theory.match(lambda strength: strength, reached, goal, low, high))


def accepted_length(pair: Pair, length: int) -> Callable[[theory.Verifier], float]:
    """Verifier → expected accepted length of one round."""
    return lambda verifier: theory.analyse_round(pair.target, pair.draft, verifier, length).expected_accepted


def tokens_per_call(pair: Pair, length: int, tokens: int) -> Callable[[theory.Verifier], float]:
    """Verifier → tokens per target call over a whole sequence."""
    return KnownRun(pair.target, pair.draft, length, tokens, enumerate_prefixes=False).cost


def round_numbers(pair: Pair, verifier: theory.Verifier, length: int) -> dict[str, float]:
    """Accepted length, bound and exact distances of one round, named as in the tables."""
    a = theory.analyse_round(pair.target, pair.draft, verifier, length)
    return {
        "accepted": a.expected_accepted,
        "bound": a.tv_bound,
        "tv": a.total_variation,
        "kl_output_target": a.kl_output_target,
        "kl_target_output": a.kl_target_output,
    }


def sequence_numbers(pair: Pair, verifier: theory.Verifier, length: int, tokens: int) -> dict[str, float]:
    """Tokens per call and exact distances of a whole sequence; all but its TV are means over its tokens."""
    s = theory.analyse_sequence(pair.target, pair.draft, verifier, length, tokens)
    predictive = s.predictive()
    return {
        "tokens_per_call": s.tokens_per_call,
        "step_bias": float(np.mean(s.step_bias)),
        "predictive_tv": float(np.mean(predictive.total_variation)),
        "kl_output_target": float(np.mean(predictive.kl_output_target)),
        "kl_target_output": float(np.mean(predictive.kl_target_output)),
        "tv": s.total_variation,
    }


def geometric_mean(values: Sequence[float]) -> float:
    """Of values ≥ 0: zero if one value is zero, else ∞ if one is."""
    return 0.0 if min(values) == 0 else math.exp(math.fsum(map(math.log, values)) / len(values))


def geometric_mean_and_range(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Geometric mean, least and greatest."""
    return geometric_mean(ratios), min(ratios), max(ratios)
