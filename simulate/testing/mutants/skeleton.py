"""Two correct verifiers with replaceable pieces: a mutant is one of them with one piece exchanged.

`TokenWise`: accept x_i while u_i < f_i = min(1, p/q), else draw from Norm[p − q]_+; after L acceptances draw from p.
`Blockwise` (Sun et al. 2024): carry s, s' = min(1, s p/q); index i succeeds if u_i < h_i = M_i/(M_i + 1 − s_i),
M_i = Σ [s_i p − q]_+ (0/0 = 1), h_L = s_L; the last success τ stays and the next token comes from Norm[s_τ p − q]_+.

Both are written in NumPy over a whole batch, apart from the project's own verifiers, which the exact laws come from:
an error shared by both would hide.

>>> from theory import IIDChain, analyse_round, block
>>> from simulate.testing.exact_mode import exact_law
>>> p, q = IIDChain([1 / 3, 2 / 3]), IIDChain([2 / 3, 1 / 3])
>>> found = exact_law(Blockwise(), p, q, 2)
>>> round(9 * found.expected_accepted, 12), found.total_variation(analyse_round(p, q, block(2), 2).target_law) < 1e-15
(11.0, True)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from simulate.testing.protocol import Emitted, Floats, Integers, Rounds
from simulate.testing.uniforms import Uniforms

NONE = np.zeros(0)


def at(laws: Floats, x: Integers) -> Floats:
    """Mass of each token x, shape (...), under laws (..., V)."""
    return np.take_along_axis(laws, np.maximum(x, 0)[..., None], axis=-1)[..., 0]


def checked(rounds: Rounds) -> tuple[Floats, Floats]:
    """p (B, L+1, V) and q (B, L, V) in float64, normalised once; ValueError naming the first row that is no law.

    A narrow row may miss one by the square root of its machine epsilon; float32 rows converted to float64 no longer
    say so, hence the float32 tolerance for all.
    """
    laws = []
    for name, rows in (("target", rounds.target_probs), ("draft", rounds.draft_probs)):
        values = np.asarray(rows, dtype=np.float64)
        total = values.sum(axis=-1, keepdims=True)
        good = (np.isfinite(values) & (values >= 0)).all(axis=-1) & (abs(total[..., 0] - 1) < 3.5e-4)
        if not good.all():
            row = np.argwhere(~good)[0].tolist()
            raise ValueError(f"{name} row {row[0]}, place {row[1]} is no probability law: {values[tuple(row)]}")
        laws.append(values / total)
    if laws[0].shape[-1] != laws[1].shape[-1] and rounds.length:
        raise ValueError(f"the target has {laws[0].shape[-1]} tokens, the draft {laws[1].shape[-1]}")
    return laws[0], laws[1]


def ratio(p: Floats, q: Floats, x: Integers) -> Floats:
    """min(1, p(x)/q(x)); laws (B, L, V), x (B, L)."""
    mass, drafted = at(p, x), at(q, x)
    return np.minimum(mass, drafted) / np.where(drafted > 0, drafted, 1.0)


def strictly(u: Floats, f: Floats) -> Any:
    """u < f."""
    return u < f


def leading(flags: Any) -> Any:
    """Acceptances before the first rejection; flags (B, L)."""
    return np.cumprod(flags, axis=1, dtype=np.int64).sum(axis=1)


def lossless_residual(p: Floats, q: Floats, x: Integers) -> Floats:
    """Norm[p − q]_+, or p where that is empty; laws (B, V), rejected tokens x (B,)."""
    return normalised(np.maximum(p - q, 0.0), p)


def without(law: Floats, x: Integers) -> Floats:
    """A law without the token x, renormalised; law (B, V), x (B,)."""
    left = law.copy()
    np.put_along_axis(left, x[:, None], 0.0, axis=-1)
    return normalised(left, law)


def normalised(masses: Floats, otherwise: Floats) -> Floats:
    """Masses divided by their sum, or another law where the sum is rounding noise."""
    total = masses.sum(axis=-1, keepdims=True)
    empty = total <= 4 * np.finfo(float).eps
    return np.where(empty, otherwise, masses / np.where(empty, 1.0, total))


def last_row(p: Floats) -> Floats:
    """The law after the whole block; p (B, L+1, V)."""
    return p[:, -1]


def inverse_cdf(law: Floats, u: Floats) -> Any:
    """The first token of positive mass whose partial sum exceeds u times the whole sum."""
    sums = law.cumsum(axis=-1)
    past = (law > 0) & (sums > u[:, None] * sums[:, -1:])
    final = law.shape[-1] - 1 - np.argmax((law > 0)[:, ::-1], axis=-1)
    return np.where(past.any(axis=-1), past.argmax(axis=-1), final)


def emit(x: Integers, accepted: Integers, token: Integers) -> Emitted:
    """The first `accepted` drafts and then the token; −1 behind."""
    tokens = np.concatenate([x, np.full((len(x), 1), -1)], axis=1)
    place = np.arange(tokens.shape[1])
    return Emitted(
        np.where(place < accepted[:, None], tokens, np.where(place == accepted[:, None], token[:, None], -1)), accepted
    )


@dataclass(frozen=True)
class TokenWise:
    """Token-wise lossless verification, piece by piece."""

    laws: Callable[[Rounds], tuple[Floats, Floats]] = checked
    ratio: Callable[[Floats, Floats, Integers], Floats] = ratio
    accepts: Callable[[Floats, Floats], Any] = strictly
    count: Callable[[Any], Integers] = leading
    residual: Callable[[Floats, Floats, Integers], Floats] = lossless_residual
    bonus: Callable[[Floats], Floats] = last_row
    draw: Callable[[Floats, Floats], Integers] = inverse_cdf
    emit: Callable[[Integers, Integers, Integers], Emitted] = emit
    uniforms: Callable[[Uniforms], Uniforms] = lambda u: u

    def __call__(self, rounds: Rounds, uniforms: Uniforms) -> Emitted:
        """Verify a batch."""
        p, q = self.laws(rounds)
        x, u = np.asarray(rounds.draft_ids), self.uniforms(uniforms)
        rows = np.arange(rounds.count)
        if rounds.length == 0:
            return self.emit(x, np.zeros(rounds.count, np.int64), self.draw(self.bonus(p), u.final))
        accepted = self.count(self.accepts(u.acceptance, self.ratio(p[:, :-1], q, x)) & (x >= 0))
        place = np.minimum(accepted, rounds.length - 1)
        own, drafted, rejected = p[rows, place], q[rows, place], x[rows, place]
        residual = np.where((rejected < 0)[:, None], own, self.residual(own, drafted, rejected))
        law = np.where((accepted == rounds.length)[:, None], self.bonus(p), residual)
        return self.emit(x, accepted, self.draw(law, u.final))


def carried(s: Floats, p: Floats, q: Floats, x: Integers) -> Floats:
    """s' = min(1, s p/q) of the drafted token; s (B,), laws (B, V)."""
    drafted = at(q, x)
    return np.minimum(s * at(p, x), drafted) / np.where(drafted > 0, drafted, 1.0)


