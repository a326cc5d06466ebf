"""Which known fault explains what a failed check has seen?

Every known fault is itself a sampler. It is run on the failing pair, its law is estimated (with one round spread over
the cells), and the faults are ranked by the likelihood of the observed counts. Faults of drafting are considered only
for a decoder that drafts for itself.
"""

from __future__ import annotations

import numpy as np

import theory
from simulate.testing.calls import BadAnswer
from simulate.testing.mutants.mutant import Mutant
from simulate.testing.mutants.registry import MUTANTS
from simulate.testing.protocol import RoundDecoder
from simulate.testing.report import NearestFault, PairResult
from simulate.testing.trial import Counts, Trial

ROUNDS = 2**11
"""Rounds of every known fault."""

FINALISTS, FINAL_ROUNDS = 5, 2**15
"""So many faults, the likeliest, are run again with more rounds."""

LEAST_GAIN = 5.0
"""Nats by which a fault must explain the counts better than the declared law does."""

LARGEST_TRIED = 64
"""On larger vocabularies only those faults are tried that were made for one: a round of them is expensive."""

LARGEST_MISFIT = 2.0
"""A fault is named only if it is at most so many times further from the observed shares than noise alone would be."""


def known_faults() -> list[Mutant]:
    """The broken samplers of `simulate.testing.mutants` that show in the law."""
    return [fault for fault in MUTANTS if fault.found_by == "law" and fault.faulty]


def nearest_fault(result: PairResult, rng: np.random.Generator | None = None) -> NearestFault | None:
    """The known fault nearest to the counts of a failed pair, or None if none explains them.

    Parameters
    ----------
    result : PairResult
        With counts; a breach of protocol has no nearest fault.
    rng : numpy.random.Generator, optional
        Runs the known faults; a fixed seed by default.
    """
    if result.error is not None or result.rounds == 0:
        return None
    kit, own = (rng or np.random.default_rng(1)).spawn(2)
    counts: Counts = "declared" if result.space.counts else "any"
    trial = Trial(result.pairs, result.verifier, counts, 0.0, kit, own, 10.0)
    seen = result.counts > 0
    with np.errstate(divide="ignore"):
        baseline = float(result.counts[seen] @ np.log(result.declared[seen]))
    most = max(256, 2**21 // (trial.vocab_size * (trial.length + 1)))

    def explained(fault: Mutant, rounds: int) -> tuple[float, NearestFault] | None:
        """Log-likelihood of the counts under a fault, or None if it does not fit."""
        try:
            # A fault may divide by zero on chains that it was not made for.
            with np.errstate(all="ignore"):
                played = trial.play(fault.sampler, rounds)
        except (BadAnswer, ValueError):
            return None
        hits = np.bincount(played, minlength=len(result.counts))
        law = (hits + 0.5 * result.declared + 0.5 / len(hits)) / (rounds + 1)
        distance = float(theory.total_variation(hits / rounds, result.observed))
        noise = 0.5 * float(np.sqrt(law * (1 / rounds + 1 / result.rounds)).sum())
        likelihood = float(result.counts[seen] @ np.log(law[seen]))
        fits = likelihood > baseline + LEAST_GAIN and distance <= LARGEST_MISFIT * noise
        return (likelihood, NearestFault(fault.name, fault.kind, distance)) if fits else None

    first: list[tuple[float, Mutant]] = []
    for fault in known_faults():
        if result.drafted_by_kit and isinstance(fault.sampler, RoundDecoder):
            continue
        if fault.target is None or trial.vocab_size > max(fault.target.vocab_size, LARGEST_TRIED):
            continue
        found = explained(fault, min(ROUNDS, most))
        if found is not None:
            first.append((found[0], fault))
    first.sort(key=lambda entry: -entry[0])
    again = [explained(fault, min(FINAL_ROUNDS, most)) for _, fault in first[:FINALISTS]]
    return max((found for found in again if found is not None), key=lambda found: found[0], default=(0.0, None))[1]
