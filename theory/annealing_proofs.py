"""Proofs about several positions: the closed form of the bound, annealing, COOL-SD's Prop. 2 and where it ends.

As in `proofs`, every statement is an identity in symbols and a search over exact rational rounds. With acceptance rates
α_i that do not depend on the prefix, overlap β, S_i = Π α, N = Σ S_i:

* closed form   B = (1−β) N − β (1 − S_L)
* annealing     (dS_L/dα_i)/(dN/dα_i) = S_L / Σ_{k≥i} S_k increases in i: acceptance belongs early, at every L
* Prop. 2       at L = 2 and equal N, relaxing position 1 alone costs less than position 2 alone: B_late − B_early =
  β (α_1 − β). Neither TV ≤ 2/5 nor prefix-independence is needed: B_early ≤ N − N_lossless = B_late on every chain
* beyond        the exact TV does not fall all the way: spreading beats both extremes, because position 2 corrects
  position 1 (the two minima of `prove_two_token_distance`)

>>> prove_closed_form(2).holds, prove_annealing(3).holds, prove_prop_2_exact().holds
(True, True, False)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import combinations, pairwise, product
from typing import Any

from theory.arrays import whole_number
from theory.proofs import RELAXATIONS, Proof, first_failure, is_zero
from theory.rationals import (
    ONE,
    ZERO,
    Law,
    after,
    always,
    distance,
    laws,
    overlap,
    pairs,
    rational_round,
    relaxed,
    show,
)


def prove_closed_form(length: int, rates_offset: Any = 0) -> Proof:
    """B = (1−β) N − β (1 − S_L) for prefix-independent rates α_i ≥ β.

    Parameters
    ----------
    length : int
        L ≥ 1.
    rates_offset : number
        Added to every position's bias; other than 0 it breaks the identity (for the tests).

    Raises
    ------
    ValueError
        For length < 1.
    """
    import sympy

    length = whole_number(length, "length", 1)
    beta, alpha = sympy.symbols("beta"), sympy.symbols(f"alpha_1:{length + 1}")
    survival = [sympy.Integer(1)]
    for a in alpha:
        survival.append(survival[-1] * a)
    # The one-position line: TV(o_i, p) = α_i − β when nothing is wasted.
    bound = sum(s * (a - beta + rates_offset) for s, a in zip(survival[:-1], alpha, strict=True))
    closed = (1 - beta) * sum(survival[1:]) - beta * (1 - survival[-1])
    identity = is_zero(bound - closed)

    def cases() -> Iterator[str | None]:
        for p, q in pairs(3, 4):
            for omega in _schedules(min(length, 3)):
                r = rational_round(always(p), always(q), relaxed(omega), len(omega))
                b = overlap(p, q)
                same = r.bound + rates_offset == (1 - b) * r.expected_accepted - b * (1 - r.survival[-1])
                yield None if same else f"p = {show(p)}, q = {show(q)}, ω = {show(omega)}"

    count, failure = first_failure(cases())
    return Proof(
        f"B = (1−β) N − β (1 − S_L) at L = {length}",
        "closed form of the bound, this project",
        identity and failure is None,
        f"identity in α_1…α_{length}, β; {count} rational rounds on 3 tokens",
        failure,
    )


def _schedules(length: int) -> list[tuple[Fraction, ...]]:
    """Constant, falling and rising schedules of relaxations."""
    steps = [RELAXATIONS[min(i, 3)] for i in range(length)]
    return [(Fraction(3, 2),) * length, tuple(reversed(steps)), tuple(steps)]


def prove_annealing(length: int) -> Proof:
    """(dS_L/dα_i)/(dN/dα_i) = S_L / Σ_{k≥i} S_k, and it increases in i.

    So at fixed N, moving acceptance from a later to an earlier position lowers S_L and with it B.

    Raises
    ------
    ValueError
        For length < 2.
    """
    import sympy

    length = whole_number(length, "length", 2)
    alpha = sympy.symbols(f"alpha_1:{length + 1}", positive=True)
    survival = [sympy.Mul(*alpha[: i + 1]) for i in range(length)]
    accepted = sympy.Add(*survival)
    identities, rising = True, True
    tails = [sympy.Add(*survival[i:]) for i in range(length)]
    for i, a in enumerate(alpha):
        # Cross-multiplied, so that everything is a polynomial.
        left = sympy.diff(survival[-1], a) * tails[i] - survival[-1] * sympy.diff(accepted, a)
        identities &= bool(sympy.expand(left) == 0)
        if i:
            # 1/tail_i − 1/tail_{i−1} has the sign of tail_{i−1} − tail_i, which must be positive.
            step = sympy.expand(tails[i - 1] - tails[i])
            rising &= bool(step.is_positive)

    def cases() -> Iterator[str | None]:
        # Move acceptance from position j to i < j at equal N, exactly: S_L must fall.
        base = [Fraction(7, 10)] * length
        for i, j in combinations(range(length), 2):
            before = _survival(base)
            moved = list(base)
            moved[i] += Fraction(1, 20)
            others = _survival([a if k != j else ZERO for k, a in enumerate(moved)])
            whole = _survival([a if k != j else ONE for k, a in enumerate(moved)])
            slope = sum(whole, ZERO) - sum(others, ZERO)
            moved[j] = (sum(before, ZERO) - sum(others, ZERO)) / slope
            after_ = _survival(moved)
            fine = sum(after_, ZERO) == sum(before, ZERO) and after_[-1] < before[-1]
            yield None if fine else f"α = {show(base)} → {show(moved)}"

    count, failure = first_failure(cases())
    return Proof(
        f"dS_L/dN along α_i is S_L / Σ_{{k≥i}} S_k, increasing in i, at L = {length}",
        "annealing at every L, this project; COOL-SD 2601.09212, Prop. 2 is L = 2",
        identities and rising and failure is None,
        f"{length} identities and {length - 1} signs in α_1…α_{length}; {count} exact moves at equal N",
        failure,
    )


def _survival(rates: Sequence[Fraction]) -> list[Fraction]:
    out, mass = [], ONE
    for a in rates:
        mass *= a
        out.append(mass)
    return out


def _two(p: Law, q: Law, first: Fraction, second: Fraction) -> Any:
    """A round of two on two tokens with acceptance rates α_1, α_2; token 1 is over-drafted, α_i = q_0 + ω_i p_1."""
    omega = [(rate - q[0]) / p[1] for rate in (first, second)]
    return rational_round(always(p), always(q), relaxed(omega), 2)


def _partner(accepted: Fraction, first: Fraction) -> Fraction:
    """α_2 of a round of two that accepts `accepted` tokens with α_1 = `first`."""
    return accepted / first - 1


def prove_prop_2(close: bool | None = None) -> Proof:
    """L = 2: relaxing only the first position costs less than only the second, at equal accepted length.

    Only one position is biased, so bound and exact TV are the same number here.

    Parameters
    ----------
    close : bool, optional
        True: only pairs with TV(p, q) ≤ 2/5, the paper's condition; False: only the others; None: all.

    Notes
    -----
    The paper's wording is **reconstructed**. Second part: on chains that depend on the prefix, of any TV,
    B_early ≤ N − N_lossless = B_late, since each token admitted at position 1 is also worth the acceptance after it.
    """
    import sympy

    a, beta, extra = sympy.symbols("alpha beta e", positive=True)
    late_rate = a * (1 + beta) / beta - 1
    early, late = a - beta, beta * (late_rate - beta)
    difference = sympy.factor(late - early)
    identity = is_zero(difference - beta * (a - beta)) and bool(
        sympy.expand(difference.subs(a, beta + extra)).is_positive
    )

    def wanted(p: Law, q: Law) -> bool:
        return close is None or (distance(p, q) <= Fraction(2, 5)) == close

    def cases() -> Iterator[str | None]:
        for p, q in pairs(2, 8):
            if p[0] <= q[0] or not wanted(p, q):
                continue
            b = overlap(p, q)
            for share in (Fraction(1, 3), Fraction(2, 3), ONE):
                first = b + share * (2 * b / (1 + b) - b)
                rounds = _two(p, q, first, b), _two(p, q, b, _partner(first * (1 + b), b))
                same = rounds[0].expected_accepted == rounds[1].expected_accepted
                one_biased = all(r.bound == r.total_variation for r in rounds)
                better = rounds[0].total_variation < rounds[1].total_variation
                yield None if same and one_biased and better else f"p = {show(p)}, q = {show(q)}, α_1 = {first}"
        # Prefix-dependent second positions; ω_1 relaxed alone, against the bound every late relaxation has to pay.
        for p, q in pairs(2, 4):
            if not wanted(p, q):
                continue
            for p0, q0, p1, q1 in product(list(laws(2, 4)), repeat=4):
                target, draft = after([p], [p0, p1]), after([q], [q0, q1])
                base = rational_round(target, draft, relaxed([ONE, ONE]), 2).expected_accepted
                early_ = rational_round(target, draft, relaxed([Fraction(2), ONE]), 2)
                late_ = rational_round(target, draft, relaxed([ONE, Fraction(2)]), 2)
                fine = early_.bound <= early_.expected_accepted - base and late_.bound == late_.expected_accepted - base
                yield (
                    None
                    if fine
                    else f"p = {show(p)}, q = {show(q)}, then {show(p0)} {show(p1)} / {show(q0)} {show(q1)}"
                )

    count, failure = first_failure(cases())
    condition = {None: "for every p, q", True: "for TV(p, q) ≤ 2/5", False: "for TV(p, q) > 2/5"}[close]
    return Proof(
        f"L = 2, equal N: relaxing position 1 alone costs less than position 2 alone, {condition}",
        "COOL-SD 2601.09212, Prop. 2",
        identity and failure is None,
        f"B_late − B_early = β(α_1 − β) > 0; {count} rational pairs of rounds, TV equal to the bound in each",
        failure,
    )


def prove_prop_2_exact() -> Proof:
    """The stronger reading: at L = 2 and equal N, moving acceptance to position 1 lowers the exact TV. It need not."""

    def cases() -> Iterator[str | None]:
        for p, q in pairs(2, 8):
            if p[0] <= q[0]:
                continue
            b = overlap(p, q)
            top = 2 * b / (1 + b)
            rounds = []
            for share in (ZERO, Fraction(1, 3), Fraction(2, 3), ONE):
                first = b + share * (top - b)
                second = _partner(top * (1 + b), first)
                if second <= 1:
                    rounds.append((first, second, _two(p, q, first, second)))
            for (a1, a2, before), (c1, c2, later) in pairwise(rounds):
                if before.expected_accepted != later.expected_accepted:
                    raise ArithmeticError(f"p = {show(p)}, q = {show(q)}: rates meant for equal N do not give it")
                worse = later.total_variation > before.total_variation and later.bound < before.bound
                yield (
                    f"p = {show(p)}, q = {show(q)} (TV {distance(p, q)}), N = {before.expected_accepted}: rates "
                    f"{a1}, {a2} → {c1}, {c2} lower B {before.bound} → {later.bound} but raise TV "
                    f"{before.total_variation} → {later.total_variation}"
                    if worse
                    else None
                )

    count, failure = first_failure(cases())
    return Proof(
        "L = 2, equal N: the exact TV falls whenever acceptance moves from position 2 to position 1",
        "COOL-SD 2601.09212, Prop. 2 read beyond its bound",
        failure is None,
        f"{count} rational pairs of rounds on 2 tokens",
        failure,
    )


def prove_two_token_distance() -> Proof:
    """V = L = 2, one regime: TV = B − min(b_1 p_1, q_0 b_2) − min(b_1 p_0, ω_1 p_1 b_2)."""
    import sympy

    from theory.symbolic import symbolic_round

    r = symbolic_round(2, 2, over=(1,))
    (p0, p1), (q0, _), (w1, w2) = r.p, r.q, r.omega
    e1, e2 = w1 - 1, w2 - 1

    def least(x: Any, y: Any) -> Any:
        return (x + y - sympy.Abs(sympy.expand(x - y))) / 2

    # b_i = p_1 e_i: the common factor p_1 is taken out of both minima, so that equal absolute values are recognised.
    claimed = r.tv_bound - p1 * (least(e1 * p1, q0 * e2) + least(e1 * p0, w1 * p1 * e2))
    derived = r.total_variation.replace(sympy.Abs, lambda x: sympy.Abs(sympy.expand(x)))
    # The absolute values cancel; what is left vanishes because the laws sum to one.
    identity = bool(sympy.expand(sympy.expand(claimed - derived).subs(p0, 1 - p1)) == 0)

    def cases() -> Iterator[str | None]:
        for p, q in pairs(2, 8):
            for omega in product(RELAXATIONS[1:], repeat=2):
                if not all(w * p[1] < q[1] for w in omega):
                    continue
                found = rational_round(always(p), always(q), relaxed(omega), 2)
                c1, c2 = ((w - 1) * p[1] for w in omega)
                value = found.bound - min(c1 * p[1], q[0] * c2) - min(c1 * p[0], omega[0] * p[1] * c2)
                yield None if value == found.total_variation else f"p = {show(p)}, q = {show(q)}, ω = {show(omega)}"

    count, failure = first_failure(cases())
    return Proof(
        "V = L = 2, ω p_1 < q_1: TV = B − min(b_1 p_1, q_0 b_2) − min(b_1 p_0, ω_1 p_1 b_2)",
        "this project",
        identity and failure is None,
        f"equal to the derived formula, absolute values included; {count} rational rounds",
        failure,
    )
