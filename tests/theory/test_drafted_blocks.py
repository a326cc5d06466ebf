"""Which drafts a decoder keeps: counts for given uniforms against exact laws, for every kind of verifier."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

import theory
from tests.theory.helpers import random_tree
from theory.verifiers import residual_after

LENGTH, SIZE = 3, 3
GRID = 24
"""Uniforms (k + 1/2)/24: with probabilities that are whole multiples of 1/24 the average over them is exact."""


def pair(seed: int = 0) -> tuple[theory.TabularChain, theory.TabularChain]:
    rng = np.random.default_rng(seed)
    return random_tree(rng, SIZE, LENGTH + 1), random_tree(rng, SIZE, LENGTH + 1)


def along(chain: theory.TabularChain, path: tuple[int, ...]) -> np.ndarray:
    return np.stack([np.asarray(chain.conditional([path[:i]]))[0] for i in range(LENGTH)])


def table(seed: int) -> theory.TableVerifier:
    """Acceptance in whole 24ths, different after every prefix."""
    rng = np.random.default_rng(seed)
    rules = [rng.integers(0, GRID + 1, (SIZE**i, SIZE)) / GRID for i in range(LENGTH)]
    return theory.TableVerifier(tuple(rules), tuple(rng.dirichlet(np.ones(SIZE), SIZE**i) for i in range(LENGTH)))


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_a_rule_that_knows_its_prefix_survives_as_the_analysis_says(kind: str) -> None:
    """P(accepted ≥ i | path) over all uniforms of the grid is Π f, with each f looked up behind its own prefix."""
    verifier = table(3)
    target, draft = pair()
    u = (np.stack(np.meshgrid(*[np.arange(GRID)] * LENGTH, indexing="ij"), -1).reshape(-1, LENGTH) + 0.5) / GRID
    for path in product(range(SIZE), repeat=LENGTH):
        ids = np.tile(path, (len(u), 1))
        laws = [np.tile(along(chain, path), (len(u), 1, 1)) for chain in (target, draft)]
        given: list[Any] = [ids, *laws, u]
        if kind == "torch":
            given = [torch.from_numpy(np.ascontiguousarray(a)) for a in given]
        found = theory.accepted_drafts(verifier, *given)
        count, weights = np.asarray(found.count), np.asarray(found.weights)
        wanted, row = 1.0, 0
        for i, x in enumerate(path):
            wanted *= verifier.acceptance[i][row, x]
            row = row * SIZE + x
            assert (count > i).mean() == pytest.approx(wanted, abs=1e-12)
            # The code of the prefix, as `step` takes it.
            assert (weights[:, i + 1] == SIZE ** (i + 1) + row).all()


@pytest.mark.parametrize("length", [0, 1, 2, 3])
@pytest.mark.parametrize(
    "verifier",
    [theory.Verifier(theory.AcceptAll()), theory.Verifier(theory.TopK(SIZE)), theory.capped_block(np.inf), table(1)],
    ids=["pointwise", "whole laws", "block", "prefix"],
)
def test_what_stands_behind_a_rows_own_block_is_not_accepted(verifier: Any, length: int) -> None:
    target, draft = pair()
    p, q = along(target, (0, 1, 2))[None], along(draft, (0, 1, 2))[None]
    ids = np.where(np.arange(LENGTH) < length, [0, 1, 2], -1)[None]
    count = int(theory.accepted_drafts(verifier, ids, p, q, np.zeros((1, LENGTH)), np.array([length])).count[0])
    assert count <= length
    if isinstance(verifier, theory.Verifier):
        assert count == length


def test_comparisons_are_strict() -> None:
    """u = f is refused, u one ulp below accepted."""
    p, q = np.array([[[0.25, 0.75]]]), np.array([[[0.5, 0.5]]])
    for verifier in (theory.Verifier(theory.Lossless()), theory.block(1), theory.Verifier(theory.EntropyRelaxed(0.0))):
        for u, kept in ((0.5, 0), (np.nextafter(0.5, 0), 1)):
            found = theory.accepted_drafts(verifier, np.array([[0]]), p, q, np.array([[u]]))
            assert int(found.count[0]) == kept


def plain_tests(verifier: Any, ids: np.ndarray, p: np.ndarray, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weights and ended masses M from whole steps."""
    weight, weights, left = np.ones(len(ids)), [np.ones(len(ids))], []
    for i in range(ids.shape[1]):
        step = verifier.step(p[:, i], q[:, i], i, weight)
        left.append(weight * step.rejection)
        weight = np.take_along_axis(step.weight, ids[:, i, None], axis=-1)[:, 0]
        weights.append(weight)
    return np.stack(weights, 1), np.stack([*left, weight], 1)


@pytest.mark.parametrize(
    "verifier",
    [
        theory.block(4),
        theory.capped_block([0.7, 1.0, 0.2, 0.9]),
        theory.capped_block([2.5, 1.5, 1.2, 1.0]),
        theory.capped_block(np.inf),
        theory.lifted_block(theory.cool_sd(4, 1.4, floor=1.0)),
        theory.lifted_block(theory.Verifier(theory.TopK(2), theory.target_residual)),
    ],
    ids=lambda verifier: type(verifier).__name__,
)
def test_block_tests_equal_whole_steps(verifier: Any) -> None:
    rng = np.random.default_rng(6)
    p, q = rng.dirichlet(np.full(5, 0.4), (300, 4)), rng.dirichlet(np.full(5, 0.4), (300, 4))
    p[:50] = q[:50]
    p[50:100] *= rng.random((50, 4, 5)) < 0.5
    p[50:100, :, 0] += 1e-3
    p /= p.sum(axis=-1, keepdims=True)
    ids = (rng.random((300, 4, 1)) >= np.cumsum(q, axis=-1)).sum(axis=-1).clip(max=4)
    found = theory.block_tests(verifier, ids, p, q)
    weights, left = plain_tests(verifier, ids, p, q)
    assert np.abs(found.weights - weights).max() < 1e-12
    refused = left + 1 - weights
    # h = M/(M + 1 − s) is 0/0 up to rounding where s = 1 and nothing is left.
    certain = refused > 1e-9
    h = left / np.where(certain, refused, 1)
    assert np.abs(found.success - h)[certain].max() < 1e-6
    assert certain.mean() > 0.3


def test_the_tests_of_a_block_are_refused_for_a_rule_that_knows_its_prefix() -> None:
    """Both carry something along the block; the last success counts for the one, the first rejection for the other."""
    with pytest.raises(ValueError, match="block_tests needs a block verifier"):
        theory.block_tests(table(0), np.zeros((1, 3), int), np.full((1, 3, 3), 1 / 3), np.full((1, 3, 3), 1 / 3))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("size", [3, 300])
@pytest.mark.parametrize("omega", [1.0, 0.5, 1.7, [2.0, 0.3, 1.0], 1e60])
def test_the_residual_without_f_is_that_with_f(omega: Any, size: int, dtype: Any) -> None:
    rng = np.random.default_rng(4)
    p, q = (rng.dirichlet(np.full(size, 0.5), 200).astype(dtype) for _ in range(2))
    p[0] = q[0]
    places = rng.integers(0, 3, 200)
    for verifier in (theory.Verifier(theory.Relaxed(omega)), theory.Verifier(theory.Lossless())):
        short = residual_after(verifier, p, q, None, 0 * places, places)
        exact = verifier.step(p, q, places).residual
        assert short.dtype == dtype
        assert np.abs(short - exact).max() < 1e4 * np.finfo(dtype).eps
