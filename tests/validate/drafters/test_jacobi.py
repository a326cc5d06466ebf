"""Jacobi decoding of networks against enumerated laws, the synthetic version, and broken loops that must fail."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chi2_contingency

import simulate
import theory
import validate
from tests.validate.networks import TOKENS, VOCABULARY, counts, fits, table, tiny_pair
from tests.validate.test_decoding import FALSE_ALARM, SAMPLES
from theory.sequences import target_law
from validate import batches
from validate.drafters import jacobi
from validate.drafters.jacobi import JacobiDecoder, decode_jacobi
from validate.models import Warp

LOSSLESS = theory.Verifier(theory.Lossless())
EMBEDDING = np.array([[0.0], [1.0], [3.0]])
COUPLINGS = ("independent", "maximal", "gumbel")
RELAXED = [
    theory.cool_sd(3, 2.0, floor=1.0),
    theory.published_verifier(theory.EntropyRelaxed(0.6, 0.9)),
    theory.published_verifier(theory.Grouped(EMBEDDING, 1, 0.4, 1.5)),
]
NAMES = ("COOL-SD", "CSD", "GSD")


def law(guidance: float = 1.5) -> np.ndarray:
    return np.asarray(target_law(table(tiny_pair(guidance).target, 1, guidance), TOKENS))


def run(verifier: Any, window: int, coupling: Any = "independent", samples: int = SAMPLES, **options: Any) -> Any:
    guidance = options.pop("guidance", 1.5)
    return decode_jacobi(
        tiny_pair(guidance), verifier, window, [1] * samples, coupling, device="cpu", batch=samples, **options
    )


@pytest.mark.parametrize("coupling", COUPLINGS)
@pytest.mark.parametrize(("window", "fresh"), [(1, "uniform"), (2, "one_hot"), (2, "uniform"), (4, "one_hot")])
def test_lossless_images_follow_the_targets_law(coupling: str, window: int, fresh: str) -> None:
    guidance = 1.0 if window == 2 else 1.5
    out = run(LOSSLESS, window, coupling, fresh=fresh, guidance=guidance)
    assert fits(out.tokens, law(guidance)) > FALSE_ALARM
    assert np.array_equal((out.accepted >= 0).sum(axis=1), out.calls)
    emitted = np.where(out.accepted >= 0, out.accepted + 1, 0).sum(axis=1)
    assert set(np.unique(emitted - TOKENS)) <= {0, 1}
    assert out.accepted.max() <= window


def test_forbidden_tokens_never_appear() -> None:
    for coupling in COUPLINGS:
        out = run(LOSSLESS, 3, coupling, samples=2000, warp=Warp(top_k=2))
        chain = table(tiny_pair().target, 1, 1.5)
        laws = np.stack([np.asarray(chain.conditional(out.tokens[:, :t])) for t in range(TOKENS)], axis=1)
        chosen = np.take_along_axis(laws, out.tokens[..., None], -1)[..., 0]
        assert (chosen > laws.min(axis=-1)).all()


@pytest.mark.parametrize("coupling", COUPLINGS)
@pytest.mark.parametrize("verifier", [LOSSLESS, *RELAXED], ids=("lossless", *NAMES))
def test_calls_and_law_are_those_of_the_synthetic_version(verifier: Any, coupling: Any) -> None:
    window = 3
    ours = run(verifier, window, coupling)
    chain = table(tiny_pair().target, 1, 1.5)
    theirs = simulate.decode_jacobi(chain, verifier, window, TOKENS, SAMPLES, np.random.default_rng(5), coupling)
    seen = np.stack([counts(x.tokens, TOKENS) for x in (ours, theirs)])
    rare = seen.sum(axis=0) < 10
    seen = np.concatenate([seen[:, ~rare], seen[:, rare].sum(axis=1, keepdims=True)], axis=1)
    assert chi2_contingency(seen[:, seen.sum(axis=0) > 0]).pvalue > FALSE_ALARM
    error = np.hypot(ours.calls.std(), theirs.calls.std()) / np.sqrt(SAMPLES)
    assert abs(ours.calls.mean() - theirs.calls.mean()) < 5 * error


@pytest.mark.parametrize("verifier", RELAXED, ids=NAMES)
def test_relaxed_images_are_told_from_the_target(verifier: Any) -> None:
    assert fits(run(verifier, 3).tokens, law()) < FALSE_ALARM


def replacement_from_the_noise_of_the_draft(noise: Any) -> Any:
    return noise._replace(residual=noise.fresh, bonus=noise.fresh)


def stuck_acceptance(noise: Any) -> Any:
    return noise._replace(acceptance=torch.full_like(noise.acceptance, 0.3))


def verification_with_the_noise_of_the_draft(noise: Any) -> Any:
    # A draft is tested one iteration after it was drawn.
    return noise._replace(acceptance=torch.roll(noise.redraw, 1, dims=-1))


FAULTS = [replacement_from_the_noise_of_the_draft, stuck_acceptance, verification_with_the_noise_of_the_draft]


@pytest.mark.parametrize("fault", FAULTS)
def test_broken_noise_is_noticed(fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    original = jacobi._Tables.of
    monkeypatch.setattr(jacobi._Tables, "of", lambda *a: fault(original(*a)))
    assert fits(run(LOSSLESS, 2, samples=40_000).tokens, law()) < FALSE_ALARM


@pytest.mark.parametrize("wrong", ["kept drafts", "stale laws"])
def test_broken_laws_are_noticed(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft that is kept whatever the new law, and declared with it; verification against the last iteration."""
    if wrong == "kept drafts":

        def redraw(self: Any, column: Any, places: Any, at: Any, attempt: Any, drafted: Any, p: Any) -> Any:
            return torch.cat([drafted, p[:, -1:].argmax(-1)], dim=1)

        monkeypatch.setattr(JacobiDecoder, "_redraw", redraw)
    else:
        original = JacobiDecoder._target_laws

        def laws(self: Any, column: Any, offset: Any) -> Any:
            p = original(self, column, offset)
            known = (offset[:-1] < self.known[:, None])[..., None]
            return torch.cat([torch.where(known, self.laws, p[:, :-1]), p[:, -1:]], dim=1)

        monkeypatch.setattr(JacobiDecoder, "_target_laws", laws)
    assert fits(run(LOSSLESS, 2).tokens, law()) < FALSE_ALARM


