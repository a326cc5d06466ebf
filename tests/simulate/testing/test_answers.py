"""Answers in every accepted form, and samplers that give none: wrong shapes and ids, exceptions, endless loops."""

import time

import numpy as np
import pytest
import torch

import theory
from simulate.testing import Emitted, assert_law, check_law, reference_sampler

LOSSLESS = theory.Verifier(theory.Lossless())
P0, Q0 = theory.IIDChain([0.5, 0.3, 0.2]), theory.IIDChain([0.2, 0.3, 0.5])
COINS = theory.IIDChain([0.5, 0.5]), theory.IIDChain([0.75, 0.25])


def test_answers_may_be_tensors_or_ragged_lists():
    def tensors(rounds, rng):
        tokens, accepted = reference_sampler(LOSSLESS)(rounds, rng)
        return torch.from_numpy(tokens), torch.from_numpy(accepted)

    def ragged(rounds, rng):
        tokens, accepted = reference_sampler(LOSSLESS)(rounds, rng)
        return [row[: a + 1].tolist() for row, a in zip(tokens, accepted, strict=True)], accepted.tolist()

    for sampler in (tensors, ragged):
        assert check_law(sampler, *COINS, LOSSLESS, 2, smallest_tv=0.2).passed


def changed(change):
    def sampler(rounds, rng):
        return change(rounds, *reference_sampler(LOSSLESS)(rounds, rng))

    return sampler


def setting(array, index, value):
    array = np.array(array, dtype=np.result_type(array, value))
    array[index] = value
    return array


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r, t, a: Emitted(t[:, :-1], a), r"tokens must have shape \(256, 3\), got \(256, 2\)"),
        (lambda r, t, a: Emitted(t[:-1], a), r"tokens must have shape"),
        (lambda r, t, a: Emitted(t, a[:, None]), r"accepted must have shape \(256,\), got \(256, 1\)"),
        (lambda r, t, a: Emitted(t, setting(a, 5, 3)), r"accepted\[5\] is 3; it must lie in 0…2"),
        (lambda r, t, a: Emitted(t, setting(a, 5, -1)), r"accepted\[5\] is -1"),
        (lambda r, t, a: Emitted(setting(t, (7, 0), 2), np.zeros_like(a)), r"tokens\[7, 0\] is 2; ids lie in 0…1"),
        (lambda r, t, a: Emitted(setting(t, (7, 0), np.nan), a), r"tokens must be integers.*entry \(7, 0\) is nan"),
        (lambda r, t, a: Emitted(t.astype(float), a), r"tokens must be integers, got float64"),
        (lambda r, t, a: Emitted(t, setting(a, 3, np.nan)), r"accepted must be integers.*nan"),
        (lambda r, t, a: Emitted(1 - t, np.full_like(a, 2)), r"token \d is not the draft|ids lie in"),
        (lambda r, t, a: t, r"the answer must be \(tokens, accepted\)"),
        (lambda r, t, a: None, r"the answer must be \(tokens, accepted\), got None"),
        (lambda r, t, a: Emitted([row[:k] for row, k in zip(t, a, strict=True)], a), r"tokens\[0\] has \d ids"),
        (lambda r, t, a: Emitted(t.tolist()[:-1], a), r"tokens has 255 rows for 256 rounds"),
        (lambda r, t, a: Emitted(object(), a), r"tokens"),
        (lambda r, t, a: 1 / 0, r"ZeroDivisionError: division by zero"),
    ],
)
def test_bad_answers_are_reported(change, message):
    report = check_law(changed(change), *COINS, LOSSLESS, 2, seeds=False)
    assert not report.passed
    assert report.failure.error is not None
    with pytest.raises(AssertionError, match=f"(?s)gives no valid answer.*{message}"):
        assert_law(changed(change), *COINS, LOSSLESS, 2, seeds=False)


def test_an_exception_names_the_round():
    def fails_on_two_ones(rounds, rng):
        if (rounds.draft_ids == 1).all(axis=1).any():
            raise ArithmeticError("one, one")
        return reference_sampler(LOSSLESS)(rounds, rng)

    place = r"\(test_answers.py, line \d+, in fails_on_two_ones\)"
    alone = r"\(it also fails alone on drafts \[1, 1\] with"
    with pytest.raises(AssertionError, match=f"ArithmeticError: one, one {place} {alone}"):
        assert_law(fails_on_two_ones, *COINS, LOSSLESS, 2, seeds=False)

    def fails_on_batches(rounds, rng):
        if rounds.count > 1:
            raise ArithmeticError("too many")
        return reference_sampler(LOSSLESS)(rounds, rng)

    with pytest.raises(
        AssertionError, match=r"too many \(test_answers.py.*\) \(in a batch of 256 rounds that starts with drafts"
    ):
        assert_law(fails_on_batches, *COINS, LOSSLESS, 2, seeds=False)


def test_a_sampler_that_never_stops_is_stopped():
    running = []

    def endless(rounds, rng):
        while True:
            running.append(time.monotonic())
            time.sleep(0.001)

    with pytest.raises(AssertionError, match=r"no answer within 0\.2 s"):
        assert_law(endless, P0, Q0, LOSSLESS, 1, timeout=0.2)
    with pytest.raises(AssertionError, match=r"no answer within 0\.2 s"):
        assert_law(endless, P0, Q0, LOSSLESS, 1, timeout=0.2, seeds=False)
    deadline = time.monotonic() + 30
    while running and time.monotonic() - running[-1] < 0.5 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert time.monotonic() - running[-1] >= 0.5, "the loop still runs"
