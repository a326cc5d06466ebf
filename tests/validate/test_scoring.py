"""Laws along images, kept or computed anew."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
import torch

import theory
from tests.validate.networks import TOKENS, VOCABULARY, tiny_pair
from validate import Rescored, Scores, decode, filter_images, predict, scoring
from validate.scoring import AnyScores, score

VERIFIER = theory.cool_sd(2, 1.6)
IMAGES = 11


def both(monkeypatch: pytest.MonkeyPatch, images_a_piece: int = 3) -> tuple[Scores, Rescored]:
    pair = tiny_pair(1.5)
    run = decode(pair, VERIFIER, 2, IMAGES, device="cpu", seed=5)
    monkeypatch.setattr(scoring, "PIECE_BYTES", images_a_piece * 16 * TOKENS * VOCABULARY)
    kept, again = score(pair, run), score(pair, run, memory=IMAGES * 16 * TOKENS * VOCABULARY - 1)
    assert isinstance(kept, Scores)
    assert isinstance(again, Rescored)
    return kept, again


def agree(left: AnyScores, right: AnyScores) -> None:
    for which in ("target", "draft"):
        np.testing.assert_allclose(left.log_likelihood(which), right.log_likelihood(which), atol=1e-6)
    found = [filter_images(scores, VERIFIER, 2) for scores in (left, right)]
    for field in fields(found[0]):
        np.testing.assert_allclose(*(getattr(f, field.name) for f in found), atol=1e-5)
    terms = [predict(scores, VERIFIER, 2) for scores in (left, right)]
    for field in fields(terms[0]):
        ours, theirs = (getattr(t, field.name) for t in terms)
        np.testing.assert_allclose([*ours], [*theirs], atol=1e-5)


def test_laws_computed_anew_are_those_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, again = both(monkeypatch)
    assert [len(tokens) for tokens, _, _ in again.pieces()] == [3, 3, 3, 2]
    agree(kept, again)
    agree(kept.first(4), again.first(4))
    assert len(again.first(4)) == 4
    places = torch.arange(IMAGES)[:, None] % (TOKENS - 1) + torch.arange(2)
    for ours, theirs in zip(kept.at(places), again.at(places), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)
    row = 7
    torch.testing.assert_close(again.at(places)[1][row], kept.target_probs[row, places[row]], atol=1e-6, rtol=0)


def test_every_image_keeps_its_own_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: conditions that are not cut along with the images give other laws."""
    kept, again = both(monkeypatch)
    assert len(set(np.asarray(again.conditions[0]).ravel().tolist())) > 1
    turned = Rescored(again.tokens, again.pair, tuple(c.roll(1) for c in again.conditions), again.guidance, again.warp)  # type: ignore[arg-type]
    with pytest.raises(AssertionError):
        agree(kept, turned)
