"""What a sweep's report says: every cell's ranking, the counts, and the sentence the README quotes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from validate.comparison.ratios import REFERENCE
from validate.comparison.sweep import CANDIDATE, RIVAL
from validate.comparison.table import aligned

__all__ = ["printed", "summary"]

QUOTED = {
    "capped excess": "the same with ν = .7", "lifted uniform": "lifted uniform", "uniform": "uniform",
    "COOL-SD, floored": "floored COOL-SD",
}  # fmt: skip
SHORT = {"kl_target_output": "KL(p|out)", "predictive_tv": "pred. TV", "round_bound": "round B"}


def ranking(cell: dict[str, Any], measure: str) -> str:
    """The three least, over uniform's."""
    name = f"{measure}_over_uniform"
    ranked = sorted((e[name][1], m) for m, e in cell["methods"].items() if e.get(name))
    return "; ".join(f"{method} {ratio:.3f}" for ratio, method in ranked[:3])


def printed(report: dict[str, Any]) -> str:
    """Every cell's ranking, and the counts."""
    lines = [["draft", "guidance", "L", "t", "KL(p|out) over uniform's, least first", f"{CANDIDATE}/{RIVAL}"]]
    for cell in report["cells"]:
        ratio = cell["methods"].get(RIVAL, {}).get("kl_target_output_of_candidate_over_this")
        shown = "-" if ratio is None else f"{ratio[1]:.3f} [{ratio[0]:.3f}, {ratio[2]:.3f}]"
        setting = [cell["draft"], f"{cell['guidance']:g}", str(cell["length"]), f"{cell['size']:g}"]
        lines.append([*setting, ranking(cell, "kl_target_output"), shown])
    out = [aligned(lines)]
    for measure, tally in report["counts"].items():
        first = ", ".join(f"{name} {n}" for name, n in sorted(tally["best"].items(), key=lambda item: -item[1]))
        out.append(f"\n{SHORT[measure]}: best of {tally['cells']} cells: {first}; {CANDIDATE} against")
        lines = [["", "less", "not told apart", "more", "ratios of means"]]
        for name, n in tally["candidate_against"].items():
            span = f"{n['least']:.3f}…{n['most']:.3f}"
            lines.append([name, str(n["less"]), str(n["not told apart"]), str(n["more"]), span])
        out.append(aligned(lines))
        lines = [["", "cells", "over uniform, geometric mean", "behind the best, at most"]]
        ranked = sorted(report["standing"][measure].items(), key=lambda item: item[1]["over_uniform"])
        lines += [[n, str(e["cells"]), f"{e['over_uniform']:.3f}", f"{e['behind_best']:.3f}"] for n, e in ranked]
        out.append(aligned(lines))
    return "\n".join(out)


def _span(ratios: Sequence[float]) -> str:
    return f"{min(ratios):.2f} to {max(ratios):.2f}"


def summary(report: dict[str, Any], measure: str = "kl_target_output") -> str:
    """One sentence on the candidate, as the README quotes it."""
    found, tally, stand = report["cells"], report["counts"][measure], report["standing"][measure]
    by_size = []
    for size in sorted({cell["size"] for cell in found}):
        entries = [cell["methods"].get(CANDIDATE, {}) for cell in found if cell["size"] == size]
        ratios = [e[f"{measure}_over_uniform"][1] for e in entries if e.get(f"{measure}_over_uniform")]
        by_size.append(f"{_span(ratios)} at t = {size:g}")
    uniform = tally["candidate_against"][REFERENCE]
    compared = sum(uniform[name] for name in ("less", "not told apart", "more"))
    behind = ", ".join(f"{label} {stand[name]['behind_best']:.2f}" for name, label in QUOTED.items())
    return (
        f"over {tally['cells']} settings its KL(p‖out) per token is {stand[CANDIDATE]['over_uniform']:.2f} of uniform "
        f"relaxation's on average ({'; '.join(by_size)}), told apart and less in {uniform['less']} of {compared}; "
        f"it is never more than {stand[CANDIDATE]['behind_best']:.2f} times the best method's there ({behind})"
    )
