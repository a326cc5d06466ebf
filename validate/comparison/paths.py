"""What a verifier does along given images of the target, image by image, without decoding.

Every method is asked about the *same* images, so differences between methods are free of the noise images share. Per
image x ~ P, with m_t the one-step predictive law P̂(· | x_{<t}) of `theory.filter_offsets`:

* KL(p‖out) per token, Σ_t KL(p_t‖m_t)/T, whose mean over images is KL(P‖P̂)/T exactly;
* predictive TV per token, Σ_t TV(m_t, p_t)/T. Its mean is along the target's images, not along the verifier's own;
* the round's bound B, Σ_i (A_{i−1}/P)(x_{<i}) · TV(o_i, p_i) over a round's drafted positions, averaged over the places
  t ≤ T − L where rounds start (renewal weights).
"""

from __future__ import annotations

import numpy as np
import torch

from theory import AnyVerifier
from theory.arrays import Array, array_namespace
from theory.distances import total_variation
from validate.prediction import start_probabilities
from validate.scoring import AnyScores, filter_images

__all__ = ["MEASURES", "bound_from_every_place", "terms_along"]

MEASURES = ("kl_target_output", "predictive_tv", "round_bound")


def bound_from_every_place(tokens: Array, p: Array, q: Array, verifier: AnyVerifier, length: int) -> Array:
    """Terms of a round's bound B from every place it may start at.

    Parameters
    ----------
    tokens : integer array, shape (..., T)
    p, q : array, shape (..., T, V)
        Laws along the tokens.
    verifier : AnyVerifier
    length : int
        1 ≤ L ≤ T.

    Returns
    -------
    array, shape (..., T − L + 1)
        Averaged over the target's images, B of a round that starts behind t tokens.

    Notes
    -----
    Oracle: `theory.round_along_paths`, one window at a time.
    """
    xp = array_namespace(p, q)
    starts = tokens.shape[-1] - length + 1
    running = xp.ones_like(p[..., :starts, 0])
    weight = xp.ones_like(running) if verifier.stateful else None
    bound = xp.zeros_like(running)
    for i in range(length):
        here = slice(i, i + starts)
        p_i, q_i, x = p[..., here, :], q[..., here, :], tokens[..., here, None]
        step = verifier.step(p_i, q_i, i, weight)
        bound = bound + running * total_variation(step.output, p_i)
        p_x, kept = (
            xp.take_along_axis(xp.broadcast_to(a, p_i.shape), x, axis=-1)[..., 0] for a in (p_i, step.accepted)
        )
        running = running * kept / p_x
        if weight is not None:
            weight = xp.take_along_axis(step.weight, x, axis=-1)[..., 0]
    return bound


def terms_along(scores: AnyScores, verifier: AnyVerifier, length: int) -> dict[str, np.ndarray]:
    """One number an image for each of `MEASURES`, shape (n,) each."""
    found = filter_images(scores, verifier, length)
    bounds = torch.cat([bound_from_every_place(*piece, verifier, length) for piece in scores.pieces()])
    starts = start_probabilities(scores, verifier, length)[: bounds.shape[-1]]
    return {
        "kl_target_output": np.asarray(found.kl_target_output.mean(axis=1)),
        "predictive_tv": np.asarray(found.total_variation.mean(axis=1)),
        "round_bound": bounds.cpu().numpy() @ (starts / starts.sum()),
    }
