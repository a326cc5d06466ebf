"""The pytest fixture, run in a pytest of its own."""

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]


@pytest.fixture(autouse=True)
def _this_checkout(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[3]))


TESTS = """
    import theory
    from simulate.testing import reference_sampler

    LOSSLESS = theory.Verifier(theory.Lossless())
    BROKEN = theory.Verifier(theory.Lossless(), theory.target_residual)

    def test_right(assert_law):
        assert_law(reference_sampler(LOSSLESS), length=1)

    def test_wrong(assert_law):
        assert_law(reference_sampler(BROKEN), length=1)
"""


def test_a_law_test_in_two_lines(pytester):
    pytester.makeconftest('pytest_plugins = ["simulate.testing.plugin"]')
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_subprocess("-rP", "--law-tv=0.2", "--law-rounds=2048", "--junitxml=out.xml")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*the sampler does not follow the declared law*", "*nearest known fault:*"])
    result.stdout.fnmatch_lines(["*passed: * rounds; a correct sampler fails with probability at most 1e-09;*"])
    assert 'name="law_smallest_tv"' in (pytester.path / "out.xml").read_text()


def test_the_plugin_is_not_loaded_by_itself(pytester):
    pytester.makepyfile(
        "def test_none(pytestconfig): assert not pytestconfig.pluginmanager.has_plugin('simulate.testing.plugin')"
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=1)
