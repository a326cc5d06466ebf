"""The CASCADE-style walk against enumeration of all candidates of a tree, with broken walks that are told apart."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

import theory
from simulate.mechanism import laws_at
from tests.validate.chain_models import ChainModel, ChainSequences, chain_pair
from tests.validate.networks import tiny_pair
from validate import siblings
from validate.batches import run_rounds
from validate.cascade.states import TreeStates, cascade_verifier, guided_states
from validate.decoding import decode
from validate.models import Pair, Warp
from validate.models.forest import Forest
from validate.noise import image_noise
from validate.tree_decoding import TreeDecoder, decode_tree
from validate.tree_shapes import TreeShape

SIZE, TOTAL, SAMPLES = 3, 4, 8_000
"""81 cells; with 8,000 draws a chi-square at level 1e-6 sees a TV of about .07 (power > .99)."""
FALSE_ALARM = 1e-6
TREE = [[[[]], []], [[]]]
"""Two children, of which the eldest has two and a grandchild, the younger has one; depth 3."""
NEVER = theory.Verifier(theory.FixedAcceptance(0.0))


def chains(seed: int, depth: int = TOTAL) -> tuple[theory.TabularChain, theory.TabularChain]:
    rng = np.random.default_rng(seed)
    levels = [[rng.dirichlet(np.ones(SIZE), (SIZE,) * d) for d in range(depth)] for _ in range(2)]
    return theory.TabularChain(levels[0]), theory.TabularChain(levels[1])


_ANGLES = np.random.default_rng(0).permuted(np.tile(np.arange(5), 24)) * np.pi / 5
STATES = {
    prefix: np.array([np.cos(angle), np.sin(angle)])
    for angle, prefix in zip(
        _ANGLES, (x for d in range(1, TOTAL + 1) for x in product(range(SIZE), repeat=d)), strict=True
    )
}
"""A unit vector after every prefix; cosines are ±.31, ±.81 and 1, apart from every threshold here."""


def number(prefix: tuple[int, ...]) -> int:
    """Prefixes as numbers, the empty one first."""
    code = 0
    for token in prefix:
        code = SIZE * code + 1 + token
    return code


TABLE = np.zeros((1 + max(map(number, STATES)), 2))
for _prefix, _state in STATES.items():
    TABLE[number(_prefix)] = _state


class StateSequences(ChainSequences):
    """Chains with a hidden state after every prefix."""

    def tree_logits(
        self, inputs: Tensor, lengths: Tensor, forest: Forest, first: int = 0, *, hidden: bool = False
    ) -> Any:
        logits = super().tree_logits(inputs, lengths, forest, first)
        if not hidden:
            return logits
        parents, rows = forest.parents[0].tolist(), []
        for node in range(forest.size):
            path = [node]
            while parents[path[0]] >= 0:
                path.insert(0, parents[path[0]])
            code = np.zeros(len(inputs), dtype=np.int64)
            for t in range(self.total):
                # Token t of the prefix: known, or the node's ancestor at its depth; the root is START at length 0.
                depth = t + 1 - lengths.numpy()
                above = inputs.numpy()[np.arange(len(inputs)), np.take(path, depth.clip(0, len(path) - 1))]
                token = np.where(depth < 0, self.inputs[:, t + 1], above)
                code = np.where(depth < len(path), SIZE * code + 1 + token, code)
            rows.append(TABLE[code])
        states = torch.from_numpy(np.stack(rows, axis=1))
        return logits, states


def states_pair(target: theory.Chain, draft: theory.Chain) -> Pair:
    pair: Any = chain_pair(target, draft, TOTAL)

    class Model(ChainModel):
        def start(self, conditions: Any, guidance: float = 1.0) -> ChainSequences:
            return StateSequences(self.chain, len(conditions), self.num_tokens)

    return Pair("states", Model(target, TOTAL), pair.drafts, "chain", pair.tokenizer, guidance=1.0)  # type: ignore[arg-type]


# --- the oracle: every assignment of tokens to nodes, every outcome of every test -----------------------------------


def exact_law(
    target: theory.Chain, draft: theory.Chain, tree: Any, tau_b: float, tau_d: float, own_branch: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Law of the image (V,)*TOTAL after one round continued with the target, and P(i drafts accepted).

    `own_branch` is what a lossless walk would do behind a subtree taken over: the law of the tokens really emitted.
    """
    shape = TreeShape(tree)
    law = np.zeros((SIZE,) * TOTAL)
    lengths = np.zeros(shape.depth + 1)

    @cache
    def row(chain: theory.Chain, prefix: tuple[int, ...]) -> np.ndarray:
        padded = np.asarray([[*prefix, *[0] * (TOTAL - len(prefix))]])
        return np.asarray(laws_at(chain, padded, np.asarray([len(prefix)])))[0]

    @cache
    def rest_of(prefix: tuple[int, ...]) -> np.ndarray:
        """The target's law of the tokens behind a prefix."""
        if len(prefix) >= TOTAL:
            return np.ones(())
        return np.stack([w * rest_of((*prefix, t)) for t, w in enumerate(row(target, prefix))])

    def cos(a: tuple[int, ...], b: tuple[int, ...]) -> float:
        return float(STATES[a] @ STATES[b])

    def assignments(node: int, path: dict[int, tuple[int, ...]], weight: float) -> Any:
        """All tokens of all nodes from `node` on, as paths, with their probability."""
        if node == shape.nodes:
            yield dict(path), weight
            return
        below = shape.children[node]
        base = path[node]
        q = row(draft, base)
        for tokens in product(range(SIZE), repeat=len(below)):
            if len(set(tokens)) < len(tokens):
                continue
            left, share = q.copy(), 1.0
            for token in tokens:
                share *= left[token] / left.sum()
                left[token] = 0.0
            yield from assignments(
                node + 1, path | {v: (*base, t) for v, t in zip(below, tokens, strict=True)}, weight * share
            )

    def end(emitted: tuple[int, ...], now: np.ndarray, weight: float, taken: int) -> None:
        lengths[taken] += weight
        if len(emitted) == TOTAL:
            law[emitted] += weight
            return
        for token in range(SIZE):
            law[(*emitted, token)] += weight * now[token] * rest_of((*emitted, token))

    def walk(node: int, kept: list[int], now: np.ndarray, emitted: tuple[int, ...], path: Any, weight: float) -> None:
        depth, refused = len(emitted), []
        for source in [node, *kept]:
            below = shape.children[source]
            left = row(draft, path[source]).copy()
            for child in below:
                q, x = left / left.sum(), path[child][-1]
                group = {path[v][-1] for v in below if cos(path[v], path[child]) >= tau_b and depth + 1 < TOTAL} | {x}
                pooled = min(1.0, sum(now[y] for y in group) / max(sum(q[y] for y in group), 1e-300))
                f = max(pooled, min(1.0, now[x] / q[x]))
                if f > 0:
                    like = [v for v in refused if cos(path[v], path[child]) >= tau_d] if depth + 1 < TOTAL else []
                    behind = (*emitted, x) if own_branch else path[child]
                    after = row(target, behind) if depth + 1 < TOTAL else np.full(SIZE, 1 / SIZE)
                    walk(child, like, after, (*emitted, x), path, weight * f)
                weight *= 1 - f
                if weight <= 0:
                    return
                # The residual as declared: of the whole vector f, with every sibling's own class.
                vector = np.minimum(1.0, now / np.where(q > 0, q, 1.0))
                vector[x] = f
                rest = np.maximum(now - q * vector, 0.0)
                now = rest / rest.sum() if rest.sum() > 1e-15 else now
                left[x] = 0.0
                refused.append(child)
        end(emitted, now, weight, depth)

    for path, weight in assignments(0, {0: ()}, 1.0):
        walk(0, [], row(target, ()), (), path, weight)
    return law, lengths


