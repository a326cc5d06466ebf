"""Does a sampler follow the law of the verifier it is declared to implement?

On every pair of chains the outcomes (a, x_1…x_{a+1}) of many rounds are compared with their exact declared law
(`simulate.testing.outcomes`): the joint law of all tokens and the accepted count, not marginals.

*Which law.* With ``counts="declared"`` the cells are outcomes. With ``counts="any"`` only the law of the L+1 tokens is
declared (a lossless rule may accept otherwise): every outcome is continued with the target by the kit's own generator,
after which its L+1 tokens are one draw from a law that is known exactly, so that the tests stay exact. Averaging over
the continuations instead would give counts that are no integers, for which the evidence has no closed form; the draw
costs no power at the tokens that a round emits itself.

*Which level.* The false-alarm level α is split evenly over the pairs (a union bound), on each pair in halves between
the evidence, valid at every stopping time, and the distance test, whose half is split over its looks as α/(j(j+1)). So
a correct sampler fails with probability at most α, whatever the number of looks (the seed check adds less than 10⁻²⁴).
Correct means: rounds are independent, and no event's probability is off by more than `rounding`.

*How many rounds.* All pairs advance together, 256 rounds at first and doubling, so that a fault stops the check on the
pair that shows it soonest. A pair is done when every law at TV ≥ `smallest_tv` would have been rejected with
probability `power`, or at `max_rounds`; the report states the TV reached. Rounds of a batch must be independent too:
consecutive rounds are compared for how often they agree.

>>> import theory
>>> from simulate.testing.reference import reference_sampler
>>> lossless, relaxed = theory.Verifier(theory.Lossless()), theory.Verifier(theory.Relaxed(2.0))
>>> check_law(reference_sampler(lossless), verifier=lossless, smallest_tv=0.2).passed
True
>>> check_law(reference_sampler(relaxed), verifier=lossless, smallest_tv=0.2).passed
False
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import theory
from simulate.testing.outcomes import forced_drafts_fixed
from simulate.testing.pairs import Pair, adversarial_pairs
from simulate.testing.protocol import RoundDecoder, Sampler
from simulate.testing.report import LawReport
from simulate.testing.seeds import seed_fault
from simulate.testing.sequential import looks
from simulate.testing.trial import Counts, Trial, for_length
from theory.arrays import real_number, whole_number


def check_law(
    sampler: Sampler | RoundDecoder,
    target: theory.Chain | None = None,
    draft: theory.Chain | None = None,
    verifier: theory.AnyVerifier | Callable[[int], theory.AnyVerifier] | None = None,
    length: int | None = None,
    *,
    pairs: Sequence[Pair] | None = None,
    counts: Counts = "declared",
    false_alarm: float = 1e-9,
    smallest_tv: float = 0.02,
    power: float = 0.99,
    max_rounds: int = 2**18,
    rounding: float = 1e-6,
    rng: np.random.Generator | None = None,
    seeds: bool = True,
    timeout: float | None = 60.0,
) -> LawReport:
    """Compare a sampler with the law of the verifier it claims to implement.

    Parameters
    ----------
    sampler : Sampler or RoundDecoder
        A function (rounds, rng) → (tokens, accepted), see `simulate.testing.protocol`.
    target, draft : theory.Chain, optional
        The pair to test on, with `length`. By default the built-in pairs (`adversarial_pairs`).
    verifier : verifier, or function of L giving one
        What is declared; lossless by default. A function serves verifiers made for one length.
    length : int, optional
        L. With the built-in pairs: the length of all of them.
    pairs : sequence of Pair, optional
        Instead of target, draft and length.
    counts : {"declared", "any"}
        Whether the verifier fixes the accepted counts too, or only the law of the L+1 tokens.
    false_alarm : float
        α, the largest probability that a correct sampler fails.
    smallest_tv : float
        Stop when every law so far from the declared one would have been found.
    power : float
        1 − β, the probability of finding it.
    max_rounds : int
        Most rounds on one pair.
    rounding : float
        r, by which the probability of an event may be off: float32 softmaxes and ratios miss a round's law by some 1e-7
        a token. An impossible event then fails the sampler at its fourth occurrence or so; with 0 at the first.
    rng : numpy.random.Generator, optional
        Drafts and the sampler's own generators; a fixed seed by default, so that a test repeats itself.
    seeds : bool
        Whether `check_seeds` is part of the check. Turn it off for a system that cannot be seeded.
    timeout : float or None
        Seconds for one call (at most 32,768 rounds); None for no limit. See `simulate.testing.calls.within`.

    Returns
    -------
    LawReport

    Raises
    ------
    ValueError
        For arguments that make no test. What the sampler does wrong is reported, never raised.
    """
    if counts not in ("declared", "any"):
        raise ValueError(f'counts must be "declared" or "any", got {counts!r}')
    alpha = _share(false_alarm, "false_alarm")
    beta = 1 - _share(power, "power")
    smallest = _share(smallest_tv, "smallest_tv")
    most, rounding = whole_number(max_rounds, "max_rounds", 2), real_number(rounding, "rounding", least=0.0, most=0.1)
    verifier = theory.Verifier(theory.Lossless()) if verifier is None else verifier
    kit, own = (rng or np.random.default_rng(0)).spawn(2)
    chosen = _chosen(target, draft, length, pairs, verifier)
    trials = [
        Trial(group, verifier, counts, rounding, kit, own, timeout)
        for group in _groups(chosen, sampler, counts, verifier)
    ]
    level = alpha / (2 * len(trials))
    for trial in trials:
        limit = min([most, *(pair.most_rounds or most for pair in trial.pairs)])
        trial.looks = looks(trial.law, level, beta, rounding, smallest, limit)
    first = trials[0]
    fault = seed_fault(sampler, first.vocab_size, first.length, timeout) if seeds and first.vocab_size > 1 else None
    look = 0
    while fault is None and any(look < len(trial.looks) for trial in trials):
        look += 1
        for trial in trials:
            if look <= len(trial.looks) and not trial.go_on(sampler, look, level):
                fault = trial.reason
                trial.look_closer(sampler, most)
                break
    results = [trial.result(level, beta, not isinstance(sampler, RoundDecoder)) for trial in trials]
    return LawReport(fault, tuple(results), alpha, 1 - beta)


def assert_law(
    sampler: Sampler | RoundDecoder,
    target: theory.Chain | None = None,
    draft: theory.Chain | None = None,
    verifier: theory.AnyVerifier | Callable[[int], theory.AnyVerifier] | None = None,
    length: int | None = None,
    **options: Any,
) -> LawReport:
    """`check_law` as an assertion.

    Returns
    -------
    LawReport
        Of a sampler that passed; it states the smallest TV that would have been found.

    Raises
    ------
    AssertionError
        With the declared and the observed law, the worst event and the nearest known fault.
    """
    report = check_law(sampler, target, draft, verifier, length, **options)
    if not report.passed:
        raise AssertionError(str(report))
    return report


def _share(value: Any, name: str) -> float:
    share = real_number(value, name, least=0.0, most=1.0)
    if not 0 < share < 1:
        raise ValueError(f"{name} must lie strictly between 0 and 1, got {value!r}")
    return share


def _chosen(target: Any, draft: Any, length: int | None, pairs: Sequence[Pair] | None, verifier: Any) -> list[Pair]:
    if (target is None) != (draft is None):
        raise ValueError("give both target and draft, or neither")
    if target is not None:
        if length is None or pairs is not None:
            raise ValueError("a target and a draft need their length, and no pairs besides")
        return [Pair("the given pair", target, draft, length)]
    if pairs is None:
        # A residual with one law for each rejected token has V² entries on a vocabulary of V ids.
        residual = getattr(for_length(verifier, length or 1), "residual", None)
        return adversarial_pairs(length, wide=not isinstance(residual, theory.DraftDependentResidual))
    if len(pairs) == 0:
        raise ValueError("pairs is empty; there is nothing to test on")
    return list(pairs)


def _groups(pairs: list[Pair], sampler: Any, counts: Counts, verifier: Any) -> list[tuple[Pair, ...]]:
    """What is tested as one law: every pair alone, and two of one shape mixed in every batch.

    Forced drafts need a sampler (a decoder drafts for itself) and a verifier that fixes what follows a draft.
    """
    usable = [
        pair
        for pair in pairs
        if pair.drawn_from is None
        or (
            counts == "declared"
            and not isinstance(sampler, RoundDecoder)
            and forced_drafts_fixed(for_length(verifier, pair.length))
        )
    ]
    if not usable:
        raise ValueError("only pairs with forced drafts are left, and they cannot be tested here")
    groups: list[tuple[Pair, ...]] = [(pair,) for pair in usable]
    plain = [pair for pair in usable if pair.drawn_from is None and pair.most_rounds is None]
    alike: list[tuple[Pair, ...]] = [
        (a, b)
        for i, a in enumerate(plain)
        for b in plain[i + 1 :]
        if (a.target.vocab_size, a.length) == (b.target.vocab_size, b.length)
    ]
    return groups + alike[:1] if not isinstance(sampler, RoundDecoder) else groups
