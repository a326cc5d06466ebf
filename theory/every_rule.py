"""Block verification against every published rule at equal cost: bound, TV and both KLs, one round or per token.

Cost is the expected accepted length of a round, or the tokens per call of T tokens. A size t is the share of the way
from lossless to accepting every draft. Rules are taken with the residual they were published with; where acceptance
jumps a coin between the two sides of the jump meets the cost (`theory.matching`).
A family that cannot meet it is shown at its nearest end with ``matched`` False: for a block rule whose lossless
member already costs less target calls than asked for, that end has no divergence at all.

>>> from theory.chains import IIDChain
>>> target, draft = IIDChain([0.5, 0.3, 0.2]), IIDChain([0.2, 0.3, 0.5])
>>> rows = compare_every_rule(target, draft, 2, [[0.0], [1.0], [2.0]], [0.5])
>>> best = min((row for row in rows if row["matched"]), key=lambda row: row["kl_output_target"])
>>> best["rule"], best["residual"]
('capped excess', 'block')
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from theory.arrays import real_number, whole_number
from theory.chains import Chain
from theory.comparison import LARGEST_STRENGTH, block_families
from theory.known_steps import KnownRun
from theory.matching import Matcher
from theory.rule_families import IMPROVED, Family, rule_families
from theory.rules import AcceptAll, Lossless
from theory.verifiers import AnyVerifier, Verifier

OWN = {"mentored": "kl"}
"""The residual of rules published with one that others can be given too; G* where nothing is said."""
BLOCKS = ("lifted uniform", "capped uniform", "capped excess")


def league_families(embedding: Any, length: int) -> list[Family]:
    """The block families, then every published rule once, with the residual it was published with.

    LANTERN's branches are three published residuals and appear three times.
    """
    blocks = block_families(length)
    families = [Family(name, "block", blocks[name], 0.0, LARGEST_STRENGTH) for name in BLOCKS]
    published = rule_families(embedding, length)
    own = {family.rule for family in published if family.residual not in IMPROVED}
    for family in published:
        chosen = family.rule not in own and family.residual == OWN.get(family.rule, "optimal")
        if chosen or family.residual not in IMPROVED:
            families.append(family)
    return families


def _asked(run: KnownRun, build: Callable[[float], AnyVerifier], strength: float) -> AnyVerifier:
    return run.asked(build(strength))


def compare_every_rule(
    target: Chain,
    draft: Chain,
    length: int,
    embedding: Any,
    sizes: Sequence[float],
    tokens: int | None = None,
) -> list[dict[str, Any]]:
    """Every published rule and block verification at equal cost.

    Parameters
    ----------
    target, draft : Chain
        Small enough to enumerate L+1 tokens, or `tokens`.
    length : int
        L ≥ 1.
    embedding : array, shape (V, D), V ≥ 3
        Codebook rows, for the rules that pool tokens.
    sizes : sequence of floats in [0, 1]
    tokens : int, optional
        T of whole sequences; one round where absent.

    Returns
    -------
    list of dict
        For each size one row a family: size, rule, residual, strength, matched, cost, tv_bound, total_variation,
        kl_output_target, kl_target_output, max_ratio, support_leakage (mass where the target has none). For sequences
        bound and KLs are per token, the rest is of the whole sequence.

    Raises
    ------
    ValueError
        For a size outside [0, 1], or chains too large to enumerate.
    """
    length = whole_number(length, "length", 1)
    divide = 1 if tokens is None else whole_number(tokens, "tokens", 1)

    run = KnownRun(target, draft, length, tokens)
    least, most = (run.cost(Verifier(rule)) for rule in (Lossless(), AcceptAll()))
    wanted = [least + real_number(size, "size", least=0.0, most=1.0) * (most - least) for size in sizes]
    searches = [
        Matcher(replace(family, build=partial(_asked, run, family.build)), run.cost)
        for family in league_families(embedding, length)
    ]
    rows = []
    for size, value in zip(sizes, wanted, strict=True):
        for search in searches:
            verifier, strength, matched = search.at(value)
            a = run.analyse(verifier)
            rows.append(
                {
                    "size": size,
                    "rule": search.family.rule,
                    "residual": search.family.residual,
                    "strength": strength,
                    "matched": matched,
                    "cost": float(a.tokens_per_call),
                    "tv_bound": float(a.tv_bound) / divide,
                    "total_variation": float(a.total_variation),
                    "kl_output_target": float(a.kl_output_target) / divide,
                    "kl_target_output": float(a.kl_target_output) / divide,
                    "max_ratio": float(a.max_ratio),
                    "support_leakage": float(a.law[a.target_law == 0].sum()),
                }
            )
    return rows
