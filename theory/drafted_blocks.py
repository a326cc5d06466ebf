"""What a decoder does with a drafted block: which drafts stay, given its uniforms.

Token-wise verification accepts from left to right, u_i < f_i(x_i), up to the first rejection. Block verification
(`theory.blocks`) tests every index i = 0…L with its own uniform, u_i < h_i, and keeps the last success. A verifier may
carry something along the block; a token-wise one that carries the prefix drafted so far (`theory.optimal_verifier` on
chains whose prices depend on it) is still token-wise.

>>> from theory.blocks import block
>>> p, q = np.tile([1 / 3, 2 / 3], (2, 1)), np.tile([2 / 3, 1 / 3], (2, 1))
>>> tests = block_tests(block(2), np.array([0, 1]), p, q)
>>> tests.weights.tolist(), [round(float(h), 12) for h in tests.success]
([1.0, 0.5, 1.0], [1.0, 0.0, 1.0])
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from theory.arrays import Array, array_namespace, as_floats, device, first_index
from theory.rules import accept_up_to
from theory.verifiers import AnyVerifier, acceptance_of, is_pointwise


def is_block(verifier: AnyVerifier) -> bool:
    """Whether the last success of all indices counts, not the first rejection."""
    return hasattr(verifier, "mass")


class BlockTests(NamedTuple):
    """What a decoder tests along one drafted block; see `block_tests`."""

    weights: Array
    """s_0…s_L, shape (..., L+1)."""
    success: Array
    """h_0…h_L, the probability that the test of each index succeeds, shape (..., L+1); 0 beyond a row's own block."""


def _drafted_tokens(tokens: Array, lengths: np.ndarray[Any, Any], shape: tuple[int, ...], check: bool) -> Array:
    """The drafted tokens, checked; what stands behind a row's own length (a placeholder, −1) becomes token 0."""
    xp = array_namespace(tokens)
    if not xp.isdtype(tokens.dtype, "integral"):
        raise ValueError(f"tokens must be integers, got dtype {tokens.dtype}")
    *batch, length, size = shape
    if lengths.dtype.kind not in "iu" or np.any((lengths < 0) | (lengths > length)):
        raise ValueError(f"lengths must be whole numbers in 0…{length}, one a row, got {lengths!r}")
    behind = np.arange(length) >= np.broadcast_to(lengths, tuple(batch))[..., None]
    tokens = xp.where(xp.asarray(behind, device=device(tokens)), xp.zeros_like(tokens), tokens)
    bad = (tokens < 0) | (tokens >= size)
    if check and bool(xp.any(bad)):
        index = first_index(bad)
        raise ValueError(f"token {index} is {int(tokens[index])}; drafted tokens lie in 0…{size - 1}")
    return tokens


def block_tests(
    verifier: AnyVerifier,
    tokens: Array,
    target_probs: Array,
    draft_probs: Array,
    lengths: Any = None,
    *,
    check: bool = True,
) -> BlockTests:
    """Weights along drafted blocks and the success probability of every index.

    Parameters
    ----------
    verifier : CappedBlock or LiftedBlock
    tokens : integer array, shape (..., L)
        The drafted tokens.
    target_probs, draft_probs : array, shape (..., L, V)
        p and q after every prefix of the block. Not checked: see `theory.probabilities`.
    lengths : integer array, shape (...), optional
        Tokens each row really drafted, ≤ L; what stands behind them is ignored. All L by default.
    check : bool
        Look at the range of the tokens, which waits for a GPU.

    Returns
    -------
    BlockTests
        For `last_success`. The residual at τ < L is ``verifier.step(p, q, τ, weights[τ]).residual`` at that prefix.

    Raises
    ------
    ValueError
        If the verifier carries no weight, the shapes do not match, a length lies outside 0…L, or a drafted token
        outside the vocabulary.
    """
    if not is_block(verifier):
        raise ValueError(f"{verifier} verifies token by token; block_tests needs a block verifier")
    xp = array_namespace(target_probs, draft_probs)
    shape = tuple(target_probs.shape)
    if len(shape) < 2 or shape[-2] < 1 or tuple(draft_probs.shape) != shape or tuple(tokens.shape) != shape[:-1]:
        raise ValueError(
            f"expected tokens (..., L) and laws (..., L, V) with L >= 1, got {tuple(tokens.shape)}, {shape} and "
            f"{tuple(draft_probs.shape)}"
        )
    length = shape[-2]
    drafted = np.full(shape[:-2], length) if lengths is None else np.asarray(lengths)
    tokens = _drafted_tokens(tokens, drafted, shape, check)
    target_probs, draft_probs = as_floats(target_probs), as_floats(draft_probs)
    weight = xp.ones_like(target_probs[..., 0, 0])
    weights, left = [weight], []
    block: Any = verifier
    for i in range(length):
        q, x = draft_probs[..., i, :], tokens[..., i, None]
        mass, _ = block.mass(target_probs[..., i, :], q, i, weight[..., None])
        # M = s − Σ q s', since q s' = min(q, mass); neither s' of other tokens nor a residual is needed.
        left.append(xp.clip(weight - xp.sum(xp.minimum(mass, q), axis=-1), 0.0, None))
        weight = accept_up_to(xp.take_along_axis(mass, x, axis=-1), xp.take_along_axis(q, x, axis=-1))[..., 0]
        weights.append(weight)
    s = xp.stack(weights, axis=-1)
    ended = xp.stack([*left, weight], axis=-1)
    refused = ended + (1 - s)
    one = xp.ones_like(s)
    h = xp.where(refused > 0, ended / xp.where(refused > 0, refused, one), one)
    last = xp.asarray(drafted, device=device(s))[..., None]
    index = xp.arange(length + 1, device=device(s))
    return BlockTests(s, xp.where(index < last, h, xp.where(index == last, s, 0 * one)))


