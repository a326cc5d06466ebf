"""Formulas against the numeric code, rational rounds against an independent recursion, and proofs that can fail."""

from __future__ import annotations

import re
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

import theory
from tests.theory.helpers import chain_pairs, oracle_round, relaxed_fraction
from theory import annealing_proofs, proofs
from theory.annealing_proofs import (
    prove_annealing,
    prove_closed_form,
    prove_prop_2,
    prove_prop_2_exact,
    prove_two_token_distance,
)
from theory.proofs import prove_one_position_line, prove_prop_1, prove_ratio_cap, prove_residual
from theory.rationals import (
    after,
    always,
    distance,
    fractions,
    laws,
    one_step_optimal,
    optimal,
    output,
    rational_round,
    relaxed,
    show,
    vanilla,
)
from theory.symbolic import NAMES, in_regime, symbolic_round

TOLERANCE = 1e-12
FORMS = [(2, None), (2, (1,)), (3, None), (3, (2,)), (3, (0, 2))]


@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize(("size", "over"), FORMS)
def test_formulas_equal_the_numeric_code(size: int, over: tuple[int, ...] | None, length: int) -> None:
    formula = symbolic_round(size, length, over)
    functions = {name: formula.function(name) for name in NAMES}
    symbols = [*formula.p, *formula.q, *formula.omega]
    lists = sympy.lambdify(symbols, [list(formula.residual[0]), list(formula.survival)], modules="math")
    rng = np.random.default_rng(0)
    seen = 0
    while seen < 10:
        p, q = rng.dirichlet(np.ones(size), 2)
        omega = rng.uniform(0.3 if over is None else 1.0, 2.0, length)
        if over is not None and not in_regime(p, q, omega, over):
            continue
        seen += 1
        verifier = theory.Verifier(theory.Relaxed(omega))
        a = theory.analyse_round(theory.IIDChain(p), theory.IIDChain(q), verifier, length)
        for name, function in functions.items():
            assert function(p, q, omega) == pytest.approx(getattr(a, name), abs=TOLERANCE), name
        residual, survival = lists(*p, *q, *omega)
        np.testing.assert_allclose(residual, verifier.step(p, q, 0).residual, rtol=0, atol=1e-9)
        np.testing.assert_allclose(survival, a.survival, rtol=0, atol=TOLERANCE)


def test_the_general_form_where_the_residual_is_empty() -> None:
    formula = symbolic_round(2, 2)
    assert formula.function("total_variation")([0.5, 0.5], [0.5, 0.5], [1.0, 2.0]) == 0
    assert formula.function("expected_accepted")([0.5, 0.5], [0.5, 0.5], [1.0, 2.0]) == 2


def test_a_wrong_formula_is_noticed() -> None:
    """Negative control: the distance is not the bound once two positions are biased."""
    formula = symbolic_round(2, 2, over=(1,))
    values = ([0.7, 0.3], [0.3, 0.7], [1.5, 1.5])
    assert abs(formula.function("tv_bound")(*values) - formula.function("total_variation")(*values)) > 1e-2
    assert formula.tv_bound != formula.total_variation


