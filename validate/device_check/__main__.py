"""`python -m validate.device_check`: five minutes on a CUDA machine, ninety seconds without; JSON and a table."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from validate.device_check.runner import SECTIONS, run_checks, summary
from validate.models import resolve_device


def main(arguments: list[str] | None = None) -> int:
    """Run the check; the exit status is 1 if a section failed, 2 for bad options."""
    p = argparse.ArgumentParser(prog="python -m validate.device_check", description=__doc__.split(": ")[1])
    p.add_argument("--device", default="auto", help="auto (default), cpu, cuda or cuda:N")
    p.add_argument("--out", type=Path, default=Path("device_check.json"), help="JSON file (default: %(default)s)")
    p.add_argument("--quick", action="store_true", help="the CPU's small sizes on any device")
    p.add_argument("--sections", nargs="+", metavar="NAME", help=", ".join(section.name for section in SECTIONS))
    p.add_argument("--golden", type=Path, help="folder of the golden data (default: looked for beside the package)")
    options = p.parse_args(arguments)
    if options.out.is_dir() or not (options.out.parent.is_dir() and os.access(options.out.parent, os.W_OK)):
        p.error(f"--out: {options.out} cannot be written")
    try:
        report = run_checks(
            resolve_device(options.device), out=options.out, names=options.sections, quick=options.quick,
            golden_data=options.golden, say=lambda line: print(line, file=sys.stderr, flush=True),
        )  # fmt: skip
    except (ValueError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(summary(report))
    print(f"wrote {options.out}")
    return 0 if report["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
