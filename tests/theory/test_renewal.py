"""Renewal of rounds against the exact recursion where it is exact, and paths against single windows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import theory
from tests.theory.helpers import random_tree
from theory.renewal import round_starts, survival_along_paths


def test_independent_tokens_are_exact() -> None:
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(4)), rng.dirichlet(np.ones(4))
    target, draft = theory.IIDChain(p), theory.IIDChain(q)
    for length, tokens in ((1, 5), (3, 7), (4, 3)):
        verifier = theory.cool_sd(length, 1.7)
        survival = theory.analyse_round(target, draft, verifier, length).survival
        starts = round_starts(np.tile(survival, (tokens, 1)))
        exact = theory.analyse_sequence(target, draft, verifier, length, tokens)
        np.testing.assert_allclose(starts, exact.starts, rtol=0, atol=1e-14)


def test_dependent_tokens_are_close() -> None:
    """Even without bias the mean survival ignores how prefixes and starts depend on each other: close, not equal."""
    rng = np.random.default_rng(1)
    target, draft = random_tree(rng, 3, 4), random_tree(rng, 3, 4)
    verifier = theory.Verifier(theory.Lossless())
    tokens = np.array(np.meshgrid(*[range(3)] * 4, indexing="ij")).reshape(4, -1).T
    p, q = (np.stack([c.conditional(tokens[:, :t]) for t in range(4)], axis=1) for c in (target, draft))
    weights = theory.analyse_sequence(target, draft, verifier, 2, 4).target_law.ravel()
    survival = np.einsum("n,ntl->tl", weights, survival_along_paths(tokens, p, q, verifier, 2))
    fresh = theory.analyse_round(target, draft, verifier, 2).survival
    np.testing.assert_allclose(survival[0], fresh, atol=1e-14)
    calls = round_starts(survival).sum()
    assert calls == pytest.approx(theory.analyse_sequence(target, draft, verifier, 2, 4).expected_calls, rel=0.02)


@pytest.mark.parametrize("verifier", [theory.cool_sd(3, 1.5), theory.capped_block([2.0, 1.5, 1.0])])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_paths_agree_with_single_windows(library: str, verifier: theory.AnyVerifier) -> None:
    rng = np.random.default_rng(2)
    tokens = rng.integers(0, 3, (5, 6))
    p, q = rng.dirichlet(np.ones(3), (5, 6)), rng.dirichlet(np.ones(3), (5, 6))
    arrays = (tokens, p, q) if library == "numpy" else tuple(map(torch.from_numpy, (tokens, p, q)))
    found = np.asarray(survival_along_paths(*arrays, verifier, 3))
    assert found.shape == (5, 6, 3)
    for t in range(6):
        window = min(3, 6 - t)
        one = theory.round_along_paths(tokens[:, t:], p[:, t:], q[:, t:], verifier, window)
        np.testing.assert_allclose(found[:, t, :window], one.survival_ratio, atol=1e-14)
        assert (found[:, t, window:] == 0).all()


def test_a_path_shorter_than_the_round() -> None:
    p = np.full((1, 2, 2), 0.5)
    found = survival_along_paths(np.zeros((1, 2), int), p, p, theory.cool_sd(4, 1.0, 0.0), 4)
    np.testing.assert_allclose(found[0], [[1, 1, 0, 0], [1, 0, 0, 0]])
    np.testing.assert_allclose(round_starts(found)[0], [1, 0])


def test_bad_input() -> None:
    with pytest.raises(ValueError, match=r"survival \(0, 0\) is 1\.5"):
        round_starts([[1.5], [0.5]])
    with pytest.raises(ValueError, match=r"shape \(\.\.\., T, L\)"):
        round_starts([0.5])