@torch.no_grad()
def one_round(pair: Pair, verifier: Any, tree: Any, seed: int = 5) -> tuple[np.ndarray, np.ndarray]:
    shape = TreeShape(tree)
    noise = image_noise(seed, range(SAMPLES), TOTAL, shape.nodes, pair.device)
    decoder = TreeDecoder(pair, pair.encode_conditions(SAMPLES), noise, 1.0, Warp(), shape)
    accepted = decoder.round(verifier).numpy()
    tokens = run_rounds(decoder, partial(decoder.round, NEVER), TOTAL)[0]
    return tokens, accepted


def pvalue(tokens: np.ndarray, law: np.ndarray) -> float:
    index = tokens @ (SIZE ** np.arange(TOTAL - 1, -1, -1))
    seen, wanted = np.bincount(index, minlength=SIZE**TOTAL), law.reshape(-1) * len(tokens)
    rare = wanted < 5
    seen, wanted = (np.append(a[~rare], a[rare].sum()) for a in (seen, wanted))
    if wanted[-1] < 5:
        seen, wanted = seen[:-1], wanted[:-1]
    return float(chisquare(seen, wanted * seen.sum() / wanted.sum()).pvalue)


SETTINGS = {
    "lossless": (2.0, 2.0),
    "breadth": (0.5, 2.0),
    "all alike": (-1.0, 2.0),
    "depth": (2.0, 0.5),
    "both": (0.5, 0.5),
}
"""τ_b and τ_d."""


