"""Likelihood of feature-drafted images against every image there is."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

import theory
from tests.validate.networks import TOKENS, VOCABULARY, counts, table, tiny_pair
from validate.batches import Decoded
from validate.drafters import offset_laws as module
from validate.drafters.feature import DrafterConfiguration, FeatureDrafter
from validate.drafters.offset_laws import filter_feature_chains, offset_laws
from validate.drafters.trees import feature_proposer
from validate.models import Warp
from validate.tree_decoding import decode_tree

IMAGES, LENGTH, LABEL = 6000, 2, 1
EVERY = np.array(list(product(range(VOCABULARY), repeat=TOKENS)))
VERIFIERS: dict[str, Any] = {
    "lossless": theory.Verifier(theory.Lossless()),
    "relaxed": theory.Verifier(theory.Relaxed([4.0, 2.0])),
    "accept all": theory.Verifier(theory.AcceptAll()),
}


def drafter() -> FeatureDrafter:
    made = FeatureDrafter(DrafterConfiguration(VOCABULARY, 8, 16, 2, 2)).eval()
    generator = torch.Generator().manual_seed(4)
    made.initialise(generator)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.6 * torch.randn(parameter.shape, generator=generator))
    return made


def decoded(tokens: np.ndarray) -> Decoded:
    none = np.zeros((len(tokens), 1), dtype=np.int64)
    classes = np.full(len(tokens), LABEL)
    return Decoded(tokens, classes, none, none[:, 0], none, {}, {}, 1.5, Warp(), classes)


def misfit(observed: np.ndarray, law: np.ndarray) -> float:
    """χ² less its degrees of freedom, in standard deviations."""
    chi = float(((observed - IMAGES * law) ** 2 / (IMAGES * law)).sum())
    return (chi - len(law) + 1) / np.sqrt(2 * (len(law) - 1))


@pytest.mark.parametrize("name", VERIFIERS)
def test_the_likelihood_is_the_law_of_the_decoder(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pair, made = tiny_pair(), drafter()
    run = decode_tree(
        pair, VERIFIERS[name], [[[]]], [LABEL] * IMAGES, proposer=feature_proposer(made), device="cpu", seed=3
    )
    found = filter_feature_chains(pair, made, decoded(EVERY), VERIFIERS[name], LENGTH)
    law = np.exp(found.log_likelihood)
    assert law.sum() == pytest.approx(1.0, abs=1e-5)
    own = np.exp(found.target_log_likelihood)
    exact = theory.sequences.target_law(table(pair.target, LABEL, 1.5), TOKENS)
    np.testing.assert_allclose(own, np.asarray(exact).reshape(-1), atol=1e-6)
    observed = counts(run.tokens, TOKENS)
    assert misfit(observed, law) < 4
    posterior = filter_feature_chains(pair, made, decoded(run.tokens), VERIFIERS[name], LENGTH).starts.sum(axis=1)
    assert 1 + posterior.mean() == pytest.approx(run.calls.mean(), abs=0.03)
    if name == "lossless":
        np.testing.assert_allclose(law, own, atol=1e-7)
        return
    assert misfit(observed, own) > 20
    # A law that forgets the offset is another one.
    original = module._laws

    def at_offset_zero(*a: Any) -> Any:
        laws = original(*a)
        forgetful = laws.draft_probs[:, :1].expand(-1, LENGTH, -1, -1)
        return module.OffsetLaws(laws.tokens, laws.target_probs, forgetful)

    monkeypatch.setattr(module, "_laws", at_offset_zero)
    wrong = np.exp(filter_feature_chains(pair, made, decoded(EVERY), VERIFIERS[name], LENGTH).log_likelihood)
    assert misfit(observed, wrong) > 10


def test_laws_depend_on_the_offset_and_pieces_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    pair, made = tiny_pair(), drafter()
    (whole,) = offset_laws(pair, made, decoded(EVERY[:20]), 3)
    assert whole.draft_probs.shape == (20, 3, TOKENS, VOCABULARY)
    assert float((whole.draft_probs[:, 0, 3] - whole.draft_probs[:, 1, 3]).abs().max()) > 1e-2
    assert bool((whole.draft_probs[:, 1, 1] == 1 / VOCABULARY).all())
    monkeypatch.setattr(module, "IMAGES_AT_ONCE", 7)
    pieces = torch.cat([laws.draft_probs for laws in offset_laws(pair, made, decoded(EVERY[:20]), 3)])
    torch.testing.assert_close(pieces, whole.draft_probs, atol=1e-6, rtol=0)


@pytest.mark.parametrize("length", [0, TOKENS + 1])
def test_bad_lengths(length: int) -> None:
    with pytest.raises(ValueError, match=f"length must lie in 1…4 .* got {length}"):
        next(offset_laws(tiny_pair(), drafter(), decoded(EVERY[:2]), length))
