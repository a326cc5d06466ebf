"""Seeds, global generators and placeholders: what the kit sees without statistics."""

import random

import numpy as np
import pytest
import torch

import theory
from simulate.testing import check_law, check_placeholders, check_seeds, reference_decoder, reference_sampler

LOSSLESS = theory.Verifier(theory.Lossless())
P0, Q0 = theory.IIDChain([0.5, 0.3, 0.2]), theory.IIDChain([0.2, 0.3, 0.5])


def test_global_generators_are_found():
    def numpys(rounds, rng):
        return reference_sampler(LOSSLESS)(rounds, np.random.default_rng(np.random.randint(2**31)))  # noqa: NPY002

    def torchs(rounds, rng):
        return reference_sampler(LOSSLESS)(rounds, np.random.default_rng(int(torch.randint(2**31, ()))))

    for sampler in (numpys, torchs):
        with pytest.raises(AssertionError, match="the same seed gives different answers"):
            check_seeds(sampler)
        assert not check_law(sampler, P0, Q0, LOSSLESS, 1).passed
        assert check_law(sampler, P0, Q0, LOSSLESS, 1, seeds=False, smallest_tv=0.1).passed


def test_a_fixed_seed_is_found():
    def own_seed(rounds, rng):
        return reference_sampler(LOSSLESS)(rounds, np.random.default_rng(0))

    with pytest.raises(AssertionError, match="different seeds give the same answer"):
        check_seeds(own_seed)


def test_the_global_generators_are_put_back():
    """Those of Python, NumPy and torch stand where they stood, also after a sampler that draws from them or raises."""

    def states():
        numpys = np.random.get_state()  # noqa: NPY002
        return random.getstate(), numpys[1].tolist(), numpys[2:], torch.get_rng_state().tolist()

    def draws_and_raises(rounds, rng):
        raise ArithmeticError(random.random() + np.random.random() + float(torch.rand(())))  # noqa: NPY002

    before = states()
    check_seeds(reference_sampler(LOSSLESS))
    check_seeds(reference_decoder(LOSSLESS))
    assert states() == before
    with pytest.raises(AssertionError, match="ArithmeticError"):
        check_seeds(draws_and_raises)
    assert states() == before


def test_placeholders():
    check_placeholders(reference_sampler(LOSSLESS))
    check_placeholders(reference_sampler(theory.block(3)))

    def python_indexing(rounds, rng):
        ids = np.where(rounds.draft_ids < 0, rounds.vocab_size - 1, rounds.draft_ids)
        emitted = reference_sampler(LOSSLESS)(type(rounds)(ids, rounds.target_probs, rounds.draft_probs), rng)
        kept = np.arange(rounds.length) < np.asarray(emitted.accepted)[:, None]
        emitted.tokens[:, :-1][kept] = rounds.draft_ids[kept]
        return emitted

    with pytest.raises(AssertionError, match="placeholders"):
        check_placeholders(python_indexing)
