"""Draft trees and the best acceptance of several candidates, against rational recursion and enumeration."""

from __future__ import annotations

import json
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import theory
from tests.theory.helpers import CASES, ROOT, chain_pairs, numbers, random_tree, tabular
from theory.candidates import best_acceptance, candidate_law, smallest_cut
from theory.trees import analyse_tree, tree_levels

PATHS = sorted((CASES / "tree").glob("*.json"))
SAMPLINGS = ("with_replacement", "without_replacement", "top_k")
TOLERANCE = 1e-12
P0, Q0 = [Fraction(1, 6), Fraction(1, 3), Fraction(1, 2)], [Fraction(2, 3), Fraction(1, 6), Fraction(1, 6)]
ONE = Fraction(1)


def oracle_tree(
    target: Any, draft: Any, omega: list[Fraction], tree: Any, sampling: str, size: int, declared: str | None = None
) -> tuple[list[Fraction], list[Fraction]]:
    """Law of depth + 1 tokens and survival, token by token in rationals.

    `declared` is the sampling that ratio and residual believe in: other than `sampling` it is a faulty decoder.
    """
    depth = len(tree_levels(tree)) - 1
    law = dict.fromkeys(product(range(size), repeat=depth + 1), Fraction(0))
    survival = [Fraction(0)] * depth

    def sibling_law(q: list[Fraction], tried: tuple[int, ...], how: str) -> list[Fraction] | None:
        if how == "with_replacement":
            return q
        if how == "top_k":
            order = sorted(range(size), key=lambda x: (-q[x], x))
            return [Fraction(x == order[len(tried)]) for x in range(size)] if len(tried) < size else None
        left = [Fraction(0) if x in tried else q[x] for x in range(size)]
        return [x / sum(left) for x in left] if sum(left) else None

    def finish(prefix: tuple[int, ...], mass: Fraction) -> None:
        if not mass:
            return
        if len(prefix) == depth + 1:
            law[prefix] += mass
            return
        for x in range(size):
            finish((*prefix, x), mass * target[prefix][x])

    def visit(node: Any, prefix: tuple[int, ...], mass: Fraction) -> None:
        stage(node, prefix, mass, target[prefix], 0, ())

    def stage(node: Any, prefix: tuple[int, ...], mass: Fraction, p: list[Fraction], j: int, tried: Any) -> None:
        q = sibling_law(draft[prefix], tried, sampling) if j < len(node) else None
        if q is None:
            for x in range(size):
                finish((*prefix, x), mass * p[x])
            return
        b = q if declared is None else sibling_law(draft[prefix], tried, declared)
        assert b is not None
        f = [min(ONE, omega[len(prefix)] * p[x] / b[x]) if b[x] else Fraction(0) for x in range(size)]
        left = [max(p[x] - b[x] * f[x], Fraction(0)) for x in range(size)]
        residual = [x / sum(left) for x in left] if sum(left) else p
        for x in range(size):
            if mass * q[x] * f[x]:
                survival[len(prefix)] += mass * q[x] * f[x]
                visit(node[j], (*prefix, x), mass * q[x] * f[x])
            if mass * q[x] * (1 - f[x]):
                stage(node, prefix, mass * q[x] * (1 - f[x]), residual, j + 1, (*tried, x))

    visit(tree, (), ONE)
    return list(law.values()), survival


def load(path: Path) -> tuple[dict[str, Any], Any, Any, theory.Verifier]:
    case = json.loads(path.read_text())
    target, draft = ([np.array(numbers(level)) for level in case[side]] for side in ("target", "draft"))
    return case, target, draft, theory.Verifier(theory.Relaxed(numbers(case["omega"])))


def worst(found: Any, wanted: Any) -> float:
    wanted = np.array([np.inf if x is None else x for x in np.atleast_1d(np.array(wanted, dtype=object))], dtype=float)
    found = np.asarray(found, dtype=float).reshape(-1)
    differ = found != wanted  # equal infinities count as agreement
    return float(np.max(np.abs(found[differ] - wanted[differ]), initial=0.0))


