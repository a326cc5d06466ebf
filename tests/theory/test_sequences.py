"""Chains of different kinds agree, and the likelihood recursion agrees with enumeration."""

from __future__ import annotations

import subprocess
import sys
from itertools import product

import numpy as np
import pytest
import torch

import theory
from tests.theory.helpers import random_tree

VERIFIERS = [
    theory.Verifier(theory.Lossless()),
    theory.cool_sd(2, 1.6),
    theory.Verifier(theory.EntropyRelaxed(0.4, 0.9)),
    theory.Verifier(theory.AcceptAll()),
    theory.Verifier(theory.Typical(), theory.target_residual),
]


def markov(rng: np.random.Generator, size: int) -> theory.MarkovChain:
    return theory.MarkovChain(rng.dirichlet(np.ones(size)), rng.dirichlet(np.ones(size), size))


def tabulate(chain: theory.Chain, depth: int) -> theory.TabularChain:
    size = chain.vocab_size
    levels = []
    for i in range(depth):
        prefixes = np.array(list(product(range(size), repeat=i)), dtype=int).reshape(size**i, i)
        levels.append(np.asarray(chain.conditional(prefixes)).reshape((size,) * (i + 1)))
    return theory.TabularChain(levels)


@pytest.mark.parametrize("verifier", VERIFIERS, ids=lambda v: type(v.rule).__name__)
def test_merged_prefixes_agree_with_all_prefixes(verifier: theory.Verifier) -> None:
    """The fast path of Markov and independent chains against its oracle, the table of every prefix."""
    rng = np.random.default_rng(0)
    iid = theory.IIDChain(rng.dirichlet(np.ones(3)))
    for target, draft in ((markov(rng, 3), markov(rng, 3)), (iid, markov(rng, 3)), (markov(rng, 3), iid), (iid, iid)):
        full = tabulate(target, 5), tabulate(draft, 5)
        fast, slow = (theory.analyse_round(*pair, verifier, 2) for pair in ((target, draft), full))
        np.testing.assert_allclose(fast.survival, slow.survival, rtol=0, atol=1e-14)
        np.testing.assert_allclose(fast.tv_bound_per_position, slow.tv_bound_per_position, rtol=0, atol=1e-14)
        np.testing.assert_allclose(fast.law, slow.law, rtol=0, atol=1e-14)
        a, b = (theory.analyse_sequence(*pair, verifier, 2, 5) for pair in ((target, draft), full))
        np.testing.assert_allclose(a.starts, b.starts, rtol=0, atol=1e-14)
        np.testing.assert_allclose(a.step_bias, b.step_bias, rtol=0, atol=1e-14)
        np.testing.assert_allclose(a.law, b.law, rtol=0, atol=1e-14)


def test_large_rounds_do_not_enumerate() -> None:
    rng = np.random.default_rng(0)
    target, draft = markov(rng, 200), markov(rng, 200)
    a = theory.analyse_round(target, draft, theory.cool_sd(16, 1.5), 16)
    assert 0 < a.expected_accepted < 16
    assert 0 < a.tv_bound
    with pytest.raises(ValueError, match="entries"):
        _ = a.total_variation


