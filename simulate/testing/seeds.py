"""Checks that need no statistics: seeds, and placeholders among the drafts.

The protocol says that every random number comes from `rng`. Then one seed gives one answer, whatever stands in the
global generators of Python, NumPy and torch; and another seed gives another: on `PROBE` every round ends with a token
that no correct verifier can predict (p is uniform over four ids), so that 64 rounds agree with probability about 4⁻⁶⁴.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import theory
from simulate.testing.calls import BadAnswer, answer
from simulate.testing.protocol import Integers, RoundDecoder, Rounds, Sampler

PROBE = (theory.IIDChain([0.25] * 4), theory.IIDChain([0.4, 0.3, 0.2, 0.1]))
"""Target and draft of the seed checks, L = 1."""

PROBE_ROUNDS = 64

Call = Callable[[np.random.Generator], tuple[Integers, Integers]]


def check_seeds(sampler: Sampler | RoundDecoder, *, timeout: float | None = 60.0) -> None:
    """One seed one answer, other seeds other answers, global generators without effect.

    Raises
    ------
    AssertionError
        Saying which of the three fails.
    """
    fault = seed_fault(sampler, timeout)
    if fault is not None:
        raise AssertionError(fault)


def seed_fault(sampler: Sampler | RoundDecoder, timeout: float | None) -> str | None:
    """What is wrong with the sampler's use of `rng`, or None."""
    call = _probe(sampler, timeout)
    with _globals_restored():
        try:
            first, again = call(np.random.default_rng(1)), call(np.random.default_rng(1))
            _perturb_globals(1)
            perturbed = call(np.random.default_rng(1))
            _perturb_globals(2)
            others = [call(np.random.default_rng(seed)) for seed in (2, 3, 4)]
        except BadAnswer as error:
            return f"on the rounds of the seed check: {error}"
    if not _equal(first, again) or not _equal(first, perturbed):
        return (
            "the same seed gives different answers: some random number does not come from rng (a global generator, "
            "the clock, a generator kept between calls)"
        )
    if any(_equal(first, other) for other in others):
        return "different seeds give the same answer: rng is not used, or the sampler seeds itself"
    return None


def check_placeholders(sampler: Sampler, *, timeout: float | None = 60.0) -> None:
    """Drafts of −1 stand for no draft: neither they nor anything behind them may be accepted.

    Only for samplers that take padded blocks. The next token is then one of the target's.

    Raises
    ------
    AssertionError
        Naming the row.
    """
    drafts = np.array([[0, -1, 2], [-1, 1, 2], [-1, -1, -1], [0, 1, -1]] * 16)
    p = np.full((len(drafts), 4, 4), 0.25)
    rounds = Rounds(drafts, p, p[:, :3].copy())
    real = np.logical_and.accumulate(drafts >= 0, axis=1).sum(axis=1)
    try:
        _, accepted = answer(
            lambda: sampler(rounds, np.random.default_rng(1)),
            len(drafts),
            3,
            4,
            np.where(drafts < 0, -1, drafts),
            timeout,
        )
    except BadAnswer as error:
        raise AssertionError(f"with placeholders among the drafts: {error}") from error
    beyond = np.flatnonzero(accepted > real)
    if len(beyond):
        row = int(beyond[0])
        raise AssertionError(f"row {row} accepts {accepted[row]} of the drafts {drafts[row].tolist()}; −1 is no draft")


def _probe(sampler: Sampler | RoundDecoder, timeout: float | None) -> Call:
    target, draft = PROBE
    if isinstance(sampler, RoundDecoder):
        return lambda rng: answer(
            lambda: sampler.run(target, draft, 1, PROBE_ROUNDS, rng), PROBE_ROUNDS, 1, 4, None, timeout
        )
    ids = np.arange(PROBE_ROUNDS) % 4
    p, q = (np.tile(np.asarray(chain.p), (PROBE_ROUNDS, n, 1)) for chain, n in ((target, 2), (draft, 1)))
    return lambda rng: answer(
        lambda: sampler(Rounds(ids[:, None].copy(), p.copy(), q.copy()), rng), PROBE_ROUNDS, 1, 4, ids[:, None], timeout
    )


def _equal(a: tuple[Integers, Integers], b: tuple[Integers, Integers]) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def _torch() -> Any:
    return sys.modules.get("torch")


def _perturb_globals(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 the global generator is what is perturbed
    if _torch() is not None:
        _torch().manual_seed(seed)


@contextmanager
def _globals_restored() -> Iterator[None]:
    ours, numpys = random.getstate(), np.random.get_state()  # noqa: NPY002
    torchs = None if _torch() is None else _torch().get_rng_state()
    try:
        yield
    finally:
        random.setstate(ours)
        np.random.set_state(numpys)  # noqa: NPY002
        if torchs is not None:
            _torch().set_rng_state(torchs)
