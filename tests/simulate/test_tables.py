"""Tables against exact laws: the alias tables bin by bin in integers, the walks by G-tests, with controls.

G-tests with fixed seeds: a right walk must reach p > 1e-4, a faulty one must fall below 1e-9.
"""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import simulate
import theory
from simulate import tables
from simulate.alias import alias_records
from tests.simulate.test_decoding import FAULT_LEVEL, PASS_LEVEL, VERIFIERS, g_test, pair, rng

TOKEN_WISE = sorted(name for name in VERIFIERS if not VERIFIERS[name](2).stateful)


def masses_of(records, outcomes):
    """Mass of every outcome of one alias table, added up bin by bin in rationals."""
    bits = (len(records) - 1).bit_length()
    width = 2 ** (64 - bits)
    out = [Fraction(0)] * outcomes
    for k, record in enumerate(records):
        below = int(record["threshold"]) - k * width
        if record["below"] == record["above"]:
            below = 0
        assert 0 <= below <= width
        out[record["below"]] += Fraction(below, 2**64)
        out[record["above"]] += Fraction(width - below, 2**64)
    return out


def law_of(walk, rows=200_000, seed=0):
    return walk.run(rows, rng(seed)).tokens


@given(st.lists(st.integers(0, 10), min_size=1, max_size=33).filter(any), st.integers(0, 2))
def test_alias_tables_hold_the_law(counts, spare):
    bits = max(1, (len(counts) - 1).bit_length()) + spare
    records = alias_records([counts, counts[::-1]], np.tile(np.arange(len(counts)), (2, 1)), bits)
    for row, wanted in zip(records, (counts, counts[::-1]), strict=True):
        for found, count in zip(masses_of(row, len(counts)), wanted, strict=True):
            exact = Fraction(count, sum(counts))
            assert abs(found - exact) <= Fraction(len(counts), 2**52)
            assert (found == 0) == (count == 0)


@pytest.mark.parametrize("size", [16384, 10_000])
def test_large_and_skewed_alias_tables(size):
    p = rng().dirichlet(np.full(size, 0.05))
    bits = (size - 1).bit_length()
    records = alias_records(p[None], np.arange(size)[None], bits)[0]
    found = np.asarray([float(mass) for mass in masses_of(records, size)])
    assert np.abs(found - p).max() < 1e-15
    assert not found[p < 2.0**-63].any()


def test_control_the_sum_over_bins_sees_a_wrong_bin():
    records = alias_records([[1, 2, 3, 4, 5]], [[0, 1, 2, 3, 4]], 3)[0].copy()
    shared = np.argmax(records["below"] != records["above"])
    records["above"][shared] = records["below"][shared]
    exact = [Fraction(count, 15) for count in range(1, 6)]
    assert max(abs(a - b) for a, b in zip(masses_of(records, 5), exact, strict=True)) > Fraction(1, 100)


def test_masses_that_are_no_law_are_named():
    with pytest.raises(ValueError, match="row 1 has nan at outcome 0"):
        alias_records([[1.0, 0.0], [np.nan, 1.0]], [[0, 1], [0, 1]], 1)
    with pytest.raises(ValueError, match=r"row 0 has -1\.0 at outcome 1"):
        alias_records([[1.0, -1.0]], [[0, 1]], 1)
    with pytest.raises(ValueError, match="row 1 is zero everywhere"):
        alias_records([[1.0, 0.0], [0.0, 0.0]], [[0, 1], [0, 1]], 1)


@pytest.mark.parametrize("kind", ["tree", "markov", "iid"])
@pytest.mark.parametrize("name", TOKEN_WISE)
def test_rounds_have_the_exact_law_and_survival(name, kind):
    target, draft = pair(kind, 3)
    verifier = VERIFIERS[name](2)
    run = simulate.compile_round(target, draft, verifier, 2).run(50_000, rng(8))
    exact = theory.analyse_round(target, draft, verifier, 2)
    assert g_test(run.tokens, np.asarray(exact.law)) > PASS_LEVEL
    survival = np.concatenate([[1.0], exact.survival, [0.0]])
    assert g_test(run.accepted[:, None], survival[:-1] - survival[1:]) > PASS_LEVEL


@given(st.data())
def test_rounds_of_any_rational_pair(data):
    def chain(depth):
        return theory.TabularChain(
            [
                np.asarray([row(data) for _ in range(2**i)]).reshape((2,) * (i + 1))
                for i in range(depth)
            ]
        )  # fmt: skip

    def row(data):
        counts = data.draw(st.lists(st.integers(0, 10), min_size=2, max_size=2).filter(any))
        return np.asarray(counts) / sum(counts)

    target, draft = chain(3), chain(2)
    verifier = theory.Verifier(theory.Relaxed([data.draw(st.sampled_from([0.5, 1.0, 2.0])) for _ in range(2)]))
    run = simulate.compile_round(target, draft, verifier, 2).run(2000, rng())
    joint = exact_round(target, draft, verifier, 2)
    assert g_test(np.column_stack([run.tokens, run.accepted]) % 3, joint) > 1e-6


