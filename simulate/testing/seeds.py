"""Checks that need no statistics: seeds, and placeholders among the drafts.

The protocol says that every random number comes from `rng`. Then one seed gives one answer, whatever stands in the
global generators of Python, NumPy and torch; and another seed gives another: p is uniform over V ids on the rounds of
the check and q falls linearly, so that rounds end with a token that the drafts do not settle. 64 rounds of a lossless
verifier agree with probability below 10⁻²⁴ for V = 2 and L = 1, and less for more.
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

PROBE_ROUNDS = 64

Call = Callable[[np.random.Generator], tuple[Integers, Integers]]


def check_seeds(
    sampler: Sampler | RoundDecoder, vocab_size: int = 4, length: int = 1, *, timeout: float | None = 60.0
) -> None:
    """One seed one answer, other seeds other answers, global generators without effect.

    Parameters
    ----------
    sampler : Sampler or RoundDecoder
    vocab_size, length : int
        V ≥ 2 and L of the rounds tried.
    timeout : float or None
        Seconds for one call.

    Raises
    ------
    AssertionError
        Saying which of the three fails.
    """
    fault = seed_fault(sampler, vocab_size, length, timeout)
    if fault is not None:
        raise AssertionError(fault)


def seed_fault(sampler: Sampler | RoundDecoder, vocab_size: int, length: int, timeout: float | None) -> str | None:
    """What is wrong with the sampler's use of `rng`, or None."""
    call = _probe(sampler, vocab_size, length, timeout)
    with _globals_restored():
        try:
            first, again = call(np.random.default_rng(1)), call(np.random.default_rng(1))
            _perturb_globals(1)
            perturbed = call(np.random.default_rng(1))
            _perturb_globals(2)
            others = [call(np.random.default_rng(seed)) for seed in (2, 3, 4)]
        except BadAnswer as error:
            return f"no valid answer for {PROBE_ROUNDS} rounds of {length} drafts over {vocab_size} ids: {error}"
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


def _probe(sampler: Sampler | RoundDecoder, vocab_size: int, length: int, timeout: float | None) -> Call:
    falling = np.arange(vocab_size, 0, -1.0)
    p, q = np.full(vocab_size, 1 / vocab_size), falling / falling.sum()
    count = PROBE_ROUNDS
    if isinstance(sampler, RoundDecoder):
        target, draft = theory.IIDChain(p), theory.IIDChain(q)
        return lambda rng: answer(
            lambda: sampler.run(target, draft, length, count, rng), count, length, vocab_size, None, timeout
        )
    ids = (np.arange(count)[:, None] + np.arange(length)) % vocab_size

    def fresh() -> Rounds:
        return Rounds(ids.copy(), np.tile(p, (count, length + 1, 1)), np.tile(q, (count, length, 1)))

    return lambda rng: answer(lambda: sampler(fresh(), rng), count, length, vocab_size, ids, timeout)


def _equal(a: tuple[Integers, Integers], b: tuple[Integers, Integers]) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def _torch() -> Any:
    return sys.modules.get("torch")


def _perturb_globals(seed: int) -> None:
    """Set the global generators, which a sampler must not use, so that one that does is found out."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    if _torch() is not None:
        # Not torch.manual_seed, which seeds every device's generator, and those are not put back.
        _torch().default_generator.manual_seed(seed)


@contextmanager
def _globals_restored() -> Iterator[None]:
    """Leave the caller's global generators as they were, whatever happens between."""
    ours, numpys = random.getstate(), np.random.get_state()  # noqa: NPY002
    torchs = None if _torch() is None else _torch().get_rng_state()
    try:
        yield
    finally:
        random.setstate(ours)
        np.random.set_state(numpys)  # noqa: NPY002
        if torchs is not None:
            _torch().set_rng_state(torchs)
