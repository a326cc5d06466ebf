"""Tokens to pixels for the transformers families.

Definitions.  A decoder maps tokens x_1, …, x_T, row by row of the grid, to an image in [0, 1]. ImageGPT's tokens are
colour clusters c_x in [−1, 1]^3 and a token is a pixel, (c_x + 1) / 2. The others hold a codebook, one vector for each
token, and a convolutional network whose output y undoes to pixels as std · y + mean, clamped; mean = std = 1/2 unless
the checkpoint's image processor says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from validate.models.interface import check_tokens

__all__ = ["ClusterDecoder", "NetworkDecoder"]


class ClusterDecoder:
    """ImageGPT's colour table.

    Parameters
    ----------
    clusters : Tensor, shape (V, 3)
        In [−1, 1].
    grid : (rows, columns)
        Of pixels.
    """

    def __init__(self, clusters: Tensor, grid: tuple[int, int]) -> None:
        if clusters.ndim != 2 or clusters.shape[1] != 3 or not bool(torch.isfinite(clusters).all()):
            raise ValueError(f"clusters must be finite of shape (V, 3); got shape {tuple(clusters.shape)}")
        self.clusters, self.grid = clusters, grid

    @property
    def vocab_size(self) -> int:
        """V."""
        return len(self.clusters)

    def decode(self, tokens: Tensor) -> Tensor:
        """Pixels in [0, 1], shape (B, 3, H, W); 255 times them, rounded, are the published 8-bit values."""
        check_tokens(tokens, self.grid[0] * self.grid[1], self.vocab_size)
        colours = ((self.clusters[tokens] + 1) / 2).clamp(0, 1)
        return colours.transpose(1, 2).reshape(len(tokens), 3, *self.grid)

    def tables(self) -> Sequence[Tensor]:
        """The clusters."""
        return (self.clusters,)


class NetworkDecoder:
    """A codebook and a convolutional network.

    Parameters
    ----------
    modules : sequence of torch.nn.Module or Tensor
        What `draw` reads, codebook first: their tensors are the tables.
    draw : callable
        Tokens (B, rows, columns) to the network's output (B, 3, H, W).
    vocab_size : int
    grid : (rows, columns)
    mean, std : sequence of float
        Of the three channels.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module | Tensor],
        draw: Callable[[Tensor], Tensor],
        vocab_size: int,
        grid: tuple[int, int],
        *,
        mean: Sequence[float] = (0.5, 0.5, 0.5),
        std: Sequence[float] = (0.5, 0.5, 0.5),
    ) -> None:
        if len(mean) != 3 or len(std) != 3:
            raise ValueError(f"mean and std hold one number for each of three channels; got {mean} and {std}")
        self._modules, self._draw = tuple(modules), draw
        self.vocab_size, self.grid = vocab_size, grid
        self.mean, self.std = tuple(mean), tuple(std)

    @torch.no_grad()
    def decode(self, tokens: Tensor) -> Tensor:
        """Pixels in [0, 1], shape (B, 3, H, W)."""
        check_tokens(tokens, self.grid[0] * self.grid[1], self.vocab_size)
        drawn = self._draw(tokens.reshape(-1, *self.grid)).float()
        mean, std = (drawn.new_tensor(x)[:, None, None] for x in (self.mean, self.std))
        return (drawn * std + mean).clamp(0, 1)

    def tables(self) -> Sequence[Tensor]:
        """Every tensor the image depends on."""
        found: list[Tensor] = []
        for module in self._modules:
            found.extend([module] if isinstance(module, Tensor) else module.state_dict().values())
        found.append(torch.tensor([self.mean, self.std]))
        return found
