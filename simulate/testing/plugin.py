"""A pytest plugin that makes a law test two lines. In a project's conftest.py:

    pytest_plugins = ["simulate.testing.plugin"]

and in a test:

    def test_my_sampler(assert_law):
        assert_law(my_sampler, verifier=theory.cool_sd(4, 1.1), length=4)

The plugin is not loaded by itself: an entry point would import NumPy into every pytest run on the machine.

The fixture is `simulate.testing.assert_law` with two additions. The verdict of a passing check (rounds, smallest TV) is
kept with the test's report, as a section shown by ``pytest -rP`` and a property in JUnit files. And the options
``--law-tv`` and ``--law-rounds`` set the defaults of `smallest_tv` and `max_rounds`, so that one suite can run quickly
at every commit and long at night.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from simulate.testing.law import assert_law as _assert_law
from simulate.testing.report import LawReport


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("relaxsd", "laws of speculative samplers")
    group.addoption("--law-tv", type=float, default=None, help="smallest_tv of assert_law where a test names none")
    group.addoption("--law-rounds", type=int, default=None, help="max_rounds of assert_law where a test names none")


@pytest.fixture
def assert_law(
    request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> Callable[..., LawReport]:
    """`simulate.testing.assert_law`, with defaults from the command line."""
    options = {"smallest_tv": "--law-tv", "max_rounds": "--law-rounds"}
    given = {name: request.config.getoption(flag) for name, flag in options.items()}
    defaults = {name: value for name, value in given.items() if value is not None}

    def check(sampler: Any, *args: Any, **kwargs: Any) -> LawReport:
        __tracebackhide__ = True
        report = _assert_law(sampler, *args, **(defaults | kwargs))
        record_property("law_smallest_tv", report.smallest_tv)
        record_property("law_rounds", report.rounds)
        request.node.add_report_section("call", "law", str(report))
        return report

    return check
