"""Optimal verification for the bound: accept outright what is worth its price, and be lossless elsewhere.

With λ*(cx) the price of token x after the round's prefix c (`theory.frontier`), the rule at slope λ is *bang-bang*

    f(x|c) = 1 if λ*(cx) > λ,    min(1, p/q) if λ*(cx) < λ,    G = Norm[p − q f]_+ ,

and where λ*(cx) = λ it takes f = (1 − θ) min(1, p/q) + θ. All θ ∈ [0, 1] give points of one edge of the frontier, and
B is continuous and increasing in θ, so that θ meets a budget of B exactly [proved].

Between Markov or independent chains λ* depends on position and token only and the rule is an ordinary one. Otherwise it
needs the prefix drafted in the running round, which travels as the verifier's *weight*: a code that starts at 1 and
becomes V·code + x after token x, so that prefixes of d tokens have the codes V^d … 2V^d − 1. Every analysis and
decoder that carries the weight of a block verifier therefore runs this rule too.

>>> from theory.chains import IIDChain
>>> from theory.rounds import analyse_round
>>> target, draft = IIDChain([0.75, 0.25]), IIDChain([0.25, 0.75])
>>> best = optimal_verifier(target, draft, 2, budget=0.25)
>>> a = analyse_round(target, draft, best, 2)
>>> best.slope, round(best.tie, 12), round(a.tv_bound, 12), round(a.expected_accepted, 12)
(1.5, 0.5, 0.25, 1.125)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from theory.arrays import (
    Array,
    array_namespace,
    as_floats,
    device,
    positions_column,
    probabilities,
    real_array,
    real_number,
    same_vocabulary,
)
from theory.chains import Chain
from theory.frontier import TIE, BoundFrontier, Common, Floats, bound_frontier, common_layers, merged
from theory.residuals import optimal_residual
from theory.rules import Position, accept_up_to
from theory.verifiers import Step

LARGEST_CODE = 2**53
"""Prefix codes are carried in float64, exact up to here."""


def prefix_rows(weight: Any, position: Any, size: int, like: Array) -> tuple[Any, Any]:
    """Index of the round's prefix among the V**position prefixes of its length, and the codes themselves."""
    xp = array_namespace(like)
    where = xp.asarray(position, dtype=xp.int64, device=device(like))
    first = xp.asarray(size, dtype=xp.int64, device=device(like)) ** where
    codes = first if weight is None else xp.astype(weight, xp.int64)
    if weight is None and bool(xp.any(where > 0)):
        raise ValueError(
            f"position {position} needs the prefix drafted in this round: pass the weight of the step before it"
        )
    return xp.clip(codes - first, 0, None), codes


def next_codes(codes: Any, shape: tuple[int, ...], like: Array) -> Array:
    """Codes of the prefixes one token longer, shape (..., V), as float64."""
    xp = array_namespace(like)
    tokens = xp.arange(shape[-1], dtype=xp.float64, device=device(like))
    return xp.broadcast_to(xp.astype(codes, xp.float64)[..., None] * shape[-1] + tokens, shape)