def exact_round(target, draft, verifier, length):
    """Joint law of L+1 binary tokens and accepted drafts, shape (3,)*(L+2) with unused cells, by plain recursion."""
    out = np.zeros((3,) * (length + 2))

    def law(chain, prefix):
        return np.asarray(chain.conditional(np.asarray(prefix, dtype=int).reshape(1, -1)))[0]

    def go_on(prefix, accepted, mass, running):
        if len(prefix) == length + 1:
            out[(*prefix, accepted)] += mass
            return
        p = law(target, prefix)
        if not running or len(prefix) == length:
            for x in range(2):
                go_on((*prefix, x), accepted, mass * p[x], False)
            return
        q = law(draft, prefix)
        step = verifier.step(p, q, len(prefix))
        for x in range(2):
            go_on((*prefix, x), accepted + 1, mass * step.accepted[x], True)
            go_on((*prefix, x), accepted, mass * float(step.rejection) * step.residual[x], False)

    go_on((), 0, 1.0, True)
    return out


@pytest.mark.parametrize("pairing", [("iid", "markov"), ("markov", "tree"), ("tree", "iid")])
def test_mixed_kinds_of_chains(pairing):
    target, draft = pair(pairing[0], 4)[0], pair(pairing[1], 4)[1]
    verifier = theory.cool_sd(2, 1.4)
    run = simulate.decode(target, draft, verifier, 2, 4, 50_000, rng(3))
    exact = theory.analyse_sequence(target, draft, verifier, 2, 4)
    assert g_test(run.tokens, np.asarray(exact.law)) > PASS_LEVEL
    assert abs(run.calls.mean() - exact.expected_calls) <= 5 * run.calls.std() / np.sqrt(len(run.calls)) + 1e-12


def test_tables_and_mechanism_agree_in_tokens_calls_and_accepted_drafts():
    target, draft = pair("markov", 9)
    verifier = theory.cool_sd(3, 1.3)
    fast = simulate.decode(target, draft, verifier, 3, 8, 40_000, rng(1))
    slow = simulate.decode(target, draft, verifier, 3, 8, 40_000, simulate.streams(rng(2)))
    for name in ("tokens", "calls"):
        assert_same_law(getattr(fast, name), getattr(slow, name))
    # Whole histories of accepted drafts, as one number: −1 … 3 in base five.
    width = min(fast.accepted.shape[1], slow.accepted.shape[1], 4)
    assert_same_law(*(run.accepted[:, :width] @ 5 ** np.arange(width) for run in (fast, slow)))
    for run in (fast, slow):
        assert np.array_equal(run.calls, (run.accepted >= 0).sum(axis=1))
        emitted = np.where(run.accepted >= 0, run.accepted + 1, 0).sum(axis=1)
        assert set(np.unique(emitted - 8)) <= {0, 1}


def assert_same_law(one, other):
    """Two samples of whole numbers (or of columns of them): a G-test of both against their pooled counts."""
    one, other = (np.atleast_2d(np.asarray(a).T) for a in (one, other))
    for a, b in zip(one, other, strict=True):
        values, codes = np.unique(np.concatenate([a, b]), return_inverse=True)
        pooled = np.bincount(codes) / len(codes)
        for part in (codes[: len(a)], codes[len(a) :]):
            # Against pooled counts the statistic is at most that against the truth.
            assert g_test(part[:, None], pooled) > PASS_LEVEL
        assert len(values) > 1


def test_a_generator_draws_from_tables_and_streams_play_the_mechanism(monkeypatch):
    target, draft = pair("markov", 4)
    monkeypatch.setattr(simulate.decoding, "play_round", None)
    simulate.decode(target, draft, theory.cool_sd(2, 1.2), 2, 4, 2000, rng())
    simulate.decode_round(target, draft, theory.cool_sd(2, 1.2), 2, 2000, rng(), prefix=[1])
    for verifier, source in ((theory.cool_sd(2, 1.2), simulate.streams(rng())), (theory.block(2), rng())):
        with pytest.raises(TypeError, match="not callable"):
            simulate.decode(target, draft, verifier, 2, 4, 2000, source)


