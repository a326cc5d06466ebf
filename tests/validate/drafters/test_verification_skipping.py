"""Skipped passes of networks against their enumerated law, and broken decoders that must fail."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import theory
import validate
from tests.validate.networks import TOKENS, fits, table, tiny_pair
from tests.validate.test_decoding import FALSE_ALARM, SAMPLES
from validate import batches
from validate.decoder import Decoder
from validate.drafters import verification_skipping
from validate.drafters.verification_skipping import (
    SkippingDecoder,
    decode_skipping,
    filter_skipped,
    skipped_tokens,
)

LOSSLESS = theory.Verifier(theory.Lossless())
SCHEMES = [theory.Skipping(1, 0.6), theory.Skipping(2), theory.Skipping(2, 0.7, 0.45)]


def exact(verifier: Any, length: int, skipping: theory.Skipping, guidance: float = 1.5) -> theory.SkippingAnalysis:
    pair = tiny_pair(guidance)
    target, draft = (table(model, 1, guidance) for model in (pair.target, pair.draft))
    return theory.analyse_skipping(target, draft, verifier, length, TOKENS, skipping)


def run(verifier: Any, length: int, skipping: theory.Skipping, samples: int = SAMPLES, **options: Any) -> Any:
    return decode_skipping(
        tiny_pair(), verifier, length, [1] * samples, skipping, device="cpu", batch=samples, **options
    )


@pytest.mark.parametrize(
    "verifier", [LOSSLESS, theory.cool_sd(2, 1.6), theory.block(2)], ids=["lossless", "COOL-SD", "block"]
)
@pytest.mark.parametrize("skipping", SCHEMES, ids=str)
def test_images_follow_the_exact_law(verifier: Any, skipping: theory.Skipping) -> None:
    length = 2
    analysis = exact(verifier, length, skipping)
    out = run(verifier, length, skipping)
    assert fits(out.tokens, analysis.law) > FALSE_ALARM
    for ours, theirs in ((out.calls, analysis.starts), (skipped_tokens(out), analysis.skipped)):
        assert abs(ours.mean() - theirs.sum()) < 5 * ours.std() / np.sqrt(SAMPLES) + 1e-9


def test_the_law_is_not_the_targets() -> None:
    out = run(LOSSLESS, 1, theory.Skipping(2))
    assert fits(out.tokens, exact(LOSSLESS, 1, theory.Skipping(2)).target_law) < FALSE_ALARM


def test_skipping_twice_in_a_row_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass of twice the length is what two skipped passes in a row would be."""
    skipping = theory.Skipping(1)
    law = exact(LOSSLESS, 1, skipping).law
    assert fits(run(LOSSLESS, 1, skipping).tokens, law) > FALSE_ALARM
    original = SkippingDecoder.turn

    def twice(self: Any, *arguments: Any) -> Any:
        self.skipping = theory.Skipping(2)
        return original(self, *arguments)

    monkeypatch.setattr(SkippingDecoder, "turn", twice)
    assert fits(run(LOSSLESS, 1, skipping).tokens, law) < FALSE_ALARM


def test_a_target_that_never_reads_what_was_skipped_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    skipping = theory.Skipping(2)
    monkeypatch.setattr(SkippingDecoder, "_target_laws", Decoder._target_laws)
    assert fits(run(LOSSLESS, 1, skipping).tokens, exact(LOSSLESS, 1, skipping).law) < FALSE_ALARM


def test_a_stuck_coin_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    skipping = theory.Skipping(1, 0.5)
    monkeypatch.setattr(verification_skipping, "coins", lambda seed, n, t: np.full((len(n), t), 0.3))
    assert fits(run(LOSSLESS, 1, skipping).tokens, exact(LOSSLESS, 1, skipping).law) < FALSE_ALARM


def test_seeds_batches_and_nothing_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    pair, classes = tiny_pair(), [0, 1, 1, 0, 1, 0, 0]
    options: dict[str, Any] = {"device": "cpu", "seed": 4}
    whole = decode_skipping(pair, LOSSLESS, 2, classes, SCHEMES[0], **options)
    cut = decode_skipping(pair, LOSSLESS, 2, classes, SCHEMES[0], batch=3, **options)
    monkeypatch.setattr(batches, "COMPACT_BELOW", 0.0)
    loose = decode_skipping(pair, LOSSLESS, 2, classes, SCHEMES[0], **options)
    for other in (cut, loose):
        assert np.array_equal(whole.tokens, other.tokens)
        assert np.array_equal(whole.starts, other.starts)
    plain = validate.decode(pair, LOSSLESS, 2, classes, **options)
    never = decode_skipping(pair, LOSSLESS, 2, classes, theory.Skipping(2, 0.0), **options)
    assert np.array_equal(plain.tokens, never.tokens)
    assert np.array_equal(plain.accepted, never.accepted)
    assert not skipped_tokens(never).any()


def test_the_embedded_pair_saves_calls_and_its_likelihood_is_exact() -> None:
    pair, skipping = validate.load("fashion", device="cpu"), theory.Skipping(3)
    plain = validate.decode(pair, LOSSLESS, 5, 30, device="cpu")
    out = decode_skipping(pair, LOSSLESS, 5, 30, skipping, device="cpu")
    assert out.tokens_per_call > plain.tokens_per_call + 0.5
    found = filter_skipped(validate.score(pair, out), LOSSLESS, 5, skipping)
    # Posterior calls and real ones have one mean; so have posterior and real skipped tokens.
    for ours, theirs in ((found.starts, out.calls), (found.skipped, skipped_tokens(out))):
        gap = ours.sum(axis=1) - theirs
        assert abs(gap.mean()) < 5 * gap.std() / np.sqrt(30) + 1e-9
    assert (found.log_likelihood > -np.inf).all()
    assert found.kl_output_target.mean() > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"length": 0}, "length must be a whole number >= 1, got 0"),
        ({"skipping": theory.Skipping(4)}, f"do not fit into an image of {TOKENS} tokens"),
        ({"skipping": 2}, "theory.Skipping"),
        ({"batch": 0}, "batch"),
        ({"seed": -1}, "seed"),
    ],
)
def test_bad_input(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"verifier": LOSSLESS, "length": 2, "images": [0], "skipping": SCHEMES[0]} | change
    with pytest.raises(ValueError, match=message):
        decode_skipping(tiny_pair(), device="cpu", **arguments)