def test_printing() -> None:
    formula = symbolic_round(2, 2, over=(1,))
    assert formula.latex("tv_bound").count(r"\omega") == 3
    assert r"\left|" in formula.latex("total_variation")
    assert formula.residual == ((1, 0), (1, 0))
    assert sympy.simplify(sum(formula.bias[0])) == 0
    assert r"\min" in symbolic_round(2, 1).latex("expected_accepted")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: symbolic_round(4, 1), r"2 or 3 tokens and 1 to 3 positions, got 4 and 1"),
        (lambda: symbolic_round(2, 4), r"got 2 and 4"),
        (lambda: symbolic_round(1, 1), r"size must be a whole number >= 2, got 1"),
        (lambda: symbolic_round(2, 1, over=()), r"some but not all of the tokens 0…1, got \(\)"),
        (lambda: symbolic_round(2, 1, over=(0, 1)), r"got \(0, 1\)"),
        (lambda: symbolic_round(2, 1, over=(2,)), r"got \(2,\)"),
        (lambda: symbolic_round(2, 1).latex("law"), r"name must be one of .* got 'law'"),
        (lambda: symbolic_round(2, 1).function("tv_bound")([1.0], [1.0], [1.0]), r"expected 2 entries"),
        (
            lambda: symbolic_round(2, 1, over=(1,)).function("tv_bound")([0.5, 0.5], [0.4, 0.6], [2.0]),
            r"outside the regime over=\(1,\)",
        ),
        (lambda: prove_residual(4), r"size must be 2 or 3, got 4"),
        (lambda: prove_ratio_cap(4), r"length must be 1, 2 or 3, got 4"),
        (lambda: prove_closed_form(0), r"length must be a whole number >= 1, got 0"),
        (lambda: prove_annealing(1), r"length must be a whole number >= 2, got 1"),
    ],
)
def test_bad_input(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@settings(deadline=None, max_examples=40)
@given(chain_pairs(), st.data())
def test_rational_rounds_equal_the_independent_recursion(pair: Any, data: Any) -> None:
    size, length, target, draft = pair
    omega = data.draw(st.lists(st.fractions(0, 4, max_denominator=4), min_size=length, max_size=length))
    law, accepted, bound = oracle_round(target, draft, relaxed_fraction(omega), size, length)
    r = rational_round(lambda x: tuple(target[x]), lambda x: tuple(draft[x]), relaxed(omega), length)
    shorter = dict.fromkeys(product(range(size), repeat=length), Fraction(0))
    for path, mass in law.items():
        shorter[path[:-1]] += mass
    assert r.law == tuple(shorter.values())
    assert (r.expected_accepted, r.bound) == (accepted, bound)
    assert sum(r.target_law) == 1


def test_grids_and_texts() -> None:
    assert [show(p) for p in laws(2, 3)] == ["1/3 2/3", "2/3 1/3"]
    assert len(list(laws(3, 4, positive=False))) == 15
    assert fractions("1/4 3/4") == (Fraction(1, 4), Fraction(3, 4))
    table = after([fractions("1 0")], [fractions("1/2 1/2"), fractions("0 1")])
    assert table((1,)) == fractions("0 1")
    p, q = fractions("1/4 3/8 3/8"), fractions("1/8 1/4 5/8")
    accepted = tuple(min(b, Fraction(3, 2) * a) for a, b in zip(p, q, strict=True))
    best = {distance(output(accepted, g), p) for g in one_step_optimal(p, accepted)}
    assert best == {distance(output(accepted, optimal(p, q, accepted)), p)}
    assert rational_round(always(fractions("1 0")), always(fractions("0 1")), relaxed([Fraction(9)]), 1).max_ratio == 1
    unsafe = rational_round(always(fractions("1 0")), always(fractions("0 1")), lambda c, p, q: (q, p), 1)
    assert unsafe.max_ratio is None


@pytest.mark.parametrize("length", range(2, 9))
def test_annealing_and_the_closed_form_at_every_length(length: int) -> None:
    assert prove_annealing(length).holds
    assert prove_closed_form(length).holds


@pytest.mark.parametrize(
    "proof",
    [
        prove_one_position_line,
        lambda: prove_residual(2),
        prove_residual,
        prove_prop_1,
        lambda: prove_ratio_cap(1),
        prove_ratio_cap,
        lambda: prove_ratio_cap(3),
        lambda: prove_closed_form(1),
        lambda: prove_prop_2(close=True),
        lambda: prove_prop_2(close=False),
        prove_two_token_distance,
    ],
)
def test_statements_that_hold(proof: Any) -> None:
    found = proof()
    assert found.holds
    assert found.counterexample is None
    assert re.search(r"\d+ rational", found.checked)
    assert found.statement
    assert found.source


def test_prop_1_fails_below_lossless_and_prop_2_beyond_its_bound() -> None:
    """Both counterexamples are checked again with the numeric code."""
    first, second = prove_prop_1(below=True), prove_prop_2_exact()
    assert not first.holds
    assert not second.holds
    assert first.counterexample is not None
    assert second.counterexample is not None
    p, q = theory.IIDChain([1 / 3, 2 / 3]), theory.IIDChain([2 / 3, 1 / 3])
    rule = theory.Relaxed(0.5)
    assert "p = 1/3 2/3, q = 2/3 1/3, ω = 1/2" in first.counterexample
    assert theory.analyse_round(p, q, theory.Verifier(rule), 1).total_variation < TOLERANCE
    vanilla_tv = theory.analyse_round(p, q, theory.Verifier(rule, theory.vanilla_residual), 1).total_variation
    assert vanilla_tv == pytest.approx(1 / 6, abs=TOLERANCE)
    assert "rates 34/45, 13/17 → 4/5, 2/3" in second.counterexample
    rounds = []
    for rates in ((34 / 45, 13 / 17), (4 / 5, 2 / 3)):
        omega = [(rate - 1 / 3) * 3 for rate in rates]  # α = q_0 + ω p_1 with the roles of the tokens exchanged
        rounds.append(theory.analyse_round(q, p, theory.Verifier(theory.Relaxed(omega)), 2))
    assert rounds[0].expected_accepted == pytest.approx(rounds[1].expected_accepted, abs=TOLERANCE)
    assert rounds[1].tv_bound < rounds[0].tv_bound - 1e-3
    assert rounds[1].total_variation > rounds[0].total_variation + 1e-2


def test_proofs_fail_when_the_mathematics_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative controls: the same functions, with one ingredient spoiled, report a failure."""
    assert not prove_one_position_line(lambda p, q, a: a / 2).holds
    assert not prove_closed_form(3, rates_offset=Fraction(1, 100)).holds
    with monkeypatch.context() as patch:
        patch.setattr(proofs, "optimal", vanilla)
        broken = prove_residual(2)
        assert not broken.holds
        assert broken.counterexample is not None
    with monkeypatch.context() as patch:
        patch.setattr(proofs, "relaxed", lambda omega: relaxed([2 * w for w in omega]))
        assert not prove_ratio_cap(1).holds
    with monkeypatch.context() as patch:
        patch.setattr(annealing_proofs, "relaxed", lambda omega: relaxed(list(reversed(omega))))
        assert not prove_prop_2(close=True).holds
        assert not prove_two_token_distance().holds


def test_each_part_of_a_proof_notices_a_fault_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The symbolic part without a grid, and the grid with a symbolic part that says yes to everything."""

    def broken(p: Any, q: Any, a: Any) -> Any:
        return a / 2

    with monkeypatch.context() as patch:
        patch.setattr(proofs, "pairs", lambda *args, **kwargs: iter(()))
        assert proofs.prove_one_position_line().holds
        assert not proofs.prove_one_position_line(broken).holds
    with monkeypatch.context() as patch:
        patch.setattr(proofs, "is_zero", lambda expression: True)
        assert not proofs.prove_one_position_line(broken).holds
    with monkeypatch.context() as patch:
        # A block that pays for late acceptance: the exact moves must notice.
        genuine = annealing_proofs._survival
        patch.setattr(annealing_proofs, "_survival", lambda rates: genuine(list(rates)[::-1]))
        assert not annealing_proofs.prove_annealing(3).holds


def test_the_regime_ends_at_lossless_factors() -> None:
    bound = symbolic_round(2, 1, over=(1,)).function("tv_bound")
    for omega in (0.5, 1.0):
        with pytest.raises(ValueError, match="lie outside the regime"):
            bound([0.25, 0.75], [0.1, 0.9], [omega])
