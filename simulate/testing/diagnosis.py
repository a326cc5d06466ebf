"""Which known fault explains what a failed check has seen?

Every known fault is itself a sampler. It is run on the failing pair, its law is estimated with half a count spread over
the cells like the declared law, and the faults are ranked by the likelihood of the observed counts.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from simulate.testing.calls import BadAnswer
from simulate.testing.law import Counts, Trial
from simulate.testing.protocol import RoundDecoder
from simulate.testing.report import NearestFault, PairResult

ROUNDS = 2**11
"""Rounds of every known fault."""

LEAST_GAIN = 5.0
"""Nats by which a fault must explain the counts better than the declared law does."""

LARGEST_TRIED = 64
"""On larger vocabularies only those faults are tried that were made for one: a round of them is expensive."""

LARGEST_MISFIT = 2.0
"""A fault is named only if it is at most so many times further from the observed shares than noise alone would be."""


def known_faults() -> Iterable[Any]:
    """The broken samplers of `simulate.testing.mutants` that show in the law; none where the registry is missing."""
    try:
        module = importlib.import_module("simulate.testing.mutants")
    except ImportError:
        return ()
    registry = getattr(module, "MUTANTS", ())
    faults = registry.values() if isinstance(registry, dict) else registry
    return [fault for fault in faults if fault.found_by == "law" and fault.faulty]


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
    rounds = min(ROUNDS, max(256, 2**21 // (trial.vocab_size * (trial.length + 1))))
    best: tuple[float, NearestFault] | None = None
    plain = len(result.pairs) == 1 and result.pairs[0].drawn_from is None
    for fault in known_faults():
        if isinstance(fault.sampler, RoundDecoder) and not plain:
            continue
        if max(trial.vocab_size, LARGEST_TRIED) > max(fault.target.vocab_size, LARGEST_TRIED):
            continue
        try:
            # A fault may divide by zero on chains that it was not made for.
            with np.errstate(all="ignore"):
                played = trial.play(fault.sampler, rounds)
            hits = np.bincount(played, minlength=len(result.counts))
        except (BadAnswer, ValueError):
            continue
        prior = 0.5 * result.declared + 0.5 / len(hits)
        law = (hits + prior) / (rounds + 1)
        likelihood = float(result.counts[seen] @ np.log(law[seen]))
        distance = float(np.abs(hits / rounds - result.observed).sum() / 2)
        noise = 0.5 * float(np.sqrt(law * (1 / rounds + 1 / result.rounds)).sum())
        fits = likelihood > baseline + LEAST_GAIN and distance <= LARGEST_MISFIT * noise
        if fits and (best is None or likelihood > best[0]):
            best = likelihood, NearestFault(str(fault.name), str(fault.kind), distance)
    return None if best is None else best[1]
