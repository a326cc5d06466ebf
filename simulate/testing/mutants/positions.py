"""Faults of counting, of the bonus token, and of the place a law is read at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from simulate.testing.mutants.mutant import MARKOV, P0, Q0, Mutant, by_uniforms
from simulate.testing.mutants.ratios import likeliest
from simulate.testing.mutants.skeleton import TokenWise, checked, emit
from simulate.testing.protocol import Emitted, Floats, Integers, Rounds
from simulate.testing.uniforms import Uniforms, drawing

COUNTING = "counting"
POSITION = "wrong position"


def _all_flags(flags: Floats) -> Any:
    return flags.sum(axis=1, dtype=np.int64)


def _last_failure(flags: Floats) -> Any:
    length = flags.shape[1]
    return np.where(flags.all(axis=1), length, length - 1 - np.argmin(flags[:, ::-1], axis=1))


def _trailing(flags: Floats) -> Any:
    return np.cumprod(flags[:, ::-1], axis=1, dtype=np.int64).sum(axis=1)


def _all_or_nothing(flags: Floats) -> Integers:
    return np.where(flags.all(axis=1), flags.shape[1], 0)


def _last_untested(flags: Floats) -> Any:
    return np.cumprod(np.where(np.arange(flags.shape[1]) == flags.shape[1] - 1, True, flags), axis=1).sum(axis=1)


def _one_more(x: Integers, accepted: Integers, token: Integers) -> Emitted:
    return emit(x, np.minimum(accepted + 1, x.shape[1]), token)


def _one_less(x: Integers, accepted: Integers, token: Integers) -> Emitted:
    return emit(x, np.maximum(accepted - 1, 0), token)


def _reported_one_less(x: Integers, accepted: Integers, token: Integers) -> Emitted:
    return Emitted(emit(x, accepted, token).tokens, np.maximum(accepted - 1, 0))


def _reported_one_more(x: Integers, accepted: Integers, token: Integers) -> Emitted:
    return Emitted(emit(x, accepted, token).tokens, accepted + 1)


def _without_bonus(x: Integers, accepted: Integers, token: Integers) -> Emitted:
    return Emitted(emit(x, accepted, token).tokens, np.minimum(accepted, x.shape[1] - 1))


def _bonus_after_rejection(x: Integers, accepted: Integers, token: Integers) -> Emitted:
    place = np.arange(x.shape[1] + 1)
    tokens = np.concatenate([x, token[:, None]], axis=1)
    return Emitted(np.where(place <= accepted[:, None], tokens, -1), accepted)


@dataclass(frozen=True)
class BonusFrom:
    """The bonus token comes from another law; `choose` takes p, q and drafts to (B, V)."""

    choose: Callable[[Floats, Floats, Integers], Floats]

    def __call__(self, rounds: Rounds, uniforms: Uniforms) -> Emitted:
        """Verify a batch."""
        p, q = checked(rounds)
        law = self.choose(p, q, rounds.draft_ids)
        return TokenWise(bonus=lambda _: law)(rounds, uniforms)


def _stale(rounds: Rounds) -> tuple[Floats, Floats]:
    p, q = checked(rounds)
    return p[:, [0, *range(p.shape[1] - 1)]], q


def _early(rounds: Rounds) -> tuple[Floats, Floats]:
    p, q = checked(rounds)
    return p[:, [*range(1, p.shape[1]), p.shape[1] - 1]], q


def _frozen(rounds: Rounds) -> tuple[Floats, Floats]:
    p, q = checked(rounds)
    return np.repeat(p[:, :1], p.shape[1], axis=1), q


MUTANTS: tuple[Mutant, ...] = (
    by_uniforms("drafts after a rejection counted", COUNTING, TokenWise(count=_all_flags), *MARKOV, 2),
    by_uniforms("rejection sought from the end", COUNTING, TokenWise(count=_last_failure), *MARKOV, 2),
    by_uniforms("accepted counted from the end", COUNTING, TokenWise(count=_trailing), *MARKOV, 2),
    by_uniforms("all drafts or none", COUNTING, TokenWise(count=_all_or_nothing), *MARKOV, 2),
    by_uniforms("rejected draft kept before the replacement", COUNTING, TokenWise(emit=_one_more), *MARKOV, 2),
    by_uniforms("last accepted draft overwritten", COUNTING, TokenWise(emit=_one_less), *MARKOV, 2),
    by_uniforms("one accepted draft too few reported", COUNTING, TokenWise(emit=_reported_one_less), P0, Q0),
    by_uniforms("bonus token left out", COUNTING, TokenWise(emit=_without_bonus), P0, Q0),
    Mutant(
        "one accepted draft too many reported",
        COUNTING,
        drawing(TokenWise(emit=_reported_one_more)),
        target=P0,
        draft=Q0,
    ),
    by_uniforms("last draft not tested", POSITION, TokenWise(count=_last_untested), *MARKOV, 2),
    by_uniforms("bonus one place early", POSITION, TokenWise(bonus=lambda p: p[:, -2]), *MARKOV, 2),
    by_uniforms("bonus of the first place", POSITION, TokenWise(bonus=lambda p: p[:, 0]), *MARKOV, 2),
    by_uniforms("bonus drawn from the draft", POSITION, BonusFrom(lambda p, q, x: q[:, -1]), P0, Q0),
    by_uniforms(
        "bonus from the last residual", POSITION, BonusFrom(lambda p, q, x: np.maximum(p[:, -2] - q[:, -1], 0)), P0, Q0
    ),
    by_uniforms("bonus the likeliest token", POSITION, TokenWise(bonus=lambda p: likeliest(p[:, -1])), P0, Q0),
    by_uniforms("target one token stale", POSITION, TokenWise(laws=_stale), *MARKOV, 2),
    by_uniforms("target one token early", POSITION, TokenWise(laws=_early), *MARKOV, 2),
    by_uniforms("target frozen at the start of the round", POSITION, TokenWise(laws=_frozen), *MARKOV, 2),
    by_uniforms("rejected draft kept, replacement lost", COUNTING, TokenWise(emit=_bonus_after_rejection), *MARKOV, 2),
)