@pytest.fixture(scope="module")
def laws() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return {name: exact_law(*chains(5), TREE, *taus) for name, taus in SETTINGS.items()}


@pytest.mark.parametrize("name", SETTINGS)
def test_one_round_follows_its_enumerated_law(name: str, laws: dict[str, tuple[np.ndarray, np.ndarray]]) -> None:
    taus = [None if tau > 1 else tau for tau in SETTINGS[name]]
    tokens, accepted = one_round(states_pair(*chains(5)), cascade_verifier(*taus), TREE)
    law, lengths = laws[name]
    assert law.sum() == pytest.approx(1.0)
    assert pvalue(tokens, law) > FALSE_ALARM
    seen = np.bincount(accepted, minlength=len(lengths)) / SAMPLES
    assert np.abs(seen - lengths).max() < 5 * 0.5 / np.sqrt(SAMPLES)
    # Power: the law of every other setting is refused.
    for other, (wrong, _) in laws.items():
        if other != name and np.abs(wrong - law).sum() / 2 > 0.07:
            assert pvalue(tokens, wrong) < FALSE_ALARM


def test_the_settings_differ_and_only_lossless_is_the_target(laws: dict[str, tuple[np.ndarray, np.ndarray]]) -> None:
    target, _ = chains(5)
    own = np.ones((SIZE,) * TOTAL)
    for d, level in enumerate(target.levels):
        own = own * np.asarray(level).reshape((SIZE,) * (d + 1) + (1,) * (TOTAL - 1 - d))
    np.testing.assert_allclose(laws["lossless"][0], own, atol=1e-12)
    for name in ("breadth", "all alike", "depth", "both"):
        assert np.abs(laws[name][0] - own).sum() / 2 > 0.07
    mean = {name: float(lengths @ np.arange(len(lengths))) for name, (_, lengths) in laws.items()}
    assert mean["lossless"] < mean["breadth"] < mean["all alike"]
    assert mean["lossless"] < mean["depth"] < mean["both"]


def test_depth_is_biased_by_the_laws_of_the_other_branch_alone() -> None:
    """Were the laws behind a subtree taken over those of the tokens really emitted, depth would be lossless."""
    law, lengths = exact_law(*chains(5), TREE, 2.0, 0.5, own_branch=True)
    lossless, fewer = exact_law(*chains(5), TREE, 2.0, 2.0)
    np.testing.assert_allclose(law, lossless, atol=1e-12)
    steps = np.arange(len(lengths))
    assert lengths @ steps > fewer @ steps + 0.005


