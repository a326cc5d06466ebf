"""Odd and adversarial input: what is refused, what is checked at all, and masses at the edge of the floating point."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from math import inf, log, nan
from typing import Any

import numpy as np
import pytest
import torch

import theory
from tests.theory.helpers import random_tree
from theory.arrays import as_floats, real_array, real_number
from theory.residuals import EMPTY_RESIDUAL, normalised_positive_part
from theory.rules import check_neighbours

LOSSLESS = theory.Verifier(theory.Lossless())
THREE, OTHER = theory.IIDChain([0.5, 0.3, 0.2]), theory.IIDChain([0.2, 0.3, 0.5])
COMPLEX = np.array([0.5 + 0.1j, 0.5 - 0.1j])


class Outside:
    """A chain from outside the package that answers whatever it is told to."""

    vocab_size, depth = 2, None

    def __init__(self, rows: Any) -> None:
        self.rows = np.asarray(rows, dtype=float)

    def conditional(self, prefixes: Any) -> Any:
        return np.broadcast_to(self.rows, (len(prefixes), *self.rows.shape[-1:]))


def blocks(**changes: Any) -> theory.BlockTests:
    given: dict[str, Any] = {"tokens": np.array([0, 1]), "lengths": None, "size": 2, **changes}
    laws = np.full((given["size"], 2), 0.5)
    return theory.block_tests(theory.block(2), given["tokens"], laws, laws, given["lengths"])


VALUE_ERRORS: list[tuple[Any, str]] = [
    (lambda: theory.nearest_neighbours([[0.0], [nan], [1.0]], 1), r"embedding: entry \(1, 0\) is nan"),
    (lambda: theory.nearest_neighbours([[0.0], [inf], [1.0]], 1), r"embedding: entry \(1, 0\) is inf"),
    (lambda: theory.nearest_neighbours([0.0, 1.0], 1), r"shape \(V, D\)"),
    (lambda: theory.Grouped([[0.0], [nan]]), r"embedding: entry \(1, 0\) is nan"),
    (lambda: theory.rule_families([[0.0], [nan], [1.0]]), r"embedding: entry \(1, 0\)"),
    (lambda: theory.compare_rules([0.5, 0.5], [0.5, 0.5], [[0.0], [nan]]), r"embedding: entry \(1, 0\)"),
    (lambda: theory.Lantern([[1, 1], [0, 2], [1, 0]], 2, 0.1), r"neighbours\[0\] names a token twice, \[1, 1\]"),
    (lambda: theory.Lantern([[1], [0], [3]], 1, 0.1), r"neighbours\[2, 0\] is 3"),
    (lambda: theory.Lantern([[1], [1], [0]], 1, 0.1), r"neighbours\[1, 0\] is 1"),
    (lambda: theory.PartitionGrouped([[0, 1], [1, 2]]), r"one integer for each token"),
    (lambda: theory.CascadeStyle().at([0.5], [[1.0]]).acceptance([0.5, 0.5], [0.5, 0.5], 0), r"siblings must be int"),
    (lambda: theory.Ensemble("0.5"), r"eta must be a real number, got '0\.5'"),
    (lambda: theory.Ensemble(True), r"eta must be a real number, got True"),
    (lambda: theory.Ensemble(np.complex128(0.5)), r"eta must be a real number"),
    (lambda: theory.Mentored(10**400), r"budget must be a real number"),
    (lambda: theory.Relaxed(10**400), r"omega holds an integer beyond"),
    (lambda: theory.Lossless().acceptance(0.5, 0.5, 0), r"got a single number"),
    (lambda: theory.transport_cost([0.5, 0.5], [0.2, 0.8], [[0.0, nan], [1.0, 0.0]]), r"cost: entry \(0, 1\) is nan"),
    (lambda: theory.transport_cost([0.5, 0.5], [0.2, 0.8], [[0.0, -1.0], [1.0, 0.0]]), r"cost: entry \(0, 1\) is -1"),
    (lambda: theory.transport_cost([0.5, 0.6], [0.2, 0.8], [[0.0, 1.0], [1.0, 0.0]]), r"only equal masses"),
    (lambda: theory.TableVerifier((), ()), r"at least one, got 0 and 0"),
    (lambda: theory.TableVerifier(([[1.0, 1.0]],), ()), r"got 1 and 0"),
    (lambda: theory.TableVerifier(([[1.0, nan]],), ([[0.5, 0.5]],)), r"1 entries do not, the first nan"),
    (lambda: theory.TableVerifier(([[1.0]],), ([[0.5, 0.5]],)), r"residual\[0\] has shape \(1, 2\), expected \(1, 1\)"),
    (lambda: theory.ratio_certificate(theory.capped_block(2.0), 0), r"length must be a whole number >= 1"),
    (lambda: theory.ratio_certificate(theory.block(1), 1.5), r"length must be a whole number"),
    (lambda: theory.best_acceptance([1.0], [1.0], 10**9), r"k is 1000000000; more than"),
    (lambda: blocks(tokens=np.array([0, 2])), r"token \(1,\) is 2; drafted tokens lie in 0…1"),
    (lambda: blocks(tokens=np.array([0, -1])), r"token \(1,\) is -1"),
    (lambda: blocks(tokens=np.array([0.0, 1.0])), r"tokens must be integers, got dtype float64"),
    (lambda: blocks(lengths=3), r"lengths must be whole numbers in 0…2"),
    (lambda: blocks(lengths=-1), r"lengths must be whole numbers in 0…2"),
    (lambda: blocks(tokens=np.zeros(0, int), size=0), r"with L >= 1"),
    (lambda: theory.exact_frontier(THREE, OTHER, 2, [[0.1]]), r"budgets must be numbers"),
]


@pytest.mark.parametrize("index", range(len(VALUE_ERRORS)))
def test_refused(index: int) -> None:
    call, message = VALUE_ERRORS[index]
    with pytest.raises(ValueError, match=message):
        call()


NOT_REAL: list[Any] = [
    lambda: theory.IIDChain(COMPLEX),
    lambda: theory.IIDChain(COMPLEX.tolist()),
    lambda: theory.IIDChain(["a", "b"]),
    lambda: theory.IIDChain(None),
    lambda: theory.total_variation(COMPLEX, [0.5, 0.5]),
    lambda: theory.Lossless().acceptance(COMPLEX, [0.5, 0.5], 0),
    lambda: theory.Lossless().acceptance(torch.tensor(COMPLEX), torch.tensor([0.5, 0.5]), 0),
    lambda: theory.Relaxed(COMPLEX),
    lambda: theory.Relaxed("2"),
    lambda: theory.Relaxed(1 + 1j),
    lambda: theory.nearest_neighbours(COMPLEX[:, None], 1),
    lambda: theory.Grouped(COMPLEX[:, None]),
    lambda: theory.exact_frontier(THREE, OTHER, 2, COMPLEX),
    lambda: theory.block_frontier(THREE, OTHER, 2, ["a"]),
    lambda: theory.bound_frontier(THREE, OTHER, 2).at(1j),
    lambda: theory.best_residual([0.5, 0.5], [0.2, 0.8], COMPLEX),
    lambda: theory.closed_form_bound(COMPLEX, 0.5),
    lambda: theory.round_starts(COMPLEX[:, None]),
]


@pytest.mark.parametrize("index", range(len(NOT_REAL)))
def test_what_is_not_real_is_refused(index: int) -> None:
    """A cast would drop the imaginary part with no more than a warning."""
    with pytest.raises(TypeError, match="real numbers"):
        NOT_REAL[index]()


@pytest.mark.parametrize(
    "rule", [theory.Lossless(), theory.budgeted(LOSSLESS, 0.1), None], ids=["a rule", "a budget", "nothing"]
)
def test_what_is_no_verifier_is_named(rule: Any) -> None:
    laws = np.full((1, 2, 3), 1 / 3)
    for call in (
        lambda: theory.analyse_round(THREE, OTHER, rule, 1),
        lambda: theory.analyse_sequence(THREE, OTHER, rule, 1, 2),
        lambda: theory.filter_offsets(np.zeros((1, 2), int), laws, laws, rule, 1),
        lambda: theory.round_along_paths(np.zeros((1, 2), int), laws, laws, rule, 1),
        lambda: theory.distance_to_frontier(THREE, OTHER, rule, 1),
    ):
        with pytest.raises(TypeError, match="expected a verifier, got"):
            call()
    with pytest.raises(TypeError, match=r"expected budgeted\(verifier"):
        theory.analyse_budgeted(THREE, OTHER, LOSSLESS, 1, 2)  # type: ignore[arg-type]


def test_exact_numbers_and_tensors_are_taken() -> None:
    assert real_array([Fraction(1, 4), 2], "x").tolist() == [0.25, 2.0]
    assert real_array([], "x").shape == (0,)
    assert real_number(np.float32(0.5), "x") == real_number(torch.tensor(0.5), "x") == real_number(Fraction(1, 2), "x")
    assert theory.Relaxed(torch.tensor([2.0, 1.0])).omega.tolist() == [2.0, 1.0]
    omega = np.array([2.0, 1.0])
    theory.Relaxed(omega)
    omega[0] = 3.0  # the caller's array stays writable, and is not kept
    assert as_floats(np.array([1, 0])).dtype == np.float64


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([0.5, 0.6], r"target\.conditional after 0 tokens: row \(0,\) sums to 1\.1"),
        ([1.5, -0.5], r"target\.conditional after 0 tokens: entry \(0, 1\) is -0\.5"),
        ([nan, 0.5], r"target\.conditional after 0 tokens: entry \(0, 0\) is nan"),
        ([0.5, 0.3, 0.2], r"target\.conditional gave shape \(1, 3\) for 1 prefixes, expected \(1, 2\)"),
    ],
)
def test_rows_of_a_chain_from_outside_are_checked(rows: Any, message: str) -> None:
    good = Outside([0.5, 0.5])
    assert isinstance(good, theory.Chain)
    for call in (
        lambda chain: theory.analyse_round(chain, good, LOSSLESS, 2).tv_bound,
        lambda chain: theory.analyse_sequence(chain, good, LOSSLESS, 2, 3),
        lambda chain: theory.bound_frontier(chain, good, 2),
        lambda chain: theory.analyse_budgeted(chain, good, theory.budgeted(LOSSLESS, 0.1), 1, 2),
        lambda chain: theory.analyse_tree(chain, good, LOSSLESS, [[]]),
    ):
        call(good)
        with pytest.raises(ValueError, match=message):
            call(Outside(rows))


def test_sequences_of_no_tokens() -> None:
    for batch in ((), (2,)):
        ids, laws = np.zeros((*batch, 0), int), np.zeros((*batch, 0, 3))
        found = theory.filter_offsets(ids, laws, laws, LOSSLESS, 2)
        spent = theory.filter_budget(ids, laws, laws, theory.budgeted(LOSSLESS, 0.1), 2)
        for value in (found.starts, found.kl_output_target, spent.spent, spent.relaxed):
            assert value.shape == (*batch, 0)
        assert np.all(found.log_likelihood == 0)
        assert np.all(spent.log_likelihood == 0)


def test_neighbours_keep_exact_ties_and_see_far_away_rows() -> None:
    assert theory.nearest_neighbours([[0], [1], [2], [4]], 3).tolist() == [[1, 2, 3], [0, 2, 3], [1, 0, 3], [2, 1, 0]]
    for scale, shift in ((1e-200, 0.0), (1e200, 0.0), (2.0**-20, 2.0**20)):
        rows = np.array([[0.0], [1.0], [3.0], [7.0]]) * scale + shift
        assert theory.nearest_neighbours(rows, 2).tolist() == [[1, 2], [0, 2], [1, 0], [2, 1]]
    assert theory.nearest_neighbours(np.zeros((3, 1)), 2).tolist() == [[1, 2], [0, 2], [0, 1]]
    assert check_neighbours(np.array([[2, 1], [2, 0], [0, 1]])[:, ::-1], 1).tolist() == [[1], [0], [1]]


# --- masses at the edge -------------------------------------------------------------------------------------------


def test_a_token_the_target_excludes_stays_refused_in_the_limit() -> None:
    """ω = ∞: behind a drafted token of target probability zero the weight is 0, and so is every later test."""
    p, q = np.tile([0.5, 0.5, 0.0], (4, 1)), np.tile([0.2, 0.3, 0.5], (4, 1))
    for omega in (inf, [inf] * 4, 1e308):
        for kind in (np.asarray, torch.tensor):
            tests = theory.block_tests(theory.capped_block(omega), kind([2, 0, 0, 1]), kind(p), kind(q))
            np.testing.assert_array_equal(tests.weights, [1, 0, 0, 0, 0])
            np.testing.assert_array_equal(tests.success, [1, 0, 0, 0, 0])
            assert int(theory.last_success(tests.success, kind([0.0, 0.0, 0.0, 0.0]))) == 0


@pytest.mark.parametrize("kind", [np.array, torch.tensor])
def test_a_factor_beyond_float32(kind: Any) -> None:
    p, q = (kind(x, dtype=torch.float32 if kind is torch.tensor else np.float32) for x in ([0.0, 1.0], [0.5, 0.5]))
    for verifier in (theory.Verifier(theory.Relaxed(1e300)), theory.capped_block(1e300), theory.capped_block(inf)):
        step = verifier.step(p, q, 0)
        np.testing.assert_array_equal(step.accepted, [0.0, 0.5])
        np.testing.assert_array_equal(step.output, [0.0, 1.0])


def test_placeholders_behind_a_shorter_draft_are_ignored() -> None:
    laws = np.full((2, 3, 2), 0.5)
    full = theory.block_tests(theory.block(3), np.array([[0, 1, 0], [1, 0, 0]]), laws, laws, np.array([1, 2]))
    held = theory.block_tests(theory.block(3), np.array([[0, -1, -1], [1, 0, -1]]), laws, laws, np.array([1, 2]))
    np.testing.assert_array_equal(full.success, held.success)


def test_kl_of_nearly_equal_and_of_far_apart_laws() -> None:
    """KL of p = (½ + d, ½ − d) to the fair law is 2 d² + O(d⁴), to the last digits; log p/q does not overflow."""
    for d in (1e-3, 1e-6, 1e-9, 1e-12):
        # ½ + d is rounded: the exact d is what float64 holds.
        own = float(Fraction(0.5 + d) - Fraction(1, 2))
        exact = 2 * own**2 + 4 * own**4 / 3
        found = theory.kl_divergence([0.5 + own, 0.5 - own], [0.5, 0.5])
        assert found == pytest.approx(exact, rel=1e-3 if d == 1e-12 else 1e-6)
    assert theory.kl_divergence([1.0, 0.0], [5e-324, 1.0]) == pytest.approx(-log(5e-324))
    assert theory.kl_divergence([5e-324, 1.0], [1.0, 0.0]) == inf
    assert theory.kl_divergence([0.25, 0.75], [0.25, 0.75]) == 0
    assert np.isnan(theory.kl_divergence([nan, 0.5], [0.5, 0.5]))


@pytest.mark.parametrize("mass", [1e-3, 1e-6, 1e-9, 1e-12, 1e-15])
def test_divergences_of_a_round_with_tiny_masses(mass: float) -> None:
    """Against rationals: KL(P̂‖P) to eleven digits however small, the ratio too."""
    rng = np.random.default_rng(3)
    for omega in (1.5, 3.0, 50.0):
        p, q = rng.dirichlet(np.ones(5), size=2)
        p[0], q[1] = p[0] * mass, q[1] * mass
        p, q = p / p.sum(), q / q.sum()
        a = theory.analyse_round(theory.IIDChain(p), theory.IIDChain(q), theory.Verifier(theory.Relaxed(omega)), 1)
        laws = [[Fraction(float(x)) for x in law] for law in (p, q)]
        target, draft = ([x / sum(law) for x in law] for law in laws)
        kept = [min(b, Fraction(omega) * t) for t, b in zip(target, draft, strict=True)]
        short = [max(t - k, Fraction(0)) for t, k in zip(target, kept, strict=True)]
        share = (1 - sum(kept)) / sum(short)
        output = [k + share * s for k, s in zip(kept, short, strict=True)]
        # p log(p/q) − p + q in doubles of exact shares: no cancellation left.
        kl = sum(
            float(t) * ((1 + d) * np.log1p(d) - d)
            for o, t in zip(output, target, strict=True)
            for d in [float(o / t - 1)]
        )
        assert a.kl_output_target == pytest.approx(kl, rel=1e-10, abs=1e-30)
        assert a.max_ratio == pytest.approx(float(max(o / t for o, t in zip(output, target, strict=True))), rel=1e-13)


def test_what_only_the_residual_emits_is_known_to_an_epsilon_of_the_rejection() -> None:
    """The stated limit: R is a sum of roundings, so that mass which only G carries has the relative error ε/R."""
    for mass, error in ((1e-6, 1e-9), (1e-9, 1e-6), (1e-12, 1e-3)):
        p, q = [0.4 * (1 - mass), 0.6 * (1 - mass), mass], [0.4, 0.6, 0.0]
        a = theory.analyse_round(theory.IIDChain(p), theory.IIDChain(q), LOSSLESS, 1)
        assert a.max_ratio == pytest.approx(1, abs=error)
        assert a.total_variation < 1e-15
        assert a.kl_target_output < 1e-18


def test_an_empty_residual_is_told_from_a_small_one() -> None:
    """The positive part counts as empty up to four epsilons, and as a residual above."""
    p = np.array([0.5, 0.5])
    eps = np.finfo(float).eps
    assert EMPTY_RESIDUAL == 4
    for share, expected in ((0.5, p), (4.0, p), (4.5, [1, 0]), (64.0, [1, 0])):
        np.testing.assert_array_equal(normalised_positive_part(np.array([share * eps, -0.1]), p), expected)
    narrow = torch.tensor([64.0, -1.0], dtype=torch.float32) * float(np.finfo(np.float32).eps)
    assert normalised_positive_part(narrow, torch.tensor([0.5, 0.5])).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("omega", "lossless", "at_least"),
    [
        (1.0, True, True),
        (0.5, True, False),
        (1 + 1e-15, False, True),
        ([1.0, 0.5], True, False),
        ([2.0, 0.5],) + (False,) * 2,
    ],
)
def test_claims_at_the_edge_of_lossless(omega: Any, lossless: bool, at_least: bool) -> None:
    rule = theory.Relaxed(omega)
    assert (rule.lossless, rule.at_least_lossless) == (lossless, at_least)
    assert theory.Verifier(rule).lossless is lossless
    assert theory.Verifier(rule, theory.vanilla_residual).lossless is (lossless and at_least)
    assert not theory.Verifier(rule, theory.target_residual).lossless
    assert theory.capped_block(omega).lossless is lossless
    assert theory.Relaxed(inf).support_safe is False
    assert rule.support_safe


def test_a_solver_s_slack_is_not_read_as_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Marginals in float32, a plan and an optimum that are slightly off: all recomputed, or refused."""
    import scipy.optimize

    rng = np.random.default_rng(2)
    points = rng.normal(size=(30, 2))
    cost = np.linalg.norm(points[:, None] - points, axis=-1)
    p, q = rng.dirichlet(np.ones(30), size=2)
    exact = theory.transport_cost(p, q, cost)
    narrow = theory.transport_cost(p.astype(np.float32), q.astype(np.float32), cost.astype(np.float32))
    assert narrow == pytest.approx(exact, abs=1e-6)
    assert theory.transport_cost(p, p, cost) == 0
    genuine = scipy.optimize.linprog

    def off(change: Any) -> Any:
        def solver(*args: Any, **kwargs: Any) -> Any:
            solution = genuine(*args, **kwargs)
            change(solution)
            return solution

        return solver

    def slack(solution: Any) -> None:
        solution.x = solution.x + rng.uniform(-1e-9, 1e-9, solution.x.shape)
        solution.fun = -1e-3

    monkeypatch.setattr(scipy.optimize, "linprog", off(slack))
    assert theory.transport_cost(p, q, cost) == pytest.approx(exact, abs=1e-6)
    for change in (
        lambda solution: solution.eqlin.marginals.__imul__(0.9),
        lambda solution: solution.x.__imul__(0.9),
    ):
        monkeypatch.setattr(scipy.optimize, "linprog", off(change))
        with pytest.raises(RuntimeError, match="certified to lie in"):
            theory.transport_cost(p, q, cost)


