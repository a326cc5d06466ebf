"""What the steps of a round cost, each timed by itself: a target token, a drafted token, verification, arithmetic.

Caches are timed as they stand (their values do not matter to the time), so that no image is decoded. With seconds t of
a target step, d of a draft step, w of verification and a of the arithmetic: κ = d/t, v = w/t, α = a/t.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

import theory
from theory import AnyVerifier
from validate.acceptance import accepted_drafts, draw, residual_row
from validate.decoder import Writer
from validate.models import Pair, Warp

__all__ = ["StepCosts", "step_costs"]

CONTEXTS = (0.1, 0.5, 0.9)
"""Shares of the image before the timed step: a step's cost grows with what it attends to, about linearly."""


@dataclass(frozen=True)
class StepCosts:
    """Seconds of single batched steps, medians over repeats, for every context length.

    Attributes
    ----------
    contexts : tuple of int
        Tokens of the image before the step.
    target, draft, verify : tuple of float
        One target token; one drafted token, its draw included; L+1 target tokens.
    accept : float
        Acceptance, residual and draw of one round.
    batch, length : int
    """

    contexts: tuple[int, ...]
    target: tuple[float, ...]
    draft: tuple[float, ...]
    verify: tuple[float, ...]
    accept: float
    batch: int
    length: int

    def mean(self, part: str) -> float:
        """Mean over the contexts: the cost of a step of an average image, where it is linear in the context."""
        return float(np.mean(getattr(self, part)))

    @property
    def kappa(self) -> float:
        """κ."""
        return self.mean("draft") / self.mean("target")

    @property
    def verify_ratio(self) -> float:
        """v."""
        return self.mean("verify") / self.mean("target")

    @property
    def accept_ratio(self) -> float:
        """α."""
        return self.accept / self.mean("target")

    @property
    def accept_share(self) -> float:
        """Share of a round that is acceptance arithmetic."""
        round_ = self.length * self.mean("draft") + self.mean("verify") + self.accept
        return self.accept / round_


def _timed(job: Callable[[], object], device: torch.device, timer: Callable[[], float], repeats: int) -> float:
    """Median seconds of some runs after one that is not counted."""

    def now() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return timer()

    job()
    spans = []
    for _ in range(repeats):
        begin = now()
        job()
        spans.append(now() - begin)
    return float(np.median(spans))


@torch.no_grad()
def step_costs(
    pair: Pair,
    length: int,
    images: Any,
    *,
    verifier: AnyVerifier | None = None,
    guidance: float | None = None,
    warp: Warp | None = None,
    contexts: tuple[float, ...] = CONTEXTS,
    repeats: int = 5,
    timer: Callable[[], float] = time.perf_counter,
) -> StepCosts:
    """Time the steps of a round by themselves, all images as one batch, on the device the pair is on.

    Caches are timed as they stand (their values do not matter to the time), so that no image is decoded.

    Parameters
    ----------
    pair, guidance, warp, images : as for `decode`
    length : int
        1 ≤ L < T.
    verifier : AnyVerifier, optional
        Whose arithmetic is timed; lossless by default.
    contexts : tuple of float
        Shares of T in [0, 1].
    repeats : int
    timer : callable
        Seconds.
    """
    if not 1 <= length < pair.num_tokens:
        raise ValueError(f"length must lie in 1…{pair.num_tokens - 1}, got {length}")
    scale = pair.guidance if guidance is None else float(guidance)
    warp = pair.warp if warp is None else warp
    conditions = pair.encode_conditions(images)
    rows, device = len(conditions[0]), pair.device
    target, draft = (Writer(m, c, scale, warp) for m, c in zip((pair.target, pair.draft), conditions, strict=True))
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, pair.vocab_size, (rows, length + 1), generator=generator).to(device)
    u = torch.rand(rows, length, dtype=torch.float64, generator=generator).to(device)
    spans: dict[str, list[float]] = {"target": [], "draft": [], "verify": []}
    places = [min(max(1, round(share * pair.num_tokens)), pair.num_tokens - length - 1) for share in contexts]
    for place in places:
        at = torch.full((rows,), max(place, 0), dtype=torch.int64, device=device)

        def plain(at: Tensor = at) -> object:
            return draw(target.laws(ids[:, :1], at)[:, -1], u[:, 0])

        def drafting(at: Tensor = at) -> object:
            return draw(draft.laws(ids[:, :1], at)[:, -1], u[:, 0])

        def verifying(at: Tensor = at) -> object:
            return target.laws(ids, at)

        for name, job in (("target", plain), ("draft", drafting), ("verify", verifying)):
            spans[name].append(_timed(job, device, timer, repeats))
    rule = theory.Verifier(theory.Lossless()) if verifier is None else verifier
    at = torch.full((rows,), max(places[0], 0), dtype=torch.int64, device=device)
    p = target.laws(ids, at)
    q = torch.stack([draft.laws(ids[:, :1], at)[:, -1]] * length, dim=1)
    drafted = np.full(rows, length)

    def arithmetic() -> object:
        accepted = accepted_drafts(rule, ids[:, :length], p[:, :-1], q, drafted, u)
        return draw(residual_row(rule, accepted, ids[:, :length], p[:, :-1], q), u[:, 0])

    accept = _timed(arithmetic, device, timer, repeats)
    return StepCosts(
        tuple(places), tuple(spans["target"]), tuple(spans["draft"]), tuple(spans["verify"]), accept, rows, length
    )
