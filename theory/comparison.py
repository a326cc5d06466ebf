"""Rules at equal cost: bound, TV and both KLs of one round and per token, with block and token-wise verification.

Sizes are fractions t of the way from lossless to accepting everything. One round: N = N₀ + t (L − N₀), N₀ the accepted
length of token-wise lossless decoding. A sequence of T tokens: the same with tokens per call. Every family is brought
to the wanted cost by its one strength, so what differs is the law alone. A family whose lossless
member already exceeds the wanted cost stays lossless, and all its divergences are zero.

>>> from theory.chains import IIDChain
>>> target, draft = IIDChain([0.5, 0.3, 0.2]), IIDChain([0.2, 0.3, 0.5])
>>> rows = compare_rounds(target, draft, block_families(2), 2, [0.3])
>>> [(row.family, round(float(row.kl_output_target), 4)) for row in rows]
[('token-wise uniform', 0.0522), ('token-wise annealed', 0.0647), ('lifted uniform', 0.0354), \
('capped uniform', 0.0346), ('capped excess', 0.0339)]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from theory.annealing import match
from theory.arrays import real_number, whole_number
from theory.blocks import capped_block, lifted_block
from theory.chains import Chain
from theory.families import DECAY, schedule_families
from theory.numbers import Bound, Exact
from theory.rounds import RoundAnalysis, analyse_round
from theory.rules import Lossless
from theory.schedules import excess_schedule
from theory.sequences import SequenceAnalysis, analyse_sequence
from theory.verifiers import AnyVerifier, Verifier

BlockFamily = Callable[[float], AnyVerifier]

LARGEST_STRENGTH = 30.0
"""Bracket of the strength: ω = e^30 accepts every token that the target charges at all."""


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


class Comparison(NamedTuple):
    """One family at one size; see `compare_rounds` and `compare_sequences`."""

    family: str
    size: float
    """t."""
    strength: float
    cost: Exact
    """Accepted length N of a round, or tokens per call of a sequence."""
    tv_bound: Bound
    total_variation: Exact
    kl_output_target: Exact
    kl_target_output: Exact


def _compare(
    analyse: Callable[[AnyVerifier], RoundAnalysis | SequenceAnalysis],
    cost: Callable[[RoundAnalysis | SequenceAnalysis], Exact],
    families: dict[str, BlockFamily],
    sizes: Sequence[float],
    most: float,
    divide: int,
) -> list[Comparison]:
    least = cost(analyse(Verifier(Lossless())))
    rows = []
    for size in sizes:
        wanted = least + real_number(size, "size", least=0.0, most=1.0) * (most - least)
        for name, family in families.items():
            strength = 0.0
            if cost(analyse(family(0.0))) < wanted:
                strength = match(family, lambda v: cost(analyse(v)), wanted, 0.0, LARGEST_STRENGTH, tolerance=1e-7)
            a = analyse(family(strength))
            divergences = (a.kl_output_target, a.kl_target_output)
            rows.append(
                Comparison(
                    name,
                    size,
                    strength,
                    cost(a),
                    Bound(a.tv_bound / divide),
                    a.total_variation,
                    *(Exact(d / divide) for d in divergences),
                )
            )
    return rows


def compare_rounds(
    target: Chain, draft: Chain, families: dict[str, BlockFamily], length: int, sizes: Sequence[float]
) -> list[Comparison]:
    """One round of every family at equal accepted length.

    Parameters
    ----------
    target, draft : Chain
        Small enough to enumerate L+1 tokens.
    families : dict
        Name → function strength → verifier, lossless at 0; `block_families` or `schedule_families`.
    length : int
        L ≥ 1.
    sizes : sequence of floats in [0, 1]

    Returns
    -------
    list of Comparison
        For each size, the families in their order.

    Raises
    ------
    ValueError
        For a size outside [0, 1], one that a family cannot reach, or chains too large to enumerate.
    """
    length = whole_number(length, "length", 1)

    def cost(a: RoundAnalysis | SequenceAnalysis) -> Exact:
        return Exact(a.tokens_per_call - 1)

    return _compare(lambda v: analyse_round(target, draft, v, length), cost, families, sizes, length, 1)


def compare_sequences(
    target: Chain, draft: Chain, families: dict[str, BlockFamily], length: int, tokens: int, sizes: Sequence[float]
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

    Raises
    ------
    ValueError
        If a size has no row of the reference family.
    """
    base = {row.size: row for row in rows if row.family == reference}
    names = ("tv_bound", "total_variation", "kl_output_target", "kl_target_output")
    out: list[dict[str, float | str]] = []
    for row in rows:
        if row.size not in base:
            raise ValueError(f"no row of {reference!r} at size {row.size}; compare it together with the others")
        line: dict[str, float | str] = {"family": row.family, "size": row.size}
        for name in names:
            value, against = float(getattr(row, name)), float(getattr(base[row.size], name))
            line[name] = value / against if against > 0 else math.nan
        out.append(line)
    return out
