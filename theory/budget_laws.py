"""Exact laws of budgeted decoding on small chains, every mode of `theory.budget`.

The state is (prefix, offset, spent, closed). In the prefix modes spent is a function of the prefix; in the others paths
to one prefix may have spent differently, so states are kept apart and merged where they are equal. A relaxation coin
changes neither the ledger nor the offset, so a step that is relaxed with probability θ is one mixed step.

>>> from theory.budget import budgeted
>>> from theory.chains import IIDChain
>>> from theory.rules import AcceptAll
>>> from theory.verifiers import Verifier
>>> target, draft = IIDChain([0.5, 0.5]), IIDChain([0.75, 0.25])
>>> a = analyse_budgeted(target, draft, budgeted(Verifier(AcceptAll()), 0.3), 2, 3)
>>> [round(float(x), 12) for x in (a.total_variation, a.certificate, a.largest_spent)]
[0.25, 0.2875, 0.3]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from theory.arrays import to_numpy, whole_number
from theory.budget import LOSSLESS, Budgeted, Ledger
from theory.chains import Chain, check_depth, joint_layers
from theory.numbers import Bound, Exact
from theory.rounds import Laws
from theory.sequences import offset_steps, target_law

LARGEST_STATES = 2**22
"""Most (prefix, offset, spent) states with their next tokens: about half a gigabyte of temporaries."""

UNREACHED = 1e-14
"""Mass that rounding of R and G can put on a path that the decoder cannot take; the largest spending ignores it."""


@dataclass(frozen=True, eq=False)
class BudgetedAnalysis(Laws):
    """What budgeted decoding does to a sequence of T tokens; see `analyse_budgeted`.

    Attributes
    ----------
    length, tokens : int
        L and T.
    ledger : str
    expected_spent, largest_spent : Exact
        The ledger after T tokens: its mean, and its largest value over all paths.
    expected_calls : Exact
        Rounds started within T tokens.
    expected_relaxed_steps : Exact
        Steps that were relaxed, bonus tokens not counted.
    certificate : Bound
        The largest spending over paths; for the TV ledger the largest 1 − Π(1 − b_t). At least the divergence named by
        the ledger, and at most ε [proved].
    """

    length: int
    tokens: int
    ledger: Ledger
    expected_spent: Exact
    largest_spent: Exact
    expected_calls: Exact
    expected_relaxed_steps: Exact
    certificate: Bound

    @property
    def tokens_per_call(self) -> Exact:
        """T over expected calls; the cut-off at the last token is included."""
        return Exact(self.tokens / self.expected_calls)

    @property
    def budgeted_divergence(self) -> Exact:
        """The exact divergence that the ledger bounds."""
        name = {"tv": "total_variation", "kl": "kl_output_target", "reverse_kl": "kl_target_output"}[self.ledger]
        value: Exact = getattr(self, name)
        return value


@dataclass
class _States:
    """Flat arrays, one entry a state; `bound` is the largest 1 − Π(1 − b) of the paths merged into it."""

    prefix: Any
    offset: Any
    spent: Any
    closed: Any
    bound: Any
    mass: Any

    def merged(self, length: int) -> _States:
        """Equal states joined; what cannot be reached dropped."""
        key = ((self.prefix * (length + 1) + self.offset) * 2 + self.closed).astype(np.float64)
        rows, index, inverse = np.unique(
            np.stack([key, self.spent], axis=1), axis=0, return_index=True, return_inverse=True
        )
        inverse = inverse.reshape(-1)
        bound = np.zeros(len(rows))
        np.maximum.at(bound, inverse, np.where(self.mass > UNREACHED, self.bound, 0.0))
        mass = np.bincount(inverse, weights=self.mass, minlength=len(rows))
        prefix, offset, spent, closed = (a[index] for a in (self.prefix, self.offset, self.spent, self.closed))
        return _States(prefix, offset, spent, closed, bound, mass)


def _advance(states: _States, rule: Budgeted, p: Any, q: Any, length: int) -> tuple[_States, float]:
    """One token: the next states and the expected number of relaxed steps."""
    size = p.shape[-1]
    if len(states.mass) * size * 2 > LARGEST_STATES:
        raise ValueError(
            f"{len(states.mass)} states with {size} tokens each are more than {LARGEST_STATES // 2}; use fewer tokens, "
            "a prefix mode with filter_budget on given sequences, or simulation"
        )
    relaxed, plain = (offset_steps(v, p, q, length, None) for v in (rule.verifier, LOSSLESS))
    prices = rule.prices(relaxed[1], p[:, None, :])
    decision = rule.decide(rule.price_at(prices[states.prefix], states.offset), states.spent, states.closed)
    drafting = states.offset < length
    at = states.prefix, np.minimum(states.offset, length - 1)
    theta = decision.relaxed[:, None]
    accepted, output = (theta * relaxed[k][at] + (1 - theta) * plain[k][at] for k in (0, 1))
    accepted = np.where(drafting[:, None], accepted, 0.0)
    output = np.where(drafting[:, None], output, p[states.prefix])
    parts = [states.mass[:, None] * accepted, states.mass[:, None] * np.clip(output - accepted, 0.0, None)]
    charge = decision.spent - states.spent
    columns = (decision.spent, decision.closed, 1 - (1 - states.bound) * (1 - charge))
    spent, closed, bound = (np.tile(np.repeat(column, size), 2) for column in columns)
    prefix = (states.prefix[:, None] * size + np.arange(size)).reshape(-1)
    following = np.repeat(states.offset + 1, size)
    offset = np.concatenate([np.minimum(following, length), np.zeros_like(following)])
    mass = np.concatenate([part.reshape(-1) for part in parts])
    kept = mass > 0
    new = _States(*(a[kept] for a in (np.tile(prefix, 2), offset, spent, closed, bound, mass)))
    return new.merged(length), float(states.mass @ (decision.relaxed * drafting))


def analyse_budgeted(target: Chain, draft: Chain, rule: Budgeted, length: int, tokens: int) -> BudgetedAnalysis:
    """Exact law, divergences, spending and calls of T tokens of budgeted decoding.

    Parameters
    ----------
    target, draft : Chain
        Of one vocabulary, at least `tokens` deep.
    rule : Budgeted
    length : int
        L ≥ 1 drafted tokens a round.
    tokens : int
        T ≥ 1.

    Raises
    ------
    ValueError
        For length or tokens < 1, a chain too shallow, different vocabularies, a schedule shorter than the round, or
        more states than can be enumerated.

    Notes
    -----
    Source: this project, budget theorem of `theory.budget`. Oracle: plain recursion over (prefix, offset, spent) in
    rational arithmetic.
    """
    if not isinstance(rule, Budgeted):
        raise TypeError(f"expected budgeted(verifier, epsilon, ...), got {rule!r}")
    length, tokens = whole_number(length, "length", 1), whole_number(tokens, "tokens", 1)
    for chain, name in ((target, "target"), (draft, "draft")):
        check_depth(chain, tokens, name, f"a sequence of {tokens} tokens")
    integers, zero = np.zeros(1, dtype=np.int64), np.zeros(1)
    states = _States(integers, integers, zero, np.zeros(1, dtype=bool), zero, np.ones(1))
    calls = steps = 0.0
    for layer in joint_layers(target, draft, tokens, enumerate_prefixes=True):
        calls += float(states.mass @ (states.offset == 0))
        states, relaxed = _advance(states, rule, to_numpy(layer.target), to_numpy(layer.draft), length)
        steps += relaxed
    size = target.vocab_size
    law = np.bincount(states.prefix, weights=states.mass, minlength=size**tokens).reshape((size,) * tokens)
    reached = states.mass > UNREACHED
    largest = float(states.spent[reached].max())
    return BudgetedAnalysis(
        _laws=lambda: (law, to_numpy(target_law(target, tokens))),
        length=length,
        tokens=tokens,
        ledger=rule.ledger,
        expected_spent=Exact(states.mass @ states.spent),
        largest_spent=Exact(largest),
        expected_calls=Exact(calls),
        expected_relaxed_steps=Exact(steps),
        certificate=Bound(states.bound[reached].max() if rule.ledger == "tv" else largest),
    )
