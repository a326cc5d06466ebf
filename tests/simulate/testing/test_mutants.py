"""The registry of broken samplers: exact values of every known fault, and that the kit finds all of them."""

import dataclasses

import numpy as np
import pytest

import simulate.testing.mutants as registry
import theory
from simulate.__main__ import main
from simulate.testing import Rounds, Uniforms, check_law, exact_law
from simulate.testing.mutants import CORRECT, KINDS, MUTANTS, Mutant, format_table, judge
from simulate.testing.mutants.answers import CORE, chi_square_test
from simulate.testing.mutants.correct import EqualToTarget
from simulate.testing.mutants.drafts import both_least, from_rows, gumbel_law, top
from simulate.testing.mutants.draws import _in_bfloat16, _in_float16, bfloat16
from simulate.testing.mutants.lossy import block_wise
from simulate.testing.mutants.mutant import P0, Q0
from simulate.testing.mutants.siblings import Siblings, with_replacement
from simulate.testing.mutants.skeleton import Blockwise, TokenWise, inverse_cdf, leading
from simulate.testing.probes import OTHER_PROBES, PROBES, run_probes
from simulate.testing.uniforms import LAST_UNIFORM, drawing

BY_NAME = {mutant.name: mutant for mutant in (*MUTANTS, *CORRECT)}
ROUNDING = 1e-12


def named(name):
    return BY_NAME[name]


def names(mutants):
    return [mutant.name for mutant in mutants]


# What is registered.


def test_every_kind_has_a_mutant_and_every_name_is_one():
    assert {mutant.kind for mutant in MUTANTS} == set(KINDS) - {"rules that are not faults"}
    assert len(BY_NAME) == len(MUTANTS) + len(CORRECT)
    assert len(MUTANTS) >= len(KINDS) + 20
    assert all(mutant.faulty for mutant in MUTANTS)
    assert not any(mutant.faulty for mutant in CORRECT)


def test_every_probe_is_needed():
    """Without the probe its mutants would survive; and a correct subject passes it."""
    for probe in {**PROBES, **OTHER_PROBES}:
        assert any(mutant.found_by == probe for mutant in MUTANTS), probe
        assert any(mutant.found_by == probe for mutant in CORRECT), probe


def test_a_mutant_is_checked():
    with pytest.raises(ValueError, match="kind 'gremlins' is not one of KINDS"):
        Mutant("x", "gremlins", CORE)
    with pytest.raises(ValueError, match="give target and draft"):
        Mutant("x", "seeds", CORE)
    with pytest.raises(dataclasses.FrozenInstanceError):
        named("residual p").name = "other"


# Exact values.

FIRST_TOKEN = {
    "draft cut to its top two": ([5 / 14, 5 / 14, 1 / 14, 3 / 14], 3 / 14),
    "draft greedy, declared soft": ([1 / 6, 1 / 2, 1 / 3], 2 / 15),
    "temperature missing in verification": ([4 / 5, 1 / 5], None),
    "residual p": ([7 / 20, 39 / 100, 13 / 50], 3 / 20),
    "ratio p/max p": ([31 / 50, 9 / 50, 1 / 5], 3 / 25),
    "acceptance uniform 0": ([1 / 5, 3 / 10, 1 / 2], 3 / 10),
    "lenience ½": ([3 / 10, 3 / 10, 2 / 5], 1 / 5),
    "temperature on the residual again": ([0.46, 0.24, 0.2, 0.1], 3 / 50),
    "drawn without replacement, declared with": ([1 / 6, 5 / 12, 5 / 12], 1 / 12),
    "one neighbour too many zeroed": ([0.2, 0.0, 0.0, 0.8], None),
    "cluster accepted, token replaced": ([0.9, 0.1, 0.0], 2 / 5),
    "every draft accepted": ([1 / 5, 3 / 10, 1 / 2], 3 / 10),
    "block with the token residual": ([1 / 5, 2 / 5, 2 / 5], 1 / 50),
}


