"""The embedded pair's transformer: its cache against teacher forcing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from validate.models import KVCache, Pair, TokenTransformer, load
from validate.models.building import fresh

# float32 rounding through four layers; measured differences stay below 2e-6.
AGREEMENT = 1e-5


@pytest.fixture(scope="module")
def pair() -> Pair:
    return load("fashion")


def random_model(seed: int = 0) -> TokenTransformer:
    config = {"vocab_size": 11, "num_classes": 3, "num_tokens": 9, "width": 16, "layers": 2, "heads": 4}
    generator = torch.Generator().manual_seed(seed)
    model = fresh(TokenTransformer, config, generator).eval().requires_grad_(False)
    model.head.weight.normal_(generator=generator)
    return model


def random_ids(model: TokenTransformer, rows: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    classes = torch.randint(model.num_classes + 1, (rows, 1), generator=generator) + model.vocab_size
    tokens = torch.randint(model.vocab_size, (rows, model.num_tokens - 1), generator=generator)
    return torch.cat([classes, tokens], dim=1)


def test_teacher_forcing_is_causal() -> None:
    model = random_model()
    ids = random_ids(model, 4)
    changed = ids.clone()
    changed[:, 5] = (changed[:, 5] + 1) % model.vocab_size
    before, after = model(ids), model(changed)
    torch.testing.assert_close(before[:, :5], after[:, :5], rtol=0, atol=AGREEMENT)
    assert (before[:, 5:] - after[:, 5:]).abs().max() > 1e-3


@pytest.mark.parametrize("pieces", [[9], [1] * 9, [1, 4, 3, 1]])
def test_cached_equals_teacher_forced(pieces: list[int]) -> None:
    model = random_model()
    ids, cache, length, parts = random_ids(model, 3), model.new_cache(3), 0, []
    for new in pieces:
        parts.append(model.extend(ids[:, length : length + new], torch.full((3,), length), cache)[0])
        length += new
    torch.testing.assert_close(torch.cat(parts, dim=1), model(ids), rtol=0, atol=AGREEMENT)


def ragged_with_trimming(model: TokenTransformer, honest: bool) -> float:
    """Largest difference to the oracle over random rounds: write n ids per row, keep a random number of them."""
    rows, generator = 5, torch.Generator().manual_seed(2)
    ids, cache = random_ids(model, rows), model.new_cache(rows)
    oracle = model(ids)
    lengths, worst = torch.zeros(rows, dtype=torch.int64), 0.0
    for _ in range(12):
        new = 3
        lengths = lengths.clamp(max=model.num_tokens - new)
        columns = lengths[:, None] + torch.arange(new)
        guess = ids.gather(1, columns)
        # The last id is a rejected guess: wrong, then overwritten next round.
        wrong = (guess[:, -1] + 1) % model.vocab_size
        logits, _ = model.extend(torch.cat([guess[:, :-1], wrong[:, None]], dim=1), lengths, cache)
        expected = oracle.gather(1, columns[:, :-1, None].expand(-1, -1, model.vocab_size))
        worst = max(worst, float((logits[:, :-1] - expected).abs().max()))
        kept = torch.randint(1, new, (rows,), generator=generator) if honest else torch.full((rows,), new)
        lengths = lengths + kept
    return worst


def test_ragged_rows_and_trimming_agree_with_teacher_forcing() -> None:
    assert ragged_with_trimming(random_model(), honest=True) < AGREEMENT


def test_keeping_a_rejected_token_is_noticed() -> None:
    # Negative control of the test above: a caller that forgets to trim sees other logits.
    assert ragged_with_trimming(random_model(), honest=False) > 1e-3


def test_shipped_target_cached_equals_teacher_forced(pair: Pair) -> None:
    for model in (pair.target, *pair.drafts.values()):
        ids = torch.cat([model.class_ids(pair.reference.labels[:4])[:, None], pair.reference.tokens[:4, :-1]], dim=1)
        cache, lengths = model.new_cache(4), torch.tensor([0, 7, 20, 45])
        model.extend(ids, torch.zeros(4, dtype=torch.int64), cache)
        columns = lengths[:, None] + torch.arange(4)
        logits, _ = model.extend(ids.gather(1, columns), lengths, cache)
        expected = model(ids).gather(1, columns[..., None].expand(-1, -1, model.vocab_size))
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)


def test_hidden_states_are_what_the_head_reads() -> None:
    model = random_model()
    ids = random_ids(model, 2)
    logits, hidden = model(ids, return_hidden=True)
    torch.testing.assert_close(model.head(hidden), logits)
    cached, cached_hidden = model.extend(ids, torch.zeros(2, dtype=torch.int64), model.new_cache(2))
    torch.testing.assert_close(cached_hidden, hidden, rtol=0, atol=AGREEMENT)
    torch.testing.assert_close(cached, logits, rtol=0, atol=AGREEMENT)


def test_cache_gathers_rows() -> None:
    model = random_model()
    ids, cache = random_ids(model, 3), model.new_cache(3)
    model.extend(ids[:, :4], torch.zeros(3, dtype=torch.int64), cache)
    rows = torch.tensor([2, 2, 0])
    branched = cache.gather(rows)
    assert isinstance(branched, KVCache)
    assert branched.rows == 3
    logits, _ = model.extend(ids[rows][:, 4:], torch.full((3,), 4), branched)
    torch.testing.assert_close(logits, model(ids[rows])[:, 4:], rtol=0, atol=AGREEMENT)


def test_extend_names_row_and_value_out_of_range() -> None:
    model = random_model()
    ids, cache = random_ids(model, 2)[:, :3], model.new_cache(2)
    with pytest.raises(ValueError, match=r"lengths\[1\] = 7 with 3 new ids .* at most 6"):
        model.extend(ids, torch.tensor([6, 7]), cache)
    with pytest.raises(ValueError, match=r"lengths\[0\] = -1"):
        model.extend(ids, torch.tensor([-1, 0]), cache)
    with pytest.raises(ValueError, match=r"ids row 1 holds .*15"):
        model.extend(torch.tensor([[0], [15]]), torch.tensor([0, 0]), cache)
    with pytest.raises(ValueError, match="lengths must be int64"):
        model.extend(ids, torch.tensor([0.0, 0.0]), cache)
    with pytest.raises(ValueError, match="cache holds 2 rows but ids has 1"):
        model.extend(ids[:1], torch.tensor([0]), cache)
    with pytest.raises(ValueError, match="1 to 9 positions"):
        model(torch.zeros(1, 10, dtype=torch.int64))
    with pytest.raises(ValueError, match="class number 3 at index"):
        model.class_ids(torch.tensor([0, 3]))
    with pytest.raises(ValueError, match="heads must divide width"):
        TokenTransformer(vocab_size=2, num_classes=1, num_tokens=2, width=6, layers=1, heads=4)


def test_extend_moves_no_other_cache_entry() -> None:
    model = random_model()
    cache = model.new_cache(2)
    model.extend(random_ids(model, 2)[:, :2], torch.tensor([3, 5]), cache)
    written = cache.keys.abs().sum(dim=(0, 3, 4)) > 0
    assert written.nonzero().tolist() == [[0, 3], [0, 4], [1, 5], [1, 6]]
