"""Estimates where exact laws are out of reach: decode, filter, average.

Half of the sequences are decoded (law P̂), half are drawn from the target (law P). One teacher-forced pass of both
chains over each gives its exact likelihood under either law, P̂(x_1…x_T) = Σ_i a_T(i) over the offsets i of the running
round, and the one-step predictive laws (docs: The mathematics, Many rounds). `simulate.estimates` says what they
average to. `estimate_from_filters` is the part that knows no chain: networks use it too.

>>> target, draft = theory.IIDChain([0.25, 0.75]), theory.IIDChain([0.75, 0.25])
>>> e = estimate(target, draft, theory.Verifier(theory.Lossless()), 2, 6, 400, np.random.default_rng(1))
>>> round(e.total_variation.upper, 9), round(e.hellinger.upper, 6), 0.75 in e.accepted_length
(0.0, 0.0, True)
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
from tqdm import tqdm

import theory
from simulate.decoding import decode, sample
from simulate.draws import streams
from simulate.estimates import Estimate, Predictive
from simulate.intervals import Method, check_method
from simulate.laws import Floats, Integers, teacher_forced
from theory.arrays import to_numpy, whole_number

ENTRIES_AT_ONCE = 2**21
"""Entries (sequences × T × L × V) filtered together: a dozen float64 temporaries stay below 256 MB."""


def filter_sequences(
    tokens: Integers,
    target: theory.Chain,
    draft: theory.Chain,
    verifier: theory.AnyVerifier,
    length: int,
    *,
    progress: bool = False,
) -> theory.OffsetFilter:
    """`theory.filter_offsets` of sequences (n, T) between two chains, in pieces that fit in memory."""
    count, depth = tokens.shape
    step = max(1, ENTRIES_AT_ONCE // max(depth * length * target.vocab_size, 1))
    pieces = []
    for start in tqdm(range(0, max(count, 1), step), unit="batch", disable=not progress):
        rows = tokens[start : start + step]
        p, q = teacher_forced(target, rows), teacher_forced(draft, rows)
        pieces.append(theory.filter_offsets(rows, p, q, verifier, length))
    names = [f.name for f in fields(theory.OffsetFilter)]
    return theory.OffsetFilter(*(np.concatenate([getattr(piece, name) for piece in pieces]) for name in names))


def _array(source: Any, name: str, ndim: int) -> Floats:
    values = np.asarray(to_numpy(getattr(source, name)), dtype=np.float64)
    if values.ndim != ndim:
        raise ValueError(f"{name} must have {ndim} axes (sequences first), got shape {values.shape}")
    return values


def _log_ratio(source: Any, which: str, certain: str) -> Floats:
    own, target = _array(source, "log_likelihood", 1), _array(source, "target_log_likelihood", 1)
    for values, name in ((own, "log_likelihood"), (target, "target_log_likelihood")):
        bad = np.isnan(values) | (values == np.inf) | ((values == -np.inf) & (name == certain))
        if bad.any():
            i = int(np.argmax(bad))
            raise ValueError(
                f"{which}: {name} of sequence {i} is {values[i]}, impossible for a sequence drawn from that law; "
                "the laws given to the filter are not the laws that were sampled"
            )
    return np.asarray(own - target)


def _full_rounds(accepted: Any, length: int, tokens: int) -> tuple[Floats, Floats]:
    table = np.asarray(to_numpy(accepted))
    if table.ndim != 2 or (table.size and (table.min() < -1 or table.max() > length)):
        raise ValueError(f"accepted must be (sequences, rounds) with entries in -1…{length}, got shape {table.shape}")
    played = table >= 0
    emitted = np.where(played, table + 1, 0)
    starts = np.cumsum(emitted, axis=1) - emitted
    full = played & (starts + length <= tokens)
    return np.where(full, table, 0).sum(axis=1).astype(np.float64), full.sum(axis=1).astype(np.float64)


def estimate_from_filters(
    output_filter: Any,
    target_filter: Any,
    *,
    calls: Any,
    accepted: Any,
    length: int,
    tokens: int,
    confidence: float = 0.95,
    method: Method = "normal",
) -> Estimate:
    """Estimates from filtered samples of the two laws, wherever they come from (chains here, networks in validate).

    Parameters
    ----------
    output_filter, target_filter : theory.OffsetFilter, or anything with its arrays
        Of sequences drawn from P̂ (n_out ≥ 2) and from P (n_target ≥ 2); arrays of any library, (n,) and (n, T).
    calls : array, shape (n_out,)
        Target calls of every decoded sequence.
    accepted : integer array, shape (n_out, R)
        Accepted drafts of every round, padded with −1, as `decode` gives them.
    length, tokens : int
        L and T.
    confidence : float
    method : {"normal", "bernstein"}

    Returns
    -------
    Estimate

    Raises
    ------
    ValueError
        For shapes that do not match, or a sequence that the law it was drawn from cannot emit.

    Notes
    -----
    Source: docs: The mathematics, Many rounds. Oracle: `theory.analyse_sequence`; `simulate.coverage` measures the
    intervals against it.
    """
    method, confidence = check_method(method, confidence)
    length, tokens = whole_number(length, "length", 1), whole_number(tokens, "tokens", 1)
    output_ratio = _log_ratio(output_filter, "output_filter", "log_likelihood")
    target_ratio = _log_ratio(target_filter, "target_filter", "target_log_likelihood")
    names = ("starts", "step_bias", "total_variation", "kl_output_target")
    rows = {name: _array(output_filter, name, 2) for name in names}
    missing = _array(target_filter, "kl_target_output", 2)
    for name, values, count in (
        *((name, values, len(output_ratio)) for name, values in rows.items()),
        ("kl_target_output", missing, len(target_ratio)),
    ):
        if values.shape != (count, tokens):
            raise ValueError(f"{name} must have shape ({count}, {tokens}), got {values.shape}")
    counted = np.asarray(to_numpy(calls), dtype=np.float64)
    kept, full = _full_rounds(accepted, length, tokens)
    if counted.shape != output_ratio.shape or kept.shape != output_ratio.shape:
        raise ValueError(f"calls {counted.shape} and accepted {kept.shape} must match {len(output_ratio)} sequences")
    # Behind a prefix that P̂ cannot emit there is no predictive law (NaN); the step that left its support is +∞ already.
    missing = np.where(np.isinf(missing).any(axis=1, keepdims=True), np.inf, missing)
    return Estimate(
        log_ratio_output=output_ratio,
        log_ratio_target=target_ratio,
        calls=counted,
        predicted_calls=rows["starts"].sum(axis=1),
        accepted_in_full=kept,
        full_rounds=full,
        step_bias=rows["step_bias"].sum(axis=1),
        predictive=Predictive(
            tv_terms=rows["total_variation"].mean(axis=1),
            kl_output_terms=rows["kl_output_target"].mean(axis=1),
            kl_target_terms=missing.mean(axis=1),
            confidence=confidence,
            method=method,
        ),
        length=length,
        tokens=tokens,
        confidence=confidence,
        method=method,
    )


def estimate(
    target: theory.Chain,
    draft: theory.Chain,
    verifier: theory.AnyVerifier,
    length: int,
    tokens: int,
    samples: int,
    rng: np.random.Generator,
    confidence: float = 0.95,
    method: Method = "normal",
    *,
    progress: bool = False,
) -> Estimate:
    """Estimate cost and error of relaxed decoding where exact laws are out of reach.

    Parameters
    ----------
    target, draft, verifier, length, tokens
        As for `simulate.decode`.
    samples : int
        Sequences in all, at least 4: half decoded, half drawn from the target.
    rng : numpy.random.Generator
    confidence : float
        Of every interval by itself, in (0, 1).
    method : {"normal", "bernstein"}
        See `simulate.intervals`.
    progress : bool
        Show bars.

    Returns
    -------
    Estimate
        Every number as (lower, value, upper).

    Raises
    ------
    ValueError
        For fewer than four samples, or what `decode` refuses.

    Notes
    -----
    Source: docs: The mathematics, Many rounds. Oracle: `theory.analyse_sequence` on chains small enough to enumerate.
    """
    samples = whole_number(samples, "samples", 4)
    method, confidence = check_method(method, confidence)
    decoding, sampling = streams(rng), streams(rng)
    run = decode(target, draft, verifier, length, tokens, samples - samples // 2, decoding, progress=progress)
    own = sample(target, tokens, samples // 2, sampling, progress=progress)
    filters = [filter_sequences(x, target, draft, verifier, length, progress=progress) for x in (run.tokens, own)]
    return estimate_from_filters(
        *filters,
        calls=run.calls,
        accepted=run.accepted,
        length=length,
        tokens=tokens,
        confidence=confidence,
        method=method,
    )
