"""Command line: ``python -m validate.training --data DIR [--out DIR] [--preset NAME] [--device cuda]``.

``python -m validate.training drafter`` trains a feature drafter for a trained pair, ``row-below`` draft heads, and
``multiscale`` a low-resolution drafter.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from validate.models import resolve_device
from validate.training import drafter, multiscale, row_below
from validate.training.export import export
from validate.training.fitting import TrainingError
from validate.training.idx import DataError, load_folder
from validate.training.presets import PRESETS
from validate.training.stages import Run


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, or resume training, and write a weights folder; returns the exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments[:1] == ["drafter"]:
        return drafter.main(arguments[1:])
    if arguments[:1] == ["row-below"]:
        return row_below.main(arguments[1:])
    if arguments[:1] == ["multiscale"]:
        return multiscale.main(arguments[1:])
    parser = argparse.ArgumentParser(
        prog="python -m validate.training",
        description="Train a tokenizer, a target, its drafts and a judge on a folder of IDX files.",
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the four .gz files")
    parser.add_argument("--out", type=Path, help="weights folder to write (default: WORK/weights)")
    parser.add_argument(
        "--work", type=Path, help="folder of the finished stages, for resuming (default: ./training-PRESET)"
    )
    parser.add_argument("--preset", choices=sorted(PRESETS), default="fashion")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda, cuda:N or auto")
    parser.add_argument("--threads", type=int, help="torch threads (default: torch's own choice)")
    parser.add_argument(
        "--stage",
        action="append",
        metavar="NAME",
        help="run only this stage and the unfinished ones it reads, write no weights; may be repeated",
    )
    options = parser.parse_args(arguments)
    preset = PRESETS[options.preset]
    work = options.work or Path(f"training-{preset.name}")
    out = options.out or work / "weights"
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    try:
        device = resolve_device(options.device)
        if device.type == "cuda":
            # Ten bits of mantissa in products are enough to train; evaluation of a finished pair does not come here.
            torch.set_float32_matmul_precision("high")
        run = Run(load_folder(options.data, preset.num_classes), preset, options.seed, work, device=device)
        if options.stage:
            for stage in options.stage:
                run.ensure(stage)
            return 0
        for stage in run.stages:
            run.ensure(stage)
        manifest = export(run, out)
    except (DataError, FileNotFoundError, TrainingError, RuntimeError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"interrupted: finished stages are in {work}, the same command resumes", file=sys.stderr)
        return 130
    total = sum(file["bytes"] for file in manifest["files"].values())
    print(f"wrote {out}: {len(manifest['files'])} weight files, {total:,} bytes")
    print(f'load it with validate.models.load("{preset.name}", weights="{out}")')
    return 0


if __name__ == "__main__":
    sys.exit(main())
