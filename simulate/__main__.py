"""Commands: ``python -m simulate coverage`` measures how often its intervals cover, ``sweep`` runs a grid."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from simulate.coverage import coverage_table, format_table
from simulate.sweeps import command


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m simulate", description="Relaxed speculative decoding, simulated.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    coverage = commands.add_parser(
        "coverage", help="coverage of the intervals of simulate.estimate", description="Coverage against exact values."
    )
    coverage.add_argument("--repetitions", type=int, default=500, metavar="N", help="estimates per case (500)")
    coverage.add_argument("--samples", type=int, default=400, metavar="N", help="sequences per estimate, even (400)")
    coverage.add_argument("--confidence", type=float, default=0.95, metavar="C", help="nominal confidence (0.95)")
    coverage.add_argument("--seed", type=int, default=0, metavar="S", help="seed (0)")
    coverage.add_argument("--quiet", action="store_true", help="no progress bar")
    command.add_parser(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 on success, 2 for arguments it does not know or cannot use."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command == "sweep":
        return command.main(options)
    try:
        table = coverage_table(
            options.repetitions, options.seed, options.samples, options.confidence, progress=not options.quiet
        )
    except ValueError as error:
        parser.error(str(error))
    print(format_table(table))
    return 0


if __name__ == "__main__":
    sys.exit(main())
