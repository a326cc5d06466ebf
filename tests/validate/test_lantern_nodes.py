"""LANTERN's public code on tree nodes, step by step, as the tree decoder walks them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import theory
from tests.theory.test_residuals import GOLDEN, TOLERANCE
from validate.siblings import try_siblings

REFUSED = 1 - 2**-53
MARGIN = 1e-9
"""Between the uniforms of an accepted and a refused sibling: the golden numbers are good to 1e-12."""


def verifier_of(node: dict[str, Any]) -> theory.Verifier:
    strength = {"delta" if node["delta"] <= 1 else "lam": node["delta"]}
    return theory.lantern_verifier(np.array(node["neighbours"]), node["k"], branch=node["branch"], **strength)


def walk(node: dict[str, Any], uniforms: list[float]) -> tuple[int, np.ndarray]:
    """Accepted sibling of the first ones, −1 where all are refused, and the law behind them."""
    p = torch.tensor(node["p"], dtype=torch.float64)[None]
    q = None if node["q"] is None else torch.tensor(node["q"], dtype=torch.float64)[None]
    tokens = torch.tensor(node["siblings"][: len(uniforms)])[None]
    child, law = try_siblings(
        verifier_of(node), p / p.sum(), q, tokens, torch.tensor([uniforms], dtype=torch.float64), 0
    )
    return int(child[0]), law[0].numpy()


@pytest.mark.parametrize("index", range(len(GOLDEN["nodes"])))
def test_siblings_are_accepted_and_replaced_as_the_public_code_does(index: int) -> None:
    node = GOLDEN["nodes"][index]
    before: list[float] = []
    for j, step in enumerate(node["steps"]):
        accept = step["accept"]
        if accept > MARGIN:
            assert walk(node, [*before, accept - MARGIN])[0] == j
        if accept > 1 - MARGIN:
            return  # nobody meets what stands behind a sibling that is always accepted
        child, law = walk(node, [*before, accept + MARGIN])
        assert child == -1
        np.testing.assert_allclose(law, step["residual"], rtol=0, atol=TOLERANCE)
        before.append(REFUSED)


def test_some_nodes_have_refused_elder_siblings() -> None:
    """Or the walk would be checked at first siblings only."""
    second = [node for node in GOLDEN["nodes"] if len(node["steps"]) > 1 and node["steps"][0]["accept"] < 1 - MARGIN]
    assert {node["branch"] for node in second} == {"llamagen_static", "lumina_static", "dynamic", "lumina_dynamic"}