def test_the_cases_are_there() -> None:
    copies = sorted((ROOT / "tests" / "data" / "cases" / "tree").glob("*.json"))
    assert len(copies) == 44
    assert [path.name for path in PATHS] == [path.name for path in copies]


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_case(path: Path, library: str) -> None:
    case, target, draft, verifier = load(path)
    if library == "torch":
        target, draft = ([torch.from_numpy(level) for level in levels] for levels in (target, draft))
    a = analyse_tree(theory.TabularChain(target), theory.TabularChain(draft), verifier, case["tree"], case["sampling"])
    expect = {key: value for key, value in case["expect"].items() if not key.endswith("_exact")}
    assert set(expect) >= {"law", "survival", "tv_bound", "kl_output_target", "kl_target_output"}
    for key, value in expect.items():
        assert worst(getattr(a, key), value) < TOLERANCE, key
    assert a.expected_accepted == pytest.approx(numbers(case["expect"]["expected_accepted_exact"]), abs=TOLERANCE)
    assert (a.length, a.sampling) == (case["depth"], case["sampling"])


def test_the_other_sampling_is_noticed() -> None:
    """Negative control: the same cases analysed with the wrong sampling must disagree."""
    wrong = 0
    for path in PATHS:
        case, target, draft, verifier = load(path)
        other = SAMPLINGS[(SAMPLINGS.index(case["sampling"]) + 1) % 3]
        a = analyse_tree(theory.TabularChain(target), theory.TabularChain(draft), verifier, case["tree"], other)
        wrong += worst(a.survival, case["expect"]["survival"]) > 1e-3
    assert wrong >= 30


def test_the_fault_siblings_without_replacement_residual_with() -> None:
    """Drafted without replacement, verified as if with: off by 1/12, and the honest decoder is exact."""
    target, draft = {(): P0, **{(x,): P0 for x in range(3)}}, {(): Q0}
    for declared, first in ((None, P0), ("with_replacement", [Fraction(1, 6), Fraction(5, 12), Fraction(5, 12)])):
        law, _ = oracle_tree(target, draft, [ONE], [[], []], "without_replacement", 3, declared)
        marginal = [sum(law[3 * x : 3 * x + 3]) for x in range(3)]
        assert marginal == first
        assert sum(abs(a - b) for a, b in zip(marginal, P0, strict=True)) / 2 == (Fraction(1, 12) if declared else 0)
    chains = theory.IIDChain([float(x) for x in P0]), theory.IIDChain([float(x) for x in Q0])
    a = analyse_tree(*chains, theory.Verifier(theory.Lossless()), [[], []], "without_replacement")
    np.testing.assert_allclose(a.law.sum(axis=1), [float(x) for x in P0], rtol=0, atol=TOLERANCE)


def trees(depth: int) -> Any:
    """Nested lists of depth 1 to `depth`, at most three children a node."""
    node: Any = st.just([])
    for _ in range(depth - 1):
        node = st.one_of(st.just([]), st.lists(node, min_size=1, max_size=2))
    return st.lists(node, min_size=1, max_size=3)


