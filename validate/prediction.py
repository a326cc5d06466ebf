"""Prediction: what the theory says of a verifier on a real pair, from the target's own images only.

No speculative decoding is run. A round's numbers are averages of exact laws along the target's images, with
importance weights (`theory.round_along_paths`); calls follow by renewal (`theory.round_starts`); divergences per token
are those of the predictive law along the images (`theory.filter_offsets`). All of it takes prefixes from the target.
Relaxed decoding drifts from them, and the gap to the measured number shows by how much.

Every number is an interval at a stated confidence, with images as the independent units.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from simulate.intervals import Interval, mean_interval
from theory import AnyVerifier, RoundPaths, match, round_along_paths, round_starts, survival_along_paths
from validate.scoring import AnyScores, filter_images

JACKKNIFE_GROUPS = 20
"""Groups of images left out in turn; expected calls are a smooth function of means, so twenty suffice."""


@dataclass(frozen=True)
class Prediction:
    """What the theory predicts from the target's images alone.

    Attributes
    ----------
    accepted_length : Interval
        N of a round that starts with at least L tokens left.
    tokens_per_call : Interval
    round_bound, round_tv, round_kl_output_target, round_kl_target_output : Interval
        B, TV(P̂, P) and both KLs of one round.
    token_tv, token_kl_output_target, token_kl_target_output : Interval
        Predictive divergences per token.
    """

    accepted_length: Interval
    tokens_per_call: Interval
    round_bound: Interval
    round_tv: Interval
    round_kl_output_target: Interval
    round_kl_target_output: Interval
    token_tv: Interval
    token_kl_output_target: Interval
    token_kl_target_output: Interval


def _survival(scores: AnyScores, verifier: AnyVerifier, length: int) -> np.ndarray:
    """A_i/P of rounds from every place, shape (n, T, L)."""
    pieces = [survival_along_paths(tokens, p, q, verifier, length) for tokens, p, q in scores.pieces()]
    return torch.cat(pieces).cpu().numpy()


def start_probabilities(scores: AnyScores, verifier: AnyVerifier, length: int) -> np.ndarray:
    """u_t: how likely a round starts behind t tokens, shape (T,)."""
    survival = np.clip(_survival(scores, verifier, length).mean(axis=0), 0.0, 1.0)
    return round_starts(np.minimum.accumulate(survival, axis=-1))


def _calls(scores: AnyScores, verifier: AnyVerifier, length: int, confidence: float) -> Interval:
    """Expected calls by renewal; the interval is a jackknife over groups of images."""
    survival = _survival(scores, verifier, length)

    def calls(rows: np.ndarray) -> float:
        mean = np.minimum.accumulate(np.clip(rows.mean(axis=0), 0.0, 1.0), axis=-1)
        return float(round_starts(mean).sum())

    groups = min(JACKKNIFE_GROUPS, len(survival))
    member = np.arange(len(survival)) % groups
    whole = calls(survival)
    pseudo = [groups * whole - (groups - 1) * calls(survival[member != g]) for g in range(groups)]
    return mean_interval([np.array(pseudo)], confidence, "normal", least=1.0, name="calls")


def _windows(scores: AnyScores, verifier: AnyVerifier, length: int) -> dict[str, np.ndarray]:
    """Terms of one round from every start with at least L tokens left: arrays (n, starts)."""
    total = scores.tokens.shape[1]
    starts: list[list[RoundPaths]] = [[] for _ in range(total - length + 1)]
    for tokens, p, q in scores.pieces(1000):
        for start, parts in enumerate(starts):
            rows = slice(start, start + length)
            parts.append(round_along_paths(tokens[:, rows], p[:, rows], q[:, rows], verifier, length))
    columns = [_round_terms(parts) for parts in starts]
    return {name: np.stack([terms[name] for terms in columns], axis=1) for name in columns[0]}


def _round_terms(parts: list[RoundPaths]) -> dict[str, np.ndarray]:
    def join(name: str, summed: bool) -> np.ndarray:
        values = [getattr(part, name) for part in parts]
        return torch.cat([v.sum(-1) if summed else v for v in values]).cpu().numpy()

    return {
        "accepted_length": join("survival_ratio", True),
        "round_bound": join("bias", True),
        "round_tv": join("tv_terms", False),
        "round_kl_output_target": join("kl_output_terms", False),
        "round_kl_target_output": join("kl_target_terms", False),
    }


def predict(scores: AnyScores, verifier: AnyVerifier, length: int, confidence: float = 0.95) -> Prediction:
    """Prediction of a verifier's cost and error from scored images of the target.

    Parameters
    ----------
    scores : AnyScores
        Of images drawn from the target.
    verifier : AnyVerifier
    length : int
        1 ≤ L ≤ T.
    confidence : float

    Returns
    -------
    Prediction
        A round's numbers are averaged over the places where rounds start.
    """
    total = scores.tokens.shape[1]
    if not 1 <= length <= total:
        raise ValueError(f"length must lie in 1…{total}, got {length}")
    whole = filter_images(scores, verifier, length)
    terms = _windows(scores, verifier, length)
    weights = start_probabilities(scores, verifier, length)[: total - length + 1]
    weights = weights / weights.sum()
    # A place that no round starts at does not count, however large its term.
    begun = weights > 0
    rounds = {
        name: mean_interval([v[:, begun] @ weights[begun]], confidence, "normal", name=name)
        for name, v in terms.items()
    }

    def mean(values: np.ndarray, name: str, most: float = np.inf) -> Interval:
        return mean_interval([values], confidence, "normal", most=most, name=name)

    calls = _calls(scores, verifier, length, confidence)
    return Prediction(
        **rounds,
        tokens_per_call=calls.map(lambda c: total / max(c, 1.0)),
        # Behind a token that the rule cannot emit there is no law of its own: such tokens are left out.
        token_tv=mean(np.nanmean(whole.total_variation, axis=1), "predictive TV", 1.0),
        token_kl_output_target=mean(np.nanmean(whole.kl_output_target, axis=1), "KL(output, target)"),
        token_kl_target_output=mean(np.nanmean(whole.kl_target_output, axis=1), "KL(target, output)"),
    )


def predicted_tokens_per_call(scores: AnyScores, verifier: AnyVerifier, length: int) -> float:
    """T over expected calls by renewal along scored images of the target, a point value."""
    return float(scores.tokens.shape[1] / start_probabilities(scores, verifier, length).sum())


def match_tokens_per_call(
    scores: AnyScores, family: Callable[[float], AnyVerifier], length: int, value: float, *, high: float = 12.0
) -> AnyVerifier:
    """Verifier of a family (see `theory.schedule_families`) whose predicted tokens per call is `value` within .1 %.

    Raises
    ------
    ValueError
        If the family cannot reach it; the message names what it reaches.
    """

    def tokens_per_call(verifier: AnyVerifier) -> float:
        return predicted_tokens_per_call(scores, verifier, length)

    return family(match(family, tokens_per_call, value, 0.0, high, tolerance=1e-3))
