"""Commands of the simulator.

``python -m simulate coverage`` measures how often its intervals cover; ``python -m simulate sweep`` runs a grid of
settings to one table; ``python -m simulate mutants`` tries the test kit on broken samplers, and exits with 1 if one
survives or a correct one fails.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tqdm import tqdm

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
    mutants = commands.add_parser(
        "mutants", help="broken samplers under the test kit", description="Is every broken sampler found out?"
    )
    mutants.add_argument("--only", action="append", default=[], metavar="NAME", help="this one; may be repeated")
    mutants.add_argument("--false-alarm", type=float, default=1e-9, metavar="A", help="level of the law test (1e-9)")
    mutants.add_argument("--seed", type=int, default=0, metavar="S", help="seed (0)")
    return parser


def _mutants(options: argparse.Namespace) -> int:
    from simulate.testing.mutants import CORRECT, MUTANTS, format_table, judge
    from simulate.testing.mutants.kit import chosen

    subjects = chosen(options.only, (*MUTANTS, *CORRECT))
    verdicts = [
        judge(subject, options.false_alarm, options.seed) for subject in tqdm(subjects, unit="sampler", disable=None)
    ]
    print(format_table(verdicts))
    return 0 if all(verdict.right for verdict in verdicts) else 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 on success, 1 if a mutant survives, 2 for arguments it does not know or cannot use."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command == "sweep":
        return command.main(options)
    try:
        if options.command == "mutants":
            return _mutants(options)
        table = coverage_table(
            options.repetitions, options.seed, options.samples, options.confidence, progress=not options.quiet
        )
    except ValueError as error:
        parser.error(str(error))
    print(format_table(table))
    return 0


if __name__ == "__main__":
    sys.exit(main())
