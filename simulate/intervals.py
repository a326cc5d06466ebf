"""Intervals: an estimate with the two ends between which the true value lies at a stated confidence.

Two methods, for a mean μ of independent terms X_1…X_n with sample mean m and sample variance V:

* "normal": the central limit theorem with Student's t and Hall's correction for skewness (JRSS B 54, 1992): with
  se² = V/n and λ the third central moment of m over se³, the pivot g(T) = T + λT²/3 + λ²T³/27 + λ/6 of T = (m − μ)/se
  is nearly normal and is inverted. Divergences are skewed; plain t intervals miss from below. Approximate:
  `simulate.coverage` measures by how much. Events that no term shows are beyond it.
* "bernstein": |m − μ| ≤ √(2 V ln(4/δ)/n) + 7 R ln(4/δ)/(3(n−1)) with probability 1 − δ, for terms in a range of width R
  (Maurer and Pontil, COLT 2009, Theorem 4, both sides). Valid at every n, wide; unbounded terms have none.

A mean over *strata* (half the terms from P, half from P̂) is the average of the strata's means.

>>> mean_interval([[0.1, 0.2, 0.3, 0.2]], 0.95, "normal").value
0.2
>>> print(mean_interval([[0.1, 0.2, 0.3, 0.2]], 0.95, "bernstein", most=1.0))
0.2 [0, 1]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeAlias, get_args

import numpy as np

from theory.arrays import real_number

Method: TypeAlias = Literal["normal", "bernstein"]
Terms: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]

RESOLUTION = 1e-12
"""Rounding allowance of the ends: terms that would be zero in exact arithmetic come out at some 1e-16 per token in
float64, and means of equal terms are off by some 1e-16 relative; the exact value must stay inside."""

RANGE_SLACK = 1e-4
"""How far, as a share of the range, bounded terms may leave it by rounding: sums over T ≤ 1e3 tokens in float32."""


@dataclass(frozen=True)
class Interval:
    """An estimate between two ends; unpacks as ``lower, value, upper``.

    Attributes
    ----------
    lower, value, upper : float
        A value of +∞ means that a sample proved the quantity infinite; NaN that no sample could show it.
    confidence : float
        Probability that the interval covers the true value, as claimed by the method.
    """

    lower: float
    value: float
    upper: float
    confidence: float
    kind: ClassVar[str] = "estimate"

    def __iter__(self) -> Iterator[float]:
        return iter((self.lower, self.value, self.upper))

    def __contains__(self, number: float) -> bool:
        return bool(self.lower <= number <= self.upper)

    def __str__(self) -> str:
        return f"{self.value:.4g} [{self.lower:.4g}, {self.upper:.4g}]"

    @property
    def width(self) -> float:
        """upper − lower; 0 for a quantity proved infinite."""
        return 0.0 if self.lower == self.upper else self.upper - self.lower

    def map(self, function: Callable[[float], float]) -> Interval:
        """The interval of a monotone function of the quantity, rising or falling."""
        ends = sorted((function(self.lower), function(self.upper)))
        return replace(self, lower=ends[0], value=function(self.value), upper=ends[1])


def check_method(method: Any, confidence: Any) -> tuple[Method, float]:
    """The method and the confidence, or ValueError naming what is wrong with them."""
    if method not in get_args(Method):
        raise ValueError(f"method must be one of {', '.join(get_args(Method))}, got {method!r}")
    level = real_number(confidence, "confidence", least=0.0, most=1.0)
    if level in (0.0, 1.0):
        raise ValueError(f"confidence must lie strictly between 0 and 1, got {confidence!r}")
    return method, level


def checked_terms(values: Any, name: str) -> Terms:
    """At least two independent terms, float64 of shape (n,), no NaN; the message names the first."""
    terms = np.asarray(values, dtype=np.float64)
    if terms.ndim != 1 or len(terms) < 2:
        raise ValueError(f"{name}: an interval needs at least two independent terms, got shape {terms.shape}")
    if np.isnan(terms).any():
        raise ValueError(f"{name}: term {int(np.argmax(np.isnan(terms)))} is NaN")
    return terms


def _student(degrees: float, confidence: float) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(degrees, 0.5 + confidence / 2))


def _rounded(value: float, lower: float, upper: float, confidence: float, least: float, most: float) -> Interval:
    value = min(max(value, least), most)
    lower = min(lower, value - RESOLUTION * max(1.0, abs(value)))
    upper = max(upper, value + RESOLUTION * abs(value))
    return Interval(max(lower, least), value, min(upper, most), confidence)


def _normal(strata: list[Terms], confidence: float, least: float, most: float) -> Interval:
    count = len(strata)
    value = math.fsum(float(terms.mean()) for terms in strata) / count
    parts, third = [], 0.0
    for terms in strata:
        n, centred = len(terms), terms - terms.mean()
        parts.append(float(centred @ centred) / (n - 1) / n / count**2)
        third += float(centred**2 @ centred) / n**3 / count**3
    error = math.sqrt(math.fsum(parts))
    if error <= RESOLUTION * abs(value):
        return _rounded(value, value, value, confidence, least, most)
    degrees = error**4 / math.fsum(v**2 / (len(t) - 1) for v, t in zip(parts, strata, strict=True))
    quantile, skew = _student(degrees, confidence), third / error**3

    def pivot(x: float) -> float:
        return x if abs(skew) < 1e-6 else 3 / skew * (float(np.cbrt(1 + skew * (x - skew / 6))) - 1)

    return _rounded(value, value - error * pivot(quantile), value - error * pivot(-quantile), confidence, least, most)


def _bernstein(strata: list[Terms], confidence: float, least: float, most: float) -> Interval:
    if not (math.isfinite(least) and math.isfinite(most)):
        raise ValueError("terms without a bound have no Bernstein interval; use method='normal'")
    if len({len(terms) for terms in strata}) == 1:
        strata = [np.mean(strata, axis=0)]
    value, reach, slack = 0.0, 0.0, RANGE_SLACK * (most - least)
    scale = math.log(4 * len(strata) / (1 - confidence))
    for terms in strata:
        n = len(terms)
        if terms.min() < least - slack or terms.max() > most + slack:
            raise ValueError(f"terms from {terms.min()} to {terms.max()} leave their stated range [{least}, {most}]")
        value += float(terms.mean()) / len(strata)
        half = math.sqrt(2 * float(terms.var(ddof=1)) * scale / n) + 7 * (most - least) * scale / (3 * (n - 1))
        reach += half / len(strata)
    return _rounded(value, value - reach, value + reach, confidence, least, most)


def mean_interval(
    strata: Sequence[Any],
    confidence: float,
    method: Method,
    *,
    least: float = 0.0,
    most: float = math.inf,
    name: str = "terms",
) -> Interval:
    """Interval of the average of the strata's means.

    Parameters
    ----------
    strata : sequence of arrays of shape (n_s,)
        Independent terms of each stratum, n_s ≥ 2.
    confidence : float
        In (0, 1).
    method : {"normal", "bernstein"}
    least, most : float
        Bounds of the mean, to which estimate and interval are cut: say ``least=-math.inf`` where it may be negative,
        as the mean of differences. For "bernstein" they are bounds that every term obeys.
    name : str
        What an error message calls the terms.

    Returns
    -------
    Interval
        (+∞, +∞, +∞) where a term is +∞.

    Raises
    ------
    ValueError
        For fewer than two terms, a NaN, an unknown method, or "bernstein" without finite bounds.
    """
    method, confidence = check_method(method, confidence)
    checked = [checked_terms(terms, name) for terms in strata]
    if method == "bernstein" and not math.isfinite(most):
        raise ValueError(f"{name} has no upper bound, hence no Bernstein interval; use method='normal'")
    if any(np.isinf(terms).any() for terms in checked):
        return Interval(math.inf, math.inf, math.inf, confidence)
    return (_normal if method == "normal" else _bernstein)(checked, confidence, least, most)


def ratio_interval(
    above: Any,
    below: Any,
    confidence: float,
    method: Method,
    *,
    most_above: float,
    least_below: float,
    most_below: float,
    name: str,
) -> Interval:
    """Interval of E[above]/E[below] from paired terms, above ≥ 0 and below > 0, with their stated bounds.

    "normal" is the delta method; "bernstein" divides the ends of two intervals at half the risk each.
    """
    method, confidence = check_method(method, confidence)
    top, bottom = checked_terms(above, name), checked_terms(below, name)
    ratio = float(top.mean() / bottom.mean())
    if method == "bernstein":
        half = (1 + confidence) / 2
        first = mean_interval([top], half, method, most=most_above, name=name)
        second = mean_interval([bottom], half, method, least=least_below, most=most_below, name=name)
        return Interval(first.lower / second.upper, ratio, first.upper / second.lower, confidence)
    linear = ratio + (top - ratio * bottom) / bottom.mean()
    return replace(mean_interval([linear], confidence, method, least=-math.inf, name=name), value=ratio)


def clopper_pearson(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Exact binomial interval of a probability."""
    from scipy.special import betaincinv

    risk = (1 - confidence) / 2
    low = 0.0 if successes == 0 else float(betaincinv(successes, trials - successes + 1, risk))
    high = 1.0 if successes == trials else float(betaincinv(successes + 1, trials - successes, 1 - risk))
    return low, high
