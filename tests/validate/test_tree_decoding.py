"""Draft trees on real networks: attention against separate passes, laws against enumeration, broken walks that fail."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Tensor

import theory
import validate.tree_decoding as trees
from simulate.decoded import DecodedRound
from simulate.draws import categorical
from simulate.testing import Emitted, RoundDecoder, assert_law, check_law
from tests.validate.chain_models import chain_pair
from tests.validate.golden import arrays, weights
from tests.validate.networks import CLASSES, TOKENS, VOCABULARY, counts, fits, network, table, tiny_pair
from validate import siblings
from validate.batches import run_rounds
from validate.drafters.feature import DrafterConfiguration, FeatureDrafter
from validate.drafters.trees import feature_proposer
from validate.models import Warp
from validate.models.forest import Forest
from validate.models.interface import START
from validate.models.llamagen import Captions, load_transformer
from validate.noise import image_noise
from validate.siblings import draw_children, try_siblings
from validate.tree_decoding import TreeDecoder, decode_tree
from validate.tree_shapes import LANTERN_TREE, Dynamic, TreeShape, tree_of_paths

AGREEMENT = 2e-5
SAMPLES = 12_000
"""A G-test of 81 cells at level 1e-6 with 12,000 draws sees TV of about .05 (power > .99)."""
FALSE_ALARM = 1e-6
LOSSLESS = theory.Verifier(theory.Lossless())
TREE = [[[[]], []], [[]]]
"""Two children, of which the elder has two and the younger one; depth 3."""
CHAIN = [[[[]]]]
PROPOSERS = ["independent", "feature"]


def chains(guidance: float) -> tuple[theory.TabularChain, theory.TabularChain]:
    pair = tiny_pair(guidance)
    return table(pair.target, 1, guidance), table(pair.draft, 1, guidance)  # type: ignore[arg-type]


def tiny_drafter() -> FeatureDrafter:
    drafter = FeatureDrafter(DrafterConfiguration(VOCABULARY, 8, 16, 2, 2))
    generator = torch.Generator().manual_seed(5)
    drafter.initialise(generator)
    with torch.no_grad():
        for value in drafter.parameters():
            value.add_(0.2 * torch.randn(value.shape, generator=generator))
    return drafter.eval().requires_grad_(False)


def proposer_of(name: str) -> trees.ProposerOf:
    return trees.independent if name == "independent" else feature_proposer(tiny_drafter())


# --- tree attention ------------------------------------------------------------------------------------------------


def golden(name: str) -> tuple[Any, Any]:
    if name == "tokens":
        model = network(3, 0.3)
        return model, torch.tensor([0, 1, 1])
    model: Any = load_transformer(weights(name), grid=4, heads={"c2i_a": 4, "t2i_a": 3}[name])
    data = arrays(name)
    given = Captions(data["caption"], data["mask"].bool()) if name == "t2i_a" else data["class_ids"]
    given = model.encode_conditions(given)
    return model, given[torch.tensor([0, 1, 0])]


@pytest.mark.parametrize("guidance", [1.0, 2.5])
@pytest.mark.parametrize("name", ["tokens", "c2i_a", "t2i_a"])
@pytest.mark.parametrize("per_row", [False, True])
def test_node_logits_are_those_of_separate_passes(name: str, guidance: float, per_row: bool) -> None:
    """Then the path kept goes on as if it had been read in the ordinary way, also after rows were dropped."""
    model, given = golden(name)
    generator = torch.Generator().manual_seed(0)
    total = model.num_tokens

    def drawn(*shape: int) -> Tensor:
        return torch.randint(model.vocab_size, shape, generator=generator)

    known = torch.cat([torch.full((3, 1), START), drawn(3, total)], dim=1)
    lengths = torch.tensor([0, 1, 2 if name == "tokens" else 9])
    parents = torch.tensor([-1, 0, 0, 1, 1, 2, 3])
    if per_row:
        parents = torch.stack([parents, torch.tensor([-1, 0, 1, 2, 0, 4, 4]), torch.tensor([-1, -1, 0, 0, 1, 1, 2])])
    forest, nodes = Forest.of(parents), drawn(3, 7)
    top = forest.depths.expand(3, -1) == 0
    nodes = torch.where(top & (lengths == 0)[:, None], START, nodes)
    sequences = model.start(given, guidance)
    for t in range(int(lengths.max())):
        sequences.logits(known[:, t : t + 1], torch.full((3,), t))
    parts = [(0, 1), (1, 4), (4, 7)]
    pieces = [sequences.tree_logits(nodes[:, a:b], lengths, forest, a, hidden=True) for a, b in parts]
    found, hidden = (torch.cat([piece[i] for piece in pieces], dim=1) for i in range(2))
    whole, states = sequences.tree_logits(nodes, lengths, forest, hidden=True)
    torch.testing.assert_close(whole, found, atol=AGREEMENT, rtol=1e-5)
    torch.testing.assert_close(states, hidden, atol=AGREEMENT, rtol=1e-5)
    compared = 0
    for row in range(3):
        for node in range(7):
            path = torch.nonzero(forest.ancestors[row % len(forest.parents), node])[:, 0]
            inputs = torch.cat([known[row, : lengths[row]], nodes[row, path]])[None]
            if inputs.shape[1] > total:
                continue
            alone = model.start(given[torch.tensor([row])], guidance)
            logits, state = alone.logits(inputs, torch.zeros(1, dtype=torch.int64), hidden=True)
            torch.testing.assert_close(found[row, node], logits[0, -1], atol=AGREEMENT * (1 + 2 * guidance), rtol=1e-5)
            own = hidden[[row] if guidance == 1.0 else [row, row + 3], node]
            torch.testing.assert_close(own, state[:, -1], atol=AGREEMENT, rtol=1e-5)
            compared += 1
    assert compared >= 16
    paths = [torch.nonzero(forest.ancestors[row % len(forest.parents), 3])[:, 0] for row in range(3)]
    kept = torch.tensor([min(len(path), total - 1 - int(lengths[row])) for row, path in enumerate(paths)])
    padded = torch.stack([torch.nn.functional.pad(path, (0, 4 - len(path))) for path in paths])
    sequences.keep_path(padded, kept, lengths)
    after, following = lengths + kept, drawn(3, 1)
    rows = torch.tensor([2, 0])
    sequences.keep(rows)
    logits = sequences.logits(following[rows], after[rows])
    for place, row in enumerate(rows.tolist()):
        inputs = torch.cat([known[row, : lengths[row]], nodes[row, paths[row][: kept[row]]], following[row]])[None]
        alone = model.start(given[torch.tensor([row])], guidance).logits(inputs, torch.zeros(1, dtype=torch.int64))
        torch.testing.assert_close(logits[place, 0], alone[0, -1], atol=AGREEMENT * (1 + 2 * guidance), rtol=1e-5)


@given(st.lists(st.integers(-1, 20), min_size=1, max_size=12))
def test_forests_know_their_ancestors(raw: list[int]) -> None:
    parents = [min(parent, node - 1) for node, parent in enumerate(raw)]
    forest = Forest.of(torch.tensor(parents))
    for node in range(len(parents)):
        path, above = [node], parents[node]
        while above >= 0:
            path.append(above)
            above = parents[above]
        assert torch.nonzero(forest.ancestors[0, node])[:, 0].tolist() == sorted(path)
        assert int(forest.depths[0, node]) == len(path) - 1


def test_bad_forests_and_trees() -> None:
    with pytest.raises(ValueError, match=r"parents\[0, 1\] is 1; it must lie in -1…0"):
        Forest.of(torch.tensor([-1, 1]))
    model, given = golden("tokens")
    with pytest.raises(ValueError, match="nodes 1…2 are not all in a forest of 2 nodes"):
        model.start(given).tree_logits(
            torch.zeros(3, 2, dtype=torch.int64), torch.ones(3).long(), Forest.of(torch.tensor([-1, 0])), 1
        )
    with pytest.raises(ValueError, match="no candidates"):
        TreeShape([])
    with pytest.raises(ValueError, match=r"lacks the parent of the path \[1, 0\]"):
        tree_of_paths([[0], [1, 0]])
    with pytest.raises(ValueError, match=r"lacks the path \[0\]"):
        tree_of_paths([[1]])
    pair = tiny_pair()
    with pytest.raises(ValueError, match="the tree is 5 deep but an image has 4 tokens"):
        decode_tree(pair, LOSSLESS, [[[[[[]]]]]], 1, device="cpu")
    with pytest.raises(TypeError, match="token-wise"):
        decode_tree(pair, theory.block(3), CHAIN, 1, device="cpu")
    with pytest.raises(ValueError, match="batch must be"):
        decode_tree(pair, LOSSLESS, CHAIN, 1, device="cpu", batch=0)
    with pytest.raises(ValueError, match="guidance must be finite"):
        decode_tree(pair, LOSSLESS, CHAIN, 1, device="cpu", guidance=float("nan"))


# --- laws ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("guidance", [1.0, 1.5])
@pytest.mark.parametrize("tree", [TREE, CHAIN, [[], [], []]], ids=["tree", "chain", "siblings"])
@pytest.mark.parametrize("name", PROPOSERS)
def test_lossless_images_follow_the_target(name: str, tree: Any, guidance: float) -> None:
    out = decode_tree(
        tiny_pair(guidance), LOSSLESS, tree, [1] * SAMPLES, proposer=proposer_of(name), device="cpu", batch=SAMPLES
    )
    law = theory.analyse_sequence(*chains(guidance), LOSSLESS, 1, TOKENS).target_law
    assert fits(out.tokens, law) > FALSE_ALARM
    assert ((out.accepted >= 0).sum(1) == out.calls).all()
    assert (np.where(out.accepted >= 0, out.accepted + 1, 0).sum(1) >= TOKENS).all()


NEVER = theory.Verifier(theory.FixedAcceptance(0.0))
"""Accepts nothing and draws from Norm[p − 0]_+, the target: plain sampling."""


@torch.no_grad()
def one_round(verifier: Any, tree: Any, guidance: float, warp: Warp | None = None) -> DecodedRound:
    pair, shape = tiny_pair(guidance), TreeShape(tree)
    given = pair.encode_conditions([1] * SAMPLES)
    noise = image_noise(3, range(SAMPLES), TOKENS, shape.nodes, pair.device)
    decoder = TreeDecoder(pair, given, noise, guidance, warp or Warp(), shape)
    accepted = decoder.round(verifier).numpy()
    return DecodedRound(run_rounds(decoder, partial(decoder.round, NEVER), TOKENS)[0], accepted)


SCHEDULE = theory.cool_sd(3, 2.0)


@pytest.mark.parametrize(
    "verifier",
    [
        LOSSLESS,
        SCHEDULE,
        theory.Verifier(theory.Relaxed(1.8), theory.vanilla_residual),
        theory.Verifier(theory.AcceptAll()),
    ],
    ids=["lossless", "schedule", "vanilla", "all"],
)
@pytest.mark.parametrize("tree", [TREE, CHAIN], ids=["tree", "chain"])
def test_one_tree_follows_its_exact_law(tree: Any, verifier: theory.Verifier) -> None:
    analysis = theory.analyse_tree(*chains(1.5), verifier, tree)
    out = one_round(verifier, tree, 1.5)
    assert fits(out.tokens, analysis.law) > FALSE_ALARM
    reached = np.asarray([(out.accepted >= i).mean() for i in (1, 2, 3)])
    assert np.abs(reached - np.asarray(analysis.survival)).max() < 5 * 0.5 / np.sqrt(SAMPLES)
    if verifier is SCHEDULE:
        shallow = theory.analyse_tree(*chains(1.5), theory.Verifier(theory.Relaxed(2.0)), tree)
        assert fits(out.tokens, shallow.law) < FALSE_ALARM


@pytest.mark.parametrize("fault", [False, True])
@pytest.mark.parametrize("branch", ["dynamic", "llamagen_static", "lumina_static", "lumina_dynamic"])
def test_the_next_sibling_meets_the_residual_of_the_rejected_token(
    branch: str, fault: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LANTERN's residuals depend on the rejected token x: the next sibling meets G_x, not their mixture (control)."""
    p, q = [0.08, 0.49, 0.34, 0.08, 0.01], [0.09, 0.04, 0.32, 0.29, 0.26]
    near = theory.nearest_neighbours([[0.0], [1.0], [3.0], [3.5], [7.0]], 4)
    verifier = theory.lantern_verifier(near, 1, delta=0.2, branch=branch)
    if fault:
        monkeypatch.setattr(siblings, "residual_after", lambda verifier, p, q, f, *_: verifier.residual(p, q, f))
    generator, count = torch.Generator().manual_seed(8), 200_000
    u = torch.rand((count, 7), dtype=torch.float64, generator=generator)
    laws = [torch.tensor(law, dtype=torch.float64).expand(count, -1) for law in (p, q)]
    tokens = draw_children(laws[1], u[:, :3])
    child, left = try_siblings(verifier, *laws, tokens, u[:, 3:6], 0)
    first = torch.where(child < 0, categorical(left, u[:, 6]), tokens.gather(1, child.clamp(min=0)[:, None])[:, 0])
    tree = theory.analyse_tree(theory.IIDChain(p), theory.IIDChain(q), verifier, [[], [], []], "without_replacement")
    law = np.asarray(tree.law).reshape(5, -1).sum(axis=1)
    pvalue = chisquare(np.bincount(first, minlength=5), count * law).pvalue
    assert pvalue < FALSE_ALARM if fault else pvalue > FALSE_ALARM