@dataclass(frozen=True, eq=False)
class OptimalVerifier:
    """The bang-bang rule at one slope with the optimal residual; see `optimal_verifier`.

    Attributes
    ----------
    slope : float
        λ: accepted tokens per unit of B at the margin; ∞ is lossless, 0 accepts everything.
    tie : float
        θ ∈ [0, 1], how far tokens priced at λ itself are accepted outright.
    tv_bound, expected_accepted : float
        B and N of a round on the chains it was made for.
    prices : tuple of L arrays, (V**i, V) or (1, V)
        λ*(cx) by position.
    stateful : bool
        Whether the rule needs the prefix of the round (prices of shape (V**i, V)).
    """

    slope: float
    tie: float
    tv_bound: float
    expected_accepted: float
    prices: tuple[Floats, ...] = field(repr=False)
    stateful: bool
    source: ClassVar[str] = "dynamic programme over all token-wise acceptance functions (this project)"
    reconstructed: ClassVar[bool] = False
    _flat: Floats = field(init=False, repr=False)
    _starts: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_flat", np.concatenate(self.prices, axis=0))
        starts = np.concatenate([[0], np.cumsum([len(table) for table in self.prices])[:-1]])
        object.__setattr__(self, "_starts", starts.astype(np.int64))

    @property
    def lossless(self) -> bool:
        return self.tv_bound == 0

    def step(self, p: Any, q: Any, position: Position, weight: Any = None) -> Step:
        """One position of a round that has drafted the prefix coded by `weight` (None at its start).

        Raises
        ------
        ValueError
            For a position outside the round, another vocabulary, or a later position without its prefix.
        """
        p, q = as_floats(p), as_floats(q)
        xp = array_namespace(p, q)
        same_vocabulary(p.shape[-1], q.shape[-1])
        size = self._flat.shape[-1]
        if p.shape[-1] != size:
            raise ValueError(f"this rule is for {size} tokens, got {p.shape[-1]}; make one for these chains")
        where = positions_column(position, len(self.prices))
        rows, codes = xp.asarray(self._starts[where], device=device(p)), None
        if self.stateful:
            index, codes = prefix_rows(weight, where, size, p)
            rows = rows + index
        prices = xp.asarray(self._flat, device=device(p))[rows, :]
        lossless, one = accept_up_to(p, q), xp.ones_like(q)
        share = _share(xp, prices, self.slope, self.tie)
        f = xp.where(share == 1, one, lossless + share * (one - lossless))
        residual = optimal_residual(p, q, f)
        carried = None if codes is None else next_codes(codes, tuple(f.shape), p)
        return Step(q * f, xp.sum(q * (1 - f), axis=-1), residual, carried)


def _share(xp: Any, prices: Array, slope: float, tie: float) -> Array:
    """How far each token is accepted outright: 1 above the slope, θ at it, 0 below."""
    if not np.isfinite(slope):
        return xp.zeros_like(prices)
    close = xp.abs(prices - slope) <= TIE * slope
    return xp.where(close, tie * xp.ones_like(prices), xp.astype(prices > slope, prices.dtype))


def _measure(layers: list[Common], shares: list[Floats], merge: bool) -> tuple[float, float]:
    """(B, N) of accepting min(p, q) + share·[q − p]_+ at every prefix."""
    mass = np.ones(1)
    bound = accepted = 0.0
    for (shared, excess), share in zip(layers, shares, strict=True):
        over = mass[:, None] * (share * excess)
        flow = mass[:, None] * shared + over
        bound, accepted = bound + float(over.sum()), accepted + float(flow.sum())
        # The next layer of a merged pair has a row a token, or one row if both chains are independent.
        mass = flow.sum(axis=0) if merge else flow.reshape(-1)
        if merge and all(len(layer.shared) == 1 for layer in layers):
            mass = mass.sum()[None]
    return bound, accepted


