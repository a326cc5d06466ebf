"""Tree decoding against the exact law of `theory.analyse_tree`, with controls."""

import numpy as np
import pytest

import simulate
import theory
from simulate import tree_decoding
from simulate.tree_decoding import decode_tree, decode_tree_round
from tests.simulate.test_decoding import FAULT_LEVEL, NEIGHBOURS, PASS_LEVEL, VERIFIERS, g_test, pair, rng

SAMPLINGS = ["with_replacement", "without_replacement", "top_k"]
TREES = {
    "two": [[], []],
    "chain": [[[]]],
    "ragged": [[[], [], []], [], [[]]],
    "deep": [[[[]], []], [[]]],
    "more siblings than tokens": [[], [], [], [], []],
}
TOKEN_WISE = sorted(name for name in VERIFIERS if not VERIFIERS[name](2).stateful)


def assert_exact(run, exact):
    assert g_test(run.tokens, np.asarray(exact.law)) > PASS_LEVEL
    survival = np.concatenate([[1.0], exact.survival, [0.0]])
    assert g_test(run.accepted[:, None], np.maximum(survival[:-1] - survival[1:], 0)) > PASS_LEVEL


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("name", ["lossless", "annealed", "bang-bang"])
def test_one_tree_has_the_exact_law(name, tree, sampling):
    target, draft = pair("tree", 4)
    verifier = VERIFIERS[name](3)
    run = decode_tree_round(target, draft, verifier, TREES[tree], 20_000, rng(1), sampling)
    assert_exact(run, theory.analyse_tree(target, draft, verifier, TREES[tree], sampling))


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("name", TOKEN_WISE)
def test_every_token_wise_verifier(name, sampling):
    target, draft = pair("markov", 3)
    verifier = VERIFIERS[name](2)
    run = decode_tree_round(target, draft, verifier, TREES["ragged"], 20_000, rng(2), sampling)
    assert_exact(run, theory.analyse_tree(target, draft, verifier, TREES["ragged"], sampling))


BRANCHES = ["dynamic", "llamagen_static", "lumina_static", "lumina_dynamic"]
"""Of LANTERN: its residuals depend on the rejected token x, and the next sibling meets G_x, not their mixture."""


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("branch", BRANCHES)
def test_the_next_sibling_meets_the_residual_of_the_rejected_token(branch, sampling):
    target, draft = pair("tree", 3)
    verifier = theory.lantern_verifier(NEIGHBOURS, 1, delta=0.3, branch=branch)
    run = decode_tree_round(target, draft, verifier, TREES["ragged"], 20_000, rng(7), sampling)
    assert_exact(run, theory.analyse_tree(target, draft, verifier, TREES["ragged"], sampling))


@pytest.mark.parametrize("fault", [False, True])
@pytest.mark.parametrize("branch", BRANCHES)
def test_control_the_next_sibling_meets_the_mixture_of_residuals(branch, fault, monkeypatch):
    p, q = theory.IIDChain([0.08, 0.49, 0.34, 0.08, 0.01]), theory.IIDChain([0.09, 0.04, 0.32, 0.29, 0.26])
    near = theory.nearest_neighbours([[0.0], [1.0], [3.0], [3.5], [7.0]], 4)
    verifier = theory.lantern_verifier(near, 1, delta=0.2, branch=branch)
    if fault:
        monkeypatch.setattr(tree_decoding, "residual_after", lambda verifier, p, q, f, *_: verifier.residual(p, q, f))
    run = decode_tree_round(p, q, verifier, [[], [], []], 50_000, rng(8), "with_replacement")
    value = g_test(run.tokens, np.asarray(theory.analyse_tree(p, q, verifier, [[], [], []], "with_replacement").law))
    assert value < FAULT_LEVEL if fault else value > PASS_LEVEL


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("tokens", [1, 2, 4])
def test_many_lossless_trees_keep_the_law_of_the_target(tokens, sampling):
    target, draft = pair("grid", 4)
    lossless = theory.Verifier(theory.Lossless())
    run = decode_tree(target, draft, lossless, TREES["ragged"], tokens, 20_000, rng(3), sampling)
    law = np.asarray(theory.analyse_sequence(target, draft, lossless, 1, tokens).target_law)
    assert g_test(run.tokens, law) > PASS_LEVEL
    emitted = np.where(run.accepted >= 0, run.accepted + 1, 0).sum(axis=1)
    assert set(np.unique(emitted - tokens)) <= {0, 1}
    assert np.array_equal(run.calls, (run.accepted >= 0).sum(axis=1))


