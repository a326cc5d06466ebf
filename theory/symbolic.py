"""Symbolic rounds: bound, exact total variation, residual and accepted length as formulas in p, q and ω.

The multiplicative rule f_i = min(1, ω_i p/q) with the optimal residual, on chains whose laws do
not depend on the prefix: p and q on V = 2 or 3 tokens, ω_1…ω_L with L = 1, 2, 3. Two forms:

* **general**: valid for every p, q, ω, in Min, Max, Abs and a case distinction for the empty residual. Full
  simplification explodes (3^{V·L} sign patterns), so these are left as they are derived.
* **one regime** (`over`): the tokens O are over-drafted and capped, ω_i p(x) < q(x) there, p(x) > q(x) elsewhere, and
  every ω_i > 1. f_i is then 1 off O and ω_i p/q on O, the residual is (p − q)/Σ(p − q) off O for every i, and bound and
  accepted length are polynomials; of the exact TV only those absolute values remain whose sign the regime leaves open.

For V = 2, O = {1}, L = 2, with b_i = (ω_i − 1) p_1 the bias of position i, the regime gives (checked by `proofs`)

    TV = B − min(b_1 p_1, q_0 b_2) − min(b_1 p_0, ω_1 p_1 b_2),     B = b_1 + (q_0 + ω_1 p_1) b_2:

the distance is the bound less what the second position corrects of the first.

>>> r = symbolic_round(2, 1, over=(1,))
>>> print(r.tv_bound, "|", r.expected_accepted)
p_1*(omega_1 - 1) | omega_1*p_1 + q_0
>>> round(r.function("total_variation")([0.25, 0.75], [0.1, 0.9], [1.1]), 12)
0.075
>>> print(r.latex("tv_bound"))
p_{1} \\left(\\omega_{1} - 1\\right)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeAlias

from theory.arrays import whole_number

Expression: TypeAlias = Any
"""A sympy expression."""

NAMES = ("expected_accepted", "tv_bound", "total_variation")


@dataclass(frozen=True)
class SymbolicRound:
    """Formulas of one round; see `symbolic_round`.

    Attributes
    ----------
    p, q : tuple of V symbols
    omega : tuple of L symbols
    over : tuple of int or None
        The regime, or None for the general form.
    survival : tuple of L expressions
        S_i.
    residual : tuple of L tuples of V expressions
        G*_i.
    bias : tuple of L tuples of V expressions
        o_i − p.
    tv_bound_per_position : tuple of L expressions
    expected_accepted, tv_bound, total_variation : expression
    """

    p: tuple[Expression, ...]
    q: tuple[Expression, ...]
    omega: tuple[Expression, ...]
    over: tuple[int, ...] | None
    survival: tuple[Expression, ...]
    residual: tuple[tuple[Expression, ...], ...]
    bias: tuple[tuple[Expression, ...], ...]
    tv_bound_per_position: tuple[Expression, ...]
    expected_accepted: Expression
    tv_bound: Expression
    total_variation: Expression

    def expression(self, name: str) -> Expression:
        """One of the three scalar formulas by name."""
        if name not in NAMES:
            raise ValueError(f"name must be one of {', '.join(NAMES)}, got {name!r}")
        return getattr(self, name)

    def latex(self, name: str) -> str:
        """LaTeX of `expected_accepted`, `tv_bound` or `total_variation`."""
        import sympy

        return str(sympy.latex(self.expression(name)))

    def function(self, name: str) -> Callable[[Sequence[float], Sequence[float], Sequence[float]], float]:
        """The formula as a function (p, q, ω) → float.

        The function raises ValueError if the arguments have the wrong lengths or lie outside the regime.
        """
        import sympy

        plain = sympy.lambdify([*self.p, *self.q, *self.omega], self.expression(name), modules="math")

        def value(p: Sequence[float], q: Sequence[float], omega: Sequence[float]) -> float:
            if (len(p), len(q), len(omega)) != (len(self.p), len(self.q), len(self.omega)):
                raise ValueError(
                    f"expected {len(self.p)} entries of p and q and {len(self.omega)} of omega, "
                    f"got {len(p)}, {len(q)} and {len(omega)}"
                )
            if self.over is not None and not in_regime(p, q, omega, self.over):
                raise ValueError(
                    f"p={list(p)}, q={list(q)}, omega={list(omega)} lie outside the regime over={self.over}: "
                    "omega > 1, omega p < q on those tokens and p > q elsewhere; use the general form (over=None)"
                )
            return float(plain(*p, *q, *omega))

        return value


def in_regime(p: Sequence[float], q: Sequence[float], omega: Sequence[float], over: Sequence[int]) -> bool:
    """Whether exactly the tokens of `over` are over-drafted and capped at every position, and every ω > 1."""
    capped = all(w * p[x] < q[x] for w in omega for x in over)
    rest = all(p[x] > q[x] for x in range(len(p)) if x not in over)
    return capped and rest and all(w > 1 for w in omega)


def _general(p: Any, q: Any, omega: Any) -> tuple[Any, ...]:
    """Acceptance rate, residual, bias and its size at every position, valid everywhere."""
    import sympy

    rates, residuals, biases, sizes = [], [], [], []
    for w in omega:
        accepted = [sympy.Min(b, w * a) for a, b in zip(p, q, strict=True)]
        short = [sympy.Max(0, a - c) for a, c in zip(p, accepted, strict=True)]
        excess = [sympy.Max(0, c - a) for a, c in zip(p, accepted, strict=True)]
        missing, size = sum(short), sum(excess)
        rates.append(sum(accepted))
        residuals.append(
            tuple(sympy.Piecewise((s / missing, missing > 0), (a, True)) for s, a in zip(short, p, strict=True))
        )
        # R = missing − size, so q f + R G* − p = excess − short·size/missing.
        share = sympy.Piecewise((size / missing, missing > 0), (0, True))
        biases.append(tuple(e - s * share for e, s in zip(excess, short, strict=True)))
        sizes.append(size)
    return rates, residuals, biases, sizes


def _law_difference(p: Any, accepted: Any, biases: Any, path: tuple[int, ...]) -> Any:
    """(P̂ − P)(x) = Σ_i A_{i−1} · bias_i(x_i) · Π_{k>i} p(x_k): the telescoping identity of `theory.rounds`."""
    import sympy

    terms = []
    for i, x in enumerate(path):
        before = [accepted[j][y] for j, y in enumerate(path[:i])]
        terms.append(sympy.Mul(*before, biases[i][x], *(p[y] for y in path[i + 1 :])))
    return sympy.Add(*terms)


def symbolic_round(size: int, length: int, over: Sequence[int] | None = None) -> SymbolicRound:
    """Derive the formulas of one round.

    Parameters
    ----------
    size : int
        V, 2 or 3.
    length : int
        L, 1 to 3.
    over : sequence of int, optional
        The regime: which tokens are over-drafted and capped. At least one and not all. None derives the general form.

    Returns
    -------
    SymbolicRound

    Raises
    ------
    ValueError
        For another size or length, or a regime that does not name some but not all tokens.

    Notes
    -----
    Source: one-position residual and round identity of `theory.rounds`; B is COOL-SD Theorem 2's object,
    **reconstructed**. Oracle: `analyse_round`, same numbers.
    """
    import sympy

    if whole_number(size, "size", 2) > 3 or whole_number(length, "length", 1) > 3:
        raise ValueError(f"formulas are derived for 2 or 3 tokens and 1 to 3 positions, got {size} and {length}")
    p, q = (sympy.symbols(f"{name}_0:{size}", positive=True) for name in "pq")
    omega = sympy.symbols(f"omega_1:{length + 1}", positive=True)
    if over is None:
        rates, residuals, biases, sizes = _general(p, q, omega)
        accepted = [[sympy.Min(b, w * a) for a, b in zip(p, q, strict=True)] for w in omega]
        paths = product(range(size), repeat=length)
        parts = [sympy.Abs(_law_difference(p, accepted, biases, path), evaluate=False) for path in paths]
        return _assemble(p, q, omega, None, rates, residuals, biases, sizes, sympy.Add(*parts) / 2)
    chosen = tuple(sorted(set(over)))
    if not 0 < len(chosen) < size or not set(chosen) <= set(range(size)):
        raise ValueError(f"over must name some but not all of the tokens 0…{size - 1}, got {over!r}")
    rest = [x for x in range(size) if x not in chosen]

    def formulas(law: Any, factors: Any, gap: Any) -> tuple[Any, ...]:
        missing, capped = sum(gap[x] for x in rest), sum(law[x] for x in chosen)
        accepted = [[w * law[x] if x in chosen else q[x] for x in range(size)] for w in factors]
        sizes = [(w - 1) * capped for w in factors]
        residual = tuple(sympy.Integer(0) if x in chosen else sympy.cancel(gap[x] / missing) for x in range(size))
        biases = [
            tuple((w - 1) * law[x] if x in chosen else -s * residual[x] for x in range(size))
            for w, s in zip(factors, sizes, strict=True)
        ]
        return accepted, sizes, biases, residual

    accepted, sizes, biases, residual = formulas(p, omega, [a - b for a, b in zip(p, q, strict=True)])
    # The same in symbols that are positive in the regime: p = q + d off O, ω = 1 + e. They decide the signs.
    gap, extra = (sympy.symbols(f"{name}", positive=True) for name in (f"d_0:{size}", f"e_1:{length + 1}"))
    law = [p[x] if x in chosen else q[x] + gap[x] for x in range(size)]
    signed_accepted, _, signed_biases, _ = formulas(law, [1 + e for e in extra], gap)
    total = sympy.Integer(0)
    for path in product(range(size), repeat=length):
        shown = sympy.factor_terms(_law_difference(p, accepted, biases, path))
        sign = sympy.expand(sympy.numer(sympy.together(_law_difference(law, signed_accepted, signed_biases, path))))
        total += shown if sign.is_nonnegative else -shown if sign.is_nonpositive else sympy.Abs(shown)
    rates = [sum(row) for row in accepted]
    return _assemble(p, q, omega, chosen, rates, [residual] * length, biases, sizes, sympy.factor_terms(total / 2))


def _assemble(
    p: Any, q: Any, omega: Any, over: Any, rates: Any, residuals: Any, biases: Any, sizes: Any, distance: Any
) -> SymbolicRound:
    import sympy

    survival = [sympy.Mul(*rates[: i + 1]) for i in range(len(rates))]
    before = [sympy.Integer(1), *survival[:-1]]
    bound = [s * size for s, size in zip(before, sizes, strict=True)]
    return SymbolicRound(
        tuple(p),
        tuple(q),
        tuple(omega),
        over,
        tuple(survival),
        tuple(residuals),
        tuple(biases),
        tuple(bound),
        sympy.Add(*survival),
        sympy.Add(*bound),
        distance,
    )
