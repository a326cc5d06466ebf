"""Multi-scale local speculative decoding: draft a whole image at low resolution, accept cell by cell, redraw islands.

1. Draft: `MultiScaleDrafter` writes the anchors and upsamples them to all T cells x.
2. Verify: one target call reads the whole draft and gives p_t(·|x_{<t}) at every cell.
3. Accept cell t iff Σ_{y ∈ B_k(x_t)} p_t(y) ≥ τ (`theory.NeighbourhoodPooling`; B_k: x and its k nearest codes).
4. Islands: rejected cells are dilated by ℓ (Chebyshev distance) and split into 8-connected islands. What lies outside
   stays as it is, whatever is redrawn before it: that is the point of the method, and why it is not lossless.
5. Redraw each island in raster order from the target, one cell a call, all islands side by side: call m gives the m-th
   cell of every island its law behind the image as it then is. The verification serves as call 1, because before any
   island's first cell nothing of that island has changed.

Target calls are max(1, size of the largest island). At τ = 0 the images are the drafter's; with everything rejected
there is one island and the image is the target's own, T calls long.

No likelihood of these images is known: an image's probability sums over all drafts that could have led to it, so only
samples speak of the law (quality, and `simulate.tv_bounds`); on grids of a few cells the law can be enumerated.

Source: MuLo-SD (Peruzzo et al. 2601.05149): low-resolution drafter and learned upsampling, pooled acceptance, local
rejection and resampling with expanded neighbourhoods. Reconstructed: subsampled anchors in place of a second tokenizer,
the upsampler's form, one draft for the whole image instead of pieces behind a verified prefix, islands redrawn side by
side, and every default.

>>> import numpy as np
>>> islands(np.array([[True, False, False, False], [False, False, False, True]]), 0).tolist()
[[1, 0, 0, 0], [0, 0, 0, 2]]
>>> islands(np.array([[True, False, False, False], [False, False, False, True]]), 1).tolist()
[[1, 1, 1, 1], [1, 1, 1, 1]]
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from scipy import ndimage
from torch import Tensor

from theory import NeighbourhoodPooling
from theory.arrays import whole_number
from validate.acceptance import draw
from validate.batches import Batch, Decoded, Options, Round, decode_in_batches
from validate.clock import Clock
from validate.decoder import Writer
from validate.drafters.attached import attached_folder, load_attached
from validate.drafters.multiscale_network import MultiScaleDrafter
from validate.models import Pair, Warp
from validate.models.interface import START
from validate.noise import Noise

__all__ = ["decode_multiscale", "islands", "shipped_multiscale"]


def islands(rejected: np.ndarray, radius: int) -> np.ndarray:
    """Numbers 1, 2, … of the islands that rejected cells, bool (rows, columns), dilate to; 0 outside."""
    if radius:
        size = 2 * radius + 1
        rejected = ndimage.binary_dilation(rejected, structure=np.ones((size, size), dtype=bool))
    return np.asarray(ndimage.label(rejected, structure=np.ones((3, 3), dtype=bool))[0], dtype=np.int64)


def redraw_calls(rejected: np.ndarray, radius: int) -> np.ndarray:
    """Which call redraws each cell, 1 for the raster-first of an island, 0 for cells that stay; (rows, columns)."""
    numbers = islands(rejected, radius).ravel()
    order = np.zeros_like(numbers)
    for island in range(1, int(numbers.max(initial=0)) + 1):
        order[numbers == island] = np.arange(1, int((numbers == island).sum()) + 1)
    return order.reshape(rejected.shape)


def shipped_multiscale(pair: Pair, folder: str | Path | None = None) -> MultiScaleDrafter:
    """Low-resolution drafter of an embedded pair, by default the one that ships.

    Raises
    ------
    FileNotFoundError
        None there; `python -m validate.training multiscale` makes one.
    WeightsError
        Damaged, or of another target.
    """
    place = attached_folder(pair, "multiscale") if folder is None else Path(folder)
    return load_attached(MultiScaleDrafter, place, pair, "python -m validate.training multiscale --out …")


class MultiScaleDecoder:
    """State of a batch: `turn` is one target call of every image that is not finished.

    Progress counts cells that will not change any more.
    """

    def __init__(
        self,
        drafter: MultiScaleDrafter,
        rule: NeighbourhoodPooling,
        radius: int,
        pair: Pair,
        conditions: Any,
        noise: Noise,
        guidance: float,
        warp: Warp,
    ) -> None:
        rows, total, device = len(conditions), pair.num_tokens, pair.device
        self.drafter, self.rule, self.radius, self.pair, self.noise = drafter, rule, radius, pair, noise
        self.conditions, self.warp = conditions, warp
        self.target = Writer(pair.target, conditions, guidance, warp)
        self.inputs = torch.zeros((rows, total + 1), dtype=torch.int64, device=device)
        self.inputs[:, 0] = START
        self.order = torch.zeros((rows, total), dtype=torch.int64, device=device)
        self.call = 0
        self.rows = torch.arange(rows, device=device)
        self.sound = torch.ones(rows, dtype=torch.bool, device=device)
        self.clock = Clock(device)

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only."""
        self.target.keep(rows)
        self.noise = self.noise.rows(rows)
        for name in ("conditions", "inputs", "order", "rows", "sound"):
            setattr(self, name, getattr(self, name)[rows])

    def check(self) -> None:
        """Refuse laws that nothing could be drawn from."""
        bad = torch.nonzero(~self.sound)
        if len(bad):
            raise ValueError(f"image {int(self.rows[bad[0]])} of the batch: a law is not finite, or zero everywhere")

    def progress(self) -> tuple[np.ndarray, np.ndarray]:
        """Cells that will not change any more, and T."""
        total = self.pair.num_tokens
        waiting = (self.order > self.call).sum(dim=1).cpu().numpy()
        return np.where(self.call > 0, total - waiting, 0), np.full(len(waiting), total)

    def _draw(self, laws: Tensor, uniforms: Tensor, needed: Tensor | None = None) -> Tensor:
        drawn = draw(laws, uniforms)
        self.sound &= drawn.sound if needed is None else drawn.sound | ~needed
        return drawn.token

    def draft(self) -> None:
        """A whole image of every row, from the coarse model and the upsampler."""
        anchors, uniforms = self.drafter.anchors, self.noise.draft[..., 0]
        coarse = self.drafter.coarse.start(self.conditions, 1.0)
        newest, lengths = self.inputs[:, :1], torch.zeros(len(self.inputs), dtype=torch.int64, device=anchors.device)
        chosen = []
        for place in anchors:
            law = torch.softmax(self.warp(coarse.logits(newest, lengths)[:, -1]), dim=-1)
            newest = self._draw(law, uniforms[:, place])[:, None]
            chosen.append(newest)
            lengths = lengths + 1
        coarse_tokens = torch.cat(chosen, dim=1)
        laws = torch.softmax(self.warp(self.drafter.upsample(coarse_tokens, self.conditions).float()), dim=-1)
        for cell in range(self.pair.num_tokens):
            self.inputs[:, cell + 1] = self._draw(laws[:, cell], uniforms[:, cell])
        self.inputs[:, anchors + 1] = coarse_tokens

    def turn(self) -> Tensor:
        """Cells that the call left alone for good if it verifies, else 0; −1 for images that were finished."""
        total = self.pair.num_tokens
        verifies = self.call == 0
        self.clock.start()
        if verifies:
            self.draft()
            self.clock.lap("draft", len(self.drafter.anchors) + 1)
        active = (self.order > self.call).any(dim=1) | verifies
        start = torch.zeros(len(self.inputs), dtype=torch.int64, device=self.inputs.device)
        laws = self.target.laws(self.inputs[:, :total], start)
        self.clock.lap("verify", 1)
        if verifies:
            self._judge(laws)
        self.call += 1
        now = self.order == self.call
        row, cell = torch.nonzero(now, as_tuple=True)
        if len(row):
            drawn = draw(laws[row, cell], self.noise.residual[row, cell])
            self.sound[row[~drawn.sound]] = False
            self.inputs[row, cell + 1] = drawn.token
        self.clock.lap("accept")
        stayed = (self.order == 0).sum(dim=1) if verifies else torch.zeros_like(self.rows)
        return torch.where(active, stayed, -1)

    def _judge(self, laws: Tensor) -> None:
        """Accept cells and set which call redraws the others."""
        tokens = self.inputs[:, 1:, None]
        f = torch.take_along_dim(self.rule.acceptance(laws, laws, 0), tokens, -1)[..., 0]
        grids = (f < 0.5).cpu().numpy().reshape(len(f), *self.pair.grid)
        order = np.stack([redraw_calls(grid, self.radius) for grid in grids])
        self.order = torch.from_numpy(order.reshape(len(f), -1)).to(self.order.device)


