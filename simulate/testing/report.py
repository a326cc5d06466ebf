"""What a check of a sampler found, in numbers and in words."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

import theory
from simulate.testing.outcomes import Space, complete, split
from simulate.testing.pairs import Pair
from simulate.testing.protocol import Floats, Integers
from simulate.testing.sequential import expected_distance

WORST_SHOWN = 6
"""Cells printed of a law that failed."""

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+(?=>)")
"""Of functions, in the names of verifiers."""


class Event(NamedTuple):
    """An event with its declared probability and its observed share."""

    what: str
    declared: float
    observed: float
    log_likelihood_ratio: float
    """n·KL(observed ‖ declared) of the event alone, nats: e to its negative bounds the probability of such a share."""


class NearestFault(NamedTuple):
    """The known fault that explains the counts best."""

    name: str
    kind: str
    total_variation: float
    """Between what was observed and what that fault gives, noise of both included."""


@dataclass(frozen=True, eq=False)
class PairResult:
    """What was seen on one pair of chains, or on two mixed in every batch."""

    pairs: tuple[Pair, ...]
    verifier: theory.AnyVerifier
    space: Space
    declared: Floats = field(repr=False)
    """Declared law of the cells, shape (cells,)."""
    counts: Integers = field(repr=False)
    """Rounds that fell into every cell, shape (cells,); after a failure drawn on a little, to show more."""
    drafted_by_kit: bool
    """Whether the sampler only verified; a decoder drafts for itself."""
    verdict_rounds: int
    """Rounds after which the verdict fell."""
    log_evidence: float
    """ln of the evidence against the declared law at the last look."""
    smallest_tv: float
    """Every law at this TV from the declared one or further would have been rejected with the report's `power`."""
    reason: str | None
    """Why the declared law was rejected; None if it stands."""
    error: str | None
    """The breach of protocol, if the sampler gave no answer that could be counted."""

    @property
    def name(self) -> str:
        return " and ".join(pair.name for pair in self.pairs) + (" in one batch" if len(self.pairs) > 1 else "")

    @property
    def rounds(self) -> int:
        return int(self.counts.sum())

    @property
    def observed(self) -> Floats:
        """Observed shares of the cells, shape (cells,)."""
        return np.asarray(self.counts / max(self.rounds, 1))

    @property
    def total_variation(self) -> float:
        """TV between observed shares and declared law of the cells, noise included (see `noise`)."""
        return float(theory.total_variation(self.observed, self.declared))

    @property
    def noise(self) -> float:
        """What `total_variation` is on average for a correct sampler."""
        return expected_distance(self.declared, max(self.rounds, 1))

    @cached_property
    def token_laws(self) -> tuple[Floats, Floats]:
        """Declared and observed law of the L+1 tokens, flat; observed outcomes are continued exactly."""
        flat = []
        for law in (self.declared, self.observed):
            parts = np.split(law, len(self.pairs))
            if self.space.counts:
                parts = [
                    complete(split(part, self.space), pair.target, self.space.depth)
                    for part, pair in zip(parts, self.pairs, strict=True)
                ]
            flat.append(np.concatenate(parts))
        return flat[0], flat[1]

    @property
    def token_total_variation(self) -> float:
        """TV between observed and declared law of the L+1 tokens, noise included."""
        return float(theory.total_variation(*self.token_laws))

    def worst_event(self) -> Event:
        """The event, of all views of the cells, whose share is least likely under the declared law."""
        best = Event("none", 1.0, 1.0, -1.0)
        for statistic in self.space.statistics:
            for part, pair in enumerate(self.pairs):
                rows = slice(part * self.space.cells, (part + 1) * self.space.cells)
                p, o = (
                    np.bincount(statistic.label, law[rows], statistic.cells).astype(np.float64)
                    for law in (self.declared, self.observed)
                )
                ratio = self.rounds * binary_kl(o, p)
                label = int(np.argmax(ratio))
                if ratio[label] > best.log_likelihood_ratio:
                    what = self.space.describe_event(statistic, label)
                    what += f" on {pair.name}" if len(self.pairs) > 1 else ""
                    best = Event(what, float(p[label]), float(o[label]), float(ratio[label]))
        return best

    def worst_cells(self, most: int = WORST_SHOWN) -> list[Event]:
        """The cells whose shares are least likely under the declared law, worst first."""
        ratio = self.rounds * binary_kl(self.observed, self.declared)
        order = np.argsort(-ratio, kind="stable")[:most]
        return [
            Event(self._cell(int(i)), float(self.declared[i]), float(self.observed[i]), float(ratio[i]))
            for i in order
            if ratio[i] > 0
        ]

    def _cell(self, index: int) -> str:
        part, cell = divmod(index, self.space.cells)
        where = f" on {self.pairs[part].name}" if len(self.pairs) > 1 else ""
        return self.space.describe(cell) + where


