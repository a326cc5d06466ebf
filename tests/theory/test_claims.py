"""The ledger of published claims: verdicts, counterexamples checked by other code, and that it can change its mind."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest

import theory
from theory import claims_cool_sd as cool
from theory import claims_methods as methods
from theory.claims import Claim, Verdict, claims_ledger, judge, ledger_entries, ledger_rows
from theory.proofs import Proof
from theory.rationals import Law, RationalRound, optimal, rational_round

EXPECTED = {
    "COOL-SD, Theorem 2 bound": "holds",
    "COOL-SD, Theorem 2 residual": "holds for the bound only",
    "COOL-SD, Prop. 1": "holds",
    "COOL-SD, Prop. 1 below lossless": "fails with a counterexample",
    "COOL-SD, Prop. 2": "holds",
    "COOL-SD, Prop. 2 without its condition": "holds",
    "COOL-SD, Prop. 2 for the exact distance": "holds for the bound only",
    "COOL-SD, ablation of the decay": "holds for the bound only",
    "COOL-SD, linear decay": "holds for the bound only",
    "COOL-SD, schedule without a floor": "fails with a counterexample",
    "COOL-SD, G* in LANTERN++": "holds for the bound only",
    "COOL-SD, G* in LANTERN++, larger k": "fails with a counterexample",
    "LANTERN, TV budget": "fails with a counterexample",
    "LANTERN, TV budget for a certain draft": "holds",
    "GSD, Theorem 1": "not decidable here",
    "CSD, residual": "holds for the bound only",
    "SJD, losslessness": "holds",
    "DIVERSED, output law": "holds",
    "Yin et al., one line": "holds",
    "CASCADE, interchangeability": "not decidable here",
    "CASCADE, convergence": "not decidable here",
}


@pytest.fixture(scope="module")
def ledger() -> dict[str, Claim]:
    start = time.process_time()
    found = claims_ledger()
    assert time.process_time() - start < 20
    return dict(zip(ledger_entries(), found, strict=True))


def test_verdicts(ledger: dict[str, Claim]) -> None:
    assert {name: row.verdict for name, row in ledger.items()} == EXPECTED
    assert {row.verdict for row in ledger.values()} == set(get_args(Verdict))


def test_every_row_says_what_was_computed(ledger: dict[str, Claim]) -> None:
    for name, row in ledger.items():
        assert row.claim, name
        assert re.search(r"\d{4}\.\d{5}", row.source), name
        assert row.verdict == "not decidable here" or re.search(r"\d", row.computed), name
        assert (row.counterexample is not None) == (row.verdict not in ("holds", "not decidable here")), name
    assert ledger["GSD, Theorem 1"].wording == "not available"
    rows = ledger_rows(list(ledger.values()))
    assert set(rows[0]) == {"claim", "source", "wording", "computed", "verdict", "counterexample"}
    assert all(isinstance(value, str) for row in rows for value in row.values())


def test_the_ledger_is_deterministic(ledger: dict[str, Claim]) -> None:
    names = ["COOL-SD, Prop. 1", "SJD, losslessness", "LANTERN, TV budget"]
    assert claims_ledger(names) == tuple(ledger[name] for name in names)


def test_the_counterexample_to_the_residual(ledger: dict[str, Claim]) -> None:
    """Same bound, smaller exact TV than G*: again with the numeric code."""
    assert "p = 1/4 3/8 3/8, q = 1/8 1/4 5/8" in (ledger["COOL-SD, Theorem 2 residual"].counterexample or "")
    chains = theory.IIDChain([1 / 4, 3 / 8, 3 / 8]), theory.IIDChain([1 / 8, 1 / 4, 5 / 8])
    verifier = theory.Verifier(theory.Relaxed(1.5))
    star = theory.analyse_round(*chains, verifier, 2)
    p, q = (np.asarray(chain.p) for chain in chains)
    step = verifier.step(p, q, 0)
    law = np.zeros((3, 3))
    other = np.array([0.8, 0.2, 0.0])
    bias = 0.0
    for x in range(3):
        ended = step.rejection * step.residual[x]
        law[x] = ended * p + step.accepted[x] * (step.accepted + step.rejection * other)
        bias += step.accepted[x] * theory.total_variation(step.accepted + step.rejection * other, p)
    exact = theory.total_variation(law.reshape(-1), np.outer(p, p).reshape(-1))
    assert star.total_variation == pytest.approx(0.205078, abs=1e-6)
    assert exact == pytest.approx(0.199219, abs=1e-6)
    assert bias == pytest.approx(float(star.tv_bound_per_position[1]), abs=1e-12)


def test_the_counterexample_to_the_budget(ledger: dict[str, Claim]) -> None:
    """A quarter may be borrowed, half of the law moves."""
    row = ledger["LANTERN, TV budget"]
    assert row.counterexample == "p = 1/4 1/4 1/2, q = 1/2 1/2 0, neighbours in index order, δ = 1/4: TV 1/2"
    rule = theory.Lantern(np.array([[1, 2], [0, 2], [1, 0]]), 2, 0.25)
    chains = theory.IIDChain([0.25, 0.25, 0.5]), theory.IIDChain([0.5, 0.5, 0.0])
    assert theory.analyse_round(*chains, theory.Verifier(rule), 1).total_variation == pytest.approx(0.5)


def test_the_counterexamples_to_the_schedules() -> None:
    """p = 1/3 2/3, q = 2/3 1/3, t = 1/10: uniform beats floored decay in TV, and the schedule without floor in B."""
    chains = theory.IIDChain([1 / 3, 2 / 3]), theory.IIDChain([2 / 3, 1 / 3])
    base = theory.analyse_round(*chains, theory.Verifier(theory.Lossless()), 3).expected_accepted
    found = {}
    for name, family in theory.schedule_families(3).items():
        strength = theory.match(
            family, lambda v: theory.analyse_round(*chains, v, 3).expected_accepted, base + 0.1 * (3 - base), 0.0, 9.0
        )
        found[name] = theory.analyse_round(*chains, family(strength), 3)
    assert found["uniform"].total_variation < found["annealed, floored"].total_variation - 0.02
    assert found["annealed, floored"].tv_bound < found["uniform"].tv_bound - 0.005
    assert found["uniform"].tv_bound < found["annealed, no floor"].tv_bound - 0.05


def test_verdicts_change_when_the_numbers_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative controls: spoil one ingredient and the row says something else."""

    def no_residual(p: Law, q: Law, accepted: Law) -> Law:
        return p

    def half_the_bound(*arguments: Any) -> RationalRound:
        found = rational_round(*arguments)
        return replace(found, bound=found.bound / 2)

    with monkeypatch.context() as patch:
        patch.setattr(cool, "rational_round", half_the_bound)
        assert cool.theorem_2_bound().verdict == "fails with a counterexample"
    assert methods.sjd_lossless(no_residual).verdict == "fails with a counterexample"
    assert methods.ensemble_law(no_residual).verdict == "fails with a counterexample"
    assert methods.ensemble_law(optimal).verdict == "holds"
    assert methods.csd_residual(no_residual).verdict == "fails with a counterexample"
    assert (
        cool.theorem_2_residual(lambda p, q: tuple(map(min, p, q))).verdict == "holds"
    )  # nothing biased, nothing to gain
    failed = Proof("s", "Yin et al. 2411.00841", False, "0", "p = 1")
    assert methods.one_line(lambda: failed).verdict == "fails with a counterexample"
    backwards = cool.compare_schedules("uniform", "annealed, floored", "uniform is better")
    assert backwards.verdict == "fails with a counterexample"


def test_judge() -> None:
    assert judge(None) == ("holds", None)
    assert judge("b", "e") == ("fails with a counterexample", "b")
    assert judge(None, "e") == ("holds for the bound only", "e")


def test_bad_rows_are_refused() -> None:
    row = Claim("c", "s 0000.00000", "sure", "1 case", "holds")
    with pytest.raises(ValueError, match=r"verdict must be one of .* got 'true'"):
        replace(row, verdict="true")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="wording must be one of"):
        replace(row, wording="guessed")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="name the counterexample"):
        replace(row, verdict="fails with a counterexample")
    with pytest.raises(ValueError, match="not available, so it cannot be 'holds'"):
        replace(row, wording="not available")
    with pytest.raises(ValueError, match="no row is called 'x'; rows: COOL-SD"):
        claims_ledger(["x"])
