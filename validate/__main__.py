"""`python -m validate`: decode with several verifiers and print predicted beside measured.

The default compares lossless decoding; COOL-SD at δ = 1.1 as reconstructed, and with the lossless floor; uniform
relaxation and the excess schedule at the floored one's predicted tokens per call. `python -m validate compare` holds
every chain method against the others instead;
`python -m validate cascade` measures CASCADE-style relaxation of draft trees.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import theory
from simulate.files import write_json
from theory import AnyVerifier, Verifier
from validate.batches import Decoded
from validate.cascade import command as cascade
from validate.comparison import command as compare
from validate.measurement import Baseline, measure, sample_baseline
from validate.models import Pair, Warp, load, resolve_device
from validate.models.checkpoints import DTYPES
from validate.models.llamagen import read_captions
from validate.prediction import match_tokens_per_call, predicted_tokens_per_call
from validate.report import CAP_NOTE, as_json, table
from validate.speed import fixed_acceptance, speed_report

MATCHED = ("uniform", "excess, ν = .7", "excess, ν = .2", "linear, floored", "reversed")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(prog="python -m validate", description=__doc__.split("\n\n")[0])
    p.add_argument("--pair", default="fashion", help="embedded pair (default: fashion), llamagen:PATH or hf:PATH")
    p.add_argument("--draft", help="which of the pair's drafts (default: the pair's own choice), or a path")
    p.add_argument("--tokenizer", help="llamagen: file of the tokenizer")
    p.add_argument("--grid", type=int, help="llamagen: tokens a side, where no file name tells")
    p.add_argument("--heads", type=int, help="llamagen: attention heads, for a width that no public model has")
    p.add_argument("--dtype", choices=sorted(DTYPES), help="llamagen, hf: precision of the networks")
    p.add_argument("--captions", type=Path, help="llamagen: file of caption features, one image each (for --images)")
    p.add_argument("--length", type=int, default=5, help="drafted tokens a round, L (default: 5)")
    p.add_argument("--images", type=int, default=200, help="images a verifier (default: 200)")
    p.add_argument("--delta", type=float, default=1.1, help="COOL-SD's δ, the paper's 1.1 by default")
    p.add_argument("--guidance", type=float, help="classifier-free guidance scale (default: the pair's)")
    p.add_argument("--temperature", type=float, default=1.0, help="of both networks, after guidance (default: 1)")
    p.add_argument("--top-k", type=int, default=0, help="tokens kept (default: all)")
    p.add_argument("--top-p", type=float, default=1.0, help="mass kept (default: all)")
    p.add_argument("--schedules", nargs="*", default=["uniform", "excess, ν = .7"], metavar="NAME",
                   help=f"also measured, at the floored COOL-SD's tokens per call: {'; '.join(MATCHED)}")  # fmt: skip
    p.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--batch", type=int, default=500, help="images decoded together (default: 500)")
    p.add_argument("--synthetic-acceptance", type=float, metavar="RATE",
                   help="speed alone, every draft accepted with this probability (not the target's law)")  # fmt: skip
    p.add_argument("--out", type=Path, help="also write the numbers to this JSON file")
    p.add_argument("--quiet", action="store_true", help="no progress bars")
    return p


def chosen_verifiers(
    pair: Pair, baseline: Baseline, length: int, delta: float, names: list[str]
) -> list[tuple[str, Callable[[], AnyVerifier]]]:
    """Name and maker of every verifier of the report; the makers match tokens per call when called."""
    floored = theory.cool_sd(length, delta, floor=1.0)
    families = theory.schedule_families(length)

    def matched(name: str) -> AnyVerifier:
        scores = baseline.predicting_scores
        value = predicted_tokens_per_call(scores, floored, length)
        return match_tokens_per_call(scores, families[name], length, value)

    fixed: list[tuple[str, Callable[[], AnyVerifier]]] = [
        ("lossless", lambda: Verifier(theory.Lossless())),
        (f"COOL-SD delta = {delta:g}, no floor (as reconstructed)", lambda: theory.cool_sd(length, delta)),
        (f"COOL-SD delta = {delta:g}, floored at 1", lambda: floored),
    ]
    return fixed + [(f"{name}, matched", lambda name=name: matched(name)) for name in names]


def settings(verifier: AnyVerifier) -> str:
    """The schedule of a multiplicative verifier, for the report."""
    omega = getattr(getattr(verifier, "rule", verifier), "omega", None)
    return "" if omega is None else "omega = " + ", ".join(f"{w:.3f}" for w in omega)


def lossless_line(runs: list[Decoded], p: float) -> str:
    """What the run shows about lossless decoding."""
    verdict = "is not told from" if p >= 0.01 else "IS TOLD FROM"
    return f"lossless decoding {verdict} plain sampling (two-sample p = {p:.3g}, {len(runs[0].tokens)} images a side)"


def speed_alone(pair: Pair, images: Any, options: argparse.Namespace, device: str) -> int:
    """The speed model at a fixed acceptance rate; the networks' laws do not matter to it."""
    rate = options.synthetic_acceptance
    speed = speed_report(
        pair, fixed_acceptance(rate), options.length, images,
        device=options.device, seed=options.seed, guidance=options.guidance,
    )  # fmt: skip
    print(f"every draft accepted with probability {rate:g}: speed alone, not the target's law\n{speed}")
    if options.out is not None:
        write_json(options.out, {"pair": pair.name, "device": device, "acceptance": rate, "speed": speed.as_json()})
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run the report; the exit status is 1 if lossless decoding can be told from the target, 2 for bad input."""
    given_here = sys.argv[1:] if arguments is None else arguments
    if given_here[:1] == ["compare"]:
        return compare.main(given_here[1:])
    if given_here[:1] == ["cascade"]:
        return cascade.main(given_here[1:])
    p = parser()
    options = p.parse_args(arguments)
    unknown = [name for name in options.schedules if name not in MATCHED]
    if unknown:
        p.error(f"unknown schedule {unknown[0]!r}; known: {'; '.join(MATCHED)}")
    if options.out is not None and options.out.is_dir():
        p.error(f"--out: {options.out} is a folder; name a file")
    if options.out is not None and not (options.out.parent.is_dir() and os.access(options.out.parent, os.W_OK)):
        p.error(f"--out: the folder {options.out.parent} does not exist or cannot be written to")
    try:
        device = resolve_device(options.device)
        given = {name: getattr(options, name) for name in ("tokenizer", "grid", "heads", "dtype")}
        given = {name: value for name, value in given.items() if value is not None}
        pair = load(options.pair, draft=options.draft, device=options.device, **given)
        pair = pair.with_warp(Warp(options.temperature, options.top_k, options.top_p))
        images = options.images if options.captions is None else read_captions(options.captions)
        began = time.perf_counter()
        print(f"pair {pair.name}: {pair.num_tokens} tokens of {pair.vocab_size} on {device}", flush=True)
        if options.synthetic_acceptance is not None:
            return speed_alone(pair, images, options, str(device))
        baseline = sample_baseline(
            pair, images, device=options.device, seed=options.seed, guidance=options.guidance,
            batch=options.batch, progress=not options.quiet,
        )  # fmt: skip
        makers = chosen_verifiers(pair, baseline, options.length, options.delta, options.schedules)
        suspect = theory.Verifier(theory.Lossless(), theory.target_residual)
        results, lossless_p, runs = [], 1.0, []
        for name, make in makers:
            verifier = make()
            m = measure(
                pair, verifier, options.length, images, baseline=baseline, device=options.device,
                suspect=suspect if verifier.lossless else None, seed=options.seed, batch=options.batch,
                progress=not options.quiet,
            )  # fmt: skip
            print(f"\n{table(name, m)}\n{settings(verifier)}", flush=True)
            results.append(as_json(name, m) | {"omega": settings(verifier)})
            if name == "lossless":
                lossless_p, runs = m.same_as_target, [m.decoded]
    except (ValueError, RuntimeError, OSError, LookupError, MemoryError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"\n{lossless_line(runs, lossless_p)}; {CAP_NOTE}; {time.perf_counter() - began:.0f} s")
    if options.out is not None:
        write_json(options.out, {"pair": pair.name, "seed": options.seed, "device": str(device), "results": results})
        print(f"wrote {options.out}")
    return 0 if lossless_p >= 1e-4 else 1


if __name__ == "__main__":
    sys.exit(main())
