"""Estimates against exact values; boundaries, infinities, reuse of the core, refusals."""

import math
from dataclasses import fields, replace

import numpy as np
import pytest
import torch

import simulate
import theory
from simulate.coverage import cases, exact_values

P0, Q0 = [0.5, 0.3, 0.2], [0.2, 0.3, 0.5]


def rng(seed=0):
    return np.random.default_rng(seed)


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_exact_values_lie_inside_the_intervals(case):
    exact = exact_values(case)
    for method in ("normal", "bernstein"):
        # About 40 intervals per case list at one in 10,000: a false alarm in 1 % of seeds.
        made = simulate.estimate(*case[1:], 8000, rng(1), confidence=0.9999, method=method).intervals()
        assert set(made) >= set(exact) - {name for name in exact if method == "bernstein" and "kl_" in name}
        for name in set(made) & set(exact):
            assert exact[name] in made[name], name
            assert made[name].confidence == 0.9999
    # The tail of the law is thin enough that all is known to a few percent.
    assert made["tokens_per_call"].value == pytest.approx(exact["tokens_per_call"], rel=0.05)


def test_control_the_wrong_rule_is_noticed():
    case = cases()[0]
    exact = exact_values(case._replace(verifier=theory.Verifier(theory.Relaxed(1.05))))
    made = simulate.estimate(*case[1:], 8000, rng(1), confidence=0.9999).intervals()
    for name in ("total_variation", "hellinger", "kl_output_target", "kl_target_output", "tv_bound", "tokens_per_call"):
        assert exact[name] not in made[name], name


def test_lossless_decoding_has_no_distance():
    target = simulate.dirichlet_tree(3, 5, rng())
    made = simulate.estimate(
        target, simulate.make_draft(target, 0.3, rng(1)), theory.Verifier(theory.Lossless()), 2, 5, 400, rng(2)
    )
    for name, interval in made.intervals().items():
        if "accepted" in name or "tokens" in name:
            continue
        assert interval.lower == 0.0, name
        assert 0.0 <= interval.value <= interval.upper < 1e-12, name
    assert abs(made.roc.advantage) < 1e-12


def test_divergences_are_infinite_where_the_support_is_left():
    p, q = theory.IIDChain([0.6, 0.4, 0.0]), theory.IIDChain([0.5, 0.0, 0.5])
    made = simulate.estimate(p, q, theory.Verifier(theory.AcceptAll()), 2, 6, 200, rng())
    exact = theory.analyse_sequence(p, q, theory.Verifier(theory.AcceptAll()), 2, 6)
    for interval in (
        made.kl_output_target,
        made.kl_target_output,
        made.predictive.kl_output_target,
        made.predictive.kl_target_output,
    ):
        assert tuple(interval) == (math.inf,) * 3
    assert exact.kl_output_target == exact.kl_target_output == math.inf
    assert exact.total_variation in made.total_variation
    assert made.hellinger.upper <= 1.0
    assert np.isfinite(made.roc.detection).all()


def test_the_chain_rule_form_of_kl_is_the_mean_log_ratio():
    case = cases()[1]
    made = simulate.estimate(*case[1:], 40_000, rng())
    for interval, ratios in (
        (made.kl_output_target, made.log_ratio_output),
        (made.kl_target_output, -made.log_ratio_target),
    ):
        assert interval.value == pytest.approx(ratios.mean(), abs=5 * ratios.std() / np.sqrt(len(ratios)))
        assert interval.width < ratios.std() / np.sqrt(len(ratios)) * 2


def test_the_curve_of_the_best_detector():
    case = cases()[2]
    made = simulate.estimate(*case[1:], 20_000, rng())
    exact = theory.analyse_sequence(*case[1:])
    false_alarm, detection = made.roc
    assert false_alarm[0] == detection[0] == 0
    assert false_alarm[-1] == detection[-1] == 1
    assert (np.diff(false_alarm) >= 0).all()
    assert (np.diff(detection) >= 0).all()
    assert made.roc.advantage == pytest.approx(exact.total_variation, abs=0.02)
    order = np.argsort(-(exact.law / exact.target_law).ravel(), kind="stable")
    exact_curve = [np.append(0, np.cumsum(np.asarray(law).ravel()[order])) for law in (exact.target_law, exact.law)]
    assert np.abs(np.interp(false_alarm, *exact_curve) - detection).max() < 0.03


def test_accepted_length_counts_rounds_with_room_only():
    p = theory.IIDChain(P0)
    made = simulate.estimate(p, p, theory.Verifier(theory.Lossless()), 3, 10, 20, rng())
    assert tuple(made.accepted_length) == pytest.approx((3, 3, 3))
    assert tuple(made.tokens_per_call) == pytest.approx((10 / 3,) * 3)
    short = simulate.estimate(p, p, theory.Verifier(theory.Lossless()), 3, 2, 20, rng()).accepted_length
    assert (short.lower, short.upper) == (0, 3)
    assert math.isnan(short.value)