# --- trees with a residual that looks at the rejected token ---------------------------------------------------------


def node_law(p: Any, q: Any, verifier: Any, children: int, sampling: str) -> np.ndarray:
    """What one node emits, walking every order of rejected tokens; the residual is asked for each of them."""
    size = len(p)
    law = np.zeros(size)

    def walk(current: Any, mass: float, tried: tuple[int, ...]) -> None:
        left = np.array([0.0 if sampling == "without_replacement" and x in tried else q[x] for x in range(size)])
        if len(tried) == children or left.sum() == 0:
            law[:] += mass * current
            return
        left = left / left.sum()
        f = verifier.acceptance(current, left, 0)
        for x in range(size):
            law[x] += mass * left[x] * f[x]
            if left[x] * (1 - f[x]) > 0:
                after = theory.residual_after(verifier, current, left, f, np.array(x), 0)
                walk(after, mass * left[x] * (1 - f[x]), (*tried, x))

    walk(np.asarray(p), 1.0, ())
    return law


@pytest.mark.parametrize("sampling", ["with_replacement", "without_replacement", "top_k"])
@pytest.mark.parametrize("branch", ["dynamic", "llamagen_static", "lumina_static", "cactus", "optimal"])
def test_published_residuals_in_a_tree(sampling: Any, branch: Any) -> None:
    rng = np.random.default_rng(8)
    near = [[1, 2, 3], [0, 2, 3], [3, 1, 0], [2, 1, 0]]
    verifier = {
        "cactus": lambda: theory.published_verifier(theory.Cactus(0.3)),
        "optimal": lambda: theory.Verifier(theory.Lantern(near, 1, 0.2)),
    }.get(branch, lambda: theory.lantern_verifier(near, 1, 0.2, branch=branch))()
    mixed = 0.0
    for children, _ in product((1, 2, 3), range(4)):
        p, q = rng.dirichlet(np.full(4, 0.7), size=2)
        a = theory.analyse_tree(theory.IIDChain(p), theory.IIDChain(q), verifier, [[]] * children, sampling)
        if sampling == "top_k":
            order = np.argsort(-q, kind="stable")
            current, mass, expected = p, 1.0, np.zeros(4)
            for x in order[:children]:
                one = np.eye(4)[x]
                f = verifier.acceptance(current, one, 0)[x]
                expected[x] += mass * f
                current = theory.residual_after(verifier, current, one, np.full(4, f), np.array(x), 0)
                mass *= 1 - f
            expected = expected + mass * current
        else:
            expected = node_law(p, q, verifier, children, sampling)
        np.testing.assert_allclose(a.law.sum(axis=1), expected, rtol=0, atol=1e-14)
        # Control: one law for all rejected tokens, their mixture, is another decoder.
        blended = theory.Verifier(verifier.rule, lambda p, q, f: verifier.residual(p, q, f))
        other = theory.analyse_tree(theory.IIDChain(p), theory.IIDChain(q), blended, [[]] * children, sampling)
        mixed = max(mixed, float(np.abs(other.law.sum(axis=1) - expected).max()))
    # Cactus's laws hardly differ between rejected tokens; LANTERN's do, unless the sibling is certain.
    if branch != "cactus":
        assert (mixed > 1e-3) == (sampling != "top_k" and branch != "optimal")


