"""Relaxed rules that are declared lossless, and relaxed rules declared with the wrong schedule or residual."""

from __future__ import annotations

from typing import Any

import numpy as np

import theory
from simulate.testing.mutants.mutant import MARKOV, P0, Q0, Mutant, by_uniforms
from simulate.testing.mutants.skeleton import Blockwise, TokenWise, at, normalised, success_of
from simulate.testing.protocol import Emitted, Floats, Integers, Rounds
from simulate.testing.uniforms import Uniforms
from theory.arrays import to_numpy

LOSSY = "lossy rule not declared"
NEIGHBOURS = "neighbours zeroed beyond those pooled"
CLUSTER = "cluster ratio with token residual"


def token_wise(verifier: theory.Verifier) -> TokenWise:
    """The skeleton with a verifier's acceptance and residual.

    The skeleton's residual knows no place: right where G is the same at all of them, as G* is for f ≥ lossless.
    """

    def accepted(p: Floats, q: Floats, x: Integers) -> Floats:
        f = [to_numpy(verifier.acceptance(p[:, i], q[:, i], i)) for i in range(x.shape[1])]
        return at(np.stack(f, axis=1), x)

    def replacement(p: Floats, q: Floats, x: Integers) -> Floats:
        f = to_numpy(verifier.acceptance(p, q, 0))
        return to_numpy(theory.residual_after(verifier, p, q, f, np.maximum(x, 0), 0))

    return TokenWise(ratio=accepted, residual=replacement)


def block_wise(verifier: theory.AnyVerifier, rounds: Rounds, uniforms: Uniforms) -> Emitted:
    """Block verification with a verifier's weight, remainder and residual."""
    places = iter(range(rounds.length))
    steps: list[theory.Step] = []

    def success(s: Floats, p: Floats, q: Floats) -> Floats:
        steps.append(verifier.step(p, q, next(places), s))
        return success_of(s * to_numpy(steps[-1].rejection), s)

    return Blockwise(
        weight=lambda s, p, q, x: at(to_numpy(steps[-1].weight), x),
        success=success,
        residual=lambda s, p, q, place: to_numpy(verifier.step(p, q, place, s).residual),
    )(rounds, uniforms)


def pooled_residual(p: Floats, q: Floats, f: Floats, /) -> Floats:
    """p without token 0 and its nearest neighbour 1, the two that were pooled; for drafts that are always token 0."""
    left = np.asarray(p, dtype=np.float64).copy()
    left[..., :2] = 0.0
    return normalised(left, np.asarray(p))


def _undeclared(name: str, verifier: theory.Verifier, length: int = 1, **rest: Any) -> Mutant:
    pair: tuple[theory.Chain, theory.Chain] = (P0, Q0) if length == 1 else MARKOV
    return by_uniforms(name, LOSSY, token_wise(verifier), *pair, length, **rest)


DECAYING = [2.0, 1.25]
NEAREST = np.array([[1, 2], [0, 2], [1, 0]])
POOL = np.array([[1, 2], [0, 2], [1, 3], [2, 1]])
ONE_HOT = theory.IIDChain([1.0, 0.0, 0.0, 0.0])
ANNEALED = theory.cool_sd(2, 1.3)
PAIR = theory.PartitionGrouped(np.array([0, 0, 1]))

MUTANTS: tuple[Mutant, ...] = (
    _undeclared("lenience ½", theory.Verifier(theory.Relaxed(2.0))),
    _undeclared("lenience .8", theory.Verifier(theory.Relaxed(1.25))),
    _undeclared("lenience .91", theory.Verifier(theory.Relaxed(1.1))),
    _undeclared("lenience .97", theory.Verifier(theory.Relaxed(1.03))),
    _undeclared("every draft accepted", theory.Verifier(theory.AcceptAll())),
    _undeclared("ensemble verified as if it were p", theory.Verifier(theory.Ensemble(0.2))),
    _undeclared(
        "accepted within a divergence", theory.Verifier(theory.DivergenceThreshold(0.4), theory.target_residual)
    ),
    by_uniforms(
        "accepted within the top two", LOSSY, token_wise(theory.Verifier(theory.TopK(2))), P0,
        theory.IIDChain([0.2, 0.7, 0.1]),
    ),
    _undeclared("typical acceptance", theory.Verifier(theory.Typical(), theory.target_residual)),
    _undeclared("neighbours pooled", theory.Verifier(theory.Lantern(NEAREST, 1, 0.3))),
    _undeclared("raised targets", theory.Verifier(theory.Cactus(0.1), theory.CactusResidual(0.1))),
    _undeclared("annealed relaxation", theory.cool_sd(2, 1.2, floor=1.0), 2),
    by_uniforms(
        "relaxed block verification", LOSSY, lambda r, u: block_wise(theory.capped_block(1.3), r, u), *MARKOV, 2,
        verifier=theory.block(2),
    ),
    by_uniforms(
        "schedule reversed", LOSSY, token_wise(theory.Verifier(theory.Relaxed(DECAYING[::-1]))), *MARKOV, 2,
        verifier=theory.Verifier(theory.Relaxed(DECAYING)),
    ),
    by_uniforms(
        "schedule without its decay", LOSSY, token_wise(theory.Verifier(theory.Relaxed(2.0))), *MARKOV, 2,
        verifier=theory.Verifier(theory.Relaxed(DECAYING)),
    ),
    by_uniforms(
        "stricter than lossless, residual p − q", LOSSY,
        token_wise(theory.Verifier(ANNEALED.rule, theory.vanilla_residual)), *MARKOV, 2, verifier=ANNEALED,
    ),
    by_uniforms(
        "acceptance halved, residual p − q", LOSSY,
        token_wise(theory.Verifier(theory.Relaxed(0.5), theory.vanilla_residual)), P0, Q0,
    ),
    by_uniforms(
        "one neighbour too many zeroed", NEIGHBOURS,
        token_wise(theory.lantern_verifier(POOL, 1, delta=0.1, branch="dynamic")),
        theory.IIDChain([0.1, 0.1, 0.3, 0.5]), ONE_HOT,
        verifier=theory.Verifier(theory.Lantern(POOL, 1, 0.1), pooled_residual),
    ),
    by_uniforms(
        "cluster accepted, token replaced", CLUSTER,
        token_wise(theory.Verifier(PAIR, theory.vanilla_residual)),
        theory.IIDChain([0.5, 0.5, 0.0]), theory.IIDChain([0.9, 0.1, 0.0]),
    ),
)  # fmt: skip