@pytest.mark.parametrize("name", FIRST_TOKEN)
def test_faults_have_exactly_these_laws(name):
    law, tv = FIRST_TOKEN[name]
    mutant = named(name)
    assert mutant.law.reshape(len(law), -1).sum(axis=1) == pytest.approx(law, abs=ROUNDING)
    if tv is not None:
        assert mutant.total_variation == pytest.approx(tv, abs=ROUNDING)


@pytest.mark.parametrize(
    "mutant", [m for m in MUTANTS if m.law is not None and m.kind != "counting"], ids=lambda m: m.name
)
def test_every_fault_of_law_is_one(mutant):
    assert mutant.law.sum() == pytest.approx(1, abs=1e-9)
    assert mutant.total_variation > 0.003


@pytest.mark.parametrize("mutant", [m for m in CORRECT if m.law is not None], ids=lambda m: m.name)
def test_everything_correct_has_its_declared_law(mutant):
    assert mutant.total_variation < ROUNDING


def test_noise_shared_by_draft_and_residual():
    mutant = named("one noise vector for draft and residual")
    assert mutant.law.sum(axis=1) == pytest.approx([0.394, 0.506, 0.100], abs=5e-4)
    assert mutant.total_variation == pytest.approx(0.056, abs=5e-4)


def test_closed_form_of_shared_noise_against_sampling():
    q, r = np.array([0.3, 0.1, 0.4, 0.2]), np.array([0.2, 0.5, 0.0, 0.3])
    noise = np.random.default_rng(3).standard_exponential((400_000, 4))
    x, y = np.argmin(noise / q, axis=1), np.argmax(r / noise, axis=1)
    for other in (0, 1, 3):
        share = np.mean((x == 2) & (y == other))
        assert both_least(q, r, 2, other) == pytest.approx(share, abs=0.004)
    assert sum(both_least(q, r, 2, other) for other in (0, 1, 3)) == pytest.approx(0.4, abs=ROUNDING)


def test_independent_noise_would_be_right():
    law = gumbel_law(theory.IIDChain([0.45, 0.45, 0.1]), theory.IIDChain([0.3, 0.1, 0.6]))
    assert not law.sum(axis=1) == pytest.approx([0.45, 0.45, 0.1], abs=0.01)
    assert named("token-wise").total_variation < ROUNDING


def test_one_uniform_for_two_positions_hides_in_the_first_marginal():
    joint = named("one uniform for every position").law.sum(axis=2)
    assert joint == pytest.approx(np.array([[3 / 8, 1 / 8], [1 / 4, 1 / 4]]), abs=ROUNDING)
    assert joint.sum(axis=1) == pytest.approx([1 / 2, 1 / 2], abs=ROUNDING)


def test_token_residual_in_block_verification_hides_in_the_first_marginal():
    mutant = named("block with the token residual")
    difference = mutant.law - mutant.declared_law
    assert np.abs(difference.sum(axis=(1, 2))).max() < ROUNDING
    assert np.abs(difference).sum() / 2 == pytest.approx(1 / 50, abs=ROUNDING)


def test_neighbours_zeroed_beyond_those_pooled():
    mutant = named("one neighbour too many zeroed")
    target = np.array([0.1, 0.1, 0.3, 0.5])
    declared, real = (law.sum(axis=1) for law in (mutant.declared_law, mutant.law))
    assert declared == pytest.approx([0.2, 0, 0.3, 0.5], abs=ROUNDING)
    assert abs(declared - target).sum() / 2 == pytest.approx(0.1, abs=ROUNDING)
    assert abs(real - target).sum() / 2 == pytest.approx(0.4, abs=ROUNDING)


def test_cluster_marginal_is_exact():
    law = named("cluster accepted, token replaced").law.sum(axis=1)
    assert law[:2].sum() == pytest.approx(1, abs=ROUNDING)


