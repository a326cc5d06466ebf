"""The recommended rule is what it says, lossless at zero, and less divergent than uniform relaxation at equal cost."""

from __future__ import annotations

import math

import numpy as np
import pytest

import theory
from tests.theory.helpers import random_tree


def test_it_is_capped_verification_with_the_excess_schedule() -> None:
    rule = theory.recommended_verifier(3, 0.8)
    np.testing.assert_array_equal(rule.omega, theory.capped_block(theory.excess_schedule(3, 0.8, 0.2)).omega)
    assert not rule.lossless
    assert theory.recommended_verifier(3, 0.0).lossless
    for length, excess in ((0, 1.0), (3, -0.1), (3, math.inf)):
        with pytest.raises(ValueError, match=r"length|excess"):
            theory.recommended_verifier(length, excess)


@pytest.mark.parametrize("seed", range(4))
def test_less_kl_than_uniform_at_equal_tokens_per_call(seed: int) -> None:
    rng = np.random.default_rng(seed)
    target, draft = (random_tree(rng, 3, 6) for _ in range(2))

    def calls(verifier: theory.AnyVerifier) -> float:
        return -float(theory.analyse_sequence(target, draft, verifier, 3, 6).expected_calls)

    uniform = theory.Verifier(theory.Relaxed(1.5))
    excess = theory.match(lambda s: theory.recommended_verifier(3, s), calls, calls(uniform), 0.0, 60.0, 1e-6)
    ours, theirs = (
        theory.analyse_sequence(target, draft, v, 3, 6).kl_target_output
        for v in (theory.recommended_verifier(3, excess), uniform)
    )
    assert float(ours) < 0.9 * float(theirs)
