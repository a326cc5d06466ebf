"""Rounds in exact rational arithmetic: the oracle of the symbolic derivations and of the claims ledger.

Plain recursion over prefixes with `fractions.Fraction`, so that an equality is an equality and a counterexample is one
that can be checked by hand. A chain is a function prefix → law, a step a function (prefix, p, q) → (accepted mass q f,
residual G). The law is that of the first L tokens: the token after them is drawn from the target whatever happened, so
it changes no distance. Everything searched over is a finite grid of rationals, in an order in which simpler laws come
first: theory knows no randomness.

>>> p, q = fractions("1/4 3/4"), fractions("3/4 1/4")
>>> r = rational_round(always(p), always(q), relaxed([Fraction(2)]), 1)
>>> str(r.expected_accepted), str(r.bound), str(r.total_variation), show(r.law)
('3/4', '1/4', '1/4', '1/2 1/2')
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import permutations
from typing import TypeAlias

Law: TypeAlias = tuple[Fraction, ...]
Prefix: TypeAlias = tuple[int, ...]
Conditional: TypeAlias = Callable[[Prefix], Law]
RationalStep: TypeAlias = Callable[[Prefix, Law, Law], tuple[Law, Law]]
Residual: TypeAlias = Callable[[Law, Law, Law], Law]
"""(p, q, accepted mass) → G."""

ZERO, ONE = Fraction(0), Fraction(1)


def fractions(text: str) -> Law:
    """Law from text: ``"1/4 3/4"``."""
    return tuple(map(Fraction, text.split()))


def show(law: Sequence[Fraction]) -> str:
    """Text of a law, the inverse of `fractions`."""
    return " ".join(map(str, law))


def always(law: Law) -> Conditional:
    """The same law after every prefix."""
    return lambda prefix: law


def after(*levels: Sequence[Law]) -> Conditional:
    """A law that depends on the whole prefix: levels[i] lists the laws after i tokens, last token fastest."""

    def conditional(prefix: Prefix) -> Law:
        index = 0
        for x in prefix:
            index = index * len(levels[0][0]) + x
        return levels[len(prefix)][index]

    return conditional


def laws(size: int, denominator: int, positive: bool = True) -> Iterator[Law]:
    """All laws on `size` tokens whose entries are multiples of 1/denominator, in lexicographic order."""

    def counts(places: int, left: int) -> Iterator[tuple[int, ...]]:
        least = 1 if positive else 0
        if places == 1:
            if left >= least:
                yield (left,)
            return
        for first in range(least, left - least * (places - 1) + 1):
            for rest in counts(places - 1, left - first):
                yield (first, *rest)

    for count in counts(size, denominator):
        yield tuple(Fraction(c, denominator) for c in count)


def pairs(size: int, largest: int, positive: bool = True) -> Iterator[tuple[Law, Law]]:
    """Pairs (p, q) of laws with a common denominator 2…largest, smallest denominator first, p ≠ q."""
    for denominator in range(2, largest + 1):
        grid = list(laws(size, denominator, positive))
        yield from ((p, q) for p in grid for q in grid if p != q)


def distance(p: Law, q: Law) -> Fraction:
    """TV(p, q)."""
    return sum((abs(a - b) for a, b in zip(p, q, strict=True)), ZERO) / 2


def overlap(p: Law, q: Law) -> Fraction:
    """β = Σ min(p, q)."""
    return sum(map(min, p, q), ZERO)


def normalised(values: Sequence[Fraction], otherwise: Law) -> Law:
    """Norm[values]_+, or `otherwise` where the positive part is empty."""
    positive = [max(v, ZERO) for v in values]
    total = sum(positive, ZERO)
    return tuple(v / total for v in positive) if total else otherwise


def optimal(p: Law, q: Law, accepted: Law) -> Law:
    """G* = Norm[p − q f]_+."""
    return normalised([a - b for a, b in zip(p, accepted, strict=True)], p)


def vanilla(p: Law, q: Law, accepted: Law) -> Law:
    """Norm[p − q]_+."""
    return normalised([a - b for a, b in zip(p, q, strict=True)], p)


def relaxed(omega: Sequence[Fraction], residual: Residual = optimal) -> RationalStep:
    """The multiplicative rule f_i = min(1, ω_i p/q) with a residual."""

    def step(prefix: Prefix, p: Law, q: Law) -> tuple[Law, Law]:
        accepted = tuple(min(b, omega[len(prefix)] * a) for a, b in zip(p, q, strict=True))
        return accepted, residual(p, q, accepted)

    return step


def output(accepted: Law, residual: Law) -> Law:
    """o = q f + R G."""
    rejected = 1 - sum(accepted, ZERO)
    return tuple(a + rejected * g for a, g in zip(accepted, residual, strict=True))


@dataclass(frozen=True)
class RationalRound:
    """One round: law of its first L tokens and the target's (last token fastest), survival, bound."""

    law: Law
    target_law: Law
    survival: Law
    bound: Fraction

    @property
    def expected_accepted(self) -> Fraction:
        """N = Σ S_i."""
        return sum(self.survival, ZERO)

    @property
    def total_variation(self) -> Fraction:
        """TV(P̂, P)."""
        return distance(self.law, self.target_law)

    @property
    def max_ratio(self) -> Fraction | None:
        """Largest P̂/P; None for +∞."""
        charged = [(a, b) for a, b in zip(self.law, self.target_law, strict=True) if a]
        return max((a / b for a, b in charged), default=ZERO) if all(b for _, b in charged) else None


