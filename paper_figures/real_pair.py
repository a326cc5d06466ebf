"""The same comparison on a real image pair: schedules at matched tokens per call, measured by decoding images."""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any

from matplotlib.ticker import LogLocator

import theory
from paper_figures import style
from paper_figures.registry import Context, Figure, Row, Rows, register
from paper_figures.tables import distinct, select
from simulate.intervals import Interval
from simulate.ratios import ratio_at_equal_cost

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

LENGTH = 5
IMAGES, QUICK_IMAGES = 400, 60
MATCHING_IMAGES = 100
SIZES, QUICK_SIZES = (0.1, 0.3, 0.5, 0.7), (0.3, 0.6)
REFERENCE_SIZES, QUICK_REFERENCE_SIZES = (0.05, *SIZES), (0.15, *QUICK_SIZES)
"""Uniform relaxation has one point more below, so that the others' ratios to it need no extrapolation."""
SCHEDULES = ("uniform", "annealed, floored", "annealed, no floor", "excess, ν = .7")
QUICK_SCHEDULES = SCHEDULES[:2]
ANNEALED = "annealed, floored"
QUANTITIES = {
    "round_bound": "bound B, one round",
    "round_tv": "TV, one round",
    "round_kl_output_target": "KL(out‖target), one round",
    "token_tv": "predictive TV per token",
    "token_kl_output_target": "KL(out‖target) per token",
    "token_kl_target_output": "KL(target‖out) per token",
    "image_tv": "TV of a whole image",
}


def _columns(name: str, interval: Interval) -> Row:
    return {f"{name}_lower": interval.lower, name: interval.value, f"{name}_upper": interval.upper}


def _interval(row: Row, name: str) -> Interval:
    lower, value, upper = (float(row[key] or 0.0) for key in (f"{name}_lower", name, f"{name}_upper"))
    return Interval(lower, value, upper, float(row["confidence"] or 0.0))


def _measured(m: Any) -> dict[str, Interval]:
    p, e, r = m.prediction, m.estimate, m.rounds
    return {
        "accepted_length": e.accepted_length,
        "accepted_length_predicted": p.accepted_length,
        "tokens_per_call": e.tokens_per_call,
        "tokens_per_call_predicted": p.tokens_per_call,
        "round_bound": p.round_bound,
        "round_tv": p.round_tv,
        "round_tv_decoded": r["total_variation"],
        "round_kl_output_target": p.round_kl_output_target,
        "round_kl_output_target_decoded": r["kl_output_target"],
        "token_tv": e.predictive.total_variation,
        "token_tv_predicted": p.token_tv,
        "token_kl_output_target": e.predictive.kl_output_target,
        "token_kl_output_target_predicted": p.token_kl_output_target,
        "token_kl_target_output": e.predictive.kl_target_output,
        "image_tv": e.total_variation,
        "nll_per_token": m.quality.nll_per_token,
        "judge_accuracy": m.quality.judge_accuracy,
    }


def _one(context: Context, images: int, tools: Any, schedule: str, size: float) -> Row:
    pair, baseline, matched = tools()
    verifier = theory.Verifier(theory.Lossless()) if schedule == "lossless" else matched(schedule, size)
    import validate

    m = validate.measure(pair, verifier, LENGTH, images, baseline=baseline, device="cpu", seed=context.seed)
    omega = getattr(verifier.rule, "omega", [1.0] * LENGTH)
    row: Row = {
        "schedule": schedule,
        "size": size,
        "omega": " ".join(f"{w:.6g}" for w in omega),
        "images": images,
        "length": LENGTH,
        "draft": m.draft,
        "guidance": m.guidance,
        "seed": context.seed,
        "confidence": 0.95,
    }
    for name, interval in _measured(m).items():
        row |= _columns(name, interval)
    return row | {
        "frechet_distance": m.quality.frechet_distance,
        "target_nll_per_token": m.target_quality.nll_per_token.value,
        "target_judge_accuracy": m.target_quality.judge_accuracy.value,
        "same_as_target_p": m.same_as_target,
    }


