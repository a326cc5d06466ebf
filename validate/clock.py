"""Seconds by part of a round."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass
class Clock:
    """Adds up seconds by part, on CUDA between events in the device's own queue, so that laps do not wait for it."""

    device: torch.device
    seconds: dict[str, float] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    _last: Any = 0.0
    _laps: list[tuple[str, Any, Any]] = field(default_factory=list)

    def now(self) -> float:
        """Seconds, everything queued done; `seconds` is complete after it."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        for part, begin, end in self._laps:
            self.seconds[part] += begin.elapsed_time(end) / 1000
        self._laps.clear()
        return time.perf_counter()

    def _mark(self) -> Any:
        if self.device.type != "cuda":
            return time.perf_counter()
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    def start(self) -> None:
        self._last = self._mark()

    def lap(self, part: str, steps: int = 0) -> None:
        mark = self._mark()
        self.seconds.setdefault(part, 0.0)
        self.steps[part] = self.steps.get(part, 0) + steps
        if self.device.type == "cuda":
            self._laps.append((part, self._last, mark))
        else:
            self.seconds[part] += mark - self._last
        self._last = mark
