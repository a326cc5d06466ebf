"""Jacobi decoding of whole images: the target network is its own draft, one iteration late.

A window of W drafts stands behind the known tokens. One target call gives p_i(·| tokens, y_{<i}) at every place of the
window and one behind. Drafts are tested in order with f(p_i, q_i)(y_i), q_i the law that y_i was drawn from; the first
refused draft is replaced from the residual, and after W accepted ones a token is drawn from p. Drafts behind the end
are drawn anew from q'_i = p_i, computed behind drafts that may have changed since. Places the window newly reaches hold
uniformly random tokens, declared as a point mass ("one_hot") or as uniform (Teng et al. 2410.01699).

How the next draft z ~ q' depends on the last one y ~ q (So et al. 2510.24211):

* "independent": not at all
* "maximal": z = y with probability min(1, q'(y)/q(y)), else z ~ Norm[q' − q]_+, so that P(z = y) = 1 − TV(q, q')
* "gumbel": z = argmin_x E_x/q'(x) with exponential E_x that belong to the place: P(z = y) ≥ (1 − TV)/(1 + TV)

Lossless verification keeps the target's law with any of them: a place's drafts influence later places only, so that
given all that happened before it, the draft has its declared law. That needs noise of one place never to be used at
another, and tests and replacements to have noise of their own. All noise belongs to the image (`validate.noise`).

A place stays within reach of the window for at most W+1 iterations, since each iteration emits a token.

>>> import theory, validate
>>> run = decode_jacobi(validate.load("fashion", device="cpu"), theory.Verifier(theory.Lossless()), 8, 2, device="cpu")
>>> run.tokens.shape, bool((run.calls < 49).all())
((2, 49), True)
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias, Unpack, get_args

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

import theory
from simulate.draws import categorical
from theory import AnyVerifier
from validate.acceptance import verify_block
from validate.batches import Batch, Decoded, Options, Round, decode_in_batches
from validate.clock import Clock
from validate.decoder import Writer
from validate.models import Pair
from validate.models.interface import START
from validate.noise import Noise

__all__ = ["Coupling", "Fresh", "decode_jacobi"]

Coupling: TypeAlias = Literal["independent", "maximal", "gumbel"]
Fresh: TypeAlias = Literal["one_hot", "uniform"]

RACE_STREAM = 7
"""Spawn key of the uniforms of the exponential races, apart from those of `validate.noise`."""

LOSSLESS = theory.Verifier(theory.Lossless())


class _Tables(NamedTuple):
    """Uniforms of n images, one column for every iteration that may touch a place."""

    redraw: Tensor
    """(n, T, W+1)."""
    keep: Tensor
    """(n, T, W+1): maximal coupling."""
    fresh: Tensor
    """(n, T)."""
    acceptance: Tensor
    """(n, T, W+1)."""
    residual: Tensor
    bonus: Tensor
    """(n, T)."""

    @classmethod
    def of(cls, noise: Noise, window: int) -> _Tables:
        """Tables from noise of 2 W + 3 attempts a place."""
        width = window + 1
        draft = noise.draft
        return cls(
            draft[..., :width],
            draft[..., width : 2 * width],
            draft[..., -1],
            noise.acceptance[..., :width],
            noise.residual,
            noise.bonus,
        )


def race_times(seed: int, image: int, places: range, tokens: int, size: int) -> np.ndarray:
    """Exponential times E_x of some places of one image, (places, V): the same whenever they are asked for."""
    bits = np.random.PCG64(np.random.SeedSequence(int(seed), spawn_key=(RACE_STREAM,)))
    bits.advance((image * tokens + places.start) * size)
    return np.asarray(-np.log1p(-np.random.Generator(bits).random((len(places), size))))


class JacobiDecoder:
    """State of a batch; `iterate` advances every unfinished row by one target call.

    Parameters
    ----------
    batch : Batch
        Its draft is not used.
    window, coupling, fresh : as for `decode_jacobi`
    """

    def __init__(self, batch: Batch, window: int, coupling: Coupling, fresh: Fresh) -> None:
        pair, numbers, seed = batch.pair, batch.numbers, batch.seed
        rows, total, size, device = len(numbers), pair.num_tokens, pair.vocab_size, pair.device
        self.pair, self.seed, self.window, self.coupling, self.fresh = pair, seed, window, coupling, fresh
        self.target = Writer(pair.target, batch.conditions[0], batch.guidance, batch.warp)
        self.noise = _Tables.of(batch.noise(2 * window + 3), window)
        # Places behind the image, so that every row's window has room for what it will not need.
        self.inputs = torch.zeros((rows, total + window + 2), dtype=torch.int64, device=device)
        self.inputs[:, 0] = START
        self.attempts = torch.zeros((rows, total + window + 1), dtype=torch.int64, device=device)
        self.placed = torch.zeros(rows, dtype=torch.int64, device=device)
        self.known = torch.zeros_like(self.placed)
        self.laws = torch.full((rows, window, size), 1.0 / size, device=device)
        self.times = torch.ones((rows, window + 1, size) if coupling == "gumbel" else (rows, 0), device=device)
        self.raced = torch.zeros_like(self.placed)
        self.rows = torch.arange(rows, device=device)
        self.first_image = numbers.start
        self.clock = Clock(device)

    @property
    def left(self) -> Tensor:
        """Tokens each row still lacks."""
        return self.pair.num_tokens - self.placed

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only."""
        self.target.keep(rows)
        self.noise = _Tables(*(table[rows] for table in self.noise))
        for name in ("inputs", "attempts", "placed", "known", "laws", "times", "raced", "rows"):
            setattr(self, name, getattr(self, name)[rows])

    def iterate(self, verifier: AnyVerifier) -> Tensor:
        """One target call of every unfinished row; accepted drafts, −1 for rows that were finished."""
        device, total, window = self.placed.device, self.pair.num_tokens, self.window
        row = torch.arange(len(self.placed), device=device)
        column = row[:, None]
        offset = torch.arange(window + 1, device=device)
        places = self.placed[:, None] + offset
        inside = places < total
        at = torch.clamp(places, max=total - 1)
        attempt = torch.clamp(self.attempts[column, places], max=window)
        block, active = torch.clamp(self.left, max=window), self.left > 0
        self.clock.start()
        self._fill(column, places, at, inside)
        self.clock.lap("draft")
        p = self._target_laws(column, offset)
        self.clock.lap("verify", 1)
        tokens = self.inputs[column, places[:, :-1] + 1]
        u = self.noise.acceptance[column, at, attempt][:, :-1]
        accepted, residual = verify_block(verifier, tokens, p[:, :-1], self.laws, block, u)
        emits = active & (accepted < self.left)
        place = torch.clamp(self.placed + accepted, max=total - 1)
        refused = accepted < block
        law = torch.where(refused[:, None], residual, p[row, accepted])
        uniform = torch.where(refused, self.noise.residual[row, place], self.noise.bonus[row, place])
        slot = self.placed + accepted + 1
        emitted = torch.where(active, accepted + emits, 0)
        drafts = self._redraw(column, places, at, attempt, tokens, p)
        again = (offset >= emitted[:, None]) & inside & active[:, None]
        self.inputs[column, places + 1] = torch.where(again, drafts, self.inputs[column, places + 1])
        self.inputs[row, slot] = torch.where(emits, categorical(law, uniform), self.inputs[row, slot])
        moved = torch.clamp(offset[:-1] + emitted[:, None], max=window)
        self.laws = p[column, moved]
        if self.coupling == "gumbel":
            self.times = self.times[column, torch.clamp(offset + emitted[:, None], max=window)]
            self.raced = torch.clamp(window + 1 - emitted, min=0)
        self.known = again.sum(dim=1)
        self.attempts[column, places] += 1
        self.placed = self.placed + emitted
        self.clock.lap("accept")
        return torch.where(active, accepted, -1)

    def _fill(self, column: Tensor, places: Tensor, at: Tensor, inside: Tensor) -> None:
        """Random tokens where the window holds no draft yet, and the race times of its new places."""
        size, window = self.pair.vocab_size, self.window
        offset = torch.arange(window + 1, device=places.device)
        new = ((offset >= self.known[:, None]) & inside)[:, :-1]
        token = torch.clamp((self.noise.fresh[column, at][:, :-1] * size).to(torch.int64), max=size - 1)
        slot = places[:, :-1] + 1
        self.inputs[column, slot] = torch.where(new, token, self.inputs[column, slot])
        declared = one_hot(token, size).to(self.laws.dtype)
        if self.fresh == "uniform":
            declared = torch.full_like(declared, 1.0 / size)
        self.laws = torch.where(new[..., None], declared, self.laws)
        if self.coupling == "gumbel":
            self._race(places)

    def _race(self, places: Tensor) -> None:
        """Times of the places that the window newly reaches."""
        total, size = self.pair.num_tokens, self.pair.vocab_size
        first = (places[:, 0] + self.raced).tolist()
        stop = torch.clamp(places[:, -1] + 1, max=total).tolist()
        images = (self.first_image + self.rows).tolist()
        wanted = [(i, range(*ends)) for i, ends in enumerate(zip(first, stop, strict=True)) if ends[0] < ends[1]]
        if wanted:
            times = np.concatenate([race_times(self.seed, images[i], some, total, size) for i, some in wanted])
            row = torch.tensor([i for i, some in wanted for _ in some], device=places.device)
            place = torch.tensor([j for _, some in wanted for j in some], device=places.device)
            self.times[row, place - places[row, 0]] = torch.from_numpy(times).to(self.times)

    def _target_laws(self, column: Tensor, offset: Tensor) -> Tensor:
        """Target laws at the window's places and one behind, (B, W+1, V); of no meaning behind the image's end."""
        total = self.pair.num_tokens
        width = min(self.window + 1, total)
        # Where the window would run past the image it is moved back over known tokens.
        first = torch.clamp(self.placed, max=total - width)
        ids = self.inputs[column, first[:, None] + torch.arange(width, device=offset.device)]
        laws = self.target.laws(ids, first)
        return laws[column, torch.clamp((self.placed - first)[:, None] + offset, max=width - 1)]

    def _redraw(
        self, column: Tensor, places: Tensor, at: Tensor, attempt: Tensor, drafted: Tensor, p: Tensor
    ) -> Tensor:
        """A new draft for every place from the law just computed, shape (B, W+1); the last place held none before."""
        if self.coupling == "gumbel":
            return torch.where(p > 0, self.times / p, torch.inf).argmin(dim=-1)
        redraw = self.noise.redraw[column, at, attempt]
        token: Tensor = categorical(p, redraw)
        if self.coupling == "maximal":
            new, old = p[:, :-1], self.laws
            f = torch.take_along_dim(theory.acceptance_of(LOSSLESS, new, old, 0), drafted[..., None], -1)[..., 0]
            rest = categorical(theory.vanilla_residual(new, old, old), redraw[:, :-1])
            token[:, :-1] = torch.where(self.noise.keep[column, at, attempt][:, :-1] < f, drafted, rest)
        return token

    def progress(self) -> tuple[np.ndarray, np.ndarray]:
        """Tokens each row has, and is to have, on the host."""
        placed = self.placed.cpu().numpy()
        return placed, np.full_like(placed, self.pair.num_tokens)

    def check(self) -> None:
        """Nothing: every draw refuses a law that nothing could be drawn from."""


