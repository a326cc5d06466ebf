"""The rows of the claims ledger about other methods: LANTERN, GSD, CSD, SJD, DIVERSED, Yin et al., CASCADE.

See `claims` for what a row is.

>>> lantern_budget().counterexample
'p = 1/4 1/4 1/2, q = 1/2 1/2 0, neighbours in index order, δ = 1/4: TV 1/2'
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import product

import numpy as np

from theory.claims import Claim, judge
from theory.claims_cool_sd import from_proof
from theory.proofs import Proof, first_failure, prove_one_position_line
from theory.rationals import (
    ONE,
    ZERO,
    Conditional,
    Law,
    Prefix,
    Residual,
    better_residuals,
    distance,
    laws,
    optimal,
    output,
    pairs,
    show,
    vanilla,
)
from theory.rules import EntropyRelaxed, Grouped, Lossless

MARGIN = 1e-12
"""Float comparisons of single steps: rounding stays below 1e-14."""


def pooled(p: Law, delta: Fraction) -> Law:
    """p(x) + S_m, neighbours of x being the other tokens by distance of index, ties to the lower."""
    out = []
    for x in range(len(p)):
        total, best = ZERO, ZERO
        for y in sorted((y for y in range(len(p)) if y != x), key=lambda y: (abs(y - x), y)):
            total += p[y]
            best = total if total <= delta else best
        out.append(p[x] + best)
    return tuple(out)


def _budget(drafts: Callable[[int, int], Iterator[tuple[Law, Law]]], claim: str) -> Claim:
    largest = ZERO

    def cases() -> Iterator[str | None]:
        nonlocal largest
        for size in (2, 3, 4):
            for p, q in drafts(size, 4 if size < 4 else 5):
                for delta in (Fraction(1, 10), Fraction(1, 4), Fraction(2, 5)):
                    accepted = tuple(map(min, q, pooled(p, delta)))
                    tv = distance(output(accepted, optimal(p, q, accepted)), p)
                    largest = max(largest, tv / delta)
                    yield (
                        f"p = {show(p)}, q = {show(q)}, neighbours in index order, δ = {delta}: TV {tv}"
                        if tv > delta
                        else None
                    )

    count, failure = first_failure(cases())
    verdict, example = judge(failure)
    computed = f"{count} rational steps with the optimal residual, largest TV/δ = {largest}"
    return Claim(claim, "LANTERN 2410.03355", "reconstructed", computed, verdict, example)


def lantern_budget() -> Claim:
    """δ limits what one token may borrow, not the sum over tokens."""
    return _budget(
        lambda size, largest: pairs(size, largest, positive=False),
        "pooling at most δ keeps the output within TV δ of p",
    )


def lantern_budget_one_hot() -> Claim:
    """A draft that proposes one token for certain: only one token borrows."""

    def drafts(size: int, largest: int) -> Iterator[tuple[Law, Law]]:
        for denominator, x in product(range(2, largest + 1), range(size)):
            for p in laws(size, denominator, positive=False):
                yield p, tuple(Fraction(y == x) for y in range(size))

    return _budget(drafts, "the same for a draft that is certain of its token (greedy or top-k trees)")


def gsd_theorem_1() -> Claim:
    """The statement was not available; what can be said of the rule is said."""
    rule, wasteful, count = Grouped(None, ranks=1, delta_p=0.15, distance=float("inf")), 0, 0
    example = None
    for p, q in pairs(3, 6):
        a, b = np.array(p, float), np.array(q, float)
        f, least = rule.acceptance(a, b, 0), Lossless().acceptance(a, b, 0)
        count += 1
        if (f < least - MARGIN).any():
            wasteful += 1
            x = int(np.argmax(f < least - MARGIN))
            example = example or f"p = {show(p)}, q = {show(q)}: f({x}) = {f[x]:.4f} < {least[x]:.4f}"
    return Claim(
        "Theorem 1 (statement not available)",
        "GSD 2508.07747, Theorem 1",
        "not available",
        f"its f (±1 rank, δ_p = .15) falls below lossless in {wasteful} of {count} rational pairs on 3 tokens, "
        f"first {example}",
        "not decidable here",
    )


def csd_residual(residual: Callable[[Law, Law, Law], Law] = vanilla) -> Claim:
    """CSD's Norm[p − q]_+ for its own f: best at one position, and in a round by search."""
    rule = EntropyRelaxed(0.25, 0.65)

    def accept(p: Law, q: Law) -> Law:
        f = rule.acceptance(np.array(p, float), np.array(q, float), 0)
        # The entropy is irrational; the float's own rational value is exact from here on. p/q stays exact.
        raised = (Fraction(float(x)).limit_denominator(10**6) for x in f)
        return tuple(max(min(a, b), min(b, b * x)) for a, b, x in zip(p, q, raised, strict=True))

    def cases() -> Iterator[str | None]:
        others = list(laws(3, 4, positive=False))
        for p, q in pairs(3, 5):
            a = accept(p, q)
            tv = distance(output(a, residual(p, q, a)), p)
            g = min(others, key=lambda g: distance(output(a, g), p))
            better = distance(output(a, g), p) < tv
            yield f"p = {show(p)}, q = {show(q)}: G = {show(g)} is better than {float(tv):.5f}" if better else None

    count, failure = first_failure(cases())
    rounds, exact = first_failure(better_residuals(accept))
    verdict, example = judge(failure, exact and f"λ = 1/4, δ = .65, {exact}")
    return Claim(
        "Norm[p − q]_+ is the best residual for its relaxed acceptance",
        "CSD 2606.27829",
        "reconstructed",
        f"{count} rational steps against all G with denominator 4; {rounds} rounds of two with residuals of equal B",
        verdict,
        example,
    )


