"""Decoding against exact laws, with controls: each fault must fail the very test that the decoder passes.

G-tests with fixed seeds: the decoder must reach p > 1e-4, a faulty decoder must fall below 1e-9.
"""

import numpy as np
import pytest
import torch
from scipy.special import chdtrc

import simulate
import theory

PASS_LEVEL, FAULT_LEVEL = 1e-4, 1e-9
P0, Q0 = [0.5, 0.3, 0.2], [0.2, 0.3, 0.5]


def rng(seed=0):
    return np.random.default_rng(seed)


def g_test(tokens, law):
    """p-value of the G-test of rows of tokens against a law of shape (V,)*T; cells expected below 5 are pooled."""
    size, n = law.shape[0], len(tokens)
    cells = tokens @ size ** np.arange(tokens.shape[1] - 1, -1, -1)
    counts, expected = np.bincount(cells, minlength=law.size), n * law.ravel()
    if counts[expected == 0].any():
        return 0.0
    rare = expected < 5
    counts = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    keep = expected > 0
    counts, expected = counts[keep], expected[keep]
    seen = counts > 0
    g = 2 * np.sum(counts[seen] * np.log(counts[seen] / expected[seen]))
    return float(chdtrc(len(counts) - 1, max(g, 0.0))) if len(counts) > 1 else 1.0


NEIGHBOURS = theory.nearest_neighbours([[0.0], [1.0], [3.0]], 2)
VERIFIERS = {
    "lossless": lambda length: theory.Verifier(theory.Lossless()),
    "uniform": lambda length: theory.Verifier(theory.Relaxed(1.5)),
    "annealed": lambda length: theory.cool_sd(length, 1.2),
    "bang-bang": lambda length: theory.Verifier(theory.Relaxed(theory.bang_bang_schedule(length, 1))),
    "typical": lambda length: theory.Verifier(theory.Typical(), theory.target_residual),
    "lantern": lambda length: theory.Verifier(theory.Lantern(NEIGHBOURS, 2, 0.3), theory.vanilla_residual),
    "csd": lambda length: theory.Verifier(theory.EntropyRelaxed()),
    "block": lambda length: theory.block(length),
    "capped block": lambda length: theory.capped_block(np.linspace(2.0, 1.2, length)),
    "lifted block": lambda length: theory.lifted_block(theory.cool_sd(length, 1.4, floor=1.0)),
    "cactus": lambda length: theory.Verifier(theory.Cactus(0.5), theory.CactusResidual(0.5)),
}