@settings(deadline=None, max_examples=60)
@given(chain_pairs(), st.data())
def test_law_and_survival_equal_the_rational_oracle(pair: Any, data: Any) -> None:
    size, length, target, draft = pair
    tree, sampling = data.draw(trees(length)), data.draw(st.sampled_from(SAMPLINGS))
    depth = len(tree_levels(tree)) - 1
    omega = data.draw(st.lists(st.fractions(0, 4, max_denominator=4), min_size=depth, max_size=depth))
    law, survival = oracle_tree(target, draft, omega, tree, sampling, size)
    rule = theory.Relaxed([float(o) for o in omega])
    a = analyse_tree(tabular(target, size), tabular(draft, size), theory.Verifier(rule), tree, sampling)
    np.testing.assert_allclose(a.law.reshape(-1), [float(x) for x in law], rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(a.survival, [float(x) for x in survival], rtol=0, atol=TOLERANCE)
    assert a.total_variation <= a.tv_bound + TOLERANCE
    if rule.lossless:
        np.testing.assert_allclose(a.law, a.target_law, rtol=0, atol=TOLERANCE)


@settings(deadline=None, max_examples=60)
@given(chain_pairs(), st.data())
def test_lossless_trees_keep_the_target(pair: Any, data: Any) -> None:
    size, length, target, draft = pair
    tree, sampling = data.draw(trees(length)), data.draw(st.sampled_from(SAMPLINGS))
    residual = data.draw(st.sampled_from([theory.optimal_residual, theory.vanilla_residual]))
    chains = tabular(target, size), tabular(draft, size)
    a = analyse_tree(*chains, theory.Verifier(theory.Lossless(), residual), tree, sampling)
    np.testing.assert_allclose(a.law, a.target_law, rtol=0, atol=TOLERANCE)
    assert a.tv_bound <= TOLERANCE


def test_a_residual_of_the_target_is_noticed() -> None:
    """Negative control: lossless acceptance with residual p keeps nothing."""
    rng = np.random.default_rng(0)
    chains = random_tree(rng, 3, 3), random_tree(rng, 3, 3)
    for sampling in SAMPLINGS:
        verifier = theory.Verifier(theory.Lossless(), theory.target_residual)
        assert analyse_tree(*chains, verifier, [[[], []], []], sampling).total_variation > 0.01  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "rule", [theory.Ensemble(0.3), theory.EntropyRelaxed(0.3, 0.9), theory.TopK(2), theory.AcceptAll()]
)
@pytest.mark.parametrize("sampling", SAMPLINGS[:2])
def test_one_child_a_node_is_a_round(rule: theory.Rule, sampling: Any) -> None:
    rng = np.random.default_rng(1)
    chains = random_tree(rng, 3, 4), random_tree(rng, 3, 4)
    verifier = theory.Verifier(rule)
    a, b = analyse_tree(*chains, verifier, [[[[]]]], sampling), theory.analyse_round(*chains, verifier, 3)
    np.testing.assert_allclose(a.law, b.law, rtol=0, atol=1e-15)
    np.testing.assert_allclose(a.tv_bound_per_position, b.tv_bound_per_position, rtol=0, atol=1e-15)


def test_merged_prefixes_agree_with_all_prefixes_and_more_candidates_help() -> None:
    rng = np.random.default_rng(2)
    markov = [theory.MarkovChain(rng.dirichlet(np.ones(3)), rng.dirichlet(np.ones(3), 3)) for _ in range(2)]
    full = []
    for chain in markov:
        prefixes = [np.array(list(product(range(3), repeat=i)), dtype=int).reshape(3**i, i) for i in range(4)]
        full.append(theory.TabularChain([chain.conditional(x).reshape((3,) * (x.shape[1] + 1)) for x in prefixes]))
    verifier, tree = theory.Verifier(theory.Relaxed([1.5, 1.2, 0.8])), [[[[], []], []], [[]], []]
    for sampling in SAMPLINGS:
        fast, slow = (analyse_tree(*pair, verifier, tree, sampling) for pair in (markov, full))  # type: ignore[arg-type]
        np.testing.assert_allclose(fast.survival, slow.survival, rtol=0, atol=1e-14)
        np.testing.assert_allclose(fast.tv_bound_per_position, slow.tv_bound_per_position, rtol=0, atol=1e-14)
        np.testing.assert_allclose(fast.law, slow.law, rtol=0, atol=1e-14)
    lossless = theory.Verifier(theory.Lossless())
    grown = [analyse_tree(*full, lossless, t).expected_accepted for t in ([[[]]], [[[], []]], [[[], []], [[]]])]
    assert grown == sorted(grown)
    assert analyse_tree(*full, lossless, [[[], []], [[]]]).candidates == 5