def test_the_schedule_relaxes_by_depth_in_whole_images() -> None:
    """Oracle without a closed form: `simulate.decode_tree` on the same laws, cell by cell."""
    import simulate.tree_decoding

    out = decode_tree(tiny_pair(), SCHEDULE, TREE, [1] * SAMPLES, device="cpu", batch=SAMPLES)
    other = simulate.tree_decoding.decode_tree(
        *chains(1.5), SCHEDULE, TREE, TOKENS, 40 * SAMPLES, np.random.default_rng(0)
    )
    law = (counts(other.tokens, TOKENS) + 0.5) / (40 * SAMPLES + 0.5 * VOCABULARY**TOKENS)
    assert fits(out.tokens, law) > FALSE_ALARM
    assert abs(out.calls.mean() - other.calls.mean()) < 5 * out.calls.std() / np.sqrt(SAMPLES)


def test_candidates_that_run_out() -> None:
    """A warp that leaves two tokens: a third child does not exist, and the law stays the warped target's."""
    out = decode_tree(
        tiny_pair(), LOSSLESS, [[[], [], []], [], []], [1] * SAMPLES, device="cpu", warp=Warp(top_k=2), batch=SAMPLES
    )
    p = np.sort(np.asarray(chains(1.5)[0].levels[0]))
    first = np.bincount(out.tokens[:, 0], minlength=VOCABULARY)
    wanted = np.where(np.asarray(chains(1.5)[0].levels[0]) > p[0], np.asarray(chains(1.5)[0].levels[0]), 0)
    wanted = wanted / wanted.sum()
    assert first[wanted == 0].sum() == 0
    assert chisquare(first[wanted > 0], SAMPLES * wanted[wanted > 0]).pvalue > FALSE_ALARM
    drawn = draw_children(torch.tensor([[0.5, 0.0, 0.5]]), torch.tensor([[0.2, 0.2, 0.2]]))
    assert drawn.tolist() == [[0, 2, -1]]


