"""Correct samplers for every declared verifier, written from the definitions: what the kit itself must pass.

>>> import theory
>>> sampler = reference_sampler(theory.Verifier(theory.Lossless()))
>>> rounds = Rounds(np.array([[0, 1]]), np.full((1, 3, 2), 0.5), np.full((1, 2, 2), 0.5))
>>> sampler(rounds, np.random.default_rng(0)).accepted.tolist()  # p = q: everything is accepted
[2]
"""

from __future__ import annotations

import numpy as np

import theory
from simulate.decoding import decode_round
from simulate.draws import categorical, streams
from simulate.testing.protocol import Emitted, RoundDecoder, Rounds, Sampler
from theory.arrays import to_numpy


def reference_sampler(verifier: theory.AnyVerifier) -> Sampler:
    """A vectorised sampler of a declared verifier, token-wise or block. Placeholders (−1) are never accepted."""

    def sampler(rounds: Rounds, rng: np.random.Generator) -> Emitted:
        draws = streams(rng)
        count, length = rounds.count, rounds.length
        u = draws.acceptance.random((count, length))
        u_next = draws.residual.random(count)
        p, q = rounds.target_probs[:, :length], rounds.draft_probs
        real = np.logical_and.accumulate(rounds.draft_ids >= 0, axis=1)
        drafts = np.where(real, rounds.draft_ids, 0)
        weights = None
        if verifier.stateful:
            found = theory.accepted_drafts(verifier, drafts, p, q, u, real.sum(axis=1))
            accepted, weights = found.count, found.weights
        else:
            f = np.stack([theory.acceptance_of(verifier, p[:, i], q[:, i], i) for i in range(length)], axis=1)
            f = np.take_along_axis(f, drafts[:, :, None], axis=2)[:, :, 0]
            accepted = np.logical_and.accumulate((u < f) & real, axis=1).sum(axis=1)
        tokens = np.full((count, length + 1), -1)
        kept = np.arange(length) < accepted[:, None]
        tokens[:, :length][kept] = drafts[kept]
        law = rounds.target_probs[np.arange(count), accepted].copy()
        rows = np.flatnonzero(accepted < real.sum(axis=1))
        if len(rows):
            at = accepted[rows]
            weight = None if weights is None else weights[rows, at]
            law[rows] = to_numpy(verifier.step(p[rows, at], q[rows, at], at, weight).residual)
        tokens[np.arange(count), accepted] = categorical(law, u_next)
        return Emitted(tokens, accepted)

    return sampler


def reference_decoder(verifier: theory.AnyVerifier) -> RoundDecoder:
    """`simulate.decode_round` under the kit."""
    return RoundDecoder(
        lambda target, draft, length, count, rng: Emitted(*decode_round(target, draft, verifier, length, count, rng))
    )