def last_success(success: Array, uniforms: Array) -> Array:
    """τ, the last index whose own uniform lies below its success probability, integers of shape (...).

    Parameters
    ----------
    success : array, shape (..., L+1)
        Of `block_tests`.
    uniforms : array, shape (..., L)
        In [0, 1), one for each index 1…L (index 0 always succeeds), independent of each other and of the drafts.

    Raises
    ------
    ValueError
        If there is not one uniform for each drafted token.
    """
    xp = array_namespace(success, uniforms)
    if success.shape[-1] != uniforms.shape[-1] + 1:
        raise ValueError(
            f"expected one uniform for each of {success.shape[-1] - 1} drafted tokens, got {uniforms.shape[-1]}"
        )
    index = xp.arange(success.shape[-1], device=device(success))
    hit = xp.where(uniforms < success[..., 1:], index[1:], xp.zeros_like(index[1:]))
    none = xp.zeros_like(success[..., :1], dtype=hit.dtype)
    return xp.max(xp.concat([none, hit], axis=-1), axis=-1)


class AcceptedDrafts(NamedTuple):
    """How far every row got; see `accepted_drafts`."""

    count: Array
    """Accepted drafts, integers of shape (...)."""
    weights: Array | None
    """What the verifier carries to index 0…L, shape (..., L+1); None if it carries nothing."""
    acceptance: Array | None
    """f of a rule that looks at whole laws, shape (..., L, V), for the residual; None of other verifiers."""


def accepted_drafts(
    verifier: AnyVerifier,
    tokens: Array,
    target_probs: Array,
    draft_probs: Array,
    uniforms: Array,
    lengths: Any = None,
    *,
    check: bool = True,
) -> AcceptedDrafts:
    """How many drafted tokens a decoder keeps, for given uniforms.

    Parameters
    ----------
    verifier : AnyVerifier
    tokens, target_probs, draft_probs, lengths, check
        As for `block_tests`.
    uniforms : array, shape (..., L)
        In [0, 1), one for each drafted token, independent of each other and of the drafts.

    Returns
    -------
    AcceptedDrafts
        The token behind τ < L accepted drafts comes from ``verifier.step(p, q, τ, weights[τ]).residual`` at that
        prefix, or, for a residual that looks at the rejected token, from `residual_after`.

    Raises
    ------
    ValueError
        As `block_tests`.

    Notes
    -----
    Oracle: `theory.analyse_round`, whose law decoding with these counts has.
    """
    if is_block(verifier):
        tests = block_tests(verifier, tokens, target_probs, draft_probs, lengths, check=check)
        return AcceptedDrafts(last_success(tests.success, uniforms), tests.weights, None)
    xp = array_namespace(target_probs, draft_probs)
    length = tokens.shape[-1]
    drafted = np.full(tuple(tokens.shape[:-1]), length) if lengths is None else np.asarray(lengths)
    x = _drafted_tokens(tokens, drafted, tuple(target_probs.shape), check)[..., None]
    f, weights = None, None
    if verifier.stateful:
        weight = xp.ones_like(target_probs[..., 0, 0])
        weights, chances = [weight], []
        for i in range(length):
            q, at = draft_probs[..., i, :], x[..., i, :]
            step = verifier.step(target_probs[..., i, :], q, i, weight)
            q_x, accepted = (xp.take_along_axis(a, at, axis=-1)[..., 0] for a in (q, step.accepted))
            chances.append(accepted / xp.where(q_x > 0, q_x, xp.ones_like(q_x)))
            weight = xp.take_along_axis(step.weight, at, axis=-1)[..., 0]
            weights.append(weight)
        chance = xp.stack(chances, axis=-1)
        weights = xp.stack(weights, axis=-1)
    elif is_pointwise(verifier):
        p_x, q_x = (xp.take_along_axis(a, x, axis=-1) for a in (target_probs, draft_probs))
        chance = xp.broadcast_to(acceptance_of(verifier, p_x, q_x, np.arange(length)), x.shape)[..., 0]
    else:
        f = xp.broadcast_to(acceptance_of(verifier, target_probs, draft_probs, np.arange(length)), draft_probs.shape)
        chance = xp.take_along_axis(f, x, axis=-1)[..., 0]
    inside = xp.asarray(np.arange(length) < drafted[..., None], device=device(tokens))
    kept = xp.astype((uniforms < chance) & inside, xp.int64)
    return AcceptedDrafts(xp.sum(xp.cumulative_prod(kept, axis=-1), axis=-1), weights, f)