def decoder_of(shape_of: Callable[[int], Any]) -> RoundDecoder:
    @torch.no_grad()
    def run(target: theory.Chain, draft: theory.Chain, length: int, count: int, rng: np.random.Generator) -> Emitted:
        pair, shape = chain_pair(target, draft, length + 1), TreeShape(shape_of(length))
        noise = image_noise(int(rng.integers(2**31)), range(count), length + 1, shape.nodes, pair.device)
        decoder = TreeDecoder(pair, pair.encode_conditions(count), noise, 1.0, Warp(), shape)
        accepted = decoder.round(LOSSLESS)
        return Emitted(decoder.inputs[:, 1:], accepted)

    return RoundDecoder(run)


def bushy(length: int) -> Any:
    """Three, then two, then one child a node."""
    below: Any = []
    for depth in reversed(range(length)):
        below = [below] * max(1, 3 - depth)
    return below


PAIR = (
    theory.TabularChain(
        [
            np.array([1 / 6, 1 / 3, 1 / 2]),
            np.array([[0.1, 0.6, 0.3], [0.5, 0.2, 0.3], [0.2, 0.2, 0.6]]),
            np.full((3, 3, 3), 1 / 3),
        ]
    ),
    theory.TabularChain(
        [
            np.array([2 / 3, 1 / 6, 1 / 6]),
            np.array([[0.6, 0.2, 0.2], [0.1, 0.3, 0.6], [0.4, 0.4, 0.2]]),
            np.full((3, 3, 3), 1 / 3),
        ]
    ),
)
"""The first laws are FAULTS' siblings case: residual with replacement gives [1/6, 5/12, 5/12], TV 1/12."""


