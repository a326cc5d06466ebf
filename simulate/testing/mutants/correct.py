"""Samplers that must pass: the two skeletons, and rules that look like faults and are none."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import theory
from simulate.testing.mutants.answers import at_end, best_of_one, chi_square_test, guided, stopping_at
from simulate.testing.mutants.lossy import block_wise, token_wise
from simulate.testing.mutants.mutant import MARKOV, P0, Mutant, by_uniforms
from simulate.testing.mutants.siblings import WIDE, Siblings, siblings_mutant, with_replacement
from simulate.testing.mutants.skeleton import (
    Blockwise,
    TokenWise,
    at,
    checked,
    emit,
    inverse_cdf,
    normalised,
    remainder,
    success_of,
)
from simulate.testing.protocol import Emitted, Floats, Integers, Rounds
from simulate.testing.uniforms import Uniforms, UniformSampler, drawing

RIGHT = "rules that are not faults"
TARGET, DRAFT = theory.IIDChain([0.6, 0.2, 0.1, 0.1]), theory.IIDChain([0.7, 0.2, 0.05, 0.05])
GREEDY = theory.IIDChain([0.0, 0.0, 1.0])


@dataclass(frozen=True)
class EqualToTarget:
    """A token is drawn from p at every place, and the draft is accepted where it is that token."""

    def __call__(self, rounds: Rounds, uniforms: Uniforms) -> Emitted:
        """Verify a batch."""
        p, _ = checked(rounds)
        u = np.concatenate([uniforms.acceptance, uniforms.final[:, None]], axis=1)
        own = np.stack([inverse_cdf(p[:, i], u[:, i]) for i in range(u.shape[1])], axis=1)
        accepted = np.cumprod(own[:, :-1] == rounds.draft_ids, axis=1).sum(axis=1)
        return emit(rounds.draft_ids, accepted, own[np.arange(len(own)), accepted])


def _target_only_residual(p: Floats, q: Floats, x: Integers) -> Floats:
    return normalised(p * (1 - q), p)


def _without_min(p: Floats, q: Floats, x: Integers) -> Floats:
    drafted = at(q, x)
    return at(p, x) / np.where(drafted > 0, drafted, 1.0)


def _rejected_forbidden(p: Floats, q: Floats, x: Integers) -> Floats:
    left = np.maximum(p - q, 0.0)
    np.put_along_axis(left, np.maximum(x, 0)[:, None], 0.0, axis=-1)
    return normalised(left, p)


def _from_the_top(law: Floats, u: Floats) -> Any:
    return law.shape[-1] - 1 - inverse_cdf(law[:, ::-1], u)


def _upper_tail(u: Floats, f: Floats) -> Any:
    return u >= 1 - f


def _other_column(u: Uniforms) -> Uniforms:
    return replace(u, acceptance=np.roll(u.acceptance, 1, axis=1))


def _zero_for_empty(s: Floats, p: Floats, q: Floats) -> Floats:
    return success_of(remainder(s, p, q), s, empty=0.0)


def _right(name: str, core: UniformSampler, length: int = 2, **rest: Any) -> Mutant:
    pair: tuple[theory.Chain, theory.Chain] = rest.pop("pair", MARKOV)
    return by_uniforms(name, RIGHT, core, *pair, length, faulty=False, **rest)


RELAXED, ANNEALED = theory.Verifier(theory.Relaxed(1.5)), theory.cool_sd(2, 1.3)
CAPPED, LIFTED = theory.capped_block([1.5, 1.2]), theory.lifted_block(RELAXED)

CORRECT: tuple[Mutant, ...] = (
    _right("token-wise", TokenWise()),
    _right("block", Blockwise(), verifier=theory.block(2)),
    _right("relaxed, declared", token_wise(RELAXED), verifier=RELAXED),
    _right("capped block, declared", lambda r, u: block_wise(CAPPED, r, u), verifier=CAPPED),
    _right("lifted block, declared", lambda r, u: block_wise(LIFTED, r, u), verifier=LIFTED),
    _right(
        "accepted with p alone", TokenWise(ratio=lambda p, q, x: at(p, x), residual=_target_only_residual), 1,
        pair=(TARGET, DRAFT), counts="any",
    ),
    _right("accepted where a target draw agrees", EqualToTarget(), 1, pair=(TARGET, DRAFT), counts="any"),
    _right("accepted where target draws agree, two drafts", EqualToTarget(), counts="any"),
    _right("greedy draft, one-hot declared", TokenWise(), 2, pair=(P0, GREEDY)),
    _right(
        "greedy draft, accepted with p", TokenWise(ratio=lambda p, q, x: at(p, x)), 1, pair=(P0, GREEDY), counts="any"
    ),
    _right("ratio without the min", TokenWise(ratio=_without_min)),
    _right("rejected token forbidden in the residual", TokenWise(residual=_rejected_forbidden)),
    _right("drawn from the last id down", TokenWise(draw=_from_the_top)),
    _right("u ≥ 1 − f", TokenWise(accepts=_upper_tail)),
    _right("uniforms in another order", TokenWise(uniforms=_other_column)),
    _right("block, 0/0 = 0", Blockwise(success=_zero_for_empty), verifier=theory.block(2)),
    siblings_mutant("siblings without replacement", Siblings(), faulty=False),
    siblings_mutant("siblings with replacement", Siblings(with_replacement, with_replacement), WIDE, faulty=False),
    *(
        Mutant(f"{name}: {probe}", RIGHT, drawing(core), probe, faulty=False)
        for name, core in (("token-wise", TokenWise()), ("block", Blockwise()))
        for probe in (
            "extreme uniforms", "empty residual", "rows apart", "seeds", "placeholders", "no laws", "float32 rows",
            "vocabularies", "empty batch",
        )
    ),
    Mutant("stops at the end token", RIGHT, stopping_at(at_end), "end token", faulty=False),
    Mutant("guided logits", RIGHT, guided, "guidance", faulty=False),
    Mutant("optimum of renormalised marginals", RIGHT, best_of_one, "solver values", faulty=False),
    Mutant("chi-square test", RIGHT, chi_square_test, "power of a test", faulty=False),
)  # fmt: skip
"""Samplers, and functions around them, that must pass."""
