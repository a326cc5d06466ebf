"""The term for interchangeable tokens: its value by hand, its candidates against whole passes, its gradient."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.validate.networks import CLASSES, TOKENS, VOCABULARY, network
from validate.cascade.training import PLACES, interchangeable_candidates, interchangeable_term
from validate.training.__main__ import main
from validate.training.drafter import fit_drafter, halves
from validate.training.presets import Plan

GUIDANCE = 1.5


def images(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(0)
    tokens = torch.from_numpy(rng.integers(0, VOCABULARY, (count, TOKENS)))
    return tokens, torch.from_numpy(rng.integers(0, CLASSES, count))


def test_the_value_is_the_declared_one() -> None:
    """p̃ = (5/8, 3/8); token 0 is like token 2, so its mass is q(0) + q(2)."""
    p, q = torch.tensor([[0.5, 0.2, 0.3]]), torch.tensor([[0.1, 0.7, 0.2]])
    tokens, alike = torch.tensor([[0, 2]]), torch.ones(1, 2, 2, dtype=torch.bool)
    alone = torch.eye(2, dtype=torch.bool)[None]
    assert float(interchangeable_term(q.log(), p, tokens, alike)) == pytest.approx(-math.log(0.3), abs=1e-6)
    plain = -5 / 8 * math.log(0.1) - 3 / 8 * math.log(0.2)
    assert float(interchangeable_term(q.log(), p, tokens, alone)) == pytest.approx(plain, abs=1e-6)
    both = interchangeable_term(q.log().expand(2, -1), p.expand(2, -1), tokens.expand(2, -1), torch.cat([alike, alone]))
    assert float(both) == pytest.approx((-math.log(0.3) + plain) / 2, abs=1e-6)


def test_candidates_are_those_of_whole_passes() -> None:
    target, (tokens, classes) = network(1, 0.25), images(6)
    _, laws = halves(target, tokens, classes, GUIDANCE)
    threshold = 0.92
    some = interchangeable_candidates(
        target, tokens, classes, laws, GUIDANCE, torch.Generator().manual_seed(0), threshold
    )
    assert some.places.shape == (6, PLACES)
    assert set(some.places.flatten().tolist()) <= set(range(1, TOKENS - 1))
    kinds = set()
    for b in range(6):
        for k, place in enumerate(some.places[b].tolist()):
            order = laws[b, place].argsort(descending=True)
            assert some.tokens[b, k].tolist() == order.tolist()
            states = []
            for token in order.tolist():
                changed = tokens[b : b + 1].clone()
                changed[0, place] = token
                conditional, null = halves(target, changed, classes[b : b + 1], GUIDANCE)[0][:, place + 1]
                states.append(null + GUIDANCE * (conditional - null))
            cosines = torch.nn.functional.cosine_similarity(torch.stack(states)[:, None], torch.stack(states), dim=-1)
            assert (cosines - threshold).abs().min() > 1e-4
            assert some.alike[b, k].tolist() == (cosines >= threshold).tolist()
            kinds |= set(some.alike[b, k].flatten().tolist())
    assert kinds == {True, False}


def test_its_gradient_lowers_it_and_moves_mass_to_what_is_alike() -> None:
    p, tokens = torch.tensor([[0.6, 0.3, 0.05, 0.05]]), torch.tensor([[0, 1]])
    alike = torch.ones(1, 2, 2, dtype=torch.bool)
    scores = torch.zeros(1, 4, requires_grad=True)
    values = []
    for _ in range(50):
        term = interchangeable_term(scores.log_softmax(-1), p, tokens, alike)
        values.append(float(term.detach()))
        (gradient,) = torch.autograd.grad(term, scores)
        scores = (scores - gradient).detach().requires_grad_()
    assert all(later < earlier for earlier, later in pairwise(values))
    # Interchangeable tokens are worth the same, whatever p says of them: that is what is rewarded, and its price.
    q = scores.softmax(-1)[0].tolist()
    assert q[0] == pytest.approx(q[1], abs=1e-6)
    assert q[0] + q[1] > 0.9


def term_of(weight: float) -> float:
    target, (tokens, classes) = network(1, 0.25), images(64)
    generator = torch.Generator().manual_seed(0)
    drafter = fit_drafter(target, tokens, classes, GUIDANCE, Plan(150, 32, 1e-2, warmup=1), generator, cascade=weight)
    features, laws = halves(target, tokens, classes, GUIDANCE)
    some = interchangeable_candidates(target, tokens, classes, laws, GUIDANCE, torch.Generator().manual_seed(1))
    with torch.no_grad():
        conditional, null = target.head(drafter.teach(tokens[:, :-1].repeat(2, 1), features[:, :-1])).chunk(2)
        q = (null + GUIDANCE * (conditional - null)).log_softmax(dim=-1)
    row = torch.arange(64)[:, None]
    return float(interchangeable_term(q[row, some.places - 1], laws[row, some.places].exp(), some.tokens, some.alike))


def test_training_with_a_weight_lowers_the_term() -> None:
    assert term_of(5.0) < term_of(0.0) - 0.01


def test_bad_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    target, (tokens, classes) = network(1, 0.25), images(4)
    for weight in (-0.5, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="cascade weight must be finite and >= 0"):
            fit_drafter(target, tokens, classes, 1.0, Plan(1, 4, 1e-2, warmup=1), torch.Generator(), cascade=weight)
    monkeypatch.setattr("validate.training.on_samples.samples", lambda *_: (tokens, classes))
    assert main(["drafter", "--out", str(tmp_path / "out"), "--cascade-weight", "-1"]) == 1
    assert "cascade weight must be finite" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