@pytest.mark.parametrize("coupling", COUPLINGS)
def test_seeds_and_batches(coupling: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pair, classes = tiny_pair(), [0, 1, 1, 0, 1, 0, 0]
    whole = decode_jacobi(pair, LOSSLESS, 3, classes, coupling, device="cpu", seed=4)
    cut = decode_jacobi(pair, LOSSLESS, 3, classes, coupling, device="cpu", seed=4, batch=3)
    monkeypatch.setattr(batches, "COMPACT_BELOW", 0.0)
    loose = decode_jacobi(pair, LOSSLESS, 3, classes, coupling, device="cpu", seed=4)
    for other in (cut, loose):
        assert np.array_equal(whole.tokens, other.tokens)
        assert np.array_equal(whole.accepted, other.accepted)
    assert not np.array_equal(
        whole.tokens, decode_jacobi(pair, LOSSLESS, 3, classes, coupling, device="cpu", seed=5).tokens
    )
    assert np.array_equal(whole.starts[:, 0], np.zeros(7))


def test_race_times_belong_to_the_place() -> None:
    every = jacobi.race_times(3, 1, range(4), 4, 5)
    assert np.array_equal(every[2:3], jacobi.race_times(3, 1, range(2, 3), 4, 5))
    assert np.array_equal(every[3:], jacobi.race_times(3, 0, range(7, 8), 4, 5))
    assert len(np.unique(every)) == every.size


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"window": TOKENS + 1}, f"an image of pair 'tiny' has {TOKENS} tokens"),
        ({"window": 0}, "window must be a whole number >= 1, got 0"),
        ({"window": True}, "window"),
        ({"batch": 0}, "batch"),
        ({"coupling": "close"}, "coupling must be one of independent, maximal, gumbel, got 'close'"),
        ({"fresh": "none"}, "fresh must be one of"),
        ({"verifier": theory.block(2)}, "token-wise"),
        ({"verifier": None}, "token-wise"),
        ({"guidance": np.inf}, "guidance"),
        ({"seed": -1}, "seed"),
    ],
)
def test_bad_input(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"verifier": LOSSLESS, "window": 2, "images": [0], "device": "cpu"} | change
    with pytest.raises(ValueError, match=message):
        validate.decode_jacobi(tiny_pair(), **arguments)
    assert VOCABULARY == 3


def test_the_embedded_pair_saves_calls_and_more_so_when_coupled() -> None:
    pair = validate.load("fashion", device="cpu")
    runs = [validate.decode_jacobi(pair, LOSSLESS, 16, 30, c, device="cpu") for c in ("independent", "maximal")]
    assert 1.5 < runs[0].tokens_per_call < runs[1].tokens_per_call
