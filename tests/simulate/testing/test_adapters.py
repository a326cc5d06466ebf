"""Adapters: correct samplers of other frameworks pass, broken ones fail, and what goes wrong outside is told."""

import importlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import theory
from simulate.testing import Pair, Rounds, adversarial_pairs, assert_law, check_law, check_seeds
from simulate.testing.adapters import JsonLinesSampler, torch_sampler, transformers_sampler
from simulate.testing.adapters.extras import needed

P0, Q0 = theory.IIDChain([0.5, 0.3, 0.2]), theory.IIDChain([0.2, 0.3, 0.5])
LOSSLESS = theory.Verifier(theory.Lossless())
ECHO = [sys.executable, str(Path(__file__).with_name("echo_sampler.py"))]
HARD = [
    Pair("zeros", theory.IIDChain([0.0, 0.3, 0.7]), theory.IIDChain([0.5, 0.0, 0.5]), 2),
    Pair("equal", theory.IIDChain([0.1, 0.9]), theory.IIDChain([0.1, 0.9]), 1),
]


def in_torch(residual):
    def function(ids, draft, target, generator):
        at = ids[:, :, None]
        p, q = target[:, :-1].gather(2, at)[..., 0], draft.gather(2, at)[..., 0]
        accepted = (torch.rand(ids.shape, generator=generator) * q < p).long().cumprod(1).sum(1)
        rows = torch.arange(len(ids))
        law = target[rows, accepted]
        padded = torch.cat([draft, torch.zeros_like(draft[:, :1])], 1)[rows, accepted]
        rest = residual(law, padded)
        law = torch.where(rest.sum(1, keepdim=True) > 0, rest, law)
        tokens = torch.cat([ids, torch.full((len(ids), 1), -1)], 1)
        tokens[rows, accepted] = torch.multinomial(law, 1, generator=generator)[:, 0]
        return tokens, accepted

    return function


def lossless(p, q):
    return (p - q).clamp(min=0)


def resample_p(p, q):
    return p


class TestTorch:
    def test_a_correct_sampler_passes(self):
        assert_law(torch_sampler(in_torch(lossless)), pairs=[*HARD, Pair("P0, Q0", P0, Q0, 1)], smallest_tv=0.05)
        assert_law(torch_sampler(in_torch(lossless), dtype=torch.float64), P0, Q0, LOSSLESS, 1, smallest_tv=0.1)

    def test_logits(self):
        function = in_torch(lossless)

        def of_logits(ids, draft, target, generator):
            return function(ids, draft.softmax(-1), target.softmax(-1), generator)

        assert_law(torch_sampler(of_logits, logits=True), pairs=HARD, smallest_tv=0.1)

    def test_a_broken_sampler_fails(self):
        report = check_law(torch_sampler(in_torch(resample_p)), P0, Q0, LOSSLESS, 1, max_rounds=2000)
        assert not report.passed


class TestTransformers:
    def test_its_function_passes_as_it_ships(self):
        report = assert_law(transformers_sampler(), pairs=[*HARD, Pair("P0, Q0", P0, Q0, 1)], max_rounds=1024)
        assert report.smallest_tv < 0.3

    def test_the_global_generator_of_torch_is_left_alone(self):
        before = torch.get_rng_state()
        check_seeds(transformers_sampler())
        assert torch.equal(before, torch.get_rng_state())

    def test_a_broken_copy_fails(self):
        def resampling(ids, draft, length, target):
            p, q = target.softmax(-1)[0], draft.softmax(-1)[0]
            kept = 0
            while kept < length and torch.rand(()) < p[kept, ids[0, kept]] / q[kept, ids[0, kept]]:
                kept += 1
            return torch.cat([ids[:, :kept], torch.multinomial(p[kept], 1)[None]], 1), torch.tensor(kept)

        assert not check_law(transformers_sampler(resampling), P0, Q0, LOSSLESS, 1, max_rounds=2000).passed

    def test_its_residual_may_be_empty(self):
        """A finding: p − q vanishes in float32 although the draft was rejected, and 0/0 reaches torch.multinomial."""
        forced = [pair for pair in adversarial_pairs() if pair.name == "nearly certain, forced"]
        failure = check_law(transformers_sampler(), pairs=forced, smallest_tv=0.1).failure
        assert "RuntimeError" in failure.error
        assert "drafts [0] with target_probs [[1e-09" in failure.error

    @pytest.mark.parametrize(
        ("u", "drafts", "draft", "target", "emitted"),
        [
            (0.0, [[1]], [[[0.5, 0.5]]], [[[1.0, 0.0], [1.0, 0.0]]], [[1, 0]]),
            (0.5, [[-1]], [[[0.1, 0.9]]], [[[0.1, 0.9], [0.0, 1.0]]], [[-1, 1]]),
            (0.5, [[1]], [[[0.5, 0.5]]], [[[np.nan, 0.5], [0.5, 0.5]]], RuntimeError),
            (0.5, [[1], [0]], [[[0.5, 0.5]]] * 2, [[[0.5, 0.5], [0.5, 0.5]]] * 2, IndexError),
        ],
        ids=["impossible token at u = 0", "placeholder", "not finite", "two sequences"],
    )
    def test_its_edges(self, monkeypatch, u, drafts, draft, target, emitted):
        """What the README reports about inputs that no law test reaches."""
        self._edge(monkeypatch, u, drafts, torch.tensor(draft).log(), torch.tensor(target).log(), emitted)

    def test_it_takes_no_drafts_at_all(self):
        function = pytest.importorskip("transformers.generation.utils")._speculative_sampling
        nothing, target = torch.zeros((1, 0), dtype=torch.long), torch.tensor([[[-np.inf, 0.0, -np.inf]]])
        tokens, accepted = function(nothing, torch.zeros((1, 0, 3)), 0, target)
        assert (tokens.tolist(), int(accepted)) == ([[1]], 0)

    def test_its_residual_may_be_empty_without_tiny_masses(self, monkeypatch):
        draft, step = torch.tensor([1.0, 0.0]), torch.tensor([4e-7, 0.0])
        target = torch.stack([draft + step, draft])
        self._edge(monkeypatch, 1 - 2**-24, [[1]], draft[None, None], target[None], RuntimeError)

    @staticmethod
    def _edge(monkeypatch, u, drafts, draft, target, emitted):
        from transformers.generation.utils import _speculative_sampling

        monkeypatch.setattr(torch, "rand_like", lambda like: torch.full_like(like, u))
        ids = torch.tensor(drafts)
        if isinstance(emitted, list):
            assert _speculative_sampling(ids, draft, ids.shape[1], target)[0].tolist() == emitted
        else:
            with pytest.raises(emitted):
                _speculative_sampling(ids, draft, ids.shape[1], target)


