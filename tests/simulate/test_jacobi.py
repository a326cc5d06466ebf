"""Jacobi decoding against the target's law (lossless) and recursion over all histories (relaxed), with controls."""

from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import simulate
import theory
from simulate import jacobi
from tests.simulate.test_decoding import FAULT_LEVEL, PASS_LEVEL, Stream, g_test, pair, rng

LOSSLESS = theory.Verifier(theory.Lossless())
COUPLINGS = ["independent", "maximal", "gumbel"]


def law_of(chain, tokens):
    law = np.ones(1)
    for i in range(tokens):
        law = (law[:, None] * chain.conditional(theory.chains.all_prefixes(chain.vocab_size, i))).ravel()
    return law.reshape((chain.vocab_size,) * tokens)


@pytest.mark.parametrize("kind", ["tree", "grid"])
@pytest.mark.parametrize("fresh", ["one_hot", "uniform"])
@pytest.mark.parametrize("coupling", COUPLINGS)
@pytest.mark.parametrize("window", [1, 3, 6])
def test_lossless_decoding_keeps_the_law_of_the_target(window, coupling, fresh, kind):
    target, _ = pair(kind, 4)
    run = jacobi.decode_jacobi(target, LOSSLESS, window, 4, 15_000, rng(window), coupling, fresh=fresh)
    assert g_test(run.tokens, law_of(target, 4)) > PASS_LEVEL
    emitted = np.where(run.accepted >= 0, run.accepted + 1, 0).sum(axis=1)
    assert set(np.unique(emitted - 4)) <= {0, 1}
    assert np.array_equal(run.calls, (run.accepted >= 0).sum(axis=1))
    assert run.accepted.max() <= window


@pytest.mark.parametrize("rule", [theory.Lossless(), theory.EntropyRelaxed(), theory.Relaxed([0.5] * 6)])
def test_lossless_rules_without_a_short_cut_and_many_tokens(rule):
    target = simulate.random_markov(2, rng(3))
    run = jacobi.decode_jacobi(target, theory.Verifier(rule), 6, 8, 20_000, rng(1), "maximal")
    value = g_test(run.tokens, law_of(target, 8))
    assert value > PASS_LEVEL if rule.lossless else value < FAULT_LEVEL


def histories(target, verifier, window, tokens, coupling, fresh):
    """Exact law (2,)*T and expected calls by recursion over everything that can happen, binary tokens."""

    def conditional(prefix):
        return tuple(np.asarray(target.conditional(np.asarray(prefix, dtype=int).reshape(1, -1)))[0].tolist())

    def steps(p, q, place):
        p, q = np.asarray(p), np.asarray(q)
        f = verifier.acceptance(p, q, place)
        return f, verifier.residual(p, q, f)

    def redraws(place, old, new):
        if coupling == "independent" or place == window:
            return list(enumerate(new))
        y, q = old
        keep = min(1.0, new[y] / q[y])
        rest = np.maximum(np.asarray(new) - q, 0)
        rest = rest / rest.sum() if rest.sum() else rest
        return [(z, keep * (z == y) + (1 - keep) * rest[z]) for z in range(2)]

    @cache
    def after(known, drafts):
        if len(known) == tokens:
            return {known: 1.0}, 0.0
        law, calls = {}, 1.0
        block = min(window, tokens - len(known))
        missing = max(block - len(drafts), 0)
        for new in product(range(2), repeat=missing):
            q_new = ((0.5, 0.5),) * missing if fresh == "uniform" else tuple(((1.0, 0.0), (0.0, 1.0))[x] for x in new)
            held = (drafts + tuple(zip(new, q_new, strict=True)))[:block]
            for chance, emitted, following in iteration(known, held, block):
                below, more = after(known + emitted, following)
                calls += 0.5**missing * chance * more
                for end, mass in below.items():
                    law[end] = law.get(end, 0.0) + 0.5**missing * chance * mass
        return law, calls

    def iteration(known, held, block):
        y = tuple(token for token, _ in held)
        p = [conditional(known + y[:i]) for i in range(window + 1) if len(known) + i < tokens and i <= block]
        reached = 1.0
        for k in range(block + 1):
            if k < block:
                f, residual = steps(p[k], held[k][1], k)
                ends = [((x,), reached * (1 - f[y[k]]) * residual[x]) for x in range(2)]
                reached *= f[y[k]]
            elif len(p) > block:
                ends = [((x,), reached * p[block][x]) for x in range(2)]
            else:
                ends = [((), reached)]
            for last, chance in ends:
                if chance == 0:
                    continue
                first = k + len(last)
                places = range(first, len(p))
                options = [redraws(i, held[i] if i < block else None, p[i]) for i in places]
                for drawn in product(*options):
                    share = float(np.prod([mass for _, mass in drawn])) if drawn else 1.0
                    if share > 0:
                        following = tuple((z, p[i]) for (z, _), i in zip(drawn, places, strict=True))
                        yield chance * share, y[:k] + last, following

    law, calls = after((), ())
    out = np.zeros((2,) * tokens)
    for end, mass in law.items():
        out[end] = mass
    return out, calls