def test_orders_of_rejected_tokens_are_limited() -> None:
    near = theory.nearest_neighbours(np.arange(64.0)[:, None], 3)
    verifier = theory.lantern_verifier(near, 2, 0.1)
    law = theory.IIDChain(np.full(64, 1 / 64))
    with pytest.raises(ValueError, match="5 siblings over 64 tokens"):
        theory.analyse_tree(law, law, verifier, [[]] * 5, "with_replacement")
    chain = random_tree(np.random.default_rng(0), 2, 3)
    with pytest.raises(ValueError, match="levels but a tree of depth 3"):
        theory.analyse_tree(chain, chain, verifier, [[[[]]]])


# --- what holds at equality: every threshold of a published rule on numbers that are exact in binary ----------------

HALVES = ([0.5, 0.25, 0.25], [0.25, 0.25, 0.5])


@pytest.mark.parametrize(
    ("rule", "p", "q", "expected"),
    [
        # |p(y) − p(x)| < δ_p and distance < d are strict: at equality the tokens stay apart.
        (theory.Grouped(None, 2, 0.25, inf), *HALVES, [1, 2 / 3, 2 / 3]),
        (theory.Grouped(None, 2, 0.2501, inf), *HALVES, [1, 1, 1]),
        (theory.Grouped(None, 2, 0.25, inf), [0.25, 0.5, 0.25], [0.75, 0.125, 0.125], [4 / 7, 1, 4 / 7]),
        (theory.Grouped(None, 2, 0.2501, inf), [0.25, 0.5, 0.25], [0.75, 0.125, 0.125], [1, 1, 1]),
        (theory.Grouped([[0.0], [0.5], [9.0]], 2, inf, 0.5), [0.25, 0.5, 0.25], [0.75, 0.125, 0.125], [1 / 3, 1, 1]),
        (
            theory.Grouped([[0.0], [0.5], [9.0]], 2, inf, 0.501),
            [0.25, 0.5, 0.25],
            [0.75, 0.125, 0.125],
            [6 / 7, 6 / 7, 1],
        ),
        # Pooled mass at the limit counts: S ≤ δ, Σ ≥ τ, D ≤ T.
        (theory.Lantern([[1, 2], [0, 2], [1, 0]], 2, 0.5), [0.25, 0.25, 0.5], [1.0, 0.0, 0.0], [0.5, 1, 1]),
        (theory.Lantern([[1, 2], [0, 2], [1, 0]], 2, 0.25), [0.25, 0.25, 0.5], [0.75, 0.0, 0.25], [2 / 3, 1, 1]),
        (theory.Lantern([[1, 2], [0, 2], [1, 0]], 2, 0.2499), [0.25, 0.25, 0.5], [0.75, 0.0, 0.25], [1 / 3, 1, 1]),
        (theory.NeighbourhoodPooling([[1], [0], [0]], 1, 0.5), [0.25, 0.25, 0.5], [0.5, 0.25, 0.25], [1, 1, 1]),
        (theory.NeighbourhoodPooling([[1], [0], [0]], 1, 0.3), [0.1, 0.2, 0.7], [0.5, 0.25, 0.25], [1, 1, 1]),
        (theory.DivergenceThreshold(0.25), *HALVES, [1, 1, 1]),
        (theory.DivergenceThreshold(0.3), [0.5, 0.3, 0.2], [0.2, 0.3, 0.5], [1, 1, 1]),
        (theory.DivergenceThreshold(0.2499), *HALVES, [0, 0, 0]),
        # The same where the sum of |p − q| is rounded up (TV .1 + 5e-17) and down (.1 − 2e-17).
        (theory.DivergenceThreshold(0.1), [0.1, 0.1, 0.8], [0.1, 0.2, 0.7], [1, 1, 1]),
        (theory.EntropyRelaxed(100.0, 0.1), [0.1, 0.2, 0.7], [0.1, 0.3, 0.6], [1, 2 / 3, 1]),
        # p > min(ε, α e^{−H}) and TV < δ are strict.
        (theory.Typical(0.25, 100.0), *HALVES, [1, 0, 0]),
        (theory.Typical(0.2499, 100.0), *HALVES, [1, 1, 1]),
        (theory.EntropyRelaxed(100.0, 0.25), *HALVES, [1, 1, 0.5]),
        (theory.EntropyRelaxed(100.0, 0.3), [0.5, 0.3, 0.2], [0.2, 0.3, 0.5], [1, 1, 0.4]),
        (theory.EntropyRelaxed(100.0, 0.2501), *HALVES, [1, 1, 1]),
        # max q < max p − α TV is strict: at equality the draft is kept.
        (theory.SpeculativeCascade(1.0), [0.75, 0.25], [0.5, 0.5], [1, 1]),
        (theory.SpeculativeCascade(0.5), [0.75, 0.25], [0.5, 0.5], [1, 0.5]),
        (theory.SpeculativeCascade(0.5, "token_3"), [0.5, 0.25, 0.25], [0.0, 0.5, 0.5], [0, 1, 1]),
        (theory.SpeculativeCascade(1.0, "token_3"), [1.0, 0.0], [0.5, 0.5], [1, 1]),
        (theory.SpeculativeCascade(0.999, "token_3"), [1.0, 0.0], [0.5, 0.5], [1, 0]),
        # cos ≥ τ_b: equal states are alike at τ_b = 1, and never above.
        (
            theory.CascadeStyle(1.0).at([0, 1], [[1.0, 0.0], [1.0, 0.0]]),
            [0.5, 0.0, 0.5],
            [0.25, 0.5, 0.25],
            [2 / 3 + 1 / 3, 2 / 3, 1],
        ),
        (theory.CascadeStyle(2.0).at([0, 1], [[1.0, 0.0], [1.0, 0.0]]), [0.5, 0.0, 0.5], [0.25, 0.5, 0.25], [1, 0, 1]),
        (theory.TopK(1), [0.25, 0.375, 0.375], [0.5, 0.25, 0.25], [0, 1, 0]),
    ],
    ids=lambda value: type(value).__name__ if hasattr(value, "acceptance") else "",
)
def test_thresholds_at_equality(rule: Any, p: Any, q: Any, expected: Any) -> None:
    np.testing.assert_allclose(rule.acceptance(p, q, 0), expected, rtol=1e-15)
    if hasattr(rule, "variant") and rule.variant == "token_3":
        assert rule.support_safe is (rule.alpha < 1)


