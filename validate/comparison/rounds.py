"""How far a rule stands from the frontier of the round's bound, on rounds drafted behind the target's own prefixes.

N = E Σ_i A_i/Q_i and B = E Σ_i (A_{i−1}/Q_{i−1}) TV(o_i, p_i) are averages over drafted blocks x ~ q (Q_i their draft
mass). Over all token-wise rules, with a(x) = min(1, p/q)(x) at the drafted token, the optimum of N − λ B is W_0 with

    W_L = 0,   W_{i−1}(c) = E_{x~q} [ a(x) (1 + W_i(cx)) + (1 − a(x)) max(0, 1 + W_i(cx) − λ) ].

W needs every continuation of every prefix, V^L of them. One drafted block gives two sides of the frontier instead:

* above: the same recursion along the block alone, Ŵ_{i−1} = a (1 + Ŵ_i) + (1 − a) max(0, 1 + Ŵ_i − λ), knows the drafts
  to come. By Jensen's inequality E Ŵ_0 ≥ W_0, so no token-wise rule has N > min_λ (E Ŵ_0 + λ B) [proved].
* below: rules that accept everything up to a position, lossless behind it (a coin at one position meets B exactly).
  They are token-wise, so the frontier lies above them.

A rule's *gap* at its own B is the frontier's N less its own, known between these two sides. Block rules are not
token-wise, and their gap may be negative.

Drafts that the target would take with ½, one position: lossless N = ½, and N = 1 costs B = ½.

>>> halves = np.full((4, 1), 0.5)
>>> [round(float(x), 12) for x in upper_side(halves, 0.25)[0]], [round(float(x), 12) for x in lower_side(halves, 0.25)]
([0.75, 0.75, 0.75, 0.75], [0.75, 0.75, 0.75, 0.75])
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
from validate.decoding import decode_one_round
from validate.measurement import Baseline
from validate.measurement import _measured_rounds as measured_rounds
from validate.models import Pair
from validate.prediction import start_probabilities
from validate.scoring import score

__all__ = ["DraftedRounds", "draft_rounds", "frontier_gap", "lower_side", "measured_rounds", "upper_side"]

DRAFT_SEED = 3_000_017
"""Added to a run's seed, so that these drafts use noise of their own."""
REPEATS = 3
"""Rounds drafted behind each image of the target."""
SLOPES = 60
"""Values of λ tried in [1, L], evenly on a log scale: the upper side's minimum is flat in λ."""


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


def upper_side(lossless: np.ndarray, bound: float) -> tuple[np.ndarray, float]:
    """Terms (n,) whose mean no token-wise rule's N exceeds at B = `bound`, and the λ that gives the least mean."""
    best: tuple[float, np.ndarray, float] | None = None
    length = lossless.shape[1]
    for slope in np.geomspace(1.0, max(length, 1.0 + 1e-9), SLOPES):
        value = np.zeros(len(lossless))
        for i in reversed(range(length)):
            a, gain = lossless[:, i], 1 + value
            value = a * gain + (1 - a) * np.maximum(0.0, gain - slope)
        terms = value + slope * bound
        if best is None or terms.mean() < best[0]:
            best = float(terms.mean()), terms, float(slope)
    assert best is not None
    return best[1], best[2]


def lower_side(lossless: np.ndarray, bound: float, overdraft: np.ndarray | None = None) -> np.ndarray:
    """Terms (n,) of the N that rules by position reach at B = `bound`; all drafts are accepted where B allows it.

    Parameters
    ----------
    overdraft : array, shape (n, L), optional
        TV(p, q) at each prefix; 1 − a, whose mean it is, by default.
    """
    cost = 1 - lossless if overdraft is None else overdraft
    length = lossless.shape[1]
    rules = []
    for free in range(length + 1):
        f = np.where(np.arange(length) < free, 1.0, lossless)
        rules.append((np.cumprod(f, axis=1).sum(axis=1), cost[:, :free].sum(axis=1)))
    spent = np.array([b.mean() for _, b in rules])
    last = int(np.searchsorted(spent, bound, side="right")) - 1
    if last >= length:
        return np.asarray(rules[length][0])
    share = (bound - spent[last]) / max(spent[last + 1] - spent[last], np.finfo(float).tiny)
    return np.asarray((1 - share) * rules[last][0] + share * rules[last + 1][0])


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
