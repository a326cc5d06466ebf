"""Out of memory, named with the batch that would fit.

Before decoding, the caches of a batch are held against the memory that is free: they must be allocated whatever else
happens, so a batch whose caches alone do not fit is refused at once. Where an allocation fails later, the error says
how many images would fit, with allowance for what a round needs beside the caches.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from validate.models import Pair

__all__ = ["free_bytes", "image_bytes", "naming_the_batch_that_fits"]

ROUND_SHARE = 0.8
"""Share of the free memory that is counted on; the rest is fragments and what else the process holds."""
ROUND_TABLES = 12
"""Tables of V float32 numbers that a drafted token needs at the same time: logits of both halves, laws, residual."""


def free_bytes(device: torch.device) -> int | None:
    """Memory that can still be allocated; None where the system does not say."""
    if device.type == "cuda":
        reusable = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0] + reusable)
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def image_bytes(pair: Pair, guidance: float) -> int:
    """Cache bytes of one image in the target and the draft; 0 for models that do not tell."""
    halves = 1 if guidance == 1.0 else 2
    tell = [getattr(model, "row_bytes", None) for model in (pair.target, pair.draft)]
    return halves * sum(int(row_bytes()) for row_bytes in tell if row_bytes is not None)


@contextmanager
def naming_the_batch_that_fits(
    pair: Pair, guidance: float, batch: int, length: int, device: torch.device
) -> Iterator[None]:
    """Turn a failed allocation inside into a MemoryError that says which batch would do.

    Raises
    ------
    MemoryError
        At once if the caches of the batch exceed the free memory; later if an allocation fails.
    """
    free, row = free_bytes(device), image_bytes(pair, guidance)
    working = ROUND_TABLES * 4 * pair.vocab_size * (length + 1)
    if free is not None and row * batch > free:
        raise MemoryError(_message(pair, batch, free, row, working, device))
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise MemoryError(_message(pair, batch, free, row, working, device)) from error
    except RuntimeError as error:
        # torch on the CPU has no class of its own for this.
        if "can't allocate memory" not in str(error):
            raise
        raise MemoryError(_message(pair, batch, free, row, working, device)) from error


def _message(pair: Pair, batch: int, free: int | None, row: int, working: int, device: torch.device) -> str:
    fits = batch // 2 if free is None else min(int(ROUND_SHARE * free) // (row + working), batch - 1)
    has = "" if free is None else f": {free / 2**30:.2f} GiB are free, an image needs {row / 2**30:.3f} GiB of cache"
    advice = f"try batch={fits}" if fits >= 1 else "not even one image fits; use a smaller model, dtype or device"
    return f"{device} has not enough memory for {batch} images of pair {pair.name!r} at once{has}; {advice}"