def rational_round(target: Conditional, draft: Conditional, step: RationalStep, length: int) -> RationalRound:
    """Walk every prefix of a round of `length` drafted tokens.

    Notes
    -----
    Source: the round as `theory.rounds` defines it. Oracle: a second recursion of this kind lives in the tests, and
    `analyse_round` agrees.
    """
    drafting: dict[Prefix, Fraction] = {(): ONE}
    whole: dict[Prefix, Fraction] = {(): ONE}
    own: dict[Prefix, Fraction] = {(): ONE}
    survival, bound = [], ZERO
    seen: dict[tuple[int, ...], tuple[tuple[Law, ...], Law, Fraction]] = {}  # by identity: hashing costs as much

    def emission(*laws: Law) -> tuple[Law, Fraction]:
        key = tuple(map(id, laws))
        if key not in seen:
            emitted = output(*laws[1:])
            seen[key] = laws, emitted, distance(emitted, laws[0])  # the laws are kept, so that no id is used again
        return seen[key][1:]

    for _ in range(length):
        grown: tuple[dict[Prefix, Fraction], ...] = ({}, {}, {})
        for prefix, mass in whole.items():
            p = target(prefix)
            alive = drafting[prefix]
            accepted, emitted = p, p
            if alive:
                accepted, residual = step(prefix, p, draft(prefix))
                emitted, bias = emission(p, accepted, residual)
                bound += alive * bias
            for x, a in enumerate(p):
                key = (*prefix, x)
                grown[0][key] = alive * accepted[x]
                grown[1][key] = (mass - alive) * a + alive * emitted[x]
                grown[2][key] = own[prefix] * a
        drafting, whole, own = grown
        survival.append(sum(drafting.values(), ZERO))
    return RationalRound(tuple(whole.values()), tuple(own.values()), tuple(survival), bound)


def one_step_optimal(p: Law, accepted: Law) -> Iterator[Law]:
    """Residuals that are optimal at one position (R·G ≤ [p − q f]_+): filled in every order of tokens, and even.

    The even one leaves every under-served token short by the same share of p.
    """
    rejected = 1 - sum(accepted, ZERO)
    short = [max(a - b, ZERO) for a, b in zip(p, accepted, strict=True)]
    for order in permutations(range(len(p))):
        left, filled = rejected, [ZERO] * len(p)
        for y in order:
            filled[y] = min(short[y], left)
            left -= filled[y]
        yield tuple(x / rejected for x in filled)
    share = (sum(short, ZERO) - rejected) / sum((a for a, d in zip(p, short, strict=True) if d), ZERO)
    even = [d - share * a if d else ZERO for a, d in zip(p, short, strict=True)]
    if min(even) >= 0:
        yield tuple(x / rejected for x in even)


def better_residuals(accept: Callable[[Law, Law], Law], largest: int = 8) -> Iterator[str | None]:
    """Rounds of two on three tokens: does a residual at position 2 with the bound of G* have a smaller exact TV?"""

    def step(second: Law | None) -> RationalStep:
        return lambda prefix, p, q: (accepted, second if second is not None and prefix else best_alone)

    for p, q in pairs(3, largest):
        accepted = accept(p, q)
        best_alone = optimal(p, q, accepted)
        choices = set(one_step_optimal(p, accepted)) if sum(accepted, ZERO) < 1 else set()
        if len(choices) < 2:
            continue
        star = rational_round(always(p), always(q), step(None), 2)
        found = [(g, rational_round(always(p), always(q), step(g), 2)) for g in sorted(choices)]
        g, best = min(found, key=lambda pair: pair[1].total_variation)
        if any(r.bound != star.bound for _, r in found):
            raise ArithmeticError(f"p = {show(p)}, q = {show(q)}: residuals meant to be equally good have other bounds")
        yield (
            f"p = {show(p)}, q = {show(q)}, L = 2: G* has TV {float(star.total_variation):.6f}; at position 2 "
            f"G = {' '.join(f'{float(x):.4g}' for x in g)} has TV {float(best.total_variation):.6f} and the same B"
            if best.total_variation < star.total_variation
            else None
        )