@pytest.mark.parametrize("kind", ["tree", "markov", "iid"])
def test_rounds_after_prefixes_of_their_own(kind):
    target, draft = pair(kind, 5)
    verifier = theory.Verifier(theory.Relaxed(1.5))
    prefixes = np.tile([[0, 2], [1, 1], [2, 0]], (20_000, 1))
    run = simulate.decode_round(target, draft, verifier, 2, len(prefixes), rng(9), prefix=prefixes)
    for i, prefix in enumerate(prefixes[:3]):
        exact = theory.analyse_round(*(after(chain, prefix) for chain in (target, draft)), verifier, 2)
        assert g_test(run.tokens[i::3], np.asarray(exact.law)) > PASS_LEVEL
    with pytest.raises(ValueError, match=r"prefix \[1, 0\] is token 3; tokens lie in 0…2"):
        simulate.decode_round(target, draft, verifier, 2, 2, rng(), prefix=[[0, 0], [3, 0]])


def after(chain, prefix):
    """The chain of what follows a prefix of two tokens, three tokens deep."""
    levels = [
        np.asarray([chain.conditional([[*prefix, *more]])[0] for more in np.ndindex((3,) * i)]).reshape((3,) * (i + 1))
        for i in range(3)
    ]
    return theory.TabularChain(levels)


def test_control_a_bonus_from_the_draft_is_seen(monkeypatch):
    target, draft = pair("iid", 4)
    verifier = theory.Verifier(theory.Lossless())
    law = np.asarray(theory.analyse_round(target, draft, verifier, 2).law)
    assert g_test(law_of(simulate.compile_round(target, draft, verifier, 2)), law) > PASS_LEVEL
    laws = tables.laws_after
    monkeypatch.setattr(tables, "laws_after", lambda chain, prefixes: laws(draft, prefixes))
    assert g_test(law_of(simulate.compile_round(target, draft, verifier, 2)), law) < FAULT_LEVEL


def test_control_another_verifier_is_seen():
    target, draft = pair("markov", 4)
    law = np.asarray(theory.analyse_round(target, draft, theory.Verifier(theory.Lossless()), 2).law)
    for omega, fault in ((1.0, False), (1.1, True)):
        walk = simulate.compile_round(target, draft, theory.Verifier(theory.Relaxed(omega)), 2)
        value = g_test(law_of(walk, 1_000_000), law)
        assert value < FAULT_LEVEL if fault else value > PASS_LEVEL


def test_large_vocabularies():
    generator = rng(5)
    p, q = (theory.IIDChain(generator.dirichlet(np.full(16384, 0.5))) for _ in range(2))
    verifier = theory.cool_sd(5, 1.2)
    run = simulate.compile_round(p, q, verifier, 5).run(200_000, rng())
    exact = theory.analyse_round(p, q, verifier, 5)
    survival = np.concatenate([[1.0], exact.survival, [0.0]])
    assert g_test(run.accepted[:, None], survival[:-1] - survival[1:]) > PASS_LEVEL
    output = verifier.step(p.p, q.p, 0).output
    assert g_test(run.tokens[:, :1], output) > PASS_LEVEL
    assert g_test(run.tokens[:, :1], np.asarray(p.p)) < FAULT_LEVEL


def test_seeds_and_sizes():
    rounds = simulate.compile_round(*pair("markov", 4), theory.cool_sd(3, 1.2), 3)
    one, again, other = (rounds.run(20_000, rng(seed)) for seed in (0, 0, 1))
    assert all(np.array_equal(a, b) for a, b in zip(one, again, strict=True))
    assert not np.array_equal(one.tokens, other.tokens)
    assert [part.shape for part in rounds.run(0, rng())] == [(0, 4), (0,)]
    generator = rng()
    first, second = rounds.run(50, generator), rounds.run(50, generator)
    assert not np.array_equal(first.tokens, second.tokens)


def test_a_vocabulary_of_one_token():
    p = theory.IIDChain([1.0])
    run = simulate.compile_round(p, p, theory.cool_sd(3, 1.2, floor=1.0), 3).run(5, rng())
    assert not run.tokens.any()
    assert run.accepted.tolist() == [3] * 5


def test_what_tables_cannot_do_is_named():
    target, draft = pair("grid", 4)
    with pytest.raises(TypeError, match="not GridChain"):
        simulate.compile_round(target, draft, theory.cool_sd(2, 1.2), 2)
    with pytest.raises(ValueError, match="carries a weight"):
        simulate.compile_round(*pair("iid", 4), theory.block(2), 2)
    large = theory.MarkovChain(np.full(4096, 1 / 4096), np.full((4096, 4096), 1 / 4096))
    with pytest.raises(ValueError, match=r"the tables need \d+ bins"):
        simulate.compile_round(large, large, theory.cool_sd(2, 1.2), 2)
    with pytest.raises(ValueError, match="position 1 is outside the schedule of 1 entries"):
        simulate.compile_round(*pair("iid", 4), theory.cool_sd(1, 1.2), 2)
