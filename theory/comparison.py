"""Families of block verification beside token-wise ones, each with one strength, to be compared at equal cost.

`theory.compare_every_rule` compares them with every published rule. A block family may accept more than it is asked
for even where it is lossless: then no strength meets the cost.

>>> from theory.chains import IIDChain
>>> from theory.rounds import analyse_round
>>> target, draft = IIDChain([0.5, 0.3, 0.2]), IIDChain([0.2, 0.3, 0.5])
>>> for name, family in block_families(2).items():
...     a = analyse_round(target, draft, family(0.4), 2)
...     print(f"{name}: N = {a.expected_accepted:.3f}, KL(out‖target) = {a.kl_output_target:.3f}")
token-wise uniform: N = 1.436, KL(out‖target) = 0.053
token-wise annealed: N = 1.190, KL(out‖target) = 0.000
lifted uniform: N = 1.476, KL(out‖target) = 0.053
capped uniform: N = 1.496, KL(out‖target) = 0.061
capped excess: N = 1.350, KL(out‖target) = 0.011
"""

from __future__ import annotations

import math
from collections.abc import Callable

from theory.blocks import capped_block, lifted_block
from theory.families import DECAY, schedule_families
from theory.schedules import excess_schedule
from theory.verifiers import AnyVerifier

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
