"""Chains from rationals, and a plain recursion that shares no code with the package."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

import theory

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared" / "cases"
CASES = SHARED if SHARED.is_dir() else ROOT / "tests" / "data" / "cases"

RESIDUALS = {
    "optimal": theory.optimal_residual,
    "vanilla": theory.vanilla_residual,
    "target": theory.target_residual,
}


def number(text: Any) -> float:
    return float(Fraction(str(text)))


def numbers(nested: Any) -> Any:
    return [numbers(x) for x in nested] if isinstance(nested, list) else number(nested)


def rule_of(spec: dict[str, Any]) -> theory.Rule:
    match spec["kind"]:
        case "relaxed":
            return theory.Relaxed(numbers(spec["omega"]))
        case "ensemble":
            return theory.Ensemble(number(spec["eta"]))
        case "divergence":
            return theory.DivergenceThreshold(number(spec["threshold"]))
        case "top_k":
            return theory.TopK(spec["k"])
        case "lantern":
            return theory.Lantern(spec["neighbours"], spec["k"], number(spec["delta"]))
        case "lantern_plus_plus":
            return theory.LanternPlusPlus(spec["neighbours"], spec["k"], number(spec["lam"]))
        case "entropy":
            return theory.EntropyRelaxed(number(spec["lam"]), number(spec["delta"]))
        case "lossless":
            return theory.Lossless()
        case "accept_all":
            return theory.AcceptAll()
    raise AssertionError(f"a case names an unknown rule {spec['kind']!r}")


def load_case(path: Path) -> tuple[dict[str, Any], list[Any], list[Any], theory.Verifier]:
    case = json.loads(path.read_text())
    tables = [[np.array(numbers(level)) for level in case[side]] for side in ("target", "draft")]
    verifier = theory.Verifier(rule_of(case["rule"]), RESIDUALS[case["residual"]])
    return case, tables[0], tables[1], verifier


def random_tree(rng: np.random.Generator, size: int, depth: int, concentration: float = 1.0) -> theory.TabularChain:
    return theory.TabularChain([rng.dirichlet(np.full(size, concentration), size=(size,) * i) for i in range(depth)])


@st.composite
def chain_pairs(draw: Any, max_size: int = 3, max_length: int = 3, positive: bool = False) -> Any:
    """A target and a draft as nested rationals (integer counts up to 10), with the round's length."""
    size = draw(st.integers(2, max_size))
    length = draw(st.integers(1, max_length))
    least = 1 if positive else 0

    def table(depth: int) -> dict[tuple[int, ...], list[Fraction]]:
        rows = {}
        for i in range(depth):
            for prefix in product(range(size), repeat=i):
                counts = draw(
                    st.lists(st.integers(least, 10), min_size=size, max_size=size).filter(lambda c: sum(c) > 0)
                )
                rows[prefix] = [Fraction(c, sum(counts)) for c in counts]
        return rows

    return size, length, table(length + 1), table(length + 1)


def tabular(rows: dict[tuple[int, ...], list[Fraction]], size: int) -> theory.TabularChain:
    depth = 1 + max(len(prefix) for prefix in rows)
    levels = []
    for i in range(depth):
        flat = [[float(x) for x in rows[prefix]] for prefix in product(range(size), repeat=i)]
        levels.append(np.array(flat).reshape((size,) * (i + 1)))
    return theory.TabularChain(levels)


Acceptance = Callable[[int, list[Fraction], list[Fraction]], list[Fraction]]


def relaxed_fraction(omega: list[Fraction]) -> Acceptance:
    """f_i = min(1, ω_i p/q) in rationals."""

    def f(i: int, p: list[Fraction], q: list[Fraction]) -> list[Fraction]:
        return [min(Fraction(1), omega[i] * a / b) if b else Fraction(0) for a, b in zip(p, q, strict=True)]

    return f


def oracle_round(
    target: dict[tuple[int, ...], list[Fraction]],
    draft: dict[tuple[int, ...], list[Fraction]],
    acceptance: Acceptance,
    size: int,
    length: int,
) -> tuple[dict[tuple[int, ...], Fraction], Fraction, Fraction]:
    """Law of a round with the optimal residual, expected accepted length and bound, in rationals."""
    law = dict.fromkeys(product(range(size), repeat=length + 1), Fraction(0))
    accepted = bound = Fraction(0)

    def finish(prefix: tuple[int, ...], mass: Fraction) -> None:
        if len(prefix) == length + 1:
            law[prefix] += mass
        else:
            for x in range(size):
                finish((*prefix, x), mass * target[prefix][x])

    def visit(prefix: tuple[int, ...], mass: Fraction) -> None:
        nonlocal accepted, bound
        i = len(prefix)
        if i == length:
            finish(prefix, mass)
            return
        p, q = target[prefix], draft[prefix]
        f = acceptance(i, p, q)
        kept = [a * b for a, b in zip(q, f, strict=True)]
        left = [max(a - b, Fraction(0)) for a, b in zip(p, kept, strict=True)]
        residual = [x / sum(left) for x in left] if sum(left) else p
        rejected = 1 - sum(kept)
        for x in range(size):
            out = kept[x] + rejected * residual[x]
            bound += mass * abs(out - p[x]) / 2
            accepted += mass * kept[x]
            if rejected * residual[x]:
                finish((*prefix, x), mass * rejected * residual[x])
            if kept[x]:
                visit((*prefix, x), mass * kept[x])

    visit((), Fraction(1))
    return law, accepted, bound
