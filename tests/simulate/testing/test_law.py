"""The law test on correct samplers, on negative controls that must fail it, and its level, power and arguments."""

import numpy as np
import pytest

import theory
from simulate.draws import categorical
from simulate.testing import (
    Emitted,
    Pair,
    RoundDecoder,
    Rounds,
    adversarial_pairs,
    assert_law,
    check_law,
    reference_decoder,
    reference_sampler,
)

LOSSLESS = theory.Verifier(theory.Lossless())
RESAMPLE_P = theory.Verifier(theory.Lossless(), theory.target_residual)
P0, Q0 = theory.IIDChain([0.5, 0.3, 0.2]), theory.IIDChain([0.2, 0.3, 0.5])
COINS = theory.IIDChain([0.5, 0.5]), theory.IIDChain([0.75, 0.25])


def emit(drafts, accepted, last):
    tokens = np.concatenate([drafts, np.full((len(drafts), 1), -1)], axis=1)
    tokens[np.arange(len(drafts)), accepted] = last
    return Emitted(tokens, accepted)


@pytest.mark.parametrize("counts", ["declared", "any"])
@pytest.mark.parametrize(
    "verifier",
    [
        LOSSLESS,
        lambda length: theory.cool_sd(length, 1.5),
        theory.block,
        theory.capped_block(1.5),
        theory.lifted_block(theory.Verifier(theory.Ensemble(0.5))),
        theory.Verifier(theory.Cactus(0.5), theory.CactusResidual(0.5)),
        theory.Verifier(theory.Typical(), theory.target_residual),
    ],
    ids=["lossless", "cool-sd", "block", "capped", "lifted", "cactus", "typical"],
)
def test_correct_samplers_and_decoders_pass(verifier, counts):
    def own(length):
        return verifier if hasattr(verifier, "step") else verifier(length)

    for length, sampler in ((3, reference_sampler(own(3))), (2, reference_decoder(own(2)))):
        options = {"smallest_tv": 0.2, "max_rounds": 1024, "counts": counts}
        report = assert_law(sampler, verifier=verifier, pairs=adversarial_pairs(length, wide=False), **options)
        assert report.passed
        assert "passed" in str(report)


def test_resampling_from_p_fails_within_two_thousand_rounds():
    for counts in ("declared", "any"):
        report = check_law(reference_sampler(RESAMPLE_P), P0, Q0, LOSSLESS, 1, max_rounds=2000, counts=counts)
        assert not report.passed
        assert report.failure.verdict_rounds <= 2000
        assert report.false_alarm == 1e-9
    with pytest.raises(AssertionError, match=r"declared.*observed") as caught:
        assert_law(reference_sampler(RESAMPLE_P), P0, Q0, LOSSLESS, 1, max_rounds=2000)
    assert "worst event: accepted 0, tokens (1)" in str(caught.value)
    assert "reversed" not in str(caught.value)


def test_the_report_of_a_failure_has_the_laws():
    failure = check_law(reference_sampler(RESAMPLE_P), P0, Q0, LOSSLESS, 1).failure
    declared, observed = failure.token_laws
    assert declared.reshape(3, 3).sum(axis=1) == pytest.approx([0.5, 0.3, 0.2])
    noise = 5 / np.sqrt(failure.rounds)
    assert observed.reshape(3, 3).sum(axis=1) == pytest.approx([7 / 20, 39 / 100, 13 / 50], abs=noise)
    assert failure.token_total_variation == pytest.approx(3 / 20, abs=noise)


@pytest.mark.parametrize(
    ("wrong", "declared"),
    [
        (theory.block(2), LOSSLESS),
        (LOSSLESS, theory.block(2)),
        (theory.cool_sd(2, 1.2), LOSSLESS),
        (theory.cool_sd(2, 1.2), theory.cool_sd(2, 1.25)),
        (theory.Verifier(theory.Relaxed(1.02)), LOSSLESS),
        (theory.lifted_block(theory.cool_sd(2, 1.2)), theory.cool_sd(2, 1.2)),
    ],
    ids=["block as token-wise", "token-wise as block", "relaxed as lossless", "strength", "slightly relaxed", "lifted"],
)
def test_samplers_of_another_verifier_fail(wrong, declared):
    assert not check_law(reference_sampler(wrong), verifier=declared, length=2, smallest_tv=0.01).passed


def test_block_verification_passes_as_lossless_where_counts_are_free():
    sampler = reference_sampler(theory.block(2))
    assert check_law(sampler, verifier=LOSSLESS, length=2, counts="any", smallest_tv=0.05).passed
    report = check_law(sampler, verifier=LOSSLESS, length=2, smallest_tv=0.05)
    assert 'try counts="any"' in str(report)


