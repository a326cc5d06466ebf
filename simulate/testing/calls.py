"""One call of a sampler under test, with its answer checked row by row.

What no declared law could excuse is refused here: wrong shapes, numbers that are no integers, ids outside the
vocabulary, counts outside 0…L, an accepted token that is not the draft, an exception, no answer in time.
"""

from __future__ import annotations

import contextvars
import ctypes
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from simulate.testing.protocol import Emitted, Integers, Rounds
from theory.arrays import to_numpy

Answer = TypeVar("Answer")

ROWS_RETRIED = 256
"""Rows that are tried one by one to name the round on which a sampler raises."""


class BadAnswer(Exception):
    """The sampler broke the protocol; the message says where."""


class NoAnswer(BadAnswer):
    """The sampler did not answer in time."""


def within(seconds: float | None, call: Callable[[], Answer]) -> Answer:
    """The answer of a call, or NoAnswer after so many seconds.

    The call runs in a thread of its own. When time is up an exception is raised inside that thread, which ends loops in
    Python; code stuck outside Python cannot be stopped and keeps its (daemon) thread until the process ends. None
    calls directly, without a limit.
    """
    if seconds is None:
        return call()
    box: list[Any] = []

    def work() -> None:
        try:
            box.append((True, call()))
        except BaseException as error:
            box.append((False, error))

    thread = threading.Thread(target=contextvars.copy_context().run, args=(work,), daemon=True)
    thread.start()
    thread.join(seconds)
    if not box:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))
        raise NoAnswer(f"no answer within {seconds:g} s (raise `timeout` for a slow sampler)")
    done, value = box[0]
    if done:
        return value  # type: ignore[no-any-return]
    raise value


def answer(
    call: Callable[[], Emitted],
    count: int,
    length: int,
    vocab_size: int,
    drafts: Integers | None,
    seconds: float | None,
) -> tuple[Integers, Integers]:
    """Tokens (B, L+1), −1 behind a row's end, and accepted counts (B,) of one call; BadAnswer if it is no answer."""
    try:
        given = within(seconds, call)
    except (BadAnswer, KeyboardInterrupt):
        raise
    except TimeoutError as error:
        raise NoAnswer(str(error)) from error
    except BaseException as error:
        raise BadAnswer(f"{type(error).__name__}: {error}") from error
    try:
        raw_tokens, raw_accepted = given
    except (TypeError, ValueError):
        raise BadAnswer(f"the answer must be (tokens, accepted), got {_brief(given)}") from None
    accepted = _integers(raw_accepted, "accepted", (count,))
    _refuse((accepted < 0) | (accepted > length), accepted, "accepted", f"it must lie in 0…{length}")
    tokens = _rows(raw_tokens, accepted, length)
    behind = np.arange(length + 1) > accepted[:, None]
    _refuse(~behind & ((tokens < 0) | (tokens >= vocab_size)), tokens, "tokens", f"ids lie in 0…{vocab_size - 1}")
    if drafts is not None:
        kept = np.arange(length) < accepted[:, None]
        wrong = kept & (tokens[:, :length] != drafts)
        if wrong.any():
            row, place = np.argwhere(wrong)[0]
            raise BadAnswer(
                f"row {row} accepts {accepted[row]} of the drafts {drafts[row].tolist()} but emits "
                f"{tokens[row, : accepted[row] + 1].tolist()}: token {place} is not the draft"
            )
    return np.where(behind, -1, tokens), accepted


def name_the_round(sampler: Any, rounds: Rounds, rng: np.random.Generator, seconds: float | None) -> str:
    """Words that name the first row on which a sampler also fails alone, with its drafts and laws."""
    for row in range(min(rounds.count, ROWS_RETRIED)):
        at = slice(row, row + 1)
        one = Rounds(rounds.draft_ids[at], rounds.target_probs[at], rounds.draft_probs[at])
        try:
            answer(lambda one=one: sampler(one, rng.spawn(1)[0]), 1, one.length, one.vocab_size, one.draft_ids, seconds)  # type: ignore[misc]
        except NoAnswer:
            break
        except BadAnswer:
            return (
                f"it also fails alone on drafts {one.draft_ids[0].tolist()} with target_probs "
                f"{_brief(one.target_probs[0].tolist())} and draft_probs {_brief(one.draft_probs[0].tolist())}"
            )
    first = rounds.draft_ids[: min(rounds.count, 3)].tolist()
    return f"in a batch of {rounds.count} rounds that starts with drafts {first}"


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 300 else text[:300] + "…"


def _integers(values: Any, name: str, shape: tuple[int, ...]) -> Integers:
    try:
        array = to_numpy(values)
    except (TypeError, ValueError) as error:
        raise BadAnswer(f"{name} is no array: {error}") from None
    if array.shape != shape:
        raise BadAnswer(f"{name} must have shape {shape}, got {array.shape}")
    if array.size and array.dtype.kind not in "iu":
        bad: Any = np.argwhere(~np.isfinite(array)) if array.dtype.kind == "f" else []
        where = f"; entry {tuple(bad[0].tolist())} is {array[tuple(bad[0])]}" if len(bad) else ""
        raise BadAnswer(f"{name} must be integers, got {array.dtype}{where}")
    return array.astype(np.int64)


def _rows(tokens: Any, accepted: Integers, length: int) -> Integers:
    """Tokens as (B, L+1); rows of different lengths are padded with −1."""
    if not isinstance(tokens, (list, tuple)):
        return _integers(tokens, "tokens", (len(accepted), length + 1))
    if len(tokens) != len(accepted):
        raise BadAnswer(f"tokens has {len(tokens)} rows for {len(accepted)} rounds")
    out = np.full((len(accepted), length + 1), -1, dtype=np.int64)
    for row, given in enumerate(tokens):
        ids = _integers(given, f"tokens[{row}]", (np.size(to_numpy(given)),))
        if not accepted[row] < len(ids) <= length + 1:
            raise BadAnswer(
                f"tokens[{row}] has {len(ids)} ids with {accepted[row]} accepted; expected {accepted[row] + 1}"
            )
        out[row, : len(ids)] = ids
    return out


def _refuse(bad: np.ndarray[Any, Any], array: Integers, name: str, why: str) -> None:
    if bad.any():
        index = tuple(int(i) for i in np.argwhere(bad)[0])
        raise BadAnswer(f"{name}{list(index)} is {array[index]}; {why}")
