"""Faults in the answer to special input: seeds, placeholders, bad rows, empty batches, vocabularies, end tokens.

The last few are no samplers but what stands around one: guided logits, a solver's optimum, a test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from simulate.testing.mutants.mutant import Mutant
from simulate.testing.mutants.skeleton import TokenWise, checked, emit, lossless_residual
from simulate.testing.protocol import Emitted, Floats, Integers, Rounds
from simulate.testing.uniforms import Uniforms, draw_uniforms, drawing

SEEDS, SHAPES = "seeds", "empty batch, zero drafts"
VOCABULARY, BAD_ROWS = "vocabulary mismatch", "non-finite rows"
CORE = TokenWise()


def _own_seed(rounds: Rounds, rng: np.random.Generator) -> Emitted:
    return CORE(rounds, draw_uniforms(rounds, np.random.default_rng(0)))


def _global_generator(rounds: Rounds, rng: np.random.Generator) -> Emitted:
    draw = np.random.random_sample
    return CORE(rounds, Uniforms(draw((rounds.count, rounds.length)), draw(rounds.count)))


def _operating_system(rounds: Rounds, rng: np.random.Generator) -> Emitted:
    return CORE(rounds, draw_uniforms(rounds, np.random.default_rng()))


@dataclass
class KeptGenerator:
    """Seeds itself at its first call and ignores what it is given later."""

    kept: list[np.random.Generator] = field(default_factory=list)

    def __call__(self, rounds: Rounds, rng: np.random.Generator) -> Emitted:
        """Verify a batch."""
        if not self.kept:
            self.kept.append(rng)
        return CORE(rounds, draw_uniforms(rounds, self.kept[0]))


def _first_row(rounds: Rounds) -> tuple[Floats, Floats]:
    p, q = checked(rounds)
    return np.repeat(p[:1], len(p), axis=0), q


def _next_row(rounds: Rounds) -> tuple[Floats, Floats]:
    p, q = checked(rounds)
    return np.roll(p, 1, axis=0), q


def _batch_total(p: Floats, q: Floats, x: Integers) -> Any:
    left = np.maximum(p - q, 0.0)
    return 0.5 * lossless_residual(p, q, x) + 0.5 * left.sum(axis=0) / max(left.sum(), 1e-300)


def _shortest(flags: Any) -> Integers:
    own = np.cumprod(flags, axis=1, dtype=np.int64).sum(axis=1)
    return np.full(len(own), own.min(initial=flags.shape[1]))


def _wrapped_placeholders(rounds: Rounds, rng: np.random.Generator) -> Emitted:
    ids = rounds.draft_ids % rounds.vocab_size
    return CORE(Rounds(ids, rounds.target_probs, rounds.draft_probs), draw_uniforms(rounds, rng))


def _skipped_placeholders(rounds: Rounds, rng: np.random.Generator) -> Emitted:
    u = draw_uniforms(rounds, rng)
    p, q = checked(rounds)
    flags = (rounds.draft_ids < 0) | (u.acceptance < CORE.ratio(p[:, :-1], q, rounds.draft_ids))
    accepted = CORE.count(flags)
    return emit(rounds.draft_ids, accepted, CORE.draw(p[np.arange(len(p)), accepted], u.final))


def _unchecked(rounds: Rounds) -> tuple[Floats, Floats]:
    return np.asarray(rounds.target_probs, np.float64), np.asarray(rounds.draft_probs, np.float64)


def _zeros_for_nan(rounds: Rounds) -> tuple[Floats, Floats]:
    return tuple(np.nan_to_num(rows, nan=0.0, posinf=1.0) for rows in _unchecked(rounds))  # type: ignore[return-value]


def _uniform_for_bad(rounds: Rounds) -> tuple[Floats, Floats]:
    laws = []
    for rows in _unchecked(rounds):
        with np.errstate(all="ignore"):
            scaled = rows / rows.sum(axis=-1, keepdims=True)
        good = (np.isfinite(scaled) & (scaled >= 0)).all(axis=-1, keepdims=True)
        laws.append(np.where(good, scaled, 1 / rows.shape[-1]))
    return laws[0], laws[1]


def _positive_required(rounds: Rounds) -> tuple[Floats, Floats]:
    p, q = checked(rounds)
    if (p <= 0).any():
        raise ValueError("logits must be finite")
    return p, q


def _unnamed_row(rounds: Rounds) -> tuple[Floats, Floats]:
    try:
        return checked(rounds)
    except ValueError:
        raise ValueError("invalid probabilities") from None


def _truncated(rounds: Rounds) -> tuple[Floats, Floats]:
    p, q = _unchecked(rounds)
    kept = p[..., : q.shape[-1]]
    return kept / kept.sum(axis=-1, keepdims=True), q


def _padded_evenly(rounds: Rounds) -> tuple[Floats, Floats]:
    p, q = _unchecked(rounds)
    missing = p.shape[-1] - q.shape[-1]
    widened = np.concatenate([q, np.full((*q.shape[:-1], missing), 1 / p.shape[-1])], axis=-1)
    return p, widened / widened.sum(axis=-1, keepdims=True)


def _needs_rows(rounds: Rounds, rng: np.random.Generator) -> Emitted:
    width = int(rounds.draft_ids.max()) + 1
    return CORE(rounds, draw_uniforms(rounds, rng)) if width else Emitted(rounds.draft_ids, rounds.draft_ids)


def _needs_drafts(rounds: Rounds, rng: np.random.Generator) -> Emitted:
    if rounds.count == 0:
        return CORE(rounds, draw_uniforms(rounds, rng))
    return CORE(rounds, draw_uniforms(rounds, rng)) if rounds.draft_ids[0, 0] >= -1 else Emitted([], [])


def _nothing_for_nothing(rounds: Rounds, rng: np.random.Generator) -> Emitted:
    if rounds.length == 0:
        return Emitted(np.zeros((rounds.count, 0), int), np.zeros(rounds.count, int))
    return CORE(rounds, draw_uniforms(rounds, rng))


def stopping_at(trim: Callable[[Integers, Integers, int], Integers]) -> Callable[..., Emitted]:
    """A sampler with an end token; `trim` says how many drafts stay, from tokens, accepted and the end token."""

    def sampler(rounds: Rounds, rng: np.random.Generator, *, end: int = -1) -> Emitted:
        emitted = CORE(rounds, draw_uniforms(rounds, rng))
        tokens = np.asarray(emitted.tokens)
        return Emitted(tokens, trim(tokens, np.asarray(emitted.accepted), end))

    return sampler


def at_end(tokens: Integers, accepted: Integers, end: int) -> Integers:
    """Accepted drafts before an end token among the drafts; the end token itself is the last one emitted."""
    found = tokens[:, :-1] == end
    return np.minimum(accepted, np.where(found.any(axis=1), found.argmax(axis=1), accepted))


def _end_ignored(tokens: Integers, accepted: Integers, end: int) -> Integers:
    return accepted


def _end_dropped(tokens: Integers, accepted: Integers, end: int) -> Integers:
    return np.maximum(at_end(tokens, accepted, end) - 1, 0)


def _one_past_end(tokens: Integers, accepted: Integers, end: int) -> Integers:
    return np.minimum(accepted, at_end(tokens, accepted, end) + 1)


def guided(cond: Floats, uncond: Floats, scale: float) -> Floats:
    """Guided logits: uncond + scale·(cond − uncond), −inf where both are or where the one that counts is."""
    if scale in (0, 1):
        return cond if scale == 1 else uncond
    blocked = np.isneginf(cond) | np.isneginf(uncond)
    with np.errstate(invalid="ignore"):
        return np.where(blocked, -np.inf, uncond + scale * (cond - uncond))


def _plainly_guided(cond: Floats, uncond: Floats, scale: float) -> Floats:
    return uncond + scale * (cond - uncond)


def _guided_from_cond(cond: Floats, uncond: Floats, scale: float) -> Floats:
    found = cond + scale * (cond - uncond)
    return np.where(np.isnan(found), -np.inf, found)


def _guided_with_floor(cond: Floats, uncond: Floats, scale: float) -> Floats:
    cond, uncond = (np.maximum(logits, -1e4) for logits in (cond, uncond))
    return uncond + scale * (cond - uncond)


def best_of_one(p: Floats, q: Floats) -> tuple[float, float]:
    """Largest acceptance of one draft, (primal, dual), from float32 marginals."""
    laws = [np.asarray(law, np.float64) / np.asarray(law, np.float64).sum() for law in (p, q)]
    value = float(np.clip(np.minimum(*laws).sum(), 0.0, 1.0))
    return value, value


def _objective_in_float32(p: Floats, q: Floats) -> tuple[float, float]:
    value = float(np.minimum(p, q).sum(dtype=np.float32))
    return value, value


def _slightly_negative(p: Floats, q: Floats) -> tuple[float, float]:
    value = best_of_one(p, q)[0]
    return value - 1e-9, value


def _above_its_dual(p: Floats, q: Floats) -> tuple[float, float]:
    value = best_of_one(p, q)[0]
    return value + 1e-8, value


def chi_square_test(tokens: Integers, law: Floats) -> bool:
    """Pearson's test at false-alarm level 1e-9."""
    from scipy.stats import chisquare

    counts = np.bincount(tokens, minlength=len(law))
    return bool(chisquare(counts, len(tokens) * law).pvalue >= 1e-9)


