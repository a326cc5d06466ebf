"""`python -m validate compare`: every method on one pair in one table, chain methods matched at equal tokens per call.

Each method's numbers are stored whole in a folder beside --out as soon as it is done, so a run that was stopped goes on
where it stood. See `validate.comparison` for what is measured.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from simulate.files import write_json
from validate.comparison.lossless import power_of_test
from validate.comparison.matching import Matcher
from validate.comparison.measuring import measure_point, points
from validate.comparison.methods import relaxed_methods
from validate.comparison.parts import Parts, weights_fingerprint
from validate.comparison.ratios import REFERENCE, add_ratios
from validate.comparison.rounds import draft_rounds
from validate.comparison.schemes import SCHEMES
from validate.comparison.sweep_command import sweep
from validate.comparison.table import best, lossless_lines, table
from validate.drafters.attached import attached_folder
from validate.measurement import sample_baseline
from validate.models import Pair, Warp, load, resolve_device

SIZES, QUICK_SIZES = (0.1, 0.3, 0.5, 0.7), (0.3, 0.6)
IMAGES, QUICK_IMAGES = 100, 24
MATCHING_IMAGES, QUICK_MATCHING = 60, 16
QUICK_METHODS = (REFERENCE, "COOL-SD, floored", "LANTERN++, G*", "lifted uniform", "capped excess")
QUICK_SCHEMES = ("SJD", "coupled SJD", "tree", "budgeted uniform, KL(out|p)")
DEAR = ("mentored", "Cactus")
"""Left out unless asked for, minutes a size: a factor found anew at every prefix; one residual a rejected token."""
INTERRUPTED = 130
"""Exit status of a command that Ctrl-C ended."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(
        prog="python -m validate compare",
        description=__doc__.split("\n\n")[0],
        epilog="compare --sweep --help: over drafts, guidance scales and block lengths",
    )
    p.add_argument("--pair", default="fashion", help="embedded pair (default: fashion)")
    p.add_argument("--draft", help="which of the pair's drafts (default: the pair's own choice)")
    p.add_argument("--length", type=int, default=5, help="drafted tokens a round, L (default: 5)")
    p.add_argument("--window", type=int, default=16, help="drafts of Jacobi decoding, W (default: 16)")
    p.add_argument("--images", type=int, help=f"images a method (default: {IMAGES}; --quick: {QUICK_IMAGES})")
    p.add_argument("--sizes", type=float, nargs="+", metavar="T",
                   help="shares of the way from lossless (0) to accepting every draft (1); "
                        f"default: {' '.join(map(str, SIZES))}")  # fmt: skip
    p.add_argument(
        "--methods",
        nargs="+",
        metavar="NAME",
        help="relaxed methods (default: all but mentored and Cactus); uniform is always one",
    )
    p.add_argument("--schemes", nargs="*", metavar="NAME", help="Jacobi, trees, budgets, … (default: all)")
    p.add_argument("--drafter", type=Path, help="folder of a feature drafter (default: the pair's own)")
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


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    p = parser()
    options = p.parse_args(arguments)
    if options.images is None:
        options.images = QUICK_IMAGES if options.quick else IMAGES
    options.sizes = tuple(sorted(set(options.sizes or (QUICK_SIZES if options.quick else SIZES))))
    if options.images < 4:
        p.error(f"--images is {options.images}; intervals need at least 4")
    wrong = [size for size in options.sizes if not 0 < size < 1]
    if wrong:
        p.error(f"--sizes: {wrong[0]} does not lie between 0 and 1")
    known = list(relaxed_methods(2, [[0.0], [1.0], [2.0]]))
    methods = options.methods or (QUICK_METHODS if options.quick else [name for name in known if name not in DEAR])
    unknown = [name for name in methods if name not in known]
    if unknown:
        p.error(f"unknown method {unknown[0]!r}; known: {'; '.join(known)}")
    named = options.schemes
    strange = [name for name in named or () if name not in SCHEMES]
    if strange:
        p.error(f"unknown scheme {strange[0]!r}; known: {'; '.join(SCHEMES)}")
    options.schemes = (QUICK_SCHEMES if options.quick else tuple(SCHEMES)) if named is None else tuple(named)
    options.methods = [name for name in known if name in methods or name == REFERENCE]
    if options.out is not None and options.out.is_dir():
        p.error(f"--out: {options.out} is a folder; name a file")
    if options.out is not None and not (options.out.parent.is_dir() and os.access(options.out.parent, os.W_OK)):
        p.error(f"--out: the folder {options.out.parent} does not exist or cannot be written to")
    return options


