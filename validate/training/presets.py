"""What a training run does: network shapes and step counts.  Budgets are steps, never seconds.

A budget in seconds silently trains less on a busy machine: a prototype's tokenizer collapsed that way.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PRESETS", "DecoderPlan", "Plan", "Preset"]


@dataclass(frozen=True)
class Plan:
    """Optimisation of one network: AdamW, linear warmup, cosine decay to zero.

    Attributes
    ----------
    steps, batch, warmup : int
        Optimiser steps, images per step, steps of warmup.
    learning_rate, weight_decay : float
        Peak rate; decoupled decay, on matrices only.
    """

    steps: int
    batch: int
    learning_rate: float
    warmup: int = 50
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        if self.steps < 1 or self.batch < 1 or not 0 <= self.warmup <= self.steps:
            raise ValueError(
                f"a plan needs steps >= 1, batch >= 1 and 0 <= warmup <= steps; "
                f"got steps {self.steps}, batch {self.batch}, warmup {self.warmup}"
            )


@dataclass(frozen=True)
class DecoderPlan:
    """One token transformer: its shape and its plan."""

    width: int
    layers: int
    heads: int
    plan: Plan

    @property
    def name(self) -> str:
        """Width × layers, for example "64x1"."""
        return f"{self.width}x{self.layers}"


@dataclass(frozen=True)
class Preset:
    """A whole run.

    Attributes
    ----------
    name : str
        Recorded in the manifest; `validate.models.load` asks for it.
    drafts : tuple of DecoderPlan
        Best first; the first is the default draft.
    null_share : float
        Share of training sequences whose class token becomes the null class.
    min_perplexity : float
        The run fails when the tokenizer's code perplexity on test images ends below this.
    kept : int
        Test images whose tokens ship with the weights.
    samples_per_class : int
        Sampled images per class behind the samples' class accuracy.
    guidance : float
        Default scale of classifier-free guidance.
    side : int
        Tokens in a row and in a column of an image, 7 or 14.
    """

    name: str
    vocab_size: int
    code_width: int
    tokenizer_width: int
    judge_width: int
    judge_features: int
    tokenizer: Plan
    target: DecoderPlan
    drafts: tuple[DecoderPlan, ...]
    judge: Plan
    null_share: float = 0.1
    min_perplexity: float = 40.0
    kept: int = 1000
    samples_per_class: int = 100
    guidance: float = 2.0
    num_classes: int = 10
    side: int = 7

    @property
    def tokenizer_config(self) -> dict[str, int]:
        """Arguments of the `VQTokenizer`."""
        return {
            "vocab_size": self.vocab_size,
            "code_width": self.code_width,
            "width": self.tokenizer_width,
            "side": self.side,
        }

    @property
    def judge_config(self) -> dict[str, int]:
        """Arguments of the `Judge`."""
        return {"num_classes": self.num_classes, "width": self.judge_width, "features": self.judge_features}

    def decoder_config(self, shape: DecoderPlan) -> dict[str, int]:
        """Arguments of a `TokenTransformer`, target or draft."""
        return {
            "vocab_size": self.vocab_size,
            "num_classes": self.num_classes,
            "num_tokens": self.side**2,
            "width": shape.width,
            "layers": shape.layers,
            "heads": shape.heads,
        }


PRESETS = {
    "fashion": Preset(
        name="fashion",
        vocab_size=256,
        code_width=8,
        tokenizer_width=64,
        judge_width=16,
        judge_features=32,
        tokenizer=Plan(steps=1500, batch=64, learning_rate=2e-3),
        target=DecoderPlan(128, 4, 4, Plan(steps=2000, batch=64, learning_rate=2e-3, warmup=100)),
        drafts=(
            DecoderPlan(64, 1, 4, Plan(steps=1600, batch=128, learning_rate=6e-3, warmup=100)),
            DecoderPlan(32, 1, 2, Plan(steps=1600, batch=128, learning_rate=1e-2, warmup=100)),
            DecoderPlan(24, 1, 2, Plan(steps=1600, batch=128, learning_rate=1e-2, warmup=100)),
        ),
        judge=Plan(steps=1400, batch=128, learning_rate=2e-3),
    ),
    # A pair for one data-centre GPU: 196 tokens an image, a target of 10 M parameters, drafts of 1 M, .17 M and .06 M.
    "large": Preset(
        name="large",
        vocab_size=256,
        code_width=8,
        tokenizer_width=64,
        judge_width=16,
        judge_features=32,
        tokenizer=Plan(steps=2000, batch=128, learning_rate=2e-3),
        target=DecoderPlan(320, 8, 5, Plan(steps=5000, batch=128, learning_rate=1e-3, warmup=300)),
        drafts=(
            DecoderPlan(192, 2, 6, Plan(steps=3000, batch=128, learning_rate=2e-3, warmup=100)),
            DecoderPlan(96, 1, 4, Plan(steps=3000, batch=128, learning_rate=4e-3, warmup=100)),
            DecoderPlan(48, 1, 2, Plan(steps=3000, batch=128, learning_rate=6e-3, warmup=100)),
        ),
        judge=Plan(steps=1400, batch=128, learning_rate=2e-3),
        side=14,
    ),
    # Seconds on a synthetic folder: exercises every stage, learns little.
    "smoke": Preset(
        name="smoke",
        vocab_size=256,
        code_width=8,
        tokenizer_width=8,
        judge_width=4,
        judge_features=32,
        tokenizer=Plan(steps=30, batch=16, learning_rate=3e-3, warmup=5),
        target=DecoderPlan(16, 2, 2, Plan(steps=12, batch=16, learning_rate=3e-3, warmup=2)),
        drafts=(
            DecoderPlan(8, 1, 2, Plan(steps=12, batch=16, learning_rate=3e-3, warmup=2)),
            DecoderPlan(4, 1, 1, Plan(steps=12, batch=16, learning_rate=3e-3, warmup=2)),
        ),
        judge=Plan(steps=10, batch=16, learning_rate=3e-3, warmup=2),
        min_perplexity=2.0,
        kept=16,
        samples_per_class=2,
    ),
}