def test_greedy_lantern_ties_need_the_lower_index() -> None:
    rule = theory.Lantern([[1], [0], [1]], 1, 0.25)
    # Raised token 2 ties with the argmax 0 from a higher index and loses; token 0 stays the argmax.
    assert rule.greedy_acceptance([0.5, 0.25, 0.25]).tolist() == [1, 0, 0]
    other = theory.Lantern([[1], [0], [1]], 1, 0.25)
    assert other.greedy_acceptance([0.25, 0.25, 0.5]).tolist() == [1, 1, 1]


def test_a_row_that_is_rounded_above_one_makes_no_nan() -> None:
    above = np.array([np.nextafter(1.0, 2.0), 0.0])
    assert theory.Cactus(1.0).acceptance(above, [0.5, 0.5], 0).tolist() == [1, 0]
    assert theory.Typical().acceptance(above, [0.5, 0.5], 0).tolist() == [1, 0]


def test_states_of_any_length_keep_their_angle() -> None:
    rule = theory.CascadeStyle(tau_d=0.9)
    for kind, scales in ((np.array, (1e-200, 1.0, 1e200)), (torch.tensor, (1e-30, 1.0, 1e30))):
        for scale in scales:
            assert bool(rule.converged(kind([3.0 * scale, 4.0 * scale]), kind([3.0, 4.1])))
            assert not bool(rule.converged(kind([3.0 * scale, 4.0 * scale]), kind([4.0, -3.0])))
    assert not bool(rule.converged([0.0, 0.0], [1.0, 0.0]))


def test_certificates_are_given_where_they_are_proved_only() -> None:
    relaxed = theory.Relaxed([2.0, 0.5])
    assert theory.ratio_certificate(theory.capped_block([2.0, 0.5]), 2) == 2
    assert theory.ratio_certificate(theory.Verifier(relaxed), 2) == 2
    assert theory.ratio_certificate(theory.lifted_block(theory.Verifier(relaxed)), 1) == 2
    assert theory.ratio_certificate(theory.Verifier(relaxed, theory.target_residual), 2) == inf
    assert theory.ratio_certificate(theory.Verifier(theory.Ensemble(0.5)), 2) == inf
    assert theory.ratio_certificate(theory.block(2), 2) == 1