def _check(pair: Pair, verifier: AnyVerifier, window: Any, coupling: Any, fresh: Any) -> None:
    if isinstance(window, bool) or not isinstance(window, (int, np.integer)) or window < 1:
        raise ValueError(f"window must be a whole number >= 1, got {window!r}")
    if window > pair.num_tokens:
        raise ValueError(
            f"window is {window} but an image of pair {pair.name!r} has {pair.num_tokens} tokens; choose a window of "
            f"at most {pair.num_tokens}"
        )
    for name, value, choices in (("coupling", coupling, Coupling), ("fresh", fresh, Fresh)):
        if value not in get_args(choices):
            raise ValueError(f"{name} must be one of {', '.join(get_args(choices))}, got {value!r}")
    if not hasattr(verifier, "step") or verifier.stateful:
        raise ValueError(f"{verifier!r} does not verify token by token; Jacobi decoding needs a token-wise verifier")


def decode_jacobi(
    pair: Pair,
    verifier: AnyVerifier,
    window: int,
    images: Any,
    coupling: Coupling = "independent",
    *,
    fresh: Fresh = "one_hot",
    **options: Unpack[Options],
) -> Decoded:
    """Speculative Jacobi decoding of images (SJD, coupled SJD; GSD and CSD are SJD with their verifiers).

    Parameters
    ----------
    pair : Pair
        From `validate.load`; only its target is used.
    verifier : Verifier
        Token-wise; its position is the place in the window. A lossless one keeps the target's law; the law of any
        other has no closed form here.
    window : int
        1 ≤ W ≤ T drafts.
    images, **options
        As for `validate.decode`.
    coupling : {"independent", "maximal", "gumbel"}
        How a draft depends on the one it replaces.
    fresh : {"one_hot", "uniform"}
        Declared law of the random tokens in places the window newly reaches; both are lossless.

    Returns
    -------
    Decoded
        `accepted` holds the accepted drafts of each iteration, `calls` the iterations, one target call each.

    Raises
    ------
    ValueError
        For a window below one or longer than the image, an unknown coupling or fresh law, a block verifier, or what
        `decode` refuses.
    MemoryError
        The batch does not fit; the message names one that would.

    Notes
    -----
    Source: SJD 2410.01699; MC-SJD / SCD 2510.24211. Oracle: the enumerated law of a network of a few tokens (lossless),
    `simulate.decode_jacobi` on the same laws (relaxed, and calls).
    """
    _check(pair, verifier, window, coupling, fresh)

    def begin(batch: Batch) -> tuple[JacobiDecoder, Round]:
        decoder = JacobiDecoder(batch, window, coupling, fresh)
        return decoder, partial(decoder.iterate, verifier)

    return decode_in_batches(pair, images, begin, drafted=window, **options)
