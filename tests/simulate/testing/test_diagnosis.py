"""The nearest known fault, and the words of a failure."""

import numpy as np
import pytest

import theory
from simulate.testing import check_law, diagnosis, reference_sampler
from simulate.testing.mutants import MUTANTS

LOSSLESS = theory.Verifier(theory.Lossless())
P0, Q0 = theory.IIDChain([0.5, 0.3, 0.2]), theory.IIDChain([0.2, 0.3, 0.5])


@pytest.mark.parametrize(
    "wrong",
    [
        theory.Verifier(theory.Lossless(), theory.target_residual),
        theory.Verifier(theory.AcceptAll()),
        theory.Verifier(theory.Relaxed(2.0)),
    ],
    ids=["residual p", "everything accepted", "lenience"],
)
def test_a_known_fault_is_recognised_in_a_sampler_written_elsewhere(wrong):
    """Several faults can have one law on a pair of chains: the one that is named must have that of the sampler."""
    report = check_law(reference_sampler(wrong), P0, Q0, LOSSLESS, 1, counts="any")
    nearest = report.nearest_fault()
    named = next(fault for fault in MUTANTS if fault.name == nearest.name)
    assert named.kind == nearest.kind
    assert check_law(named.sampler, P0, Q0, wrong, 1, counts="any", smallest_tv=0.05, seeds=False).passed
    assert f"nearest known fault: {nearest.kind} ({nearest.name})" in str(report)


def test_a_fault_of_no_known_kind_has_no_nearest():
    def first_token_is_zero(rounds, rng):
        tokens, accepted = reference_sampler(LOSSLESS)(rounds, rng)
        tokens[:, 0] = np.where((accepted == 0) & (rng.random(rounds.count) < 0.31), 1, tokens[:, 0])
        last = np.where(rng.random(rounds.count) < 0.17, 2, tokens[:, 1])
        tokens[:, 1] = np.where(accepted == 1, last, tokens[:, 1])
        return tokens, accepted

    report = check_law(first_token_is_zero, P0, Q0, LOSSLESS, 1)
    assert report.nearest_fault() is None
    assert "nearest known fault: none fits" in str(report)


def test_a_passing_check_and_a_breach_of_protocol_have_none():
    assert check_law(reference_sampler(LOSSLESS), P0, Q0, LOSSLESS, 1, smallest_tv=0.2).nearest_fault() is None
    assert check_law(lambda rounds, rng: None, P0, Q0, LOSSLESS, 1, seeds=False).nearest_fault() is None


def test_known_faults_are_those_that_show_in_the_law():
    faults = diagnosis.known_faults()
    assert len(faults) >= 20
    assert {fault.found_by for fault in faults} == {"law"}
    assert all(fault.faulty for fault in faults)


def test_the_words_of_a_failure_name_laws_chains_and_level():
    wrong = theory.Verifier(theory.Lossless(), theory.target_residual)
    text = str(check_law(reference_sampler(wrong), P0, Q0, LOSSLESS, 1))
    for words in (
        "does not follow the declared law (the given pair, L = 1, V = 3)",
        "chains: p = [0.5, 0.3, 0.2], q = [0.2, 0.3, 0.5]",
        "worst event: accepted 0, tokens (1): declared 0, observed",
        "declared  observed in 4096 rounds",
        "a correct sampler fails with probability at most 1e-09",
    ):
        assert words in text
