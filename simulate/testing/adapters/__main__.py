"""``python -m simulate.testing.adapters``: transformers' sampler under the kit as it ships, pair by pair."""

from __future__ import annotations

import argparse
import csv
import io
from pathlib import Path

from simulate.files import write_atomically
from simulate.testing.adapters.huggingface import transformers_sampler
from simulate.testing.law import check_law
from simulate.testing.pairs import adversarial_pairs


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m simulate.testing.adapters", description=__doc__)
    parser.add_argument("--tv", type=float, default=0.05, help="smallest total variation to find (default 0.05)")
    parser.add_argument("--rounds", type=int, default=2**16, help="most rounds on one pair (default 65536)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the table as CSV, too")
    arguments = parser.parse_args()
    sampler = transformers_sampler()
    table: list[tuple[object, ...]] = [("pair", "tv", "rounds", "passed", "smallest_tv", "power")]
    for pair in adversarial_pairs():
        report = check_law(sampler, pairs=[pair], smallest_tv=arguments.tv, max_rounds=arguments.rounds, timeout=None)
        promise = f"a TV of {report.smallest_tv:.3f} would show" if report.smallest_tv < 1 else "a short look"
        verdict = f"passes: {promise}" if report.passed else f"FAILS: {report.reason}"
        print(f"{pair.name:32}{report.rounds:8d} rounds   {verdict}", flush=True)
        table.append((pair.name, arguments.tv, report.rounds, report.passed, report.smallest_tv, report.power))
    if arguments.out:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(table)
        write_atomically(arguments.out, text.getvalue().encode())


if __name__ == "__main__":
    main()