@pytest.mark.parametrize("omega", [1.0, 2.0, 0.6, [3.0, 1.0, 1.5]])
@pytest.mark.parametrize("fresh", ["one_hot", "uniform"])
@pytest.mark.parametrize("coupling", ["independent", "maximal"])
@pytest.mark.parametrize("window", [1, 2, 3])
def test_relaxed_decoding_has_the_law_of_all_histories(window, coupling, fresh, omega):
    target = simulate.dirichlet_tree(2, 3, rng(7))
    verifier = theory.Verifier(theory.Relaxed(omega))
    law, calls = histories(target, verifier, window, 3, coupling, fresh)
    assert abs(law.sum() - 1) < 1e-12
    if np.all(np.asarray(omega) <= 1):
        assert np.abs(law - law_of(target, 3)).max() < 1e-12
    else:
        assert np.abs(law - law_of(target, 3)).max() > 1e-3
    run = jacobi.decode_jacobi(target, verifier, window, 3, 20_000, rng(2), coupling, fresh=fresh)
    assert g_test(run.tokens, law) > PASS_LEVEL
    assert abs(run.calls.mean() - calls) <= 5 * run.calls.std() / np.sqrt(len(run.calls)) + 1e-12


def exact_same(q, new):
    """P(z = y) of shared Gumbel noise: both races won by x, an exponential of rate Σ_v max(q(v)/q(x), q'(v)/q'(x))."""
    out = 0.0
    for a, b in zip(q, new, strict=True):
        if a > 0 and b > 0:
            out += 1 / np.maximum(np.asarray(q) / a, np.asarray(new) / b).sum()
    return out


@given(st.lists(st.tuples(st.integers(0, 10), st.integers(0, 10)), min_size=2, max_size=6))
def test_the_bound_on_shared_noise(counts):
    q, new = np.asarray(counts, dtype=float).T
    if not q.sum() or not new.sum():
        return
    q, new = q / q.sum(), new / new.sum()
    tv = theory.total_variation(q, new)
    assert (1 - tv) / (1 + tv) - 1e-12 <= exact_same(q, new) <= 1 - tv + 1e-12


@pytest.mark.parametrize("seed", range(4))
def test_how_often_coupled_drafts_agree(seed):
    generator, n = rng(seed), 100_000
    q, new = generator.dirichlet(np.ones(5)), generator.dirichlet(np.ones(5))
    laws, others = np.tile(q, (n, 1)), np.tile(new, (n, 1))
    tv = theory.total_variation(q, new)
    noise = generator.random((n, 5))
    y, z = jacobi.gumbel_draw(laws, noise), jacobi.gumbel_draw(others, noise)
    assert g_test(y[:, None], q) > PASS_LEVEL
    assert g_test(z[:, None], new) > PASS_LEVEL
    assert g_test((y == z).astype(int)[:, None], np.asarray([1 - exact_same(q, new), exact_same(q, new)])) > PASS_LEVEL
    z = jacobi.maximal_draw(y, laws, others, generator.random(n), generator.random(n))
    assert g_test(z[:, None], new) > PASS_LEVEL
    assert g_test((y == z).astype(int)[:, None], np.asarray([tv, 1 - tv])) > PASS_LEVEL
    alone = np.asarray([1 - q @ new, q @ new])
    assert g_test((y == z).astype(int)[:, None], alone) < FAULT_LEVEL


def test_coupling_saves_calls():
    target = simulate.random_markov(8, rng(2))
    calls = {c: jacobi.decode_jacobi(target, LOSSLESS, 6, 24, 1000, rng(1), c).calls for c in COUPLINGS}
    error = 5 * max(c.std() for c in calls.values()) * np.sqrt(2 / 1000)
    for coupling in ("maximal", "gumbel"):
        assert calls[coupling].mean() < calls["independent"].mean() - error


class SharedNoise(Stream):
    """One vector of noise for all places of a row."""

    def random(self, shape):
        drawn = super().random(shape)
        return np.broadcast_to(drawn[:, :1], drawn.shape).copy() if len(np.shape(drawn)) == 3 else drawn


@pytest.mark.parametrize("fault", [False, True])
def test_control_noise_shared_by_places(fault):
    target = theory.IIDChain([0.5, 0.3, 0.2])
    draft = (SharedNoise if fault else Stream)(1, lambda u: u)
    draws = simulate.Streams(draft, rng(2), rng(3), rng(4))
    run = jacobi.decode_jacobi(target, LOSSLESS, 3, 4, 40_000, draws, "gumbel")
    value = g_test(run.tokens, law_of(target, 4))
    assert value < FAULT_LEVEL if fault else value > PASS_LEVEL


@pytest.mark.parametrize("fault", [False, True])
def test_control_a_kept_draft_declared_with_the_new_law(fault, monkeypatch):
    target, _ = pair("tree", 4)
    if fault:
        monkeypatch.setattr(jacobi, "maximal_draw", lambda drafted, *_: drafted)
    run = jacobi.decode_jacobi(target, LOSSLESS, 3, 4, 40_000, rng(1), "maximal")
    value = g_test(run.tokens, law_of(target, 4))
    assert value < FAULT_LEVEL if fault else value > PASS_LEVEL


