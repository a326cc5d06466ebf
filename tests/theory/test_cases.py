"""Oracle cases: exact laws in rational arithmetic, made by plain recursion outside this project's code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import theory
from tests.theory.helpers import CASES, ROOT, load_case

PATHS = sorted([*CASES.glob("round-*.json"), *CASES.glob("sequence-*.json")])
NAMES = {"tv_bound_positions": "tv_bound_per_position"}


def analyse(case: dict[str, Any], target: Any, draft: Any, verifier: theory.Verifier) -> Any:
    if case["kind"] == "round":
        return theory.analyse_round(target, draft, verifier, case["draft_length"])
    return theory.analyse_sequence(target, draft, verifier, case["draft_length"], case["tokens"])


def expected(value: Any) -> np.ndarray:
    flat = value if isinstance(value, list) else [value]
    return np.array([np.inf if x is None else x for x in flat], dtype=float)


def test_the_cases_are_there() -> None:
    copies = sorted((ROOT / "tests" / "data" / "cases").glob("*.json"))
    assert len(copies) == 60
    assert {path.name for path in PATHS} == {path.name for path in copies}


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_case(path: Path, library: str) -> None:
    case, target, draft, verifier = load_case(path)
    if library == "torch":
        target, draft = ([torch.from_numpy(level) for level in levels] for levels in (target, draft))
    analysis = analyse(case, theory.TabularChain(target), theory.TabularChain(draft), verifier)
    assert set(case["expect"]) >= {"law", "total_variation"}
    for key, value in case["expect"].items():
        found = np.asarray(getattr(analysis, NAMES.get(key, key))).reshape(-1)
        np.testing.assert_allclose(found, expected(value), rtol=0, atol=1e-12, err_msg=key)


def test_a_wrong_residual_is_noticed() -> None:
    """Negative control: the same cases with the residual replaced by the target must disagree."""
    wrong = 0
    for path in PATHS:
        case, target, draft, verifier = load_case(path)
        if case["residual"] != "optimal" or case["rule"]["kind"] not in ("lossless", "relaxed", "lantern"):
            continue
        broken = theory.Verifier(verifier.rule, theory.target_residual)
        analysis = analyse(case, theory.TabularChain(target), theory.TabularChain(draft), broken)
        wrong += bool(np.abs(analysis.law.reshape(-1) - expected(case["expect"]["law"])).max() > 1e-3)
    assert wrong >= 5
