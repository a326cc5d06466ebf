"""Block verification: oracle cases, the decoder's mechanism by enumeration, proved statements, a broken variant."""

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
from theory.blocks import CappedBlock, block, capped_block, largest_factor, lifted_block, ratio_certificate
from theory.drafted_blocks import block_tests, last_success

PATHS = sorted((CASES / "block").glob("*.json"))
TOLERANCE = 1e-12
OMEGA = st.fractions(Fraction(1, 2), 4, max_denominator=8)
VERIFIERS = {
    "lossless": block(2),
    "capped": capped_block([1.9, 1.4]),
    "lifted": lifted_block(theory.Verifier(theory.Relaxed([2.2, 1.3]))),
    "lifted entropy": lifted_block(theory.Verifier(theory.EntropyRelaxed(0.4, 0.9))),
    "lifted top-k": lifted_block(theory.Verifier(theory.TopK(2), theory.target_residual)),
}


def verifier_of(spec: dict[str, Any], length: int) -> Any:
    if spec["kind"] == "block":
        return block(length)
    omega = numbers(spec["omega"])
    if spec["kind"] == "block_capped":
        return capped_block(omega)
    assert spec["kind"] == "block_lifted"
    return lifted_block(theory.Verifier(theory.Relaxed(omega)))


def test_the_cases_are_there() -> None:
    copies = sorted((ROOT / "tests" / "data" / "cases" / "block").glob("*.json"))
    assert len(copies) == 36
    assert {path.name for path in PATHS} == {path.name for path in copies}


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_case(path: Path, library: str) -> None:
    case = json.loads(path.read_text())
    sides = [[np.array(numbers(level)) for level in case[side]] for side in ("target", "draft")]
    if library == "torch":
        sides = [[torch.from_numpy(level) for level in side] for side in sides]
    chains = [theory.TabularChain(side) for side in sides]
    a = theory.analyse_round(*chains, verifier_of(case["rule"], case["draft_length"]), case["draft_length"])
    keys = [k for k in case["expect"] if not k.endswith("_exact") and not k.startswith("tokenwise")]
    assert set(keys) >= {"law", "survival", "tv_bound", "total_variation", "kl_output_target", "kl_target_output"}
    for key in keys:
        value = case["expect"][key]
        wanted = np.array([np.inf if x is None else x for x in (value if isinstance(value, list) else [value])], float)
        found = np.asarray(getattr(a, key)).reshape(-1)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=TOLERANCE, err_msg=key)
    token_wise = theory.analyse_round(*chains, theory.Verifier(theory.Lossless()), case["draft_length"])
    wanted = case["expect"]["tokenwise_lossless_expected_accepted"]
    assert token_wise.expected_accepted == pytest.approx(wanted, abs=TOLERANCE)


# The mechanism itself: blocks drafted, one uniform an index, the last success counts.


def mechanism(target: Any, draft: Any, verifier: Any, length: int, size: int, shared: bool = False) -> np.ndarray:
    """Law of L+1 tokens from `block_tests` and the residuals at τ: what a decoder does, summed over its draws.

    `shared` is a broken decoder that compares every index with one and the same uniform.
    """
    law = np.zeros((size,) * (length + 1))
    own = [np.asarray(target.level(i)).reshape((size,) * (i + 1)) for i in range(length + 1)]

    def finish(prefix: tuple[int, ...], row: np.ndarray, mass: float) -> None:
        tail = mass * row
        for i in range(len(prefix) + 1, length + 1):
            tail = tail[..., None] * own[i][prefix]
        law[prefix] += tail

    for tokens in product(range(size), repeat=length):
        ids = np.array(tokens)
        rows = [np.stack([c.conditional(ids[None, :i])[0] for i in range(length)]) for c in (target, draft)]
        drafted = np.prod([rows[1][i, x] for i, x in enumerate(tokens)])
        if drafted == 0:
            continue
        tests = block_tests(verifier, ids, rows[0], rows[1])
        failed = 1.0
        for i in range(length, -1, -1):
            later = min(failed, 1 - tests.success[i]) if shared else failed * (1 - tests.success[i])
            mass, failed = drafted * (failed - later), later
            if i == length:
                finish(tokens, own[length][tokens], mass)
            else:
                residual = verifier.step(rows[0][i], rows[1][i], i, tests.weights[i]).residual
                finish(tokens[:i], residual, mass)
        assert failed == pytest.approx(0, abs=1e-15)
    return law