def optimal_verifier(
    target: Chain,
    draft: Chain,
    length: int,
    *,
    budget: float | None = None,
    expected_accepted: float | None = None,
    frontier: BoundFrontier | None = None,
) -> OptimalVerifier:
    """The rule that accepts most for a budget of the bound, or pays least for an accepted length.

    Parameters
    ----------
    target, draft : Chain
        Of one vocabulary, at least L tokens deep.
    length : int
        L ≥ 1 drafted tokens.
    budget : float ≥ 0
        Of B. Above accept-all's bound it cannot be spent: the rule is then accept-all.
    expected_accepted : float
        N instead of a budget (give one of the two), between lossless decoding's and L.
    frontier : BoundFrontier, optional
        `bound_frontier(target, draft, length)` where it is at hand.

    Returns
    -------
    OptimalVerifier
        Its B meets the budget to 1e-12. On other chains of the same vocabulary it is a rule, not the best one.

    Raises
    ------
    ValueError
        For a negative budget, an accepted length no rule reaches, not exactly one of the two, or what
        `bound_frontier` refuses.

    Notes
    -----
    Source: this project, bang-bang optimality at the module's head. Oracle: `analyse_round` of the verifier, and the
    frontier's own vertices.
    """
    from scipy.optimize import brentq

    if (budget is None) == (expected_accepted is None):
        raise ValueError(f"give one of budget and expected_accepted, got {budget!r} and {expected_accepted!r}")
    front = bound_frontier(target, draft, length) if frontier is None else frontier
    if not front.prices:
        raise ValueError("this frontier holds single slopes only; make it without slopes= to get its rules")
    if expected_accepted is not None:
        least, most = front.expected_accepted[0], front.expected_accepted[-1]
        wanted = real_number(expected_accepted, "expected_accepted", least=least, most=most)
        budget = front.least_bound(wanted)
    spend = real_number(budget, "budget", least=0.0)
    layers, merge = common_layers(target, draft, length), merged(target, draft)

    def at(slope: float, tie: float) -> tuple[float, float]:
        return _measure(layers, [_share(np, price, slope, tie) for price in front.prices], merge)

    edge = int(np.searchsorted(front.tv_bound, spend, side="left")) - 1
    if spend == 0 or not len(front.slopes):
        slope, tie = np.inf, 0.0
    elif edge >= len(front.slopes):
        slope, tie = 0.0, 0.0
    else:
        slope = float(front.slopes[edge])
        miss = [at(slope, tie)[0] - spend for tie in (0.0, 1.0)]
        # At a vertex the two ends agree with the budget up to rounding, and there is no root inside.
        inside = miss[0] < 0 < miss[1]
        tie = brentq(lambda t: at(slope, t)[0] - spend, 0.0, 1.0, xtol=1e-15) if inside else float(miss[0] < 0)
    bound, accepted = at(slope, tie)
    return OptimalVerifier(slope, tie, bound, accepted, front.prices, stateful=not merge)


@dataclass(frozen=True, eq=False)
class TableVerifier:
    """A rule and a residual given prefix by prefix of the running round.

    Parameters
    ----------
    acceptance, residual : sequence of L arrays, shape (V**i, V)
        f and G of position i after every prefix of i drafted tokens, in lexicographic order.
    """

    acceptance: tuple[Floats, ...] = field(repr=False)
    residual: tuple[Floats, ...] = field(repr=False)
    stateful: ClassVar[bool] = True
    lossless: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if len(self.acceptance) == 0 or len(self.acceptance) != len(self.residual):
            raise ValueError(
                f"give one table of acceptance and one residual for each position, at least one, got "
                f"{len(self.acceptance)} and {len(self.residual)}"
            )
        size = np.shape(self.acceptance[0])[-1]
        for name in ("acceptance", "residual"):
            tables = tuple(real_array(x, name) for x in getattr(self, name))
            for i, table in enumerate(tables):
                if table.shape != (size**i, size):
                    raise ValueError(f"{name}[{i}] has shape {table.shape}, expected {(size**i, size)}")
            object.__setattr__(self, name, tables)
        rule, other = (np.concatenate(x, axis=0) for x in (self.acceptance, self.residual))
        bad = ~((rule >= 0) & (rule <= 1))
        if bad.any():
            raise ValueError(
                f"acceptance must lie in [0, 1]; {int(bad.sum())} entries do not, the first {rule[bad][0]}"
            )
        probabilities(other, "residual")

    def step(self, p: Any, q: Any, position: Position, weight: Any = None) -> Step:
        """One position of a round that has drafted the prefix coded by `weight` (None at its start)."""
        p, q = as_floats(p), as_floats(q)
        xp = array_namespace(p, q)
        where = positions_column(position, len(self.acceptance))
        size = self.acceptance[0].shape[-1]
        if p.shape[-1] != size:
            raise ValueError(f"this rule is for {size} tokens, got {p.shape[-1]}; make one for these chains")
        starts = np.cumsum([0, *(len(table) for table in self.acceptance[:-1])])
        index, codes = prefix_rows(weight, where, size, p)
        rows = index + xp.asarray(starts[where], device=device(p))
        f, g = (xp.asarray(np.concatenate(x), device=device(p))[rows, :] for x in (self.acceptance, self.residual))
        return Step(q * f, xp.sum(q * (1 - f), axis=-1), g, next_codes(codes, tuple(f.shape), p))
