"""Images under a budget: their law is the enumerated one, their ledger the likelihood's, their certificate holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import theory
from tests.validate.networks import TOKENS, counts, table, tiny_pair
from validate import budgeted_decoding
from validate.budgeted_decoding import decode_budgeted
from validate.decoding import decode
from validate.scoring import score

IMAGES, LENGTH = 8000, 2
RELAXED = theory.Verifier(theory.Relaxed(3.0))
RULES = [
    theory.budgeted(RELAXED, 0.1),
    theory.budgeted(RELAXED, 0.3, "tv", "prefix"),
    theory.budgeted(RELAXED, 0.05, "kl"),
    theory.budgeted(theory.Verifier(theory.Cactus(1.0), theory.vanilla_residual), 0.1, "reverse_kl"),
]


def distance(observed: np.ndarray, law: Any) -> float:
    """χ² of counts against a law, less its degrees of freedom, in standard deviations."""
    flat = np.asarray(law).reshape(-1)
    chi = float(((observed - IMAGES * flat) ** 2 / (IMAGES * flat)).sum())
    return (chi - len(flat) + 1) / np.sqrt(2 * (len(flat) - 1))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.ledger} {rule.mode}")
def test_law_ledger_and_certificate(rule: theory.Budgeted) -> None:
    pair = tiny_pair()
    chains = [table(model, 1, 1.5) for model in (pair.target, pair.draft)]
    exact = theory.analyse_budgeted(*chains, rule, LENGTH, TOKENS)
    out = decode_budgeted(pair, rule, LENGTH, [1] * IMAGES, device="cpu", seed=5)
    observed = counts(out.images.tokens, TOKENS)
    assert distance(observed, exact.law) < 4
    assert distance(observed, exact.target_law) > 10, "a rule that relaxes nothing would prove nothing"
    assert out.images.calls.mean() == pytest.approx(float(exact.expected_calls), abs=0.03)
    name = {"tv": "total_variation", "kl": "kl_output_target", "reverse_kl": "kl_target_output"}[rule.ledger]
    assert 0 < float(getattr(exact, name)) <= rule.epsilon
    assert out.spent.max() <= rule.epsilon + 1e-12
    scores = score(pair, out.images)
    filtered = theory.filter_budget(scores.tokens, scores.target_probs, scores.draft_probs, rule, LENGTH)
    np.testing.assert_allclose(out.spent, filtered.spent[:, -1].numpy(), atol=1e-5)
    assert out.spent.mean() == pytest.approx(float(exact.expected_spent), abs=0.01)


def test_a_ledger_that_forgets_breaks_the_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    """One ledger for each round instead of one for the image: the images leave ε, and their law the enumerated one."""
    original = budgeted_decoding._BudgetedDecoder.round_on_budget

    def forgetful(self: Any) -> Any:
        counted = original(self)
        self.ledger = 0 * self.ledger
        return counted

    pair, rule = tiny_pair(), RULES[0]
    exact = theory.analyse_budgeted(*(table(model, 1, 1.5) for model in (pair.target, pair.draft)), rule, 1, TOKENS)
    monkeypatch.setattr(budgeted_decoding._BudgetedDecoder, "round_on_budget", forgetful)
    out = decode_budgeted(pair, rule, 1, [1] * IMAGES, device="cpu", seed=5)
    observed = counts(out.images.tokens, TOKENS)
    assert distance(observed, exact.law) > 6
    total = 0.5 * np.abs(observed / IMAGES - np.asarray(exact.target_law).reshape(-1)).sum()
    assert total > rule.epsilon


def test_nothing_to_spend_is_lossless_and_batches_do_not_matter() -> None:
    pair = tiny_pair()
    none = decode_budgeted(pair, theory.budgeted(RELAXED, 0.0), LENGTH, 40, device="cpu", seed=1)
    lossless = decode(pair, theory.Verifier(theory.Lossless()), LENGTH, 40, device="cpu", seed=1)
    np.testing.assert_array_equal(none.images.tokens, lossless.tokens)
    assert none.spent.max() == 0
    whole = decode_budgeted(pair, RULES[0], LENGTH, 40, device="cpu", seed=1)
    pieces = decode_budgeted(pair, RULES[0], LENGTH, 40, device="cpu", seed=1, batch=7)
    np.testing.assert_array_equal(whole.images.tokens, pieces.images.tokens)
    np.testing.assert_allclose(whole.spent, pieces.spent, atol=1e-6)


def test_bad_input() -> None:
    with pytest.raises(TypeError, match="expected budgeted"):
        decode_budgeted(tiny_pair(), RELAXED, 2, 4, device="cpu")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="mode 'step' spends by hidden offset"):
        decode_budgeted(tiny_pair(), theory.budgeted(RELAXED, 0.1, mode="step"), 2, 4, device="cpu")
    with pytest.raises(ValueError, match="length must be a whole number >= 1, got 0"):
        decode_budgeted(tiny_pair(), RULES[0], 0, 4, device="cpu")