def test_the_kit_finds_the_walk_lossless() -> None:
    options: dict[str, Any] = {"counts": "any", "smallest_tv": 0.03, "timeout": None}
    assert_law(decoder_of(bushy), *PAIR, LOSSLESS, 2, **options)


def broken_siblings(fault: str) -> Any:
    original = trees.try_siblings

    def broken(verifier: Any, p: Tensor, q: Tensor, tokens: Tensor, uniforms: Tensor, depth: int) -> Any:
        if fault == "one uniform":
            uniforms = uniforms[:, :1].expand_as(uniforms)
        if fault == "residual is p":
            child, _ = original(verifier, p, q, tokens, uniforms, depth)
            return child, p
        if fault == "draft not renormalised":
            law, child = p, torch.full(tokens.shape[:1], -1)
            for j in range(tokens.shape[1]):
                tried = (child < 0) & (tokens[:, j] >= 0)
                f = verifier.acceptance(law, q, depth)
                taken = tried & (uniforms[:, j] < f.gather(1, tokens[:, j : j + 1].clamp(min=0))[:, 0])
                child = torch.where(taken, j, child)
                law = torch.where((tried & ~taken)[:, None], verifier.residual(law, q, f), law)
            return child, law
        return original(verifier, p, q, tokens, uniforms, depth)

    return broken


