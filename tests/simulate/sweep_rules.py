"""A verifier from outside the package, for the tests of sweeps: it counts how often it is built and can misbehave.

Environment: SWEEP_LOG a file that gets one line per cell computed, SWEEP_PAUSE seconds per cell. A file beside the log
with one of the names below and a strength in it makes the cell of that strength fail in that way.
"""

from __future__ import annotations

import errno
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

import simulate
import theory

CELLS = 12


def misbehave(strength: float) -> None:
    """What the files beside the log ask for."""
    folder = Path(os.environ["SWEEP_LOG"]).parent
    asked = {name for name in ("raise", "full", "die") if (folder / name).exists()}
    for name in asked:
        if float((folder / name).read_text()) != strength:
            continue
        if name == "raise":
            raise RuntimeError(f"no verifier at {object()}")
        if name == "die":
            os._exit(9)

        def full(handle: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        os.fsync = full


def slow(strength: float, length: int) -> Any:
    """Uniform relaxation, slowly."""
    with open(os.environ["SWEEP_LOG"], "a", encoding="utf-8") as log:
        log.write(f"{strength} {os.getpid()}\n")
    misbehave(strength)
    time.sleep(float(os.environ["SWEEP_PAUSE"]))
    return theory.Verifier(theory.Relaxed(math.exp(strength)))


def grid(cells: int = CELLS) -> simulate.Grid:
    """One chain, one slow cell for each strength."""
    return simulate.Grid(
        analyses="round",
        chains={"kind": "dirichlet_iid", "vocab_size": 3},
        draft_tv=0.2,
        length=2,
        seeds=0,
        verifiers={"own": slow, "name": "slow", "strength": [k / 8 for k in range(cells)]},
    )


if __name__ == "__main__":
    from tests.simulate import sweep_rules  # not __main__: the module's name is part of the verifier's identity

    simulate.sweep(sweep_rules.grid(), sys.argv[1], workers=2)