ITSELF: list[Any] = []
ITSELF.append(ITSELF)
IID = theory.IIDChain([0.5, 0.5])
WIDE = theory.IIDChain(np.full(99, 1 / 99))
LOSSLESS = theory.Verifier(theory.Lossless())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: analyse_tree(IID, IID, LOSSLESS, [[], [3]]), r"tree\[1\]\[0\] is 3; a node is the list"),
        (lambda: analyse_tree(IID, IID, LOSSLESS, "[]"), r"tree is '\[\]'; a node is the list"),
        (lambda: analyse_tree(IID, IID, LOSSLESS, [["a"]]), r"tree\[0\]\[0\] is 'a'"),
        (lambda: analyse_tree(IID, IID, LOSSLESS, [None]), r"tree\[0\] is None"),
        (lambda: analyse_tree(IID, IID, LOSSLESS, []), r"no candidates; give the root at least one child"),
        (lambda: analyse_tree(IID, IID, LOSSLESS, ITSELF), r"more than 10000 nodes, or a list that contains itself"),
        (lambda: analyse_tree(IID, IID, LOSSLESS, [[]], "beam"), r"sampling must be one of .* got 'beam'"),
        (
            lambda: analyse_tree(theory.TabularChain([[0.5, 0.5]]), IID, LOSSLESS, [[]]),
            r"the target has 1 levels but a tree of depth 1 and one more token needs 2",
        ),
        (
            lambda: analyse_tree(IID, theory.TabularChain([[0.5, 0.5]]), LOSSLESS, [[[]]]),
            r"the draft has 1 levels but a tree of depth 2 needs 2",
        ),
        (lambda: analyse_tree(IID, theory.IIDChain([1.0]), LOSSLESS, [[]]), r"target has 2 tokens, the draft 1"),
        (lambda: analyse_tree(IID, IID, theory.cool_sd(1, 1.1), [[[]]]), r"position 1 is outside the schedule"),
        (
            lambda: analyse_tree(
                theory.IIDChain(np.full(99, 1 / 99)), theory.IIDChain(np.full(99, 1 / 99)), LOSSLESS, [[]] * 5
            ),
            r"5 siblings over 99 tokens .* use fewer",
        ),
        (lambda: best_acceptance([0.5, 0.5], [0.5, 0.5], 0), r"k must be a whole number >= 1, got 0"),
        (lambda: best_acceptance([0.5, 0.5], [1.0], 1), r"one shape \(V,\), got \(2,\) and \(1,\)"),
        (lambda: best_acceptance([0.5, 0.6], [0.5, 0.5], 1), r"p: row \(\) sums to 1\.1"),
        (lambda: best_acceptance(np.full(50, 0.02), np.full(50, 0.02), 9), r"50\*\*9 orders"),
        (lambda: best_acceptance([0.5, 0.5], [0.5, 0.5], 1, "beam"), r"got 'beam'"),  # type: ignore[arg-type]
    ],
)
def test_bad_input(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_a_tree_needs_a_token_wise_verifier() -> None:
    with pytest.raises(TypeError, match="token-wise"):
        analyse_tree(IID, IID, object(), [[]])  # type: ignore[arg-type]


def test_more_siblings_than_tokens_are_no_error() -> None:
    for sampling in SAMPLINGS[1:]:
        a, b = (analyse_tree(IID, IID, LOSSLESS, [[]] * k, sampling) for k in (2, 5))  # type: ignore[arg-type]
        assert a.expected_accepted == b.expected_accepted == 1
        assert b.total_variation == 0


@st.composite
def laws(draw: Any, size: int) -> np.ndarray:
    counts = draw(st.lists(st.integers(0, 10), min_size=size, max_size=size).filter(lambda c: sum(c) > 0))
    return np.array(counts) / sum(counts)


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 5), st.integers(1, 3), st.sampled_from(SAMPLINGS), st.data())
def test_the_transport_programme_against_the_smallest_cut(size: int, k: int, sampling: Any, data: Any) -> None:
    """Oracle of the linear programme: the minimum over all token sets; the sequential rule never beats it."""
    p, q = data.draw(laws(size)), data.draw(laws(size))
    best = best_acceptance(p, q, k, sampling)
    cut = smallest_cut(p, q, k, sampling)
    assert sum(candidate_law(q, k, sampling).values()) == pytest.approx(1, abs=TOLERANCE)
    assert best.lower <= cut + TOLERANCE
    assert best.upper >= cut - TOLERANCE
    assert best.upper - best.lower < 1e-9
    assert best.sequential <= best.upper + TOLERANCE
    if k == 1 and sampling != "top_k":
        assert best.upper == pytest.approx(theory.overlap(p, q), abs=1e-9)
        assert best.gap == pytest.approx(0, abs=1e-9)
    if sampling == "top_k":
        assert best.gap == pytest.approx(0, abs=1e-9)


def test_the_sequential_rule_is_not_optimal() -> None:
    p, q = [1 / 2, 1 / 3, 1 / 6], [1 / 6, 1 / 3, 1 / 2]
    found = {s: best_acceptance(p, q, 2, s) for s in SAMPLINGS}  # type: ignore[arg-type]
    assert found["with_replacement"].sequential == pytest.approx(13 / 18)
    assert found["without_replacement"].sequential == pytest.approx(7 / 9)
    assert found["without_replacement"].upper == pytest.approx(11 / 12)
    assert found["with_replacement"].upper == pytest.approx(29 / 36)
    assert found["top_k"].upper == pytest.approx(1 / 2)