@pytest.mark.parametrize("fault", ["all alike", "residual is p", "states of another image", "kept without likeness"])
def test_broken_walks_are_told_apart(
    fault: str, laws: dict[str, tuple[np.ndarray, np.ndarray]], monkeypatch: pytest.MonkeyPatch
) -> None:
    own: Callable[..., Any] = TreeStates.bind
    if fault == "all alike":
        monkeypatch.setattr(TreeStates, "bind", lambda s, *a: theory.Verifier(replace_tau(own(s, *a).rule)))
    if fault == "residual is p":
        monkeypatch.setattr(siblings, "residual_after", lambda verifier, p, *_: p)
    if fault == "states of another image":

        def shifted(s: TreeStates, *given: Any) -> Any:
            return own(TreeStates(s.verifier, s.states.roll(1, dims=0)), *given)

        monkeypatch.setattr(TreeStates, "bind", shifted)
    if fault == "kept without likeness":
        monkeypatch.setattr(TreeStates, "converged", lambda s, node: torch.cat(s.refused, dim=1))
    tokens, _ = one_round(states_pair(*chains(5)), cascade_verifier(0.5, 0.5), TREE)
    assert pvalue(tokens, laws["both"][0]) < FALSE_ALARM


def replace_tau(bound: Any) -> Any:
    return theory.CascadeStyle(-1.0).at(bound.siblings, bound.hidden)


# --- on networks ----------------------------------------------------------------------------------------------------


def test_off_is_the_lossless_walk_to_the_token() -> None:
    plain, off = (
        decode_tree(tiny_pair(), verifier, [[[], []], [[]]], 400, device="cpu")
        for verifier in (theory.Verifier(theory.Lossless()), cascade_verifier(None, None))
    )
    assert (plain.tokens == off.tokens).all()
    assert (plain.accepted == off.accepted).all()
    relaxed = decode_tree(tiny_pair(), cascade_verifier(-1.0, -1.0), [[[], []], [[]]], 400, device="cpu")
    assert relaxed.calls.mean() < off.calls.mean()


def test_batches_do_not_matter() -> None:
    run = partial(decode_tree, tiny_pair(), cascade_verifier(0.5, 0.0), [[[], []], [[]], []], 60, device="cpu")
    assert (run().tokens == run(batch=7).tokens).all()


def test_guided_states_give_the_guided_logits() -> None:
    head = torch.nn.Linear(4, 6)
    hidden = torch.randn(6, 5, 4, generator=torch.Generator().manual_seed(0))
    conditional, null = head(hidden).chunk(2)
    torch.testing.assert_close(head(guided_states(hidden, 3.0, 3)), null + 3.0 * (conditional - null))
    assert guided_states(hidden, 3.0, 6) is hidden


@pytest.mark.parametrize("tau", [-1.01, 1.5, float("nan")])
def test_thresholds_outside_the_cosines(tau: float) -> None:
    with pytest.raises(ValueError, match="tau_b must"):
        cascade_verifier(tau)
    with pytest.raises(ValueError, match="tau_d must"):
        cascade_verifier(0.5, tau)


def test_chains_and_targets_without_states_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="CascadeStyle needs siblings"):
        decode(tiny_pair(), cascade_verifier(0.5), 2, 4, device="cpu")
    monkeypatch.setattr(TreeDecoder, "_read", lambda self, tokens, place: (torch.zeros(4, 3, 3), None))
    with pytest.raises(TypeError, match=r"reads hidden states \(rows, 3, D\) of all tree nodes, the target gave None"):
        decode_tree(tiny_pair(), cascade_verifier(0.5), [[], []], 4, device="cpu")