@pytest.mark.parametrize("fault", [False, True])
def test_control_stale_laws_in_verification(fault, monkeypatch):
    target, _ = pair("tree", 4)
    laws = jacobi._laws
    if fault:
        # The first place is right, the others see the prefix that stood there before the window was filled.
        monkeypatch.setattr(jacobi, "_laws", lambda chain, canvas, *rest: laws(chain, 0 * canvas, *rest))
    run = jacobi.decode_jacobi(target, LOSSLESS, 3, 4, 40_000, rng(1))
    value = g_test(run.tokens, law_of(target, 4))
    assert value < FAULT_LEVEL if fault else value > PASS_LEVEL


@pytest.mark.parametrize("fault", [False, True])
def test_control_replacement_from_the_noise_of_the_draft(fault):
    p, q, n = np.asarray([0.45, 0.45, 0.1]), np.asarray([0.3, 0.1, 0.6]), 50_000
    generator = rng(1)
    noise, u = generator.random((n, 3)), generator.random(n)
    drafted = jacobi.gumbel_draw(np.tile(q, (n, 1)), noise)
    residual = np.tile(theory.vanilla_residual(p, q, q), (n, 1))
    replaced = jacobi.gumbel_draw(residual, noise if fault else generator.random((n, 3)))
    value = g_test(np.where(u < np.minimum(1, p / q)[drafted], drafted, replaced)[:, None], p)
    assert value < FAULT_LEVEL if fault else value > PASS_LEVEL


@pytest.mark.parametrize("fault", [False, True])
def test_control_verification_with_the_uniform_of_the_coupling(fault):
    q, new, p, n = *(np.asarray(a) for a in ([0.5, 0.3, 0.2], [0.2, 0.5, 0.3], [0.3, 0.2, 0.5])), 50_000
    generator = rng(1)
    y, keep, redraw = simulate.categorical(np.tile(q, (n, 1)), generator.random(n)), *generator.random((2, n))
    z = jacobi.maximal_draw(y, np.tile(q, (n, 1)), np.tile(new, (n, 1)), keep, redraw)
    rounds = np.tile(p, (n, 2, 1)), np.tile(new, (n, 1, 1))
    u = keep if fault else generator.random(n)
    draws = simulate.Streams(None, Fixed(u[:, None]), generator, generator)
    value = g_test(simulate.verify(z[:, None], *rounds, LOSSLESS, draws).tokens[:, :1], p)
    assert value < FAULT_LEVEL if fault else value > PASS_LEVEL


class Fixed:
    def __init__(self, values):
        self.values = values

    def random(self, shape):
        assert np.shape(self.values) == shape
        return self.values


def test_seeds_and_small_cases():
    target, _ = pair("tree", 4)
    one, again, other = (jacobi.decode_jacobi(target, LOSSLESS, 3, 4, 50, rng(seed), "gumbel") for seed in (0, 0, 1))
    assert all(np.array_equal(a, b) for a, b in zip(one, again, strict=True))
    assert not np.array_equal(one.tokens, other.tokens)
    empty = jacobi.decode_jacobi(target, LOSSLESS, 3, 4, 0, rng())
    assert (empty.tokens.shape, empty.accepted.shape, empty.calls.shape) == ((0, 4), (0, 0), (0,))
    sure = theory.IIDChain([0.0, 1.0])
    run = jacobi.decode_jacobi(sure, LOSSLESS, 3, 9, 200, rng(), "maximal")
    assert (run.tokens == 1).all()
    assert run.calls.max() <= 9


def test_rows_taken_in_turns(monkeypatch):
    target, _ = pair("tree", 4)
    monkeypatch.setattr(jacobi, "LAWS_AT_ONCE", 3000)
    run = jacobi.decode_jacobi(target, LOSSLESS, 3, 4, 20_000, rng(1), "maximal")
    assert g_test(run.tokens, law_of(target, 4)) > PASS_LEVEL
    assert np.array_equal(run.calls, (run.accepted >= 0).sum(axis=1))


def test_bad_input_is_named():
    target, _ = pair("tree", 4)
    with pytest.raises(ValueError, match="window must be a whole number >= 1, got 0"):
        jacobi.decode_jacobi(target, LOSSLESS, 0, 4, 1, rng())
    with pytest.raises(ValueError, match="coupling must be one of independent, maximal, gumbel, got 'other'"):
        jacobi.decode_jacobi(target, LOSSLESS, 2, 4, 1, rng(), "other")
    with pytest.raises(ValueError, match="fresh must be one of one_hot, uniform, got 'other'"):
        jacobi.decode_jacobi(target, LOSSLESS, 2, 4, 1, rng(), fresh="other")
    with pytest.raises(ValueError, match="target has 4 levels but decoding 5 tokens needs 5"):
        jacobi.decode_jacobi(target, LOSSLESS, 2, 5, 1, rng())
    with pytest.raises(ValueError, match="carries a weight"):
        jacobi.decode_jacobi(target, theory.block(2), 2, 4, 1, rng())