def pair(kind, depth):
    target = {
        "tree": lambda: simulate.dirichlet_tree(3, depth, rng(1)),
        "markov": lambda: simulate.random_markov(3, rng(2)),
        "iid": lambda: simulate.dirichlet_iid(3, rng(3)),
        "grid": lambda: simulate.potts_grid(depth // 2, 2, 3, rng(4)),
    }[kind]()
    return target, simulate.make_draft(target, 0.25, rng(5))


# A generator draws from tables where they apply, streams play the mechanism.
SOURCES = {"tables": rng, "mechanism": lambda seed: simulate.streams(rng(seed))}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("kind", ["tree", "markov", "iid", "grid"])
@pytest.mark.parametrize("name", VERIFIERS)
def test_tokens_follow_the_exact_law_of_many_rounds(name, kind, source):
    target, draft = pair(kind, 4)
    verifier = VERIFIERS[name](2)
    run = simulate.decode(target, draft, verifier, 2, 4, 20_000, SOURCES[source](6))
    exact = theory.analyse_sequence(target, draft, verifier, 2, 4)
    assert g_test(run.tokens, np.asarray(exact.law)) > PASS_LEVEL
    assert abs(run.calls.mean() - exact.expected_calls) <= 5 * run.calls.std() / np.sqrt(len(run.calls)) + 1e-12


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("length", [1, 2, 3])
def test_the_end_of_the_sequence_has_the_exact_law(length, tokens, source):
    target, draft = pair("tree", 5)
    verifier = theory.cool_sd(length, 1.4, floor=1.0)
    run = simulate.decode(target, draft, verifier, length, tokens, 20_000, SOURCES[source](7))
    exact = theory.analyse_sequence(target, draft, verifier, length, tokens)
    assert g_test(run.tokens, np.asarray(exact.law)) > PASS_LEVEL
    emitted = np.where(run.accepted >= 0, run.accepted + 1, 0).sum(axis=1)
    assert set(np.unique(emitted - tokens)) <= {0, 1}
    assert run.accepted.max() <= length
    assert np.array_equal(run.calls, (run.accepted >= 0).sum(axis=1))


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", VERIFIERS)
def test_one_round_has_the_exact_law_and_survival(name, source):
    target, draft = pair("tree", 4)
    verifier = VERIFIERS[name](3)
    run = simulate.decode_round(target, draft, verifier, 3, 20_000, SOURCES[source](8))
    exact = theory.analyse_round(target, draft, verifier, 3)
    assert g_test(run.tokens, np.asarray(exact.law)) > PASS_LEVEL
    survival = np.concatenate([[1.0], exact.survival, [0.0]])
    assert g_test(run.accepted[:, None], survival[:-1] - survival[1:]) > PASS_LEVEL


@pytest.mark.parametrize("source", SOURCES)
def test_a_round_after_a_prefix(source):
    target, draft = pair("markov", 4)
    verifier = theory.Verifier(theory.Relaxed(1.5))
    run = simulate.decode_round(target, draft, verifier, 2, 20_000, SOURCES[source](9), prefix=[0, 2])
    after = [theory.MarkovChain(chain.transition[2], chain.transition) for chain in (target, draft)]
    assert g_test(run.tokens, np.asarray(theory.analyse_round(*after, verifier, 2).law)) > PASS_LEVEL
    rows = simulate.decode_round(target, draft, verifier, 2, 3, rng(9), prefix=[[0, 2], [1, 1], [2, 0]])
    assert rows.tokens.shape == (3, 3)


def test_samples_of_a_chain_follow_its_law():
    target, draft = pair("grid", 4)
    own = simulate.sample(target, 4, 20_000, rng(10))
    law = np.asarray(theory.analyse_sequence(target, draft, theory.Verifier(theory.Lossless()), 2, 4).target_law)
    assert g_test(own, law) > PASS_LEVEL


class Stream:
    """A stream with a fault: uniforms changed by a function."""

    def __init__(self, seed, change):
        self.rng, self.change = np.random.default_rng(seed), change

    def random(self, shape):
        return self.change(self.rng.random(shape))


def faulty(change):
    return simulate.Streams(rng(1), Stream(2, change), rng(3), rng(4))


def lossless_law(p, tokens):
    law = np.asarray(p)
    for _ in range(tokens - 1):
        law = np.multiply.outer(law, p)
    return law


@pytest.mark.parametrize("source", SOURCES)
def test_control_residual_replaced_by_the_target(source):
    p, q = theory.IIDChain(P0), theory.IIDChain(Q0)
    for residual, level in ((theory.optimal_residual, PASS_LEVEL), (theory.target_residual, None)):
        run = simulate.decode(p, q, theory.Verifier(theory.Lossless(), residual), 1, 1, 2000, SOURCES[source](0))
        value = g_test(run.tokens, np.asarray(P0))
        assert value > level if level else value < FAULT_LEVEL


@pytest.mark.parametrize(
    ("name", "change", "fault"),
    [
        ("none", lambda u: u, False),
        ("acceptance uniform stuck at 0", np.zeros_like, True),
        ("acceptance uniform stuck at 1/2", lambda u: np.full_like(u, 0.5), True),
    ],
)
def test_control_stuck_uniforms(name, change, fault):
    p, q = theory.IIDChain(P0), theory.IIDChain(Q0)
    run = simulate.decode(p, q, theory.Verifier(theory.Lossless()), 2, 2, 2000, faulty(change))
    value = g_test(run.tokens, lossless_law(P0, 2))
    assert value < FAULT_LEVEL if fault else value > PASS_LEVEL


@pytest.mark.parametrize("shared", [False, True])
def test_control_one_uniform_shared_by_all_positions(shared):
    p, q = theory.IIDChain([0.5, 0.5]), theory.IIDChain([0.75, 0.25])
    streams = faulty(lambda u: np.broadcast_to(u[:, :1], u.shape) if shared else u)
    run = simulate.decode(p, q, theory.Verifier(theory.Lossless()), 2, 2, 4000, streams)
    value = g_test(run.tokens, lossless_law([0.5, 0.5], 2))
    assert value < FAULT_LEVEL if shared else value > PASS_LEVEL


@pytest.mark.parametrize("inclusive", [False, True])
def test_control_inclusive_comparison(inclusive):
    # Uniforms on a grid of quarters and f in quarters: u < f is exact, u <= f accepts a quarter too often.
    p, q = theory.IIDChain([0.75, 0.25]), theory.IIDChain([0.5, 0.5])

    def quarters(u):
        u = np.floor(4 * u) / 4
        return np.maximum(np.nextafter(u, -1), 0.0) if inclusive else u

    run = simulate.decode(p, q, theory.Verifier(theory.Lossless()), 1, 1, 4000, faulty(quarters))
    value = g_test(run.tokens, np.asarray([0.75, 0.25]))
    assert value < FAULT_LEVEL if inclusive else value > PASS_LEVEL


def test_control_residual_noise_equal_to_draft_noise():
    p, q = theory.IIDChain([0.45, 0.45, 0.1]), theory.IIDChain([0.3, 0.1, 0.6])
    for residual_seed, fault in ((3, False), (1, True)):
        # The draft stream draws (B, 1), the residual stream (B,): the same numbers from the same seed.
        streams = simulate.Streams(rng(1), rng(2), rng(residual_seed), rng(4))
        run = simulate.decode(p, q, theory.Verifier(theory.Lossless()), 1, 1, 8000, streams)
        value = g_test(run.tokens, np.asarray([0.45, 0.45, 0.1]))
        assert value < FAULT_LEVEL if fault else value > PASS_LEVEL


def test_a_null_token_is_rejected_at_u_equal_to_zero():
    p, q = theory.IIDChain([1.0, 0.0]), theory.IIDChain([0.5, 0.5])
    run = simulate.decode(p, q, theory.Verifier(theory.Lossless()), 3, 6, 200, faulty(np.zeros_like))
    assert not run.tokens.any()


@pytest.mark.parametrize("source", SOURCES)
def test_counting(source):
    p = theory.IIDChain(P0)
    run = simulate.decode(p, p, theory.Verifier(theory.Lossless()), 3, 10, 500, SOURCES[source](0))
    assert run.accepted.tolist() == [[3, 3, 2]] * 500
    assert run.calls.tolist() == [3] * 500
    flags = [0.0, 0.999, 0.0]
    streams = simulate.Streams(Constant([0.9] * 3), Constant(flags), Constant(0.0), Constant(0.0))
    run = simulate.decode(
        theory.IIDChain(P0), theory.IIDChain(Q0), theory.Verifier(theory.Lossless()), 3, 2, 1, streams
    )
    assert run.accepted.tolist() == [[1]]


class Constant:
    def __init__(self, value):
        self.value = value

    def random(self, shape):
        return np.broadcast_to(np.asarray(self.value, dtype=float), shape)


@pytest.mark.parametrize("source", SOURCES)
def test_seeds(source):
    target, draft = pair("markov", 4)
    verifier = theory.cool_sd(3, 1.2)

    def run(seed):
        return simulate.decode(target, draft, verifier, 3, 12, 50, SOURCES[source](seed))

    first = run(0)
    np.random.seed(1)  # noqa: NPY002
    np.random.random(5)  # noqa: NPY002
    again = run(0)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first.tokens, run(1).tokens)
    assert np.array_equal(simulate.sample(target, 5, 9, rng(3)), simulate.sample(target, 5, 9, rng(3)))


