"""Many verifiers on one pair of chains: each token-wise rule is asked once, for all prefixes of a run together.

A step depends on p, q and the position alone, so that prefixes with the same laws are one row of one call, and the
recursions of round and sequence only look rows up. Members of a family that act alike (between two jumps) are measured
once.

>>> from theory.chains import IIDChain
>>> from theory.rules import Relaxed
>>> from theory.verifiers import Verifier
>>> run = KnownRun(IIDChain([0.25, 0.75]), IIDChain([0.75, 0.25]), 1, None)
>>> run.cost(Verifier(Relaxed(2.0))), run.analyse(Verifier(Relaxed(2.0))).total_variation
(1.75, 0.25)
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from theory.chains import Chain, joint_layers
from theory.rounds import RoundAnalysis, analyse_round
from theory.rules import Position
from theory.sequences import SequenceAnalysis, advance_offsets, analyse_sequence
from theory.verifiers import AnyVerifier, Step


@dataclass(frozen=True, eq=False)
class KnownVerifier:
    """A token-wise verifier whose steps at every prefix of a run are known."""

    run: KnownRun
    verifier: AnyVerifier
    accepted: np.ndarray[Any, Any]
    rejection: np.ndarray[Any, Any]
    residual: np.ndarray[Any, Any]
    stateful: ClassVar[bool] = False

    @property
    def lossless(self) -> bool:
        return self.verifier.lossless

    def step(self, p: Any, q: Any, position: Position, weight: Any = None) -> Step:
        rows = self.run.rows[p.tobytes(), q.tobytes()]
        at = (rows, position) if isinstance(position, int) else rows
        return Step(self.accepted[at], self.rejection[at], self.residual[at])


class KnownRun:
    """Costs and analyses of many verifiers on one pair of chains.

    Parameters
    ----------
    target, draft : Chain
        Small enough to enumerate `length` tokens, or `tokens`. NumPy only.
    length : int
        L.
    tokens : int or None
        T of whole sequences; None for one round.
    enumerate_prefixes : bool
        False for costs alone: chains that need no enumeration may then be of any length, and `analyse` is refused.

    Notes
    -----
    Oracle: `analyse_round` and `analyse_sequence` on the verifiers themselves.
    """

    def __init__(
        self, target: Chain, draft: Chain, length: int, tokens: int | None, enumerate_prefixes: bool = True
    ) -> None:
        self.chains, self.length, self.tokens = (target, draft), length, tokens
        count = length if tokens is None else tokens
        merged = list(joint_layers(target, draft, count))
        every = list(joint_layers(target, draft, count, enumerate_prefixes=True)) if enumerate_prefixes else []
        layers = [(np.asarray(layer.target), np.asarray(layer.draft)) for layer in (*merged, *every)]
        laws, where = np.unique(np.concatenate([np.stack(a, axis=1) for a in layers]), axis=0, return_inverse=True)
        self.p, self.q = laws[:, None, 0], laws[:, None, 1]
        found = np.split(where.reshape(-1), np.cumsum([len(p) for p, _ in layers])[:-1])
        self.layers = list(zip(merged, found, strict=False))
        self.rows: dict[tuple[bytes, bytes], Any] = {
            (p.tobytes(), q.tobytes()): rows for (p, q), rows in zip(layers, found, strict=True)
        }
        self.rows[self.p.tobytes(), self.q.tobytes()] = slice(None)
        self.costs: dict[bytes, float] = {}

    def asked(self, verifier: AnyVerifier) -> AnyVerifier:
        """The same verifier with its steps known; block verifiers, whose steps depend on more, as they are."""
        if verifier.stateful or isinstance(verifier, KnownVerifier):
            return verifier
        step = verifier.step(self.p, self.q, np.arange(self.length))
        shape = (len(self.p), self.length, self.p.shape[-1])
        accepted, residual = (np.broadcast_to(a, shape) for a in (step.accepted, step.residual))
        return KnownVerifier(self, verifier, accepted, np.broadcast_to(step.rejection, shape[:-1]), residual)

    def analyse_round(self, verifier: AnyVerifier) -> RoundAnalysis:
        return analyse_round(*self.chains, self.asked(verifier), self.length)

    def analyse(self, verifier: AnyVerifier) -> RoundAnalysis | SequenceAnalysis:
        if self.tokens is None:
            return self.analyse_round(verifier)
        return analyse_sequence(*self.chains, self.asked(verifier), self.length, self.tokens)

    def cost(self, verifier: AnyVerifier) -> float:
        """Tokens per call, without laws or divergences."""
        asked = self.asked(verifier)
        if not isinstance(asked, KnownVerifier):
            return float(self.analyse(asked).tokens_per_call)
        output = asked.accepted + asked.rejection[..., None] * asked.residual
        key = hashlib.sha256(asked.accepted.tobytes() + output.tobytes()).digest()
        if key not in self.costs:
            self.costs[key] = self._cost(asked.accepted, output)
        return self.costs[key]

    def _cost(self, accepted: np.ndarray[Any, Any], output: np.ndarray[Any, Any]) -> float:
        total = 0.0
        if self.tokens is None:
            mass: Any = np.ones(1)
            for i, (layer, rows) in enumerate(self.layers):
                mass = layer.fold(mass[:, None] * accepted[rows, i])
                total += mass.sum()
            return float(total + 1)
        mass = np.eye(1, self.length + 1)
        for layer, rows in self.layers:
            total += mass[:, 0].sum()
            mass = layer.fold(advance_offsets(mass, accepted[rows], output[rows], layer.target))
        return float(self.tokens / total)
