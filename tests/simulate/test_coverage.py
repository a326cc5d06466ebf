"""The coverage report: small, with a control that must not cover; the command line; what an import costs."""

import subprocess
import sys

import pytest

import simulate
from simulate import coverage
from simulate.__main__ import main


def test_intervals_cover():
    table = simulate.coverage_table(60, seed=1, samples=200)
    assert {row["chain"] for row in table} == {case.name for case in coverage.cases()}
    for row in table:
        # At one in 10,000 for each of some 70 rows; a coverage of .93 is good enough at 100 sequences a law.
        hits = round(row["coverage"] * row["repetitions"])
        assert coverage.clopper_pearson(hits, row["repetitions"], 1 - 2e-4)[1] >= 0.93, row
        assert row["coverage_lower"] <= row["coverage"] <= row["coverage_upper"]
        if row["method"] == "bernstein":
            assert row["coverage"] >= 0.95, row


def test_control_a_wrong_value_is_not_covered(monkeypatch):
    honest = coverage.exact_values
    monkeypatch.setattr(coverage, "exact_values", lambda case: {k: 1.25 * v for k, v in honest(case).items()})
    only = coverage.cases()[:1]
    for row in simulate.coverage_table(60, samples=400, methods=("normal",), only=only):
        assert row["coverage_upper"] < 0.93, row


def test_the_command_prints_the_table(capsys):
    assert main(["coverage", "--repetitions", "2", "--samples", "8", "--quiet"]) == 0
    out = capsys.readouterr().out
    assert "predictive_kl_target_output" in out
    assert out == coverage.format_table(simulate.coverage_table(2, samples=8)) + "\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cover"], "invalid choice: 'cover'"),
        ([], "COMMAND"),
        (["coverage", "--samples", "7", "--quiet"], "samples must be even, half from each law, got 7"),
        (["coverage", "--repetitions", "0", "--quiet"], "repetitions must be a whole number >= 1, got 0"),
        (["coverage", "--confidence", "2", "--quiet"], "confidence must"),
    ],
)
def test_unusable_arguments_are_named(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_importing_loads_no_torch():
    code = "import sys, simulate; assert not {'torch', 'cvxpy', 'scipy.stats'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
