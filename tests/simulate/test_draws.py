"""Draws against the faults seen in public samplers: end of the CDF, zero masses, low-precision sums, streams."""

import numpy as np
import pytest
import torch

import simulate
from simulate import categorical

LAST_UNIFORM = np.nextafter(1.0, 0.0)


def test_the_smallest_token_whose_partial_sum_exceeds_u():
    probs = np.tile([0.25, 0.25, 0.5], (5, 1))
    assert categorical(probs, [0.0, 0.2499, 0.25, 0.5, LAST_UNIFORM]).tolist() == [0, 0, 1, 2, 2]


def test_the_end_of_the_cdf_is_the_last_token():
    assert categorical([0.1] * 10, LAST_UNIFORM) == 9
    for size in (3, 7, 11, 49, 1000):
        for scale in (1.0, 3.0, 1e-3):
            assert categorical(np.full(size, scale / size), LAST_UNIFORM) == size - 1


def test_tokens_without_mass_are_never_drawn():
    assert categorical([0, 0.3, 0.7], 0.0) == 1
    assert categorical([0.5, 0.5, 0], LAST_UNIFORM) == 1
    rng = np.random.default_rng(3)
    probs = rng.dirichlet(np.ones(6), size=4000) * (rng.random((4000, 6)) < 0.4)
    probs[probs.sum(axis=1) == 0, 0] = 1.0
    for u in (np.zeros(4000), rng.random(4000), np.full(4000, LAST_UNIFORM)):
        drawn = categorical(probs, u)
        assert (np.take_along_axis(probs, drawn[:, None], axis=1) > 0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_sums_do_not_lose_the_tail_in_low_precision(dtype):
    probs = torch.full((4096,), 1 / 4096, dtype=dtype)
    tokens = np.arange(0, 4096, 15)
    drawn = categorical(probs.expand(len(tokens), 4096), (tokens + 0.5) / 4096)
    assert drawn.dtype == torch.int64
    assert drawn.tolist() == tokens.tolist()


def test_torch_and_numpy_agree_on_every_leading_shape():
    rng = np.random.default_rng(0)
    for shape in ((), (3,), (2, 3), (0,), (2, 0, 4)):
        probs, u = rng.dirichlet(np.ones(5), size=shape), rng.random(shape)
        ours, theirs = categorical(probs, u), categorical(torch.asarray(probs), torch.asarray(u))
        assert ours.shape == shape
        assert ours.dtype == np.int64
        assert np.array_equal(ours, theirs.numpy())


def test_frequencies_follow_the_law():
    p, n = np.array([0.5, 0.3, 0.2]), 200_000
    drawn = categorical(np.tile(p, (n, 1)), np.random.default_rng(1).random(n))
    assert np.abs(np.bincount(drawn) / n - p).max() < 5 * np.sqrt(0.25 / n)


def test_inputs_are_not_changed():
    probs, u = np.array([[0.2, 0.8]]), np.array([0.5])
    probs.flags.writeable = u.flags.writeable = False
    assert categorical(probs, u).tolist() == [1]


@pytest.mark.parametrize(
    ("probs", "uniforms", "message"),
    [
        ([[0.5, 0.5], [np.nan, 1.0]], [0.0, 0.0], r"row \(1,\) has mass nan at token 0"),
        ([[0.5, 0.5], [1.5, -0.5]], [0.0, 0.0], r"row \(1,\) has mass -0.5 at token 1"),
        ([[0.0, np.inf]], [0.0], r"row \(0,\) has mass inf at token 1"),
        ([[0.5, 0.5], [0.0, 0.0]], [0.0, 0.0], r"row \(1,\) is zero everywhere"),
        ([[0.5, 0.5]] * 2, [0.0, 1.0], r"entry \(1,\) is 1.0"),
        ([[0.5, 0.5]] * 2, [-0.1, 0.5], r"entry \(0,\) is -0.1"),
        ([[0.5, 0.5]] * 2, [0.5], r"must have shape \(2,\)"),
        (np.zeros((2, 0)), [0.5, 0.5], "V >= 1"),
    ],
)
def test_bad_input_is_named(probs, uniforms, message):
    with pytest.raises(ValueError, match=message):
        categorical(probs, uniforms)


def test_streams_are_separate_and_reproducible():
    first, second = simulate.streams(np.random.default_rng(0)), simulate.streams(np.random.default_rng(0))
    draws = [stream.random(4).tolist() for stream in first]
    assert draws == [stream.random(4).tolist() for stream in second]
    assert len({tuple(d) for d in draws}) == 4
    rng = np.random.default_rng(0)
    assert simulate.streams(rng).draft.random() != simulate.streams(rng).draft.random()
    assert simulate.streams(first) is first
    with pytest.raises(TypeError, match="default_rng"):
        simulate.streams(7)


@pytest.mark.parametrize("size", [1, 2, 5, 64, 100, 129, 1000, 4097])
@pytest.mark.parametrize("rows", [3, 400])
def test_two_levels_of_sums_find_the_token_of_one(rows, size):
    rng = np.random.default_rng(size)
    probs = rng.dirichlet(np.full(size, 0.3), rows) * (rng.random((rows, size)) < 0.5)
    probs[:, rng.integers(0, size)] += 0.01
    u = rng.random(rows)
    drawn, sums = categorical(probs, u), np.cumsum(probs, axis=1)
    level, at = u * sums[:, -1], np.arange(rows)
    before = np.where(drawn > 0, sums[at, drawn - 1], 0.0)
    assert ((before <= level + 1e-12) & (level < sums[at, drawn] + 1e-12)).all()
    assert (probs[at, drawn] > 0).all()
    for edge in (np.zeros(rows), np.full(rows, LAST_UNIFORM)):
        ends = categorical(probs, edge)
        assert (probs[at, ends] > 0).all()
    assert np.array_equal(categorical(probs, np.zeros(rows)), (probs > 0).argmax(axis=1))


def test_frequencies_follow_a_law_of_many_tokens():
    rng, n = np.random.default_rng(2), 20_000
    p = rng.dirichlet(np.full(300, 0.5))
    drawn = categorical(np.tile(p, (n, 1)), rng.random(n))
    statistic = ((np.bincount(drawn, minlength=300) - n * p) ** 2 / np.maximum(n * p, 1e-300))[n * p > 5].sum()
    cells = int((n * p > 5).sum())
    assert abs(statistic - cells) < 5 * np.sqrt(2 * cells)
