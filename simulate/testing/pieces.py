"""Cells of uniforms on which a sampler's answer is constant.

The uniforms u = (u_1, …, u_L, u_final) of a drafted block are multiples of 2⁻⁵³. Answers that change across thresholds
of single uniforms only are constant on the cells of a grid of thresholds. Every uniform is scanned along lines through
the middles of the cells known so far, and a change between two neighbouring points is bisected down to neighbouring
multiples, until no scan finds another. `simulate.testing.exact_mode` says what is assumed, and what the probes check.

>>> from simulate.testing.mutants.skeleton import TokenWise
>>> half = Rounds(np.array([[0]]), np.full((1, 2, 2), 0.5), np.array([[[1.0, 0.0]]]))
>>> found = constant_pieces(TokenWise(), half)
>>> found.volumes.tolist(), found.tokens.tolist()
([0.25, 0.25, 0.25, 0.25], [[0, 0], [0, 1], [1, -1], [1, -1]])
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

import theory
from simulate.testing.calls import answer
from simulate.testing.protocol import Floats, Integers, Rounds
from simulate.testing.uniforms import Uniforms, UniformSampler
from theory.arrays import to_numpy

LATTICE = 2**53
"""Uniforms are k/2⁵³, k = 0…2⁵³ − 1, as ``Generator.random`` draws them."""

SCAN = 32
"""Intervals that every uniform is scanned in at least."""

ENTRIES_AT_ONCE = 2**20
"""Probabilities given to the sampler in one call."""

POINTS_AT_ONCE = 2**20
"""Coordinates of lattice points gathered for one call of the sampler, or a single block's if those are more."""

LARGEST_SCAN = 2**24
"""Most coordinates of the points that one block is scanned in, 128 MiB."""

GOLDEN = (0.6180339887498949, 0.7548776662466927, 0.8191725133961645, 0.8566748838545029)
"""Steps of additive sequences that spread probes over a cell (inverse roots of x^(d+1) = x + 1, d = 1…4)."""

MOST_CELLS = 2**16
"""Most cells of constant output. Four tokens and three drafts have some 2,500; thresholds that depend on the other
uniforms multiply with every scan and soon have more."""

PROBES = 3
"""Probes inside every cell, beside its two extreme corners."""


class NotPiecewise(ValueError):
    """The sampler is no function of single uniforms, row by row, and has no law of the kind computed here."""


@dataclass(frozen=True, eq=False)
class _Player:
    """Plays chosen blocks with chosen lattice points and encodes each answer as one integer."""

    sampler: UniformSampler
    rounds: Rounds

    def __call__(self, blocks: Integers, points: Integers) -> Integers:
        step = max(1, ENTRIES_AT_ONCE // self.rounds.target_probs[0].size)
        parts = [slice(at, at + step) for at in range(0, len(blocks), step)]
        return np.concatenate([np.zeros(0, np.int64), *(self._codes(blocks[s], points[s]) for s in parts)])

    def _codes(self, blocks: Integers, points: Integers) -> Integers:
        own = self.rounds
        rounds = Rounds(own.draft_ids[blocks], own.target_probs[blocks], own.draft_probs[blocks])
        u = points / LATTICE
        uniforms = Uniforms(u[:, :-1], u[:, -1])
        tokens, _ = answer(
            lambda: self.sampler(rounds, uniforms), len(blocks), own.length, own.vocab_size, rounds.draft_ids, None
        )
        return (tokens + 1) @ (own.vocab_size + 1) ** np.arange(own.length, -1, -1)

    def decode(self, codes: Integers) -> Integers:
        base = self.rounds.vocab_size + 1
        return codes[:, None] // base ** np.arange(self.rounds.length, -1, -1) % base - 1


def _candidates(p: Floats, q: Floats, x: Integers) -> tuple[list[Integers], Integers]:
    """Lattice points where each acceptance test may change, and where a draw may change, for one block."""
    f = to_numpy(theory.Lossless().acceptance(p[:-1], q, 0))
    residual = to_numpy(theory.optimal_residual(p[:-1], q, f))
    edges = np.cumsum(np.concatenate([p, q, residual]), axis=-1).ravel()
    own = np.take_along_axis(f, x[:, None], axis=-1)
    return [_lattice(row) for row in own], _lattice(edges)


def _lattice(values: Floats) -> Integers:
    return np.unique(np.clip(np.ceil(values * LATTICE), 0, LATTICE).astype(np.int64))


def _middles(breaks: Integers) -> Integers:
    return np.asarray(breaks[:-1] + (np.diff(breaks) - 1) // 2)


def _grid(axes: list[Integers]) -> Integers:
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))