def decode_multiscale(
    pair: Pair,
    drafter: MultiScaleDrafter,
    rule: NeighbourhoodPooling,
    radius: int,
    images: Any,
    **options: Unpack[Options],
) -> Decoded:
    """Decode images from low-resolution drafts.

    Parameters
    ----------
    pair : Pair
        Class-conditional, on a square grid; only its target is used.
    drafter : MultiScaleDrafter
        From `shipped_multiscale`, or trained with `python -m validate.training multiscale`; it imitates the target at
        the guidance it was trained on.
    rule : NeighbourhoodPooling
        k and τ.
    radius : int
        ℓ ≥ 0.
    images, **options
        As for `validate.decode`.

    Returns
    -------
    Decoded
        An image's first entry of `accepted` is the number of drafted cells that stay, the others are zero; `calls` are
        its target calls, `starts` the cells that were final before each.

    Raises
    ------
    ValueError
        For a drafter of another grid, vocabulary or number of classes, and as `validate.decode`.

    Notes
    -----
    Source: 2601.05149, reconstructed. Oracle: the law enumerated over drafts and redraws on a grid of nine cells.
    """
    radius = whole_number(radius, "radius", 0)
    if not isinstance(drafter, MultiScaleDrafter):
        raise TypeError(f"drafter must be a MultiScaleDrafter, as of shipped_multiscale; got {type(drafter).__name__}")
    if not isinstance(rule, NeighbourhoodPooling):
        raise ValueError(f"rule must be a theory.NeighbourhoodPooling, got {rule!r}")
    for what, ours, theirs in (
        ("grid", pair.grid, (drafter.side, drafter.side)),
        ("vocabulary", pair.vocab_size, drafter.vocab_size),
        ("number of classes", pair.num_classes, drafter.num_classes),
    ):
        if ours != theirs:
            raise ValueError(f"the drafter's {what} is {theirs}, that of pair {pair.name!r} is {ours}")
    if len(rule.neighbours) != pair.vocab_size:
        raise ValueError(f"the rule knows neighbours of {len(rule.neighbours)} tokens, the pair has {pair.vocab_size}")

    def begin(batch: Batch) -> tuple[MultiScaleDecoder, Round]:
        noise = batch.noise(1)
        # Moved as a copy: the caller keeps the drafter where it is.
        own = copy.deepcopy(drafter).to(batch.pair.device)
        decoder = MultiScaleDecoder(
            own, rule, radius, batch.pair, batch.conditions[0], noise, batch.guidance, batch.warp
        )
        return decoder, decoder.turn

    return decode_in_batches(pair, images, begin, drafted=pair.num_tokens - 1, **options)