class Permuted:
    """The uniforms of a stream with its rows permuted."""

    def __init__(self, seed, order):
        self.rng, self.order = np.random.default_rng(seed), order

    def random(self, shape):
        return self.rng.random(shape)[self.order]


def test_permuted_rows_give_permuted_results():
    target, draft = pair("tree", 4)
    order = rng(1).permutation(300)
    verifier = theory.Verifier(theory.Relaxed(1.3))
    runs = []
    for o in (np.arange(300), order):
        streams = simulate.Streams(*(Permuted(i, o) for i in range(4)))
        runs.append(simulate.decode(target, draft, verifier, 2, 4, 300, streams))
    for straight, permuted in zip(*runs, strict=True):
        assert np.array_equal(straight[order], permuted)


@pytest.mark.parametrize("source", SOURCES)
def test_torch_and_read_only_chains(source):
    target, draft = pair("tree", 4)
    as_torch = [theory.TabularChain([torch.asarray(level) for level in chain.levels]) for chain in (target, draft)]
    for chain in (target, draft):
        for level in chain.levels:
            level.flags.writeable = False
    verifier = theory.cool_sd(2, 1.2)
    runs = [simulate.decode(*chains, verifier, 2, 4, 500, SOURCES[source](0)) for chains in ((target, draft), as_torch)]
    assert np.array_equal(runs[0].tokens, runs[1].tokens)


