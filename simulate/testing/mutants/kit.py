"""Runs the registry: is every mutant found out, and does everything correct pass?

>>> from simulate.testing.mutants.registry import MUTANTS
>>> verdict = judge(next(m for m in MUTANTS if m.name == "residual p"))
>>> verdict.killed, verdict.right, verdict.rounds < 2000
(True, True, True)
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from simulate.testing.calls import BadAnswer
from simulate.testing.law import check_law
from simulate.testing.mutants.mutant import Mutant
from simulate.testing.pairs import Pair
from simulate.testing.probes import OTHER_PROBES, PROBES

FALSE_ALARM = 1e-9
SMALLEST_TV = 0.02
"""The law test of a correct sampler, or of a mutant with a larger TV, stops where this would have been found."""

MOST_ROUNDS = 2**23


@dataclass(frozen=True)
class Verdict:
    """What the kit says of one registered sampler."""

    mutant: Mutant
    killed: bool
    rounds: int | None
    """Rounds after which the law test gave its verdict; None for a probe."""
    reason: str
    """What gave it away, or that nothing did."""

    @property
    def right(self) -> bool:
        """Whether a mutant was killed, or a correct sampler passed."""
        return self.killed == self.mutant.faulty


def judge(mutant: Mutant, false_alarm: float = FALSE_ALARM, seed: int = 0) -> Verdict:
    """Try one registered sampler by the law test or by its probe.

    Parameters
    ----------
    mutant : Mutant
    false_alarm : float
        Largest probability that a correct sampler fails the law test; probes have none.
    seed : int
    """
    if mutant.found_by != "law":
        try:
            fault = {**PROBES, **OTHER_PROBES}[mutant.found_by](mutant.sampler)
        except BadAnswer as error:
            fault = str(error)
        return Verdict(mutant, fault is not None, None, fault or "passed")
    # A fault of counts alone has TV zero up to rounding, as a correct sampler has.
    tv = mutant.total_variation or 0.0
    smallest = min(SMALLEST_TV, tv) if tv > 1e-9 else SMALLEST_TV
    pair = Pair("the mutant's own pair", mutant.target, mutant.draft, mutant.length, mutant.forced)  # type: ignore[arg-type]
    report = check_law(
        mutant.sampler,
        pairs=[pair],
        verifier=mutant.verifier,
        counts=mutant.counts,  # type: ignore[arg-type]
        false_alarm=false_alarm,
        smallest_tv=smallest,
        max_rounds=MOST_ROUNDS,
        rng=np.random.default_rng(seed),
        seeds=False,
        timeout=None,
    )
    rounds = sum(result.verdict_rounds for result in report.results)
    return Verdict(mutant, not report.passed, rounds, report.reason or "passed")


def chosen(names: Sequence[str], registry: Sequence[Mutant]) -> list[Mutant]:
    """The registered samplers of these names, all for none.

    Raises
    ------
    ValueError
        For a name that is not registered, with the nearest ones.
    """
    known = {mutant.name: mutant for mutant in registry}
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3, cutoff=0.3)
            raise ValueError(f"no mutant is called {name!r}; nearest: {', '.join(map(repr, near)) or 'none'}")
    return [known[name] for name in names] if names else list(registry)


def format_table(verdicts: Iterable[Verdict]) -> str:
    """One line each: name, kind, TV, rounds, killed or not and by what; then the totals."""
    verdicts = list(verdicts)
    lines = [("sampler", "kind", "TV", "rounds", "verdict", "by")]
    for v in verdicts:
        m, tv = v.mutant, v.mutant.total_variation
        word = ("killed" if v.killed else "SURVIVES") if m.faulty else ("FAILED" if v.killed else "passes")
        numbers = "" if tv is None else f"{tv:.4f}", "" if v.rounds is None else str(v.rounds)
        lines.append((m.name, m.kind, *numbers, word, m.found_by))
    widths = [max(len(line[i]) for line in lines) for i in range(6)]
    table = [
        "  ".join(cell.rjust(w) if i in (2, 3) else cell.ljust(w) for i, (cell, w) in enumerate(cells)).rstrip()
        for cells in (zip(line, widths, strict=True) for line in lines)
    ]
    killed, passed = ([v.right for v in verdicts if v.mutant.faulty is faulty] for faulty in (True, False))
    totals = f"{sum(killed)} of {len(killed)} mutants killed, {sum(passed)} of {len(passed)} correct ones passed"
    return "\n".join([*table, "", totals, *(f"{v.mutant.name}: {v.reason}" for v in verdicts if not v.right)])