def test_declared_drafts_make_cut_drafts_right():
    flat, draft = theory.IIDChain([0.25] * 4), theory.IIDChain([0.4, 0.3, 0.2, 0.1])
    for k in (1, 2, 3):
        honest = from_rows(lambda q, k=k: top(q, k))(draft)
        assert exact_law(TokenWise(), flat, honest, 1).law.sum(axis=1) == pytest.approx([0.25] * 4, abs=ROUNDING)


def test_target_only_acceptance_is_lossless_and_accepts_less():
    for name in ("accepted with p alone", "accepted where a target draw agrees"):
        mutant = named(name)
        assert mutant.law.sum(axis=1) == pytest.approx([0.6, 0.2, 0.1, 0.1], abs=ROUNDING)
    pair = mutant.target, mutant.draft
    assert exact_law(EqualToTarget(), *pair, 1).accepted[1] == pytest.approx(47 / 100, abs=ROUNDING)
    assert exact_law(TokenWise(), *pair, 1).accepted[1] == pytest.approx(9 / 10, abs=ROUNDING)


def test_siblings_against_the_tree_of_theory():
    pairs = [
        (theory.IIDChain([1 / 6, 1 / 3, 1 / 2]), theory.IIDChain([2 / 3, 1 / 6, 1 / 6])),
        (theory.IIDChain([0.3, 0.3, 0.25, 0.15]), theory.IIDChain([0.1, 0.2, 0.3, 0.4])),
    ]
    verifier = theory.Verifier(theory.Lossless())
    for target, draft in pairs:
        for siblings, sampling in (
            (Siblings(), "without_replacement"),
            (Siblings(with_replacement, with_replacement), "with_replacement"),
        ):
            tree = theory.analyse_tree(target, draft, verifier, [[], []], sampling)
            assert np.abs(siblings.law(target, draft) - tree.law).sum() / 2 < ROUNDING


def test_relaxed_block_sampler_against_theory():
    verifier = theory.capped_block([1.5, 1.2])
    found = exact_law(lambda rounds, uniforms: block_wise(verifier, rounds, uniforms), P0, Q0, 2)
    assert found.total_variation(theory.analyse_round(P0, Q0, verifier, 2).law) < ROUNDING


# Answers to special input, on the correct skeleton.


def test_counting():
    assert leading(np.array([[1, 0, 1, 0], [1, 1, 1, 1], [0, 1, 1, 1]], bool)).tolist() == [1, 4, 0]
    rows = np.full((5, 4, 2), 0.5)
    emitted = CORE(Rounds(np.tile([0, 1, 0], (5, 1)), rows, rows[:, :3]), Uniforms(np.full((5, 3), 0.9), np.zeros(5)))
    assert emitted.accepted.tolist() == [3] * 5
    assert (emitted.tokens >= 0).sum(axis=1).tolist() == [4] * 5


def test_end_of_the_sums():
    tenths = np.full((1, 10), 0.1)
    assert tenths.cumsum()[-1] <= LAST_UNIFORM
    assert inverse_cdf(tenths, np.array([LAST_UNIFORM])).tolist() == [9]
    assert inverse_cdf(np.array([[0, 0.3, 0.7], [0.5, 0.5, 0]]), np.array([0.0, LAST_UNIFORM])).tolist() == [1, 1]


def test_low_precision_sums_lose_the_tail():
    law, u = np.full((1000, 4096), 1 / 4096), (np.arange(1000) + 0.5) / 1000
    for draw in (_in_bfloat16, _in_float16):
        tokens = draw(law, u)
        assert np.isin(np.arange(2100, 4000), tokens).sum() == 0
    assert inverse_cdf(law, u)[[0, 500, 999]].tolist() == [2, 2050, 4093]
    assert bfloat16(np.array([1 + 2**-8, 1 + 2**-7, 3e-39])).tolist() == [
        1.0,
        1 + 2**-7,
        pytest.approx(3e-39, rel=0.01),
    ]


def test_residual_p_is_seen_in_two_thousand_rounds():
    report = check_law(
        named("residual p").sampler, P0, Q0, length=1, max_rounds=2000, rng=np.random.default_rng(5), seeds=False
    )
    assert not report.passed
    assert report.false_alarm == 1e-9
    assert check_law(drawing(TokenWise()), P0, Q0, length=1, max_rounds=2000, seeds=False).passed


