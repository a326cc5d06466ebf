"""Do the intervals of `estimate` cover? Their coverage against exact values, on chains small enough to enumerate.

For each case many independent estimates are made and the share of intervals that contain the exact value is counted.
That share is itself an estimate; its Clopper–Pearson interval stands beside it. An interval of nominal confidence .95
should show about .95 ("normal") or at least .95 ("bernstein").

Measured at seed 0, 2,000 repetitions, nominal .95 (standard error .005): with 4,000 samples each of the 41 "normal"
coverages lies between .940 and .964 (``python -m simulate coverage --repetitions 2000 --samples 4000``, one minute),
with 400 samples between .930 and .986; every "bernstein" one is 1.000. The high ones are no slack of the method: 200
sequences show a rare extra call some ten times, and with so small a binomial count the coverage jumps with n and p
(exactly .982 at n = 200, p = .048, but .953 at n = 2,000). With 50 samples (25 a law) most "normal" ones stay between
.92 and .98, but quantities that hang on events of probability near 1/25 fall to .63–.85 (a rare extra call, a draft
that is hardly ever rejected): where almost all sequences have the same value, take more samples.

Decoding is real. The filter of a sequence is deterministic, so it is run once on all V^T sequences and looked up:
the same numbers as filtering every sample, at a fraction of the time.

>>> tuple(round(end, 4) for end in clopper_pearson(95, 100))
(0.8872, 0.9836)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

import theory
from simulate.decoding import decode, sample
from simulate.drafts import make_draft
from simulate.estimates import QUANTITIES, Estimate
from simulate.estimation import estimate_from_filters, filter_sequences
from simulate.intervals import Method, clopper_pearson
from simulate.synthetic import dirichlet_iid, dirichlet_tree, random_markov
from theory.arrays import whole_number
from theory.chains import all_prefixes

ROWS_AT_ONCE = 2**16
"""Sequences decoded together."""


class Case(NamedTuple):
    """A pair of chains, what decodes them, and sizes small enough to enumerate."""

    name: str
    target: theory.Chain
    draft: theory.Chain
    verifier: theory.AnyVerifier
    length: int
    tokens: int


def cases() -> list[Case]:
    """The cases of the report: relaxed and nearly lossless, three kinds of chain; always the same."""
    rng = np.random.default_rng(20240)
    tree, markov = dirichlet_tree(3, 4, rng), random_markov(3, rng)
    iid, gentle = dirichlet_iid(4, rng), dirichlet_tree(3, 5, rng)
    return [
        Case("tree, annealed", tree, make_draft(tree, 0.3, rng), theory.cool_sd(2, 1.5, floor=1.0), 2, 4),
        Case("Markov, uniform", markov, make_draft(markov, 0.2, rng), theory.Verifier(theory.Relaxed(1.4)), 3, 6),
        Case("independent, strong", iid, make_draft(iid, 0.4, rng), theory.Verifier(theory.Relaxed(1.8)), 2, 5),
        Case("tree, near lossless", gentle, make_draft(gentle, 0.2, rng), theory.Verifier(theory.Relaxed(1.05)), 2, 5),
    ]


def exact_values(case: Case) -> dict[str, float]:
    """Exact counterparts of `Estimate.intervals`; accepted length between independent tokens only."""
    analysis = theory.analyse_sequence(case.target, case.draft, case.verifier, case.length, case.tokens)
    predictive = analysis.predictive()
    out = {
        "total_variation": analysis.total_variation,
        "hellinger": theory.hellinger(analysis.law.ravel(), analysis.target_law.ravel()),
        "kl_output_target": analysis.kl_output_target,
        "kl_target_output": analysis.kl_target_output,
        "tv_bound": analysis.tv_bound,
        "tokens_per_call": analysis.tokens_per_call,
        "tokens_per_call_predicted": analysis.tokens_per_call,
        "predictive_total_variation": np.mean(predictive.total_variation),
        "predictive_kl_output_target": np.mean(predictive.kl_output_target),
        "predictive_kl_target_output": np.mean(predictive.kl_target_output),
    }
    if isinstance(case.target, theory.IIDChain) and isinstance(case.draft, theory.IIDChain):
        rounds = theory.analyse_round(case.target, case.draft, case.verifier, case.length)
        out["accepted_length"] = rounds.expected_accepted
    return {name: float(out[name]) for name in QUANTITIES if name in out}


def _estimates(
    case: Case, repetitions: int, samples: int, confidence: float, methods: Sequence[Method], rng: np.random.Generator
) -> Iterator[tuple[Estimate, ...]]:
    """Independent estimates, one for each method from the same samples."""
    size = case.target.vocab_size
    known = filter_sequences(all_prefixes(size, case.tokens), case.target, case.draft, case.verifier, case.length)
    arrays = [getattr(known, field.name) for field in fields(known)]
    place = size ** np.arange(case.tokens - 1, -1, -1)
    half = samples // 2
    step = max(1, ROWS_AT_ONCE // half)
    for start in range(0, repetitions, step):
        rows = min(step, repetitions - start) * half
        run = decode(case.target, case.draft, case.verifier, case.length, case.tokens, rows, rng)
        output, own = run.tokens @ place, sample(case.target, case.tokens, rows, rng) @ place
        for first in range(0, rows, half):
            cut = slice(first, first + half)
            filters = [theory.OffsetFilter(*(array[index[cut]] for array in arrays)) for index in (output, own)]
            yield tuple(
                estimate_from_filters(
                    *filters,
                    calls=run.calls[cut],
                    accepted=run.accepted[cut],
                    length=case.length,
                    tokens=case.tokens,
                    confidence=confidence,
                    method=method,
                )
                for method in methods
            )


def coverage_table(
    repetitions: int = 500,
    seed: int = 0,
    samples: int = 400,
    confidence: float = 0.95,
    methods: Sequence[Method] = ("normal", "bernstein"),
    *,
    only: Sequence[Case] | None = None,
    progress: bool = False,
) -> list[dict[str, Any]]:
    """Measure how often the intervals of `estimate` contain the exact value.

    Parameters
    ----------
    repetitions : int
        Independent estimates of every case.
    seed : int
    samples : int
        Sequences per estimate, both laws together; even, at least 4.
    confidence : float
    methods : sequence of {"normal", "bernstein"}
    only : sequence of Case, optional
        Other cases than `cases()`.
    progress : bool
        Show a bar.

    Returns
    -------
    list of dict
        One row a case, quantity and method: chain, quantity, method, samples, repetitions, exact, nominal, coverage,
        coverage_lower, coverage_upper (95 % Clopper–Pearson), mean_width.

    Raises
    ------
    ValueError
        For sizes out of range.
    """
    repetitions, samples = whole_number(repetitions, "repetitions", 1), whole_number(samples, "samples", 4)
    if samples % 2:
        raise ValueError(f"samples must be even, half from each law, got {samples}")
    chosen = cases() if only is None else list(only)
    table = []
    with tqdm(total=repetitions * len(chosen), unit="estimate", disable=not progress) as bar:
        for case, rng in zip(chosen, np.random.default_rng(seed).spawn(len(chosen)), strict=True):
            exact = exact_values(case)
            hits: dict[tuple[str, str], list[tuple[bool, float]]] = {}
            for group in _estimates(case, repetitions, samples, confidence, methods, rng):
                bar.update()
                for how, estimate in zip(methods, group, strict=True):
                    for name, interval in estimate.intervals().items():
                        if name in exact:
                            hits.setdefault((how, name), []).append((exact[name] in interval, interval.width))
            for (method, name), results in hits.items():
                covered = sum(hit for hit, _ in results)
                lower, upper = clopper_pearson(covered, repetitions)
                table.append(
                    {
                        "chain": case.name,
                        "quantity": name,
                        "method": method,
                        "samples": samples,
                        "repetitions": repetitions,
                        "exact": exact[name],
                        "nominal": confidence,
                        "coverage": covered / repetitions,
                        "coverage_lower": lower,
                        "coverage_upper": upper,
                        "mean_width": float(np.mean([width for _, width in results])),
                    }
                )
    return table


def format_table(table: Sequence[dict[str, Any]]) -> str:
    """The table as aligned text, one row a line."""
    head = (
        f"{'chain':20} {'quantity':27} {'method':9} {'samples':>7} {'exact':>9} {'width':>9} {'nominal':>7}  coverage"
    )
    lines = [head, "-" * len(head)]
    for row in table:
        lines.append(
            f"{row['chain']:20} {row['quantity']:27} {row['method']:9} {row['samples']:7d} {row['exact']:9.4g} "
            f"{row['mean_width']:9.3g} {row['nominal']:7.3g}  {row['coverage']:.3f} "
            f"[{row['coverage_lower']:.3f}, {row['coverage_upper']:.3f}]"
        )
    return "\n".join(lines)
