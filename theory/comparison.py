"""Rules at equal cost: bound, TV and both KLs of one round and per token, with block and token-wise verification.

Sizes are fractions t of the way from lossless to accepting everything. One round: N = N₀ + t (L − N₀), N₀ the accepted
length of token-wise lossless decoding. A sequence of T tokens: the same with tokens per call. Every family is brought
to the wanted cost by its one strength, so what differs is the law alone (THEORY 4 and 7). Where the cost jumps
(thresholds, top-k, groups) a coin tossed before each test joins the two sides of the jump. A row's status says how:

========  ============================================================================================================
met       at the wanted cost
coin      at the wanted cost, by a coin between two members of the family
faster    the most cautious member already accepts more than wanted, and is shown; if lossless, its divergences are zero
short     the boldest member accepts less than wanted, and is shown; not to be read as a row at equal cost
========  ============================================================================================================

>>> from theory.chains import IIDChain
>>> target, draft = IIDChain([0.5, 0.3, 0.2]), IIDChain([0.2, 0.3, 0.5])
>>> rows = compare_rounds(target, draft, block_families(2), 2, [0.3])
>>> [(row.family, round(float(row.kl_output_target), 4)) for row in rows]
[('token-wise uniform', 0.0522), ('token-wise annealed', 0.0647), ('lifted uniform', 0.0354), \
('capped uniform', 0.0346), ('capped excess', 0.0339)]

The same against published rules, each with its own residual:

>>> chosen = ("uniform", "LANTERN++", "top-k", "capped excess block")
>>> families = [f for f in as_published(every_family([[0.0], [1.0], [3.0]], 2)) if f.rule in chosen]
>>> for row in compare_rounds(target, draft, families, 2, [0.3]):
...     print(f"{row.family}: {row.status}, KL {row.kl_output_target:.4f}")
uniform: met, KL 0.0522
LANTERN++: coin, KL 0.0522
top-k: coin, KL 0.1497
capped excess block: met, KL 0.0339
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple, TypeAlias

from theory.arrays import real_number, whole_number
from theory.blocks import block, capped_block, lifted_block
from theory.chains import Chain
from theory.distortion import Randomised
from theory.families import DECAY, schedule_families
from theory.numbers import Bound, Exact
from theory.published import published_verifier
from theory.rounds import RoundAnalysis, analyse_round
from theory.rule_families import Family, rule_families, with_residuals
from theory.rules import AcceptAll, Lossless, RankGrouped, Relaxed
from theory.schedules import excess_schedule
from theory.sequences import SequenceAnalysis, analyse_sequence
from theory.verifiers import AnyVerifier, Verifier

BlockFamily = Callable[[float], AnyVerifier]
Families: TypeAlias = "Mapping[str, BlockFamily] | Sequence[Family]"
Status: TypeAlias = Literal["met", "coin", "faster", "short"]

LARGEST_STRENGTH = 30.0
"""Bracket of the strength: ω = e^30 accepts every token that the target charges at all."""

EQUAL_COST = 1e-7
"""Largest difference of cost between rows at equal cost. A divergence moves by its slope in the cost times this."""

TRIES, FINEST = 20, 1e-4
"""Steps in which a search for a continuous cost ends; if it does not, strengths this near (log1p above the least) are
the two sides of a jump, joined by a coin."""


def block_families(length: int) -> dict[str, BlockFamily]:
    """Families in one strength s ≥ 0, lossless at s = 0, for blocks of `length` tokens.

    ====================  ====================================================================
    token-wise uniform    ω = e^s
    token-wise annealed   COOL-SD with the floor: max(1, ω_i), exponential ν = .7
    lifted uniform        block verification against the law of token-wise uniform
    capped uniform        capped block verification, ω = e^s
    capped excess         capped block verification, ω_i = 1 + (e^s − 1) e^{−.7 i}
    ====================  ====================================================================
    """
    token_wise = schedule_families(length)
    return {
        "token-wise uniform": token_wise["uniform"],
        "token-wise annealed": token_wise["annealed, floored"],
        "lifted uniform": lambda s: lifted_block(token_wise["uniform"](s)),
        "capped uniform": lambda s: capped_block(math.exp(s)),
        "capped excess": lambda s: capped_block(excess_schedule(length, math.expm1(s), DECAY)),
    }


def every_family(embedding: Any, length: int) -> list[Family]:
    """Every rule of `published_rules` as a family, then block verification.

    Parameters
    ----------
    embedding : array, shape (V, D), V ≥ 3
        Codebook rows; see `rule_families`, whose families these include.
    length : int
        L ≥ 2 (at L = 1 COOL-SD is the uniform rule).

    Returns
    -------
    list of Family
        Rules with their names in `published_rules`, and "COOL-SD, floored" and "FSD (JS)". Rules without a strength
        join too: "lossless" and "lossless block" have one member, and accept-all is one end of a coin whose other end
        is lossless. Blocks: "lifted uniform block", "capped uniform block", "capped excess block".
    """
    length = whole_number(length, "length", 2)
    families, size = rule_families(embedding, length), float(len(embedding))
    families += with_residuals(
        "excess schedule", lambda s: Relaxed(excess_schedule(length, s, DECAY)), 0.0, 1e4, published=False
    )
    families += with_residuals("GSD, partition by rank", lambda s: RankGrouped(int(s)), 1.0, size)
    nothing, everything = published_verifier(Lossless()), published_verifier(AcceptAll())
    families += [
        Family("accept-all", "published", lambda s: everything if s >= 1 else nothing, 0.0, 1.0),
        Family("lossless", "published", lambda s: nothing, 0.0, 0.0),
        Family("lossless block", "block", lambda s: block(length), 0.0, 0.0),
    ]
    blocks = {name: build for name, build in block_families(length).items() if not name.startswith("token-wise")}
    return families + [Family(f"{name} block", "block", blocks[name], 0.0, LARGEST_STRENGTH) for name in blocks]


def as_published(families: Sequence[Family]) -> list[Family]:
    """One family a rule: the one with the residual of its own paper, for LANTERN that of the first branch.

    In `rule_families` it stands first, except that mentored's own residual is the KL one.
    """
    chosen: dict[str, Family] = {}
    for family in families:
        if family.rule not in chosen or (family.rule, family.residual) == ("mentored", "kl"):
            chosen[family.rule] = family
    return list(chosen.values())


class Comparison(NamedTuple):
    """One family at one size; see `compare_rounds` and `compare_sequences`."""

    family: str
    size: float
    """t."""
    strength: float
    """Of the member shown; of the more cautious of two joined by a coin."""
    cost: Exact
    """Accepted length N of a round, or tokens per call of a sequence."""
    tv_bound: Bound
    total_variation: Exact
    kl_output_target: Exact
    kl_target_output: Exact
    residual: str = ""
    status: Status = "met"
    wanted: float = math.nan
    """The cost asked for."""


class _Search:
    """Members of one family by cost; what one size has evaluated narrows the search for the next."""

    def __init__(self, family: Family, cost: Callable[[AnyVerifier], float]) -> None:
        self.family, self.cost = family, cost
        self.width = math.log1p(family.high - family.low)
        self.known: dict[float, float] = {}
        self.jumps = False

    def build(self, u: float) -> tuple[AnyVerifier, float]:
        strength = self.family.high if u >= self.width else self.family.low + math.expm1(u)
        return self.family.build(strength), strength

    def excess(self, u: float, wanted: float) -> float:
        if u not in self.known:
            self.known[u] = float(self.cost(self.build(u)[0]))
        return _rounded(self.known[u] - wanted)

    def bracket(self, wanted: float) -> tuple[float, float]:
        """The first two neighbouring strengths evaluated so far between which the cost passes the wanted one."""
        both = pairwise(sorted(self.known))
        return next((a, b) for a, b in both if self.excess(a, wanted) <= 0 <= self.excess(b, wanted))

    def member(self, wanted: float) -> tuple[AnyVerifier, float, Status]:
        from scipy.optimize import brentq

        least, most = self.excess(0.0, wanted), self.excess(self.width, wanted)
        if least >= 0:
            return *self.build(0.0), "faster" if least > 0 else "met"
        if most <= 0:
            return *self.build(self.width), "short" if most < 0 else "met"
        if not self.jumps:
            # Blocks toss no coin, and need none: their cost is continuous.
            tries = 200 if self.build(0.0)[0].stateful else TRIES
            ends = self.bracket(wanted)
            found = float(brentq(self.excess, *ends, (wanted,), xtol=1e-15, maxiter=tries, disp=False))
            if self.excess(found, wanted) == 0:
                return *self.build(found), "met"
            self.jumps = True
        a, b = self.bracket(wanted)
        while b - a > FINEST:
            self.excess((a + b) / 2, wanted)
            a, b = self.bracket(wanted)
        (low, strength), (high, _) = self.build(a), self.build(b)
        weight = brentq(lambda w: _rounded(self.cost(Randomised(low, high, w)) - wanted), 0.0, 1.0, xtol=1e-15)
        return Randomised(low, high, float(weight)), strength, "coin"


def _rounded(difference: float) -> float:
    return 0.0 if abs(difference) <= EQUAL_COST else difference


def _compare(
    analyse: Callable[[AnyVerifier], RoundAnalysis | SequenceAnalysis],
    cost: Callable[[RoundAnalysis | SequenceAnalysis], Exact],
    families: Families,
    sizes: Sequence[float],
    most: float,
    divide: int,
) -> list[Comparison]:
    if named := isinstance(families, Mapping):
        families = [Family(name, "", build, 0.0, LARGEST_STRENGTH) for name, build in families.items()]
    least = cost(analyse(Verifier(Lossless())))
    searches = [_Search(family, lambda v: cost(analyse(v))) for family in families]
    rows = []
    for size in sizes:
        wanted = least + real_number(size, "size", least=0.0, most=1.0) * (most - least)
        for search in searches:
            verifier, strength, status = search.member(wanted)
            a, (name, residual) = analyse(verifier), (search.family.rule, search.family.residual)
            if named and status == "short":
                raise ValueError(f"{name!r} cannot reach size {size}: its cost stops at {cost(a)} of {wanted}")
            bound, kls = Bound(a.tv_bound / divide), (a.kl_output_target / divide, a.kl_target_output / divide)
            numbers = (bound, a.total_variation, Exact(kls[0]), Exact(kls[1]))
            rows.append(Comparison(name, size, strength, cost(a), *numbers, residual, status, wanted))
    return rows


def compare_rounds(
    target: Chain, draft: Chain, families: Families, length: int, sizes: Sequence[float]
) -> list[Comparison]:
    """One round of every family at equal accepted length.

    Parameters
    ----------
    target, draft : Chain
        Small enough to enumerate L+1 tokens.
    families : dict or sequence of Family
        Name → function strength → verifier, lossless at 0 (`block_families`, `schedule_families`); or families with
        ranges of their own (`every_family`), whose cost need be neither continuous nor monotone in the strength.
    length : int
        L ≥ 1.
    sizes : sequence of floats in [0, 1]

    Returns
    -------
    list of Comparison
        For each size, the families in their order. Where the cost is not monotone, the first crossing found is shown.

    Raises
    ------
    ValueError
        For a size outside [0, 1], one that a family of a dict cannot reach, or chains too large to enumerate.
    """
    length = whole_number(length, "length", 1)

    def cost(a: RoundAnalysis | SequenceAnalysis) -> Exact:
        return Exact(a.tokens_per_call - 1)

    return _compare(lambda v: analyse_round(target, draft, v, length), cost, families, sizes, length, 1)


def compare_sequences(
    target: Chain, draft: Chain, families: Families, length: int, tokens: int, sizes: Sequence[float]
) -> list[Comparison]:
    """T tokens of every family at equal tokens per call; bound and KLs are per token, TV is the whole sequence's.

    Arguments and errors as for `compare_rounds`; `tokens` is T ≥ 1. The cost at size one is that of accepting every
    draft, the cut-off at the last token included.
    """
    length, tokens = whole_number(length, "length", 1), whole_number(tokens, "tokens", 1)
    most = tokens / math.ceil(tokens / (length + 1))
    return _compare(
        lambda v: analyse_sequence(target, draft, v, length, tokens),
        lambda a: a.tokens_per_call,
        families,
        sizes,
        most,
        tokens,
    )


def ratios(rows: Sequence[Comparison], reference: str = "token-wise uniform") -> list[dict[str, float | str]]:
    """Bound, TV and KLs of each row over those of the reference family at the same size; NaN for 0/0.

    Of several rows of the reference family at one size (one a residual) the first counts. Keys: family, residual,
    status, size and the four quantities; only rows of status met and coin are at the reference's cost.

    Raises
    ------
    ValueError
        If a size has no row of the reference family.
    """
    base = {row.size: row for row in reversed(rows) if row.family == reference}
    names = ("tv_bound", "total_variation", "kl_output_target", "kl_target_output")
    out: list[dict[str, float | str]] = []
    for row in rows:
        if row.size not in base:
            raise ValueError(f"no row of {reference!r} at size {row.size}; compare it together with the others")
        line: dict[str, float | str] = {"family": row.family, "size": row.size}
        line |= {"residual": row.residual, "status": row.status}
        for name in names:
            value, against = float(getattr(row, name)), float(getattr(base[row.size], name))
            line[name] = value / against if against > 0 else math.nan
        out.append(line)
    return out
