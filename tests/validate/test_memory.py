"""Batches that do not fit are named with one that does."""

from __future__ import annotations

import pytest
import torch

import theory
import validate
from validate import decoding, memory
from validate.decoding import decode
from validate.memory import image_bytes


def test_a_batch_that_does_not_fit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = validate.load("fashion")
    row = image_bytes(pair, 2.0)
    assert row == 2 * 2 * 49 * 4 * (4 * 128 + 64)
    table = 12 * 4 * 256 * 4
    monkeypatch.setattr(memory, "free_bytes", lambda device: 10 * (row + table))
    with pytest.raises(MemoryError, match=r"not enough memory for 40 images of pair 'fashion'.*try batch=8"):
        decode(pair, theory.cool_sd(3, 1.1), 3, 40, device="cpu")
    decode(pair, theory.cool_sd(3, 1.1), 3, 40, device="cpu", batch=8)
    monkeypatch.setattr(memory, "free_bytes", lambda device: 10)
    with pytest.raises(MemoryError, match="not even one image fits"):
        decode(pair, theory.cool_sd(3, 1.1), 3, 2, device="cpu")


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("full"), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_a_failed_allocation_names_the_batch(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise error

    monkeypatch.setattr(memory, "free_bytes", lambda device: None)
    monkeypatch.setattr(decoding, "Decoder", fail)
    with pytest.raises(MemoryError, match=r"for 40 images .* try batch=20"):
        decode(validate.load("fashion"), theory.cool_sd(3, 1.1), 3, 40, device="cpu")
    monkeypatch.setattr(decoding, "Decoder", lambda *arguments: (_ for _ in ()).throw(RuntimeError("other")))
    with pytest.raises(RuntimeError, match="other"):
        decode(validate.load("fashion"), theory.cool_sd(3, 1.1), 3, 40, device="cpu")