@pytest.mark.parametrize("tokens", [2, 4])
def test_a_chain_of_single_children_is_plain_decoding(tokens):
    target, draft = pair("tree", 4)
    verifier = theory.cool_sd(2, 1.4, floor=1.0)
    run = decode_tree(target, draft, verifier, [[[]]], tokens, 20_000, rng(4))
    exact = theory.analyse_sequence(target, draft, verifier, 2, tokens)
    assert g_test(run.tokens, np.asarray(exact.law)) > PASS_LEVEL
    assert abs(run.calls.mean() - exact.expected_calls) <= 5 * run.calls.std() / np.sqrt(len(run.calls)) + 1e-12


@pytest.mark.parametrize("declared", ["without_replacement", "with_replacement"])
def test_control_siblings_without_replacement_and_the_residual_with(declared, monkeypatch):
    p, q = theory.IIDChain([1 / 6, 1 / 3, 1 / 2]), theory.IIDChain([2 / 3, 1 / 6, 1 / 6])
    verifier = theory.Verifier(theory.Lossless())
    seen = []

    def draw(laws, uniforms):
        """The second sibling is never the first one again, whatever law is declared."""
        laws = np.array(laws)
        if len(seen) == 1:
            rows = np.arange(len(laws))
            refused = np.full(len(laws), 0)  # only token 0 has q > p
            laws[rows, refused] = 0.0
        seen.append(len(laws))
        return simulate.categorical(laws, uniforms)

    monkeypatch.setattr(tree_decoding, "categorical", draw)
    run = decode_tree_round(p, q, verifier, [[], []], 20_000, rng(5), declared)
    value = g_test(run.tokens[:, :1], np.asarray(p.p))
    assert value > PASS_LEVEL if declared == "without_replacement" else value < FAULT_LEVEL
    if declared == "with_replacement":
        assert g_test(run.tokens[:, :1], np.asarray([1 / 6, 5 / 12, 5 / 12])) > PASS_LEVEL


@pytest.mark.parametrize("fault", [False, True])
def test_control_the_last_residual_replaced_by_the_target(fault):
    target, draft = pair("tree", 3)
    residual = theory.target_residual if fault else theory.optimal_residual
    run = decode_tree_round(
        target, draft, theory.Verifier(theory.Lossless(), residual), TREES["ragged"], 40_000, rng(6)
    )
    law = theory.analyse_tree(target, draft, theory.Verifier(theory.Lossless()), TREES["ragged"]).law
    value = g_test(run.tokens, np.asarray(law))
    assert value < FAULT_LEVEL if fault else value > PASS_LEVEL


def test_rows_taken_in_turns_and_seeds(monkeypatch):
    target, draft = pair("tree", 4)
    verifier = VERIFIERS["annealed"](3)
    one, again, other = (decode_tree_round(target, draft, verifier, TREES["deep"], 50, rng(s)) for s in (0, 0, 1))
    assert all(np.array_equal(a, b) for a, b in zip(one, again, strict=True))
    assert not np.array_equal(one.tokens, other.tokens)
    monkeypatch.setattr(tree_decoding, "LAWS_AT_ONCE", 1000)
    run = decode_tree_round(target, draft, verifier, TREES["deep"], 20_000, rng(1))
    assert_exact(run, theory.analyse_tree(target, draft, verifier, TREES["deep"]))
    assert decode_tree_round(target, draft, verifier, TREES["deep"], 0, rng()).tokens.shape == (0, 4)
    assert decode_tree(target, draft, verifier, TREES["deep"], 4, 0, rng()).accepted.shape == (0, 0)


def test_bad_input_is_named():
    target, draft = pair("tree", 4)
    verifier = theory.Verifier(theory.Lossless())
    with pytest.raises(ValueError, match="the tree has no candidates"):
        decode_tree_round(target, draft, verifier, [], 1, rng())
    with pytest.raises(ValueError, match="sampling must be one of"):
        decode_tree_round(target, draft, verifier, [[]], 1, rng(), "other")
    with pytest.raises(TypeError, match="token-wise verifier"):
        decode_tree_round(target, draft, theory.block(1), [[]], 1, rng())
    with pytest.raises(ValueError, match="target has 4 levels but a tree of depth 4 and one more token needs 5"):
        decode_tree_round(target, draft, verifier, [[[[[]]]]], 1, rng())
    with pytest.raises(ValueError, match="target has 4 levels but decoding 5 tokens needs 5"):
        decode_tree(target, draft, verifier, [[]], 5, 1, rng())
    with pytest.raises(ValueError, match="tokens must be a whole number >= 1, got 0"):
        decode_tree(target, draft, verifier, [[]], 0, 1, rng())
    with pytest.raises(ValueError, match="batch must be a whole number >= 0, got -1"):
        decode_tree_round(target, draft, verifier, [[]], -1, rng())
