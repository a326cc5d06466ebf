"""Beyond total variation: rules side by side at equal acceptance.

With f ≥ lossless and the optimal residual every rule lies on the line TV(o, p) + R = TV(p, q) (2411.00841), so at
equal acceptance one-position TV cannot tell them apart. These can:

* KL both ways, largest ratio o/p
* support leakage: mass of the output on tokens with p = 0
* transport cost: least expected distance, in the codebook, between an emitted token and a target token

Rules meet an acceptance exactly (`matching`): by their strength, and where acceptance jumps (thresholds, top-k) by a
coin between the two sides of the jump. Over a round the expected accepted length is
matched instead, and laws of L+1 tokens are compared; the cost of a sequence is the sum over its tokens.

>>> points = [[0.0], [1.0], [2.0]]
>>> for row in compare_rules([0.5, 0.3, 0.2], [0.1, 0.25, 0.65], points, 0.8, rule_families(points)[:2]):
...     print(row["rule"], row["residual"], [round(row[key], 4) for key in ("total_variation", "kl_output_target")])
uniform optimal [0.25, 0.1752]
uniform kl [0.25, 0.1661]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from theory.arrays import as_floats, probabilities, real_number, same_vocabulary, to_numpy
from theory.chains import Chain
from theory.distances import kl_divergence, max_ratio, total_variation, transport_cost
from theory.matching import matched_verifier
from theory.rounds import analyse_round
from theory.rule_families import Family, rule_families
from theory.rules.neighbours import codebook_rows
from theory.verifiers import AnyVerifier


def distortion(law: Any, target: Any, cost: Any = None) -> dict[str, float]:
    """Every distance of an output law to its target.

    Parameters
    ----------
    law, target : array, shape (n,)
    cost : array, shape (n, n), optional
        Distance between outcomes; without it no transport cost is given.

    Returns
    -------
    dict
        total_variation, kl_output_target, kl_target_output (nats, may be ∞), max_ratio, support_leakage,
        transport_cost.
    """
    law, target = (to_numpy(as_floats(a)) for a in (law, target))
    out = {
        "total_variation": float(total_variation(law, target)),
        "kl_output_target": float(kl_divergence(law, target)),
        "kl_target_output": float(kl_divergence(target, law)),
        "max_ratio": float(max_ratio(law, target)),
        "support_leakage": float(law[target == 0].sum()),
    }
    if cost is not None:
        # The programme needs equal masses: rounding of the output's sum is divided out.
        out["transport_cost"] = transport_cost(law / law.sum(), target / target.sum(), cost)
    return out


def token_cost(embedding: Any) -> np.ndarray[Any, Any]:
    """Euclidean distance between every two codebook rows, (V, D) → (V, V)."""
    rows = codebook_rows(embedding)
    return np.asarray(np.sqrt(np.sum((rows[:, None] - rows[None, :]) ** 2, axis=-1)))


def sequence_cost(cost: np.ndarray[Any, Any], tokens: int) -> np.ndarray[Any, Any]:
    """Cost between sequences, the sum over their tokens: (V, V) → (V^n, V^n), last token fastest."""
    total = cost
    for _ in range(tokens - 1):
        total = (total[:, None, :, None] + cost[None, :, None, :]).reshape((len(total) * len(cost),) * 2)
    return total


def compare_rules(
    p: Any, q: Any, embedding: Any, acceptance: float | None = None, families: Sequence[Family] | None = None
) -> list[dict[str, Any]]:
    """Rules at one position, all at one acceptance probability.

    Parameters
    ----------
    p, q : array, shape (V,)
        Target and draft. The transport programme has V² variables: V up to about a hundred.
    embedding : array, shape (V, D)
        Codebook rows, V ≥ 3.
    acceptance : float, optional
        Σ q f to be met; half way between lossless and accept-all, 1 − TV/2, by default.
    families : sequence of Family, optional
        `rule_families(embedding)` by default.

    Returns
    -------
    list of dict
        One row a family: rule, residual, strength, matched, acceptance and the keys of `distortion`. A family that
        cannot reach the acceptance is shown at its nearest end, with matched False.
    """
    p, q = (to_numpy(probabilities(a, name)) for a, name in ((p, "p"), (q, "q")))
    same_vocabulary(p.shape[-1], q.shape[-1])
    cost = token_cost(embedding)
    if acceptance is None:
        acceptance = 1 - total_variation(p, q) / 2
    wanted = real_number(acceptance, "acceptance", least=0.0, most=1.0)

    def accepted(verifier: AnyVerifier) -> float:
        return 1 - float(verifier.step(p, q, 0).rejection)

    rows = []
    for family in rule_families(embedding) if families is None else families:
        verifier, strength, matched = matched_verifier(family, accepted, wanted)
        row = {"rule": family.rule, "residual": family.residual, "strength": strength, "matched": matched}
        row["acceptance"] = accepted(verifier)
        rows.append(row | distortion(verifier.step(p, q, 0).output, p, cost))
    return rows


def compare_rounds(
    target: Chain,
    draft: Chain,
    length: int,
    embedding: Any,
    expected_accepted: float,
    families: Sequence[Family] | None = None,
) -> list[dict[str, Any]]:
    """Rules over one round of small chains, all at one expected accepted length.

    Parameters
    ----------
    target, draft : Chain
        Of V tokens; the transport programme has V^(2(L+1)) variables, so V^(L+1) up to about a hundred.
    length : int
        L.
    embedding : array, shape (V, D)
    expected_accepted : float
        N to be met.
    families : sequence of Family, optional
        `rule_families(embedding, length)` by default.

    Returns
    -------
    list of dict
        As `compare_rules`, with expected_accepted and tv_bound in place of acceptance; distances of the laws of
        L+1 tokens.
    """
    cost = sequence_cost(token_cost(embedding), length + 1)

    def accepted(verifier: AnyVerifier) -> float:
        return float(analyse_round(target, draft, verifier, length).expected_accepted)

    rows = []
    for family in rule_families(embedding, length) if families is None else families:
        verifier, strength, matched = matched_verifier(family, accepted, expected_accepted)
        analysis = analyse_round(target, draft, verifier, length)
        row = {"rule": family.rule, "residual": family.residual, "strength": strength, "matched": matched}
        row |= {"expected_accepted": float(analysis.expected_accepted), "tv_bound": float(analysis.tv_bound)}
        rows.append(row | distortion(analysis.law.reshape(-1), analysis.target_law.reshape(-1), cost))
    return rows