def test_empty_batches():
    target, draft = pair("iid", 4)
    run = simulate.decode(target, draft, theory.cool_sd(2, 1.2), 2, 4, 0, rng())
    assert (run.tokens.shape, run.accepted.shape, run.calls.shape) == ((0, 4), (0, 0), (0,))
    assert simulate.decode_round(target, draft, theory.cool_sd(2, 1.2), 2, 0, rng()).tokens.shape == (0, 3)
    assert simulate.sample(target, 0, 3, rng()).shape == (3, 0)


def test_a_bar_can_be_shown(capsys):
    target, draft = pair("iid", 4)
    simulate.decode(target, draft, theory.cool_sd(2, 1.2), 2, 4, 10, rng(), progress=True)
    assert "40/40" in capsys.readouterr().err


def test_few_rows_at_a_time_change_nothing(monkeypatch):
    target, draft = pair("tree", 4)
    runs = []
    for entries in (2**22, 100):
        monkeypatch.setattr(simulate.mechanism, "LAWS_AT_ONCE", entries)
        for verifier in (theory.cool_sd(2, 1.2), theory.block(2)):
            runs.append(simulate.decode(target, draft, verifier, 2, 4, 500, simulate.streams(rng(1))))
    for one, other in zip(runs[:2], runs[2:], strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_bad_input_is_named():
    target, draft = pair("tree", 4)
    verifier = theory.cool_sd(2, 1.2)
    with pytest.raises(ValueError, match="length must be a whole number >= 1, got 0"):
        simulate.decode(target, draft, verifier, 0, 4, 1, rng())
    with pytest.raises(ValueError, match="tokens must be a whole number >= 1, got 0"):
        simulate.decode(target, draft, verifier, 2, 0, 1, rng())
    with pytest.raises(ValueError, match="batch must be a whole number >= 0, got -1"):
        simulate.decode(target, draft, verifier, 2, 4, -1, rng())
    with pytest.raises(ValueError, match="target has 4 levels but decoding 5 tokens needs 5"):
        simulate.decode(target, draft, verifier, 2, 5, 1, rng())
    with pytest.raises(ValueError, match="vocabulary mismatch: the target has 3 tokens, the draft 2"):
        simulate.decode(target, theory.IIDChain([0.5, 0.5]), verifier, 2, 4, 1, rng())
    with pytest.raises(ValueError, match="position 2 is outside the schedule of 2 entries"):
        simulate.decode(target, draft, verifier, 3, 4, 50, rng())
    with pytest.raises(TypeError, match="numpy Generator"):
        simulate.decode(target, draft, verifier, 2, 4, 1, 0)
    with pytest.raises(ValueError, match=r"prefix must have shape \(d,\) or \(2, d\)"):
        simulate.decode_round(target, draft, verifier, 2, 2, rng(), prefix=[[0], [1], [2]])
    with pytest.raises(ValueError, match="tokens lie in 0…2"):
        simulate.decode_round(target, draft, verifier, 2, 1, rng(), prefix=[7])
