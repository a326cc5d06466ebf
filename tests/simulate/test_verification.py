"""Verification of given blocks against exact laws, with controls, and its short cuts against the plain formulas."""

import numpy as np
import pytest

import simulate
import theory
from simulate.testing import Rounds
from tests.simulate.test_decoding import FAULT_LEVEL, NEIGHBOURS, PASS_LEVEL, VERIFIERS, g_test, pair, rng
from theory.verifiers import is_pointwise

MORE = {
    **VERIFIERS,
    "floored": lambda length: theory.cool_sd(length, 1.4, floor=1.0),
    "ensemble": lambda length: theory.Verifier(theory.Ensemble(0.3)),
    "repaired": lambda length: theory.Verifier(theory.AtLeastLossless(theory.Relaxed(0.6)), theory.vanilla_residual),
    "accept all": lambda length: theory.Verifier(theory.AcceptAll()),
    "kl": lambda length: theory.Verifier(theory.Relaxed(1.5), theory.kl_residual),
    "published lantern": lambda length: theory.Verifier(
        theory.Lantern(NEIGHBOURS, 2, 0.3), theory.LanternResidual(NEIGHBOURS, 2, delta=0.3)
    ),
}


def drafted(target, draft, length, count, seed):
    """Blocks drawn from the draft and the laws along them."""
    rounds = Rounds.along(target, draft, simulate.sample(draft, length, count, rng(seed)))
    return rounds.draft_ids, rounds.target_probs, rounds.draft_probs


def completed(target, run, seed):
    """Tokens (B, L+1), continued with the target where the round is shorter."""
    tokens, ends, u = run.tokens.copy(), run.accepted + 1, rng(seed)
    for i in range(1, tokens.shape[1]):
        (rows,) = np.nonzero(ends <= i)
        tokens[rows, i] = simulate.categorical(target.conditional(tokens[rows, :i]), u.random(len(rows)))
    return tokens


@pytest.mark.parametrize("name", MORE)
def test_given_blocks_are_verified_with_the_exact_law(name):
    target, draft = pair("tree", 3)
    verifier = MORE[name](2)
    ids, p, q = drafted(target, draft, 2, 30_000, 1)
    run = simulate.verify(ids, p, q, verifier, rng(2))
    exact = theory.analyse_round(target, draft, verifier, 2)
    assert g_test(completed(target, run, 3), np.asarray(exact.law)) > PASS_LEVEL
    survival = np.concatenate([[1.0], exact.survival, [0.0]])
    assert g_test(run.accepted[:, None], survival[:-1] - survival[1:]) > PASS_LEVEL
    behind = np.arange(3) > run.accepted[:, None]
    assert (run.tokens[behind] == -1).all()
    kept = np.arange(2) < run.accepted[:, None]
    assert np.array_equal(run.tokens[:, :2][kept], ids[kept])


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("none", False),
        ("draft drawn from another law than declared", True),
        ("residual from the target", True),
        ("relaxed block called lossless", True),
    ],
)
def test_controls(name, fault):
    target, draft = pair("iid", 3)
    ids, p, q = drafted(target, draft, 2, 100_000, 1)
    verifier = theory.Verifier(theory.Lossless())
    if name.startswith("draft"):
        ids = np.where(ids == 0, 1, ids)
    if name.startswith("residual"):
        verifier = theory.Verifier(theory.Lossless(), theory.target_residual)
    if name.startswith("relaxed"):
        verifier = theory.capped_block([1.5, 1.5])
    run = simulate.verify(ids, p, q, verifier, rng(2))
    law = np.asarray(theory.analyse_round(target, draft, theory.Verifier(theory.Lossless()), 2).law)
    value = g_test(completed(target, run, 3), law)
    assert value < FAULT_LEVEL if fault else value > PASS_LEVEL