def equal_to_a_target_draw(rounds, rng):
    """Lossless: draw y from p; the draft is accepted if it is y, otherwise y is emitted."""
    own = categorical(rounds.target_probs, rng.random((rounds.count, rounds.length + 1)))
    same = np.logical_and.accumulate(own[:, :-1] == rounds.draft_ids, axis=1)
    accepted = same.sum(axis=1)
    return emit(rounds.draft_ids, accepted, own[np.arange(rounds.count), accepted])


def test_equality_with_a_target_draw_is_lossless():
    assert check_law(equal_to_a_target_draw, counts="any", smallest_tv=0.05).passed
    p, q = theory.IIDChain([0.6, 0.2, 0.1, 0.1]), theory.IIDChain([0.7, 0.2, 0.05, 0.05])
    report = check_law(equal_to_a_target_draw, p, q, LOSSLESS, 1, smallest_tv=0.05)
    accepts = report.failure.observed[4:].sum()
    assert accepts == pytest.approx(0.47, abs=5 / np.sqrt(report.failure.rounds))


def lossless_with(uniforms, choose_p=lambda p: p):
    """A lossless sampler whose acceptance uniforms come from a function (count, length, rng)."""

    def sampler(rounds, rng):
        u, last = uniforms(rounds.count, rounds.length, rng), rng.random(rounds.count)
        p, q = choose_p(rounds.target_probs), rounds.draft_probs
        at = rounds.draft_ids[:, :, None]
        p_x, q_x = (np.take_along_axis(a, at, axis=2)[:, :, 0] for a in (p[:, :-1], q))
        accepted = np.logical_and.accumulate(u * q_x < p_x, axis=1).sum(axis=1)
        rows = np.arange(rounds.count)
        law = p[rows, accepted]
        padded = np.concatenate([q, np.zeros_like(q[:, :1])], axis=1)
        rest = np.maximum(law - padded[rows, accepted], 0)
        law = np.where(rest.sum(axis=1, keepdims=True) > 1e-15, rest, law)
        return emit(rounds.draft_ids, accepted, categorical(law, last))

    return sampler


def independent(count, length, rng):
    return rng.random((count, length))


def test_the_sampler_of_the_controls_passes():
    assert check_law(lossless_with(independent), smallest_tv=0.1).passed


