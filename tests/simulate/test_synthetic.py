"""Synthetic chains are what they say, and drafts are at the distance they say."""

import numpy as np
import pytest

import simulate
import theory
from theory.chains import all_prefixes


def rng(seed=0):
    return np.random.default_rng(seed)


def mean_tv(target, draft, tokens):
    """Target-weighted mean TV over positions, by enumeration of prefixes."""
    weight, total = np.ones(1), 0.0
    for i in range(tokens):
        p, q = (np.asarray(chain.conditional(all_prefixes(target.vocab_size, i))) for chain in (target, draft))
        total += weight @ np.abs(p - q).sum(axis=1) / 2
        weight = (weight[:, None] * p).ravel()
    return total / tokens


FAMILIES = {
    "tree": lambda: simulate.dirichlet_tree(3, 4, rng()),
    "markov": lambda: simulate.random_markov(3, rng(), 0.5),
    "iid": lambda: simulate.dirichlet_iid(3, rng()),
}


@pytest.mark.parametrize("goal", [0.0, 0.05, 0.3])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_draft_is_at_the_stated_distance(family, goal):
    target = FAMILIES[family]()
    draft = simulate.make_draft(target, goal, rng(1), tokens=4)
    assert type(draft) is type(target)
    assert mean_tv(target, draft, 4) == pytest.approx(goal, abs=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_with_a_leak_too(family):
    target = FAMILIES[family]()
    draft = simulate.make_draft(target, 0.3, rng(1), tokens=4, leak=0.1)
    assert mean_tv(target, draft, 4) == pytest.approx(0.3, abs=1e-6)


def test_a_tree_may_be_averaged_over_its_first_tokens():
    target = FAMILIES["tree"]()
    draft = simulate.make_draft(target, 0.2, rng(1), tokens=2)
    assert draft.depth == 4
    assert mean_tv(target, draft, 2) == pytest.approx(0.2, abs=1e-6)


def test_a_grid_draft_is_near_the_stated_distance_on_fresh_images():
    target = simulate.potts_grid(3, 4, 4, rng())
    draft = simulate.make_draft(target, 0.25, rng(1))
    assert type(draft) is simulate.GridChain
    images = simulate.sample(target, target.depth, 4000, rng(2))
    p, q = (simulate.teacher_forced(chain, images) for chain in (target, draft))
    assert np.abs(p - q).sum(axis=-1).mean() / 2 == pytest.approx(0.25, abs=0.01)


def test_support_of_a_draft():
    target = theory.IIDChain([0.5, 0.5, 0.0])
    assert simulate.make_draft(target, 0.2, rng()).p[2] == 0
    assert simulate.make_draft(target, 0.2, rng(), leak=0.03).p[2] == pytest.approx(0.01)


def test_a_distance_out_of_reach_is_refused_with_what_is_reachable():
    target = simulate.dirichlet_iid(4, rng())
    with pytest.raises(ValueError, match=r"0\.99 is out of reach: this noise with leak=0.0 reaches 0 to 0\.\d+"):
        simulate.make_draft(target, 0.99, rng(1))
    with pytest.raises(ValueError, match=r"0\.0 is out of reach"):
        simulate.make_draft(target, 0.0, rng(1), leak=0.5)
    with pytest.raises(ValueError, match="mean_tv must"):
        simulate.make_draft(target, -0.1, rng(1))
    with pytest.raises(TypeError, match="not str"):
        simulate.make_draft("chain", 0.1, rng(1))


def test_chains_obey_the_protocol_and_reproduce():
    makers = [
        *FAMILIES.values(),
        lambda: simulate.potts_grid(2, 3, 3, rng()),
        lambda: simulate.embedding_chain(8, 2, rng()).chain,
    ]
    for make in makers:
        chain = make()
        assert isinstance(chain, theory.Chain)
        prefix = np.zeros((2, 2), dtype=int)
        laws = np.asarray(chain.conditional(prefix))
        assert np.allclose(laws.sum(axis=1), 1, atol=1e-12)
        assert np.array_equal(laws, np.asarray(make().conditional(prefix)))


def test_grid_neighbours_by_hand():
    grid = simulate.potts_grid(2, 2, 2, coupling=np.log(3))
    # Token 3 has left neighbour token 2 and upper neighbour token 1.
    assert grid.conditional([[0, 1, 1]]).tolist() == [pytest.approx([0.1, 0.9])]
    assert grid.conditional([[0, 0, 1]]).tolist() == [pytest.approx([0.5, 0.5])]
    # Token 2 opens the second row: no left neighbour, above it token 0.
    assert grid.conditional([[0, 1]]).tolist() == [pytest.approx([0.75, 0.25])]
    assert grid.conditional(np.zeros((1, 0), dtype=int)).tolist() == [[0.5, 0.5]]


def test_grid_conditional_at_equals_one_call_a_length():
    grid = simulate.potts_grid(3, 3, 3, rng())
    tokens, lengths = rng(1).integers(0, 3, (60, 9)), rng(2).integers(0, 9, 60)
    one_by_one = [grid.conditional(tokens[i : i + 1, : lengths[i]])[0] for i in range(60)]
    hidden = np.where(np.arange(9) < lengths[:, None], tokens, -1)
    assert np.array_equal(theory.conditional_at(grid, hidden, lengths), one_by_one)


def test_interchangeable_tokens_have_nearly_equal_probabilities():
    made = simulate.embedding_chain(16, 4, rng(), spread=0.0)
    rows = made.chain.transition
    same = made.cluster[:, None] == made.cluster[None, :]
    assert same.sum() == 16 * 4
    assert np.abs(rows[:, :, None] - rows[:, None, :])[:, same].max() < 1e-12
    assert np.abs(rows[:, None] - rows[None, :])[same].max() < 1e-12
    near = simulate.embedding_chain(16, 4, rng(), spread=0.02)
    neighbours = theory.nearest_neighbours(near.embedding, 3)
    assert (near.cluster[neighbours] == near.cluster[:, None]).all()
    assert np.abs(np.log(near.chain.transition[:, neighbours] / near.chain.transition[:, :, None])).max() < 0.5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: simulate.dirichlet_tree(0, 2, rng()), "vocab_size must be a whole number >= 1, got 0"),
        (lambda: simulate.dirichlet_tree(2, 0, rng()), "depth must be a whole number >= 1, got 0"),
        (lambda: simulate.dirichlet_iid(2, rng(), 0.0), "concentration must be positive"),
        (lambda: simulate.potts_grid(0, 2, 2), "height must be a whole number >= 1, got 0"),
        (lambda: simulate.potts_grid(2, 2, 2, field=[0.0, np.nan]), "field must be 2 finite numbers"),
        (lambda: simulate.GridChain(2, 2, np.full((2, 2, 2), 0.5)), r"shape \(V\+1, V\+1, V\)"),
        (lambda: simulate.potts_grid(1, 2, 2).conditional([[0, 1]]), "row 0: a prefix of 2 tokens has no next token"),
        (lambda: simulate.potts_grid(1, 3, 2).conditional([[0], [5]]), "prefix 1 has token 5 at place 0"),
        (lambda: simulate.embedding_chain(4, 2, rng(), temperature=0.0), "temperature must be positive"),
        (lambda: simulate.embedding_chain(4, 2, rng(), clusters=5), "clusters <= 4"),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
