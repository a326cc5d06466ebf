"""Proofs that run: each statement as an identity in symbols, and again on every small rational chain of a grid.

A proof function returns a `Proof`: the statement, its source, whether it holds, what was checked, and, where it fails,
the first counterexample (smallest denominators first). Symbolic part: sympy reduces the difference of both sides to
zero, or shows its sign with every symbol positive. Rational part: `rationals` evaluates both sides exactly on a grid;
it can only refute, and is there to catch an error of the derivation. Neither part contains its own answer: break the
rule and the same function reports `holds=False` (the tests do so). One position and the ratio cap are here, the
statements about several positions in `annealing_proofs`.

>>> prove_prop_1().holds, prove_prop_1(below=True).holds
(True, False)
>>> prove_prop_1(below=True).counterexample
'p = 1/3 2/3, q = 2/3 1/3, ω = 1/2: G* gives TV 0, Norm[p−q]_+ gives TV 1/6'
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import Any

from theory.arrays import whole_number
from theory.rationals import (
    ONE,
    ZERO,
    always,
    distance,
    laws,
    optimal,
    output,
    overlap,
    pairs,
    rational_round,
    relaxed,
    show,
    vanilla,
)

FACTORS = tuple(Fraction(n, 2) for n in (1, 2, 3, 4, 6))
"""ω of the grids: one below lossless, lossless, three above."""
RELAXATIONS = FACTORS[1:]


@dataclass(frozen=True)
class Proof:
    """What one proof found.

    Attributes
    ----------
    statement, source : str
    holds : bool
        Both the symbolic and the rational part.
    checked : str
        What was reduced and how many exact cases were evaluated.
    counterexample : str or None
        The first case that fails.
    """

    statement: str
    source: str
    holds: bool
    checked: str
    counterexample: str | None = None


def is_zero(expression: Any) -> bool:
    """Whether a rational expression is identically zero."""
    import sympy

    return bool(sympy.expand(sympy.together(expression)) == 0)


def first_failure(cases: Iterator[str | None]) -> tuple[int, str | None]:
    """Number of cases looked at and the first failure."""
    count = 0
    for failure in cases:
        count += 1
        if failure is not None:
            return count, failure
    return count, None


def _signs(size: int) -> Iterator[list[tuple[Any, Any, Any]]]:
    """Per token (p, q, a) in the order a ≤ p ≤ q, p ≤ a ≤ q or a ≤ q ≤ p, in symbols; a is the accepted mass q f."""
    import sympy

    triples = []
    for x in range(size):
        u, v, w = sympy.symbols(f"u_{x} v_{x} w_{x}", positive=True)
        triples.append([(u + v, u + v + w, u), (u, u + v + w, u + v), (u + v + w, u + v, u)])
    for choice in product(*triples):
        yield list(choice)


def prove_one_position_line(accept: Callable[[Any, Any, Any], Any] | None = None) -> Proof:
    """TV(q f + R G*, p) + R = TV(p, q) + Σ (min(p, q) − min(p, q f)), for every f.

    Parameters
    ----------
    accept : function (p, q, a) → a, optional
        Replaces the accepted mass on the left side only; the tests use it to break the identity.
    """
    import sympy

    # Token by token: [a − p]_+ + (q − a) = [q − p]_+ + min(p, q) − min(p, a). TV(o, p) = Σ [a − p]_+: `prove_residual`.
    regimes = []
    for ((p, q, a),) in _signs(1):
        b = a if accept is None else accept(p, q, a)
        left = sympy.Max(0, sympy.expand(b - p)) + q - b
        right = sympy.Max(0, sympy.expand(q - p)) + _least(p, q) - _least(p, a)
        regimes.append(is_zero(left - right))

    def cases() -> Iterator[str | None]:
        for p, q in pairs(3, 5, positive=False):
            for f in ((ZERO, ONE, Fraction(1, 2)), (Fraction(1, 3), Fraction(2, 3), ONE)):
                a = tuple(x * y for x, y in zip(q, f, strict=True))
                kept = a if accept is None else tuple(map(accept, p, q, a))
                biased = distance(output(kept, optimal(p, q, kept)), p)
                waste = overlap(p, q) - sum(map(min, p, a), ZERO)
                same = biased + 1 - sum(kept, ZERO) == distance(p, q) + waste
                yield None if same else f"p = {show(p)}, q = {show(q)}, q f = {show(a)}"

    count, failure = first_failure(cases())
    return Proof(
        "TV(q f + R G*, p) + R = TV(p, q) + Σ (min(p, q) − min(p, q f)) for every f",
        "Yin et al. 2411.00841 for f ≥ lossless; the waste term is this project's",
        all(regimes) and failure is None,
        f"token by token in {len(regimes)} orders of p, q, q f; {count} rational cases on 3 tokens",
        failure,
    )


def _least(x: Any, y: Any) -> Any:
    """min(x, y), written so that sympy sees its sign case."""
    import sympy

    return x - sympy.Max(0, sympy.expand(x - y))


def prove_residual(size: int = 3) -> Proof:
    """Among all residuals G* = Norm[p − q f]_+ has the least TV at one position, Σ [q f − p]_+.

    Raises
    ------
    ValueError
        For a size other than 2 or 3.
    """
    import sympy

    if whole_number(size, "size", 2) > 3:
        raise ValueError(f"size must be 2 or 3, got {size}")
    regimes, reduced = True, 0
    for signs in product((1, -1), repeat=size):
        if 1 not in signs:
            continue  # p < q f everywhere would make q f sum to more than one
        gaps = sympy.symbols(f"d_0:{size}", positive=True)
        short = sum(d for d, s in zip(gaps, signs, strict=True) if s > 0)
        excess = sum((d for d, s in zip(gaps, signs, strict=True) if s < 0), sympy.Integer(0))
        # p − q f = ±d, so R = short − excess; o − p = −(p − q f) + R G*.
        moved = [-s * d + (short - excess) * (d / short if s > 0 else 0) for d, s in zip(gaps, signs, strict=True)]
        away = sum(m if s < 0 else -m for m, s in zip(moved, signs, strict=True)) / 2
        regimes &= is_zero(away - excess)
        reduced += 1

    def cases() -> Iterator[str | None]:
        others = list(laws(size, 4, positive=False))
        for p, q in pairs(size, 3, positive=False):
            for f in product((Fraction(1, 2), ONE), repeat=size):
                a = tuple(x * y for x, y in zip(q, f, strict=True))
                best = distance(output(a, optimal(p, q, a)), p)
                floor = sum((max(x - y, ZERO) for x, y in zip(a, p, strict=True)), ZERO)
                beaten = next((g for g in others if distance(output(a, g), p) < best), None)
                if best != floor or beaten is not None:
                    yield f"p = {show(p)}, q = {show(q)}, q f = {show(a)}, G = {show(beaten or p)}"
                yield None

    count, failure = first_failure(cases())
    return Proof(
        "min over G of TV(q f + R G, p) = Σ [q f − p]_+, reached by G* = Norm[p − q f]_+",
        "COOL-SD 2601.09212, Theorem 2 (its residual)",
        regimes and failure is None,
        f"{reduced} sign patterns on {size} tokens; {count} rational cases against all G with denominator 4",
        failure,
    )


def prove_prop_1(below: bool = False) -> Proof:
    """If f ≥ min(1, p/q) then G* = Norm[p − q]_+; with `below` the factors are under 1, where it fails."""
    import sympy

    # q < p: f = 1, so p − q f = p − q. q ≥ p: q f ≥ p, so both positive parts are empty. Below, q f < min(p, q).
    regimes = []
    for ((p, q, a),) in _signs(1):
        above = sympy.expand(a - _least(p, q)).is_nonnegative
        kept = q if sympy.expand(p - q).is_positive and not below else a
        if above or below or sympy.expand(p - q).is_positive:
            regimes.append(is_zero(sympy.Max(0, sympy.expand(p - kept)) - sympy.Max(0, sympy.expand(p - q))))

    def cases() -> Iterator[str | None]:
        for p, q in pairs(2, 6):
            for w in FACTORS[:1] if below else RELAXATIONS:
                star, plain = (
                    rational_round(always(p), always(q), relaxed([w], g), 1).total_variation for g in (optimal, vanilla)
                )
                yield (
                    None
                    if star == plain
                    else f"p = {show(p)}, q = {show(q)}, ω = {w}: G* gives TV {star}, Norm[p−q]_+ gives TV {plain}"
                )

    count, failure = first_failure(cases())
    return Proof(
        "G* = Norm[p − q]_+ " + ("for every f" if below else "if f ≥ min(1, p/q) everywhere"),
        "COOL-SD 2601.09212, Prop. 1" + (", without its condition" if below else ""),
        all(regimes) and failure is None,
        f"{len(regimes)} orders of p, q, q f; {count} rational cases on 2 tokens",
        failure,
    )


def prove_ratio_cap(length: int = 2) -> Proof:
    """P̂/P ≤ Π max(1, ω_i) for the multiplicative rule with G*.

    Raises
    ------
    ValueError
        For length outside 1…3.
    """
    import sympy

    if whole_number(length, "length", 1) > 3:
        raise ValueError(f"length must be 1, 2 or 3, got {length}")
    # One position. q f ≥ p: o = q f ≤ ω p by the rule. q f < p: o = p − d + R d/short with R = short − excess ≤ short.
    d, rest, excess = sympy.symbols("d rest excess", nonnegative=True)
    short = d + rest
    slack = sympy.simplify(d - (short - excess) * d / short)
    one = bool(sympy.simplify(slack - d * excess / short) == 0)

    def cases() -> Iterator[str | None]:
        factors = list(product(FACTORS[::2], repeat=length))
        for p, q in pairs(2, 7 - length, positive=False):
            for omega in factors:
                cap = ONE
                for w in omega:
                    cap *= max(w, ONE)
                ratio = rational_round(always(p), always(q), relaxed(omega), length).max_ratio
                within = ratio is not None and ratio <= cap
                yield None if within else f"p = {show(p)}, q = {show(q)}, ω = {show(omega)}: ratio {ratio} > {cap}"

    count, failure = first_failure(cases())
    return Proof(
        "P̂/P ≤ Π max(1, ω_i) for f_i = min(1, ω_i p/q) with G*",
        "likelihood-ratio cap of a round, this project",
        one and failure is None,
        f"p − o = d·excess/short ≥ 0 where q f < p, reduced; {count} rational rounds on 2 tokens, L = {length}",
        failure,
    )
