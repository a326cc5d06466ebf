"""LlamaGen's tokenizer, decoding only: codes to pixels.

Definitions. Token v is row v of a codebook, divided by max(‖row‖, 1e-12) when it is looked up (unless the tokenizer
was trained without). Codes of an h × w grid, row by row, are drawn by a `VQGANDecoder` that attends in the middle and
on its first level; channels, blocks and levels are read off the tensors: five levels make VQ-16, four VQ-8.

Pixels come out about [−1, 1] and are given in [0, 1]: y = (x + 1)/2, cut off. An 8-bit value is
trunc(127.5 x + 128) = trunc(255 y + ½) within 0…255.

Source: Sun et al., LlamaGen, arXiv:2406.06525; names of the tensors as in its public files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from validate.models.interface import check_tokens
from validate.models.tensors import WeightsError
from validate.models.vqgan import VQGANDecoder

__all__ = ["LlamaGenTokenizer", "eight_bit"]


def eight_bit(pixels: Tensor) -> Tensor:
    """8-bit values of pixels in [0, 1], as the public code saves them.

    >>> eight_bit(torch.tensor([0.0, 0.5, 1.0])).tolist()
    [0, 128, 255]
    """
    return (255.0 * pixels + 0.5).clamp(0, 255).to(torch.uint8)


class LlamaGenTokenizer(VQGANDecoder):
    """Decoder of a LlamaGen VQ tokenizer; offers `validate.models.interface.PixelDecoder`.

    Parameters
    ----------
    vocab_size, code_width, inside, levels, blocks
        See `VQGANDecoder`.
    grid : (rows, columns)
    unit : bool
        Whether codes are normalised when looked up.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        code_width: int,
        inside: int,
        levels: Sequence[int],
        blocks: int,
        grid: tuple[int, int],
        unit: bool = True,
    ) -> None:
        super().__init__(
            vocab_size=vocab_size,
            code_width=code_width,
            inside=inside,
            levels=levels,
            blocks=blocks,
            attends=[i == 0 for i in range(len(levels))],
        )
        self.grid, self.unit = grid, unit

    @classmethod
    def like(
        cls, shapes: Mapping[str, tuple[int, ...]], grid: tuple[int, int], unit: bool, where: str
    ) -> LlamaGenTokenizer:
        """A network of the shape its tensors tell, on the current default device.

        Raises
        ------
        WeightsError
            A tensor that decides the shape is missing or no group norm of 32 groups fits.
        """

        def of(key: str, axis: int) -> int:
            if len(shapes.get(key, ())) <= axis:
                raise WeightsError(f"{where} lacks tensor {key!r}")
            return shapes[key][axis]

        found = [re.match(r"decoder\.conv_blocks\.(\d+)\.res\.(\d+)\.conv2\.weight", key) for key in shapes]
        places = {(int(match[1]), int(match[2])) for match in found if match}
        levels = max((level for level, _ in places), default=0) + 1
        try:
            return cls(
                vocab_size=of("quantize.embedding.weight", 0),
                code_width=of("quantize.embedding.weight", 1),
                inside=of("post_quant_conv.weight", 0),
                levels=[of(f"decoder.conv_blocks.{level}.res.0.conv2.weight", 0) for level in range(levels)],
                blocks=max(block for _, block in places) + 1,
                grid=grid,
                unit=unit,
            )
        except ValueError as error:
            raise error if isinstance(error, WeightsError) else WeightsError(f"{where}: {error}") from error

    @property
    def num_tokens(self) -> int:
        """T, tokens of an image."""
        return self.grid[0] * self.grid[1]

    @property
    def codebook(self) -> Tensor:
        """Rows as tokens are looked up, shape (V, code width)."""
        rows = super().codebook
        return functional.normalize(rows, dim=-1, eps=1e-12) if self.unit else rows

    def codes(self, tokens: Tensor) -> Tensor:
        """Code vectors of tokens (B, T) on the grid, shape (B, code width, rows, columns)."""
        check_tokens(tokens, self.num_tokens, self.vocab_size)
        return self.codebook[tokens].transpose(1, 2).reshape(len(tokens), -1, *self.grid)

    @torch.no_grad()
    def decode(self, tokens: Tensor) -> Tensor:
        """Pixels in [0, 1], float32, shape (B, 3, H, W), of tokens (B, T).

        Raises
        ------
        ValueError
            The shape is wrong or a token lies outside the codebook; names index and value.
        """
        pixels: Tensor = self(self.codes(tokens))
        return ((pixels.float() + 1.0) / 2.0).clamp(0.0, 1.0)

    def tables(self) -> Sequence[Tensor]:
        """Every tensor that decoding uses, the codebook first."""
        return list(self.state_dict().values())
