"""Convex programmes through cvxpy, loaded when first needed; an unfinished solution is never used.

>>> solve_status_is_final("optimal"), solve_status_is_final("optimal_inaccurate")
(True, False)
"""

from __future__ import annotations

import warnings
from typing import Any

HIGHS_OPTIONS = {"method": "highs", "primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
"""HiGHS's tightest: its default 1e-7 is as large as the masses of deep prefixes."""


def load_cvxpy() -> Any:
    """The cvxpy module, or an ImportError that says how to get it."""
    try:
        import cvxpy
    except ImportError as error:
        raise ImportError("convex programmes need cvxpy: install relaxsd[convex]") from error
    return cvxpy


def solve_status_is_final(status: str) -> bool:
    """Whether a cvxpy status means solved to the solver's tolerance."""
    return status == "optimal"


def solve(problem: Any, solver: str, what: str, **options: Any) -> None:
    """Solve in place with HiGHS or Clarabel.

    HiGHS is scipy's: the package of that name prints a banner that no option silences.

    Raises
    ------
    RuntimeError
        Naming the status, if the solver fails or stops early; nothing of its answer is used.
    """
    cp = load_cvxpy()
    if solver == "HIGHS":
        solver, options = "SCIPY", {"scipy_options": HIGHS_OPTIONS | options}
    try:
        with warnings.catch_warnings():
            # cvxpy warns about inaccurate solutions; here they are errors.
            warnings.filterwarnings("ignore", message="Solution may be inaccurate")
            problem.solve(solver=solver, **options)
    except cp.SolverError as error:
        raise RuntimeError(f"{what} was not solved: {error}; nothing is returned") from error
    if not solve_status_is_final(problem.status):
        raise RuntimeError(f"{what} was not solved: status {problem.status!r}; nothing is returned")
