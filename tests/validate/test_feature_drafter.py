"""The feature drafter against the official code's numbers, and what a directory can get wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.validate.golden import ATOL, CASES, arrays, close, weights
from validate.drafters.feature import DrafterConfiguration, FeatureDrafter
from validate.drafters.loading import load_drafter
from validate.drafters.trees import best_tree
from validate.models import guided_logits
from validate.models.forest import Forest, node_view
from validate.models.llamagen import load_transformer
from validate.models.tensors import WeightsError
from validate.tree_shapes import LANTERN_TREE, TreeShape, tree_of_paths

SCALE = 3.0
GUIDED = ATOL * (1 + 2 * SCALE)
FOLDER = weights("drafter_a").parent


class Drafting:
    """The golden drafter after round 1 or 2, with its newest output."""

    def __init__(self, rounds: int) -> None:
        self.drafter, self.data = load_drafter(FOLDER), arrays("drafter_a")
        self.state = self.drafter.start(2, 200)
        self.read, hidden = 0, torch.empty(0)
        self.outputs = []
        for number in range(1, rounds + 1):
            ids = self.data[f"ids_round{number}"][:, 1 + self.read :]
            lengths = torch.full((2,), self.read)
            hidden = self.drafter(ids, self.data[f"features_round{number}"], lengths, self.state)
            self.outputs.append(hidden)
            self.read += ids.shape[1]
        self.last = hidden[:, -1]

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden @ self.data["lm_head"].T

    def guided(self, hidden: Tensor) -> Tensor:
        return guided_logits(*self.logits(hidden).chunk(2), SCALE)

    def nodes(self, forest: Forest, first: int, tokens: Tensor, features: Tensor) -> Tensor:
        """Outputs of some nodes: tokens (1, n), features (2, n, D)."""
        read = torch.full((2,), self.read)
        index, slots, visible = node_view(forest, first, tokens.shape[1], read, self.drafter.config.rows, 200)
        more: dict[str, Any] = {"slots": slots, "positions": index, "visible": visible}
        return self.drafter(tokens.repeat(2, 1), features, read, self.state, **more)


def test_golden_rounds_with_cache() -> None:
    run = Drafting(2)
    for number, hidden in enumerate(run.outputs, 1):
        close(hidden[:, -8:], run.data[f"hidden_round{number}"])
        close(run.logits(hidden[:, -1]), run.data[f"logits_round{number}"])
    close(run.guided(run.outputs[0][:, -1]), run.data["cfg_3.0_round1"], atol=GUIDED)
    shape = CASES["drafter_a"]["effective"]
    assert run.drafter.rope.shape[0] == run.drafter.config.rows == shape["rope_rows"]
    assert run.drafter.config.zero_rows == shape["cls_token_num"]
    close(run.drafter.rope[118:128], run.data["rope_table_first"], atol=1e-6)


def test_without_a_cache_the_same() -> None:
    run = Drafting(1)
    close(run.drafter.teach(run.data["ids_round1"][:, 1:], run.data["features_round1"]), run.outputs[0])


def test_golden_chain_of_its_own_outputs() -> None:
    run = Drafting(2)
    forest, tokens, outputs, hidden = Forest.of(torch.arange(3) - 1), [], [], run.last
    for step in range(3):
        tokens.append(int(run.guided(hidden).argmax()))
        out = run.nodes(forest, step, torch.tensor([tokens[-1:]]), hidden[:, None])
        hidden = out[:, 0]
        outputs.append(hidden)
    assert tokens == run.data["chain_tokens"].tolist()
    close(torch.stack(outputs, 1), run.data["chain_hidden"])
    close(run.guided(hidden), run.data["chain_cfg_logits_last"], atol=GUIDED)


@pytest.mark.parametrize(("rounds", "suffix"), [(1, ""), (2, "_round2")])
def test_golden_static_tree(rounds: int, suffix: str) -> None:
    run, shape = Drafting(rounds), TreeShape(tree_of_paths(LANTERN_TREE))
    forest = Forest.of(torch.from_numpy(np.maximum(shape.parents[1:] - 1, -1)))
    hidden = {0: run.last}
    tokens, rows = torch.zeros(shape.nodes, dtype=torch.int64), []
    for depth, (first, end) in enumerate(shape.levels[:-1]):
        if depth:
            above = torch.stack([hidden[int(shape.parents[node])] for node in range(first, end)], 1)
            out = run.nodes(forest, first - 1, tokens[None, first:end], above)
            hidden |= {node: out[:, node - first] for node in range(first, end)}
        for node in range(first, end):
            below = shape.children[node]
            if below:
                rows.append(run.guided(hidden[node])[0].topk(10))
                tokens[below] = rows[-1].indices[: len(below)]
    assert torch.equal(torch.stack([row.indices for row in rows]), run.data[f"static_tokens{suffix}"])
    close(torch.stack([row.values for row in rows]), run.data[f"static_scores{suffix}"], atol=GUIDED)


def test_golden_dynamic_tree() -> None:
    run = Drafting(1)
    total, depth, top_k = CASES["drafter_a"]["dynamic"]
    parents: list[Tensor] = []
    outputs: list[Tensor] = []

    def expand(step: int, token: Tensor, inside: Tensor) -> Tensor:
        above = torch.full_like(inside, -1) if step == 0 else (step - 1) * top_k + inside
        parents.append(above)
        features = run.last[:, None].expand(-1, top_k, -1) if step == 0 else outputs[-1][:, inside[0]]
        outputs.append(run.nodes(Forest.of(torch.cat(parents, 1)), step * top_k, token, features))
        return run.guided(outputs[-1]).log_softmax(-1)

    root = run.data["dynamic_tokens"][:, 0]
    tree = best_tree(root, run.guided(run.last).log_softmax(-1), expand, total, depth, top_k)
    assert torch.equal(tree.tokens, run.data["dynamic_tokens"])
    forest = Forest.of(tree.parents)
    assert torch.equal(forest.depths[0], run.data["dynamic_positions"])
    assert torch.equal(forest.ancestors[0], run.data["dynamic_mask"][0, 0] > 0)
    leaves = set(range(total + 1)) - set(tree.parents[0].tolist())
    paths = {tuple(torch.nonzero(forest.ancestors[0, leaf])[:, 0].tolist()) for leaf in leaves}
    assert paths == {tuple(node for node in path if node >= 0) for path in run.data["dynamic_retrieve"].tolist()}
    with pytest.raises(ValueError, match=r"total must lie in 1…52"):
        best_tree(root, run.guided(run.last).log_softmax(-1), expand, 53, depth, top_k)


def test_the_golden_tree_is_the_25_node_tree() -> None:
    assert {tuple(path) for path in CASES["drafter_a"]["static_tree"]} == set(LANTERN_TREE)


# --- directories ---------------------------------------------------------------------------------------------------


def copied(folder: Path, **changes: Any) -> Path:
    shutil.copytree(FOLDER, folder, dirs_exist_ok=True)
    (folder / "data.npz").unlink()
    config = json.loads((folder / "config.json").read_text())
    config.update(changes)
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    return folder


def resaved(folder: Path, **tensors: Tensor | None) -> Path:
    path = copied(folder) / "pytorch_model.bin"
    content = torch.load(path, weights_only=True) | {k.replace("__", "."): v for k, v in tensors.items()}
    torch.save({k: v for k, v in content.items() if v is not None}, path)
    return folder


def test_safetensors_load_as_well(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    folder = copied(tmp_path / "d")
    save_file(torch.load(folder / "pytorch_model.bin", weights_only=True), folder / "model.safetensors")
    (folder / "pytorch_model.bin").unlink()
    ours, theirs = load_drafter(folder).state_dict(), load_drafter(FOLDER).state_dict()
    assert all(torch.equal(ours[name], value) for name, value in theirs.items())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input_type": None}, "lacks 'input_type'"),
        ({"num_key_value_heads": 2}, "grouped-query"),
        ({"input_type": "other"}, "lacks 'block_size'"),
        ({"input_type": "other", "block_size": 8, "cls_token_num": 0}, "block_size 8 is not a square"),
        ({"num_attention_heads": 5, "num_key_value_heads": 5}, "multiple of 4"),
        ({"num_hidden_layers": 2}, r"lacks tensor 'layers\.1\.self_attn\.q_proj\.weight'"),
        ({"intermediate_size": 80}, r"'layers\.0\.mlp\.gate_proj\.weight' has shape \(96, 64\), expected \(80, 64\)"),
        ({"bias": False}, r"extra tensor 'fc\.bias'"),
    ],
)
def test_configs_that_make_no_drafter(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=message):
        load_drafter(copied(tmp_path / "d", **changes))


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"embed_tokens__weight": None}, r"lacks tensor 'embed_tokens\.weight'"),
        ({"fc__bias": torch.full((64,), torch.nan)}, r"'fc\.bias' holds nan"),
        ({"norm__weight": torch.ones(64)}, r"extra tensor 'norm\.weight'"),
        ({"fc__weight": torch.ones(64, 64)}, r"'fc\.weight' has shape"),
    ],
)
def test_weights_are_strict(tensors: dict[str, Tensor], message: str, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=message):
        load_drafter(resaved(tmp_path / "d", **tensors))


def test_missing_files_other_families_and_pickles(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no config"):
        load_drafter(tmp_path)
    folder = copied(tmp_path / "d")
    torch.save({"model": {"tok_embeddings.weight": torch.ones(2, 2)}}, folder / "pytorch_model.bin")
    with pytest.raises(WeightsError, match="holds a LlamaGen transformer, not a EAGLE"):
        load_drafter(folder)
    torch.save({"args": Path("code")}, folder / "pytorch_model.bin")
    with pytest.raises(WeightsError, match="more than tensors"):
        load_drafter(folder)
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(FileNotFoundError, match="holds neither"):
        load_drafter(folder)


def test_a_drafter_of_another_target(tmp_path: Path) -> None:
    target = load_transformer(weights("t2i_hf").parent)
    with pytest.raises(WeightsError, match=r"feature width 64, this one has 48"):
        load_drafter(FOLDER, target=target)


def test_bad_shapes() -> None:
    with pytest.raises(ValueError, match="zero_rows must be >= 0"):
        DrafterConfiguration(5, 8, 16, 2, 2, zero_rows=-1)
    with pytest.raises(ValueError, match="multiple of 4"):
        DrafterConfiguration(5, 8, 16, 4, 2)
    assert FeatureDrafter(DrafterConfiguration(5, 8, 16, 2, 2, bias=False)).fc.bias is None
