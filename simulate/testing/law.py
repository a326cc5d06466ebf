"""Does a sampler follow the law of the verifier it is declared to implement?

On every pair of chains the outcomes (a, x_1…x_{a+1}) of many rounds are compared with their exact declared law
(`simulate.testing.outcomes`): the joint law of all tokens and the accepted count, not marginals.

*Which law.* With ``counts="declared"`` the cells are outcomes. With ``counts="any"`` only the law of the L+1 tokens is
declared (a lossless rule may accept otherwise): every outcome is continued with the target by the kit's own generator,
after which its L+1 tokens are one draw from a law that is known exactly, so that the tests stay exact. Averaging over
the continuations instead would give counts that are no integers, for which the evidence has no closed form; the draw
costs no power at the tokens that a round emits itself.

*Which level.* The false-alarm level α is split evenly over the pairs (a union bound), on each pair in halves between
the evidence, valid at every stopping time, and the distance test, whose half is split over its looks as α/(j(j+1)). So
a correct sampler fails with probability at most α, whatever the number of looks (the seed check adds less than 10⁻²⁴).
Correct means: rounds are independent, and no event's probability is off by more than `rounding`.

*How many rounds.* All pairs advance together, 256 rounds at first and doubling, so that a fault stops the check on the
pair that shows it soonest. A pair is done when every law at TV ≥ `smallest_tv` would have been rejected with
probability `power`, or at `max_rounds`; the report states the TV reached. Rounds of a batch must be independent too:
consecutive rounds are compared for how often they agree.

>>> import theory
>>> from simulate.testing.reference import reference_sampler
>>> lossless, relaxed = theory.Verifier(theory.Lossless()), theory.Verifier(theory.Relaxed(2.0))
>>> check_law(reference_sampler(lossless), verifier=lossless, smallest_tv=0.2).passed
True
>>> check_law(reference_sampler(relaxed), verifier=lossless, smallest_tv=0.2).passed
False
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Literal, TypeAlias

import numpy as np

import theory
from simulate.draws import categorical
from simulate.testing.calls import BadAnswer, NoAnswer, answer, name_the_round
from simulate.testing.outcomes import Space, forced_drafts_fixed, outcome_law
from simulate.testing.pairs import Pair, adversarial_pairs
from simulate.testing.protocol import Floats, Integers, RoundDecoder, Rounds, Sampler
from simulate.testing.report import LawReport, PairResult
from simulate.testing.seeds import seed_fault
from simulate.testing.sequential import (
    distance_threshold,
    log_evidence,
    look_level,
    looks,
    mean_evidence,
    smallest_distance,
)
from theory.arrays import real_number, to_numpy, whole_number

Counts: TypeAlias = Literal["declared", "any"]

ENTRIES_AT_ONCE = 2**21
"""Probabilities handed to the sampler in one call: 16 MB."""

ROWS_AT_ONCE = 2**15

SHOWN_ROUNDS = 2**12
"""Rounds behind the law that a failure prints, where the verdict itself needed fewer."""


def check_law(
    sampler: Sampler | RoundDecoder,
    target: theory.Chain | None = None,
    draft: theory.Chain | None = None,
    verifier: theory.AnyVerifier | Callable[[int], theory.AnyVerifier] | None = None,
    length: int | None = None,
    *,
    pairs: Sequence[Pair] | None = None,
    counts: Counts = "declared",
    false_alarm: float = 1e-9,
    smallest_tv: float = 0.02,
    power: float = 0.99,
    max_rounds: int = 2**18,
    rounding: float = 1e-6,
    rng: np.random.Generator | None = None,
    seeds: bool = True,
    timeout: float | None = 60.0,
) -> LawReport:
    """Compare a sampler with the law of the verifier it claims to implement.

    Parameters
    ----------
    sampler : Sampler or RoundDecoder
        A function (rounds, rng) → (tokens, accepted), see `simulate.testing.protocol`.
    target, draft : theory.Chain, optional
        The pair to test on, with `length`. By default the built-in pairs (`adversarial_pairs`).
    verifier : verifier, or function of L giving one
        What is declared; lossless by default. A function serves verifiers made for one length.
    length : int, optional
        L. With the built-in pairs: the length of all of them.
    pairs : sequence of Pair, optional
        Instead of target, draft and length.
    counts : {"declared", "any"}
        Whether the verifier fixes the accepted counts too, or only the law of the L+1 tokens.
    false_alarm : float
        α, the largest probability that a correct sampler fails.
    smallest_tv : float
        Stop when every law so far from the declared one would have been found.
    power : float
        1 − β, the probability of finding it.
    max_rounds : int
        Most rounds on one pair.
    rounding : float
        r, by which the probability of an event may be off: float32 softmaxes and ratios miss a round's law by some 1e-7
        a token. An impossible event then fails the sampler at its fourth occurrence or so; with 0 at the first.
    rng : numpy.random.Generator, optional
        Drafts and the sampler's own generators; a fixed seed by default, so that a test repeats itself.
    seeds : bool
        Whether `check_seeds` is part of the check. Turn it off for a system that cannot be seeded.
    timeout : float or None
        Seconds for one call (at most 32,768 rounds); None for no limit. See `simulate.testing.calls.within`.

    Returns
    -------
    LawReport

    Raises
    ------
    ValueError
        For arguments that make no test. What the sampler does wrong is reported, never raised.
    """
    if counts not in ("declared", "any"):
        raise ValueError(f'counts must be "declared" or "any", got {counts!r}')
    alpha = _share(false_alarm, "false_alarm")
    beta = 1 - _share(power, "power")
    smallest = _share(smallest_tv, "smallest_tv")
    most, rounding = whole_number(max_rounds, "max_rounds", 2), real_number(rounding, "rounding", least=0.0, most=0.1)
    verifier = theory.Verifier(theory.Lossless()) if verifier is None else verifier
    kit, own = (rng or np.random.default_rng(0)).spawn(2)
    chosen = _chosen(target, draft, length, pairs, verifier)
    trials = [
        Trial(group, verifier, counts, rounding, kit, own, timeout)
        for group in _groups(chosen, sampler, counts, verifier)
    ]
    level = alpha / (2 * len(trials))
    for trial in trials:
        limit = min([most, *(pair.most_rounds or most for pair in trial.pairs)])
        trial.looks = looks(trial.law, level, beta, rounding, smallest, limit)
    first = trials[0]
    fault = seed_fault(sampler, first.vocab_size, first.length, timeout) if seeds and first.vocab_size > 1 else None
    look = 0
    while fault is None and any(look < len(trial.looks) for trial in trials):
        look += 1
        for trial in trials:
            if look <= len(trial.looks) and not trial.go_on(sampler, look, level):
                fault = trial.reason
                trial.look_closer(sampler, most)
                break
    results = [trial.result(level, beta, not isinstance(sampler, RoundDecoder)) for trial in trials]
    return LawReport(fault, tuple(results), alpha, 1 - beta)


def assert_law(
    sampler: Sampler | RoundDecoder,
    target: theory.Chain | None = None,
    draft: theory.Chain | None = None,
    verifier: theory.AnyVerifier | Callable[[int], theory.AnyVerifier] | None = None,
    length: int | None = None,
    **options: Any,
) -> LawReport:
    """`check_law` as an assertion.

    Returns
    -------
    LawReport
        Of a sampler that passed; it states the smallest TV that would have been found.

    Raises
    ------
    AssertionError
        With the declared and the observed law, the worst event and the nearest known fault.
    """
    report = check_law(sampler, target, draft, verifier, length, **options)
    if not report.passed:
        raise AssertionError(str(report))
    return report


def _share(value: Any, name: str) -> float:
    share = real_number(value, name, least=0.0, most=1.0)
    if not 0 < share < 1:
        raise ValueError(f"{name} must lie strictly between 0 and 1, got {value!r}")
    return share


def _for_length(verifier: Any, length: int) -> Any:
    return verifier if hasattr(verifier, "step") else verifier(length)


def _chosen(target: Any, draft: Any, length: int | None, pairs: Sequence[Pair] | None, verifier: Any) -> list[Pair]:
    if (target is None) != (draft is None):
        raise ValueError("give both target and draft, or neither")
    if target is not None:
        if length is None or pairs is not None:
            raise ValueError("a target and a draft need their length, and no pairs besides")
        return [Pair("the given pair", target, draft, length)]
    if pairs is None:
        # A residual with one law for each rejected token has V² entries on a vocabulary of V ids.
        residual = getattr(_for_length(verifier, length or 1), "residual", None)
        return adversarial_pairs(length, wide=not isinstance(residual, theory.DraftDependentResidual))
    if len(pairs) == 0:
        raise ValueError("pairs is empty; there is nothing to test on")
    return list(pairs)


def _groups(pairs: list[Pair], sampler: Any, counts: Counts, verifier: Any) -> list[tuple[Pair, ...]]:
    """What is tested as one law: every pair alone, and two of one shape mixed in every batch.

    Forced drafts need a sampler (a decoder drafts for itself) and a verifier that fixes what follows a draft.
    """
    usable = [
        pair
        for pair in pairs
        if pair.drawn_from is None
        or (
            counts == "declared"
            and not isinstance(sampler, RoundDecoder)
            and forced_drafts_fixed(_for_length(verifier, pair.length))
        )
    ]
    if not usable:
        raise ValueError("only pairs with forced drafts are left, and they cannot be tested here")
    groups: list[tuple[Pair, ...]] = [(pair,) for pair in usable]
    plain = [pair for pair in usable if pair.drawn_from is None and pair.most_rounds is None]
    alike: list[tuple[Pair, ...]] = [
        (a, b)
        for i, a in enumerate(plain)
        for b in plain[i + 1 :]
        if (a.target.vocab_size, a.length) == (b.target.vocab_size, b.length)
    ]
    return groups + alike[:1] if not isinstance(sampler, RoundDecoder) else groups


class Trial:
    """One law under test: its declared form and the counts so far."""

    def __init__(
        self,
        pairs: tuple[Pair, ...],
        verifier: Any,
        counts: Counts,
        rounding: float,
        kit: np.random.Generator,
        own: np.random.Generator,
        timeout: float | None,
    ) -> None:
        self.pairs, self.rounding, self.kit, self.own, self.timeout = pairs, rounding, kit, own, timeout
        self.length, self.vocab_size = pairs[0].length, pairs[0].target.vocab_size
        self.verifier = _for_length(verifier, self.length)
        self.space = Space(self.vocab_size, self.length, counts == "declared")
        laws = [outcome_law(p.target, p.draft, self.verifier, self.space, p.drawn_from) for p in pairs]
        self.law = np.concatenate(laws) / len(laws)
        self.counts = np.zeros(len(self.law), dtype=np.int64)
        self.agreements = np.zeros(2, dtype=np.int64)
        agree = float(self.law @ self.law)
        self.agreement_law = np.array([agree, 1 - agree])
        self.views = [
            (np.concatenate([s.label + i * s.cells for i in range(len(pairs))]), s.cells * len(pairs))
            for s in self.space.statistics
        ]
        self.view_laws: list[Floats] = [
            np.bincount(label, self.law, cells).astype(np.float64) for label, cells in self.views
        ]
        self.looks: list[int] = []
        self.log_evidence, self.verdict_rounds = 0.0, 0
        self.reason: str | None = None
        self.error: str | None = None

    @property
    def rounds(self) -> int:
        return int(self.counts.sum())

    def go_on(self, sampler: Any, look: int, level: float) -> bool:
        """Draw up to a look; False if the declared law is rejected there."""
        while self.rounds < self.looks[look - 1]:
            try:
                self._draw(sampler, self.looks[look - 1] - self.rounds)
            except BadAnswer as error:
                self.reason = self.error = str(error)
                return False
            self.verdict_rounds = self.rounds
            if not self._stands(look, level):
                return False
        return True

    def look_closer(self, sampler: Any, most: int) -> None:
        """More rounds after the verdict, for what a failure prints."""
        if self.error is None:
            with suppress(BadAnswer):
                while self.rounds < min(SHOWN_ROUNDS, most):
                    self._draw(sampler, min(SHOWN_ROUNDS, most) - self.rounds)

    def _draw(self, sampler: Any, wanted: int) -> None:
        """At least one more pair of rounds, at most `wanted` rounds."""
        step = max(2, min(ROWS_AT_ONCE, ENTRIES_AT_ONCE // (self.vocab_size * (self.length + 1))) // 2 * 2)
        cells = self.play(sampler, max(2, min(step, wanted) // 2 * 2))
        self.counts += np.bincount(cells, minlength=len(self.counts))
        agree = int((cells[::2] == cells[1::2]).sum())
        self.agreements += [agree, len(cells) // 2 - agree]

    def _stands(self, look: int, level: float) -> bool:
        logs = [
            log_evidence(np.bincount(label, self.counts, cells).astype(np.int64), law, self.rounding)
            for (label, cells), law in zip(self.views, self.view_laws, strict=True)
        ]
        self.log_evidence = mean_evidence([*logs, log_evidence(self.agreements, self.agreement_law, 2 * self.rounding)])
        if self.log_evidence >= math.log(1 / level):
            self.reason = "the evidence against the declared law is too strong"
        elif self.rounds == self.looks[look - 1]:
            distance = float(np.abs(self.counts / self.rounds - self.law).sum() / 2)
            if distance >= distance_threshold(self.law, self.rounds, look_level(level, look), self.rounding):
                self.reason = "the observed law is too far from the declared one"
        return self.reason is None

    def play(self, sampler: Any, count: int) -> Integers:
        """Cells of so many fresh rounds, shape (count,)."""
        part = self.kit.integers(len(self.pairs), size=count)
        rng = self.own.spawn(1)[0]
        if isinstance(sampler, RoundDecoder):
            pair = self.pairs[0]
            tokens, accepted = answer(
                lambda: sampler.run(pair.target, pair.draft, self.length, count, rng),
                count, self.length, self.vocab_size, None, self.timeout,
            )  # fmt: skip
        else:
            rounds = self._rounds(part)
            drafts = rounds.draft_ids.copy()
            try:
                tokens, accepted = answer(
                    lambda: sampler(rounds, rng), count, self.length, self.vocab_size, drafts, self.timeout
                )
            except NoAnswer:
                raise
            except BadAnswer as error:
                where = name_the_round(sampler, self._rounds(part), self.own.spawn(1)[0], self.timeout)
                raise BadAnswer(f"{error} ({where})") from error
        if not self.space.counts:
            tokens = self._continued(tokens, accepted, part)
        return self.space.encode(accepted, tokens) + part * self.space.cells

    def _rounds(self, part: Integers) -> Rounds:
        count, length = len(part), self.length
        u = self.kit.random((count, length))
        ids = np.zeros((count, length), dtype=np.int64)
        p, q = np.empty((count, length + 1, self.vocab_size)), np.empty((count, length, self.vocab_size))
        for k, pair in enumerate(self.pairs):
            rows = np.flatnonzero(part == k)
            for i in range(length):
                q[rows, i] = _laws(pair.draft, ids[rows, :i])
                drawn = q[rows, i] if pair.drawn_from is None else _laws(pair.drawn_from, ids[rows, :i])
                ids[rows, i] = categorical(drawn, u[rows, i])
            for i in range(length + 1):
                p[rows, i] = _laws(pair.target, ids[rows, :i])
        return Rounds(ids, p, q)

    def _continued(self, tokens: Integers, accepted: Integers, part: Integers) -> Integers:
        tokens = tokens.copy()
        u: Floats = self.kit.random(np.shape(tokens))
        for k, pair in enumerate(self.pairs):
            for place in range(1, self.space.depth):
                rows = np.flatnonzero((part == k) & (accepted < place))
                tokens[rows, place] = categorical(_laws(pair.target, tokens[rows, :place]), u[rows, place])
        return tokens

    def result(self, level: float, beta: float, drafted_by_kit: bool) -> PairResult:
        """What has been seen on this law, with the TV that so many rounds would have found."""
        looked = sum(n <= self.verdict_rounds for n in self.looks)
        seen = 1.0
        if looked:
            seen = smallest_distance(self.law, self.looks[looked - 1], look_level(level, looked), beta, self.rounding)
        return PairResult(
            self.pairs,
            self.verifier,
            self.space,
            self.law,
            self.counts,
            drafted_by_kit,
            self.verdict_rounds,
            self.log_evidence,
            seen,
            self.reason,
            self.error,
        )


def _laws(chain: theory.Chain, prefixes: Integers) -> Floats:
    return np.asarray(to_numpy(chain.conditional(prefixes)), dtype=np.float64)
