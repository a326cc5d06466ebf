"""One declared law under test: rounds are drawn, checked, counted and judged.

The declared law is that of one pair of chains, or of two pairs of one shape between which every round of a batch
chooses at random; its cells are then those of both.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any, Literal, TypeAlias

import numpy as np

import theory
from simulate.draws import categorical
from simulate.laws import laws_after
from simulate.testing.calls import BadAnswer, NoAnswer, answer, name_the_round
from simulate.testing.outcomes import Space, outcome_law
from simulate.testing.pairs import Pair
from simulate.testing.protocol import Floats, Integers, RoundDecoder, Rounds
from simulate.testing.report import PairResult
from simulate.testing.sequential import (
    distance_threshold,
    log_evidence,
    log_pair_evidence,
    look_level,
    mean_evidence,
    smallest_distance,
)

Counts: TypeAlias = Literal["declared", "any"]

ENTRIES_AT_ONCE = 2**21
"""Probabilities handed to the sampler in one call: 16 MB."""

ROWS_AT_ONCE = 2**15

SHOWN_ROUNDS = 2**12
"""Rounds behind the law that a failure prints, where the verdict itself needed fewer."""


def for_length(verifier: Any, length: int) -> Any:
    """A verifier, or what a function of L gives for this one."""
    found = verifier if hasattr(verifier, "step") else verifier(length)
    if not hasattr(found, "step"):
        raise ValueError(f"the function given as verifier returned {found!r} for L = {length}, which is no verifier")
    return found


class Trial:
    """Declared law and counts so far; see the head of this module, and `check_law` for the arguments."""

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
        self.verifier = for_length(verifier, self.length)
        self.space = Space(self.vocab_size, self.length, counts == "declared")
        laws = [outcome_law(p.target, p.draft, self.verifier, self.space, p.drawn_from) for p in pairs]
        self.law = np.concatenate(laws) / len(laws)
        self.counts = np.zeros(len(self.law), dtype=np.int64)
        # Row k: disjoint pairs of rounds 2**k apart in one batch, equal and not.
        self.agreements = np.zeros((ROWS_AT_ONCE.bit_length() - 1, 2), dtype=np.int64)
        self.agree = float(self.law @ self.law)
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
        for k in range((len(cells) // 2).bit_length()):
            twins = cells[: len(cells) >> (k + 1) << (k + 1)].reshape(-1, 2, 2**k)
            same = int((twins[:, 0] == twins[:, 1]).sum())
            self.agreements[k] += [same, twins[:, 0].size - same]

    def _stands(self, look: int, level: float) -> bool:
        logs = [
            log_evidence(np.bincount(label, self.counts, cells).astype(np.int64), law, self.rounding)
            for (label, cells), law in zip(self.views, self.view_laws, strict=True)
        ]
        logs.append(log_pair_evidence(self.agreements, self.agree, 2 * self.rounding))
        self.log_evidence = mean_evidence(logs)
        if self.log_evidence >= math.log(1 / level):
            self.reason = "the evidence against the declared law is too strong"
        elif self.rounds == self.looks[look - 1]:
            distance = float(theory.total_variation(self.counts / self.rounds, self.law))
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
                q[rows, i] = laws_after(pair.draft, ids[rows, :i])
                drawn = q[rows, i] if pair.drawn_from is None else laws_after(pair.drawn_from, ids[rows, :i])
                ids[rows, i] = categorical(drawn, u[rows, i])
            for i in range(length + 1):
                p[rows, i] = laws_after(pair.target, ids[rows, :i])
        return Rounds(ids, p, q)

    def _continued(self, tokens: Integers, accepted: Integers, part: Integers) -> Integers:
        tokens = tokens.copy()
        u: Floats = self.kit.random(np.shape(tokens))
        for k, pair in enumerate(self.pairs):
            for place in range(1, self.space.depth):
                rows = np.flatnonzero((part == k) & (accepted < place))
                tokens[rows, place] = categorical(laws_after(pair.target, tokens[rows, :place]), u[rows, place])
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