def _scan(breaks: list[Integers], axis: int, extra: Integers) -> tuple[Integers, Integers]:
    """Points on every line along `axis` through the cells of the other axes (lines, points, L+1); intervals (points,).

    Both ends of every known interval are among the points, so that between them nothing of the line is left out.
    """
    own = breaks[axis]
    even = np.arange(0, LATTICE, LATTICE // SCAN)
    along = np.unique(np.concatenate([own[:-1], own[1:] - 1, extra, extra - 1, even, _middles(np.union1d(own, extra))]))
    along = along[(along >= 0) & (along < LATTICE)]
    lines = _grid([_middles(b) if k != axis else np.zeros(1, np.int64) for k, b in enumerate(breaks)])
    if lines.size * len(along) > LARGEST_SCAN:
        raise NotPiecewise(
            f"the law needs {len(lines)} scans of {len(along)} points for one drafted block; use a smaller chain here "
            "and assert_law on this one"
        )
    points = np.repeat(lines[:, None, :], len(along), axis=1)
    points[:, :, axis] = along
    return points, np.searchsorted(own, along, side="right")


def _bisect(play: _Player, blocks: Integers, low: Integers, high: Integers, axis: int) -> Integers:
    """The first lattice point of the answer found at `high`'s end, one for each pair of differing points."""
    left, right = low[:, axis].copy(), high[:, axis].copy()
    at_left = play(blocks, low)
    point = low.copy()
    while len(blocks) and int((right - left).max()) > 1:
        point[:, axis] = left + (right - left) // 2
        same = play(blocks, point) == at_left
        left, right = np.where(same, point[:, axis], left), np.where(same, right, point[:, axis])
    return right


def _refine(play: _Player, breaks: list[list[Integers]], axis: int, extra: list[Integers]) -> bool:
    """Add the thresholds of one uniform that the known cells do not explain; whether there were any."""
    lows, highs, owners = [], [], []
    for block, points, interval, codes in _played(play, breaks, axis, extra):
        differ = (codes[:, 1:] != codes[:, :-1]) & (interval[1:] == interval[:-1])
        lows.append(points[:, :-1][differ])
        highs.append(points[:, 1:][differ])
        owners.append(np.full(int(differ.sum()), block))
    blocks = np.concatenate(owners)
    found = _bisect(play, blocks, np.concatenate(lows), np.concatenate(highs), axis)
    for block in np.unique(blocks):
        breaks[block][axis] = np.union1d(breaks[block][axis], found[blocks == block])
    return bool(len(blocks))


def _played(
    play: _Player, breaks: list[list[Integers]], axis: int, extra: list[Integers]
) -> Iterator[tuple[int, Integers, Integers, Integers]]:
    if _cells(breaks) > MOST_CELLS:
        raise NotPiecewise(
            f"the thresholds of uniform {axis} change with the other uniforms (or from call to call), so that the "
            "answer has no constant pieces; test the sampler with assert_law instead"
        )
    waiting: list[tuple[int, Integers, Integers]] = []
    for block, (own, more) in enumerate(zip(breaks, extra, strict=True)):
        waiting.append((block, *_scan(own, axis, more)))
        if block + 1 < len(breaks) and sum(points.size for _, points, _ in waiting) < POINTS_AT_ONCE:
            continue
        sizes = [points.shape[0] * points.shape[1] for _, points, _ in waiting]
        owners = np.repeat([known for known, _, _ in waiting], sizes)
        codes = play(owners, np.concatenate([points.reshape(-1, len(own)) for _, points, _ in waiting]))
        parts = np.split(codes, np.cumsum(sizes)[:-1])
        for (known, points, interval), part in zip(waiting, parts, strict=True):
            yield known, points, interval, part.reshape(points.shape[:2])
        waiting = []


def _cells(breaks: list[list[Integers]]) -> int:
    return sum(math.prod(len(b) - 1 for b in own) for own in breaks)


def _check_repeatable(play: _Player) -> None:
    """Raise where points spread over [0, 1)^(L+1) are answered otherwise when asked again in another order."""
    count, axes = len(play.rounds.draft_ids), play.rounds.length + 1
    blocks = np.repeat(np.arange(count), SCAN)
    steps = np.resize(GOLDEN, axes)[None] * np.arange(1, len(blocks) + 1)[:, None] + np.arange(axes) / axes
    points = (steps % 1 * LATTICE).astype(np.int64)
    order = np.arange(len(blocks))[::-1]
    again = np.empty(len(blocks), dtype=np.int64)
    first, again[order] = play(blocks, points), play(blocks[order], points[order])
    _refuse_difference(play, blocks, points, points, first, again, "asked again among other rows")


def _refuse_difference(
    play: _Player, blocks: Integers, points: Integers, others: Integers, codes: Integers, found: Integers, name: str
) -> None:
    wrong = np.flatnonzero(found != codes)
    if len(wrong):
        row = slice(wrong[0], wrong[0] + 1)
        raise NotPiecewise(
            f"drafted block {play.rounds.draft_ids[blocks[row]][0].tolist()}: uniforms "
            f"{(points[row] / LATTICE)[0].tolist()} gave {play.decode(codes[row])[0].tolist()}, "
            f"{(others[row] / LATTICE)[0].tolist()} ({name}) gave {play.decode(found[row])[0].tolist()}; the answer "
            "must depend on thresholds of single uniforms of its own row only. Test the sampler with assert_law instead"
        )


def _check_cells(play: _Player, blocks: Integers, lows: Integers, sides: Integers, codes: Integers) -> None:
    """Raise where a cell's answer is not the same at its middle again, at its corners and at probes within."""
    middles = lows + (sides - 1) // 2
    order = np.arange(len(blocks))[::-1]
    again = np.empty_like(codes)
    again[order] = play(blocks[order], middles[order])
    _refuse_difference(play, blocks, middles, middles, codes, again, "asked again among other rows")
    spread = np.resize(GOLDEN, lows.shape[1])
    shares = [((k + 1) * spread + np.arange(len(blocks))[:, None] * spread[::-1]) % 1 for k in range(PROBES)]
    inside = [lows + np.minimum((share * sides).astype(np.int64), sides - 1) for share in shares]
    for points in (lows, lows + sides - 1, *inside):
        _refuse_difference(play, blocks, middles, points, codes, play(blocks, points), "in the same cell")


class Pieces(NamedTuple):
    """Cells of constant answer of every block; see `constant_pieces`."""

    blocks: Integers
    """Shape (n,): the row of the batch that a cell belongs to."""
    volumes: Floats
    """Shape (n,), summing to one for each row."""
    tokens: Integers
    """Shape (n, L+1): the answer, −1 behind its end."""


def constant_pieces(sampler: UniformSampler, rounds: Rounds) -> Pieces:
    """Cells of uniforms on which the answer to each row is constant.

    Raises
    ------
    NotPiecewise
        If a probe finds that the answer is not constant where it should be, naming block and uniforms.
    BadAnswer
        For an answer that is none, naming the row.
    ValueError
        For more than `MOST_CELLS` cells to begin with.
    """
    play = _Player(sampler, rounds)
    found = [_candidates(*row) for row in zip(rounds.target_probs, rounds.draft_probs, rounds.draft_ids, strict=True)]
    ends = np.array([0, LATTICE])
    breaks = [[*(np.union1d(ends, own) for own in tests), ends] for tests, _ in found]
    edges = [draws for _, draws in found]
    if (known := _cells(breaks)) > MOST_CELLS:
        raise ValueError(
            f"{len(found)} blocks of {rounds.length} drafts over {rounds.vocab_size} ids have {known} cells, more than "
            f"{MOST_CELLS}; use a smaller chain or a shorter block here and assert_law on this one"
        )
    _check_repeatable(play)
    none, last = [np.zeros(0, np.int64)] * len(found), rounds.length
    while any([_refine(play, breaks, axis, edges if axis == last else none) for axis in range(last + 1)]):
        pass
    blocks = np.repeat(np.arange(len(breaks)), [_cells([own]) for own in breaks])
    lows = np.concatenate([_grid([b[:-1] for b in own]) for own in breaks])
    sides = np.concatenate([_grid([np.diff(b) for b in own]) for own in breaks])
    codes = play(blocks, lows + (sides - 1) // 2)
    _check_cells(play, blocks, lows, sides, codes)
    return Pieces(blocks, (sides / LATTICE).prod(axis=1), play.decode(codes))