@pytest.mark.parametrize("name", VERIFIERS)
def test_the_last_success_of_independent_tests_gives_the_law(name: str) -> None:
    """The state recursion of the analyses against the enumeration of what a decoder does."""
    rng = np.random.default_rng(0)
    for concentration in (0.3, 1.0):
        target, draft = (random_tree(rng, 3, 3, concentration) for _ in range(2))
        a = theory.analyse_round(target, draft, VERIFIERS[name], 2)
        law = mechanism(target, draft, VERIFIERS[name], 2, 3)
        np.testing.assert_allclose(law, a.law, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", ["lossless", "capped", "lifted"])
def test_one_uniform_for_all_indices_is_noticed(name: str) -> None:
    """Negative control of the enumeration above."""
    off = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        target, draft = (random_tree(rng, 3, 3, 3.0) for _ in range(2))
        a = theory.analyse_round(target, draft, VERIFIERS[name], 2)
        off.append(np.abs(mechanism(target, draft, VERIFIERS[name], 2, 3, shared=True) - a.law).max())
    assert max(off) > 1e-3


def test_uniforms_pick_the_last_success_and_rows_may_be_shorter() -> None:
    success = np.array([[1.0, 0.2, 0.6, 0.5]] * 4)
    u = np.array([[0.5, 0.1, 0.7, 0.6], [0.5, 0.1, 0.5, 0.5], [0.0, 0.3, 0.9, 0.4], [0.9, 0.9, 0.9, 0.9]])
    assert last_success(success, u[:, 1:]).tolist() == [1, 2, 3, 0]
    assert last_success(np.ones((2, 1)), np.zeros((2, 0))).tolist() == [0, 0]
    with pytest.raises(ValueError, match="one uniform for each of 3"):
        last_success(success, u)
    assert last_success(torch.from_numpy(success), torch.from_numpy(u[:, 1:])).tolist() == [1, 2, 3, 0]
    rng = np.random.default_rng(1)
    p, q, ids = rng.dirichlet(np.ones(4), (3, 5)), rng.dirichlet(np.ones(4), (3, 5)), rng.integers(0, 4, (3, 5))
    ragged = block_tests(block(5), ids, p, q, np.array([5, 2, 0]))
    full = block_tests(block(5), ids, p, q)
    np.testing.assert_array_equal(ragged.success[0], full.success[0])
    assert ragged.success[0, 5] == full.weights[0, 5]
    cut = block_tests(block(2), ids[1, :2], p[1, :2], q[1, :2])
    np.testing.assert_array_equal(ragged.success[1], [*cut.success, 0, 0, 0])
    assert ragged.success[2].tolist() == [1, 0, 0, 0, 0, 0]
    on_torch = block_tests(block(5), *(torch.from_numpy(a) for a in (ids, p, q)), np.array([5, 2, 0]))
    np.testing.assert_allclose(on_torch.success.numpy(), ragged.success, rtol=0, atol=1e-15)


class TokenResidual(CappedBlock):
    """Broken on purpose: the residual of token-wise decoding, Norm[p − q]_+, whatever the weight."""

    def step(self, p: Any, q: Any, position: Any, weight: Any = None) -> theory.Step:
        step = super().step(p, q, position, weight)
        return step._replace(residual=theory.vanilla_residual(p, q, None) + 0 * step.accepted)


def check_lossless(verifier: Any) -> None:
    target, draft = theory.IIDChain([0.2, 0.4, 0.4]), theory.IIDChain([0.1, 0.1, 0.8])
    a = theory.analyse_round(target, draft, verifier, 2)
    np.testing.assert_allclose(a.law, a.target_law, rtol=0, atol=TOLERANCE)
    s = theory.analyse_sequence(target, draft, verifier, 2, 5)
    np.testing.assert_allclose(s.law, s.target_law, rtol=0, atol=TOLERANCE)


def test_lossless_block_verification_and_the_token_residual() -> None:
    """The right one passes the check that the broken one fails, by TV 1/50 behind an exact first marginal."""
    check_lossless(block(2))
    broken = TokenResidual([1.0, 1.0])
    with pytest.raises(AssertionError):
        check_lossless(broken)
    a = theory.analyse_round(theory.IIDChain([0.2, 0.4, 0.4]), theory.IIDChain([0.1, 0.1, 0.8]), broken, 2)
    assert a.total_variation == pytest.approx(1 / 50, abs=TOLERANCE)
    np.testing.assert_allclose(a.law.sum((1, 2)), [0.2, 0.4, 0.4], rtol=0, atol=TOLERANCE)


def test_known_answers() -> None:
    target, draft = theory.IIDChain([1 / 3, 2 / 3]), theory.IIDChain([2 / 3, 1 / 3])
    for length, wanted, token_wise in ((2, 11 / 9, 10 / 9), (3, 5 / 3, 38 / 27)):
        a = theory.analyse_round(target, draft, block(length), length)
        b = theory.analyse_round(target, draft, theory.Verifier(theory.Lossless()), length)
        assert (a.expected_accepted, b.expected_accepted) == pytest.approx((wanted, token_wise), abs=TOLERANCE)


# Many rounds.


def oracle_sequence(target: Any, draft: Any, verifier: Any, length: int, count: int) -> tuple[np.ndarray, float]:
    """Law and calls by plain recursion over rounds, each round the enumerated one with its exact stopping law."""
    size = target.vocab_size
    law, calls = np.zeros((size,) * count), 0.0

    def visit(prefix: tuple[int, ...], offset: int, weight: float, mass: float) -> None:
        nonlocal calls
        if mass == 0:
            return
        if len(prefix) == count:
            law[prefix] += mass
            return
        calls += mass * (offset == 0)
        p, q = (np.asarray(c.conditional(np.array([prefix], int).reshape(1, -1)))[0] for c in (target, draft))
        if offset == length:
            for x in range(size):
                visit((*prefix, x), 0, 1.0, mass * p[x])
            return
        step = verifier.step(p, q, offset, np.array(weight))
        following = np.asarray(step.weight)
        left = weight - float(q @ following)
        for x in range(size):
            visit((*prefix, x), 0, 1.0, mass * max(left, 0.0) / weight * float(step.residual[x]))
            if following[x] > 0:
                visit((*prefix, x), offset + 1, float(following[x]), mass * q[x] * following[x] / weight)

    visit((), 0, 1.0, 1.0)
    return law, calls


@pytest.mark.parametrize("name", VERIFIERS)
def test_many_rounds_against_plain_recursion(name: str) -> None:
    rng = np.random.default_rng(4)
    target, draft = random_tree(rng, 3, 5), random_tree(rng, 3, 5)
    s = theory.analyse_sequence(target, draft, VERIFIERS[name], 2, 5)
    law, calls = oracle_sequence(target, draft, VERIFIERS[name], 2, 5)
    np.testing.assert_allclose(s.law, law, rtol=0, atol=1e-13)
    assert s.expected_calls == pytest.approx(calls, abs=TOLERANCE)
    assert s.total_variation <= s.tv_bound + TOLERANCE
    predictive = s.predictive()
    assert float(predictive.kl_output_target.sum()) == pytest.approx(s.kl_output_target, abs=1e-11)
    assert (predictive.total_variation <= s.step_bias + TOLERANCE).all()


@pytest.mark.parametrize("name", VERIFIERS)
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_filter_agrees_with_enumeration(name: str, library: str) -> None:
    size, count = 3, 5
    rng = np.random.default_rng(5)
    target, draft = random_tree(rng, size, count), random_tree(rng, size, count)
    s = theory.analyse_sequence(target, draft, VERIFIERS[name], 2, count)
    tokens = np.array(list(product(range(size), repeat=count)))
    p, q = (np.stack([c.conditional(tokens[:, :t]) for t in range(count)], axis=1) for c in (target, draft))
    arrays = (tokens, p, q) if library == "numpy" else tuple(map(torch.from_numpy, (tokens, p, q)))
    found = theory.filter_offsets(*arrays, VERIFIERS[name], 2)
    law, predictive = s.law.reshape(-1), s.predictive()
    np.testing.assert_allclose(np.exp(np.asarray(found.log_likelihood)), law, rtol=0, atol=1e-13)
    np.testing.assert_allclose(law @ np.asarray(found.starts), s.starts, atol=TOLERANCE)
    np.testing.assert_allclose(law @ np.asarray(found.step_bias), s.step_bias, atol=TOLERANCE)
    np.testing.assert_allclose(law @ np.asarray(found.kl_output_target), predictive.kl_output_target, atol=TOLERANCE)


@pytest.mark.parametrize("name", VERIFIERS)
def test_a_round_along_paths(name: str) -> None:
    rng = np.random.default_rng(6)
    target, draft = random_tree(rng, 3, 3), random_tree(rng, 3, 3)
    a = theory.analyse_round(target, draft, VERIFIERS[name], 2)
    tokens = np.array(list(product(range(3), repeat=3)))
    p, q = (np.stack([c.conditional(tokens[:, :t]) for t in range(3)], axis=1) for c in (target, draft))
    paths = theory.round_along_paths(tokens, p, q, VERIFIERS[name], 2)
    own = a.target_law.reshape(-1)
    np.testing.assert_allclose(own * paths.ratio, a.law.reshape(-1), rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(own @ paths.survival_ratio, a.survival, rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(own @ paths.bias, a.tv_bound_per_position, rtol=0, atol=TOLERANCE)


def test_a_long_sequence_in_both_libraries() -> None:
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(20), (3, 400)), rng.dirichlet(np.ones(20), (3, 400))
    tokens = rng.integers(0, 20, (3, 400))
    lossless = theory.sequence_log_likelihood(tokens, p, q, block(5), 5)
    np.testing.assert_allclose(lossless, np.log(np.take_along_axis(p, tokens[..., None], -1)).sum((1, 2)), rtol=1e-10)
    relaxed = [
        theory.sequence_log_likelihood(*arrays, capped_block(1.5), 5)
        for arrays in ((tokens, p, q), tuple(map(torch.from_numpy, (tokens, p, q))))
    ]
    np.testing.assert_allclose(relaxed[0], relaxed[1].numpy(), rtol=1e-10)
    assert np.abs(relaxed[0] - lossless).min() > 1e-3


# Proved statements.


@given(chain_pairs(), st.data())
@settings(deadline=None, max_examples=60)
def test_bound_certificate_and_realisable_set(pair: Any, data: Any) -> None:
    size, length, *tables = pair
    chains = [tabular(table, size) for table in tables]
    omega = [float(o) for o in data.draw(st.lists(OMEGA, min_size=length, max_size=length))]
    token_wise = theory.Verifier(theory.Relaxed(omega))
    plain = theory.analyse_round(*chains, token_wise, length)
    for verifier in (capped_block(omega), lifted_block(token_wise)):
        a = theory.analyse_round(*chains, verifier, length)
        assert a.law.sum() == pytest.approx(1, abs=TOLERANCE)
        assert a.total_variation <= a.tv_bound + TOLERANCE
        assert a.max_ratio <= ratio_certificate(verifier, length) * (1 + TOLERANCE)
        assert (np.diff(np.concatenate([[1.0], a.survival])) <= TOLERANCE).all()
    lifted = theory.analyse_round(*chains, lifted_block(token_wise), length)
    assert lifted.expected_accepted >= plain.expected_accepted - TOLERANCE


@given(chain_pairs())
@settings(deadline=None, max_examples=60)
def test_lossless_block_accepts_no_less_and_is_exact(pair: Any) -> None:
    size, length, *tables = pair
    chains = [tabular(table, size) for table in tables]
    token_wise = theory.Verifier(theory.Lossless())
    a = theory.analyse_round(*chains, block(length), length)
    np.testing.assert_allclose(a.law, a.target_law, rtol=0, atol=TOLERANCE)
    assert a.expected_accepted >= theory.analyse_round(*chains, token_wise, length).expected_accepted - TOLERANCE
    lifted = theory.analyse_round(*chains, lifted_block(token_wise), length)
    np.testing.assert_allclose(lifted.survival, a.survival, rtol=0, atol=TOLERANCE)


def test_a_lifted_step_emits_the_verifier_s_own_output() -> None:
    rng = np.random.default_rng(2)
    p, q, s = rng.dirichlet(np.ones(6), 50), rng.dirichlet(np.ones(6), 50), rng.uniform(0.01, 1, 50)
    verifier = theory.Verifier(theory.Relaxed([1.7, 2.5]))
    for position in (0, 1):
        lifted = lifted_block(verifier).step(p, q, position, s)
        np.testing.assert_allclose(lifted.output, verifier.step(p, q, position).output, rtol=0, atol=1e-14)


def test_largest_factor_against_bisection() -> None:
    from scipy.optimize import brentq

    rng = np.random.default_rng(3)
    p, q, s = rng.dirichlet(np.full(7, 0.5), 40), rng.dirichlet(np.full(7, 0.5), 40), rng.uniform(0.05, 0.99, (40, 1))
    p[:5, :3] = 0
    p[:5] /= p[:5].sum(-1, keepdims=True)
    found = largest_factor(p, q, s)[:, 0]
    for i in range(40):

        def excess(w: float, i: int = i) -> float:
            return float(np.minimum(q[i], w * s[i] * p[i]).sum() - s[i, 0])

        if np.isinf(found[i]):
            assert excess(1e12) <= 0
        else:
            assert excess(found[i]) == pytest.approx(0, abs=1e-14)
            assert found[i] == pytest.approx(brentq(excess, 0.5, 2 * found[i] + 1, xtol=1e-14), rel=1e-9)
    assert np.isinf(found).any()
    assert np.isinf(largest_factor(p[:1], q[:1], np.ones((1, 1)))).all()


def test_the_cap_binds_and_an_infinite_factor_is_a_limit() -> None:
    """Without the cap Σ q s' would exceed s: the realisable set would be left."""
    p, q = np.array([0.7, 0.2, 0.1]), np.array([0.1, 0.3, 0.6])
    s = 0.5
    uncapped = np.minimum(1, 4.0 * s * p / q)
    assert q @ uncapped > s
    step = capped_block(4.0).step(p, q, 0, s)
    assert s * step.accepted.sum() == pytest.approx(s, abs=1e-15)
    assert float(step.rejection) == pytest.approx(0, abs=1e-15)
    large, limit = (capped_block(w).step(p, q, 0) for w in (1e9, np.inf))
    np.testing.assert_allclose(limit.weight, large.weight)
    refused = capped_block(np.inf).step(np.array([1.0, 0.0]), np.array([0.5, 0.5]), 0)
    assert refused.weight.tolist() == [1.0, 0.0]


def test_a_weight_of_zero_and_tiny_weights() -> None:
    rng = np.random.default_rng(8)
    p, q = rng.dirichlet(np.ones(4), 4), rng.dirichlet(np.ones(4), 4)
    weights = np.array([0.0, 1e-310, 1e-200, 1e-5])
    for verifier in VERIFIERS.values():
        step = verifier.step(p, q, 0, weights)
        np.testing.assert_allclose(step.output.sum(-1), 1, atol=1e-14)
        assert np.isfinite(step.output).all()
        assert (step.weight[0] == 0).all()
    np.testing.assert_allclose(block(1).step(p, q, 0, weights).output, p, atol=1e-14)


def test_positions_broadcast_and_float32_stays() -> None:
    rng = np.random.default_rng(9)
    p, q, s = rng.dirichlet(np.ones(5), (6, 2)), rng.dirichlet(np.ones(5), (6, 2)), rng.uniform(0.1, 1, (6, 2))
    for verifier in VERIFIERS.values():
        together = verifier.step(p, q, np.arange(2), s)
        for i in range(2):
            single = verifier.step(p[:, i], q[:, i], i, s[:, i])
            np.testing.assert_allclose(together.weight[:, i], single.weight, rtol=0, atol=1e-15)
        narrow = verifier.step(*(torch.from_numpy(a).float() for a in (p, q)), np.arange(2), torch.from_numpy(s))
        assert narrow.weight.dtype is torch.float32
        np.testing.assert_allclose(narrow.output.numpy(), together.output, atol=1e-5)


def test_inputs_are_not_written() -> None:
    rng = np.random.default_rng(9)
    arrays = rng.dirichlet(np.ones(5), 6), rng.dirichlet(np.ones(5), 6), rng.uniform(0.1, 1, 6)
    for a in arrays:
        a.flags.writeable = False
    for verifier in VERIFIERS.values():
        verifier.step(arrays[0], arrays[1], 0, arrays[2])


# Errors.


def test_errors() -> None:
    rng = np.random.default_rng(0)
    markov = [theory.MarkovChain(rng.dirichlet(np.ones(200)), rng.dirichlet(np.ones(200), 200)) for _ in range(2)]
    for analyse in (
        lambda: theory.analyse_round(*markov, block(16), 16),
        lambda: theory.analyse_sequence(*markov, block(4), 4, 16),
    ):
        with pytest.raises(ValueError, match="kept apart"):
            analyse()
    with pytest.raises(TypeError, match="token-wise"):
        lifted_block(block(2))
    with pytest.raises(ValueError, match="length"):
        block(0)
    with pytest.raises(ValueError, match="position 1 is -1"):
        capped_block([1.0, -1.0])
    with pytest.raises(ValueError, match="outside the schedule"):
        theory.analyse_round(theory.IIDChain([0.5, 0.5]), theory.IIDChain([0.5, 0.5]), block(2), 3)
    with pytest.raises(ValueError, match="token by token"):
        block_tests(theory.cool_sd(2, 1.5), np.zeros(2, int), np.ones((2, 1)), np.ones((2, 1)))
    with pytest.raises(ValueError, match="expected tokens"):
        block_tests(block(2), np.zeros(3, int), np.ones((2, 1)), np.ones((2, 1)))
    assert block(3).lossless
    assert not capped_block(1.1).lossless
    assert lifted_block(theory.Verifier(theory.Lossless())).lossless
    assert ratio_certificate(block(3), 3) == 1
    assert ratio_certificate(capped_block(2.0), 3) == 8
    assert ratio_certificate(VERIFIERS["lifted entropy"], 3) == np.inf
