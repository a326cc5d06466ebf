"""What an estimate holds: one term per sample, and the distances, counts and curves they average to.

With ρ = P̂(x_{1:T})/P(x_{1:T}), exact for every sample (docs: The mathematics, Many rounds), and M = (P + P̂)/2, sampled
by halves:

* TV(P̂, P) = E_M |ρ − 1|/(ρ + 1) = E_M tanh(|log ρ|/2), terms in [0, 1]
* Hellinger² = 1 − Σ√(P P̂) = E_M [1 − 2√ρ/(1 + ρ)], terms in [0, 1]
* KL(P̂‖P) = E_P̂ log ρ = Σ_t E_P̂ KL(m_t‖p_t), KL(P‖P̂) = −E_P log ρ = Σ_t E_P KL(p_t‖m_t), with m_t the one-step
  predictive law P̂(x_t | x_{<t}). The second forms (chain rule) are used: their terms are non-negative and vary far less
* predictive divergences: the same sums and that of TV(m_t, p_t), over T: nats or TV *per token*
* the best detector flags large ρ; a sample of M carries mass 1/(1+ρ) of P and ρ/(1+ρ) of P̂, so its ROC is
  a concave curve whose largest advantage estimates TV and which is the diagonal for a lossless rule

`simulate.estimation` fills the terms in. Every number is a `simulate.intervals.Interval`.

A law that is twice as likely as the other at both of its samples is told from it with advantage 1/3:

>>> log_ratio = np.log([2.0, 2.0, 0.5, 0.5])
>>> round(mixture_roc(log_ratio[:2], log_ratio[2:]).advantage, 12)
0.333333333333
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from simulate.intervals import Interval, Method, Terms, mean_interval, ratio_interval


class Roc(NamedTuple):
    """Trade-off curve of the best detector of relaxed decoding, from flagging nothing to flagging everything."""

    false_alarm: Terms
    """P(ρ ≥ c) for falling thresholds c, from 0 to 1."""
    detection: Terms
    """P̂(ρ ≥ c)."""

    @property
    def advantage(self) -> float:
        """Largest detection − false alarm, an estimate of TV."""
        return float(np.max(self.detection - self.false_alarm))


def mixture_roc(log_ratio_output: Terms, log_ratio_target: Terms) -> Roc:
    """ROC of ρ from log ρ of samples of P̂ and of P, each half of a sample of M."""
    pair = (log_ratio_output, log_ratio_target)
    log_ratio = np.concatenate(pair)
    share = np.concatenate([np.full(len(r), 1 / len(r)) for r in pair])
    order = np.argsort(-log_ratio, kind="stable")
    tilt = np.tanh(log_ratio[order] / 2)
    curves = [np.append(0.0, np.cumsum(share[order] * mass)) for mass in (1 - tilt, 1 + tilt)]
    return Roc(*(np.minimum(curve / curve[-1], 1.0) for curve in curves))


@dataclass(frozen=True, eq=False)
class Predictive:
    """One-step predictive divergences per token: averages over the T positions."""

    tv_terms: Terms
    kl_output_terms: Terms
    kl_target_terms: Terms
    confidence: float
    method: Method

    @property
    def total_variation(self) -> Interval:
        """Mean over t of E_P̂ TV(m_t, p_t)."""
        return mean_interval([self.tv_terms], self.confidence, self.method, most=1.0, name="predictive TV")

    @property
    def kl_output_target(self) -> Interval:
        """KL(P̂‖P)/T in nats per token; +∞ once a prefix is reached where m_t charges what p_t does not."""
        return mean_interval([self.kl_output_terms], self.confidence, self.method, name="KL(output, target)")

    @property
    def kl_target_output(self) -> Interval:
        """KL(P‖P̂)/T in nats per token; +∞ once a prefix of a target sample is reached where m_t misses part of p_t."""
        return mean_interval([self.kl_target_terms], self.confidence, self.method, name="KL(target, output)")


@dataclass(frozen=True, eq=False)
class Estimate:
    """Estimated cost and error of relaxed decoding; see `estimate`.

    Intervals are computed when asked for. With method "bernstein" the KL divergences raise ValueError, because their
    terms have no bound. A divergence driven by events that no sample showed is underestimated by any method.

    Attributes
    ----------
    log_ratio_output, log_ratio_target : array, shape (n,)
        log ρ of the samples of P̂ and of P.
    calls, predicted_calls : array, shape (n,)
        Rounds counted while decoding, and their mean given the tokens (Σ_t of the filter's `starts`).
    accepted_in_full, full_rounds : array, shape (n,)
        Over the rounds of each sequence that start with at least L tokens left: accepted drafts, and their number.
    step_bias : array, shape (n,)
        Σ_t of the filter's step bias.
    predictive : Predictive
        Divergences per token.
    """

    log_ratio_output: Terms
    log_ratio_target: Terms
    calls: Terms
    predicted_calls: Terms
    accepted_in_full: Terms
    full_rounds: Terms
    step_bias: Terms
    predictive: Predictive
    length: int
    tokens: int
    confidence: float
    method: Method

    @property
    def samples(self) -> int:
        """Sequences used, from both laws together."""
        return len(self.log_ratio_output) + len(self.log_ratio_target)

    def _mixture(self, output: Terms, target: Terms) -> Interval:
        return mean_interval([output, target], self.confidence, self.method, most=1.0)

    @property
    def total_variation(self) -> Interval:
        """TV(P̂, P) of whole sequences."""
        return self._mixture(*(np.tanh(np.abs(r) / 2) for r in (self.log_ratio_output, self.log_ratio_target)))

    @property
    def hellinger(self) -> Interval:
        """Hellinger distance of whole sequences, √(1 − Σ√(P P̂))."""
        # 1 − 2√ρ/(1+ρ) = (1−e)²/(1+e²) with e = exp(−|log ρ|/2), free of cancellation and overflow.
        halves = [-np.abs(r) / 2 for r in (self.log_ratio_output, self.log_ratio_target)]
        return self._mixture(*(np.expm1(h) ** 2 / (1 + np.exp(2 * h)) for h in halves)).map(math.sqrt)

    @property
    def kl_output_target(self) -> Interval:
        """KL(P̂‖P) of whole sequences in nats."""
        return self.predictive.kl_output_target.map(lambda x: self.tokens * x)

    @property
    def kl_target_output(self) -> Interval:
        """KL(P‖P̂) of whole sequences in nats; +∞ if the rule cannot emit what the target can."""
        return self.predictive.kl_target_output.map(lambda x: self.tokens * x)

    @property
    def accepted_length(self) -> Interval:
        """Mean accepted drafts of a round that starts with at least L tokens left.

        Such a round is never cut off in its drafts, and choosing by the start does not favour short rounds as choosing
        by the end would. Between independent tokens it is `theory.analyse_round`'s N; otherwise it is N after the
        prefixes at which rounds start. NaN in [0, L] if T < L.
        """
        if self.tokens < self.length:
            return Interval(0.0, math.nan, float(self.length), self.confidence)
        return ratio_interval(
            self.accepted_in_full,
            self.full_rounds,
            self.confidence,
            self.method,
            most_above=float(self.tokens),
            least_below=1.0,
            most_below=float(self.tokens - self.length + 1),
            name="accepted length",
        ).map(lambda x: min(max(x, 0.0), float(self.length)))

    @property
    def tokens_per_call(self) -> Interval:
        """T / E calls, from the rounds counted while decoding."""
        return self._per_call(self.calls, self._fewest)

    @property
    def tokens_per_call_predicted(self) -> Interval:
        """T / E calls, from the filter's posterior of round starts: the same number without decoding noise."""
        return self._per_call(self.predicted_calls, 1.0)

    @property
    def _fewest(self) -> float:
        return float(math.ceil(self.tokens / (self.length + 1)))

    def _per_call(self, calls: Terms, least: float) -> Interval:
        # Σ starts of one sequence may lie below the fewest calls (each start is predicted from the tokens before it);
        # its mean may not.
        most = float(self.tokens)
        mean = mean_interval([calls], self.confidence, self.method, least=least, most=most, name="calls")
        return mean.map(lambda x: self.tokens / max(x, self._fewest))

    @property
    def tv_bound(self) -> Interval:
        """Estimate of the bound Σ_t E b_t ≥ TV(P̂, P) of a whole sequence. It can exceed one: cap it when reporting."""
        return mean_interval(
            [self.step_bias], self.confidence, self.method, most=float(self.tokens), name="sum of step biases"
        )

    @cached_property
    def roc(self) -> Roc:
        """Trade-off curve of the best detector, flagging ρ ≥ c."""
        return mixture_roc(self.log_ratio_output, self.log_ratio_target)

    def intervals(self) -> dict[str, Interval]:
        """Every number that the method gives an interval for, by name; predictive ones are per token."""
        out: dict[str, Interval] = {}
        for name in QUANTITIES:
            holder = self.predictive if name.startswith("predictive_") else self
            if self.method == "bernstein" and "kl_" in name:
                continue
            out[name] = getattr(holder, name.removeprefix("predictive_"))
        return out


QUANTITIES = (
    "total_variation",
    "hellinger",
    "kl_output_target",
    "kl_target_output",
    "tv_bound",
    "accepted_length",
    "tokens_per_call",
    "tokens_per_call_predicted",
    "predictive_total_variation",
    "predictive_kl_output_target",
    "predictive_kl_target_output",
)
"""Names of `Estimate.intervals`, in the order of reports."""
