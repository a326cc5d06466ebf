"""Speed of decoding, predicted from the cost of its steps beside what the clock says.

Definitions. Seconds of one batched step at a given batch: t of the target (plain sampling, one new token), d of the
draft, w of the target over L+1 new tokens, a of a round's acceptance arithmetic and draws. With

    κ = d / t,    v = w / t,    α = a / t,    τ = tokens per target call,

a round of L drafts costs L d + w and emits τ tokens where plain sampling pays τ t, so that

    speed-up = τ / (L κ + v),                    with arithmetic τ / (L κ + v + α).

Steps are timed by themselves, at contexts spread over the image, and not read off the run that they predict. A batch
goes on until its slowest row is done: its own tokens per round, T over the rounds the batch took, stand below τ, and
the measured speed-up is held against them.

`fixed_acceptance` accepts every draft with one probability, whatever the networks say, so that the prediction can be
tested on random weights of full size. Its images follow no law worth having.

>>> predicted_speed_up(tokens_per_round=3.0, length=5, kappa=0.1, verify=1.1)
1.875
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import theory
from theory import AnyVerifier
from validate.decoding import decode
from validate.models import Pair, Warp, resolve_device
from validate.step_costs import StepCosts, step_costs

__all__ = [
    "SpeedReport",
    "StepCosts",
    "fixed_acceptance",
    "predicted_speed_up",
    "speed_report",
    "step_costs",
]


def fixed_acceptance(rate: float) -> theory.Verifier:
    """Accept each draft with probability `rate`; a refused one is replaced by a token from the optimal residual.

    A round then accepts Σ_{i≤L} rate^i drafts on average, and costs what rounds of a real rule cost.
    """
    return theory.Verifier(theory.FixedAcceptance(rate))


def predicted_speed_up(
    tokens_per_round: float, length: int, kappa: float, verify: float, arithmetic: float = 0.0
) -> float:
    """τ / (L κ + v + α)."""
    return tokens_per_round / (length * kappa + verify + arithmetic)


@dataclass(frozen=True)
class SpeedReport:
    """Predicted beside measured; see `speed_report`.

    Attributes
    ----------
    costs : StepCosts
    tokens_per_call : float
        τ, tokens over target calls, all rows together.
    tokens_per_round : float
        T over the rounds a batch took: what waiting for the slowest row leaves of τ.
    predicted : float
        τ / (L κ + v).
    predicted_batch : float
        The same with `tokens_per_round`, the drafts made a round (the last blocks are short) and the arithmetic.
    measured : float
        Seconds of plain sampling over seconds of decoding: same images, batch and machine.
    seconds, plain_seconds : float
    accept_share : float
        Share of the decoding run spent on acceptance arithmetic and draws.
    """

    costs: StepCosts
    tokens_per_call: float
    tokens_per_round: float
    predicted: float
    predicted_batch: float
    measured: float
    seconds: float
    plain_seconds: float
    accept_share: float

    @property
    def error(self) -> float:
        """Relative error of `predicted_batch`."""
        return self.predicted_batch / self.measured - 1

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        c = self.costs
        own = {"kappa": c.kappa, "v": c.verify_ratio, "alpha": c.accept_ratio, "round_accept_share": c.accept_share}
        return asdict(self) | own | {"error": self.error}

    def __str__(self) -> str:
        c = self.costs
        return "\n".join(
            [
                f"speed: batch {c.batch}, L = {c.length}; seconds a step: target {c.mean('target'):.5f}, "
                f"draft {c.mean('draft'):.5f}, verify {c.mean('verify'):.5f}, acceptance {c.accept:.5f}",
                f"  kappa {c.kappa:.3f}, v {c.verify_ratio:.3f}, acceptance arithmetic {c.accept_share:.1%} of a round",
                f"  tokens per call {self.tokens_per_call:.3f}, per round of the batch {self.tokens_per_round:.3f}",
                f"  speed-up: predicted {self.predicted:.3f}, for this batch {self.predicted_batch:.3f}, "
                f"measured {self.measured:.3f} (predicted for the batch {self.error:+.1%} off)",
            ]
        )


def speed_report(
    pair: Pair,
    verifier: AnyVerifier,
    length: int,
    images: Any,
    *,
    device: str = "auto",
    seed: int = 0,
    guidance: float | None = None,
    warp: Warp | None = None,
    timer: Callable[[], float] = time.perf_counter,
) -> SpeedReport:
    """Time single steps, then decode all images as one batch with the verifier and without drafting.

    Parameters
    ----------
    pair, length, images, device, seed, guidance, warp : as for `decode`
    verifier : AnyVerifier
        `fixed_acceptance(rate)` for networks whose laws mean nothing.
    timer : callable
        For the single steps.

    Returns
    -------
    SpeedReport

    Raises
    ------
    ValueError, RuntimeError, MemoryError
        As for `decode`; for a block as long as the image.

    Notes
    -----
    Source: Leviathan et al. 2211.17192, Theorem 3.8, with verification cost v instead of one.
    """
    pair = pair.to(resolve_device(device))
    costs = step_costs(pair, length, images, verifier=verifier, guidance=guidance, warp=warp, timer=timer)
    options: dict[str, Any] = {"device": device, "seed": seed, "guidance": guidance, "warp": warp, "batch": costs.batch}
    plain = decode(pair, None, 0, images, **options)
    run = decode(pair, verifier, length, images, **options)
    per_round = pair.num_tokens / run.steps["verify"]
    ratios = (costs.kappa, costs.verify_ratio)
    return SpeedReport(
        costs=costs,
        tokens_per_call=run.tokens_per_call,
        tokens_per_round=per_round,
        predicted=predicted_speed_up(run.tokens_per_call, length, *ratios),
        predicted_batch=per_round
        / (run.steps["draft"] / run.steps["verify"] * costs.kappa + costs.verify_ratio + costs.accept_ratio),
        measured=plain.seconds["total"] / run.seconds["total"],
        seconds=run.seconds["total"],
        plain_seconds=plain.seconds["total"],
        accept_share=run.seconds["accept"] / run.seconds["total"],
    )
