"""Multi-scale decoding against the law enumerated over drafts and redraws, and broken versions of it."""

from __future__ import annotations

from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import theory
import validate
from tests.validate.drafters.grids import CLASSES, SIDE, TOKENS, VOCABULARY, every_image, fits, grid_pair, image_law
from validate import batches
from validate.drafters import multiscale
from validate.drafters.multiscale import decode_multiscale, islands, redraw_calls, shipped_multiscale
from validate.drafters.multiscale_network import MultiScaleDrafter
from validate.models import Warp
from validate.scoring import laws_along
from validate.training.__main__ import main
from validate.training.multiscale import fit_multiscale
from validate.training.presets import Plan

SAMPLES, FALSE_ALARM, GUIDANCE = 4_000, 1e-6, 1.5
CONFIG = {"vocab_size": VOCABULARY, "num_classes": CLASSES, "side": SIDE, "width": 8, "heads": 2, "channels": 6}
NEIGHBOURS = np.array([[1], [0]])


class Threshold(theory.NeighbourhoodPooling):
    """A pool of the token alone: with two tokens, a pool of two would accept everything."""

    def acceptance(self, p: Any, q: Any, position: Any) -> Any:
        return (p >= self.tau) * torch.ones_like(p)


def drafter(seed: int = 5) -> MultiScaleDrafter:
    with torch.device("meta"):
        network = MultiScaleDrafter(**CONFIG)
    network = network.to_empty(device="cpu").eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    network.initialise(generator)
    for parameter in network.parameters():
        parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return network


def target_laws() -> np.ndarray:
    tokens = every_image()
    ones = torch.ones(len(tokens), dtype=torch.int64)
    return laws_along(grid_pair().target, tokens, ones, GUIDANCE, Warp()).numpy()


def draft_law() -> np.ndarray:
    """Q of all images: anchors one after the other, other cells given them."""
    network, tokens = drafter(), every_image()
    ones = torch.ones(len(tokens), dtype=torch.int64)
    anchors = tokens[:, network.anchors]
    coarse = torch.softmax(network.coarse_logits(anchors, ones).double(), -1)
    fine = torch.softmax(network.upsample(anchors, ones).double(), -1)
    fine[:, network.anchors] = coarse
    return image_law(fine)


def neighbours_of(cell: int) -> list[int]:
    row, column = divmod(cell, SIDE)
    around = [(row + a, column + b) for a, b in product((-1, 0, 1), repeat=2) if (a, b) != (0, 0)]
    return [r * SIDE + c for r, c in around if 0 <= r < SIDE and 0 <= c < SIDE]


def flood(cells: set[int]) -> list[list[int]]:
    """8-connected parts, each in raster order."""
    parts = []
    while cells:
        part, edge = set(), {min(cells)}
        while edge:
            part |= edge
            edge = {n for c in edge for n in neighbours_of(c)} & cells - part
        parts.append(sorted(part))
        cells = cells - part
    return parts


@cache
def exact(tau: float, radius: int) -> tuple[np.ndarray, float]:
    """Law of all images and expected calls, over every draft and every redraw; shares no code with the decoder."""
    laws, drafts, images = target_laws(), draft_law(), every_image().numpy()
    bits = 2 ** np.arange(TOKENS - 1, -1, -1)
    # Drafts with the same rejected cells are redrawn alike.
    groups: dict[frozenset[int], np.ndarray] = {}
    for index, image in enumerate(images):
        rejected = {t for t in range(TOKENS) if laws[index, t, image[t]] < tau}
        for _ in range(radius):
            rejected |= {n for c in rejected for n in neighbours_of(c)}
        groups.setdefault(frozenset(rejected), np.zeros(len(images)))[index] = drafts[index]
    law, calls = np.zeros(len(images)), 0.0
    for rejected_cells, mass in groups.items():
        parts = flood(set(rejected_cells))
        longest = max((len(part) for part in parts), default=0)
        calls += mass.sum() * max(1, longest)
        for step in range(longest):
            cells = [part[step] for part in parts if step < len(part)]
            later = np.zeros_like(mass)
            for values in product(range(VOCABULARY), repeat=len(cells)):
                changed = images.copy()
                changed[:, cells] = values
                np.add.at(later, changed @ bits, mass * laws[:, cells, values].prod(axis=1))
            mass = later
        law += mass
    return law, float(calls)


def run(tau: float, radius: int, samples: int = SAMPLES, **options: Any) -> Any:
    rule = Threshold(NEIGHBOURS, 1, tau)
    arguments: dict[str, Any] = {"device": "cpu", "batch": samples} | options
    return decode_multiscale(grid_pair(), drafter(), rule, radius, [1] * samples, **arguments)


@pytest.mark.parametrize(("tau", "radius"), [(0.4, 0), (0.3, 1), (0.6, 0)])
def test_images_follow_the_enumerated_law(tau: float, radius: int) -> None:
    law, calls = exact(tau, radius)
    assert abs(law.sum() - 1) < 1e-9
    out = run(tau, radius)
    assert fits(out.tokens, law) > FALSE_ALARM
    assert abs(out.calls.mean() - calls) < 5 * out.calls.std() / np.sqrt(SAMPLES) + 1e-9


def test_the_two_ends_are_the_drafter_and_the_target() -> None:
    nothing, everything = run(0.0, 0), run(1.0, 0)
    assert fits(nothing.tokens, draft_law()) > FALSE_ALARM
    assert (nothing.calls == 1).all()
    assert (nothing.accepted[:, 0] == TOKENS).all()
    assert fits(everything.tokens, image_law(torch.from_numpy(target_laws()))) > FALSE_ALARM
    assert (everything.calls == TOKENS).all()


