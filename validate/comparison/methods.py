"""The relaxed chain methods: each a family of verifiers in one strength s ≥ 0, cautious to bold.

A further method is one more entry of `relaxed_methods`.

>>> sorted(relaxed_methods(5, [[0.0], [1.0], [3.0]]))[:3]
['COOL-SD, floored', 'COOL-SD, no floor', 'CSD']
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import theory
from theory import AnyVerifier, Verifier
from theory.comparison import block_families
from theory.families import DECAY, MILD_DECAY
from theory.schedules import excess_schedule
from validate.models import Pair

__all__ = ["Method", "codebook_of", "relaxed_methods"]

NEIGHBOURS = 10
"""LANTERN++'s k at its published λ = 5 (2502.06352)."""
MENTORED_IMAGES = 12
"""Images that mentored decoding is matched on: its factor is found anew at every prefix, 1 s for 3 images."""


@dataclass(frozen=True)
class Method:
    """A family of verifiers in one strength s ≥ 0, and what it is matched by.

    Attributes
    ----------
    build : function strength → verifier
    accepting : function strength → verifier
        The same acceptance, quick to predict.
    setting : function strength → str
        The strength in the method's own terms.
    matching : int, optional
        Most images to match on, for acceptance that is dear to compute.
    """

    build: Callable[[float], AnyVerifier]
    accepting: Callable[[float], AnyVerifier]
    setting: Callable[[float], str]
    matching: int | None = None


def _own(build: Callable[[float], AnyVerifier], setting: str) -> Method:
    return Method(build, build, lambda s: setting.format(w=math.exp(s), d=math.expm1(s)))


def _ruled(rule: Callable[[float], Any], build: Callable[[float], AnyVerifier], setting: str) -> Method:
    return Method(build, lambda s: Verifier(rule(s)), lambda s: setting.format(w=math.exp(s), d=math.expm1(s)))


def relaxed_methods(length: int, codebook: Any) -> dict[str, Method]:
    """Every relaxed chain method by name, for blocks of `length` tokens; codebook (V, D) gives LANTERN++ neighbours.

    ======================  ======================================================================
    uniform                 ω = e^s, residual G*
    COOL-SD, floored        exponential ν = .7, arithmetic mean δ = e^s − 1, max(1, ω)
    COOL-SD, no floor       the same as reconstructed from the paper
    excess                  ω_i = 1 + d e^{−.7 i} (this project); "mild" with ν = .2
    LANTERN++, G*           k = 10, λ = e^s, residual G*
    LANTERN++, published    the same with the residual of its code for static trees
    Cactus, mentored, CSD   published residuals; CSD without its condition on TV
    optimal by position     the first F = s positions outright, the rest lossless (this project)
    lifted …                block verification against that rule's own output law (this project)
    capped …                capped block verification (this project)
    ======================  ======================================================================
    """
    token_wise, blocks = theory.schedule_families(length), block_families(length)
    near = theory.nearest_neighbours(codebook, min(2 * NEIGHBOURS, len(codebook) - 1))
    k = min(NEIGHBOURS, near.shape[1] - 1)

    def excess(s: float) -> Any:
        return excess_schedule(length, math.expm1(s), DECAY)

    def mild(s: float) -> Any:
        return excess_schedule(length, math.expm1(s), MILD_DECAY)

    def lantern(s: float) -> Any:
        return theory.LanternPlusPlus(near, k, math.exp(s))

    def entropy(s: float) -> Any:
        return theory.EntropyRelaxed(math.expm1(s), 2.0)

    def published(rule: Callable[[float], Any]) -> Callable[[float], AnyVerifier]:
        return lambda s: theory.published_verifier(rule(s))

    def cactus(s: float) -> Any:
        return theory.Cactus(math.expm1(s))

    def mentored(s: float) -> Any:
        return theory.Mentored(math.expm1(s))

    def with_branch(s: float) -> AnyVerifier:
        return theory.lantern_verifier(near, k, lam=math.exp(s))

    return {
        "uniform": _own(token_wise["uniform"], "omega {w:.4g}"),
        "COOL-SD, floored": _own(token_wise["annealed, floored"], "delta {d:.4g}"),
        "COOL-SD, no floor": _own(token_wise["annealed, no floor"], "delta {d:.4g}"),
        "excess": _own(lambda s: Verifier(theory.Relaxed(excess(s))), "d {d:.4g}"),
        "LANTERN++, G*": _ruled(lantern, lambda s: Verifier(lantern(s)), f"k {k}, lambda {{w:.4g}}"),
        "LANTERN++, published": _ruled(lantern, with_branch, f"k {k}, lambda {{w:.4g}}"),
        "Cactus": _ruled(cactus, published(cactus), "delta {d:.4g}"),
        "mentored": replace(_ruled(mentored, published(mentored), "KL {d:.4g} a step"), matching=MENTORED_IMAGES),
        "CSD": _ruled(entropy, published(entropy), "lambda {d:.4g}"),
        "optimal by position": Method(
            lambda s: Verifier(theory.OutrightFirst(s)),
            lambda s: Verifier(theory.OutrightFirst(s)),
            "first {:.4g}".format,
        ),
        "lifted uniform": _own(blocks["lifted uniform"], "omega {w:.4g}"),
        "lifted excess": _own(lambda s: theory.lifted_block(Verifier(theory.Relaxed(excess(s)))), "d {d:.4g}"),
        "lifted mild": _own(lambda s: theory.lifted_block(Verifier(theory.Relaxed(mild(s)))), "d {d:.4g}"),
        "capped mild": _own(lambda s: theory.capped_block(mild(s)), "d {d:.4g}"),
        "capped uniform": _own(blocks["capped uniform"], "omega {w:.4g}"),
        "capped excess": _own(blocks["capped excess"], "d {d:.4g}"),
    }


def codebook_of(pair: Pair) -> np.ndarray:
    """Codebook rows of a pair's tokenizer, float64 (V, D); ValueError for a pair without one."""
    table = getattr(pair.tokenizer, "codebook", None)
    if table is None or len(table) != pair.vocab_size:
        raise ValueError(f"pair {pair.name!r} has no codebook of {pair.vocab_size} rows; LANTERN++ and GSD need one")
    return np.asarray(table.detach().float().cpu().numpy(), dtype=np.float64)
