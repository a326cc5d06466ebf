"""Block verification against every published rule at equal cost: bound, TV and both KLs, one round or per token.

Cost is the expected accepted length of a round, or the tokens per call of T tokens. A size t is the share of the way
from lossless to accepting every draft. Rules are taken with their published residual (those published with G* with it);
where acceptance jumps a coin between the two sides of the jump meets the cost (`theory.matching`).
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

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from theory.arrays import real_number, whole_number
from theory.chains import Chain, joint_layers
from theory.comparison import LARGEST_STRENGTH, block_families
from theory.matching import Matcher
from theory.rounds import RoundAnalysis, analyse_round
from theory.rule_families import Family, rule_families
from theory.rules import AcceptAll, Lossless, Position
from theory.sequences import SequenceAnalysis, advance_offsets, analyse_sequence
from theory.verifiers import AnyVerifier, Step, Verifier

BLOCKS = ("lifted uniform", "capped uniform", "capped excess")


def league_families(embedding: Any, length: int) -> list[Family]:
    """The block families, then every published rule once, with the residual it was published with.

    LANTERN's branches are three published residuals and appear three times.
    """
    blocks = block_families(length)
    families = [Family(name, "block", blocks[name], 0.0, LARGEST_STRENGTH) for name in BLOCKS]
    published = rule_families(embedding, length)
    own = {family.rule for family in published if family.residual not in ("optimal", "kl")}
    return families + [
        family
        for family in published
        if family.residual not in ("optimal", "kl") or (family.residual == "optimal" and family.rule not in own)
    ]


@dataclass(frozen=True, eq=False)
class _Asked:
    """A token-wise verifier whose steps at every prefix of a run are known."""

    run: _Run
    verifier: AnyVerifier
    accepted: np.ndarray[Any, Any]
    rejection: np.ndarray[Any, Any]
    residual: np.ndarray[Any, Any]
    stateful: ClassVar[bool] = False

    @property
    def lossless(self) -> bool:
        return self.verifier.lossless

    def step(self, p: Any, q: Any, position: Position, weight: Any = None) -> Step:
        rows = self.run.rows[p.tobytes(), q.tobytes()]
        at = (rows, position) if isinstance(position, int) else rows
        return Step(self.accepted[at], self.rejection[at], self.residual[at])


class _Run:
    """Costs and analyses of many verifiers on one pair of chains, a token-wise rule being asked once for all prefixes.

    Prefixes with the same laws are one; members of a family that act alike (on a plateau) are measured once. Oracle:
    `analyse_round` and `analyse_sequence` on the verifiers themselves.
    """

    def __init__(self, target: Chain, draft: Chain, length: int, tokens: int | None) -> None:
        self.chains, self.length, self.tokens = (target, draft), length, tokens
        count = length if tokens is None else tokens
        merged, every = (list(joint_layers(target, draft, count, enumerate_prefixes=e)) for e in (False, True))
        layers = [(np.asarray(layer.target), np.asarray(layer.draft)) for layer in (*merged, *every)]
        laws, where = np.unique(np.concatenate([np.stack(a, axis=1) for a in layers]), axis=0, return_inverse=True)
        self.p, self.q = laws[:, None, 0], laws[:, None, 1]
        found = np.split(where.reshape(-1), np.cumsum([len(p) for p, _ in layers])[:-1])
        self.layers = list(zip(merged, found, strict=False))
        self.rows: dict[tuple[bytes, bytes], Any] = {
            (p.tobytes(), q.tobytes()): rows for (p, q), rows in zip(layers, found, strict=True)
        }
        self.rows[self.p.tobytes(), self.q.tobytes()] = slice(None)
        self.costs: dict[bytes, float] = {}

    def asked(self, verifier: AnyVerifier) -> AnyVerifier:
        """The same verifier with its steps known; block verifiers, whose steps depend on more, as they are."""
        if verifier.stateful or isinstance(verifier, _Asked):
            return verifier
        step = verifier.step(self.p, self.q, np.arange(self.length))
        shape = (len(self.p), self.length, self.p.shape[-1])
        accepted, residual = (np.broadcast_to(a, shape) for a in (step.accepted, step.residual))
        return _Asked(self, verifier, accepted, np.broadcast_to(step.rejection, shape[:-1]), residual)

    def analyse(self, verifier: AnyVerifier) -> RoundAnalysis | SequenceAnalysis:
        if self.tokens is None:
            return analyse_round(*self.chains, self.asked(verifier), self.length)
        return analyse_sequence(*self.chains, self.asked(verifier), self.length, self.tokens)

    def cost(self, verifier: AnyVerifier) -> float:
        """Tokens per call, without laws or divergences."""
        asked = self.asked(verifier)
        if not isinstance(asked, _Asked):
            return float(self.analyse(asked).tokens_per_call)
        output = asked.accepted + asked.rejection[..., None] * asked.residual
        key = asked.accepted.tobytes() + output.tobytes()
        if key not in self.costs:
            self.costs[key] = self._cost(asked.accepted, output)
        return self.costs[key]

    def _cost(self, accepted: np.ndarray[Any, Any], output: np.ndarray[Any, Any]) -> float:
        total = 0.0
        if self.tokens is None:
            mass = np.ones(1)
            for i, (layer, rows) in enumerate(self.layers):
                mass = layer.fold(mass[:, None] * accepted[rows, i])
                total += mass.sum()
            return float(total + 1)
        mass = np.eye(1, self.length + 1)
        for layer, rows in self.layers:
            total += mass[:, 0].sum()
            mass = layer.fold(advance_offsets(mass, accepted[rows], output[rows], layer.target))
        return float(self.tokens / total)


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

    run = _Run(target, draft, length, tokens)
    least, most = (run.cost(Verifier(rule)) for rule in (Lossless(), AcceptAll()))
    wanted = [least + real_number(size, "size", least=0.0, most=1.0) * (most - least) for size in sizes]
    searches = [
        Matcher(replace(family, build=lambda s, build=family.build: run.asked(build(s))), run.cost)
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
