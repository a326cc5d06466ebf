"""`python -m validate cascade`: CASCADE's two properties on an embedded pair, and what relaxing by them buys.

Trees are LANTERN's 25 nodes, drafted by the pair's shipped feature drafter. Parts: *properties*
(`validate.cascade.properties`), *nodes* and *images* (`validate.cascade.comparison`). Each finished part is written to
--out at once; the same command again makes only the missing ones.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from simulate.files import write_json
from validate.cascade.comparison import compare_images, compare_nodes
from validate.cascade.properties import measure_properties
from validate.comparison.parts import weights_fingerprint
from validate.decoding import decode
from validate.drafters.attached import attached_folder
from validate.drafters.shipped import shipped_drafter
from validate.drafters.trees import feature_proposer
from validate.models import load
from validate.tree_shapes import LANTERN_TREE, tree_of_paths

PARTS = ("properties", "nodes", "images")
IMAGES, QUICK_IMAGES = 100, 8
TAUS, QUICK_TAUS = (0.95, 0.9, 0.7, -1.0), (0.9,)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(prog="python -m validate cascade", description=__doc__.split("\n\n")[0])
    p.add_argument("--pair", default="fashion", help="embedded pair with a feature drafter (default: fashion)")
    p.add_argument("--drafter", type=Path, help="folder of another drafter of that target")
    p.add_argument("--images", type=int, help=f"images a part (default: {IMAGES}; --quick: {QUICK_IMAGES})")
    p.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--device", default="cpu", choices=("auto", "cpu", "cuda"))
    p.add_argument("--quick", action="store_true", help="few images and settings, to see that it runs")
    p.add_argument("--out", type=Path, help="JSON file; finished parts in it are kept")
    return p


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return f"{value[1]:.4g}±{(value[2] - value[0]) / 2:.2g}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {number:g}" for name, number in value.items())
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def table(rows: list[dict[str, Any]]) -> str:
    """Plain text; ± is half the 95 % interval."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [names] + [[_cell(row.get(name)) for name in names] for row in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(names))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines)


def summary(found: dict[str, Any]) -> str:
    """The properties' main numbers."""
    rows = [
        {"nodes": name, "pairs": part["pairs"], "cosine": part["cosine"], "share > .7": part["share_above"]["0.7"],
         "TV": part["tv"], "TV where > .9": part["tv_where_above"]["0.9"],
         "rank correlation": part["rank_correlation_with_tv"]}
        for name, part in [
            ("siblings", found["siblings"]), ("unrelated", found["unrelated"]),
            *((f"{d} tokens behind two parents", part) for d, part in found["convergence_by_distance"].items()),
        ]
    ]  # fmt: skip
    return table(rows)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """All parts asked for, from the file where they are done."""
    count = options.images
    if count is None:
        count = QUICK_IMAGES if options.quick else IMAGES
    if count < 4:
        raise ValueError(f"--images is {count}; intervals need at least 4")
    pair = load(options.pair, device=options.device)
    drafter = shipped_drafter(pair, options.drafter)
    folder = options.drafter or attached_folder(pair, "drafter")
    settings = {
        "pair": pair.name, "images": count, "seed": options.seed, "quick": options.quick, "guidance": pair.guidance,
        "tree": "LANTERN's 25 nodes", "weights": weights_fingerprint(pair, [folder]),
    }  # fmt: skip
    report: dict[str, Any] = {"settings": settings}
    if options.out is not None and options.out.exists():
        try:
            report = json.loads(options.out.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{options.out} is damaged ({error}): delete it, or name another") from None
        if not isinstance(report, dict):
            raise ValueError(f"{options.out} holds no report: delete it, or name another")
        if report.get("settings") != settings:
            raise ValueError(
                f"{options.out} was made with {report.get('settings')}, now it is {settings}: name another"
            )
    tree, taus = tree_of_paths(LANTERN_TREE), QUICK_TAUS if options.quick else TAUS
    proposer = feature_proposer(drafter)
    like = decode(pair, None, 0, count, device=options.device, seed=options.seed)
    parts: dict[str, Callable[[], Any]] = {
        "properties": lambda: measure_properties(pair, like, tree, proposer, options.seed),
        "nodes": lambda: compare_nodes(pair, like, drafter, options.seed, taus),
        "images": lambda: compare_images(pair, like, tree, proposer, options.seed + 1, quick=options.quick),
    }
    for name in options.parts:
        if name not in report:
            report[name] = parts[name]()
            if options.out is not None:
                write_json(options.out, report)
        print(f"\n== {name}\n{(summary if name == 'properties' else table)(report[name])}", flush=True)
    return report


def main(arguments: Sequence[str]) -> int:
    """Measure; the exit status is 2 for bad input, 130 after Ctrl-C."""
    p = parser()
    options = p.parse_args(arguments)
    if options.out is not None and (options.out.is_dir() or not os.access(options.out.parent, os.W_OK)):
        p.error(f"--out: {options.out} is a folder, or its folder does not exist or cannot be written to")
    began = time.perf_counter()
    try:
        run(options)
    except KeyboardInterrupt:
        print("\nstopped; finished parts are in --out", file=sys.stderr)
        return 130
    except (ValueError, RuntimeError, OSError, LookupError, TypeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{time.perf_counter() - began:.0f} s")
    return 0