def _cost(name: str) -> str:
    """What "equal cost" means for a quantity: a round's accepted length, or an image's tokens per call."""
    return "accepted_length_predicted" if name.startswith("round") else "tokens_per_call"


def _cost_interval(row: Row, cost: str) -> Interval:
    """Predicted costs come from the same images for all, so their common error cancels; counted ones do not."""
    value = float(row[cost] or 0.0)
    return Interval(value, value, value, 0.95) if cost.endswith("predicted") else _interval(row, cost)


def _ratios(rows: Rows) -> Rows:
    """Every quantity over uniform's at equal cost, as columns."""
    out: Rows = [dict(row) for row in rows]
    for name in QUANTITIES:
        cost = _cost(name)
        free = float(select(rows, schedule="lossless")[0][cost])
        uniform = sorted(select(rows, schedule="uniform"), key=lambda r: float(r[cost]))
        costs, reference = [_cost_interval(r, cost) for r in uniform], [_interval(r, name) for r in uniform]
        for row in out:
            ratio = Interval(1.0, 1.0, 1.0, 0.95)
            if row["schedule"] not in ("lossless", "uniform"):
                ratio = ratio_at_equal_cost(_cost_interval(row, cost), _interval(row, name), costs, reference, free)
            row |= _columns(f"{name}_ratio", ratio)
    return out


def build(context: Context) -> Rows:
    """Lossless, then every schedule at every size; sizes are shares of the way to accepting every draft."""
    images = QUICK_IMAGES if context.quick else IMAGES

    @cache
    def tools() -> Any:
        import validate
        from validate.prediction import match_tokens_per_call, predicted_tokens_per_call

        pair = validate.load("fashion", device="cpu")
        baseline = validate.sample_baseline(pair, images, device="cpu", seed=context.seed)
        own = baseline.predicting_scores
        scores = own.first(MATCHING_IMAGES)
        ends = [
            predicted_tokens_per_call(scores, theory.Verifier(rule), LENGTH)
            for rule in (theory.Lossless(), theory.AcceptAll())
        ]
        families = theory.schedule_families(LENGTH)

        def matched(schedule: str, size: float) -> theory.AnyVerifier:
            value = ends[0] + size * (ends[1] - ends[0])
            return match_tokens_per_call(scores, families[schedule], LENGTH, value)

        return pair, baseline, matched

    sizes = QUICK_SIZES if context.quick else SIZES
    schedules = QUICK_SCHEDULES if context.quick else SCHEDULES
    reference = QUICK_REFERENCE_SIZES if context.quick else REFERENCE_SIZES
    points = [("lossless", 0.0)] + [(s, t) for s in schedules for t in (reference if s == "uniform" else sizes)]
    return _ratios(
        [
            context.cell((schedule, size), partial(_one, context, images, tools, schedule, size))
            for schedule, size in context.progress(points)
        ]
    )


def _errors(rows: Rows, name: str) -> list[list[float]]:
    intervals = [_interval(r, name) for r in rows]
    return [[i.value - i.lower for i in intervals], [i.upper - i.value for i in intervals]]


CURVES = ("token_tv", "token_kl_output_target", "image_tv")
RATIOS = ("round_bound", "round_kl_output_target", "token_tv", "token_kl_output_target")