def test_probes_of_correct_samplers():
    for core in (TokenWise(), Blockwise()):
        verdicts = run_probes(drawing(core))
        assert verdicts.pop("end token") == "not applicable: the sampler takes no end token"
        assert set(verdicts.values()) == {"passed"}


def test_a_probe_names_the_input():
    verdicts = run_probes(named("u ≤ f").sampler, ["extreme uniforms", "empty batch"])
    assert verdicts["empty batch"] == "passed"
    assert verdicts["extreme uniforms"].startswith("failed: p = [1.0, 0.0], q = [0.5, 0.5], draft 1, every uniform 0.0")


def test_a_sampler_that_draws_otherwise_is_not_driven():
    def sampler(rounds, rng):
        rng.integers(3, size=4)

    assert run_probes(sampler, ["extreme uniforms", "rows apart"]) == {
        "extreme uniforms": "not applicable: the sampler does not draw with rng.random alone",
        "rows apart": "not applicable: the sampler does not draw with rng.random alone",
    }


# The kit.


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_every_mutant_is_killed(mutant):
    verdict = judge(mutant)
    assert verdict.killed, verdict.reason


@pytest.mark.parametrize("mutant", CORRECT, ids=lambda m: m.name)
def test_everything_correct_passes(mutant):
    verdict = judge(mutant)
    assert not verdict.killed, verdict.reason


def test_a_verdict_repeats_itself():
    first, again, other = (judge(named("lenience .8"), seed=seed) for seed in (3, 3, 4))
    assert first.rounds == again.rounds
    assert first.killed
    assert other.killed


def test_the_wrong_way_round_is_noticed(monkeypatch, capsys):
    """Negative controls: a correct sampler registered as a mutant survives, a mutant registered as correct fails."""
    survivor = dataclasses.replace(named("token-wise"), name="harmless", faulty=True)
    failing = dataclasses.replace(named("residual p"), name="harmful", faulty=False)
    assert not judge(survivor).right
    assert not judge(failing).right
    blind = dataclasses.replace(named("u ≤ f"), name="blind", sampler=drawing(TokenWise()))
    table = format_table([judge(survivor), judge(failing), judge(blind)])
    assert "SURVIVES" in table
    assert "FAILED" in table
    assert "0 of 2 mutants killed, 0 of 1 correct ones passed" in table
    for wrong in (survivor, failing, blind):
        monkeypatch.setattr(registry, "MUTANTS", (wrong,))
        monkeypatch.setattr(registry, "CORRECT", ())
        assert main(["mutants"]) == 1
    assert "harmless" in capsys.readouterr().out


def test_a_weak_level_is_no_help_to_a_mutant():
    assert judge(named("block with the token residual"), false_alarm=1e-30).killed


def test_the_chi_square_test_itself():
    rng = np.random.default_rng(2)
    assert chi_square_test(rng.choice(3, 5000, p=[0.2, 0.3, 0.5]), np.array([0.2, 0.3, 0.5]))
    assert not chi_square_test(rng.choice(3, 5000, p=[0.3, 0.3, 0.4]), np.array([0.2, 0.3, 0.5]))


# The command.


def test_command_of_some(capsys):
    assert main(["mutants", "--only", "residual p", "--only", "token-wise", "--seed", "3"]) == 0
    out = capsys.readouterr().out
    assert "residual p" in out
    assert "0.1500" in out
    assert "1 of 1 mutants killed, 1 of 1 correct ones passed" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "residul"], "nearest: 'residual q'"),
        (["--only", "residual p", "--false-alarm", "0"], "false_alarm must lie strictly between 0 and 1"),
        (["--only", "residual p", "--seed", "-1"], "negative"),
        (["--false-alarm", "much"], "invalid float value"),
    ],
)
def test_command_refuses(arguments, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["mutants", *arguments])
    assert message in capsys.readouterr().err
