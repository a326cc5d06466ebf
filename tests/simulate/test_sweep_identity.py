"""The identity of verifiers from outside: what changes it, and what does not."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulate.sweeps import identity
from tests.simulate import sweep_rules

ROOT = Path(__file__).resolve().parents[2]
SCALE = 2.0


def helper(x: float) -> float:
    return SCALE * x


def factory(strength: float, length: int) -> float:
    """A docstring."""
    return helper(strength) + length


class Builder:
    def __init__(self, weights: Any) -> None:
        self.weights = weights

    def __call__(self, strength: float, length: int) -> Any:
        return self.weights * helper(strength)


class TestIdentity:
    """A changed definition is another verifier."""

    def test_what_a_function_names_counts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Constants and helpers of its own module, two steps away."""
        before = identity.definition(factory)
        assert identity.definition(factory) == before
        monkeypatch.setitem(globals(), "SCALE", 3.0)
        assert identity.definition(factory) != before
        monkeypatch.undo()
        assert identity.definition(factory) == before
        monkeypatch.setitem(globals(), "helper", lambda x: 2.0 * x)
        assert identity.definition(factory) != before
        monkeypatch.undo()
        assert identity.definition(factory, "2") != before

    def test_code_counts_and_comments_do_not(self) -> None:
        def compiled(source: str) -> str:
            scope: dict[str, Any] = {"__name__": "somewhere"}
            exec(source, scope)
            return identity.definition(scope["f"])

        first = compiled("def f(s, n):\n    return s + 1\n")
        assert compiled("# why\n\ndef f(s, n):\n    # because\n    return s + 1\n") == first
        for other in ("return s + 2", "return s - 1", "return n + 1", "return g(s) + 1", "return s + True"):
            assert compiled(f"def f(s, n):\n    {other}\n") != first, other
        assert compiled("def f(s, n=1):\n    return s + 1\n") != first
        methods = [f"class R:\n    def g(self): return {x}\nf = lambda s, n: R()\n" for x in ("1", "2")]
        assert compiled(methods[0]) != compiled(methods[1])
        assert compiled("def f(s, n):\n    return f(s - 1, n) if s else {1, 2}\n")  # recursion ends

    def test_state_counts(self) -> None:
        """Attributes, closures, bound arguments and arrays."""
        built = [identity.definition(Builder(np.array([1.0, x]))) for x in (2.0, 2.0, 3.0)]
        assert built[0] == built[1] != built[2]
        partials = [identity.definition(functools.partial(factory, x)) for x in (1, 1, 2)]
        assert partials[0] == partials[1] != partials[2]
        bound = [identity.definition(Builder(x).__call__) for x in (1, 1, 2)]
        assert bound[0] == bound[1] != bound[2]

    def test_same_in_another_process(self) -> None:
        """Neither hash seeds nor addresses nor whether a module came from its compiled file enter."""
        code = (
            "from simulate.sweeps import identity; from tests.simulate import sweep_rules; "
            "print(identity.definition(sweep_rules.slow), identity.code_fingerprint())"
        )
        environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(ROOT)}
        found = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
        )
        assert found.stdout.split() == [identity.definition(sweep_rules.slow), identity.code_fingerprint()]
