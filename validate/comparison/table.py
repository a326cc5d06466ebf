"""The printed table of a comparison, and what is told of it: the three best of every size, the lossless ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from validate.comparison.ratios import paired_ratio

__all__ = ["aligned", "best", "lossless_lines", "table"]

COLUMNS = (
    ("accepted", "accepted_length", 3),
    ("tok/call", "tokens_per_call", 3),
    ("speed-up", "speed_up", 2),
    ("round B", "round_bound", 3),
    ("round TV", "round_total_variation", 3),
    ("round KL", "round_kl_output_target", 3),
    ("gap >=", "frontier_gap_least", 2),
    ("gap <=", "frontier_gap_most", 2),
    ("pred. TV", "predictive_tv", 4),
    ("KL(out|p)", "kl_output_target", 4),
    ("KL(p|out)", "kl_target_output", 4),
    ("/unif. out", "ratio_kl_output_target", 2),
    ("/unif. p, paired", "ratio_kl_target_output_paired", 2),
    ("image TV", "image_tv", 3),
    ("max ratio", "max_ratio", 1),
    ("leak", "support_leakage", 4),
    ("Frechet", "frechet_distance", 2),
    ("judge", "judge_accuracy", 3),
    ("nll", "nll_per_token", 3),
)


def _cell(value: Any, digits: int) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        lower, middle, upper = value
        if not isinstance(middle, float | int):
            return _cell(middle, digits)
        half = (upper - lower) / 2 if isinstance(upper, float | int) else math.inf
        return f"{middle:.{digits}f}±{half:.{digits}f}"
    return f"{value:.{digits}f}"


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Rows of cells as columns of text."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Plain-text table; ± is half the 95 % interval."""
    lines = [["method", "t", *(title for title, _, _ in COLUMNS), "setting"]]
    for row in rows:
        cells = [_cell(row.get(name), digits) for _, name, digits in COLUMNS]
        lines.append([row["method"], "-" if row["size"] is None else f"{row['size']:g}", *cells, row["setting"]])
    return aligned(lines)


def best(rows: Sequence[dict[str, Any]]) -> list[str]:
    """For each size, the three methods of least KL, and whether the first is told from the second."""
    lines = []
    for size in sorted({row["size"] for row in rows if row["size"] is not None}):
        paired, decoded = "ratio_kl_target_output_paired", "ratio_kl_output_target"
        for name, label in ((paired, "KL(p|out), same images"), (decoded, "KL(out|p), decoded images")):
            ranked = sorted(
                (row for row in rows if row["size"] == size and row.get(name)), key=lambda row: float(row[name][1])
            )
            shown = [f"{row['method']} {row[name][1]:.3f} [{row[name][0]:.3f}, {row[name][2]:.3f}]" for row in ranked]
            if shown:
                lines.append(f"t = {size:g}, {label}, over uniform's: {'; '.join(shown[:3])}")
            if name == paired and len(ranked) > 1:
                ratio = paired_ratio(*(row["terms"]["kl_target_output"] for row in ranked[:2]))
                if ratio is not None:
                    told = "told apart" if ratio.upper < 1 else "NOT told apart"
                    lines.append(
                        f"    first over second, image by image: {ratio.value:.3f} "
                        f"[{ratio.lower:.3f}, {ratio.upper:.3f}]: {told}"
                    )
    return lines


def lossless_lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Of every lossless method, the p-value that its images are the target's."""
    shown = [f"{row['method']} {row['same_as_target_p']:.3g}" for row in rows if row.get("lossless")]
    return [f"lossless methods against the target, likelihood-ratio test, p-values: {'; '.join(shown)}"]