def test_which_rules_are_pointwise():
    generator = rng()
    for name, make in MORE.items():
        verifier = make(1)
        if verifier.stateful or not isinstance(verifier, theory.Verifier):
            continue
        p, q = generator.dirichlet(np.ones(3)), generator.dirichlet(np.ones(3))
        whole = verifier.acceptance(p, q, 0)
        if is_pointwise(verifier):
            alone = [float(verifier.acceptance(p[[x]], q[[x]], 0)[0]) for x in range(3)]
            assert alone == whole.tolist(), name
    assert not is_pointwise(VERIFIERS["csd"](1))
    assert not is_pointwise(VERIFIERS["lantern"](1))
    assert is_pointwise(MORE["repaired"](1))


def test_strict_comparison_and_the_first_rejection():
    p, q = np.tile([0.5, 0.5], (1, 4, 1)), np.tile([0.25, 0.75], (1, 3, 1))
    verifier = theory.Verifier(theory.Relaxed(0.75))  # f(1) = 1/2 exactly

    class Fixed:
        def __init__(self, values):
            self.values = values

        def random(self, shape):
            return np.broadcast_to(np.asarray(self.values), shape)

    for uniforms, accepted in (([0.5, 0.0, 0.0], 0), ([np.nextafter(0.5, 0), 0.5, 0.0], 1), ([0.0, 0.0, 0.0], 3)):
        draws = simulate.Streams(None, Fixed(uniforms), Fixed(0.0), Fixed(0.0))
        assert simulate.verify([[1, 1, 1]], p, q, verifier, draws).accepted.tolist() == [accepted]


def test_a_sampler_of_the_test_kit():
    target, draft = pair("tree", 3)
    rounds = Rounds(*drafted(target, draft, 2, 50, 1))
    verifier = theory.cool_sd(2, 1.2)
    emitted = simulate.sampler(verifier)(rounds, rng(7))
    again = simulate.verify(rounds.draft_ids, rounds.target_probs, rounds.draft_probs, verifier, rng(7))
    assert np.array_equal(emitted.tokens, again.tokens)


def test_narrow_and_read_only_laws_and_empty_batches():
    target, draft = pair("tree", 3)
    ids, p, q = drafted(target, draft, 2, 500, 1)
    for law in (p, q):
        law.flags.writeable = False
    verifier = theory.Verifier(theory.Lossless())
    wide = simulate.verify(ids, p, q, verifier, rng())
    narrow = simulate.verify(ids, p.astype(np.float32), q.astype(np.float32), verifier, rng())
    assert (wide.tokens == narrow.tokens).mean() > 0.99
    assert simulate.verify(ids[:0], p[:0], q[:0], verifier, rng()).tokens.shape == (0, 3)
    none = simulate.verify(np.zeros((5, 0), int), p[:5, :1], q[:5, :0], verifier, rng())
    assert (none.tokens.shape, none.accepted.tolist()) == ((5, 1), [0] * 5)


def test_bad_input_is_named():
    p, q = np.full((1, 3, 2), 0.5), np.full((1, 2, 2), 0.5)
    verifier = theory.Verifier(theory.Lossless())
    with pytest.raises(ValueError, match=r"draft_ids must be integers of shape \(B, L\)"):
        simulate.verify([[0.5, 1.0]], p, q, verifier, rng())
    with pytest.raises(ValueError, match=r"must have shapes \(1, 3, V\) and \(1, 2, V\)"):
        simulate.verify([[0, 1]], p[:, :2], q, verifier, rng())
    with pytest.raises(ValueError, match="vocabulary mismatch"):
        simulate.verify([[0, 1]], np.full((1, 3, 3), 1 / 3), q, verifier, rng())
    with pytest.raises(ValueError, match="round 0 has 2 at place 1"):
        simulate.verify([[0, 2]], p, q, verifier, rng())
    with pytest.raises(ValueError, match="target_probs: round 0 has nan at drafted token 1"):
        simulate.verify([[0, 1]], np.where(np.arange(3)[:, None] == 1, np.nan, p), q, verifier, rng())


def test_a_schedule_shorter_than_the_block():
    with pytest.raises(ValueError, match="position 1 is outside the schedule of 1 entries"):
        simulate.verify([[0, 0]], np.full((1, 3, 2), 0.5), np.full((1, 2, 2), 0.5), theory.block(1), rng())