def test_between_them_it_is_not_lossless() -> None:
    assert fits(run(0.4, 0).tokens, image_law(torch.from_numpy(target_laws()))) < FALSE_ALARM


def test_redrawing_an_island_at_once_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """All cells of an island from the verification's laws: they would not see each other."""
    monkeypatch.setattr(multiscale, "redraw_calls", lambda r, radius: (islands(r, radius) > 0).astype(np.int64))
    assert fits(run(0.6, 0).tokens, exact(0.6, 0)[0]) < FALSE_ALARM


def test_a_forgotten_dilation_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiscale, "redraw_calls", lambda r, radius: redraw_calls(r, 0))
    assert fits(run(0.3, 1).tokens, exact(0.3, 1)[0]) < FALSE_ALARM


@given(st.integers(0, 2**TOKENS - 1), st.integers(0, 2))
def test_islands_agree_with_a_flood_fill(bits: int, radius: int) -> None:
    cells = {c for c in range(TOKENS) if bits >> c & 1}
    grid = np.array([c in cells for c in range(TOKENS)]).reshape(SIDE, SIDE)
    for _ in range(radius):
        cells |= {n for c in cells for n in neighbours_of(c)}
    wanted = np.zeros(TOKENS, dtype=np.int64)
    for part in flood(cells):
        wanted[part] = np.arange(1, len(part) + 1)
    assert np.array_equal(redraw_calls(grid, radius).ravel(), wanted)


def test_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    pair, classes, rule = grid_pair(), [0, 1, 1, 0, 1, 0, 0], Threshold(NEIGHBOURS, 1, 0.4)
    whole = decode_multiscale(pair, drafter(), rule, 0, classes, device="cpu", seed=4)
    cut = decode_multiscale(pair, drafter(), rule, 0, classes, device="cpu", seed=4, batch=3)
    monkeypatch.setattr(batches, "COMPACT_BELOW", 0.0)
    loose = decode_multiscale(pair, drafter(), rule, 0, classes, device="cpu", seed=4)
    for other in (cut, loose):
        assert np.array_equal(whole.tokens, other.tokens)
        assert np.array_equal(whole.calls, other.calls)


def test_training_lowers_the_cross_entropy() -> None:
    rng = np.random.default_rng(0)
    rows = rng.integers(0, VOCABULARY, (64, 1))
    tokens = torch.from_numpy(np.where(rng.random((64, TOKENS)) < 0.1, 1 - rows, rows))
    classes = torch.from_numpy(rng.integers(0, CLASSES, 64))
    shares = []
    for steps in (1, 120):
        network = fit_multiscale(
            CONFIG, tokens, classes, Plan(steps, 32, 1e-2, warmup=1), torch.Generator().manual_seed(0)
        )
        law = torch.softmax(network.upsample(tokens[:, network.anchors], classes), -1)
        shares.append(float(torch.take_along_dim(law, tokens[..., None], -1)[:, 1::2].mean()))
    assert shares[1] > shares[0] + 0.1


def test_the_command_writes_a_drafter_that_loads(tmp_path: Path) -> None:
    out = tmp_path / "drafter"
    arguments = ["--out", str(out), "--work", str(tmp_path), "--samples", "8", "--steps", "1"]
    assert main(["multiscale", *arguments]) == 0
    assert shipped_multiscale(validate.load("fashion", device="cpu"), out).side == 7


def test_the_shipped_drafter_saves_calls_at_a_price() -> None:
    pair = validate.load("fashion", device="cpu")
    network = shipped_multiscale(pair)
    codebook = pair.tokenizer.codebook.numpy()  # type: ignore[attr-defined]
    rule = theory.NeighbourhoodPooling(theory.nearest_neighbours(codebook, 10), 10, 0.1)
    out = decode_multiscale(pair, network, rule, 0, 20, device="cpu")
    assert out.tokens_per_call > 1.5
    assert ((out.accepted >= 0).sum(axis=1) == out.calls).all()
    plain = validate.decode(pair, None, 0, 20, device="cpu")
    ours, theirs = (validate.score(pair, run).log_likelihood("target").mean() for run in (out, plain))
    assert ours < theirs


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"radius": -1}, "radius"),
        ({"rule": theory.Lossless()}, "NeighbourhoodPooling"),
        ({"rule": theory.NeighbourhoodPooling(np.array([[1], [0], [0]]), 1, 0.1)}, "neighbours of 3 tokens"),
        ({"batch": 0}, "batch"),
    ],
)
def test_bad_input(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"rule": Threshold(NEIGHBOURS, 1, 0.4), "radius": 0, "images": [0]} | change
    with pytest.raises(ValueError, match=message):
        decode_multiscale(grid_pair(), drafter(), device="cpu", **arguments)


@pytest.mark.parametrize(("name", "value"), [("side", 5), ("vocab_size", 3), ("num_classes", 4)])
def test_drafters_of_other_pairs_are_refused(name: str, value: int) -> None:
    other = MultiScaleDrafter(**(CONFIG | {name: value}))
    with pytest.raises(ValueError, match="the drafter's"):
        decode_multiscale(grid_pair(), other, Threshold(NEIGHBOURS, 1, 0.4), 0, [0], device="cpu")
    with pytest.raises(ValueError, match="odd"):
        MultiScaleDrafter(**(CONFIG | {"side": 4}))
