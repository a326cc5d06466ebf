"""Published claims, what this project computed about them, and the verdict.

One row a claim: who made it, whether its wording was readable, what was computed, the verdict and the first
counterexample (smallest denominators first). Nothing in the table is typed in: a row is what its function
found when it ran, by proofs (`proofs`, `annealing_proofs`) and by deterministic searches over chains of rationals. A
search that finds nothing is reported as the number of cases looked at, not as a proof. The verdicts:

======================================  ================================================================================
holds                                   proved, or no counterexample on the grid
holds for the bound only                B obeys the claim, the exact distance of some chain does not
fails with a counterexample             a chain that refutes it, by hand if you like
not decidable here                      needs networks, or a wording that was not available; the row says which
======================================  ================================================================================

>>> row = claims_ledger(only=["COOL-SD, Prop. 1 below lossless"])[0]
>>> row.verdict, row.counterexample
('fails with a counterexample', 'p = 1/3 2/3, q = 2/3 1/3, ω = 1/2: G* gives TV 0, Norm[p−q]_+ gives TV 1/6')
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, TypeAlias, get_args

Verdict: TypeAlias = Literal["holds", "holds for the bound only", "fails with a counterexample", "not decidable here"]
Wording: TypeAlias = Literal["sure", "reconstructed", "not available"]


@dataclass(frozen=True)
class Claim:
    """One row of the ledger.

    Attributes
    ----------
    claim, source : str
        What was claimed, and where.
    wording : {"sure", "reconstructed", "not available"}
        How well the claim's own statement is known.
    computed : str
        What this project evaluated, with the numbers.
    verdict : str
        One of the four of this module.
    counterexample : str or None

    Raises
    ------
    ValueError
        For an unknown verdict or wording, a failure without its counterexample, or an unavailable statement that
        is nevertheless judged.
    """

    claim: str
    source: str
    wording: Wording
    computed: str
    verdict: Verdict
    counterexample: str | None = None

    def __post_init__(self) -> None:
        if self.verdict not in get_args(Verdict):
            raise ValueError(f"verdict must be one of {', '.join(get_args(Verdict))}, got {self.verdict!r}")
        if self.wording not in get_args(Wording):
            raise ValueError(f"wording must be one of {', '.join(get_args(Wording))}, got {self.wording!r}")
        fails = self.verdict in ("fails with a counterexample", "holds for the bound only")
        if fails and not self.counterexample:
            raise ValueError(f"{self.claim!r} is said to fail; name the counterexample")
        if self.wording == "not available" and self.verdict != "not decidable here":
            raise ValueError(f"the wording of {self.claim!r} is not available, so it cannot be {self.verdict!r}")


def judge(bound_failure: str | None, exact_failure: str | None = None) -> tuple[Verdict, str | None]:
    """Verdict and counterexample from the first failure of the bound and of the exact distance (None: no failure)."""
    if bound_failure is not None:
        return "fails with a counterexample", bound_failure
    if exact_failure is not None:
        return "holds for the bound only", exact_failure
    return "holds", None


def ledger_entries() -> dict[str, Callable[[], Claim]]:
    """The functions behind the rows, by short name."""
    from theory import claims_cool_sd as cool
    from theory import claims_methods as methods

    return {
        "COOL-SD, Theorem 2 bound": cool.theorem_2_bound,
        "COOL-SD, Theorem 2 residual": cool.theorem_2_residual,
        "COOL-SD, Prop. 1": cool.prop_1,
        "COOL-SD, Prop. 1 below lossless": cool.prop_1_below_lossless,
        "COOL-SD, Prop. 2": cool.prop_2,
        "COOL-SD, Prop. 2 without its condition": cool.prop_2_without_condition,
        "COOL-SD, Prop. 2 for the exact distance": cool.prop_2_exact,
        "COOL-SD, ablation of the decay": cool.decay,
        "COOL-SD, linear decay": cool.linear_decay,
        "COOL-SD, schedule without a floor": cool.no_floor,
        "COOL-SD, G* in LANTERN++": cool.residual_in_lantern,
        "COOL-SD, G* in LANTERN++, larger k": cool.residual_in_lantern_by_k,
        "LANTERN, TV budget": methods.lantern_budget,
        "LANTERN, TV budget for a certain draft": methods.lantern_budget_one_hot,
        "GSD, Theorem 1": methods.gsd_theorem_1,
        "CSD, residual": methods.csd_residual,
        "SJD, losslessness": methods.sjd_lossless,
        "DIVERSED, output law": methods.ensemble_law,
        "Yin et al., one line": methods.one_line,
        "CASCADE, interchangeability": methods.cascade_breadth,
        "CASCADE, convergence": methods.cascade_depth,
    }


def claims_ledger(only: Sequence[str] | None = None) -> tuple[Claim, ...]:
    """Run the computations and return the table.

    Parameters
    ----------
    only : sequence of str, optional
        Short names of the rows wanted (`ledger_entries`); all by default, in about ten seconds.

    Returns
    -------
    tuple of Claim

    Raises
    ------
    ValueError
        For a name that is no row, listing the rows.
    """
    entries = ledger_entries()
    unknown = [name for name in only or () if name not in entries]
    if unknown:
        raise ValueError(f"no row is called {unknown[0]!r}; rows: {', '.join(entries)}")
    return tuple(entries[name]() for name in (entries if only is None else only))


def ledger_rows(ledger: Sequence[Claim]) -> list[dict[str, str]]:
    """The ledger as a tidy table of strings, one dictionary a row; no counterexample is the empty string."""
    return [{key: value or "" for key, value in asdict(row).items()} for row in ledger]
