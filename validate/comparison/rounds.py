"""How far a rule stands from the frontier of the round's bound, on rounds drafted behind the target's own prefixes.

The frontier of token-wise rules is known between the two sides of `theory.drafted_frontier`, and so is a rule's
*gap* at its own B, the frontier's N less its own. Block rules are not
token-wise, and their gap may be negative.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

import theory
from simulate.draws import categorical
from simulate.intervals import Interval, mean_interval
from theory import AnyVerifier
from theory.distances import total_variation
from theory.drafted_frontier import lower_side, upper_side
from validate.decoding import decode_one_round
from validate.measurement import Baseline
from validate.models import Pair
from validate.prediction import start_probabilities
from validate.scoring import score

__all__ = ["DraftedRounds", "draft_rounds", "frontier_gap"]

DRAFT_SEED = 3_000_017
"""Added to a run's seed, so that these drafts use noise of their own."""
REPEATS = 3
"""Rounds drafted behind each image of the target."""


@dataclass(frozen=True)
class DraftedRounds:
    """Drafted blocks behind prefixes of the target's images, with both laws along them.

    Attributes
    ----------
    tokens : int64 Tensor, shape (n, L)
    target_probs, draft_probs : float64 Tensor, shape (n, L, V)
    """

    tokens: Tensor
    target_probs: Tensor
    draft_probs: Tensor

    @property
    def lossless(self) -> np.ndarray:
        """a = min(1, p/q) at the drafted tokens, shape (n, L)."""
        p, q = (self._at(law) for law in (self.target_probs, self.draft_probs))
        return np.asarray(torch.clamp(p / q, max=1.0).cpu().numpy())

    def _at(self, law: Tensor) -> Tensor:
        return torch.take_along_dim(law, self.tokens[..., None], -1)[..., 0]

    def along(self, verifier: AnyVerifier) -> tuple[np.ndarray, np.ndarray]:
        """Terms of N and of B, one for each block, shape (n,) each."""
        running = torch.ones_like(self.target_probs[:, 0, 0])
        weight = torch.ones_like(running) if verifier.stateful else None
        kept, bound = torch.zeros_like(running), torch.zeros_like(running)
        for i in range(self.tokens.shape[1]):
            p, q, x = self.target_probs[:, i], self.draft_probs[:, i], self.tokens[:, i, None]
            step = verifier.step(p, q, i, weight)
            bound = bound + running * torch.as_tensor(total_variation(step.output, p))
            running = running * torch.take_along_dim(step.accepted / q, x, -1)[:, 0]
            kept = kept + running
            if verifier.stateful:
                weight = torch.take_along_dim(torch.as_tensor(step.weight), x, -1)[:, 0]
        return np.asarray(kept.cpu().numpy()), np.asarray(bound.cpu().numpy())


def draft_rounds(pair: Pair, length: int, baseline: Baseline, seed: int) -> DraftedRounds:
    """Blocks drafted behind the target's images, at places where rounds of lossless decoding start."""
    lossless, everything = (theory.Verifier(rule) for rule in (theory.Lossless(), theory.AcceptAll()))
    images = baseline.comparing
    count, total = images.tokens.shape
    weights = start_probabilities(baseline.predicting_scores, lossless, length)[: total - length]
    rng = np.random.default_rng([seed, DRAFT_SEED])
    found = []
    for repeat in range(REPEATS):
        start = categorical(np.tile(weights, (count, 1)), rng.random(count))
        tokens, _ = decode_one_round(
            pair, everything, length, images, start, seed=seed + DRAFT_SEED + repeat
        )  # every draft stays: the block is the draft's own
        places = torch.from_numpy(start[:, None] + np.arange(length)).to(pair.device)
        found.append(score(pair, replace(images, tokens=tokens)).at(places))
    return DraftedRounds(*(torch.cat(parts) for parts in zip(*found, strict=True)))


def frontier_gap(drafted: DraftedRounds, verifier: AnyVerifier, confidence: float = 0.95) -> dict[str, Interval]:
    """Accepted tokens a round that a verifier leaves on the table at its own B.

    Parameters
    ----------
    drafted : DraftedRounds
    verifier : AnyVerifier
    confidence : float

    Returns
    -------
    dict
        "round_bound"; "frontier_gap_least" and "frontier_gap_most", between which the gap to the frontier of token-wise
        rules lies; each with the interval of its own sampling error (λ and the coin are fitted to the same blocks).
    """
    accepted, bound = drafted.along(verifier)
    a = drafted.lossless
    overdraft = np.asarray(torch.as_tensor(total_variation(drafted.draft_probs, drafted.target_probs)).cpu().numpy())
    mean = float(bound.mean())
    upper, slope = upper_side(a, mean)
    # λ (B − mean B) has mean zero and takes the noise of the rule's own bound out of the difference.
    sides = {
        "frontier_gap_least": lower_side(a, mean, overdraft) - accepted,
        "frontier_gap_most": upper - accepted + slope * (bound - mean),
    }
    out = {"round_bound": mean_interval([bound], confidence, "normal", name="round bound")}
    for name, terms in sides.items():
        out[name] = mean_interval([terms], confidence, "normal", least=-np.inf, name=name)
    return out