def jacobi_law(
    target: Conditional, size: int, window: int, tokens: int, residual: Residual = optimal
) -> dict[Prefix, Fraction]:
    """Exact law of the first `tokens` tokens of speculative Jacobi decoding, by enumeration.

    Every slot of the window holds a token and the law it was drawn from: at first a uniform random token, declared as
    one-hot; after a pass, the target's conditional on the window as it stood. Slots are verified left to right against
    the target on the window; at the first rejection the token is replaced from the residual and all later slots are
    redrawn from this pass's conditionals. Source: SJD 2410.01699.
    """
    Slot = tuple[int, Law]
    states: dict[tuple[Prefix, tuple[Slot, ...]], Fraction] = {((), ()): ONE}
    done: dict[Prefix, Fraction] = {}
    while states:
        grown: dict[tuple[Prefix, tuple[Slot, ...]], Fraction] = {}

        def put(prefix: Prefix, slots: tuple[Slot, ...], mass: Fraction, grown: dict = grown) -> None:  # type: ignore[type-arg]
            if not mass:
                return
            if len(prefix) >= tokens:
                done[prefix[:tokens]] = done.get(prefix[:tokens], ZERO) + mass
            else:
                grown[prefix, slots] = grown.get((prefix, slots), ZERO) + mass

        for (prefix, kept), mass in states.items():
            for fresh in product(range(size), repeat=window - len(kept)):
                slots = (*kept, *((x, tuple(Fraction(y == x) for y in range(size))) for x in fresh))
                conditionals = [target((*prefix, *(x for x, _ in slots[:i]))) for i in range(window)]
                alive = mass / size ** len(fresh)
                for i, ((x, q), p) in enumerate(zip(slots, conditionals, strict=True)):
                    f = min(ONE, p[x] / q[x])
                    emitted = residual(p, q, tuple(map(min, p, q)))
                    head = (*prefix, *(y for y, _ in slots[:i]))
                    for y, *rest in product(range(size), repeat=window - i):
                        later = tuple(zip(rest, conditionals[i + 1 :], strict=True))
                        weight = alive * (1 - f) * emitted[y]
                        for z, law in later:
                            weight *= law[z]
                        put((*head, y), later, weight)
                    alive *= f
                put((*prefix, *(x for x, _ in slots)), (), alive)
        states = grown
    return done


def sjd_lossless(residual: Residual = optimal) -> Claim:
    """Enumerate speculative Jacobi decoding on small Markov targets and compare with the target's law."""

    def cases() -> Iterator[str | None]:
        grid = [law for d in (3, 4) for law in laws(2, d)]
        for first, zero, one in product(grid[:3], grid, grid):
            table = (zero, one)

            def target(prefix: Prefix, first: Law = first, table: tuple[Law, Law] = table) -> Law:
                return table[prefix[-1]] if prefix else first

            found = jacobi_law(target, 2, 2, 3, residual)
            off = ZERO
            for path in product(range(2), repeat=3):
                own = ONE
                for i, x in enumerate(path):
                    own *= target(path[:i])[x]
                off += abs(found.get(path, ZERO) - own) / 2
            yield (
                f"p_1 = {show(first)}, then {show(zero)} or {show(one)}, window 2: TV {off} of 3 tokens"
                if off
                else None
            )

    count, failure = first_failure(cases())
    verdict, example = judge(failure)
    return Claim(
        "speculative Jacobi decoding keeps the target's law",
        "SJD 2410.01699",
        "sure",
        f"exact law of 3 tokens, window 2, {count} Markov targets on 2 tokens, equality in rationals",
        verdict,
        example,
    )


def ensemble_law(residual: Residual = vanilla) -> Claim:
    """f = min(1, π/q) with its published residual emits exactly π = (1−η) p + η q."""

    def cases() -> Iterator[str | None]:
        for (p, q), eta in product(pairs(3, 5, positive=False), (ZERO, Fraction(1, 3), Fraction(1, 2), ONE)):
            mixture = tuple((1 - eta) * a + eta * b for a, b in zip(p, q, strict=True))
            accepted = tuple(map(min, q, mixture))
            out = output(accepted, residual(p, q, accepted))
            yield None if out == mixture else f"p = {show(p)}, q = {show(q)}, η = {eta}: output {show(out)}"

    count, failure = first_failure(cases())
    verdict, example = judge(failure)
    return Claim(
        "the output law of a step is exactly π = (1−η) p + η q",
        "DIVERSED 2604.07622",
        "sure",
        f"{count} rational steps on 3 tokens, equality in rationals",
        verdict,
        example,
    )


def one_line(proof: Callable[[], Proof] = prove_one_position_line) -> Claim:
    """Bias + rejection = TV(p, q) + waste; without waste it is Yin et al.'s line."""
    return from_proof(proof(), "bias + rejection = TV(p, q) at one position for every f ≥ lossless")


def _needs_networks(claim: str, needed: str) -> Claim:
    return Claim(
        claim, "CASCADE 2605.07230", "reconstructed", f"needs {needed}; theory has laws only", "not decidable here"
    )


def cascade_breadth() -> Claim:
    return _needs_networks(
        "sibling tokens are semantically interchangeable in the target's hidden states",
        "hidden states of a real target over verified trees (validate measures them)",
    )


def cascade_depth() -> Claim:
    return _needs_networks(
        "continuations under different parents converge along depth",
        "hidden states of a real target along the branches of verified trees (validate measures them)",
    )
