"""The report of `python -m validate`: a table for each verifier, predicted beside measured, and the same as JSON."""

from __future__ import annotations

import math
from typing import Any

from simulate.intervals import Interval
from validate.measurement import Measurement

CAP_NOTE = "bounds above 1 say nothing about a TV and are printed as they are"


def _show(value: Interval | float | None) -> str:
    if value is None or math.isnan(value.value if isinstance(value, Interval) else value):
        return "-"
    if isinstance(value, Interval):
        if not math.isfinite(value.value):
            return f"{value.value}"
        return f"{value.value:.4f} [{value.lower:.4f}, {value.upper:.4f}]"
    return f"{value:.4f}"


def quantities(m: Measurement) -> list[tuple[str, Interval | float | None, Interval | float | None]]:
    """Name, predicted and measured value of every number of a measurement."""
    p, e, r, s = m.prediction, m.estimate, m.rounds, m.speed
    return [
        ("accepted length (round)", p.accepted_length, e.accepted_length),
        ("tokens per call", p.tokens_per_call, e.tokens_per_call),
        ("round: bound B on TV", p.round_bound, None),
        ("round: TV", p.round_tv, r["total_variation"]),
        ("round: KL(output, target)", p.round_kl_output_target, r["kl_output_target"]),
        ("round: KL(target, output)", p.round_kl_target_output, r["kl_target_output"]),
        ("per token: predictive TV", p.token_tv, e.predictive.total_variation),
        ("per token: KL(output, target)", p.token_kl_output_target, e.predictive.kl_output_target),
        ("per token: KL(target, output)", p.token_kl_target_output, e.predictive.kl_target_output),
        ("image: bound on TV", None, e.tv_bound),
        ("image: TV", None, e.total_variation),
        ("image: Hellinger", None, e.hellinger),
        ("speed-up (one run, idle machine)", s.predicted, s.measured),
    ]


def table(name: str, m: Measurement) -> str:
    """Plain-text table of one measurement."""
    lines = [
        f"== {name}: draft {m.draft}, L = {m.length}, guidance {m.guidance:g}, {m.images} images",
        f"{'':32}{'predicted':>28}{'measured':>28}",
    ]
    lines += [f"{label:32}{_show(left):>28}{_show(right):>28}" for label, left, right in quantities(m)]
    s, q, t = m.speed, m.quality, m.target_quality
    lines += [
        f"{'seconds a batched pass':32}draft step {s.draft_step:.4f}, target step {s.target_step:.4f}, "
        f"verify {s.verify_step:.4f}; acceptance {s.acceptance_share:.0%} of decoding",
        f"{'':32}{'target images':>28}{'these images':>28}",
        f"{'judge accuracy':32}{_show(t.judge_accuracy):>28}{_show(q.judge_accuracy):>28}",
        f"{'Frechet distance, judge features':32}{_show(t.frechet_distance):>28}{_show(q.frechet_distance):>28}",
        f"{'nll per token under target':32}{_show(t.nll_per_token):>28}{_show(q.nll_per_token):>28}",
        f"told from the target's images by a two-sample test: p = {m.same_as_target:.3g}"
        + (" (told apart)" if m.same_as_target < 0.01 else f" (not told apart by {m.images} images a side)"),
    ]
    return "\n".join(lines)


def as_json(name: str, m: Measurement) -> dict[str, Any]:
    """The same numbers as plain data; intervals are [lower, value, upper], infinities strings."""

    def plain(value: Interval | float | None) -> Any:
        if isinstance(value, Interval):
            return [plain(x) for x in value]
        if value is None or math.isfinite(value):
            return value
        return str(value)

    s, q, t = m.speed, m.quality, m.target_quality
    return {
        "name": name,
        "setting": {"draft": m.draft, "length": m.length, "guidance": m.guidance, "images": m.images},
        "quantities": {
            label: {"predicted": plain(left), "measured": plain(right)} for label, left, right in quantities(m)
        },
        "seconds": {"draft_step": s.draft_step, "target_step": s.target_step, "verify_step": s.verify_step},
        "quality": {
            side: {
                "judge_accuracy": plain(v.judge_accuracy),
                "frechet_distance": plain(v.frechet_distance),
                "nll_per_token": plain(v.nll_per_token),
            }
            for side, v in (("target", t), ("decoded", q))
        },
        "same_as_target_p_value": m.same_as_target,
    }
