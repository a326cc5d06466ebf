"""Sides of the frontier against the frontier itself, and one pass over all places against single windows."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

import theory
from tests.validate.networks import tiny_pair
from theory.drafted_frontier import lower_side, upper_side
from validate.comparison.paths import MEASURES, bound_from_every_place, terms_along
from validate.comparison.rounds import DraftedRounds, draft_rounds, frontier_gap
from validate.decoding import decode
from validate.measurement import sample_baseline
from validate.prediction import predict
from validate.scoring import score

LENGTH, SIZE = 3, 3
VERIFIERS: dict[str, Any] = {
    "lossless": theory.Verifier(theory.Lossless()),
    "uniform": theory.Verifier(theory.Relaxed(1.7)),
    "other residual": theory.Verifier(theory.Cactus(0.4), theory.vanilla_residual),
    "capped": theory.capped_block([2.0, 1.5, 1.0]),
    "lifted": theory.lifted_block(theory.Verifier(theory.Relaxed(1.7))),
}


def drawn_evenly(seed: int) -> tuple[theory.TabularChain, theory.TabularChain, DraftedRounds]:
    """A random target and a uniform draft: every block once *is* the draft's law."""
    rng = np.random.default_rng(seed)
    levels = [rng.dirichlet(np.ones(SIZE), size=(SIZE,) * d) for d in range(LENGTH + 1)]
    target = theory.TabularChain(levels)
    draft = theory.TabularChain([np.full((SIZE,) * (d + 1), 1 / SIZE) for d in range(LENGTH + 1)])
    blocks = np.array(list(product(range(SIZE), repeat=LENGTH)))
    p = np.stack([[levels[d][tuple(block[:d])] for d in range(LENGTH)] for block in blocks])
    q = np.full_like(p, 1 / SIZE)
    return target, draft, DraftedRounds(*(torch.from_numpy(a) for a in (blocks, p, q)))


@pytest.mark.parametrize("name", VERIFIERS)
def test_drafted_blocks_give_accepted_length_and_bound(name: str) -> None:
    target, draft, drafted = drawn_evenly(1)
    exact = theory.analyse_round(target, draft, VERIFIERS[name], LENGTH)
    accepted, bound = drafted.along(VERIFIERS[name])
    assert accepted.mean() == pytest.approx(float(exact.expected_accepted), abs=1e-12)
    assert bound.mean() == pytest.approx(float(exact.tv_bound), abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_the_frontier_lies_between_its_sides(seed: int) -> None:
    target, draft, drafted = drawn_evenly(seed)
    front = theory.bound_frontier(target, draft, LENGTH)
    overdraft = (drafted.draft_probs - drafted.target_probs).clamp(min=0).sum(-1).numpy()
    loose = 0.0
    for bound in np.linspace(0.0, float(front.tv_bound[-1]), 9):
        above, below = upper_side(drafted.lossless, bound)[0].mean(), lower_side(drafted.lossless, bound, overdraft)
        best = front.at(bound)
        assert below.mean() - 1e-12 <= best <= above + 1e-12
        loose = max(loose, above - below.mean())
    assert loose > 1e-3, "a bracket of no width would be the frontier, which single blocks cannot know"


def test_one_position_has_one_frontier() -> None:
    _, _, drafted = drawn_evenly(3)
    first = drafted.lossless[:, :1]
    for bound in (0.0, 0.05, 0.1):
        assert upper_side(first, bound)[0].mean() == pytest.approx(lower_side(first, bound).mean(), abs=1e-12)


@pytest.mark.parametrize("name", VERIFIERS)
def test_no_token_wise_rule_stands_above_the_upper_side(name: str) -> None:
    target, draft, drafted = drawn_evenly(2)
    gap = frontier_gap(drafted, VERIFIERS[name])
    exact = theory.analyse_round(target, draft, VERIFIERS[name], LENGTH)
    left = theory.bound_frontier(target, draft, LENGTH).at(float(exact.tv_bound)) - float(exact.expected_accepted)
    assert gap["frontier_gap_least"].value - 1e-9 <= left <= gap["frontier_gap_most"].value + 1e-9
    assert gap["round_bound"].value == pytest.approx(float(exact.tv_bound), abs=1e-12)
    if name != "other residual":
        token_wise = name in ("lossless", "uniform")
        assert (gap["frontier_gap_most"].value >= 0) or not token_wise


def test_blocks_are_drafted_by_the_draft() -> None:
    pair = tiny_pair()
    baseline = sample_baseline(pair, [1] * 1500, device="cpu")
    drafted = draft_rounds(pair, 2, baseline, 0)
    accepted, bound = drafted.along(VERIFIERS["uniform"])
    found = predict(baseline.predicting_scores, VERIFIERS["uniform"], 2, 0.9999)
    # Predictions start rounds where this rule's rounds start, these where lossless ones do: near, not equal.
    assert accepted.mean() == pytest.approx(found.accepted_length.value, rel=0.05)
    assert bound.mean() == pytest.approx(found.round_bound.value, rel=0.15)
    # The share of each first token: the draft's own law at that prefix, not the target's.
    q = torch.take_along_dim(drafted.draft_probs, drafted.tokens[..., None], -1)[..., 0]
    for law, fits in ((drafted.draft_probs, True), (drafted.target_probs, False)):
        observed = torch.nn.functional.one_hot(drafted.tokens[:, 0], pair.vocab_size).double().mean(0)
        gap = float((observed - law[:, 0].mean(0)).abs().max())
        assert (gap < 0.02) == fits, (fits, gap)
    assert bool((q > 0).all())


@pytest.mark.parametrize("name", VERIFIERS)
def test_bounds_from_every_place_are_those_of_single_windows(name: str) -> None:
    pair = tiny_pair()
    scores = score(pair, decode(pair, None, 0, 20, device="cpu"))
    length = 2 if "capped" not in name else 3
    ((tokens, p, q),) = scores.pieces()
    found = bound_from_every_place(tokens, p, q, VERIFIERS[name], length)
    assert found.shape == (20, pair.num_tokens - length + 1)
    for start in range(found.shape[1]):
        rows = slice(start, start + length)
        window = theory.round_along_paths(tokens[:, rows], p[:, rows], q[:, rows], VERIFIERS[name], length)
        np.testing.assert_allclose(found[:, start], window.bias.sum(-1), atol=1e-12)


def test_terms_are_means_of_the_predictions() -> None:
    pair = replace(tiny_pair())
    scores = score(pair, decode(pair, None, 0, 300, device="cpu"))
    terms = terms_along(scores, VERIFIERS["capped"], LENGTH)
    found = predict(scores, VERIFIERS["capped"], LENGTH)
    wanted = (found.token_kl_target_output, found.token_tv, found.round_bound)
    for measure, value in zip(MEASURES, wanted, strict=True):
        assert terms[measure].mean() == pytest.approx(value.value, rel=1e-9), measure