@pytest.mark.parametrize(
    "uniforms",
    [
        lambda count, length, rng: np.tile(rng.random((count, 1)), (1, length)),
        lambda count, length, rng: np.tile(rng.random((1, length)), (count, 1)),
        lambda count, length, rng: np.repeat(rng.random((-(-count // 2), length)), 2, axis=0)[:count],
        lambda count, length, rng: np.zeros((count, length)),
        lambda count, length, rng: rng.random((count, length)).astype(np.float16).astype(float) ** 2,
    ],
    ids=["shared by positions", "shared by rows", "shared by two rows", "stuck at 0", "not uniform"],
)
def test_wrong_uniforms_fail(uniforms):
    assert not check_law(lossless_with(uniforms), smallest_tv=0.05).passed


@pytest.mark.parametrize("lag", [1, 2, 16, 128])
def test_rounds_that_share_their_uniforms_at_a_distance_fail(lag):
    """Every round by itself has the declared law."""

    def twins(count, length, rng):
        u, row = independent(count, length, rng), np.arange(count)
        return u[np.where(row // lag % 2 == 1, row - lag, row)]

    report = check_law(lossless_with(twins), *COINS, LOSSLESS, 2, smallest_tv=0.05)
    assert report.failure.verdict_rounds <= 8192
    assert report.failure.total_variation < 2 * report.failure.noise


def test_rounds_longer_than_a_table_of_laws():
    pairs = adversarial_pairs(40, vocab_size=2)
    report = check_law(reference_sampler(LOSSLESS), pairs=pairs, smallest_tv=0.5, max_rounds=256)
    assert report.passed
    assert "of the law of the first 16 of 41 tokens" in str(report)


def test_one_uniform_shared_by_all_positions_shows_in_the_joint_law_only():
    def shared(count, length, rng):
        return np.tile(rng.random((count, 1)), (1, length))

    failure = check_law(lossless_with(shared), *COINS, LOSSLESS, 2, counts="any").failure
    declared, observed = (law.reshape(2, 2, 2) for law in failure.token_laws)
    noise = 5 / np.sqrt(failure.rounds)
    assert observed.sum(axis=(1, 2)) == pytest.approx(declared.sum(axis=(1, 2)), abs=noise)
    assert observed.sum(axis=2).ravel() == pytest.approx([3 / 8, 1 / 8, 1 / 4, 1 / 4], abs=noise)


def test_laws_of_another_row_fail():
    assert not check_law(lossless_with(independent, lambda p: np.roll(p, 1, axis=0)), smallest_tv=0.1).passed
    only_the_batch_shows_it = lossless_with(
        independent, lambda p: np.concatenate([p[:1, :1].repeat(len(p), 0), p[:, 1:]], 1)
    )
    assert check_law(only_the_batch_shows_it, P0, Q0, LOSSLESS, 1, smallest_tv=0.1).passed
    failure = check_law(only_the_batch_shows_it, smallest_tv=0.1).failure
    assert failure.name.endswith("in one batch")


def test_small_masses_in_half_precision_fail():
    def sampler(rounds, rng):
        narrow = rounds.draft_probs.astype(np.float16)
        p, q = rounds.target_probs.astype(np.float16), np.where(narrow > 0, narrow, np.float16(1e-7))
        at = rounds.draft_ids[:, :, None]
        ratio = (np.take_along_axis(a, at, axis=2)[:, :, 0].astype(float) for a in (p[:, :-1], q))
        p_x, q_x = ratio
        accepted = np.logical_and.accumulate(rng.random(p_x.shape) * q_x < np.maximum(p_x, 1e-7), axis=1).sum(axis=1)
        exact = reference_sampler(LOSSLESS)(rounds, rng)
        last = np.where(accepted == exact.accepted, exact.tokens[np.arange(len(accepted)), exact.accepted], 1)
        return emit(rounds.draft_ids, accepted, last)

    pairs = [pair for pair in adversarial_pairs() if pair.drawn_from is not None]
    failure = check_law(sampler, pairs=pairs, smallest_tv=0.1).failure
    assert failure.worst_event().declared < failure.worst_event().observed


def test_an_event_of_probability_zero_fails_at_its_first_occurrence_without_rounding():
    def rarely_wrong(rounds, rng):
        emitted = reference_sampler(LOSSLESS)(rounds, rng)
        hit = (rng.random(rounds.count) < 1e-3) & (emitted.accepted == 0)
        emitted.tokens[hit, 0] = 2
        return emitted

    report = check_law(rarely_wrong, P0, Q0, LOSSLESS, 1, rounding=0.0, smallest_tv=0.02)
    assert report.failure.log_evidence == np.inf
    assert not check_law(rarely_wrong, P0, Q0, LOSSLESS, 1, smallest_tv=0.02).passed


def test_decoders_that_draft_from_another_law_fail():
    def top_two(target, draft, length, count, rng):
        cut = np.where(np.arange(4) < 2, np.asarray(draft.p), 0)
        ids = categorical(np.tile(cut, (count, length, 1)), rng.random((count, length)))
        p, q = (np.tile(np.asarray(chain.p), (count, n, 1)) for chain, n in ((target, length + 1), (draft, length)))
        return reference_sampler(LOSSLESS)(Rounds(ids, p, q), rng)

    p, q = theory.IIDChain([0.25] * 4), theory.IIDChain([0.4, 0.3, 0.2, 0.1])
    failure = check_law(RoundDecoder(top_two), p, q, LOSSLESS, 1, counts="any", seeds=False).failure
    first = failure.token_laws[1].reshape(4, 4).sum(axis=1)
    assert first == pytest.approx([5 / 14, 5 / 14, 1 / 14, 3 / 14], abs=5 / np.sqrt(failure.rounds))


class TestLevelAndPower:
    def test_correct_samplers_fail_no_more_often_than_the_level(self):
        alarms = 0
        for seed in range(200):
            rng = np.random.default_rng(seed)
            options = {"false_alarm": 0.1, "max_rounds": 1024, "seeds": False, "timeout": None, "rng": rng}
            alarms += not check_law(reference_sampler(LOSSLESS), P0, Q0, LOSSLESS, 1, **options).passed
        assert alarms <= 0.1 * 200

    def test_a_law_at_the_promised_distance_is_found(self):
        """The sampler is lossless but for a share of rounds in which it emits a token of its own choice."""
        found = 0
        for seed in range(50):
            rng = np.random.default_rng(seed)
            options = {"smallest_tv": 0.1, "power": 0.9, "seeds": False, "timeout": None, "rng": rng}

            def wrong(rounds, rng):
                emitted = reference_sampler(LOSSLESS)(rounds, rng)
                hit = (rng.random(rounds.count) < 0.1 / 0.7) & (emitted.accepted == 1) & (emitted.tokens[:, 0] < 3)
                emitted.tokens[hit, 1] = 2
                return emitted

            report = check_law(wrong, P0, Q0, LOSSLESS, 1, **options)
            found += not report.passed
        assert found >= 45

    def test_more_rounds_are_drawn_only_as_needed(self):
        options = {"pairs": adversarial_pairs(wide=False), "smallest_tv": 0.05}
        blatant, subtle, none = (
            check_law(reference_sampler(theory.Verifier(rule)), verifier=LOSSLESS, **options)
            for rule in (theory.AcceptAll(), theory.Relaxed(1.1), theory.Lossless())
        )
        assert not blatant.passed
        assert not subtle.passed
        assert blatant.failure.verdict_rounds == 256
        assert subtle.failure.verdict_rounds > 256
        assert subtle.rounds < none.rounds

    def test_the_report_states_the_distance_reached(self):
        report = check_law(reference_sampler(LOSSLESS), P0, Q0, LOSSLESS, 1, smallest_tv=0.05)
        assert report.smallest_tv <= 0.05
        assert "TV 0.050" in str(report)
        short = check_law(reference_sampler(LOSSLESS), P0, Q0, LOSSLESS, 1, smallest_tv=0.05, max_rounds=500)
        assert short.smallest_tv > 0.05


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target": P0}, "give both target and draft"),
        ({"target": P0, "draft": Q0}, "need their length"),
        ({"target": P0, "draft": Q0, "length": 0}, "length"),
        ({"target": P0, "draft": COINS[1], "length": 1}, "vocabulary mismatch"),
        ({"target": theory.TabularChain([[0.5, 0.5]]), "draft": COINS[1], "length": 1}, "the target has 1 levels"),
        ({"pairs": []}, "pairs is empty"),
        ({"pairs": [(P0, Q0)]}, "pairs must be a sequence of simulate.testing.Pair"),
        ({"length": 0}, "length must be a whole number >= 1, got 0"),
        ({"target": [0.5, 0.5], "draft": Q0, "length": 1}, "target must be a chain such as"),
        ({"rng": 0}, "rng must be a numpy.random.Generator or None, got 0"),
        ({"timeout": -1}, "timeout must be finite and lie in"),
        ({"verifier": theory.Lossless()}, r"theory.Verifier\(Lossless\(\)\) makes one of a rule"),
        ({"verifier": lambda length: None}, "returned None for L = 1, which is no verifier"),
        ({"counts": "some"}, "counts must be"),
        ({"false_alarm": 0.0}, "false_alarm must lie strictly between 0 and 1"),
        ({"power": 1.0}, "power must lie strictly between 0 and 1"),
        ({"smallest_tv": -1}, "smallest_tv"),
        ({"max_rounds": 1}, "max_rounds"),
        ({"rounding": -1e-9}, "rounding"),
        ({"verifier": theory.cool_sd(2, 1.1), "length": 3}, "outside the schedule"),
        ({"pairs": [Pair("x", P0, Q0, 1, drawn_from=P0)], "counts": "any"}, "forced drafts"),
    ],
)
def test_arguments_that_make_no_test(arguments, message):
    with pytest.raises(ValueError, match=message):
        check_law(reference_sampler(LOSSLESS), **arguments)


def test_a_check_repeats_itself():
    reports = [check_law(reference_sampler(LOSSLESS), P0, Q0, LOSSLESS, 1, smallest_tv=0.2) for _ in range(2)]
    assert np.array_equal(reports[0].results[0].counts, reports[1].results[0].counts)
    other = check_law(reference_sampler(LOSSLESS), P0, Q0, LOSSLESS, 1, smallest_tv=0.2, rng=np.random.default_rng(1))
    assert not np.array_equal(reports[0].results[0].counts, other.results[0].counts)


def test_built_in_pairs_by_length_and_vocabulary():
    assert {pair.length for pair in adversarial_pairs()} == {1, 2, 3, 4}
    assert {pair.length for pair in adversarial_pairs(5)} == {5}
    assert len(adversarial_pairs(1000)) == len(adversarial_pairs())
    with pytest.raises(ValueError, match="length must be a whole number >= 1, got 0"):
        adversarial_pairs(0)
    assert {pair.target.vocab_size for pair in adversarial_pairs(vocab_size=3)} == {3}
    with pytest.raises(ValueError, match="no built-in pair has 7 ids"):
        adversarial_pairs(vocab_size=7)
