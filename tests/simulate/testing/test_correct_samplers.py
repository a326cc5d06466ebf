"""Two hundred correct samplers drawn at random raise no alarm.

Each is checked at a false-alarm level of 1e-9, so that one of two hundred correct ones fails with probability at most
2e-7 (union bound), over the choice of seeds; the seeds below are fixed.
"""

import numpy as np
import pytest
import torch

import simulate
import theory
from simulate.testing import Emitted, Pair, check_law, reference_decoder, reference_sampler
from simulate.testing.adapters import torch_sampler, transformers_sampler

LOSSLESS = theory.Verifier(theory.Lossless())
IMPLEMENTATIONS = ("reference", "decode_round", "row by row", "transformers", "torch")


def row_by_row(verifier):
    """Token-wise or block verification of one round at a time, in plain Python."""

    def one(drafts, p, q, rng):
        weights, tests, weight = [1.0], [], None
        for i, x in enumerate(drafts):
            step = verifier.step(p[i], q[i], i, weight)
            if verifier.stateful:
                left = weights[-1] * float(step.rejection)
                tests.append(1.0 if left + 1 - weights[-1] <= 0 else left / (left + 1 - weights[-1]))
                weight = np.asarray(step.weight[x])
                weights.append(float(weight))
            elif rng.random() >= theory.acceptance_of(verifier, p[i], q[i], i)[x]:
                return [*drafts[:i], rng.choice(len(p[i]), p=step.residual / step.residual.sum())]
        last = len(drafts)
        if verifier.stateful:
            tests.append(weights[-1])
            last = max(i for i, h in enumerate(tests) if i == 0 or rng.random() < h)
        law = p[last]
        if last < len(drafts):
            law = verifier.step(p[last], q[last], last, np.asarray(weights[last])).residual
        return [*drafts[:last], rng.choice(len(law), p=law / law.sum())]

    def sampler(rounds, rng):
        rows = [
            one(rounds.draft_ids[b].tolist(), rounds.target_probs[b], rounds.draft_probs[b], rng)
            for b in range(rounds.count)
        ]
        return Emitted(rows, [len(row) - 1 for row in rows])

    return sampler


def rejection_in_torch(ids, draft, target, generator):
    """The textbook sampler, batched, in float32."""
    p, q = target[:, :-1], draft
    at = ids[:, :, None]
    u = torch.rand(ids.shape, generator=generator)
    accepted = (u * q.gather(2, at)[..., 0] < p.gather(2, at)[..., 0]).long().cumprod(1).sum(1)
    padded = torch.cat([q, torch.zeros_like(q[:, :1])], 1)
    rows = torch.arange(len(ids))
    law = target[rows, accepted]
    rest = (law - padded[rows, accepted]).clamp(min=0)
    law = torch.where(rest.sum(1, keepdim=True) > 0, rest, law)
    tokens = torch.cat([ids, torch.full((len(ids), 1), -1)], 1)
    tokens[rows, accepted] = torch.multinomial(law, 1, generator=generator)[:, 0]
    return tokens, accepted


def random_pair(rng):
    size, length = int(rng.integers(2, 5)), int(rng.integers(1, 4))
    if size == 4:
        length = min(length, 2)
    kind = rng.integers(4)
    if kind == 0:
        p, q = (rng.multinomial(6, np.full(size, 1 / size)) / 6 for _ in range(2))
        return Pair("counts", theory.IIDChain(p), theory.IIDChain(q), length)
    if kind == 1:
        chains = (simulate.random_markov(size, rng, concentration=0.5) for _ in range(2))
        return Pair("markov", *chains, length)
    target = simulate.dirichlet_tree(size, length + 1, rng)
    draft = target if kind == 2 else simulate.make_draft(target, 0.2, rng, leak=0.1)
    return Pair("tree", target, draft, length)


def random_verifier(rng, length, size):
    near = theory.nearest_neighbours(rng.standard_normal((size, 1)), size - 1)
    residuals = [theory.optimal_residual, theory.vanilla_residual, theory.kl_residual, theory.target_residual]
    residual = residuals[rng.integers(4)]
    omega = rng.uniform(0.5, 3, length)
    choices = [
        LOSSLESS,
        theory.Verifier(theory.Relaxed(omega), residual),
        theory.cool_sd(length, rng.uniform(1, 2)),
        theory.cool_sd(length, rng.uniform(1, 2), floor=1.0),
        theory.block(length),
        theory.capped_block(omega),
        theory.lifted_block(theory.cool_sd(length, 1.4)),
        theory.lantern_verifier(near, size - 1, delta=rng.uniform(0.1, 0.5)),
        theory.lantern_verifier(near, size - 1, lam=rng.uniform(1, 5), branch="dynamic"),
        theory.Verifier(theory.Cactus(0.5), theory.CactusResidual(0.5)),
        theory.Verifier(theory.Ensemble(rng.uniform()), residual),
        theory.Verifier(theory.EntropyRelaxed(), residual),
        theory.Verifier(theory.Typical(), theory.target_residual),
        theory.Verifier(theory.DivergenceThreshold(rng.uniform()), theory.target_residual),
        theory.Verifier(theory.AcceptAll()),
    ]
    return choices[rng.integers(len(choices))]


def build(seed):
    """(sampler, pair, declared verifier, most rounds)."""
    rng = np.random.default_rng(seed)
    pair, name = random_pair(rng), IMPLEMENTATIONS[seed % len(IMPLEMENTATIONS)]
    if name in ("transformers", "torch"):
        verifier = LOSSLESS
    else:
        verifier = random_verifier(rng, pair.length, pair.target.vocab_size)
    sampler = {
        "reference": lambda: reference_sampler(verifier),
        "decode_round": lambda: reference_decoder(verifier),
        "row by row": lambda: row_by_row(verifier),
        "transformers": transformers_sampler,
        "torch": lambda: torch_sampler(rejection_in_torch),
    }[name]()
    return sampler, pair, verifier, 256 if name in ("transformers", "row by row") else 1024


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_no_correct_sampler_raises_an_alarm(first):
    for seed in range(first, first + 20):
        sampler, pair, verifier, most = build(seed)
        report = check_law(
            sampler,
            verifier=verifier,
            pairs=[pair],
            max_rounds=most,
            rng=np.random.default_rng(seed),
            seeds=seed % 4 == 0,
        )
        assert report.passed, f"seed {seed}: {report}"
        assert report.rounds >= 256


def test_the_same_samplers_of_another_verifier_do_raise_alarms():
    """The control: the declared verifier is exchanged for one of another law."""
    wrong = theory.Verifier(theory.Ensemble(0.6), theory.target_residual)
    alarms = 0
    for seed in range(25):
        sampler, pair, _, most = build(seed)
        alarms += not check_law(sampler, verifier=wrong, pairs=[pair], max_rounds=most, seeds=False).passed
    assert alarms >= 15
