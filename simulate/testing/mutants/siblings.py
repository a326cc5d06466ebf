"""Two siblings at one node: the recursion in replaceable pieces, its exact law, and its faults.

x_1 ~ q is tested against p; if it is rejected, p^(2) is the residual and x_2 ~ q^(2) is tested against it; if that is
rejected too, the token comes from the residual of (p^(2), q^(2)). Without replacement q^(2) is q without x_1,
renormalised; with replacement it is q.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import theory
from simulate.laws import laws_after
from simulate.testing.mutants.mutant import Mutant
from simulate.testing.mutants.skeleton import emit, inverse_cdf, lossless_residual, ratio, without
from simulate.testing.protocol import Emitted, Floats, Integers, RoundDecoder

SIBLINGS = "siblings without replacement, residual with"
Second = Callable[[Floats, Integers], Floats]
Residual = Callable[[Floats, Floats, Integers], Floats]


def with_replacement(q: Floats, x: Integers) -> Floats:
    """q again."""
    return q


@dataclass(frozen=True)
class Siblings:
    """Two candidates; `drawn` is the law the second really comes from, `declared` the one its test reads."""

    drawn: Second = without
    declared: Second = without
    first_residual: Residual = lossless_residual
    last_residual: Residual = lossless_residual
    again: Callable[[Floats, Floats], Floats] = lambda p, residual: residual

    def decoder(self) -> RoundDecoder:
        """One round: the node's token, and if a sibling was accepted one more from the target behind it."""

        def run(
            target: theory.Chain, draft: theory.Chain, length: int, count: int, rng: np.random.Generator
        ) -> Emitted:
            start = np.zeros((count, 0), dtype=np.int64)
            p, q = (laws_after(chain, start) for chain in (target, draft))
            u = rng.random((6, count))
            x = inverse_cdf(q, u[0])
            first = u[1] < self._test(p, q, x)
            p2, q2 = self.again(p, self.first_residual(p, q, x)), self.declared(q, x)
            y = inverse_cdf(self.drawn(q, x), u[2])
            second = ~first & (u[3] < self._test(p2, q2, y))
            last = inverse_cdf(self.last_residual(p2, q2, y), u[4])
            token, accepted = np.where(first, x, y), first | second
            bonus = inverse_cdf(laws_after(target, token[:, None]), u[5])
            return emit(token[:, None], accepted.astype(np.int64), np.where(accepted, bonus, last))

        return RoundDecoder(run)

    @staticmethod
    def _test(p: Floats, q: Floats, x: Integers) -> Floats:
        return ratio(p[:, None], q[:, None], x[:, None])[:, 0]

    def law(self, target: theory.IIDChain, draft: theory.IIDChain) -> Any:
        """Law of two tokens, by enumeration of both candidates."""
        size = target.vocab_size
        x, y = (grid.ravel() for grid in np.indices((size, size)))
        p, q = np.tile(np.asarray(target.p), (len(x), 1)), np.tile(np.asarray(draft.p), (len(x), 1))
        rows = np.arange(len(x))
        f = self._test(p, q, x)
        p2, q2 = self.again(p, self.first_residual(p, q, x)), self.declared(q, x)
        second = q[rows, x] * (1 - f) * self.drawn(q, x)[rows, y]
        g = self._test(p2, q2, y)
        law = (np.asarray(draft.p) * f.reshape(size, size)[:, 0]) + np.bincount(y, second * g, minlength=size)
        law = law + (second * (1 - g)) @ self.last_residual(p2, q2, y)
        return law[:, None] * np.asarray(target.p)


def _not_renormalised(q: Floats, x: Integers) -> Floats:
    left = q.copy()
    np.put_along_axis(left, x[:, None], 0.0, axis=-1)
    return left


P, Q = theory.IIDChain([1 / 6, 1 / 3, 1 / 2]), theory.IIDChain([2 / 3, 1 / 6, 1 / 6])
WIDE = theory.IIDChain([0.3, 0.3, 0.25, 0.15]), theory.IIDChain([0.1, 0.2, 0.3, 0.4])


def siblings_mutant(
    name: str, siblings: Siblings, pair: tuple[theory.IIDChain, theory.IIDChain] = (P, Q), faulty: bool = True
) -> Mutant:
    """Siblings that declare the target's law, whatever they accept."""
    return Mutant(
        name,
        SIBLINGS if faulty else "rules that are not faults",
        siblings.decoder(),
        target=pair[0],
        draft=pair[1],
        exact=lambda: siblings.law(*pair),
        counts="any",
        faulty=faulty,
    )


MUTANTS: tuple[Mutant, ...] = (
    siblings_mutant("drawn without replacement, declared with", Siblings(declared=with_replacement)),
    siblings_mutant("drawn with replacement, declared without", Siblings(drawn=with_replacement)),
    siblings_mutant("second sibling tested against p", Siblings(again=lambda p, residual: p)),
    siblings_mutant("p in place of the first residual", Siblings(first_residual=lambda p, q, x: p), WIDE),
    siblings_mutant("p in place of the last residual", Siblings(last_residual=lambda p, q, x: p), WIDE),
    siblings_mutant("rejected sibling zeroed in p", Siblings(first_residual=lambda p, q, x: without(p, x)), WIDE),
    siblings_mutant("draft not renormalised", Siblings(declared=_not_renormalised), WIDE),
)
