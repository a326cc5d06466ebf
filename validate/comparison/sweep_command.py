"""`python -m validate compare --sweep`: which rule is best, over drafts, guidance scales and block lengths."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simulate.files import write_atomically
from validate.comparison.methods import relaxed_methods
from validate.comparison.parts import Parts, weights_fingerprint
from validate.comparison.paths import MEASURES
from validate.comparison.ratios import REFERENCE
from validate.comparison.sweep import (
    CANDIDATE,
    LENGTHS,
    RIVAL,
    SIZES,
    Setting,
    cells,
    counts,
    settings_of,
    standing,
    sweep_rows,
)
from validate.comparison.sweep_table import printed
from validate.models import load, resolve_device

__all__ = ["sweep"]

IMAGES, QUICK_IMAGES = 32, 8
INTERRUPTED = 130


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(prog="python -m validate compare --sweep", description=__doc__)
    p.add_argument("--pair", default="fashion", help="embedded pair (default: fashion)")
    p.add_argument("--drafts", nargs="+", metavar="NAME", help="of the pair's drafts (default: all)")
    p.add_argument(
        "--guidance", type=float, nargs="+", metavar="SCALE", help="default: 1, the pair's, twice the pair's"
    )
    p.add_argument("--lengths", type=int, nargs="+", metavar="L", help=f"default: {' '.join(map(str, LENGTHS))}")
    p.add_argument("--sizes", type=float, nargs="+", metavar="T", help=f"default: {' '.join(map(str, SIZES))}")
    p.add_argument("--methods", nargs="+", metavar="NAME", help="default: all but LANTERN++ as published")
    p.add_argument("--images", type=int, help=f"of the target (default: {IMAGES}; --quick: {QUICK_IMAGES})")
    p.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--quick", action="store_true", help="two settings, one size, few images")
    p.add_argument("--out", type=Path, help="JSON file; a folder of the same name with .parts holds what is done")
    p.add_argument("--quiet", action="store_true", help="do not say what is being done")
    return p


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    p = parser()
    options = p.parse_args(arguments)
    if options.images is None:
        options.images = QUICK_IMAGES if options.quick else IMAGES
    if options.images < 4:
        p.error(f"--images is {options.images}; intervals need at least 4")
    options.sizes = sorted(set(options.sizes or (SIZES[1:2] if options.quick else SIZES)))
    wrong = [size for size in options.sizes if not 0 < size < 1]
    if wrong:
        p.error(f"--sizes: {wrong[0]} does not lie between 0 and 1")
    known = list(relaxed_methods(2, [[0.0], [1.0], [2.0]]))
    wanted = options.methods or [name for name in known if name != "LANTERN++, published"]
    unknown = [name for name in wanted if name not in known]
    if unknown:
        p.error(f"unknown method {unknown[0]!r}; known: {'; '.join(known)}")
    if options.quick and options.methods is None:
        wanted = [REFERENCE, "COOL-SD, floored", RIVAL, CANDIDATE]
    options.methods = [name for name in known if name in wanted or name == REFERENCE]
    if options.out is not None and options.out.is_dir():
        p.error(f"--out: {options.out} is a folder; name a file")
    if options.out is not None and not (options.out.parent.is_dir() and os.access(options.out.parent, os.W_OK)):
        p.error(f"--out: the folder {options.out.parent} does not exist or cannot be written to")
    return options


def run(options: argparse.Namespace) -> dict[str, Any]:
    """The whole report, parts from disk where they are done."""
    device = resolve_device(options.device)
    pair = load(options.pair, device=options.device)
    drafts = list(pair.drafts) if options.drafts is None else options.drafts
    unknown = [name for name in drafts if name not in pair.drafts]
    if unknown:
        raise ValueError(f"unknown draft {unknown[0]!r}; known drafts are {', '.join(pair.drafts)}")
    scales = options.guidance or sorted({1.0, pair.guidance, 2 * pair.guidance})
    if pair.target.unconditional:
        scales = [1.0]
    lengths = options.lengths or list(LENGTHS)
    long = [n for n in lengths if not 1 <= n < pair.num_tokens]
    if long:
        raise ValueError(f"--lengths must lie in 1…{pair.num_tokens - 1}, got {long[0]}")
    if options.quick:
        drafts, scales, lengths = drafts[:1], scales[-1:], lengths[:2]
    common = {"pair": pair.name, "weights": weights_fingerprint(pair), "images": options.images, "seed": options.seed,
              "device": device.type, "sizes": list(options.sizes)}  # fmt: skip
    parts = Parts(options.out, common)

    def tell(text: str) -> None:
        if not options.quiet:
            print(f"{time.process_time():6.0f} s  {text}", file=sys.stderr, flush=True)

    middle = lengths[len(lengths) // 2]
    centre = Setting(drafts[0], pair.guidance if pair.guidance in scales else scales[0], middle)
    rows = sweep_rows(
        pair, settings_of(drafts, scales, lengths), options.sizes, options.methods, options.images, parts,
        centre=centre, seed=options.seed, tell=tell,
    )  # fmt: skip
    found = cells(rows)
    report = {
        "settings": common | {"drafts": drafts, "guidance": scales, "lengths": lengths, "methods": options.methods},
        "counts": {measure: counts(found, measure) for measure in MEASURES},
        "standing": {measure: standing(found, measure) for measure in MEASURES},
        "cells": found,
    }
    if options.out is not None:
        write_atomically(options.out, _one_line_a_cell(report).encode())
    return report


def _one_line_a_cell(report: dict[str, Any]) -> str:
    """JSON that a reader can scan and that stays small."""
    head = json.dumps({name: value for name, value in report.items() if name != "cells"}, indent=1, ensure_ascii=False)
    cell_lines = ",\n  ".join(json.dumps(cell, ensure_ascii=False) for cell in report["cells"])
    return f'{head[:-2]},\n "cells": [\n  {cell_lines}\n ]\n}}\n'


def sweep(arguments: Sequence[str]) -> int:
    """Run the sweep; the exit status is 2 for bad input, 130 after Ctrl-C."""
    options = _options(arguments)
    began = time.perf_counter()
    try:
        report = run(options)
    except KeyboardInterrupt:
        where = "nothing is kept without --out" if options.out is None else "start it again to go on"
        print(f"\nstopped; {where}", file=sys.stderr)
        return INTERRUPTED
    except (ValueError, RuntimeError, OSError, LookupError, MemoryError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(printed(report))
    print(
        f"paired intervals at 95 % each, without the error of matching; {options.images} images of the target; "
        f"{time.perf_counter() - began:.0f} s, "
        f"{time.process_time():.0f} s of the processor"
    )
    if options.out is not None:
        print(f"wrote {options.out}")
    return 0