def binary_kl(share: Floats, probability: Floats) -> Floats:
    """KL between Bernoulli laws, elementwise: ∞ where the impossible happened."""
    # Sums of masses may exceed one by rounding.
    o, p = np.clip(share, 0.0, 1.0), np.clip(probability, 0.0, 1.0)
    return np.asarray(theory.kl_divergence(np.stack([o, 1 - o], axis=-1), np.stack([p, 1 - p], axis=-1)))


@dataclass(frozen=True, eq=False)
class LawReport:
    """The verdict of `check_law`; `str` prints it."""

    reason: str | None
    """Why the sampler failed, or None."""
    results: tuple[PairResult, ...] = field(repr=False)
    false_alarm: float
    """Bound on the probability that a correct sampler fails."""
    power: float
    """Probability with which every law at `smallest_tv` is found."""

    @property
    def passed(self) -> bool:
        return self.reason is None

    @property
    def failure(self) -> PairResult | None:
        """The pair on which the declared law was rejected."""
        return next((result for result in self.results if result.reason is not None), None)

    @property
    def rounds(self) -> int:
        return sum(result.rounds for result in self.results)

    @property
    def smallest_tv(self) -> float:
        """TV from which on a wrong law is found on every pair but those with a `most_rounds` of their own."""
        full = [r.smallest_tv for r in self.results if all(pair.most_rounds is None for pair in r.pairs)]
        return max(full, default=1.0)

    def nearest_fault(self, rng: np.random.Generator | None = None) -> NearestFault | None:
        """The known fault nearest to what was observed; see `simulate.testing.diagnosis`."""
        from simulate.testing.diagnosis import nearest_fault

        return None if self.failure is None else nearest_fault(self.failure, rng)

    def __str__(self) -> str:
        return _passed(self) if self.passed else _failed(self)


def _passed(report: LawReport) -> str:
    width = max(len(result.name) for result in report.results)
    lines = [
        f"passed: {report.rounds} rounds; a correct sampler fails with probability at most {report.false_alarm:g};",
        f"with probability {report.power:g} each row would have found any law at the TV it states, or further away",
    ]
    lines += [f"  {r.name:{width}}  {r.rounds:8d} rounds   {_promise(r)}" for r in report.results]
    return "\n".join(lines)


def _promise(result: PairResult) -> str:
    text = f"TV {result.smallest_tv:.3f}" if result.smallest_tv < 1 else "nothing promised"
    depth, tokens = result.space.depth, result.space.length + 1
    return text if depth == tokens else f"{text} of the law of the first {depth} of {tokens} tokens"


def _failed(report: LawReport) -> str:
    result = report.failure
    if result is None:
        return f"the sampler fails the check of seeds, before its law is looked at: {report.reason}"
    where = f"{result.name}, L = {result.space.length}, V = {result.space.vocab_size}"
    if result.error is not None:
        return f"the sampler gives no valid answer ({where}): {result.error}"
    worst = result.worst_event()
    chance = worst.log_likelihood_ratio / math.log(10)
    lines = [
        f"the sampler does not follow the declared law ({where}): {report.reason} after {result.verdict_rounds} rounds",
        f"declared: {_ADDRESS.sub('', str(result.verifier))}",
        f"chains: {_chains(result)}",
        f"worst event: {worst.what}: declared {worst.declared:.4g}, observed {worst.observed:.4g}"
        + (", impossible" if math.isinf(chance) else f" (under the declared law below 10^-{chance:.0f})"),
        f"  declared  observed in {result.rounds} rounds",
        *(f"  {e.declared:8.4f}  {e.observed:8.4f}  {e.what}" for e in result.worst_cells()),
        f"TV of outcomes {result.total_variation:.3f} (noise {result.noise:.3f}), "
        f"of the law of {result.space.depth} tokens {result.token_total_variation:.3f}",
    ]
    token_noise = expected_distance(result.token_laws[0], max(result.rounds, 1))
    if result.space.counts and result.token_total_variation <= 1.5 * token_noise:
        lines.append('the tokens may follow the declared law although the counts do not: try counts="any"')
    nearest = report.nearest_fault()
    if nearest is None:
        lines.append("nearest known fault: none fits")
    else:
        lines.append(f"nearest known fault: {nearest.kind} ({nearest.name}), TV {nearest.total_variation:.3f} away")
    lines.append(f"a correct sampler fails with probability at most {report.false_alarm:g}")
    return "\n".join(lines)


def _chains(result: PairResult) -> str:
    def first(chain: Any) -> str:
        law = np.asarray(chain.conditional(np.zeros((1, 0), dtype=int)))[0]
        shown = ", ".join(f"{x:.3g}" for x in law[:8])
        return f"[{shown}{', …' if len(law) > 8 else ''}]"

    texts = []
    for pair in result.pairs:
        text = f"p = {first(pair.target)}, q = {first(pair.draft)}"
        alike = all(isinstance(chain, theory.IIDChain) for chain in (pair.target, pair.draft))
        texts.append(text + ("" if alike else " at the first token"))
    return "; ".join(texts)