@pytest.mark.parametrize("verifier", VERIFIERS, ids=lambda v: type(v.rule).__name__)
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_filter_agrees_with_enumeration(verifier: theory.Verifier, library: str) -> None:
    size, length, count = 3, 2, 5
    rng = np.random.default_rng(5)
    target, draft = random_tree(rng, size, count), random_tree(rng, size, count)
    s = theory.analyse_sequence(target, draft, verifier, length, count)
    tokens = np.array(list(product(range(size), repeat=count)))
    p, q = (np.stack([c.conditional(tokens[:, :t]) for t in range(count)], axis=1) for c in (target, draft))
    arrays = (tokens, p, q) if library == "numpy" else tuple(map(torch.from_numpy, (tokens, p, q)))
    found = theory.filter_offsets(*arrays, verifier, length)
    np.testing.assert_allclose(np.exp(np.asarray(found.log_likelihood)), s.law.reshape(-1), rtol=0, atol=1e-13)
    np.testing.assert_allclose(
        np.exp(np.asarray(found.target_log_likelihood)), s.target_law.reshape(-1), rtol=0, atol=1e-13
    )
    single = theory.sequence_log_likelihood(*arrays, verifier, length)
    np.testing.assert_array_equal(np.asarray(single), np.asarray(found.log_likelihood))
    law, own, predictive = s.law.reshape(-1), s.target_law.reshape(-1), s.predictive()

    def mean(values: object, weights: np.ndarray) -> np.ndarray:
        table = np.where(weights[:, None] > 0, np.asarray(values), 0.0)
        return weights @ table

    np.testing.assert_allclose(mean(found.starts, law), s.starts, atol=1e-12)
    np.testing.assert_allclose(mean(found.step_bias, law), s.step_bias, atol=1e-12)
    np.testing.assert_allclose(mean(found.total_variation, law), predictive.total_variation, atol=1e-12)
    np.testing.assert_allclose(mean(found.kl_output_target, law), predictive.kl_output_target, atol=1e-12)
    if np.isfinite(s.kl_target_output):
        np.testing.assert_allclose(mean(found.kl_target_output, own), predictive.kl_target_output, atol=1e-12)


def test_a_draft_that_depends_on_the_offset() -> None:
    """(L, T, V) drafts: the same draft at every offset is the plain case; a different one changes the answer."""
    rng = np.random.default_rng(2)
    tokens = rng.integers(0, 3, (4, 6))
    p, q = rng.dirichlet(np.ones(3), (4, 6)), rng.dirichlet(np.ones(3), (4, 6))
    verifier = theory.cool_sd(2, 1.6)
    plain = theory.sequence_log_likelihood(tokens, p, q, verifier, 2)
    same = theory.sequence_log_likelihood(tokens, p, np.stack([q, q], axis=1), verifier, 2)
    np.testing.assert_allclose(same, plain, atol=1e-14)
    other = theory.sequence_log_likelihood(tokens, p, np.stack([q, p], axis=1), verifier, 2)
    assert np.abs(other - plain).max() > 1e-3


def test_long_sequences_do_not_underflow_and_impossible_ones_are_minus_infinity() -> None:
    p = np.tile([0.5, 0.3, 0.2], (2, 5000, 1))
    q = np.tile([0.2, 0.3, 0.5], (2, 5000, 1))
    tokens = np.random.default_rng(0).integers(0, 3, (2, 5000))
    found = theory.sequence_log_likelihood(tokens, p, q, theory.Verifier(theory.Lossless()), 5)
    np.testing.assert_allclose(found, np.log(p[0, 0])[tokens].sum(-1), rtol=1e-12)
    impossible = np.array([[0.5, 0.5, 0.0]] * 3)
    details = theory.filter_offsets(np.array([0, 2, 1]), impossible, impossible, theory.cool_sd(2, 1.5), 2)
    assert details.log_likelihood == -np.inf
    assert np.isnan(details.total_variation[2])
    assert np.isfinite(details.total_variation[:2]).all()


def test_empty_batches() -> None:
    out = theory.sequence_log_likelihood(
        np.zeros((0, 3), int), np.zeros((0, 3, 2)), np.zeros((0, 3, 2)), theory.cool_sd(2, 1.5), 2
    )
    assert out.shape == (0,)


def test_conditional_at_reads_each_row_up_to_its_length() -> None:
    rng = np.random.default_rng(0)
    chain = random_tree(rng, 3, 4)
    tokens = rng.integers(0, 3, (6, 4))
    lengths = np.array([0, 3, 1, 2, 3, 0])
    rows = theory.conditional_at(chain, tokens, lengths)
    for row, token, length in zip(rows, tokens, lengths, strict=True):
        np.testing.assert_array_equal(row, chain.conditional(token[None, :length])[0])


def test_theory_loads_no_torch_and_no_solver() -> None:
    code = "import sys, theory; print(sorted({'torch', 'scipy', 'cvxpy', 'matplotlib'} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