def draw(rows: Rows) -> Picture:
    """Above: divergences over tokens per call. Below: the ratio to uniform at equal tokens per call."""
    figure, axes = style.subplots(2, 4, 12.6, 6.4)
    schedules = [s for s in distinct(rows, "schedule") if s != "lossless"]
    panels = ("round_bound", *CURVES)
    for panel, name in zip(axes[0], panels, strict=True):
        for schedule in schedules:
            curve = sorted(select(rows, schedule=schedule), key=lambda r: float(r["tokens_per_call"]))
            x = [float(r["tokens_per_call"]) for r in curve]
            y = [float(r[name]) for r in curve]
            panel.errorbar(x, y, yerr=_errors(curve, name), capsize=2, **style.MARKS[schedule])
        lossless = select(rows, schedule="lossless")[0]
        panel.axvline(float(lossless["tokens_per_call"]), color=style.GREY, lw=0.8, ls="--")
        panel.set(title=QUANTITIES[name], xlabel="tokens per target call")
        if name != "image_tv":
            panel.set_yscale("log")
            panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
            panel.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            panel.minorticks_off()
    axes[0, 0].set_ylabel("bound, TV; KL in nats")
    for panel, name in zip(axes[1], RATIOS, strict=True):
        for schedule in schedules:
            if schedule == "uniform":
                continue
            curve = select(rows, schedule=schedule)
            x = [float(r["size"]) for r in curve]
            y = [float(r[f"{name}_ratio"]) for r in curve]
            panel.errorbar(x, y, yerr=_errors(curve, f"{name}_ratio"), capsize=2, **style.MARKS[schedule])
        panel.axhline(1, color=style.BLACK, lw=1)
        panel.set_yscale("log")
        ticks = [0.5, 0.7, 1, 1.4, 2, 4]
        panel.set_yticks(ticks, [f"{t:g}" for t in ticks])
        panel.minorticks_off()
        panel.set(title=QUANTITIES[name], xlabel="size t (0 lossless, 1 accept all)")
    axes[1, 0].set_ylabel("ratio to uniform at\nequal cost (< 1 better)")
    style.legend_below(figure, {s: style.MARKS[s] for s in schedules})
    return figure


def _range(rows: Rows, schedule: str, name: str) -> str:
    values = [float(r[f"{name}_ratio"]) for r in select(rows, schedule=schedule)]
    return f"{min(values):.2f} to {max(values):.2f}"


def claim(rows: Rows) -> str:
    """Where annealing helps on real images, quantity by quantity."""
    annealed = sorted(select(rows, schedule=ANNEALED), key=lambda r: float(r["size"]))
    worse = [f"{float(r['size']):g}" for r in annealed if float(r["token_kl_output_target_ratio_lower"]) > 1]
    better = [f"{float(r['size']):g}" for r in annealed if float(r["token_kl_output_target_ratio_upper"]) < 1]
    where = [f"at t = {', '.join(sizes)}" if sizes else "at no size" for sizes in (worse, better)]
    return (
        f"On real images floored annealing has {_range(rows, ANNEALED, 'token_tv')} of uniform's predictive TV and "
        f"{_range(rows, ANNEALED, 'round_bound')} of its bound at equal cost; its KL per token is "
        f"{_range(rows, ANNEALED, 'token_kl_output_target')} of uniform's: higher beyond the error "
        f"{where[0]}, lower beyond it {where[1]}."
    )


def caption(rows: Rows) -> str:
    """Settings, sample sizes and kinds of numbers."""
    lossless = select(rows, schedule="lossless")[0]
    p = float(lossless["same_as_target_p"])
    if p < 0.001:
        return f"WARNING: lossless images were told from the target's (p = {p:.1e}); do not trust this figure."
    return (
        f"Embedded Fashion-MNIST pair (49 tokens of 256), draft {lossless['draft']}, guidance "
        f"{float(lossless['guidance']):g}, L = {lossless['length']} drafts, {lossless['images']} images a point, seed "
        f"{lossless['seed']}. Size t: predicted tokens per call lie the share t of the way from lossless (dashed) to "
        "accepting every draft. One-round bound and distances: averages of exact laws along the target's own images; "
        "per-token and image ones: estimates from exact likelihood ratios of decoded images. Bars: 95 % intervals. "
        "Below: ratios to uniform's curve, interpolated in log-log of the cost above lossless, at equal accepted "
        "length (one round) or measured tokens per call; bars too wide, as the common seed is ignored. Lossless "
        "images are "
        f"not told from the target's (two-sample p = {p:.2f})."
    )


register(
    Figure(
        name="real_pair",
        title="Schedules on a real image pair",
        claim=claim,
        caption=caption,
        build=build,
        draw=draw,
        uses=(
            "theory",
            "simulate",
            "validate/models",
            "validate/weights",
            "validate/acceptance.py",
            "validate/batches.py",
            "validate/decoder.py",
            "validate/decoding.py",
            "validate/noise.py",
            "validate/scoring.py",
            "validate/measurement.py",
            "validate/prediction.py",
            "validate/quality.py",
        ),
        order=60,
        group="real images",
    )
)
