"""Draft trees in one pass against the stock networks, path by path, and what is cached of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import theory
from validate.models import Pair
from validate.models.forest import Forest
from validate.models.interface import START
from validate.tree_decoding import decode_tree

from .test_sequences import TOLERANCE, begin, feed, oracle
from .tiny import FAMILIES, Case, case


def path_to(parents: list[int], node: int) -> list[int]:
    path = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


def expected(one: Case, condition: int, prefix: list[int], guidance: float) -> torch.Tensor:
    """Law behind a row's tokens."""
    return oracle(one, condition, prefix, guidance)[len(prefix)]


@settings(max_examples=20)
@given(data=st.data())
@pytest.mark.parametrize("name", [*(name for name in FAMILIES if name != "imagegpt"), "lumina:eager"])
def test_every_node_reads_its_own_path(name: str, data: st.DataObject) -> None:
    """Rows of any length, row ends within the tree, two passes a tree, then ordinary passes behind a kept path."""
    one = case(name)
    model, total = one.model, one.model.num_tokens
    count = data.draw(st.integers(1, 3), label="rows")
    conditions = data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count), label="conditions")
    guidance = 1.0 if model.unconditional else data.draw(st.sampled_from([1.0, 2.5]), label="guidance")
    lengths = data.draw(st.lists(st.integers(0, total - 1), min_size=count, max_size=count), label="lengths")
    nodes = data.draw(st.integers(1, 5), label="nodes")
    parents = [0 if v == 1 else data.draw(st.integers(0, v - 1)) for v in range(1, nodes)]
    parents = [-1, *parents]
    cut = data.draw(st.integers(1, nodes), label="first pass")
    generator = np.random.default_rng(data.draw(st.integers(0, 99)))
    images = torch.from_numpy(generator.integers(0, model.vocab_size, (count, total)))
    tokens = torch.from_numpy(generator.integers(0, model.vocab_size, (count, nodes)))
    long = torch.tensor(lengths)
    tokens[:, 0] = torch.where(long == 0, START, images.gather(1, (long - 1).clamp(min=0)[:, None])[:, 0])
    rows, forest = begin(one, conditions, guidance), Forest.of(torch.tensor(parents))
    if max(lengths):
        rows.logits(feed(images, torch.zeros_like(long), max(lengths)), torch.zeros_like(long))
    parts = [rows.tree_logits(tokens[:, :cut], long, forest)]
    if cut < nodes:
        parts.append(rows.tree_logits(tokens[:, cut:], long, forest, cut))
    found = torch.cat(parts, dim=1)
    for row, length in enumerate(lengths):
        for node in range(nodes):
            path = path_to(parents, node)
            known = [
                *images[row, : max(length - 1, 0)].tolist(),
                *(x for x in tokens[row, path].tolist() if x != START),
            ]
            if len(known) < total:
                wanted = expected(one, conditions[row], known, guidance)
                torch.testing.assert_close(found[row, node], wanted, rtol=0, atol=TOLERANCE)
    # Keep a path, as far as the image goes, and read on behind it.
    path = path_to(parents, nodes - 1)
    kept = torch.tensor([min(len(path), total - length) for length in lengths])
    rows.keep_path(torch.tensor(path).expand(count, -1), kept, long)
    longer = long + kept
    newest = torch.from_numpy(generator.integers(0, model.vocab_size, (count, 1)))
    reading = (longer < total).nonzero()[:, 0]
    rows.keep(reading)
    if not len(reading):
        return
    logits = rows.logits(newest[reading], longer[reading])
    for place, row in enumerate(reading.tolist()):
        before = [*images[row, : max(lengths[row] - 1, 0)].tolist(), *tokens[row, path[: int(kept[row])]].tolist()]
        known = [*(x for x in before if x != START), int(newest[row, 0])]
        wanted = expected(one, conditions[row], known, guidance)
        torch.testing.assert_close(logits[place, 0], wanted, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", ["janus", "emu3"])
def test_a_draft_that_is_the_target_is_accepted_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images decoded with trees: drafts of the target's own laws all pass; control: laws of another node do not."""
    model = case(name).model
    pair = Pair("own", model, {"own": model}, "own", model.decoder, guidance=2.0)
    prompts = [case(name).prompts[0]] * 3
    tree: Any = [[[[]]]]
    lossless = theory.Verifier(theory.Lossless())
    run = decode_tree(pair, lossless, tree, prompts, device="cpu", seed=1)
    assert run.tokens.shape == (3, model.num_tokens)
    full = run.accepted[:, 0]
    assert (full == 3).all()
    assert run.calls.max() <= -(-model.num_tokens // 4) + 1
    kept = Forest.of

    def wrong(parents: torch.Tensor) -> Forest:
        forest = kept(parents)
        own = torch.eye(forest.size, dtype=torch.bool)
        return Forest(forest.parents, forest.depths, own.expand_as(forest.ancestors))

    monkeypatch.setattr(Forest, "of", wrong)
    blind = decode_tree(pair, lossless, tree, prompts * 20, device="cpu", seed=1)
    assert blind.accepted[:, 0].mean() < 3


def test_a_network_with_a_mask_of_its_own_reads_no_trees() -> None:
    model = case("imagegpt").model
    pair = Pair("own", model, {"own": model}, "own", model.decoder, guidance=1.0)
    with pytest.raises(TypeError, match=r"ImageGPTModel cannot read trees in one pass; decode with chains"):
        decode_tree(pair, theory.Verifier(theory.Lossless()), [[]], 2, device="cpu")