def _attached(pair: Pair, drafter: Path | None) -> list[Path]:
    """Folders of the networks that draft for the pair's target."""
    own = attached_folder(pair, "drafter") if drafter is None else drafter
    return [own, attached_folder(pair, "row_below"), attached_folder(pair, "multiscale")]


def compare(options: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """All rows and the power of the test of lossless ones, from disk where they are done."""
    device = resolve_device(options.device)
    pair = load(options.pair, draft=options.draft, device=options.device)
    pair = pair.with_warp(Warp(options.temperature, options.top_k, options.top_p))
    if not 1 <= options.length < pair.num_tokens:
        raise ValueError(f"--length must lie in 1…{pair.num_tokens - 1}, got {options.length}")
    settings = {
        "pair": pair.name, "draft": pair.draft_name, "length": options.length,
        "weights": weights_fingerprint(pair, _attached(pair, options.drafter)),
        "window": options.window, "images": options.images, "seed": options.seed, "device": device.type,
        "guidance": pair.guidance if options.guidance is None else options.guidance,
        "temperature": options.temperature, "top_k": options.top_k, "top_p": options.top_p, "quick": options.quick,
    }  # fmt: skip
    parts = Parts(options.out, settings)
    todo = points(
        pair, options.length, options.sizes, options.methods,
        window=options.window, drafter=options.drafter, schemes=options.schemes,
    )  # fmt: skip
    rows: dict[str, dict[str, Any]] = {}
    for point in todo:
        stored = parts.get(point.key)
        if stored is not None:
            rows[point.key] = stored
    few = QUICK_MATCHING if options.quick else MATCHING_IMAGES
    baseline = matcher = drafted = None
    power = parts.get("power")
    if power is None or len(rows) < len(todo):
        baseline = sample_baseline(
            pair, options.images, device=options.device, seed=options.seed, guidance=options.guidance
        )
        matcher = Matcher(baseline.predicting_scores.first(few), options.length)
        drafted = draft_rounds(pair, options.length, baseline, options.seed)
    bar = tqdm(todo, initial=0, unit="method", disable=options.quiet)
    for point in bar:
        bar.set_postfix_str(point.name)
        if point.key not in rows:
            assert baseline is not None
            row = measure_point(pair, point, options.length, baseline, matcher, options.seed, drafted=drafted)
            parts.put(point.key, row)
            rows[point.key] = row
    out = [rows[point.key] for point in todo]
    if power is None:
        assert baseline is not None
        found = power_of_test(pair, baseline, options.length, options.seed)
        power = found.as_json() | {"text": str(found)}
        parts.put("power", power)
    add_ratios(out)
    if options.out is not None:
        bare = [{name: value for name, value in row.items() if name != "terms"} for row in out]
        write_json(options.out, {"settings": settings, "sizes": options.sizes, "power": power, "rows": bare})
    return out, power


def main(arguments: Sequence[str]) -> int:
    """Run the comparison; the exit status is 2 for bad input, 130 after Ctrl-C."""
    if "--sweep" in arguments:
        return sweep([a for a in arguments if a != "--sweep"])
    options = _options(arguments)
    began = time.perf_counter()
    try:
        rows, power = compare(options)
    except KeyboardInterrupt:
        where = "nothing is kept without --out" if options.out is None else "start it again to go on"
        print(f"\nstopped; {where}", file=sys.stderr)
        return INTERRUPTED
    except (ValueError, RuntimeError, OSError, LookupError, MemoryError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(table(rows))
    print("\n".join([*best(rows), *lossless_lines(rows), f"  {power['text']}"]))
    print(
        f"± is half the 95 % interval; KL in nats per token; {options.images} images a method; "
        f"{time.perf_counter() - began:.0f} s, {time.process_time():.0f} s of the processor"
    )
    if options.out is not None:
        print(f"wrote {options.out}")
    return 0
