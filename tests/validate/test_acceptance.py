"""Acceptance arithmetic of a round against the theory on the whole vocabulary, and draws against full inversion."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import theory
from simulate.draws import categorical
from tests.validate.networks import tiny_pair
from validate import decoder
from validate.acceptance import BLOCK, accepted_drafts, draw, residual_row, verify_block
from validate.decoding import decode
from validate.device_check.networks import random_llamagen, random_pair
from validate.models.llamagen import Configuration

LENGTH = 3
VERIFIERS: dict[str, Any] = {
    "lossless": theory.Verifier(theory.Lossless()),
    "relaxed": theory.Verifier(theory.Relaxed([2.0, 1.5, 0.75])),
    "accept all": theory.Verifier(theory.AcceptAll()),
    "ensemble": theory.Verifier(theory.Ensemble(0.5), theory.vanilla_residual),
    "cactus": theory.Verifier(theory.Cactus(0.5), theory.CactusResidual(0.5)),
    "repaired": theory.Verifier(theory.AtLeastLossless(theory.Relaxed(0.5))),
    "whole laws": theory.Verifier(theory.EntropyRelaxed(0.5, 0.65)),
    "block": theory.block(LENGTH),
    "capped below one": theory.capped_block([1.0, 0.7, 0.4]),
    "capped above one": theory.capped_block([2.5, 1.5, 1.0]),
    "lifted": theory.lifted_block(theory.Verifier(theory.Relaxed(1.8))),
}


def laws(counts: list[int], *shape: int) -> torch.Tensor:
    table = torch.tensor(np.resize(counts, shape), dtype=torch.float64)
    table[..., 0] += 1
    return table / table.sum(-1, keepdim=True)


@pytest.mark.parametrize("name", VERIFIERS)
@given(
    counts=st.lists(st.integers(0, 10), min_size=40, max_size=120),
    ids=st.lists(st.integers(0, 4), min_size=4 * LENGTH, max_size=4 * LENGTH),
    drafted=st.lists(st.integers(0, LENGTH), min_size=4, max_size=4),
    seed=st.integers(0, 2**16),
)
def test_fast_path_equals_whole_vocabulary(
    name: str, counts: list[int], ids: list[int], drafted: list[int], seed: int
) -> None:
    verifier, size = VERIFIERS[name], 5
    p, q = laws(counts, 4, LENGTH, size), laws(counts[::-1] + counts[:7], 4, LENGTH, size)
    tokens = torch.tensor(ids).reshape(4, LENGTH)
    q = q.scatter_add(-1, tokens[..., None], torch.full_like(q[..., :1], 0.1))  # drafted tokens have mass
    q = q / q.sum(-1, keepdim=True)
    u = torch.rand(4, LENGTH, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    count, residual = verify_block(verifier, tokens, p, q, torch.tensor(drafted), u)
    for row, most in enumerate(drafted):
        if verifier.stateful:
            tests = theory.block_tests(verifier, tokens[row], p[row], q[row], most)
            reached = int(theory.last_success(tests.success, u[row]))
        else:
            reached = 0
            while reached < most:
                f = torch.broadcast_to(
                    theory.acceptance_of(verifier, p[row, reached], q[row, reached], reached), (size,)
                )
                if not u[row, reached] < f[tokens[row, reached]]:
                    break
                reached += 1
        assert int(count[row]) == reached
        if reached < most:
            x, laws_here = tokens[row, reached], (p[row, reached], q[row, reached])
            if verifier.stateful:
                wanted = verifier.step(*laws_here, reached, tests.weights[reached]).residual
            else:
                f = torch.broadcast_to(theory.acceptance_of(verifier, *laws_here, reached), (size,))
                wanted = theory.residual_after(verifier, *laws_here, f, x, reached)
            torch.testing.assert_close(residual[row], wanted, rtol=0, atol=1e-12)


def test_a_shifted_residual_is_noticed() -> None:
    """The residual of the wrong place is another law: the test above can fail."""
    p, q = laws([5, 1, 3, 2, 2, 1, 4], 1, LENGTH, 5), laws([1, 1, 6, 2], 1, LENGTH, 5)
    tokens, u = torch.tensor([[1, 2, 3]]), torch.zeros(1, LENGTH, dtype=torch.float64)
    accepted = accepted_drafts(VERIFIERS["relaxed"], tokens, p, q, np.array([LENGTH]), u)
    right = residual_row(VERIFIERS["relaxed"], accepted, tokens, p, q)
    shifted = accepted._replace(kept=accepted.kept - 2, kept_host=accepted.kept_host - 2)
    wrong = residual_row(VERIFIERS["relaxed"], shifted, tokens, p, q)
    assert float((right - wrong).abs().max()) > 1e-2


@given(
    size=st.sampled_from([1, 2, 5, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 3 * BLOCK + 17]),
    seed=st.integers(0, 2**16),
    share=st.sampled_from([0.02, 0.3, 1.0]),
    last=st.booleans(),
)
def test_draws_equal_full_inversion(size: int, seed: int, share: float, last: bool) -> None:
    """Whole masses whose sums are exact: not one token may differ, at partial sums, at 0 and next to 1 neither."""
    rng = np.random.default_rng(seed)
    masses = rng.integers(0, 11, (40, size)) * (rng.random((40, size)) < share)
    masses[np.arange(40), rng.integers(0, size, 40)] += 1
    total = masses.sum(1)
    u = rng.integers(0, total) / total
    u[:3], u[3:6] = 0.0, np.nextafter(1, 0)
    dtype = torch.float32 if last else torch.float64
    drawn = draw(torch.tensor(masses, dtype=dtype), torch.from_numpy(u))
    np.testing.assert_array_equal(drawn.token.numpy(), categorical(masses.astype(float), u))
    assert drawn.sound.all()
    assert (masses[np.arange(40), drawn.token.numpy()] > 0).all()


def test_unsound_rows_are_told() -> None:
    masses = torch.tensor([[1.0, 2.0], [torch.nan, 1.0], [0.0, 0.0], [torch.inf, 1.0]])
    assert draw(masses, torch.full((4,), 0.5, dtype=torch.float64)).sound.tolist() == [True, False, False, False]


def test_a_network_that_answers_nan_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    original = decoder.Writer.laws

    def broken(self: decoder.Writer, inputs: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        out = original(self, inputs, lengths)
        out[1] = torch.where((lengths[1] >= 2), torch.nan, out[1])
        return out

    monkeypatch.setattr(decoder.Writer, "laws", broken)
    with pytest.raises(ValueError, match=r"image 1 of the batch: a law of target or draft is not finite"):
        decode(tiny_pair(), VERIFIERS["lossless"], 2, 3, device="cpu")


@pytest.mark.parametrize("family", ["embedded", "llamagen"])
def test_a_round_asks_the_device_once(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every way from a tensor's value to the host is counted; fast rules take one a round, plain steps none."""
    pair = tiny_pair()
    if family == "llamagen":
        shape = Configuration(7, layers=1, heads=2, width=16, hidden=16, side=3, num_classes=2)
        models = [random_llamagen(shape, torch.device("cpu"), torch.float32, seed) for seed in (0, 1)]
        pair = random_pair(models[0], models[1], 1.5)
    waits: list[str] = []
    for name in ("__bool__", "__int__", "__float__", "__index__", "item", "cpu", "tolist", "nonzero", "numpy"):
        original = getattr(torch.Tensor, name)

        def counted(self: torch.Tensor, *a: Any, name: str = name, original: Any = original, **k: Any) -> Any:
            waits.append(name)
            return original(self, *a, **k)

        monkeypatch.setattr(torch.Tensor, name, counted)
    counts = []
    original_round = decoder.Decoder.round

    def watched(self: decoder.Decoder, *a: Any) -> torch.Tensor:
        waits.clear()
        out = original_round(self, *a)
        counts.append(list(waits))
        return out

    monkeypatch.setattr(decoder.Decoder, "round", watched)
    decode(pair, VERIFIERS["lossless"], 2, 3, device="cpu")
    assert all(seen == ["cpu", "numpy"] for seen in counts)
    counts.clear()
    decode(pair, None, 0, 3, device="cpu")
    assert counts
    assert all(seen == [] for seen in counts)