def test_bernstein_refuses_what_has_no_bound():
    made = simulate.estimate(*cases()[0][1:], 200, rng(), method="bernstein")
    for read in (lambda: made.kl_output_target, lambda: made.predictive.kl_target_output):
        with pytest.raises(ValueError, match="no upper bound, hence no Bernstein interval"):
            read()
    assert not any("kl_" in name for name in made.intervals())
    assert made.samples == 200


def test_seeds():
    case = cases()[0]
    first = simulate.estimate(*case[1:], 101, rng(0)).intervals()
    np.random.seed(1)  # noqa: NPY002
    assert simulate.estimate(*case[1:], 101, rng(0)).intervals() == first
    assert simulate.estimate(*case[1:], 101, rng(1)).intervals() != first


def parts(case, convert):
    run = simulate.decode(*case[1:], 60, rng())
    own = simulate.sample(case.target, case.tokens, 40, rng(1))
    laws = (case.target, case.draft, case.verifier, case.length)
    filters = [simulate.filter_sequences(x, *laws) for x in (run.tokens, own)]
    filters = [replace(f, **{a.name: convert(getattr(f, a.name)) for a in fields(f)}) for f in filters]
    return filters, {
        "calls": convert(run.calls),
        "accepted": convert(run.accepted),
        "length": case.length,
        "tokens": case.tokens,
    }


def test_filters_of_any_library_and_unequal_numbers():
    case = cases()[0]
    made = []
    for convert in (np.asarray, torch.asarray):
        filters, rest = parts(case, convert)
        made.append(simulate.estimate_from_filters(*filters, **rest).intervals())
    assert made[0] == made[1]
    bernstein = simulate.estimate_from_filters(*filters, **rest, method="bernstein")
    assert bernstein.total_variation.width > made[0]["total_variation"].width


def test_filtering_in_pieces_changes_nothing(monkeypatch):
    case = cases()[0]
    own = simulate.sample(case.target, case.tokens, 50, rng())
    laws = (case.target, case.draft, case.verifier, case.length)
    whole = simulate.filter_sequences(own, *laws)
    monkeypatch.setattr(simulate.estimation, "ENTRIES_AT_ONCE", 200)
    pieces = simulate.filter_sequences(own, *laws, progress=False)
    for field in fields(whole):
        assert np.array_equal(getattr(whole, field.name), getattr(pieces, field.name))


def test_bad_input_is_named():
    case = cases()[0]
    with pytest.raises(ValueError, match="samples must be a whole number >= 4, got 3"):
        simulate.estimate(*case[1:], 3, rng())
    with pytest.raises(ValueError, match="confidence must"):
        simulate.estimate(*case[1:], 10, rng(), confidence=95)
    filters, rest = parts(case, np.asarray)
    with pytest.raises(ValueError, match=r"starts must have shape \(60, 5\), got \(60, 4\)"):
        simulate.estimate_from_filters(*filters, **(rest | {"tokens": 5}))
    with pytest.raises(ValueError, match=r"accepted must be \(sequences, rounds\) with entries in -1…1"):
        simulate.estimate_from_filters(*filters, **(rest | {"length": 1}))
    with pytest.raises(ValueError, match=r"calls \(59,\)"):
        simulate.estimate_from_filters(*filters, **(rest | {"calls": rest["calls"][1:]}))
    impossible = replace(filters[0], log_likelihood=np.where(np.arange(60) == 7, -np.inf, filters[0].log_likelihood))
    with pytest.raises(ValueError, match="log_likelihood of sequence 7 is -inf"):
        simulate.estimate_from_filters(impossible, filters[1], **rest)


def test_divergences_of_a_rule_that_misses_part_of_the_support() -> None:
    """p = (.5, .3, .2), top-1 acceptance with the vanilla residual emits only token 0: KL(out, target) = log 2."""
    from simulate.ratios import ratio_divergences

    draws = rng(0).choice(3, 2000, p=[0.5, 0.3, 0.2])
    log_ratio = np.where(draws == 0, np.log(2.0), -np.inf)
    found = ratio_divergences(np.full(2000, np.log(2.0)), log_ratio)
    assert found["kl_output_target"].value == pytest.approx(np.log(2.0))
    assert found["kl_target_output"].value == np.inf
    assert ratio_divergences(np.full(50, np.log(2.0)), np.full(50, np.log(2.0)))["kl_output_target"].value > 0.69
