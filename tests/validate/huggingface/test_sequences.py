"""Cached passes against the stock networks, row by row: prompts, row ends, guidance, going back, keeping rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from validate.models.guidance import guided_logits
from validate.models.interface import START

from .tiny import FAMILIES, Case, case

TOLERANCE = 2e-5
"""Float32 rounding of two layers at logits of a few units; the same sums in another order."""


def oracle(one: Case, condition: int, tokens: list[int], guidance: float) -> torch.Tensor:
    """Guided logits of x_1 … x_{n+1} from whole uncached passes of the stock network."""
    model = one.model
    if model.unconditional:
        return one.laws(list(model.opening), tokens)
    prompt = one.prompts[condition]
    prompt = prompt if prompt[-len(model.opening) :] == model.opening else prompt + model.opening
    conditional = one.laws(prompt, tokens)
    if guidance == 1.0:
        return conditional
    return guided_logits(conditional, one.laws(one.null(prompt), tokens), guidance)


def feed(images: torch.Tensor, lengths: torch.Tensor, new: int) -> torch.Tensor:
    """Inputs at index lengths … lengths + new − 1."""
    inputs = torch.cat([torch.full((len(images), 1), START), images], dim=1)
    index = lengths[:, None] + torch.arange(new)
    return inputs.gather(1, index)


def begin(one: Case, conditions: list[int], guidance: float):
    if one.model.unconditional:
        return one.model.start(len(conditions))
    return one.model.start([one.prompts[index] for index in conditions], guidance)


EAGER = ["janus:eager", "anole:eager", "lumina:eager", "emu3:eager", "llama:eager"]
SCALES = [
    (name, scale) for name in (*FAMILIES, *EAGER) for scale in ((1.0,) if name == "imagegpt" else (1.0, 3.0, 0.0))
]


@pytest.mark.parametrize(("name", "guidance"), SCALES)
def test_one_pass_over_a_whole_image_is_the_stock_forward(name: str, guidance: float) -> None:
    one = case(name)
    total = one.model.num_tokens
    images = torch.from_numpy(np.random.default_rng(3).integers(0, one.model.vocab_size, (4, total)))
    rows = begin(one, [0, 1, 2, 3], guidance)
    logits = rows.logits(feed(images, torch.zeros(4, dtype=torch.int64), total), torch.zeros(4, dtype=torch.int64))
    assert logits.dtype == torch.float32
    assert logits.shape == (4, total, one.model.vocab_size)
    for row in range(4):
        expected = oracle(one, row, images[row, : total - 1].tolist(), guidance)
        torch.testing.assert_close(logits[row], expected, rtol=0, atol=TOLERANCE)
    # The laws must tell prompts and prefixes apart, or agreement would show nothing.
    assert float(logits[0].std(dim=0).max()) > 0.1
    if guidance != 0.0 and not one.model.unconditional:
        assert float((logits[0, 0] - logits[2, 0]).abs().max()) > 0.01


@settings(max_examples=25)
@given(data=st.data())
@pytest.mark.parametrize("name", FAMILIES)
def test_rows_of_different_lengths_go_back_and_forth_as_uncached(name: str, data: st.DataObject) -> None:
    """Random blocks behind random lengths, trims, changed tokens, permuted and dropped rows."""
    one = case(name)
    model = one.model
    total = model.num_tokens
    count = data.draw(st.integers(1, 4), label="rows")
    conditions = data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count), label="conditions")
    guidance = 1.0 if model.unconditional else data.draw(st.sampled_from([1.0, 2.5]), label="guidance")
    generator = np.random.default_rng(data.draw(st.integers(0, 2**32), label="seed"))
    images = torch.from_numpy(generator.integers(0, model.vocab_size, (count, total)))
    reached = np.zeros(count, dtype=np.int64)
    rows = begin(one, conditions, guidance)
    # The shapes a GPU is given, which depend on no length.
    rows.static = data.draw(st.booleans(), label="static")
    for _ in range(data.draw(st.integers(1, 5), label="blocks")):
        new = data.draw(st.integers(1, total), label="new")
        lengths = torch.tensor(
            [data.draw(st.integers(0, int(min(reach, total - new))), label="length") for reach in reached]
        )
        for row, length in enumerate(lengths.tolist()):
            # Inputs 0, …, length − 1 are kept; x_length, the first new input, and what follows are drafted afresh.
            afresh = max(length - 1, 0)
            images[row, afresh:] = torch.from_numpy(generator.integers(0, model.vocab_size, total - afresh))
        logits, hidden = rows.logits(feed(images, lengths, new), lengths, hidden=True)
        assert hidden.shape[:2] == (count * (1 if guidance == 1.0 else 2), new)
        for row, length in enumerate(lengths.tolist()):
            expected = oracle(one, conditions[row], images[row, : length + new - 1].tolist(), guidance)
            torch.testing.assert_close(logits[row], expected[length:], rtol=0, atol=TOLERANCE)
        reached = lengths.numpy() + new
        if data.draw(st.booleans(), label="keep"):
            chosen = data.draw(st.permutations(range(count)), label="order")
            chosen = chosen[: data.draw(st.integers(1, count), label="kept")]
            rows.keep(torch.tensor(chosen))
            images, reached, count = images[chosen], reached[chosen], len(chosen)
            conditions = [conditions[index] for index in chosen]
            assert rows.rows == count


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("name", ["janus", "anole", "lumina", "emu3", "llama"])
def test_kept_rows_go_on_with_both_halves(name: str, static: bool) -> None:
    """Rows 2 and 0 of a guided batch, reordered after different lengths, then to the image's end."""
    one = case(name)
    total, order = one.model.num_tokens, [2, 0]
    images = torch.from_numpy(np.random.default_rng(8).integers(0, one.model.vocab_size, (3, total)))
    rows = begin(one, [0, 1, 2], 2.5)
    rows.static = static
    zero = torch.zeros(3, dtype=torch.int64)
    rows.logits(feed(images, zero, 4), zero)
    rows.keep(torch.tensor(order))
    lengths = torch.tensor([1, 4])
    new = total - 4
    logits = rows.logits(feed(images[order], lengths, new), lengths)
    for row, condition in enumerate(order):
        length = int(lengths[row])
        expected = oracle(one, condition, images[condition, : length + new - 1].tolist(), 2.5)
        torch.testing.assert_close(logits[row], expected[length:], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", FAMILIES)
def test_hidden_states_are_what_the_head_reads(name: str) -> None:
    one = case(name)
    rows = begin(one, [0, 2], 1.0)
    lengths = torch.zeros(2, dtype=torch.int64)
    inputs = torch.tensor([[START, 1, 2], [START, 0, 3]])
    logits, hidden = rows.logits(inputs, lengths, hidden=True)
    torch.testing.assert_close(one.model.head(hidden), logits, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["lumina", "emu3"])
def test_a_stream_without_its_row_ends_is_told_apart(name: str) -> None:
    """Negative control: the oracle's own stream, ends left out, must not pass."""
    one = case(name)
    total = one.model.num_tokens
    images = torch.from_numpy(np.random.default_rng(5).integers(0, one.model.vocab_size, (1, total)))
    rows = begin(one, [0], 1.0)
    zero = torch.zeros(1, dtype=torch.int64)
    rows._row_length = total + 1  # type: ignore[attr-defined]
    rows.model = type("Endless", (), {**_views(one.model), "end_of_row": None})()
    logits = rows.logits(feed(images, zero, total), zero)
    expected = oracle(one, 0, images[0, : total - 1].tolist(), 1.0)
    assert float((logits[0] - expected).abs().max()) > 100 * TOLERANCE


def _views(model: object) -> dict[str, object]:
    names = ("num_tokens", "vocab_size", "embed_tokens", "embed_ids", "head", "run")
    return {
        name: getattr(model, name) if name[0] == "n" or name[0] == "v" else staticmethod(getattr(model, name))
        for name in names
    }


def test_padding_in_front_of_a_short_prompt_is_seen_by_nobody() -> None:
    """The same row alone, where there is no padding, and beside a longer prompt."""
    one = case("janus")
    zero = torch.zeros(1, dtype=torch.int64)
    alone = begin(one, [1], 2.0).logits(torch.tensor([[START, 4]]), zero)
    both = begin(one, [1, 2], 2.0).logits(torch.tensor([[START, 4], [START, 1]]), zero.repeat(2))
    torch.testing.assert_close(alone[0], both[0], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("inputs", "lengths", "message"),
    [
        ([[START, 9]], [0], r"inputs\[0, 1\] = 9 at input index 1; index 0 holds START"),
        ([[2, 1]], [0], r"inputs\[0, 0\] = 2 at input index 0"),
        ([[1, START]], [3], r"inputs\[0, 1\] = -1 at input index 4"),
        ([[1, 1]], [8], r"lengths\[0\] = 8 with 2 new inputs leaves 0…8; clamp it to at most 7"),
        ([[1, 1]], [-1], r"lengths\[0\] = -1"),
        ([[1], [1]], [1, 1], r"inputs must be int64 of shape \(1, n\)"),
        ([[1]], [1, 1], r"lengths must be int64 of shape \(1,\)"),
    ],
)
def test_bad_blocks_name_row_and_value(inputs: list[list[int]], lengths: list[int], message: str) -> None:
    rows = begin(case("anole"), [0], 1.0)
    with pytest.raises(ValueError, match=message):
        rows.logits(torch.tensor(inputs), torch.tensor(lengths))