@pytest.mark.parametrize("fault", ["one uniform", "residual is p", "draft not renormalised"])
def test_broken_walks_are_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "try_siblings", broken_siblings(fault))
    assert not check_law(decoder_of(bushy), *PAIR, LOSSLESS, 2, counts="any", smallest_tv=0.03, timeout=None).passed


@pytest.mark.parametrize("fault", ["nothing kept", "wrong node"])
def test_a_wrong_path_in_the_cache_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from validate.models.transformer import TokenSequences

    original = TokenSequences.keep_path

    def broken(self: Any, nodes: Tensor, kept: Tensor, lengths: Tensor) -> None:
        original(self, nodes, *((kept * 0, lengths) if fault == "nothing kept" else (kept, lengths)))

    def moved(self: Any, nodes: Tensor, kept: Tensor, lengths: Tensor) -> None:
        original(self, torch.where(nodes > 0, 1 + nodes % 2, 0), kept, lengths)

    monkeypatch.setattr(TokenSequences, "keep_path", broken if fault == "nothing kept" else moved)
    out = decode_tree(tiny_pair(), LOSSLESS, [[], []], [1] * SAMPLES, device="cpu", batch=SAMPLES)
    law = theory.analyse_sequence(*chains(1.5), LOSSLESS, 1, TOKENS).target_law
    assert fits(out.tokens, law) < FALSE_ALARM


# --- the batch does not matter -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROPOSERS)
def test_batches_and_seeds(name: str) -> None:
    def decoded(**options: Any) -> np.ndarray:
        return decode_tree(
            tiny_pair(), SCHEDULE, TREE, [0, 1] * 20, proposer=proposer_of(name), device="cpu", **options
        ).tokens

    ours = decoded()
    assert (ours == decoded(batch=7)).all()
    assert (ours != decoded(seed=1)).any()


def test_a_chain_accepts_as_often_as_the_ordinary_decoder() -> None:
    from validate.decoding import decode

    tree = decode_tree(tiny_pair(), LOSSLESS, [[[]]], [1] * SAMPLES, device="cpu", batch=SAMPLES)
    plain = decode(tiny_pair(), LOSSLESS, 2, [1] * SAMPLES, device="cpu", batch=SAMPLES)
    assert abs(tree.calls.mean() - plain.calls.mean()) < 5 * plain.calls.std() * np.sqrt(2 / SAMPLES)


def test_the_tree_is_lanterns() -> None:
    shape = TreeShape(tree_of_paths(LANTERN_TREE))
    assert (shape.nodes - 1, shape.depth, len(shape.expanded), CLASSES) == (25, 5, 11, 2)


# --- dynamic trees -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("guidance", [1.0, 1.5])
def test_dynamic_trees_are_lossless(guidance: float) -> None:
    out = decode_tree(
        tiny_pair(guidance),
        LOSSLESS,
        Dynamic(5, 2, 2),
        [1] * SAMPLES,
        proposer=proposer_of("feature"),
        device="cpu",
        batch=SAMPLES,
    )
    law = theory.analyse_sequence(*chains(guidance), LOSSLESS, 1, TOKENS).target_law
    assert fits(out.tokens, law) > FALSE_ALARM
    assert out.accepted.max() >= 2
    assert out.calls.mean() < TOKENS - 0.5


def test_dynamic_trees_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="total in 1…top_k"):
        Dynamic(13, 2, 2)
    with pytest.raises(TypeError, match="cannot choose a dynamic tree"):
        decode_tree(tiny_pair(), LOSSLESS, Dynamic(3, 1, 2), 1, device="cpu")


@given(st.lists(st.integers(0, 20), min_size=1, max_size=12))
def test_tables_of_children(raw: list[int]) -> None:
    parents = [-1, *(min(parent, node) for node, parent in enumerate(raw))]
    table = trees.children_of(torch.tensor([parents]))[0].tolist()
    for node, below in enumerate(table):
        assert [child for child in below if child >= 0] == [v for v, above in enumerate(parents) if above == node]
