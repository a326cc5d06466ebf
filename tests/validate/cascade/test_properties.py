"""The measured properties against whole passes, and that measuring does not disturb decoding."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr
from torch import Tensor

import theory
from tests.validate.networks import TOKENS, tiny_pair
from validate.batches import run_rounds
from validate.cascade import command
from validate.cascade.comparison import matched
from validate.cascade.properties import Recorder, along_images, measure_properties, rank_correlation
from validate.decoding import decode
from validate.models import Warp
from validate.noise import image_noise
from validate.training.drafter import halves
from validate.tree_decoding import decode_tree
from validate.tree_proposers import independent
from validate.tree_shapes import TreeShape

TREE, COUNT, GUIDANCE = [[[]], []], 40, 1.5
LOSSLESS = theory.Verifier(theory.Lossless())


class Remembering(Recorder):
    """Keeps what it was told of the first round."""

    def _note_breadth(self, tokens: Tensor, *rest: Any) -> None:
        if not hasattr(self, "first"):
            self.first = tokens.clone()
        super()._note_breadth(tokens, *rest)


@torch.no_grad()
def recorder() -> tuple[Remembering, np.ndarray]:
    pair = tiny_pair(GUIDANCE)
    noise = image_noise(0, range(COUNT), TOKENS, TreeShape(TREE).nodes, pair.device)
    found = Remembering(
        pair, pair.encode_conditions([0, 1] * (COUNT // 2)), noise, GUIDANCE, Warp(), TreeShape(TREE), independent
    )
    found.prepare(torch.zeros(8))
    tokens = run_rounds(found, partial(found.round, LOSSLESS), TOKENS)[0]
    return found, tokens


@torch.no_grad()
def behind(prefix: list[int], label: int) -> tuple[Tensor, Tensor]:
    """Guided state and law behind a prefix, from a whole pass."""
    tokens = torch.tensor([prefix + [0] * (TOKENS - len(prefix))])
    features, laws = halves(tiny_pair().target, tokens, torch.tensor([label]), GUIDANCE)  # type: ignore[arg-type]
    conditional, null = features[:, len(prefix)]
    return null + GUIDANCE * (conditional - null), laws[0, len(prefix)].exp()


def both(a: list[int], b: list[int], label: int) -> tuple[float, float]:
    (h, p), (g, q) = behind(a, label), behind(b, label)
    return float(torch.nn.functional.cosine_similarity(h, g, dim=0)), float((p - q).abs().sum() / 2)


def test_pairs_are_those_of_whole_passes() -> None:
    """Nodes 1 and 2 are the root's children, node 3 is below node 1; a comb reads 3's token behind 2."""
    found, _ = recorder()
    breadth, depths = found.breadth, found.depths
    for b in range(8):
        _, first, second, below = found.first[b].tolist()
        at = np.flatnonzero((breadth["image"] == b) & (breadth["position"] == 1))[0]
        wanted = both([first], [second], b % 2)
        assert (breadth["cosine"][at], breadth["tv"][at]) == pytest.approx(wanted, abs=2e-5)
        for d, (one, other) in enumerate((([first], [second]), ([first, below], [second, below]))):
            rows = np.flatnonzero((depths["image"] == b) & (depths["distance"] == d))
            wanted = both(one, other, b % 2)
            assert (depths["cosine"][rows[0]], depths["tv"][rows[0]]) == pytest.approx(wanted, abs=2e-5)
            assert depths["seen"][rows[0]] == pytest.approx(both([first], [second], b % 2)[0], abs=2e-5)
    # Places behind the image's last token are no measurements.
    assert breadth["position"].max() <= TOKENS - 1


def test_measuring_changes_no_image() -> None:
    _, tokens = recorder()
    plain = decode_tree(tiny_pair(GUIDANCE), LOSSLESS, TREE, [0, 1] * (COUNT // 2), device="cpu", guidance=GUIDANCE)
    assert (tokens == plain.tokens).all()


def test_the_report_of_a_tiny_pair() -> None:
    pair = tiny_pair(GUIDANCE)
    images = decode(pair, None, 0, COUNT, device="cpu")
    found = measure_properties(pair, images, TREE, independent)
    assert found == json.loads(json.dumps(found))
    siblings = found["siblings"]
    assert sum(siblings["histogram"]) == siblings["pairs"] > 0
    assert sum(part["pairs"] for part in found["siblings_by_depth"].values()) == siblings["pairs"]
    assert sum(part["pairs"] for part in found["siblings_by_image_row"].values()) == siblings["pairs"]
    assert along_images(pair, images).shape == (COUNT, TOKENS, 8)
    with pytest.raises(ValueError, match="the root has 1 child"):
        measure_properties(pair, images, [[[]]], independent)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 4)), min_size=6, max_size=30))
def test_rank_correlations_are_spearmans(rows: list[tuple[int, int, int]]) -> None:
    a, b, image = np.array(rows).T
    if len(set(a)) < 2 or len(set(b)) < 2 or len(set(image)) < 2:
        return
    found = rank_correlation(a, b, image)
    assert found.value == pytest.approx(spearmanr(a, b).statistic, abs=1e-9)
    assert found.lower <= found.value <= found.upper


def test_matching() -> None:
    assert matched(lambda s: s, 2.0) == pytest.approx(2.0, abs=1e-3)
    assert matched(lambda s: 0.5, 0.4) == 0.0
    assert matched(lambda s: 0.5, 0.6) is None


def test_the_command_keeps_finished_parts_and_names_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    def nodes(*_: Any) -> list[dict[str, Any]]:
        made.append(1)
        return [{"method": "x", "accepted": [0.1, 0.2, 0.3], "setting": {"tau_b": 0.9}}]

    monkeypatch.setattr(command, "compare_nodes", nodes)
    monkeypatch.setattr(command, "decode", lambda *_, **__: None)
    given_here = ["--images", "4", "--parts", "nodes", "--out", str(tmp_path / "r.json")]
    assert command.main(given_here) == 0
    assert command.main(given_here) == 0
    assert made == [1]
    assert "0.2±0.1" in capsys.readouterr().out
    assert command.main([*given_here, "--seed", "1"]) == 2
    assert "now it is" in capsys.readouterr().err
    assert command.main(["--images", "3", "--parts", "nodes"]) == 2
    assert "intervals need at least 4" in capsys.readouterr().err
    assert command.main(["--images", "4", "--drafter", str(tmp_path / "none")]) == 2
    assert "holds no drafter" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command.main(["--out", str(tmp_path)])
