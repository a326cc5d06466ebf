"""Exact mode against the exact analyses of theory, on correct samplers, broken ones, and ones it must refuse."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simulate
import theory
from simulate.testing import Emitted, NotPiecewise, Uniforms, boundary_failures, driven, exact_law, refute
from simulate.testing.calls import BadAnswer
from simulate.testing.mutants.lossy import block_wise, token_wise
from simulate.testing.mutants.skeleton import Blockwise, TokenWise, at, inverse_cdf, ratio
from simulate.testing.uniforms import LAST_UNIFORM, ConstantGenerator, GivenGenerator, draw_uniforms

LOSSLESS = theory.Verifier(theory.Lossless())
P0, Q0 = theory.IIDChain([0.5, 0.3, 0.2]), theory.IIDChain([0.2, 0.3, 0.5])
ROUNDING = 1e-12


def trees(size, length, seed):
    rng = np.random.default_rng(seed)
    return simulate.dirichlet_tree(size, length + 1, rng), simulate.dirichlet_tree(size, length, rng)


def agree(found, analysis):
    assert found.total_variation(analysis.law) < ROUNDING
    assert found.expected_accepted == pytest.approx(analysis.expected_accepted, abs=ROUNDING)
    assert found.accepted[1:][::-1].cumsum()[::-1] == pytest.approx(np.asarray(analysis.survival), abs=ROUNDING)


@pytest.mark.parametrize(("size", "length"), [(2, 1), (3, 1), (4, 1), (2, 2), (3, 2), (4, 2), (2, 3), (3, 3)])
@pytest.mark.parametrize(("sampler", "verifier"), [(TokenWise(), lambda n: LOSSLESS), (Blockwise(), theory.block)])
def test_correct_samplers_have_the_law_of_theory(size, length, sampler, verifier):
    target, draft = trees(size, length, size + length)
    agree(exact_law(sampler, target, draft, length), theory.analyse_round(target, draft, verifier(length), length))


def test_largest_case_four_tokens_three_drafts():
    target, draft = trees(4, 3, 9)
    agree(exact_law(TokenWise(), target, draft, 3), theory.analyse_round(target, draft, LOSSLESS, 3))


@pytest.mark.parametrize(
    "verifier",
    [
        theory.Verifier(theory.Relaxed(1.5)),
        theory.cool_sd(2, 1.2, floor=1.0),
        theory.Verifier(theory.Typical(), theory.target_residual),
        theory.Verifier(theory.Cactus(0.5), theory.CactusResidual(0.5)),
        theory.Verifier(theory.Ensemble(0.3)),
    ],
)
def test_declared_relaxed_samplers_have_the_law_of_theory(verifier):
    target, draft = trees(3, 2, 4)
    found = exact_law(token_wise(verifier), target, draft, 2)
    agree(found, theory.analyse_round(target, draft, verifier, 2))


@pytest.mark.parametrize(
    "verifier", [theory.capped_block([1.5, 1.2]), theory.lifted_block(theory.Verifier(theory.Relaxed(1.5)))]
)
def test_relaxed_block_samplers(verifier):
    target, draft = trees(3, 2, 5)
    found = exact_law(lambda rounds, uniforms: block_wise(verifier, rounds, uniforms), target, draft, 2)
    agree(found, theory.analyse_round(target, draft, verifier, 2))


counts = st.lists(st.integers(0, 10), min_size=3, max_size=3).filter(any)


@settings(max_examples=30)
@given(counts, counts)
def test_every_pair_of_laws(p, q):
    target, draft = (theory.IIDChain(np.array(c) / sum(c)) for c in (p, q))
    found = exact_law(TokenWise(), target, draft, 1)
    overlap = sum(min(Fraction(a, sum(p)), Fraction(b, sum(q))) for a, b in zip(p, q, strict=True))
    assert found.law.sum(axis=1) == pytest.approx(np.array(p) / sum(p), abs=ROUNDING)
    assert found.accepted[1] == pytest.approx(float(overlap), abs=ROUNDING)


@settings(max_examples=30)
@given(counts, counts, st.integers(1, 9))
def test_a_fault_is_measured_exactly(p, q, tenths):
    """Drafts tested with a share of their ratio and replaced from Norm[p − q]_+: q f s + (1 − Σ q f s) G by hand."""
    target, draft = (theory.IIDChain(np.array(c) / sum(c)) for c in (p, q))
    sampler = TokenWise(ratio=lambda p, q, x: tenths / 10 * ratio(p, q, x))
    laws = [np.array(c) / sum(c) for c in (p, q)]
    kept = tenths / 10 * np.minimum(*laws)
    residual = theory.vanilla_residual(*laws, None)
    by_hand = kept + (1 - kept.sum()) * residual
    assert exact_law(sampler, target, draft, 1).law.sum(axis=1) == pytest.approx(by_hand, abs=ROUNDING)


def test_tiny_pieces_are_found_by_their_candidates():
    target, draft = theory.IIDChain([1e-9, 0.6, 0.4 - 1e-9]), theory.IIDChain([1e-8, 0.4, 0.6 - 1e-8])
    found = exact_law(TokenWise(), target, draft, 1)
    assert found.law.sum(axis=1)[0] == pytest.approx(1e-9, rel=1e-6)


def test_drafts_drawn_from_another_law():
    target, draft = theory.IIDChain([0.25] * 4), theory.IIDChain([0.4, 0.3, 0.2, 0.1])
    drawn = theory.IIDChain([4 / 7, 3 / 7, 0, 0])
    found = exact_law(TokenWise(), target, draft, 1, drawn=drawn)
    assert found.law.sum(axis=1) == pytest.approx([5 / 14, 5 / 14, 1 / 14, 3 / 14], abs=ROUNDING)
    assert (
        exact_law(TokenWise(), target, drawn, 1).total_variation(
            theory.analyse_round(target, drawn, LOSSLESS, 1).target_law
        )
        < ROUNDING
    )


def test_sampling_frequencies_agree_with_the_exact_law():
    """The oracle of the other direction: what the sampler does with a generator is what the integral says."""
    sampler = TokenWise(residual=lambda p, q, x: p)
    law = exact_law(sampler, P0, Q0, 1).law
    rng = np.random.default_rng(2)
    ids = rng.choice(3, (200_000, 1), p=Q0.p)
    rounds = simulate.testing.Rounds(ids, np.tile(P0.p, (len(ids), 2, 1)), np.tile(Q0.p, (len(ids), 1, 1)))
    emitted = sampler(rounds, draw_uniforms(rounds, rng))
    shares = np.bincount(emitted.tokens[:, 0], minlength=3) / len(ids)
    assert shares == pytest.approx(law.sum(axis=1), abs=0.006)
    assert not shares == pytest.approx(P0.p, abs=0.006)


def _generator_sampler(order):
    def sampler(rounds, rng):
        if order == "together":
            u = rng.random((rounds.count, rounds.length))
        else:
            u = np.stack([rng.random(rounds.count) for _ in range(rounds.length)], axis=1)
        spare = rng.random(rounds.count)
        final = rng.random(rounds.count) if order == "two finals" else spare
        return TokenWise()(rounds, Uniforms(u, final))

    return sampler


@pytest.mark.parametrize(
    ("kind", "order"),
    [
        ("together", ("acceptance", "final")),
        ("apart", (0, 1, "final")),
        ("two finals", (0, 1, "final", "final")),
    ],
)
def test_samplers_that_draw_from_a_generator_in_a_known_order(kind, order):
    target, draft = trees(3, 2, 6)
    found = exact_law(driven(_generator_sampler(kind), order), target, draft, 2)
    agree(found, theory.analyse_round(target, draft, LOSSLESS, 2))


def test_an_order_that_is_wrong_is_refused():
    target, draft = trees(3, 2, 6)
    with pytest.raises(BadAnswer, match="drew more than 2 times"):
        exact_law(driven(_generator_sampler("two finals"), (0, 1)), target, draft, 2)
    with pytest.raises(BadAnswer, match="asked for shape"):
        exact_law(driven(_generator_sampler("together"), ("final", "acceptance")), target, draft, 2)
    with pytest.raises(ValueError, match='order names "acceptance"'):
        driven(_generator_sampler("together"), ("bonus",))
    with pytest.raises(BadAnswer, match="the sampler used integers"):
        exact_law(driven(lambda rounds, rng: rng.integers(3, size=4)), target, draft, 2)


def _sum_of_two(rounds, uniforms):
    """Accepts where the sum of two uniforms is small: a threshold that is no threshold of one uniform."""
    flags = (uniforms.acceptance[:, 0] + uniforms.final < 1)[:, None] & np.ones((1, rounds.length), bool)
    accepted = np.cumprod(flags, axis=1).sum(axis=1)
    place = np.arange(rounds.length + 1)
    tokens = np.where(place < accepted[:, None], np.pad(rounds.draft_ids, ((0, 0), (0, 1))), 0)
    return Emitted(tokens, accepted)


def _hidden_noise():
    rng = np.random.default_rng(0)
    return lambda rounds, uniforms: TokenWise()(rounds, draw_uniforms(rounds, rng))


def _whole_batch(rounds, uniforms):
    shifted = Uniforms(np.roll(uniforms.acceptance, 1, axis=0), uniforms.final)
    return TokenWise()(rounds, shifted)


@pytest.mark.parametrize("sampler", [_sum_of_two, _hidden_noise(), _whole_batch])
def test_samplers_without_constant_pieces_are_refused(sampler):
    with pytest.raises(NotPiecewise, match="uniforms"):
        exact_law(sampler, P0, Q0, 1)


def test_answers_that_are_none_are_refused():
    with pytest.raises(BadAnswer, match=r"tokens\[.*\] is 7; ids lie in 0…2"):
        exact_law(TokenWise(draw=lambda law, u: np.full(len(u), 7)), P0, Q0, 1)
    with pytest.raises(BadAnswer, match="accepted must have shape"):
        exact_law(lambda rounds, uniforms: Emitted(rounds.draft_ids, np.zeros(3, int)), P0, Q0, 1)


def test_bad_arguments():
    with pytest.raises(ValueError, match="vocabulary mismatch"):
        exact_law(TokenWise(), P0, theory.IIDChain([0.5, 0.5]), 1)
    with pytest.raises(ValueError, match="more than 262144"):
        exact_law(TokenWise(), theory.IIDChain([0.125] * 8), theory.IIDChain([0.125] * 8), 6)
    coins = theory.IIDChain([0.5, 0.5]), theory.IIDChain([0.75, 0.25])
    with pytest.raises(ValueError, match="4096 blocks of 12 drafts over 2 ids have 531441 cells, more than 65536"):
        exact_law(TokenWise(), *coins, 12)
    with pytest.raises(ValueError, match="the target has 2 levels"):
        exact_law(TokenWise(), simulate.dirichlet_tree(3, 2, np.random.default_rng(0)), P0, 2)
    with pytest.raises(ValueError, match="length"):
        exact_law(TokenWise(), P0, Q0, 0)
    with pytest.raises(ValueError, match=r"acceptance\[\(0, 0\)\] is .*1.0"):
        Uniforms(np.ones((1, 1)), np.zeros(1))
    with pytest.raises(ValueError, match=r"expected acceptance \(B, L\)"):
        Uniforms(np.zeros((2, 1)), np.zeros(1))


def test_generators_that_are_driven():
    given_numbers = GivenGenerator([np.array([0.1, 0.2])])
    assert given_numbers.random((2, 1)).tolist() == [[0.1], [0.2]]
    constant = ConstantGenerator(0.25)
    assert isinstance(constant, np.random.Generator)
    assert constant.random() == 0.25
    assert constant.spawn(2)[1].random(2).tolist() == [0.25, 0.25]
    with pytest.raises(AttributeError, match="the sampler used normal"):
        constant.normal()


# Boundary probes.


@pytest.mark.parametrize(
    ("sampler", "verifier", "length"),
    [(s, v, n) for n in (1, 2) for s, v in ((TokenWise(), LOSSLESS), (Blockwise(), theory.block(n)))],
)
def test_correct_samplers_are_not_refuted(sampler, verifier, length):
    assert refute(sampler, verifier, length, strict=True) is None
    for seed in range(4):
        target, draft = trees(3, 2, seed)
        assert [f for f in boundary_failures(sampler, target, draft, length, verifier) if f.decisive] == []


def test_a_ratio_by_logarithms_differs_by_rounding_only():
    def logarithms(p, q, x):
        return np.exp(np.log(at(p, x)) - np.log(at(q, x)))

    failures = [
        failure
        for seed in range(6)
        for failure in boundary_failures(TokenWise(ratio=logarithms), *trees(4, 2, seed), 2)
    ]
    assert failures
    assert not any(failure.decisive for failure in failures)


def test_the_smallest_failing_input_is_named():
    failure = refute(TokenWise(accepts=lambda u, f: u <= f))
    assert failure.target_probs[0].tolist() == [1.0, 0.0]
    assert (failure.drafts.tolist(), failure.acceptance.tolist(), failure.what) == (
        [1],
        [0.0],
        "accepted 1, expected 0",
    )
    assert failure.decisive
    assert "drafts [1], acceptance uniforms [0.0]" in str(failure)


def test_u_exactly_f():
    """A comparison that is inclusive except at zero has no impossible event: only the strict probe sees it."""
    sampler = TokenWise(accepts=lambda u, f: (u <= f) & (f > 0))
    assert refute(sampler) is None
    failure = refute(sampler, strict=True)
    assert failure.acceptance.tolist() == [0.5]
    assert not failure.decisive


@pytest.mark.parametrize(
    ("sampler", "what"),
    [
        (TokenWise(draw=lambda law, u: (law.cumsum(axis=-1) <= u[:, None]).sum(axis=-1)), "ids lie in"),
        (TokenWise(draw=lambda law, u: np.argmax(law.cumsum(axis=-1) >= u[:, None], axis=-1)), "probability 0"),
        (TokenWise(ratio=lambda p, q, x: ratio(p, q, x) * (1 - 1e-9)), "accepted 0, expected 1"),
        (TokenWise(draw=lambda law, u: inverse_cdf(law + 1e-12, u)), "probability 0"),
    ],
)
def test_faults_of_no_weight_are_refuted(sampler, what):
    failure = refute(sampler)
    assert what in failure.what
    assert failure.decisive


def test_uniforms_reach_the_largest_below_one():
    assert LAST_UNIFORM < 1 == float(np.nextafter(LAST_UNIFORM, 2))