@pytest.mark.parametrize("verifier", VERIFIERS[:3], ids=lambda v: type(v.rule).__name__)
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_round_along_paths_agrees_with_enumeration(verifier: theory.Verifier, library: str) -> None:
    size, length = 3, 2
    rng = np.random.default_rng(6)
    target, draft = random_tree(rng, size, length + 1), random_tree(rng, size, length + 1)
    a = theory.analyse_round(target, draft, verifier, length)
    tokens = np.array(list(product(range(size), repeat=length + 1)))
    p, q = (np.stack([c.conditional(tokens[:, :t]) for t in range(length + 1)], axis=1) for c in (target, draft))
    arrays = (tokens, p, q) if library == "numpy" else tuple(map(torch.from_numpy, (tokens, p, q)))
    paths = theory.round_along_paths(*arrays, verifier, length)
    weights = a.target_law.reshape(-1)
    np.testing.assert_allclose(np.asarray(paths.ratio) * weights, a.law.reshape(-1), rtol=0, atol=1e-14)
    np.testing.assert_allclose(weights @ np.asarray(paths.survival_ratio), a.survival, atol=1e-14)
    np.testing.assert_allclose(weights @ np.asarray(paths.bias), a.tv_bound_per_position, atol=1e-14)
    with pytest.raises(ValueError, match="a round of 4 drafted tokens needs paths"):
        theory.round_along_paths(*arrays, verifier, 4)


@pytest.mark.parametrize("verifier", [VERIFIERS[0], VERIFIERS[1]], ids=["lossless", "relaxed"])
def test_path_terms_average_to_the_exact_divergences(verifier: theory.Verifier) -> None:
    size, length = 3, 2
    rng = np.random.default_rng(8)
    target, draft = random_tree(rng, size, length + 1), random_tree(rng, size, length + 1)
    a = theory.analyse_round(target, draft, verifier, length)
    tokens = np.array(list(product(range(size), repeat=length + 1)))
    p, q = (np.stack([c.conditional(tokens[:, :t]) for t in range(length + 1)], axis=1) for c in (target, draft))
    paths, weights = theory.round_along_paths(tokens, p, q, verifier, length), a.target_law.reshape(-1)
    assert weights @ paths.tv_terms == pytest.approx(a.total_variation, abs=1e-14)
    assert weights @ paths.kl_output_terms == pytest.approx(a.kl_output_target, abs=1e-14)
    assert weights @ paths.kl_target_terms == pytest.approx(a.kl_target_output, abs=1e-14)


def test_families_are_lossless_at_strength_zero_and_grow() -> None:
    rng = np.random.default_rng(0)
    target, draft = random_tree(rng, 3, 4), random_tree(rng, 3, 4)
    families = theory.schedule_families(3)
    assert list(families)[:2] == ["uniform", "annealed, floored"]
    for name, family in families.items():
        lengths = [theory.analyse_round(target, draft, family(s), 3).expected_accepted for s in (0.3, 0.9, 2.0, 6.0)]
        assert lengths == sorted(lengths), name
        if name != "annealed, no floor":
            assert theory.analyse_round(target, draft, family(0.0), 3).total_variation < 1e-14


@pytest.mark.parametrize(
    "verifier", [theory.Verifier(theory.AcceptAll()), theory.Verifier(theory.Relaxed(1.5)), theory.capped_block(1.5)]
)
def test_ratios_and_leakage_of_the_predictive_law(verifier: theory.AnyVerifier) -> None:
    """Against conditionals of the enumerated law, with a token that the target forbids."""
    p, q = np.array([0.6, 0.4, 0.0]), np.array([0.2, 0.3, 0.5])
    law = theory.analyse_sequence(theory.IIDChain(p), theory.IIDChain(q), verifier, 2, 3).law
    ids = np.array(list(product(range(2), repeat=3)))
    found = theory.filter_offsets(ids, np.tile(p, (8, 3, 1)), np.tile(q, (8, 3, 1)), verifier, 2)
    for row, x in enumerate(ids):
        for t in range(3):
            conditional = law[tuple(x[:t])].reshape(3, -1).sum(axis=1)
            conditional = conditional / conditional.sum()
            ratio = np.inf if conditional[2] > 0 else (conditional[:2] / p[:2]).max()
            assert found.max_ratio[row, t] == pytest.approx(ratio, abs=1e-12)
            assert found.support_leakage[row, t] == pytest.approx(conditional[2], abs=1e-12)