class TestJsonLines:
    @pytest.mark.parametrize("logits", [False, True])
    def test_a_correct_program_passes(self, logits):
        with JsonLinesSampler(ECHO, logits=logits) as sampler:
            report = assert_law(sampler, pairs=[*HARD, *adversarial_pairs(vocab_size=4)[:1]], smallest_tv=0.1)
        assert report.passed

    def test_a_broken_program_fails(self):
        with JsonLinesSampler([*ECHO, "resample-p"]) as sampler:
            failure = check_law(sampler, P0, Q0, LOSSLESS, 1, max_rounds=2000).failure
            assert failure.error is None
            assert failure.worst_event().what == "accepted 0, tokens (1)"

    def test_a_program_that_ignores_the_seed_fails(self):
        with JsonLinesSampler([*ECHO, "own seed"]) as sampler, pytest.raises(AssertionError, match="different seeds"):
            assert_law(sampler, P0, Q0, LOSSLESS, 1)

    @pytest.mark.parametrize(
        ("fault", "message"),
        [
            ("crash", r"(?s)ended with code 1 before it answered; its standard error ends with.*out of memory, say"),
            ("silent", r"(?s)no answer within 1 s \(see `timeout`\); its standard error ends with.*thinking"),
            ("report", r"the program reports: no such model"),
            ("garbage", r"line 'Hello!"),
            ("no counts", r"the answer has no 'accepted'"),
            ("late", r"the answer has id 2, the request 1"),
        ],
    )
    def test_what_goes_wrong_outside_is_told(self, fault, message):
        timeout = 1.0 if fault == "silent" else 60.0
        with JsonLinesSampler([*ECHO, fault], timeout=timeout) as sampler, pytest.raises(AssertionError, match=message):
            assert_law(sampler, P0, Q0, LOSSLESS, 1)

    def test_a_program_that_does_not_exist(self):
        with (
            JsonLinesSampler(["/no/such/program"]) as sampler,
            pytest.raises(AssertionError, match="FileNotFoundError"),
        ):
            assert_law(sampler, P0, Q0, LOSSLESS, 1)

    def test_closing_ends_the_program_and_a_later_batch_starts_it_again(self):
        rounds = Rounds(np.array([[0]]), np.full((1, 2, 2), 0.5), np.full((1, 1, 2), 0.5))
        sampler = JsonLinesSampler(ECHO)
        first = sampler(rounds, np.random.default_rng(0))
        process = sampler._process
        sampler.close()
        assert process.returncode is not None
        again = sampler(rounds, np.random.default_rng(0))
        sampler.close()
        assert first == again


@pytest.mark.parametrize(
    ("module", "call", "extra"),
    [
        ("torch", lambda: torch_sampler(in_torch(lossless)), "validate"),
        ("transformers.generation.utils", transformers_sampler, "hf"),
    ],
)
def test_a_missing_package_names_the_extra(monkeypatch, module, call, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf'pip install "relaxsd\[{extra}\]"'):
        call()
    with pytest.raises(ImportError, match="package_that_is_not is missing"):
        needed("package_that_is_not", extra)


def test_strategies_name_their_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    monkeypatch.delitem(sys.modules, "simulate.testing.strategies", raising=False)
    with pytest.raises(ImportError, match=r'pip install "relaxsd\[testing\]"'):
        importlib.import_module("simulate.testing.strategies")


def test_the_kit_imports_no_framework():
    code = (
        "import sys, simulate, simulate.testing, simulate.testing.adapters;"
        "print(sorted({'torch', 'transformers', 'hypothesis', 'pytest'} & set(sys.modules)))"
    )
    root = Path(__file__).resolve().parents[3]
    run = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