def _wide_tolerance(tokens: Integers, law: Floats) -> bool:
    return bool(np.allclose(np.bincount(tokens, minlength=len(law)) / len(tokens), law, atol=0.2))


def _support_only(tokens: Integers, law: Floats) -> bool:
    return bool((law[tokens] > 0).all())


def _result_not_asserted(tokens: Integers, law: Floats) -> bool:
    np.allclose(np.bincount(tokens, minlength=len(law)) / len(tokens), law, atol=0.01)
    return True


def _few_tokens(tokens: Integers, law: Floats) -> bool:
    return chi_square_test(tokens[:100], law)


def _with_laws(name: str, kind: str, laws: Any, probe: str) -> Mutant:
    return Mutant(name, kind, drawing(TokenWise(laws=laws)), probe)


MUTANTS: tuple[Mutant, ...] = (
    Mutant("seeds itself with 0", SEEDS, _own_seed, "seeds"),
    Mutant("draws from the global generator", SEEDS, _global_generator, "seeds"),
    Mutant("draws from the operating system", SEEDS, _operating_system, "seeds"),
    Mutant("keeps its first generator", SEEDS, KeptGenerator(), "seeds"),
    _with_laws("target rows of the batch's first row", SEEDS, _first_row, "rows apart"),
    _with_laws("target rows of the row before", SEEDS, _next_row, "rows apart"),
    Mutant("residual mixed over the batch", SEEDS, drawing(TokenWise(residual=_batch_total)), "rows apart"),
    Mutant("all rows cut to the shortest", SEEDS, drawing(TokenWise(count=_shortest)), "rows apart"),
    Mutant("−1 read as the last id", "placeholders", _wrapped_placeholders, "placeholders"),
    Mutant("−1 passed over as accepted", "placeholders", _skipped_placeholders, "placeholders"),
    _with_laws("bad rows not looked at", BAD_ROWS, _unchecked, "no laws"),
    _with_laws("nan taken as 0", BAD_ROWS, _zeros_for_nan, "no laws"),
    _with_laws("bad rows made uniform", BAD_ROWS, _uniform_for_bad, "no laws"),
    _with_laws("zeros refused", BAD_ROWS, _positive_required, "no laws"),
    _with_laws("bad row not named", BAD_ROWS, _unnamed_row, "no laws"),
    _with_laws("target cut to the draft's ids", VOCABULARY, _truncated, "vocabularies"),
    _with_laws("draft padded with mass", VOCABULARY, _padded_evenly, "vocabularies"),
    Mutant("largest id of no rows", SHAPES, _needs_rows, "empty batch"),
    Mutant("first draft of no drafts", SHAPES, _needs_drafts, "empty batch"),
    Mutant("no drafts, no token", SHAPES, _nothing_for_nothing, "empty batch"),
    Mutant("end token passed over", "end token inside a block", stopping_at(_end_ignored), "end token"),
    Mutant("end token dropped", "end token inside a block", stopping_at(_end_dropped), "end token"),
    Mutant("one token behind the end", "end token inside a block", stopping_at(_one_past_end), "end token"),
    Mutant("−inf less −inf", "guidance with −inf logits", _plainly_guided, "guidance"),
    Mutant("guidance counted from cond", "guidance with −inf logits", _guided_from_cond, "guidance"),
    Mutant("−inf floored to −10⁴", "guidance with −inf logits", _guided_with_floor, "guidance"),
    Mutant("objective of float32 marginals", "a solver's slack read as truth", _objective_in_float32, "solver values"),
    Mutant("slightly negative optimum", "a solver's slack read as truth", _slightly_negative, "solver values"),
    Mutant("primal above its dual", "a solver's slack read as truth", _above_its_dual, "solver values"),
    Mutant("shares within .2", "a test without power", _wide_tolerance, "power of a test"),
    Mutant("support alone", "a test without power", _support_only, "power of a test"),
    Mutant("comparison not asserted", "a test without power", _result_not_asserted, "power of a test"),
    Mutant("a hundred tokens", "a test without power", _few_tokens, "power of a test"),
)
