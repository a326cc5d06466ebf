"""A program in any language under the kit, one line of JSON each way for every batch.

The program reads a request from standard input, writes its answer as one line to standard output and flushes it, until
its input ends. Standard error is free for messages; its last lines are shown when something fails.

=============  ===================================================  ==========================
request        value                                                shape
=============  ===================================================  ==========================
id             number of the request, to be repeated                integer
seed           source of all randomness of the batch                integer in 0 … 2⁵³ − 1
draft_ids      drafted tokens                                       (B, L)
draft_probs    q; or draft_logits: log q, null for −∞               (B, L, V)
target_probs   p; or target_logits: log p, null for −∞              (B, L+1, V)
=============  ===================================================  ==========================

=============  ===================================================  ==========================
answer         value                                                shape
=============  ===================================================  ==========================
id             that of the request                                  integer
tokens         accepted drafts and one token more                   B rows, of a + 1 or more
accepted       a                                                    (B,)
error          instead of tokens and accepted: what went wrong      text
=============  ===================================================  ==========================

JSON has no infinities, and most parsers refuse `-Infinity`; therefore null. Numbers carry all digits of a float64.
"""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from typing import IO, Any

import numpy as np

from simulate.testing.protocol import Emitted, Floats, Rounds

STDERR_LINES = 20
"""Last lines of standard error shown with a failure."""

LARGEST_SEED = 2**53
"""Seeds stay below it, so that languages whose numbers are doubles read them exactly."""


class JsonLinesSampler:
    """A sampler that asks another program; see the head of this module.

    Parameters
    ----------
    command : sequence of str
        The program and its arguments. It is started at the first batch and kept.
    timeout : float
        Seconds for one answer; the program is killed when they are over.
    logits : bool
        Send log-probabilities instead of probabilities.

    Notes
    -----
    A context manager: leaving it ends the program. Failures of the program are raised as RuntimeError or TimeoutError,
    which the kit reports as failures of the sampler.
    """

    def __init__(self, command: Sequence[str], *, timeout: float = 60.0, logits: bool = False) -> None:
        self.command, self.timeout, self.logits = list(command), timeout, logits
        self._process: subprocess.Popen[str] | None = None
        self._answers: queue.Queue[str | None] = queue.Queue()
        self._messages: deque[str] = deque(maxlen=STDERR_LINES)
        self._requests = 0

    def __enter__(self) -> JsonLinesSampler:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the program; a later batch starts it again."""
        if self._process is not None:
            self._finish()
            self._process = None

    def __call__(self, rounds: Rounds, rng: np.random.Generator) -> Emitted:
        if self._process is None:
            self._start()
        self._requests += 1
        request: dict[str, Any] = {
            "id": self._requests,
            "seed": int(rng.integers(LARGEST_SEED)),
            "draft_ids": rounds.draft_ids.tolist(),
        }
        if self.logits:
            request |= {"draft_logits": _nested(rounds.draft_logits), "target_logits": _nested(rounds.target_logits)}
        else:
            request |= {"draft_probs": rounds.draft_probs.tolist(), "target_probs": rounds.target_probs.tolist()}
        line = json.dumps(request, allow_nan=False)
        threading.Thread(target=self._send, args=(self._process, line), daemon=True).start()
        try:
            text = self._answers.get(timeout=self.timeout)
        except queue.Empty:
            self._stop()
            raise TimeoutError(self._failure(f"no answer within {self.timeout:g} s (see `timeout`)")) from None
        if text is None:
            code = self._stop()
            raise RuntimeError(self._failure(f"the program ended with code {code} before it answered"))
        return self._read(text)

    def _read(self, text: str) -> Emitted:
        try:
            answer = json.loads(text)
            if not isinstance(answer, dict):
                raise ValueError("an answer is an object")
            if "error" in answer:
                raise ValueError(f"the program reports: {answer['error']}")
            if answer.get("id") != self._requests:
                raise ValueError(f"the answer has id {answer.get('id')!r}, the request {self._requests}")
            return Emitted(answer["tokens"], answer["accepted"])
        except KeyError as error:
            message = f"the answer has no {error}"
        except ValueError as error:
            message = str(error)
        self._stop()
        raise RuntimeError(self._failure(f"{message}; line {text[:200]!r}"))

    def _start(self) -> None:
        self._process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        self._finish = weakref.finalize(self, _end, self._process)
        self._answers, self._messages = queue.Queue(), deque(maxlen=STDERR_LINES)
        self._readers = [
            threading.Thread(target=_lines, args=(self._process.stdout, self._answers), daemon=True),
            threading.Thread(target=_collect, args=(self._process.stderr, self._messages), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    @staticmethod
    def _send(process: subprocess.Popen[str], line: str) -> None:
        # A program that ended is noticed where its answer is missing.
        with contextlib.suppress(OSError, ValueError):
            assert process.stdin is not None
            process.stdin.write(line + "\n")
            process.stdin.flush()

    def _stop(self) -> int | None:
        process = self._process
        self.close()
        for reader in self._readers:
            reader.join(1.0)
        return None if process is None else process.returncode

    def _failure(self, message: str) -> str:
        shown = "".join(f"\n  {line}" for line in self._messages)
        return f"{' '.join(self.command)}: {message}" + (f"; its standard error ends with{shown}" if shown else "")


def _nested(logits: Floats) -> Any:
    values = logits.astype(object)
    values[np.isneginf(logits)] = None
    return values.tolist()


def _lines(stream: IO[str], answers: queue.Queue[str | None]) -> None:
    with contextlib.suppress(ValueError, OSError):
        for line in stream:
            answers.put(line)
    answers.put(None)


def _collect(stream: IO[str], messages: deque[str]) -> None:
    with contextlib.suppress(ValueError, OSError):
        for line in stream:
            messages.append(line.rstrip())


def _end(process: subprocess.Popen[str]) -> None:
    """Let the program see the end of its input, then end it."""
    with contextlib.suppress(OSError, ValueError):
        if process.stdin is not None:
            process.stdin.close()
    try:
        process.wait(0.5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):
                stream.close()
