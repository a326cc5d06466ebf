"""Real samples at rising relaxation, same seeds: what δ looks like."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

import theory
from paper_figures import style
from paper_figures.registry import Context, Figure, Row, Rows, register
from paper_figures.tables import distinct, select

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

LENGTH, SHOWN_PER_CLASS, CLASSES = 5, 2, 10
IMAGES, QUICK_IMAGES = 200, 40
NAMES = ("T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
"""Fashion-MNIST's classes, 0 to 9 (0 is T-shirt/top)."""
DELTAS = (1.0, 1.1, 2.0, 4.0, 8.0, math.inf)
"""δ of COOL-SD with the floor; 1.0 stands for lossless decoding, ∞ for accepting every draft."""


def _verifier(delta: float) -> theory.Verifier:
    if delta == 1.0:
        return theory.Verifier(theory.Lossless())
    if math.isinf(delta):
        return theory.Verifier(theory.AcceptAll())
    return theory.cool_sd(LENGTH, delta, floor=1.0)


def _images(context: Context, delta: float) -> Rows:
    import validate
    from validate.quality import judge_images

    pair = validate.load("fashion", device="cpu")
    images = QUICK_IMAGES if context.quick else IMAGES
    run = validate.decode(pair, _verifier(delta), LENGTH, images, device="cpu", seed=context.seed)
    right, _ = judge_images(pair, run.tokens, run.classes)
    nll = -validate.score(pair, run).log_likelihood("target") / pair.num_tokens
    return [
        {
            "delta": delta,
            "image": i,
            "class": int(run.classes[i]),
            "seed": context.seed,
            "length": LENGTH,
            "draft": pair.draft_name,
            "guidance": run.guidance,
            "calls": int(run.calls[i]),
            "nll_per_token": float(nll[i]),
            "recognised": bool(right[i]),
            "tokens": " ".join(map(str, run.tokens[i])),
        }
        for i in range(images)
    ]


def build(context: Context) -> Rows:
    """A row per image and δ, its tokens included."""
    deltas = [*DELTAS]
    return [row for d in context.progress(deltas) for row in context.cell(str(d), partial(_images, context, d))]


def _pixels(rows: Rows) -> np.ndarray:
    import torch

    import validate

    tokens = torch.tensor([[int(x) for x in str(row["tokens"]).split()] for row in rows])
    with torch.no_grad():
        return validate.load("fashion", device="cpu").tokenizer.decode(tokens).numpy()


def _name(delta: float) -> str:
    if delta == 1.0:
        return "lossless"
    return "accept all" if math.isinf(delta) else f"δ = {delta:g}"


def _summary(rows: Rows) -> Row:
    tokens = sum(len(str(r["tokens"]).split()) for r in rows)
    return {
        "tokens_per_call": tokens / sum(int(r["calls"]) for r in rows),
        "accuracy": float(np.mean([bool(r["recognised"]) for r in rows])),
        "nll": float(np.mean([float(r["nll_per_token"]) for r in rows])),
    }


def draw(rows: Rows) -> Picture:
    """One line of images for each δ; a column is one class and one seed."""
    deltas = distinct(rows, "delta")
    figure, axes = style.subplots(len(deltas), 1, 9.6, 0.6 * len(deltas) + 0.4)
    for panel, delta in zip(axes[:, 0], deltas, strict=True):
        mine = select(rows, delta=delta)
        shown = sorted(mine[: SHOWN_PER_CLASS * CLASSES], key=lambda r: (int(r["class"]), int(r["image"])))
        strip = np.concatenate(list(np.pad(_pixels(shown), ((0, 0), (1, 1), (1, 1)), constant_values=1.0)), axis=1)
        panel.imshow(1 - strip, cmap="gray", vmin=0, vmax=1, interpolation="nearest", aspect="equal")
        s = _summary(mine)
        panel.set_xticks([])
        if panel is axes[0, 0]:
            classes = [int(row["class"]) for row in shown]
            width = strip.shape[1] / len(shown)
            middles = {c: width * (classes.index(c) + classes.count(c) / 2) - 0.5 for c in dict.fromkeys(classes)}
            panel.xaxis.tick_top()
            panel.set_xticks(list(middles.values()), [NAMES[c] for c in middles], fontsize=7.5)
            panel.tick_params(length=0)
        panel.set_yticks([])
        panel.grid(False)
        panel.set_ylabel(
            f"{_name(float(delta))}\n{s['tokens_per_call']:.2f} tok/call\nnll {s['nll']:.2f}, acc {s['accuracy']:.0%}",
            rotation=0,
            ha="right",
            va="center",
            fontsize=7.5,
        )
        for spine in panel.spines.values():
            spine.set_visible(False)
    return figure


def claim(rows: Rows) -> str:
    """What is bought and what is paid."""
    ends = [_summary(select(rows, delta=d)) for d in (1.0, 2.0, math.inf)]
    first, middle, last = ends
    return (
        f"From lossless to δ = 2 to accepting every draft, tokens per call rise {first['tokens_per_call']:.2f}, "
        f"{middle['tokens_per_call']:.2f}, {last['tokens_per_call']:.2f}, while nll per token under the target goes "
        f"{first['nll']:.2f}, {middle['nll']:.2f}, {last['nll']:.2f} and the judge recognises "
        f"{first['accuracy']:.0%}, {middle['accuracy']:.0%}, {last['accuracy']:.0%} of the images."
    )


def caption(rows: Rows) -> str:
    """Settings."""
    one = rows[0]
    images = len(select(rows, delta=1.0))
    return (
        f"Samples of the embedded Fashion-MNIST pair, draft {one['draft']}, guidance {float(one['guidance']):g}, "
        f"L = {one['length']} drafts, COOL-SD: a draft x is accepted with min(1, ω_i p(x)/q(x)), ω_i ∝ e^(−.7i) with "
        "mean δ, then max(1, ω_i). A column has one "
        f"class ({SHOWN_PER_CLASS} columns each) and one seed ({one['seed']}) throughout, so lines differ only where a "
        f"decision did. Numbers at the left are plain averages of {images} images a line: tokens per target call, "
        "nll: nats per token under the guided target; acc: share of images the judge network recognises as their class."
    )


register(
    Figure(
        name="sample_grid",
        title="Real samples at rising relaxation, same seeds",
        claim=claim,
        caption=caption,
        build=build,
        draw=draw,
        uses=(
            "theory",
            "simulate/draws.py",
            "validate/models",
            "validate/weights",
            "validate/acceptance.py",
            "validate/batches.py",
            "validate/decoder.py",
            "validate/decoding.py",
            "validate/noise.py",
            "validate/scoring.py",
            "validate/quality.py",
        ),
        order=70,
        group="real images",
    )
)
