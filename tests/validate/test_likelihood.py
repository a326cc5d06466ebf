"""Likelihoods from logits against the offset recursion over whole laws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import theory
from validate import likelihood
from validate.likelihood import image_log_likelihood

LENGTH, SIZE, TOKENS = 3, 5, 7
VERIFIERS: dict[str, Any] = {
    "lossless": theory.Verifier(theory.Lossless()),
    "constant": theory.Verifier(theory.Relaxed(1.8)),
    "below one": theory.Verifier(theory.Relaxed([1.5, 1.0, 0.4])),
    "COOL-SD": theory.cool_sd(LENGTH, 1.3),
    "other residual": theory.Verifier(theory.Relaxed(1.8), theory.target_residual),
    "other rule": theory.Verifier(theory.Cactus(0.5)),
    "outright": theory.Verifier(theory.Relaxed([np.inf, 2.0, 1.0])),
    "block": theory.block(LENGTH),
}


@pytest.mark.parametrize("name", VERIFIERS)
@given(
    counts=st.lists(st.integers(0, 10), min_size=20, max_size=90),
    ids=st.lists(st.integers(0, SIZE - 1), min_size=2 * TOKENS, max_size=2 * TOKENS),
    same=st.booleans(),
)
def test_equals_the_recursion_over_whole_laws(name: str, counts: list[int], ids: list[int], same: bool) -> None:
    def law(numbers: list[int]) -> torch.Tensor:
        table = torch.tensor(np.resize(numbers, (2, TOKENS, SIZE)), dtype=torch.float64)
        table[..., 0] += 1
        return table / table.sum(-1, keepdim=True)

    p = law(counts)
    q = p if same else law(counts[::-1] + counts[:3])
    tokens = torch.tensor(ids).reshape(2, TOKENS)
    wanted = theory.sequence_log_likelihood(tokens, p, q, VERIFIERS[name], LENGTH).numpy()
    found = image_log_likelihood(tokens, p.log(), q.log(), VERIFIERS[name], LENGTH)
    np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-10)


def test_single_precision_and_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    target = torch.randn(3, 40, 50, generator=generator)
    draft, tokens = target + torch.randn(3, 40, 50, generator=generator), torch.arange(120).reshape(3, 40) % 50
    verifier = theory.cool_sd(5, 1.5)
    whole = image_log_likelihood(tokens, target, draft, verifier, 5)
    monkeypatch.setattr(likelihood, "ENTRIES_AT_ONCE", 350)
    np.testing.assert_allclose(image_log_likelihood(tokens, target, draft, verifier, 5), whole, atol=1e-4)
    laws = (torch.softmax(logits.double(), -1) for logits in (target, draft))
    wanted = theory.sequence_log_likelihood(tokens, *laws, verifier, 5).numpy()
    np.testing.assert_allclose(whole, wanted, atol=1e-4)
    other = image_log_likelihood(tokens, target, draft, theory.cool_sd(5, 2.0), 5)
    assert np.abs(other - whole).max() > 1e-2


def test_bad_input() -> None:
    logits, lossless = torch.zeros(1, 2, 3), VERIFIERS["lossless"]
    with pytest.raises(ValueError, match=r"token \(0, 1\) is 3; tokens lie in 0…2"):
        image_log_likelihood(torch.tensor([[0, 3]]), logits, logits, lossless, 2)
    with pytest.raises(ValueError, match=r"expected tokens \(B, T\) and logits"):
        image_log_likelihood(torch.tensor([[0, 1, 2]]), logits, logits, lossless, 2)
    with pytest.raises(ValueError, match="length"):
        image_log_likelihood(torch.tensor([[0, 1]]), logits, logits, lossless, 0)
    with pytest.raises(ValueError, match="position 2 is outside the schedule of 2 entries"):
        image_log_likelihood(torch.tensor([[0, 1]]), logits, logits, theory.cool_sd(2, 1.5), 3)
