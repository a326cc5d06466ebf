"""`python -m validate compare`: every chain method on one pair in one table, matched at equal tokens per call.

Each method's numbers are stored whole in a folder beside --out as soon as it is done, so a run that was stopped goes on
where it stood. See `validate.comparison` for what is measured.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from simulate.files import write_json
from simulate.intervals import Interval
from simulate.ratios import ratio_at_equal_cost
from validate.comparison import Matcher, Point, measure_point, paired_ratio, points, relaxed_methods
from validate.measurement import sample_baseline
from validate.models import Pair, Warp, load, resolve_device

SIZES, QUICK_SIZES = (0.1, 0.3, 0.5, 0.7), (0.3, 0.6)
IMAGES, QUICK_IMAGES = 100, 24
MATCHING_IMAGES, QUICK_MATCHING = 60, 16
REFERENCE = "uniform"
QUICK_METHODS = (REFERENCE, "COOL-SD, floored", "LANTERN++, G*", "lifted uniform", "capped excess")
RATIOS = ("kl_output_target", "predictive_tv")
INTERRUPTED = 130
"""Exit status of a command that Ctrl-C ended."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(prog="python -m validate compare", description=__doc__.split("\n\n")[0])
    p.add_argument("--pair", default="fashion", help="embedded pair (default: fashion)")
    p.add_argument("--draft", help="which of the pair's drafts (default: the pair's own choice)")
    p.add_argument("--length", type=int, default=5, help="drafted tokens a round, L (default: 5)")
    p.add_argument("--window", type=int, default=16, help="drafts of Jacobi decoding, W (default: 16)")
    p.add_argument("--images", type=int, help=f"images a method (default: {IMAGES}; --quick: {QUICK_IMAGES})")
    p.add_argument("--sizes", type=float, nargs="+", metavar="T",
                   help="shares of the way from lossless (0) to accepting every draft (1); "
                        f"default: {' '.join(map(str, SIZES))}")  # fmt: skip
    p.add_argument("--methods", nargs="+", metavar="NAME", help="relaxed methods (default: all); uniform is always one")
    p.add_argument("--guidance", type=float, help="classifier-free guidance scale (default: the pair's)")
    p.add_argument("--temperature", type=float, default=1.0)
    p.add_argument("--top-k", type=int, default=0, help="tokens kept (default: all)")
    p.add_argument("--top-p", type=float, default=1.0, help="mass kept (default: all)")
    p.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--quick", action="store_true", help="few methods and images, to see that it runs")
    p.add_argument("--out", type=Path, help="JSON file; a folder of the same name with .parts holds what is done")
    p.add_argument("--quiet", action="store_true", help="no progress bar")
    return p


class Parts:
    """Finished points on disk; a folder made with other settings is refused."""

    def __init__(self, out: Path | None, settings: dict[str, Any]) -> None:
        self.folder = None if out is None else out.with_name(out.name + ".parts")
        if self.folder is None:
            return
        self.folder.mkdir(exist_ok=True)
        file = self.folder / "settings.json"
        if not file.exists():
            write_json(file, settings)
        found = json.loads(file.read_text())
        for name in settings:
            if found.get(name) != settings[name]:
                raise ValueError(
                    f"{self.folder} was begun with {name} = {found.get(name)!r}, now it is {settings[name]!r}: choose "
                    "another --out, or delete the folder"
                )

    def get(self, point: Point) -> dict[str, Any] | None:
        """The stored numbers of a point, if it is done."""
        file = None if self.folder is None else self.folder / f"{point.key}.json"
        if file is None or not file.exists():
            return None
        return dict(json.loads(file.read_text()))

    def put(self, point: Point, row: dict[str, Any]) -> None:
        """Store a finished point."""
        if self.folder is not None:
            write_json(self.folder / f"{point.key}.json", row)


def _interval(values: Any) -> Interval | None:
    if not isinstance(values, list) or not all(isinstance(v, float | int) for v in values):
        return None
    lower, value, upper = (float(v) for v in values)
    return Interval(lower, value, upper, 0.95)


