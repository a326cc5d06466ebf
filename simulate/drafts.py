"""Drafts at a stated distance from their target.

A draft is its target tilted by noise that is fixed for every context, q_σ ∝ p·exp(σ·noise). TV(p, q_σ) never falls as σ
grows: q_σ has a monotone likelihood ratio in the noise, so TV is the largest gap max_c [F_p(c) − F_{q_σ}(c)] between
the two distribution functions of the noise, and every F_{q_σ}(c) falls in σ. Bisection therefore finds the σ of a
stated mean TV. Mixing in a share of the uniform law (`leak`) gives the draft tokens that the target never emits.

>>> from simulate.synthetic import dirichlet_iid
>>> target = dirichlet_iid(5, np.random.default_rng(0))
>>> draft = make_draft(target, 0.25, np.random.default_rng(1))
>>> round(theory.total_variation(target.p, draft.p), 6)
0.25
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np

import theory
from simulate.decoding import sample
from simulate.laws import Floats
from simulate.synthetic import GridChain, softmax
from theory.arrays import real_number, to_numpy, whole_number
from theory.chains import check_depth

SomeChain = TypeVar("SomeChain", bound=theory.Chain)

MEAN_TV_TOLERANCE = 1e-6
"""How near the mean TV of a draft is to the one asked for; the bisection itself goes to rounding."""

LARGEST_TILT = 1e4
"""Largest σ tried. Noises that differ by more than 1e-2 then differ by exp(100) in weight: q is a point mass."""

GRID_SAMPLES = 512
"""Target images over which the mean TV of a `GridChain` draft is taken."""


class _Contexts(NamedTuple):
    """Every law (m, V) of a chain, the share of steps the target spends at each (m,), and the way back to a chain."""

    laws: Floats
    share: Floats
    build: Callable[[Floats], Any]


def _contexts(target: theory.Chain, tokens: int | None, rng: np.random.Generator) -> _Contexts:
    kinds = (theory.TabularChain, theory.MarkovChain, theory.IIDChain, GridChain)
    if not isinstance(target, kinds):
        raise TypeError(f"make_draft knows tabular, Markov, independent and grid chains, not {type(target).__name__}")
    count = (target.depth or 64) if tokens is None else whole_number(tokens, "tokens", 1)
    check_depth(target, count, "target", f"a mean over {count} tokens")
    if isinstance(target, theory.IIDChain):
        return _Contexts(to_numpy(target.p)[None], np.ones(1), lambda laws: theory.IIDChain(laws[0]))
    if isinstance(target, theory.MarkovChain):
        initial, transition = to_numpy(target.initial), to_numpy(target.transition)
        law, visits = initial, np.zeros_like(initial)
        for _ in range(count - 1):
            visits, law = visits + law, law @ transition
        share = np.append(1.0, visits) / count
        return _Contexts(np.vstack([initial, transition]), share, lambda x: theory.MarkovChain(x[0], x[1:]))
    if isinstance(target, theory.TabularChain):
        rows = [to_numpy(target.level(i)) for i in range(target.depth)]
        mass, shares = np.ones(1), []
        for i, row in enumerate(rows):
            shares.append(mass / count if i < count else np.zeros(len(row)))
            mass = (mass[:, None] * row).ravel()
        cuts, shapes = np.cumsum([len(row) for row in rows])[:-1], [level.shape for level in target.levels]
        return _Contexts(
            np.vstack(rows),
            np.concatenate(shares),
            lambda x: theory.TabularChain([a.reshape(s) for a, s in zip(np.split(x, cuts), shapes, strict=True)]),
        )
    images, table = sample(target, count, GRID_SAMPLES, rng), target.table
    seen = np.zeros(table.shape[:2])
    for t in range(count):
        np.add.at(seen, target.neighbours_at(images, np.full(GRID_SAMPLES, t)), 1.0)
    height, width = target.height, target.width
    flat = table.reshape(-1, table.shape[-1])
    return _Contexts(flat, seen.ravel() / seen.sum(), lambda x: GridChain(height, width, x.reshape(table.shape)))


def make_draft(
    target: SomeChain, mean_tv: float, rng: np.random.Generator, tokens: int | None = None, *, leak: float = 0.0
) -> SomeChain:
    """A draft of the target's own kind at a stated mean total variation.

    Parameters
    ----------
    target : TabularChain, MarkovChain, IIDChain or GridChain
    mean_tv : float
        TV(p, q) averaged over positions 0…tokens−1 and over prefixes drawn from the target: exactly (path masses) for
        tabular, Markov and independent chains; over 512 images drawn with `rng` for a grid. Reached to 1e-6.
    rng : numpy.random.Generator
        Draws one noise array per context, and a grid's images.
    tokens : int, optional
        Positions averaged over: all of a finite chain by default, 64 of an endless one.
    leak : float
        Share of the uniform law mixed into q. With leak = 0 the draft charges no token that the target does not.

    Returns
    -------
    Chain
        Of the target's type.

    Raises
    ------
    ValueError
        If the mean TV is out of reach; the message names what this noise can reach.
    TypeError
        For another kind of chain.
    """
    goal = real_number(mean_tv, "mean_tv", least=0.0, most=1.0)
    leak = real_number(leak, "leak", least=0.0, most=1.0)
    contexts = _contexts(target, tokens, rng)
    noise = rng.standard_normal(contexts.laws.shape)
    support = contexts.laws > 0
    log_law = np.where(support, np.log(np.where(support, contexts.laws, 1.0)), -np.inf)

    def draft_laws(sigma: float) -> Floats:
        return np.asarray((1 - leak) * softmax(log_law + sigma * noise) + leak / log_law.shape[1])

    def excess(sigma: float) -> float:
        gaps = np.abs(draft_laws(sigma) - contexts.laws).sum(axis=1) / 2
        return float(contexts.share @ gaps) - goal

    low, high = excess(0.0), excess(LARGEST_TILT)
    if low > MEAN_TV_TOLERANCE or high < -MEAN_TV_TOLERANCE:
        raise ValueError(
            f"a mean TV of {goal} is out of reach: "
            f"this noise with leak={leak} reaches {low + goal:.6g} to {high + goal:.6g}"
        )
    if low >= 0 or high <= 0:
        return contexts.build(draft_laws(0.0 if low >= 0 else LARGEST_TILT))  # type: ignore[no-any-return]
    from scipy.optimize import brentq

    ceiling = 1.0
    while excess(ceiling) < 0:
        ceiling *= 2
    sigma = float(brentq(excess, 0.0, ceiling, xtol=1e-12 * ceiling))
    if abs(excess(sigma)) > MEAN_TV_TOLERANCE:
        raise ValueError(f"bisection ended at a mean TV of {excess(sigma) + goal}, not {goal}")
    return contexts.build(draft_laws(sigma))  # type: ignore[no-any-return]
