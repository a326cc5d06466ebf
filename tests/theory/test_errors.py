"""Bad input: a clear error that names the index and the value and says what to do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import theory
from theory.arrays import probabilities

IID = theory.IIDChain([0.5, 0.5])
SEQUENCE = (np.array([0, 1]), np.full((2, 2), 0.5), np.full((2, 2), 0.5), theory.Verifier(theory.Lossless()), 1)


def sequence(**changes: Any) -> Any:
    names = ("tokens", "target_probs", "draft_probs", "verifier", "length")
    arguments = dict(zip(names, SEQUENCE, strict=True)) | changes
    return theory.sequence_log_likelihood(*(arguments[name] for name in names))


CASES: list[tuple[Any, str]] = [
    (lambda: theory.IIDChain([0.5, 0.6]), r"p: row \(\) sums to 1\.1, not 1; divide"),
    (lambda: theory.TabularChain([[0.5, 0.5], [[0.5, 0.5], [0.5, 0.4]]]), r"levels\[1\]: row \(1,\) sums to 0\.9"),
    (lambda: theory.TabularChain([[0.5, 0.5], [[0.5, 0.5], [1.5, -0.5]]]), r"levels\[1\]: entry \(1, 1\) is -0\.5"),
    (lambda: theory.IIDChain([float("nan"), 0.5, 0.5]), r"entry \(0,\) is nan"),
    (lambda: theory.IIDChain([float("inf"), 0.5]), r"entry \(0,\) is inf"),
    (lambda: theory.IIDChain([]), r"V >= 1"),
    (lambda: theory.IIDChain([[0.5, 0.5]]), r"shape \(V,\), got \(1, 2\)"),
    (lambda: theory.TabularChain([]), r"levels is empty"),
    (lambda: theory.TabularChain([[0.5, 0.5], [[1.0, 0.0]]]), r"levels\[1\] has shape \(1, 2\), expected \(2, 2\)"),
    (lambda: theory.MarkovChain([0.5, 0.5], [[0.5, 0.5]]), r"\(V,\) and \(V, V\), got \(2,\) and \(1, 2\)"),
    (lambda: IID.conditional([[0, 2]]), r"prefix 0 has token 2 at place 1; tokens lie in 0…1"),
    (lambda: IID.conditional([0]), r"shape \(n, d\), got \(1,\)"),
    (lambda: theory.TabularChain([[0.5, 0.5]]).conditional([[0]]), r"prefix of 1 tokens has no next token"),
    (lambda: theory.Relaxed([1.0, -0.5]), r"omega at position 1 is -0\.5"),
    (lambda: theory.Relaxed(float("nan")), r"omega at position 0 is nan"),
    (lambda: theory.Relaxed([]), r"one per position"),
    (lambda: theory.Relaxed([[1.0, 2.0]]), r"got shape \(1, 2\)"),
    (lambda: theory.Relaxed([1.0]).acceptance([1.0], [1.0], 1), r"position 1 is outside the schedule of 1 entries"),
    (lambda: theory.Relaxed([1.0]).acceptance([1.0], [1.0], -1), r"position -1 is outside"),
    (lambda: theory.Relaxed([1.0]).acceptance([1.0], [1.0], 0.5), r"position must be integers"),
    (lambda: theory.Lossless().acceptance([0.5, 0.5], [1.0], 0), r"target has 2 tokens, the draft 1"),
    (lambda: theory.exponential_schedule(0, 1.1), r"length must be a whole number >= 1, got 0"),
    (lambda: theory.exponential_schedule(True, 1.1), r"got True"),
    (lambda: theory.exponential_schedule(3, -1), r"delta must be finite and lie in \[0\.0, inf\], got -1"),
    (lambda: theory.exponential_schedule(3, 1, float("nan")), r"nu must be finite"),
    (lambda: theory.exponential_schedule(3, 1, normalise="mean"), r"got 'mean'"),  # type: ignore[arg-type]
    (lambda: theory.exponential_schedule(3, 1, floor=-1), r"floor must be finite"),
    (lambda: theory.excess_schedule(3, -0.1), r"excess must be finite"),
    (lambda: theory.bang_bang_schedule(2, 3), r"free is 3, more than the length 2"),
    (lambda: theory.Ensemble(1.5), r"eta must be finite and lie in \[0\.0, 1\.0\], got 1\.5"),
    (lambda: theory.Ensemble("a"), r"eta must be a real number, got 'a'"),  # type: ignore[arg-type]
    (lambda: theory.DivergenceThreshold(0.1, "l2"), r"tv, kl or js, got 'l2'"),  # type: ignore[arg-type]
    (lambda: theory.TopK(0), r"k must be a whole number >= 1, got 0"),
    (lambda: theory.Lantern([[1], [1]], 1, 0.1), r"neighbours\[1, 0\] is 1; .* not the token itself"),
    (lambda: theory.Lantern([[2], [0]], 1, 0.1), r"neighbours\[0, 0\] is 2"),
    (lambda: theory.Lantern([[1], [0]], 2, 0.1), r"at least k=2"),
    (lambda: theory.Lantern([[1], [0]], 1, 0.1).acceptance([1.0], [1.0], 0), r"neighbours are for 2 tokens"),
    (lambda: theory.LanternPlusPlus([[1], [0]], 1, 0.5), r"lam must be finite and lie in \[1\.0, inf\]"),
    (lambda: theory.nearest_neighbours(np.zeros((3, 2)), 3), r"at most 2 neighbours"),
    (lambda: theory.analyse_round(IID, IID, theory.Verifier(theory.Lossless()), 0), r"length must be .* got 0"),
    (
        lambda: theory.analyse_round(theory.TabularChain([[0.5, 0.5]]), IID, theory.Verifier(theory.Lossless()), 1),
        r"the target has 1 levels but a round of 1 drafted tokens and one more needs 2",
    ),
    (
        lambda: theory.analyse_round(IID, theory.TabularChain([[0.5, 0.5]]), theory.Verifier(theory.Lossless()), 2),
        r"the draft has 1 levels",
    ),
    (
        lambda: theory.analyse_round(IID, theory.IIDChain([1.0]), theory.Verifier(theory.Lossless()), 1),
        r"vocabulary mismatch: the target has 2 tokens, the draft 1",
    ),
    (
        lambda: theory.analyse_round(IID, IID, theory.cool_sd(2, 1.1), 3),
        r"position 2 is outside the schedule of 2 entries",
    ),
    (
        lambda: theory.analyse_round(IID, IID, theory.Verifier(theory.Lossless()), 40).law,
        r"2\*\*41 entries",
    ),
    (
        lambda: theory.analyse_sequence(IID, IID, theory.Verifier(theory.Lossless()), 2, 0),
        r"tokens must be a whole number >= 1",
    ),
    (
        lambda: theory.analyse_sequence(IID, IID, theory.Verifier(theory.Lossless()), 2, 40).predictive(),
        r"2\*\*40 entries",
    ),
    (lambda: sequence(tokens=np.array([0, 2])), r"token \(1,\) is 2; tokens lie in 0…1"),
    (lambda: sequence(tokens=np.array([0.0, 1.0])), r"tokens must be integers"),
    (lambda: sequence(tokens=np.array([0, 1, 0])), r"expected tokens \(\.\.\., T\)"),
    (lambda: sequence(draft_probs=np.full((2, 3), 1 / 3)), r"target has 2 tokens, the draft 3"),
    (lambda: sequence(draft_probs=np.full((3, 2, 2), 0.5)), r"L=1"),
    (lambda: sequence(target_probs=np.array([[0.5, 0.5], [0.5, np.nan]])), r"target_probs: entry \(1, 1\) is nan"),
    (lambda: theory.closed_form_bound([0.9, 0.4], 0.6), r"rate 0\.4 at position 1 is below the overlap 0\.6"),
    (lambda: theory.closed_form_bound([1.1], 0.6), r"entry \(0,\)"),
    (lambda: theory.survival_price([0.5, 0.0]), r"rate of zero"),
    (lambda: theory.match(lambda s: s, lambda v: v, 3.0, 0.0, 2.0), r"value 3\.0 is out of reach"),
    (lambda: theory.total_variation([0.5, 0.5], [1.0]), r"2 and 1 entries"),
    (lambda: theory.transport_cost([0.5, 0.5], [1.0], [[0.0]]), r"expected shapes"),
]


@pytest.mark.parametrize("index", range(len(CASES)))
def test_bad_input(index: int) -> None:
    call, message = CASES[index]
    with pytest.raises(ValueError, match=message):
        call()


def test_a_verifier_needs_a_rule_and_a_function() -> None:
    with pytest.raises(TypeError, match="acceptance"):
        theory.Verifier(0.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="residual must be a function"):
        theory.Verifier(theory.Lossless(), "optimal")  # type: ignore[arg-type]


def test_rows_of_narrow_types_are_normalised_once() -> None:
    rows = torch.softmax(torch.randn(4, 16384, generator=torch.Generator().manual_seed(0)), -1)
    checked = probabilities(rows, "p")
    assert checked.dtype == torch.float32
    np.testing.assert_allclose(checked.sum(-1).numpy(), 1, atol=1e-6)
    narrow = (rows * 1.0002).numpy()
    np.testing.assert_allclose(probabilities(narrow, "p").sum(-1), 1, atol=1e-6)
    with pytest.raises(ValueError, match="sums to"):
        probabilities(narrow.astype(np.float64), "p")
    with pytest.raises(ValueError, match="sums to"):
        probabilities(narrow * 1.01, "p")


def test_inputs_are_not_changed() -> None:
    table = np.array([[0.5, 0.5], [0.25, 0.75]])
    kept = table.copy()
    omega = np.array([2.0, 1.0])
    rule = theory.Relaxed(omega)
    omega[0] = -1.0
    table.flags.writeable = False
    chain = theory.MarkovChain(table[0], table)
    theory.analyse_round(chain, chain, theory.Verifier(rule), 2)
    np.testing.assert_array_equal(table, kept)
    assert rule.omega[0] == 2.0


class Outside:
    """A rule from outside the package that gives whatever it is told to."""

    lossless, at_least_lossless, support_safe = False, False, False

    def __init__(self, f: Any) -> None:
        self.f = np.asarray(f)

    def acceptance(self, p: Any, q: Any, position: Any) -> Any:
        return self.f


@pytest.mark.parametrize(
    ("f", "message"),
    [
        ([0.5, 2.0], r"Outside\.acceptance gave 2\.0 at \(1,\)"),
        ([0.5, -0.1], r"gave -0\.1 at \(1,\)"),
        ([np.nan, 0.5], r"gave nan at \(0,\)"),
        ([0.5], r"must return \(\.\.\., 2\), got \(1,\)"),
    ],
)
def test_a_rule_from_outside_is_checked(f: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        theory.analyse_round(IID, IID, theory.Verifier(Outside(f)), 2)
    assert theory.analyse_round(IID, IID, theory.Verifier(Outside([0.5, 1.0])), 2).expected_accepted > 0


def test_a_rule_must_make_its_claims() -> None:
    class Silent:
        def acceptance(self, p: Any, q: Any, position: Any) -> Any:
            return np.ones(2)

    with pytest.raises(TypeError, match="Silent must claim lossless = True or False"):
        theory.Verifier(Silent())  # type: ignore[arg-type]
