"""Odd input to everything that decodes whole images: one clear error before anything is decoded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import theory
import validate
from simulate.tv_bounds import tv_lower_bound
from validate.budgeted_decoding import decode_budgeted
from validate.decoding import decode_one_round
from validate.drafters.multiscale import decode_multiscale, shipped_multiscale
from validate.drafters.row_below import decode_row_below, shipped_heads
from validate.drafters.verification_skipping import decode_skipping, filter_skipped, skipped_tokens
from validate.models import Warp
from validate.tree_decoding import decode_tree

LOSSLESS = theory.Verifier(theory.Lossless())
RULE = theory.Lossless()


def pair() -> validate.Pair:
    return validate.load("fashion", device="cpu")


DECODERS: dict[str, Callable[..., Any]] = {
    "chain": lambda **more: validate.decode(pair(), LOSSLESS, 3, 2, **more),
    "tree": lambda **more: decode_tree(pair(), LOSSLESS, [[]], 2, **more),
    "Jacobi": lambda **more: validate.decode_jacobi(pair(), LOSSLESS, 4, 2, **more),
    "skipping": lambda **more: decode_skipping(pair(), LOSSLESS, 3, 2, theory.Skipping(2), **more),
    "heads": lambda **more: decode_row_below(pair(), shipped_heads(pair()), LOSSLESS, 3, 2, **more),
    "budget": lambda **more: decode_budgeted(
        pair(), theory.budgeted(theory.Verifier(theory.Relaxed(2.0)), 0.2, mode="prefix"), 3, 2, **more
    ),
}


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("batch", 0, "batch must be a whole number >= 1, got 0"),
        ("batch", True, "batch must be"),
        ("batch", 2.5, "batch must be"),
        ("warp", {"top_k": 1}, "warp must be a validate\\.Warp"),
        ("guidance", "x", "guidance must be a number, got 'x'"),
        ("guidance", float("nan"), "guidance must be finite"),
        ("device", None, 'device must be "auto"'),
    ],
)
def test_options(name: str, option: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DECODERS[name](**{option: value})


@pytest.mark.parametrize("verifier", [None, RULE, "lossless"], ids=["none", "rule", "word"])
def test_what_is_no_verifier(verifier: Any) -> None:
    p = pair()
    images = validate.decode(p, None, 0, 4, device="cpu")
    places = np.zeros(4, dtype=int)
    calls = [
        lambda: validate.decode(p, verifier, 3, 2),
        lambda: decode_one_round(p, verifier, 3, images, places),
        lambda: decode_skipping(p, verifier, 3, 2, theory.Skipping(2)),
        lambda: decode_row_below(p, shipped_heads(p), verifier, 3, 2),
    ]
    for call in calls:
        with pytest.raises((TypeError, ValueError), match=r"needs a verifier|expected a verifier"):
            call()
    if verifier is not None:
        with pytest.raises(TypeError, match="expected a verifier"):
            validate.measure(p, verifier, 3, 4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"start": np.array([1.7, 2.2, 3, 4])}, "start must hold whole numbers"),
        ({"batch": 0}, "batch must be"),
        ({"batch": -1}, "batch must be"),
        ({"length": True}, "length must be"),
        ({"length": 2.5}, "length must be"),
        ({"length": 0}, "length must be"),
    ],
)
def test_one_round(change: dict[str, Any], message: str) -> None:
    p = pair()
    given = {"length": 3, "start": np.zeros(4, dtype=int), "batch": 4} | change
    images = validate.decode(p, None, 0, 4, device="cpu")
    with pytest.raises(ValueError, match=message):
        decode_one_round(p, LOSSLESS, given["length"], images, given["start"], batch=given["batch"])


def test_networks_in_each_other_s_place() -> None:
    p = pair()
    pooling = theory.NeighbourhoodPooling(theory.nearest_neighbours(np.arange(256.0)[:, None], 3), 3, 0.1)
    with pytest.raises(TypeError, match="heads must be RowBelowHeads"):
        decode_row_below(p, shipped_multiscale(p), LOSSLESS, 3, 2)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="drafter must be a MultiScaleDrafter"):
        decode_multiscale(p, shipped_heads(p), pooling, 0, 2)  # type: ignore[arg-type]


@pytest.mark.parametrize("confidence", [0.0, 1.0, 2.0, -1.0, float("nan")])
def test_confidence_of_a_bound(confidence: float) -> None:
    with pytest.raises(ValueError, match="confidence must lie between 0 and 1"):
        tv_lower_bound(np.zeros(3), np.ones(3), confidence)


def test_decoder_and_likelihood_agree_on_what_is_sure_enough() -> None:
    """Confidence one: a float32 law is one where the float64 law of the likelihood is 1 − 1e-9."""
    p = pair().with_warp(Warp(temperature=0.05))
    skipping = theory.Skipping(3, 1.0, 1.0)
    run = decode_skipping(p, LOSSLESS, 4, 40, skipping, device="cpu")
    found = filter_skipped(validate.score(p, run), LOSSLESS, 4, skipping)
    assert np.isfinite(found.log_likelihood).all()
    seen, expected = skipped_tokens(run), found.skipped.sum(axis=1)
    assert seen.mean() > 1
    assert expected.mean() == pytest.approx(seen.mean(), rel=0.2)


def test_places_where_no_round_starts_do_not_count() -> None:
    """Outright acceptance under top-k: some rounds have an infinite KL, but only where no round starts."""
    p = pair()
    verifier = theory.Verifier(theory.OutrightFirst(1.5))
    images = validate.decode(p, None, 0, 8, device="cpu", warp=Warp(top_k=5))
    found = validate.predict(validate.score(p, images), verifier, 4)
    assert not np.isnan(found.round_kl_target_output.value)
    assert 0 < found.token_tv.value < 1