def _rounded(interval: Interval | None) -> list[float] | None:
    return None if interval is None else [float(f"{x:.4g}") for x in interval]


def _independent_ratio(ours: Interval | None, reference: Interval | None) -> Interval | None:
    """Of two positive estimates from different images: their relative half-widths in quadrature."""
    if ours is None or reference is None or min(ours.value, reference.value) <= 0:
        return None
    spread = math.hypot(*((i.upper - i.lower) / 2 / i.value for i in (ours, reference)))
    ratio = ours.value / reference.value
    return Interval(ratio * math.exp(-spread), ratio, ratio * math.exp(spread), ours.confidence)


def add_ratios(rows: list[dict[str, Any]]) -> None:
    """Ratios to uniform relaxation at the same size, hence at equal predicted tokens per call.

    "ratio_kl_target_output_paired" is taken over the same images of the target; the others compare decoded images, and
    with "…_measured_cost" at equal measured tokens per call (uniform's curve interpolated), whose own error makes
    them wide.
    """
    reference = {row["size"]: row for row in rows if row["method"] == REFERENCE and "terms" in row}
    lossless = next((row for row in rows if row["method"] == "lossless"), None)
    cost_name = "tokens_per_call_from_posterior"
    curve = sorted(reference.values(), key=lambda row: row[cost_name][1])
    for row in rows:
        if row["size"] not in reference or "terms" not in row or row["method"] == REFERENCE:
            continue
        base = reference[row["size"]]
        paired = paired_ratio(row["terms"]["kl_target_output"], base["terms"]["kl_target_output"])
        row["ratio_kl_target_output_paired"] = _rounded(paired)
        for name in RATIOS:
            value = _interval(row[name])
            row[f"ratio_{name}"] = _rounded(_independent_ratio(value, _interval(base[name])))
            row[f"ratio_{name}_measured_cost"] = None
            cost, costs, values = _interval(row[cost_name]), [], []
            for other in curve:
                pair = _interval(other[cost_name]), _interval(other[name])
                if pair[0] is not None and pair[1] is not None:
                    costs.append(pair[0])
                    values.append(pair[1])
            if value is None or cost is None or lossless is None:
                continue
            try:
                ratio = ratio_at_equal_cost(cost, value, costs, values, lossless[cost_name][1])
            except ValueError:  # a single uniform point, or one no faster than lossless: no curve to compare with
                continue
            row[f"ratio_{name}_measured_cost"] = _rounded(ratio)


COLUMNS = (
    ("accepted", "accepted_length", 3),
    ("tok/call", "tokens_per_call", 3),
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


def table(rows: list[dict[str, Any]]) -> str:
    """Plain-text table; ± is half the 95 % interval."""
    lines = [["method", "t", *(title for title, _, _ in COLUMNS), "setting"]]
    for row in rows:
        cells = [_cell(row.get(name), digits) for _, name, digits in COLUMNS]
        lines.append([row["method"], "-" if row["size"] is None else f"{row['size']:g}", *cells, row["setting"]])
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines)


def best(rows: list[dict[str, Any]]) -> list[str]:
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


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    p = parser()
    options = p.parse_args(arguments)
    options.images = options.images or (QUICK_IMAGES if options.quick else IMAGES)
    options.sizes = tuple(sorted(set(options.sizes or (QUICK_SIZES if options.quick else SIZES))))
    if options.images < 4:
        p.error(f"--images is {options.images}; intervals need at least 4")
    wrong = [size for size in options.sizes if not 0 < size < 1]
    if wrong:
        p.error(f"--sizes: {wrong[0]} does not lie between 0 and 1")
    known = list(relaxed_methods(2, [[0.0], [1.0], [2.0]]))
    methods = options.methods or (QUICK_METHODS if options.quick else known)
    unknown = [name for name in methods if name not in known]
    if unknown:
        p.error(f"unknown method {unknown[0]!r}; known: {'; '.join(known)}")
    options.methods = [name for name in known if name in methods or name == REFERENCE]
    if options.out is not None and options.out.is_dir():
        p.error(f"--out: {options.out} is a folder; name a file")
    if options.out is not None and not (options.out.parent.is_dir() and os.access(options.out.parent, os.W_OK)):
        p.error(f"--out: the folder {options.out.parent} does not exist or cannot be written to")
    return options


