"""One broken sampler, with everything needed to show that it is broken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

import theory
from simulate.decoding import sample
from simulate.testing.exact_mode import exact_law
from simulate.testing.mutants.skeleton import TokenWise
from simulate.testing.protocol import Emitted, Floats, RoundDecoder, Rounds
from simulate.testing.uniforms import UniformSampler, draw_uniforms, drawing
from theory.arrays import to_numpy

LOSSLESS = theory.Verifier(theory.Lossless())
P0, Q0 = theory.IIDChain([0.5, 0.3, 0.2]), theory.IIDChain([0.2, 0.3, 0.5])
MARKOV = (
    theory.MarkovChain([0.5, 0.3, 0.2], [[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.3, 0.1, 0.6]]),
    theory.MarkovChain([0.3, 0.3, 0.4], [[0.4, 0.4, 0.2], [0.3, 0.3, 0.4], [0.3, 0.4, 0.3]]),
)
"""A pair whose laws depend on the token before: faults of position show on it."""

KINDS = (
    "declared draft ≠ used draft",
    "draft drawn greedily, ratio uses soft q",
    "temperature not applied to verification or bonus",
    "residual replaced by p",
    "draft probability missing from the ratio",
    "acceptance uniform stuck at 0",
    "empty residual: 0/0",
    "non-finite rows",
    "tiny masses in low precision",
    "lossy rule not declared",
    "inclusive comparison",
    "end of the CDF",
    "zero-mass draws",
    "float32 rows in a float64 check",
    "cumulative sum in low precision",
    "residual noise = draft noise",
    "one uniform shared by all positions",
    "seeds",
    "placeholders",
    "end token inside a block",
    "counting",
    "vocabulary mismatch",
    "empty batch, zero drafts",
    "block verification with the token residual",
    "siblings without replacement, residual with",
    "residual warped twice",
    "neighbours zeroed beyond those pooled",
    "cluster ratio with token residual",
    "guidance with −inf logits",
    "a solver's slack read as truth",
    "a test without power",
    "wrong position",
    "rules that are not faults",
)
"""Kinds of fault, as found in public samplers; every mutant is of one."""


@dataclass(frozen=True, eq=False)
class Mutant:
    """A sampler, what it declares, and how it is found out.

    Parameters
    ----------
    name, kind : str
        `kind` is one of `KINDS`.
    sampler : Sampler, RoundDecoder, or the function that the probe tries
    found_by : str
        "law" for the law test, else the name of a probe (`simulate.testing.probes.PROBES`).
    target, draft : Chain, optional
        The pair on which it shows.
    length : int
        L.
    verifier : verifier, optional
        What it declares.
    exact : function () → law, optional
        The law that it really has.
    forced : Chain, optional
        The law of the drafts it is tested with, where the draft itself hardly ever gives the token in question.
    counts : {"declared", "any"}
        Whether its accepted lengths are declared to be the verifier's own.
    faulty : bool
        False for a sampler that must pass.

    Raises
    ------
    ValueError
        For an unknown kind, or a law test without a pair of chains.
    """

    name: str
    kind: str
    sampler: Any
    found_by: str = "law"
    target: theory.Chain | None = None
    draft: theory.Chain | None = None
    length: int = 1
    verifier: Any = LOSSLESS
    exact: Callable[[], Floats] | None = None
    forced: theory.Chain | None = None
    counts: str = "declared"
    faulty: bool = True

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"mutant {self.name!r}: kind {self.kind!r} is not one of KINDS")
        if self.found_by == "law" and (self.target is None or self.draft is None):
            raise ValueError(f"mutant {self.name!r} is found by its law; give target and draft")

    @cached_property
    def declared_law(self) -> Floats | None:
        """Law of L+1 tokens that it claims, None where it claims none."""
        if self.target is None or self.draft is None:
            return None
        if self.forced is not None:
            return exact_law(TokenWise(), self.target, self.draft, self.length, drawn=self.forced).law
        return to_numpy(theory.analyse_round(self.target, self.draft, self.verifier, self.length).law)

    @cached_property
    def law(self) -> Floats | None:
        """Law of L+1 tokens that it has, None where it is no matter of law."""
        return None if self.exact is None else np.asarray(self.exact())

    @property
    def total_variation(self) -> float | None:
        """Exact TV between the two, None where it is no matter of law."""
        if self.law is None or self.declared_law is None:
            return None
        return float(theory.total_variation(self.law.ravel(), self.declared_law.ravel()))


def drafting(core: UniformSampler, drawn: Callable[[theory.Chain], theory.Chain]) -> RoundDecoder:
    """A decoder that drafts from one law and declares another."""

    def run(target: theory.Chain, draft: theory.Chain, length: int, count: int, rng: np.random.Generator) -> Emitted:
        rounds = Rounds.along(target, draft, sample(drawn(draft), length, count, rng))
        return core(rounds, draw_uniforms(rounds, rng))

    return RoundDecoder(run)


def by_uniforms(
    name: str,
    kind: str,
    core: UniformSampler,
    target: theory.Chain,
    draft: theory.Chain,
    length: int = 1,
    *,
    drawn: Callable[[theory.Chain], theory.Chain] | None = None,
    forced: theory.Chain | None = None,
    **rest: Any,
) -> Mutant:
    """A mutant that takes its uniforms as an argument, so that its exact law is an integral over them."""
    sampler = drawing(core) if drawn is None else drafting(core, drawn)

    def exact() -> Floats:
        return exact_law(core, target, draft, length, drawn=forced if drawn is None else drawn(draft)).law

    return Mutant(name, kind, sampler, target=target, draft=draft, length=length, exact=exact, forced=forced, **rest)