def remainder(s: Floats, p: Floats, q: Floats) -> Any:
    """M = Σ [s p − q]_+."""
    return np.maximum(s[:, None] * p - q, 0.0).sum(axis=-1)


def success_of(left: Any, s: Floats, empty: float = 1.0) -> Floats:
    """h = M/(M + 1 − s) of a remainder M, and `empty` for 0/0."""
    refused = left + 1 - s
    return np.where(refused > 0, left / np.where(refused > 0, refused, 1.0), empty)


def success(s: Floats, p: Floats, q: Floats) -> Floats:
    """h of lossless block verification."""
    return success_of(remainder(s, p, q), s)


def block_residual(s: Floats, p: Floats, q: Floats, place: Integers) -> Floats:
    """Norm[s p − q]_+; the place (B,) in the block does not matter here."""
    return normalised(np.maximum(s[:, None] * p - q, 0.0), p)


def last_one(flags: Any) -> Any:
    """The largest index whose test succeeded, 0 if none did; flags (B, L) of indices 1…L."""
    return np.max(np.where(flags, np.arange(1, flags.shape[1] + 1), 0), axis=1, initial=0)


@dataclass(frozen=True)
class Blockwise:
    """Block verification, piece by piece."""

    weight: Callable[[Floats, Floats, Floats, Integers], Floats] = carried
    success: Callable[[Floats, Floats, Floats], Floats] = success
    last: Callable[[Floats], Floats] = lambda s: s
    count: Callable[[Any], Integers] = last_one
    residual: Callable[[Floats, Floats, Floats, Integers], Floats] = block_residual

    def __call__(self, rounds: Rounds, uniforms: Uniforms) -> Emitted:
        """Verify a batch."""
        p, q = checked(rounds)
        x, rows, length = np.asarray(rounds.draft_ids), np.arange(rounds.count), rounds.length
        weights, tests = [np.ones(rounds.count)], []
        for i in range(length):
            tests.append(self.success(weights[i], p[:, i], q[:, i]))
            weights.append(np.where(x[:, i] >= 0, self.weight(weights[i], p[:, i], q[:, i], x[:, i]), 0.0))
        tests.append(self.last(weights[length]))
        reached = np.cumprod(x >= 0, axis=1, dtype=bool)
        h = np.stack(tests, axis=1)[:, 1:]
        accepted = self.count((uniforms.acceptance < h) & reached)
        if length == 0:
            return emit(x, accepted, inverse_cdf(p[:, -1], uniforms.final))
        place = np.minimum(accepted, length - 1)
        s = np.stack(weights, axis=1)[rows, place]
        residual = self.residual(s, p[rows, place], q[rows, place], place)
        undrafted = (accepted < length) & (x[rows, place] < 0)
        law = np.where((undrafted | (accepted == length))[:, None], p[rows, accepted], residual)
        return emit(x, accepted, inverse_cdf(law, uniforms.final))
