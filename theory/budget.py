"""Budgeted decoding: relax a step only if its price fits in what is left of one ledger for the whole sequence.

Let h_t be all that has happened before the draft token of step t is looked at and K_h the law of x_t given h_t. If
every path satisfies Σ_t D(K_{h_t}, p) ≤ ε, then D(P̂_{1:T}, P_{1:T}) ≤ ε for D = TV, KL(out‖p) and KL(p‖out)
[proved, this project: the chain rule of D, and its convexity over what h_t hides]; for TV also TV ≤ 1 − Π(1 − b_t). A
step's price b is that divergence of its output law o = q f + R G from p.

==============  ========================================================================================
mode            relaxed, and charged b
==============  ========================================================================================
step            iff spent + b ≤ ε; a later, cheaper step may still be relaxed
sticky          as step, until the first refusal; every later step is lossless
partial         as step, but a finite b that does not fit is used with probability (ε − spent)/b, then spent = ε;
                a full ledger relaxes nothing more, a step of price zero included
prefix          as step with the dearest b over all offsets at this prefix, charged at every offset, bonus too
prefix_partial  prefix and partial together (the default)
==============  ========================================================================================

Six conditions carry the proof, each with a broken example in the tests: b is the divergence of the law really emitted
(Σ [q f − p]_+ is only that with G*); the *next* price is inside the test; one ledger for the whole sequence; the step
is charged, not the token it emitted; the decision uses x_{<t} only; an infinite price is a refusal. A step that is not
relaxed is lossless. In the two prefix modes spent is a function of the tokens, so the likelihood of a finished
sequence needs the L+1 offsets only (`filter_budget`); `theory.budget_laws` has the laws of all modes on small chains.

p = (½, ½), q = (1, 0), accept all: each step costs TV ½, so a budget of 0.7 pays the first and two fifths of the next.

>>> from theory.rules import AcceptAll
>>> from theory.verifiers import Verifier
>>> rule = budgeted(Verifier(AcceptAll()), 0.7)
>>> first = rule.plan([0.5, 0.5], [1.0, 0.0], 0.0, 0, 2)
>>> second = rule.plan([0.5, 0.5], [1.0, 0.0], first.spent, 1, 2)
>>> [round(float(x), 12) for x in (first.relaxed, first.spent, second.relaxed, second.spent)]
[1.0, 0.5, 0.4, 0.7]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from theory.arrays import Array, array_namespace, as_floats, device, real_number
from theory.distances import kl_divergence, total_variation
from theory.numbers import Bound
from theory.rules import Lossless
from theory.sequences import by_token, checked_sequences, offset_steps, safe_log
from theory.verifiers import AnyVerifier, Verifier

Ledger: TypeAlias = Literal["tv", "kl", "reverse_kl"]
Mode: TypeAlias = Literal["prefix_partial", "prefix", "partial", "step", "sticky"]

PRICE_NOISE = 8.0
"""A price below this many machine epsilons is zero: rounding of a sum of |o − p| over rows that sum to one."""

LOSSLESS = Verifier(Lossless())


def _widened(rows: Any) -> Array:
    """Laws in float64, normalised: in float32 a KL below 1e-6 is rounding, and a thousand steps of it would be free."""
    rows = as_floats(rows)
    xp = array_namespace(rows)
    wide = xp.astype(rows, xp.float64)
    return wide / xp.sum(wide, axis=-1, keepdims=True)


class Decision(NamedTuple):
    """What one step may do, decided before its draft token is looked at; shapes (...)."""

    relaxed: Array
    """Probability θ that the step is relaxed: a coin flipped before the test; otherwise the step is lossless."""
    spent: Array
    """The ledger after the step, whatever the coin and the token."""
    closed: Array
    """Whether the ledger takes no further charge (mode "sticky")."""


@dataclass(frozen=True)
class Budgeted:
    """A token-wise verifier under a budget; see `budgeted`."""

    verifier: AnyVerifier
    epsilon: float
    ledger: Ledger = "tv"
    mode: Mode = "prefix_partial"

    def __post_init__(self) -> None:
        if not hasattr(self.verifier, "step") or self.verifier.stateful:
            raise TypeError(f"only a token-wise verifier can be budgeted, got {self.verifier!r}")
        object.__setattr__(self, "epsilon", real_number(self.epsilon, "epsilon", least=0.0))
        for value, name, allowed in ((self.ledger, "ledger", Ledger), (self.mode, "mode", Mode)):
            if value not in get_args(allowed):
                raise ValueError(f"{name} must be one of {', '.join(get_args(allowed))}, got {value!r}")

    @property
    def lossless(self) -> bool:
        return self.verifier.lossless or self.epsilon == 0

    @property
    def by_prefix(self) -> bool:
        """Whether what has been spent is a function of the tokens alone."""
        return self.mode.startswith("prefix")

    @property
    def certificate(self) -> Bound:
        """ε ≥ the divergence named by the ledger between the laws of whole sequences, whatever the chains."""
        return Bound(self.epsilon)

    def prices(self, output: Array, p: Array) -> Array:
        """Price of a step with output law o, shapes (..., V) → (...); +∞ where the ledger cannot pay it at all."""
        xp = array_namespace(output, p)
        if self.ledger == "tv":
            price = xp.asarray(total_variation(output, p), device=device(p))
        else:
            pair = (output, p) if self.ledger == "kl" else (p, output)
            price = xp.asarray(kl_divergence(*pair), device=device(p))
        return xp.where(price <= PRICE_NOISE * xp.finfo(price.dtype).eps, xp.zeros_like(price), price)

    def decide(self, price: Array, spent: Array, closed: Array) -> Decision:
        """The decision at a price and a state of the ledger, all of shape (...)."""
        xp = array_namespace(price, spent)
        finite = xp.isfinite(price)
        fits = finite & (spent + price <= self.epsilon) & ~closed
        relaxed = xp.astype(fits, price.dtype)
        after = spent + xp.where(fits, price, xp.zeros_like(price))
        if self.mode.endswith("partial"):
            full = spent >= self.epsilon
            relaxed = xp.where(full, xp.zeros_like(relaxed), relaxed)
            part = finite & ~fits & ~full
            left = xp.clip(self.epsilon - spent, 0.0, None)
            relaxed = xp.where(part, left / xp.where(part, price, xp.ones_like(price)), relaxed)
            after = xp.where(part, self.epsilon * xp.ones_like(after), after)
        return Decision(relaxed, after, closed | ~fits if self.mode == "sticky" else closed)

    def plan(self, p: Any, q: Any, spent: Any, offset: Any, length: int, closed: Any = False) -> Decision:
        """What a decoder may do at one prefix.

        Parameters
        ----------
        p, q : array, shape (..., V)
            In any precision; prices and ledger are kept in float64.
        spent : array, shape (...)
            The ledger so far, zero at the first token of a sequence.
        offset : integer array, shape (...)
            Tokens accepted so far in the round; `length` for a bonus token.
        length : int
            L.
        closed : Boolean array, shape (...)
            Of the last decision, False at the first token.
        """
        p, q = _widened(p), _widened(q)
        xp = array_namespace(p, q)
        _, output, _ = offset_steps(self.verifier, p, q, length, None)
        prices = self.prices(output, p[..., None, :])
        shape, place = tuple(prices.shape[:-1]), device(p)
        at = xp.broadcast_to(xp.asarray(offset, device=place), shape)
        spent = xp.broadcast_to(xp.asarray(spent, dtype=p.dtype, device=place), shape)
        closed = xp.broadcast_to(xp.asarray(closed, device=place), shape)
        return self.decide(self.price_at(prices, at), spent, closed)

    def price_at(self, prices: Array, offset: Array) -> Array:
        """What is charged at each offset, given the prices (..., L) of all: shape (...)."""
        xp = array_namespace(prices)
        if self.by_prefix:
            return xp.max(prices, axis=-1)
        length = prices.shape[-1]
        inside = xp.astype(xp.clip(offset, 0, length - 1), xp.int64)
        price = xp.take_along_axis(prices, inside[..., None], axis=-1)[..., 0]
        return xp.where(offset < length, price, xp.zeros_like(price))


def budgeted(verifier: AnyVerifier, epsilon: float, ledger: Ledger = "tv", mode: Mode = "prefix_partial") -> Budgeted:
    """Relax with `verifier` while the price fits what is left of ε, else be lossless.

    Parameters
    ----------
    verifier : Verifier
        Token-wise.
    epsilon : float
        ε ≥ 0, for the whole sequence: TV, or nats for the KL ledgers.
    ledger : {"tv", "kl", "reverse_kl"}
        What is budgeted: TV, KL(out‖p) or KL(p‖out). TV ≤ 1, so over hundreds of tokens KL is the one to use.
    mode : {"prefix_partial", "prefix", "partial", "step", "sticky"}
        See the module.

    Raises
    ------
    ValueError
        For ε < 0 or not finite, or an unknown ledger or mode.
    TypeError
        For a verifier that is not token-wise.

    Notes
    -----
    Source: this project, the budget theorem at the module's head. Oracle: plain recursion over (prefix, offset, spent).
    """
    return Budgeted(verifier, epsilon, ledger, mode)


@dataclass(frozen=True, eq=False)
class BudgetFilter:
    """Likelihood and ledger of given sequences; see `filter_budget`.

    Attributes
    ----------
    log_likelihood, target_log_likelihood : array, shape (...)
        log P̂(x_{1:T}), −∞ for a sequence that cannot be emitted, and log P(x_{1:T}).
    starts : array, shape (..., T)
        Posterior probability, given the tokens before t, that a round starts at token t.
    relaxed : array, shape (..., T)
        Posterior probability that token t comes from a relaxed step (bonus tokens do not).
    spent : array, shape (..., T)
        The ledger after token t.
    """

    log_likelihood: Array
    target_log_likelihood: Array
    starts: Array
    relaxed: Array
    spent: Array


def filter_budget(tokens: Any, target_probs: Any, draft_probs: Any, rule: Budgeted, length: int) -> BudgetFilter:
    """Run the offset recursion with the ledger over given sequences.

    Parameters
    ----------
    tokens, target_probs, draft_probs, length
        As for `filter_offsets`.
    rule : Budgeted
        In mode "prefix" or "prefix_partial".

    Raises
    ------
    ValueError
        For another mode, whose ledger depends on the hidden offsets, and whatever `filter_offsets` refuses.

    Notes
    -----
    Source: the offset recursion of `theory.sequences`, steps mixed by θ. Oracle: `analyse_budgeted` on chains small
    enough to enumerate.
    """
    if not rule.by_prefix:
        raise ValueError(
            f"mode {rule.mode!r} spends by hidden offset, so that a sequence's likelihood needs every path; use mode "
            "'prefix' or 'prefix_partial', or analyse_budgeted on small chains"
        )
    xp, ids, p, q, length = checked_sequences(tokens, target_probs, draft_probs, length)
    p, q = _widened(p), _widened(q)
    batch = tuple(ids.shape[:-1])
    a = xp.zeros((*batch, length + 1), dtype=p.dtype, device=device(p))
    a[..., 0] = 1.0
    spent, total, own = (xp.zeros(batch, dtype=p.dtype, device=device(p)) for _ in range(3))
    closed = spent > 0
    rows: list[list[Array]] = [[], [], []]
    for t in range(ids.shape[-1]):
        pt, qt = p[..., t, :], q[..., t, :]
        steps = [offset_steps(v, pt, qt, length, None) for v in (rule.verifier, LOSSLESS)]
        decision = rule.decide(xp.max(rule.prices(steps[0][1], pt[..., None, :]), axis=-1), spent, closed)
        spent = decision.spent
        inner = a[..., :-1]
        for row, value in zip(rows, (a[..., 0], decision.relaxed * xp.sum(inner, axis=-1), spent), strict=True):
            row.append(value)
        at = xp.broadcast_to(ids[..., t][..., None, None], (*batch, length, 1))
        theta = decision.relaxed[..., None]
        kept, emitted = (
            theta * relaxed + (1 - theta) * plain
            for relaxed, plain in (
                tuple(xp.take_along_axis(step[k], at, axis=-1)[..., 0] for step in steps) for k in (0, 1)
            )
        )
        px = xp.take_along_axis(pt, ids[..., t][..., None], axis=-1)[..., 0]
        fresh = xp.sum(inner * (emitted - kept), axis=-1) + a[..., -1] * px
        a = xp.concat([fresh[..., None], inner * kept], axis=-1)
        mass = xp.sum(a, axis=-1)
        total, own = total + safe_log(mass), own + safe_log(px)
        a = a / xp.where(mass > 0, mass, xp.ones_like(mass))[..., None]
    return BudgetFilter(total, own, *(by_token(row, own) for row in rows))


def budgeted_log_likelihood(tokens: Any, target_probs: Any, draft_probs: Any, rule: Budgeted, length: int) -> Array:
    """Exact log P̂(x_{1:T}) in nats of given sequences under budgeted decoding, shape (...); see `filter_budget`."""
    return filter_budget(tokens, target_probs, draft_probs, rule, length).log_likelihood
