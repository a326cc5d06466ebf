"""Frontiers: oracle cases, the linear programme, random rules that must not beat them, and bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog

import theory
from tests.theory.helpers import CASES, ROOT, number, numbers, random_tree
from theory.exact_frontier import block_frontier, exact_frontier
from theory.frontier import bound_frontier
from theory.optimal import TableVerifier, optimal_verifier

PATHS = sorted((CASES / "frontier").glob("*.json"))
ACCEPT_ALL = theory.Verifier(theory.AcceptAll())
LOSSLESS = theory.Verifier(theory.Lossless())


def markov(rng: np.random.Generator, size: int) -> theory.MarkovChain:
    return theory.MarkovChain(rng.dirichlet(np.ones(size)), rng.dirichlet(np.ones(size), size))


def iid(rng: np.random.Generator, size: int) -> theory.IIDChain:
    return theory.IIDChain(rng.dirichlet(np.ones(size)))


def tabulate(chain: theory.Chain, depth: int) -> theory.TabularChain:
    size = chain.vocab_size
    rows = [np.array(list(np.ndindex(*(size,) * i)), dtype=int).reshape(size**i, i) for i in range(depth)]
    return theory.TabularChain([np.asarray(chain.conditional(r)).reshape((size,) * (r.shape[1] + 1)) for r in rows])


def pair(rng: np.random.Generator, size: int, length: int) -> tuple[theory.TabularChain, theory.TabularChain]:
    return random_tree(rng, size, length + 1), random_tree(rng, size, length + 1)


def load(path: Path) -> tuple[dict[str, Any], int, tuple[theory.TabularChain, theory.TabularChain]]:
    case = json.loads(path.read_text())
    target, draft = (theory.TabularChain([np.array(numbers(x)) for x in case[side]]) for side in ("target", "draft"))
    return case["expect"], case["draft_length"], (target, draft)


def test_the_cases_are_there() -> None:
    copies = sorted((ROOT / "tests" / "data" / "cases" / "frontier").glob("*.json"))
    assert len(copies) == 12
    assert {path.name for path in PATHS} == {path.name for path in copies}


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_case(path: Path) -> None:
    expect, length, chains = load(path)
    front = bound_frontier(*chains, length)
    found = np.stack([front.tv_bound, front.expected_accepted], axis=1)
    np.testing.assert_allclose(found, expect["bound_frontier"], rtol=0, atol=1e-12)
    np.testing.assert_allclose(found, np.vectorize(number)(expect["bound_frontier_exact"]), rtol=0, atol=1e-12)
    np.testing.assert_allclose(front.slopes, expect["slopes"], rtol=0, atol=1e-12)
    for row in expect["at_budget"]:
        budget, wanted = number(row["budget"]), row["optimal_expected_accepted"]
        assert front.at(budget) == pytest.approx(wanted, abs=1e-12)
        a = theory.analyse_round(*chains, optimal_verifier(*chains, length, budget=budget), length)
        assert a.tv_bound == pytest.approx(budget, abs=1e-10)
        assert a.expected_accepted == pytest.approx(wanted, abs=1e-10)
    assert theory.analyse_round(*chains, ACCEPT_ALL, length).total_variation == pytest.approx(
        expect["accept_all_total_variation"], abs=1e-12
    )
    rows = expect["exact_tv_frontier"]
    exact = exact_frontier(*chains, length, [number(row["total_variation"]) for row in rows])
    compare(exact, rows)
    block = block_frontier(*chains, length, [number(row["budget"]) for row in expect["block_at_budget"]])
    compare(block, expect["block_at_budget"])
    lossless = block_frontier(*chains, length, [0.0])
    assert lossless.expected_accepted[0] == pytest.approx(expect["block_lossless_expected_accepted"], abs=1e-9)


def compare(found: Any, rows: list[dict[str, Any]]) -> None:
    for lower, upper, row in zip(found.lower, found.upper, rows, strict=True):
        assert lower == pytest.approx(row["optimal_expected_accepted"], abs=row["tolerance"])
        assert row["lower"] - 1e-12 <= upper
        assert lower <= row["upper"] + 1e-12
        assert 0 <= upper - lower <= 1e-9
    assert (found.spent <= found.budgets + 1e-12).all()


def lagrangian(levels: list[tuple[np.ndarray, np.ndarray]], budget: float) -> float:
    """max N subject to B ≤ budget over 0 ≤ A_i ≤ A_{i−1} q_i, assembled entry by entry for scipy."""
    sizes = [p.size for p, _ in levels]
    offset, total = np.cumsum([0, *sizes]), sum(sizes)
    rows, limits = [], []
    for i, (p, q) in enumerate(levels):
        for k in range(p.size):
            for law, own in ((q, 0.0), (p, -1.0)):  # A − A' q ≤ 0 and A − A' p − E ≤ 0
                row = np.zeros(2 * total)
                row[offset[i] + k] = 1.0
                row[total + offset[i] + k] = own
                if i:
                    row[offset[i - 1] + k // p.shape[1]] = -law.flat[k]
                rows.append(row)
                limits.append(0.0 if i else law.flat[k])
    rows.append(np.r_[np.zeros(total), np.ones(total)])
    found = linprog(
        np.r_[-np.ones(total), np.zeros(total)],
        A_ub=np.array(rows),
        b_ub=[*limits, budget],
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    assert found.status == 0
    return float(-found.fun)


def test_the_dynamic_programme_is_the_linear_programme() -> None:
    rng = np.random.default_rng(0)
    for k in range(100):
        size, length = [(2, 2), (2, 3), (3, 2), (4, 1)][k % 4]
        concentration = [0.3, 1.0, 3.0][k % 3]
        chains = random_tree(rng, size, length, concentration), random_tree(rng, size, length, concentration)
        front = bound_frontier(*chains, length)
        levels = [tuple(chain.level(i) for chain in chains) for i in range(length)]
        assert (np.diff(front.tv_bound) > 0).all()
        assert (np.diff(front.slopes) < 0).all()
        budget = float(rng.uniform(0, 1.1 * front.tv_bound[-1]))
        assert front.at(budget) == pytest.approx(lagrangian(levels, budget), abs=1e-8)


@pytest.mark.parametrize("kind", ["tree", "markov", "mixed", "independent"])
def test_vertices_against_the_plain_pass_and_the_table(kind: str) -> None:
    """The merged breakpoints against their oracles: one plain pass at each λ, and the table of every prefix."""
    rng = np.random.default_rng(1)
    for size, length in ((3, 4), (2, 6), (4, 2), (3, 1), (1, 2)):
        chains: Any = {
            "tree": lambda: pair(rng, size, length),  # noqa: B023
            "markov": lambda: (markov(rng, size), markov(rng, size)),  # noqa: B023
            "mixed": lambda: (iid(rng, size), markov(rng, size)),  # noqa: B023
            "independent": lambda: (iid(rng, size), iid(rng, size)),  # noqa: B023
        }[kind]()
        front = bound_frontier(*chains, length)
        full = bound_frontier(*(tabulate(chain, length) for chain in chains), length)
        for name in ("tv_bound", "expected_accepted", "slopes"):
            np.testing.assert_allclose(getattr(front, name), getattr(full, name), rtol=0, atol=1e-12)
        if kind != "tree":
            assert len(front.tv_bound) <= size * length + 1
        between = np.r_[front.slopes * (1 - 1e-9), (front.slopes[1:] + front.slopes[:-1]) / 2]
        plain = bound_frontier(*chains, length, slopes=between)
        np.testing.assert_allclose(plain.at(front.tv_bound), front.expected_accepted, rtol=0, atol=1e-12)
        assert plain.error < 1e-6


def test_single_slopes_come_with_a_valid_error() -> None:
    chains = pair(np.random.default_rng(2), 4, 4)
    exact = bound_frontier(*chains, 4)
    budgets = np.linspace(0, exact.tv_bound[-1], 500)
    errors = []
    for count in (1, 4, 16, 64):
        rough = bound_frontier(*chains, 4, slopes=np.linspace(1.1, 4, count))
        below = exact.at(budgets) - rough.at(budgets)
        assert below.min() > -1e-12
        assert below.max() <= rough.error + 1e-12
        errors.append(rough.error)
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.05 < errors[0]


def test_identical_chains_have_one_vertex() -> None:
    chain = random_tree(np.random.default_rng(0), 3, 4)
    front = bound_frontier(chain, chain, 3)
    assert (front.tv_bound.tolist(), front.expected_accepted.tolist(), front.slopes.size) == ([0.0], [3.0], 0)
    v = optimal_verifier(chain, chain, 3, budget=0.1)
    assert v.lossless
    assert theory.analyse_round(chain, chain, v, 3).expected_accepted == pytest.approx(3)


@pytest.mark.parametrize("kind", ["tree", "markov", "independent"])
def test_the_optimal_rule_meets_its_budget_in_every_analysis(kind: str) -> None:
    rng = np.random.default_rng(3)
    size, length = 3, 3
    make = {"tree": lambda r, s: random_tree(r, s, length + 1), "markov": markov, "independent": iid}[kind]
    target, draft = make(rng, size), make(rng, size)
    front = bound_frontier(target, draft, length)
    full = tabulate(target, length + 1), tabulate(draft, length + 1)
    paths = np.array(list(np.ndindex(*(size,) * (length + 1))))
    p, q = (np.stack([c.conditional(paths[:, :t]) for t in range(length + 1)], axis=1) for c in full)
    for budget in (*front.tv_bound, *np.linspace(0, 1.2 * front.tv_bound[-1], 6)):
        v = optimal_verifier(target, draft, length, budget=budget, frontier=front)
        assert v.stateful == (kind == "tree")
        a = theory.analyse_round(target, draft, v, length)
        spent = min(budget, front.tv_bound[-1])
        assert a.tv_bound == pytest.approx(spent, abs=1e-10)
        assert a.expected_accepted == pytest.approx(front.at(budget), abs=1e-10)
        assert (v.tv_bound, v.expected_accepted) == pytest.approx((a.tv_bound, a.expected_accepted), abs=1e-12)
        np.testing.assert_allclose(theory.analyse_round(*full, v, length).law, a.law, rtol=0, atol=1e-14)
        along = theory.round_along_paths(paths, p, q, v, length)
        np.testing.assert_allclose(along.ratio * a.target_law.reshape(-1), a.law.reshape(-1), rtol=0, atol=1e-13)
        s = theory.analyse_sequence(target, draft, v, length, length + 1)
        found = theory.sequence_log_likelihood(paths, p, q, v, length)
        np.testing.assert_allclose(np.exp(found), s.law.reshape(-1), rtol=0, atol=1e-13)
    same = optimal_verifier(target, draft, length, expected_accepted=front.at(0.3), frontier=front)
    assert same.tv_bound == pytest.approx(0.3, abs=1e-10)


def test_a_perturbed_rule_is_below_the_frontier() -> None:
    """Negative control: prices shifted to other tokens give a rule that misses the frontier."""
    chains = pair(np.random.default_rng(4), 3, 3)
    front = bound_frontier(*chains, 3)
    v = optimal_verifier(*chains, 3, budget=0.4, frontier=front)
    wrong = type(v)(v.slope, v.tie, 0.0, 0.0, tuple(np.roll(x, 1, axis=1) for x in v.prices), stateful=True)
    a = theory.analyse_round(*chains, wrong, 3)
    assert a.expected_accepted < front.at(float(a.tv_bound)) - 1e-3


IID = theory.IIDChain([0.5, 0.5])
OTHER = theory.IIDChain([0.75, 0.25])
BAD: list[tuple[Any, str]] = [
    (lambda: bound_frontier(IID, IID, 0), r"length must be a whole number >= 1, got 0"),
    (lambda: bound_frontier(IID, theory.IIDChain([1.0]), 2), r"vocabulary mismatch"),
    (lambda: bound_frontier(theory.TabularChain([[0.5, 0.5]]), IID, 2), r"the target has 1 levels"),
    (lambda: bound_frontier(IID, theory.TabularChain([[0.5, 0.5]] * 1), 40), r"the draft has 1 levels"),
    (lambda: bound_frontier(Opaque(), Opaque(), 40, slopes=[1.5]), r"2\*\*40 entries"),
    (lambda: bound_frontier(Opaque(), Opaque(), 25), r"33554432 prices, more than .* slopes="),
    (lambda: bound_frontier(IID, OTHER, 2, slopes=[-1.0]), r"slope must be finite and lie in \[0\.0, inf\], got -1"),
    (lambda: bound_frontier(IID, OTHER, 2).at(-0.1), r"budget must be >= 0, got -0\.1"),
    (lambda: bound_frontier(IID, OTHER, 2).at([0.1, np.nan]), r"budget must be >= 0"),
    (lambda: bound_frontier(IID, OTHER, 2).least_bound(2.5), r"expected_accepted must be .* got 2\.5"),
    (
        lambda: optimal_verifier(IID, OTHER, 2, budget=-0.1),
        r"budget must be finite and lie in \[0\.0, inf\], got -0\.1",
    ),
    (lambda: optimal_verifier(IID, OTHER, 2, budget=float("nan")), r"budget must be finite"),
    (lambda: optimal_verifier(IID, OTHER, 2), r"give one of budget and expected_accepted"),
    (lambda: optimal_verifier(IID, OTHER, 2, expected_accepted=0.1), r"expected_accepted must be .* got 0\.1"),
    (lambda: optimal_verifier(IID, OTHER, 2, expected_accepted=2.1), r"expected_accepted must be .* got 2\.1"),
    (
        lambda: optimal_verifier(IID, OTHER, 2, budget=0.1, frontier=bound_frontier(IID, OTHER, 2, slopes=[1.5])),
        r"single slopes only",
    ),
    (
        lambda: theory.analyse_round(IID, OTHER, optimal_verifier(IID, OTHER, 1, budget=0.1), 2),
        r"position 1 is outside",
    ),
    (lambda: optimal_verifier(IID, OTHER, 1, budget=0.1).step([1.0], [1.0], 0), r"for 2 tokens, got 1"),
    (lambda: tree_rule().step([0.5, 0.5], [0.5, 0.5], 1), r"position 1 needs the prefix"),
    (
        lambda: exact_frontier(IID, OTHER, 2, [0.1, -0.1]),
        r"budgets must be numbers in \[0, 1\.0\], got -0\.1 at index 1",
    ),
    (lambda: exact_frontier(IID, OTHER, 2, 1.5), r"got 1\.5 at index 0"),
    (lambda: exact_frontier(IID, OTHER, 2, [np.nan]), r"got nan at index 0"),
    (lambda: block_frontier(IID, OTHER, 2, [-1.0]), r"got -1\.0 at index 0"),
    (lambda: exact_frontier(IID, OTHER, 15, [0.1]), r"2\*\*15 prefixes, more than"),
    (lambda: exact_frontier(IID, OTHER, 0, [0.1]), r"length must be"),
    (lambda: exact_frontier(theory.TabularChain([[0.5, 0.5]]), OTHER, 2, [0.1]), r"the target has 1 levels"),
    (lambda: TableVerifier((np.full((1, 2), 1.5),), (np.full((1, 2), 0.5),)), r"2 entries do not"),
    (lambda: TableVerifier((np.ones((2, 2)),), (np.ones((2, 2)),)), r"acceptance\[0\] has shape \(2, 2\)"),
    (lambda: TableVerifier((np.ones((1, 2)),), (np.ones((1, 2)),)), r"residual: row \(0,\) sums to 2"),
]


class Opaque:
    """A chain of a kind the package does not know: every prefix must be enumerated."""

    vocab_size, depth = 2, None

    def conditional(self, prefixes: Any) -> np.ndarray:
        return np.full((len(prefixes), 2), 0.5)


def tree_rule() -> Any:
    return optimal_verifier(*pair(np.random.default_rng(0), 2, 2), 2, budget=0.1)


@pytest.mark.parametrize("index", range(len(BAD)))
def test_bad_input(index: int) -> None:
    call, message = BAD[index]
    with pytest.raises(ValueError, match=message):
        call()


def test_inputs_and_results_are_not_changed() -> None:
    rng = np.random.default_rng(8)
    chains = pair(rng, 3, 2)
    kept = [[level.copy() for level in chain.levels] for chain in chains]
    for chain in chains:
        for level in chain.levels:
            level.flags.writeable = False
    front = bound_frontier(*chains, 2)
    exact_frontier(*chains, 2, [0.1])
    block_frontier(*chains, 2, [0.1])
    theory.analyse_round(*chains, optimal_verifier(*chains, 2, budget=0.2), 2)
    for chain, levels in zip(chains, kept, strict=True):
        for level, before in zip(chain.levels, levels, strict=True):
            np.testing.assert_array_equal(level, before)
    with pytest.raises(ValueError, match="read-only"):
        front.tv_bound[0] = 1.0


def test_large_rounds() -> None:
    """A million prefixes, and a Markov pair of 256 tokens, in one test of seconds."""
    rng = np.random.default_rng(9)
    levels = [[rng.dirichlet(np.ones(10), size=(10,) * i) for i in range(6)] for _ in range(2)]
    tree = tuple(map(theory.TabularChain, levels))
    chains = (markov(rng, 256), markov(rng, 256))
    for target, draft, length in ((*tree, 6), (*chains, 8)):
        front = bound_frontier(target, draft, length)
        assert front.expected_accepted[-1] == pytest.approx(length, abs=1e-9)
        assert (np.diff(front.slopes) < 0).all()
        few = bound_frontier(target, draft, length, slopes=[1.2, 1.5, 2.0, 3.0])
        np.testing.assert_allclose(front.at(few.tv_bound), few.expected_accepted, rtol=0, atol=1e-10)
        v = optimal_verifier(target, draft, length, budget=0.25, frontier=front)
        assert v.tv_bound == pytest.approx(0.25, abs=1e-10)
