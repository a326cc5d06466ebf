"""Decoding with rules that know the prefix of the running round: token-wise, although they carry something along it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import simulate
import theory
from simulate.testing import Emitted, boundary_failures, check_law, reference_decoder, reference_sampler
from tests.simulate.test_decoding import FAULT_LEVEL, PASS_LEVEL, g_test
from validate.acceptance import verify_block

LENGTH, SIZE = 3, 3


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


TARGET = simulate.dirichlet_tree(SIZE, 2 * LENGTH, rng(1))
DRAFT = simulate.make_draft(TARGET, 0.3, rng(2))


def table() -> theory.TableVerifier:
    """A random f and G after every prefix."""
    source = rng(3)
    return theory.TableVerifier(
        tuple(source.random((SIZE**i, SIZE)) for i in range(LENGTH)),
        tuple(source.dirichlet(np.ones(SIZE), SIZE**i) for i in range(LENGTH)),
    )


VERIFIERS = {"optimal": theory.optimal_verifier(TARGET, DRAFT, LENGTH, budget=0.2), "table": table()}


@pytest.mark.parametrize("name", VERIFIERS)
def test_one_round_has_the_exact_law(name: str) -> None:
    verifier = VERIFIERS[name]
    assert verifier.stateful
    exact = theory.analyse_round(TARGET, DRAFT, verifier, LENGTH)
    run = simulate.decode_round(TARGET, DRAFT, verifier, LENGTH, 40_000, rng(4))
    assert g_test(run.tokens, np.asarray(exact.law)) > PASS_LEVEL
    survival = np.concatenate([[1.0], exact.survival, [0.0]])
    assert g_test(run.accepted[:, None], survival[:-1] - survival[1:]) > PASS_LEVEL
    assert g_test(run.tokens, np.asarray(exact.target_law)) < FAULT_LEVEL


@pytest.mark.parametrize("name", VERIFIERS)
def test_many_rounds_have_the_exact_law(name: str) -> None:
    """Every round begins with an empty prefix of its own."""
    verifier = VERIFIERS[name]
    exact = theory.analyse_sequence(TARGET, DRAFT, verifier, LENGTH, 5)
    run = simulate.decode(TARGET, DRAFT, verifier, LENGTH, 5, 40_000, rng(5))
    assert g_test(run.tokens, np.asarray(exact.law)) > PASS_LEVEL


@pytest.mark.parametrize("name", VERIFIERS)
def test_samplers_of_given_blocks(name: str) -> None:
    verifier = VERIFIERS[name]
    for sampler in (simulate.sampler(verifier), reference_sampler(verifier), reference_decoder(verifier)):
        report = check_law(sampler, TARGET, DRAFT, verifier, LENGTH, smallest_tv=0.05, rng=rng(6))
        assert report.passed, report


def confused() -> theory.TableVerifier:
    """The same rule with its rows of one length in another order."""
    right = table()
    return theory.TableVerifier(
        tuple(np.roll(f, 1, axis=0) for f in right.acceptance), tuple(np.roll(g, 1, axis=0) for g in right.residual)
    )


def test_control_prefixes_confused() -> None:
    assert not check_law(simulate.sampler(confused()), TARGET, DRAFT, table(), LENGTH, rng=rng(7)).passed


def test_boundaries_are_those_of_each_prefix() -> None:
    """A sampler that reads f and G off the table, token by token."""

    def by_table(rule: theory.TableVerifier) -> Any:
        def one(ids: Any, p: Any, u: Any, final: float) -> tuple[list[int], int]:
            for i, x in enumerate(ids):
                code = sum(int(y) * SIZE ** (i - 1 - j) for j, y in enumerate(ids[:i]))
                if not u[i] < rule.acceptance[i][code, x]:
                    return [*ids[:i], int(simulate.categorical(rule.residual[i][code], np.asarray(final)))], i
            return [*ids, int(simulate.categorical(p[-1], np.asarray(final)))], len(ids)

        def sampler(rounds: Any, uniforms: Any) -> Emitted:
            found = [
                one(*row)
                for row in zip(rounds.draft_ids, rounds.target_probs, uniforms.acceptance, uniforms.final, strict=True)
            ]
            return Emitted([tokens for tokens, _ in found], [count for _, count in found])

        return sampler

    assert not any(f.decisive for f in boundary_failures(by_table(table()), TARGET, DRAFT, LENGTH, table()))
    assert any(f.decisive for f in boundary_failures(by_table(confused()), TARGET, DRAFT, LENGTH, table()))


@pytest.mark.parametrize("name", VERIFIERS)
def test_networks_accept_as_the_simulator_does(name: str) -> None:
    """The same ids, laws and uniforms in torch."""
    verifier, source = VERIFIERS[name], rng(9)
    p, q = source.dirichlet(np.ones(SIZE), (50, LENGTH)), source.dirichlet(np.ones(SIZE), (50, LENGTH))
    ids, u = source.integers(0, SIZE, (50, LENGTH)), source.random((50, LENGTH))
    found = theory.accepted_drafts(verifier, ids, p, q, u)
    count, residual = verify_block(
        verifier, *(torch.from_numpy(a) for a in (ids, p, q)), np.full(50, LENGTH), torch.from_numpy(u)
    )
    assert count.tolist() == found.count.tolist()
    for row in np.flatnonzero(found.count < LENGTH):
        i = int(found.count[row])
        wanted = verifier.step(p[row, i], q[row, i], i, found.weights[row, i]).residual
        np.testing.assert_allclose(residual[row].numpy(), wanted, rtol=0, atol=1e-12)
