"""Rounds and sequences drawn from tables: one draw a token, whatever happens in the round.

A token-wise verifier at position i of a round and prefix c emits x in one of two ways, as an accepted draft with mass
q f_i(x|c), or as a replacement with mass R_i G_i(x|c). These 2V masses sum to one. Drawing one of them is drawing the
position's outcome: the law of (token, accepted) is that of drafting, comparing and replacing; which token was drafted
and refused is integrated out. Decoding is then a walk over states (position in the round, prefix), the position going
to i + 1 after an accepted draft and to 0 after any other token; one call ends at each return to 0. A round cut off by
the end of the sequence is the same walk, stopped.

Prefixes that both chains cannot tell apart share a state: one for independent tokens, V for Markov chains, all of them
for tables. Each state is an alias table (`simulate.alias`).

>>> p, q = theory.IIDChain([0.5, 0.3, 0.2]), theory.IIDChain([0.2, 0.3, 0.5])
>>> walk = Plan(p, q, 2, 3, repeat=False).build(theory.Verifier(theory.Lossless()))
>>> tokens, places = walk.run(walk.start(np.zeros((1, 0), int), 4), np.random.default_rng(0))
>>> tokens.shape, places[:, 0].tolist()
((4, 3), [0, 1, 2, -1])
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np

import theory
from simulate.alias import RECORD, alias_records
from simulate.laws import Integers, laws_after

Merge: TypeAlias = Literal["all", "last", "none"]
"""What of a prefix both chains look at: every token, the last one, nothing."""

LARGEST_RECORDS = 2**24
"""Most bins of all states together: 16 bytes each, 256 MiB."""
ROWS_AT_ONCE = 2**13
"""Rows walked together: their numbers and codes stay in second-level cache (.34 µs a round at 2^11, .12 at 2^13)."""
ENTRIES_AT_ONCE = 2**20
"""Masses turned into bins together; the working arrays of this step take about 100 bytes an entry."""
CONTINUED = -1
"""The "position" of a token drawn from the target after the round has ended, where rounds are not repeated."""


def merge_of(target: theory.Chain, draft: theory.Chain) -> Merge | None:
    """What of a prefix a pair of chains looks at; None for kinds of chains whose prefixes are not enumerated."""
    pair = (target, draft)
    if all(isinstance(chain, theory.IIDChain) for chain in pair):
        return "none"
    if all(isinstance(chain, (theory.IIDChain, theory.MarkovChain)) for chain in pair):
        return "last"
    known = (theory.IIDChain, theory.MarkovChain, theory.TabularChain)
    return "all" if all(isinstance(chain, known) for chain in pair) else None


@dataclass(frozen=True)
class _Group:
    """States of one position in the round and one layer of prefixes."""

    place: int
    layer: int
    first: int
    """Number of its first state."""
    states: int
    final: bool
    """No token is drawn from here."""


@dataclass(frozen=True, eq=False)
class Plan:
    """Which states a walk has, before any table is built.

    Parameters
    ----------
    target, draft : theory.Chain
        Independent, Markov or tabular, of one vocabulary and deep enough.
    length : int
        L.
    steps : int
        Tokens of the walk.
    repeat : bool
        A new round begins where one ends; else the target continues.
    depth : int
        Tokens before the walk.

    Attributes
    ----------
    records : int
        Bins of all tables together: their cost is 16 bytes and about .2 µs each. ValueError from `build` above
        `LARGEST_RECORDS`.
    """

    target: theory.Chain
    draft: theory.Chain
    length: int
    steps: int
    repeat: bool
    depth: int = 0
    merge: Merge = field(init=False)
    bits: int = field(init=False)
    groups: dict[tuple[int, int], _Group] = field(init=False)

    def __post_init__(self) -> None:
        merge = merge_of(self.target, self.draft)
        if merge is None:
            raise TypeError(
                f"tables are for IIDChain, MarkovChain and TabularChain, not {type(self.target).__name__} and "
                f"{type(self.draft).__name__}"
            )
        object.__setattr__(self, "merge", merge)
        object.__setattr__(self, "bits", max(1, (2 * self.target.vocab_size - 1).bit_length()))
        # Groups in order of discovery; those of the continuation first, so that accepted drafts have larger codes.
        found = {(0, self.layer_at(self.depth)): 0}
        newest = list(found)
        for step in range(1, self.steps + 1):
            layer = self.layer_at(self.depth + step)
            reached = {(place, layer) for group in newest for place in self._places_after(group[0])}
            newest = sorted(reached - found.keys())
            found.update(dict.fromkeys(newest, step))
        groups, first = {}, 0
        for place, layer in sorted(found, key=lambda key: (key[0] != CONTINUED, found[key])):
            final = found[place, layer] == self.steps
            states = 1 if final else self.classes(layer)
            groups[place, layer] = _Group(place, layer, first, states, final)
            first += states
        object.__setattr__(self, "groups", groups)

    def _places_after(self, place: int) -> tuple[int, ...]:
        ended = 0 if self.repeat else CONTINUED
        return (place + 1, ended) if 0 <= place < self.length else (ended,)

    def layer_at(self, depth: int) -> int:
        """Which layer of prefixes a prefix of this many tokens belongs to."""
        return {"none": 0, "last": min(depth, 1), "all": depth}[self.merge]

    def classes(self, layer: int) -> int:
        """Prefixes of a layer that are kept apart."""
        return int(self.target.vocab_size**layer)

    @property
    def records(self) -> int:
        return sum(group.states for group in self.groups.values() if not group.final) << self.bits

    def build(self, verifier: theory.AnyVerifier) -> Walk:
        """The tables of a token-wise verifier.

        Raises
        ------
        ValueError
            If the tables are too large, or from the verifier.
        """
        if verifier.stateful:
            raise ValueError(f"{verifier} carries a weight along the round; tables are for token-wise verifiers")
        if self.records > LARGEST_RECORDS:
            raise ValueError(f"the tables need {self.records} bins, more than {LARGEST_RECORDS}")
        size, ended = self.target.vocab_size, 0 if self.repeat else CONTINUED
        states = sum(group.states for group in self.groups.values())
        records = np.zeros((states, 2**self.bits), dtype=RECORD)
        block = max(1, ENTRIES_AT_ONCE >> self.bits)
        for group in self.groups.values():
            following = self.layer_at(self.depth + self._step_of(group) + 1) if not group.final else 0
            for start in range(0, 0 if group.final else group.states, block):
                rows = np.arange(start, min(start + block, group.states))
                prefixes = _prefixes(rows, size, group.layer)
                p = laws_after(self.target, prefixes)
                if not 0 <= group.place < self.length:
                    masses = p
                    codes = self._codes(self.groups[ended, following], rows)
                else:
                    step = verifier.step(p, laws_after(self.draft, prefixes), group.place)
                    masses = np.concatenate([step.accepted, step.rejection[:, None] * step.residual], axis=1)
                    nexts = (self.groups[place, following] for place in (group.place + 1, ended))
                    codes = np.concatenate([self._codes(after, rows) for after in nexts], axis=1)
                records[group.first + rows] = alias_records(masses, codes, self.bits)
        places = np.repeat(
            np.asarray([group.place for group in self.groups.values()], dtype=np.int16),
            [group.states for group in self.groups.values()],
        )
        return Walk(self, records.reshape(-1), places)

    def _step_of(self, group: _Group) -> int:
        return group.layer - self.depth if self.merge == "all" else group.layer

    def _codes(self, group: _Group, rows: Integers) -> np.ndarray[Any, Any]:
        """State reached by each token after each prefix, in the high bits, and the token, in the low ones."""
        tokens = np.arange(self.target.vocab_size)
        after = {"none": 0 * tokens, "last": tokens, "all": rows[:, None] * self.target.vocab_size + tokens}[self.merge]
        states = group.first + (0 if group.final else 1) * after
        return np.broadcast_to((states << self.bits) + tokens, (len(rows), len(tokens))).astype(np.uint32)


def _prefixes(rows: Integers, size: int, length: int) -> Integers:
    """The prefixes with these lexicographic numbers, shape (len(rows), length)."""
    return rows[:, None] // size ** np.arange(length - 1, -1, -1) % size


@dataclass(frozen=True, eq=False)
class Walk:
    """The tables of a plan; `run` draws from them."""

    plan: Plan
    records: np.ndarray[Any, Any] = field(repr=False)
    places: np.ndarray[Any, Any] = field(repr=False)
    """Position in the round of every state."""

    def start(self, prefix: Integers, count: int) -> np.ndarray[Any, Any]:
        """Codes of the states after given prefixes, shape (1, d) or (B, d); shape (B,)."""
        plan = self.plan
        group = plan.groups[0, plan.layer_at(plan.depth)]
        seen = prefix[:, prefix.shape[1] - group.layer :]
        rows = seen @ plan.target.vocab_size ** np.arange(group.layer - 1, -1, -1)
        return np.broadcast_to(np.asarray((group.first + rows) << plan.bits, dtype=np.uint32), (count,))

    def codes(self, start: np.ndarray[Any, Any], rng: np.random.Generator) -> np.ndarray[Any, Any]:
        """States and tokens of a few rows, shape (T, n): one draw and one record a token."""
        plan, count = self.plan, len(start)
        shift, state_bits = np.uint64(64 - plan.bits), np.uint32(2**32 - 2**plan.bits)
        drawn = rng.integers(0, 2**64 - 1, (plan.steps, count), dtype=np.uint64, endpoint=True)
        out = np.empty((plan.steps, count), dtype=np.uint32)
        found, index = np.empty(count, dtype=RECORD), np.empty(count, dtype=np.int64)
        state, below = np.bitwise_and(start, state_bits), np.empty(count, dtype=np.bool_)
        for u, code in zip(drawn, out, strict=True):
            np.right_shift(u, shift, out=index.view(np.uint64))
            np.add(index, state, out=index)
            self.records.take(index, out=found, mode="clip")
            np.less(u, found["threshold"], out=below)
            code[:] = np.where(below, found["below"], found["above"])
            np.bitwise_and(code, state_bits, out=state)
        return out

    def run(self, start: np.ndarray[Any, Any], rng: np.random.Generator) -> tuple[Integers, np.ndarray[Any, Any]]:
        """Tokens (B, T) and the position in the round of each step and after the last one, (T+1, B)."""
        count, steps, bits = len(start), self.plan.steps, self.plan.bits
        tokens = np.empty((count, steps), dtype=np.int64)
        places = np.empty((steps + 1, count), dtype=np.int16)
        for first in range(0, count, ROWS_AT_ONCE):
            rows = slice(first, min(first + ROWS_AT_ONCE, count))
            codes = self.codes(start[rows], rng)
            tokens[rows] = (codes & np.uint32(2**bits - 1)).T
            places[0, rows] = 0
            places[1:, rows] = self.places[codes >> np.uint32(bits)]
        return tokens, places

    def rounds(self, start: np.ndarray[Any, Any], rng: np.random.Generator) -> tuple[Integers, Integers]:
        """Tokens (B, L+1) of rounds that are not repeated, and accepted drafts (B,)."""
        count, steps, bits = len(start), self.plan.steps, self.plan.bits
        tokens, accepted = np.empty((count, steps), dtype=np.int64), np.empty(count, dtype=np.int64)
        in_round = np.uint32(min(g.first for g in self.plan.groups.values() if g.place != CONTINUED) << bits)
        for first in range(0, count, ROWS_AT_ONCE):
            rows = slice(first, min(first + ROWS_AT_ONCE, count))
            codes = self.codes(start[rows], rng)
            tokens[rows] = (codes & np.uint32(2**bits - 1)).T
            accepted[rows] = np.sum((codes >= in_round).view(np.uint8), axis=0, dtype=np.uint16)
        return tokens, accepted
