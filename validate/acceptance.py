"""Acceptance arithmetic of a round on the networks' device: f at the drafted tokens, one residual row, one draw.

Accept x_i while u_i < f_i(x_i); replace the first refused draft by a token from its residual; after L accepted drafts
draw one from p. Rules and residuals are the theory's own, on float32 tensors of any device. What keeps them cheap
beside the softmaxes they follow (V = 16384, L = 5, 32 rows: see `python -m tests.bench`):

* a rule that looks at p(x) and q(x) alone is evaluated at the L drafted tokens, not on (B, L, V) numbers;
* the residual is built for the one row of a block that ends it, (B, V) numbers;
* a draw inverts the distribution function in two levels, sums of blocks first and running sums inside one block after:
  the whole distribution function is never written down.

The host waits for the device once, in `accepted_drafts`: positions of a schedule are host numbers in the theory. The
few positions and factors it sends to the device right before and after may wait as well, with nothing left to wait
for; block verifiers and rules from outside the theory, whose answers are checked, may wait more often.

>>> p, q = (torch.tensor([[[0.5, 0.3, 0.2]]]), torch.tensor([[[0.2, 0.3, 0.5]]]))
>>> lossless, drafted = theory.Verifier(theory.Lossless()), np.array([1])
>>> verify_block(lossless, torch.tensor([[2]]), p, q, drafted, torch.tensor([[0.5]]))
(tensor([0]), tensor([[1., 0., 0.]]))
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import theory
from theory import AnyVerifier
from theory.verifiers import residual_after

__all__ = ["Accepted", "Drawn", "accepted_drafts", "draw", "residual_row", "verify_block"]

BLOCK = 128
"""Tokens summed together before a draw looks inside: about √V at V = 16384, where both levels cost the same."""


class Accepted(NamedTuple):
    """How far every row of a batch got."""

    kept: Tensor
    """int64, shape (B,): accepted drafts."""
    kept_host: np.ndarray
    """The same on the host."""
    f: Tensor | None
    """Of a rule that looks at whole laws, shape (B, L, V)."""
    weight: Tensor | None
    """Of a verifier that carries one, shape (B, L+1)."""


def accepted_drafts(
    verifier: AnyVerifier, tokens: Tensor, p: Tensor, q: Tensor, drafted: np.ndarray, uniforms: Tensor
) -> Accepted:
    """Accepted drafts of each row, by `theory.accepted_drafts`, here and on the host.

    Parameters
    ----------
    verifier : AnyVerifier
    tokens : int64 Tensor, shape (B, L)
    p, q : Tensor, shape (B, L, V)
    drafted : int64 array, shape (B,)
        How many of the L tokens each row really drafted.
    uniforms : float64 Tensor, shape (B, L)
    """
    found = theory.accepted_drafts(verifier, tokens, p, q, uniforms, drafted, check=False)
    count = found.count.to(torch.int64)
    return Accepted(count, count.cpu().numpy(), found.acceptance, found.weights)


def residual_row(verifier: AnyVerifier, accepted: Accepted, tokens: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """Law of the token behind the accepted drafts, shape (B, V); of no meaning where all L were accepted."""
    last = tokens.shape[1] - 1
    at, place = np.minimum(accepted.kept_host, last), accepted.kept.clamp(max=last)
    row = torch.arange(len(tokens), device=tokens.device)
    p, q = p[row, place], q[row, place]
    if accepted.weight is not None:
        residual: Tensor = verifier.step(p, q, at, accepted.weight[row, place]).residual
        return residual
    f = None if accepted.f is None else accepted.f[row, place]
    law: Tensor = residual_after(verifier, p, q, f, tokens[row, place], at)
    return law


def verify_block(
    verifier: AnyVerifier, tokens: Tensor, p: Tensor, q: Tensor, drafted: Any, uniforms: Tensor
) -> tuple[Tensor, Tensor]:
    """Accepted drafts (B,) and the residual behind them (B, V); arguments as for `accepted_drafts`."""
    drafted = drafted.cpu().numpy() if isinstance(drafted, Tensor) else np.asarray(drafted)
    accepted = accepted_drafts(verifier, tokens, p, q, drafted, uniforms)
    return accepted.kept, residual_row(verifier, accepted, tokens, p, q)


class Drawn(NamedTuple):
    """What `draw` returns."""

    token: Tensor
    """int64, shape (B,)."""
    sound: Tensor
    """bool, shape (B,): whether the row's masses have a positive finite sum; the token means nothing where not."""


def draw(masses: Tensor, uniforms: Tensor) -> Drawn:
    """Token drawn from each row of masses by inversion, without a wait for the device.

    Parameters
    ----------
    masses : Tensor, shape (B, V)
        Not negative; scaled by their own sum.
    uniforms : float64 Tensor, shape (B,)
        u ∈ [0, 1).

    Returns
    -------
    Drawn

    Notes
    -----
    x(u) = the smallest x with mass and c_x > u·c_{V−1}, sums in float64. Oracle: `simulate.draws.categorical`, which
    writes all partial sums down; tokens agree unless u lies within rounding of a partial sum. Zero masses are
    excluded by name, because a parallel sum need not be monotone.
    """
    size = masses.shape[-1]
    blocks = -(-size // BLOCK)
    if size % BLOCK:
        masses = torch.nn.functional.pad(masses, (0, blocks * BLOCK - size))
    tiles = masses.reshape(-1, blocks, BLOCK)
    # Sums of 128 float32 numbers lose some 1e-7 of a block in float32; float64 keeps the tail of a large vocabulary.
    sums = tiles.sum(dim=-1, dtype=torch.float64)
    running = sums.cumsum(dim=-1)
    level = uniforms * running[:, -1]
    block = _first((running > level[:, None]) & (sums > 0), sums > 0)
    row = torch.arange(len(masses), device=masses.device)
    inside = tiles[row, block].double()
    before = torch.where(block > 0, running[row, (block - 1).clamp(min=0)], 0.0)
    token = _first((before[:, None] + inside.cumsum(dim=-1) > level[:, None]) & (inside > 0), inside > 0)
    # A row that is not sound may point into the padding.
    return Drawn((block * BLOCK + token).clamp(max=size - 1), (running[:, -1] > 0) & (running[:, -1] < torch.inf))


def _first(wanted: Tensor, otherwise: Tensor) -> Tensor:
    """First true column of each row; where there is none, the last true one of `otherwise`."""
    last = otherwise.shape[-1] - 1 - otherwise.flip(-1).to(torch.int8).argmax(dim=-1)
    return torch.where(wanted.any(dim=-1), wanted.to(torch.int8).argmax(dim=-1), last)
