"""Rounds on an image of T tokens: where they start, how many there are, and what they cost in bias.

A round that starts behind t tokens keeps i drafts with probability S_i(t) and then emits one more token, so the places
where rounds start form a renewal process. If what a round does depends on where it starts and not on how the tokens
before it came about (exact for independent tokens; otherwise an approximation, with prefixes taken from the target),
then with u_t the probability that a round starts behind t tokens

    u_0 = 1,   u_{t+k+1} += u_t (S_k(t) − S_{k+1}(t))   (k < L),   u_{t+L+1} += u_t S_L(t),

and expected calls are Σ_{t<T} u_t (the offset recursion of `theory.sequences` is exact but needs
sequences of the rule itself).

Every round accepting with probability one half, L = 1, four tokens:

>>> round_starts(np.full((4, 1), 0.5)).round(4).tolist()
[1.0, 0.5, 0.75, 0.625]
"""

from __future__ import annotations

from typing import Any

import numpy as np

from theory.arrays import Array, array_namespace, first_index, real_array, whole_number
from theory.verifiers import AnyVerifier


def round_starts(survival: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    """u_t, the probability that a round starts behind t tokens, t = 0…T−1.

    Parameters
    ----------
    survival : array, shape (..., T, L)
        S_i(t) of a round that starts behind t tokens, non-increasing in i. Entries of positions beyond the last token
        (t + i > T) are ignored.

    Returns
    -------
    float64 array, shape (..., T)

    Raises
    ------
    ValueError
        For entries outside [0, 1].
    """
    s = real_array(survival, "survival")
    if s.ndim < 2:
        raise ValueError(f"survival must have shape (..., T, L), got {s.shape}")
    count, length = s.shape[-2:]
    inside = np.arange(1, length + 1) + np.arange(count)[:, None] <= count
    bad = inside & ~((s >= 0) & (s <= 1 + 1e-9))
    if bad.any():
        index = first_index(bad)
        raise ValueError(f"survival {index} is {s[index]}; a probability was expected")
    rising = inside[..., 1:] & (np.diff(s, axis=-1) > 1e-9)
    if rising.any():
        index = first_index(rising)
        raise ValueError(f"survival rises behind {index}: {s[index]} is followed by a larger value")
    padded = np.concatenate([np.ones((*s.shape[:-1], 1)), s, np.zeros((*s.shape[:-1], 1))], axis=-1)
    ends = padded[..., :-1] - padded[..., 1:]
    starts = np.zeros(s.shape[:-1])
    starts[..., 0] = 1.0
    for t in range(count):
        for k in range(min(length, count - t - 2) + 1):
            starts[..., t + k + 1] += starts[..., t] * ends[..., t, k]
    return starts


def survival_along_paths(
    tokens: Array, target_probs: Array, draft_probs: Array, verifier: AnyVerifier, length: int
) -> Array:
    """A_i/P of a round started behind every token of given paths; averaged over the target's paths it is S_i(t).

    Parameters
    ----------
    tokens : integer array, shape (..., T)
    target_probs, draft_probs : array, shape (..., T, V)
        Laws of every token after its own prefix. Not checked: see `theory.probabilities`.
    verifier : Verifier
    length : int
        L ≥ 1.

    Returns
    -------
    array, shape (..., T, L)
        Entry [t, i−1] is Π_{j≤i} (q f_j / p)(x_{t+j}); zero where t + i > T.

    Notes
    -----
    Oracle: `theory.round_along_paths`, one window at a time.
    """
    length = whole_number(length, "length", 1)
    xp = array_namespace(target_probs, draft_probs)
    count = tokens.shape[-1]
    at = tokens[..., None]
    running = xp.ones_like(target_probs[..., 0])
    weight = xp.ones_like(running) if verifier.stateful else None
    columns = []
    for i in range(length):
        # Entry t meets the token i places further on; past the end there is none.
        ahead = min(i, count)
        p, q, x = target_probs[..., ahead:, :], draft_probs[..., ahead:, :], at[..., ahead:, :]
        step = verifier.step(p, q, i, None if weight is None else weight[..., : count - ahead])
        p_x, kept = (xp.take_along_axis(xp.broadcast_to(a, p.shape), x, axis=-1)[..., 0] for a in (p, step.accepted))
        beyond = xp.zeros_like(running[..., :ahead])
        running = xp.concat([running[..., : count - ahead] * kept / p_x, beyond], axis=-1)
        if weight is not None:
            weight = xp.concat([xp.take_along_axis(step.weight, x, axis=-1)[..., 0], beyond], axis=-1)
        columns.append(running)
    return xp.stack(columns, axis=-1)


__all__ = ["round_starts", "survival_along_paths"]