def _fingerprint(pair: Pair) -> str:
    """Of the networks' weights, so that results of another training are not taken for these."""
    digest = hashlib.sha256()
    for model in (pair.target, pair.draft):
        for name, value in getattr(model, "state_dict", dict)().items():
            digest.update(name.encode() + value.detach().double().sum().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def compare(options: argparse.Namespace) -> list[dict[str, Any]]:
    """All rows, from disk where they are done."""
    device = resolve_device(options.device)
    pair = load(options.pair, draft=options.draft, device=options.device)
    pair = pair.with_warp(Warp(options.temperature, options.top_k, options.top_p))
    if not 1 <= options.length < pair.num_tokens:
        raise ValueError(f"--length must lie in 1…{pair.num_tokens - 1}, got {options.length}")
    if not 1 <= options.window <= pair.num_tokens:
        raise ValueError(f"--window must lie in 1…{pair.num_tokens} (the image's tokens), got {options.window}")
    settings = {
        "pair": pair.name, "draft": pair.draft_name, "weights": _fingerprint(pair), "length": options.length,
        "window": options.window, "images": options.images, "seed": options.seed, "device": device.type,
        "guidance": pair.guidance if options.guidance is None else options.guidance,
        "temperature": options.temperature, "top_k": options.top_k, "top_p": options.top_p, "quick": options.quick,
    }  # fmt: skip
    parts = Parts(options.out, settings)
    todo = points(pair, options.length, options.sizes, options.methods)
    rows: dict[str, dict[str, Any]] = {}
    for point in todo:
        stored = parts.get(point)
        if stored is not None:
            rows[point.key] = stored
    baseline = matcher = None
    bar = tqdm(todo, initial=0, unit="method", disable=options.quiet)
    for point in bar:
        bar.set_postfix_str(point.name)
        if point.key in rows:
            continue
        if baseline is None or matcher is None:
            baseline = sample_baseline(
                pair, options.images, device=options.device, seed=options.seed, guidance=options.guidance
            )
            own, few = baseline.predicting_scores, QUICK_MATCHING if options.quick else MATCHING_IMAGES
            matcher = Matcher(own.first(few), options.length)
        row = measure_point(pair, point, options.length, options.window, baseline, matcher, options.seed)
        parts.put(point, row)
        rows[point.key] = row
    out = [rows[point.key] for point in todo]
    add_ratios(out)
    if options.out is not None:
        bare = [{name: value for name, value in row.items() if name != "terms"} for row in out]
        write_json(options.out, {"settings": settings, "sizes": options.sizes, "rows": bare})
    return out


def main(arguments: Sequence[str]) -> int:
    """Run the comparison; the exit status is 2 for bad input, 130 after Ctrl-C."""
    options = _options(arguments)
    began = time.perf_counter()
    try:
        rows = compare(options)
    except KeyboardInterrupt:
        where = "nothing is kept without --out" if options.out is None else "start it again to go on"
        print(f"\nstopped; {where}", file=sys.stderr)
        return INTERRUPTED
    except (ValueError, RuntimeError, OSError, LookupError, MemoryError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(table(rows))
    print("\n".join(best(rows)))
    print(
        f"± is half the 95 % interval; KL in nats per token; {options.images} images a method; "
        f"{time.perf_counter() - began:.0f} s. Budgeted decoding is not among the methods: networks cannot run it yet."
    )
    if options.out is not None:
        print(f"wrote {options.out}")
    return 0
