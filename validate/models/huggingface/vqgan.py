"""The convolutional decoder behind Chameleon's image tokens, which transformers does not implement.

Source: Esser et al., "Taming Transformers for High-Resolution Image Synthesis", arXiv:2012.09841; the layout of keys is
that of its public code, which Chameleon's ``vqgan.ckpt`` follows: ``quantize.embedding``, ``post_quant_conv`` and
``decoder.{conv_in, mid.block_1, mid.attn_1, mid.block_2, up.{level}.block.{i}, up.{level}.attn.{i},
up.{level}.upsample.conv, norm_out, conv_out}``. Level 0 is the finest and is run last. With channel multipliers
m_0, …, m_L and c base channels, level l has c·m_l channels, and all levels but 0 end by doubling the picture's sides.

The residual and attention blocks are those of transformers' Chameleon encoder: the encoder's mirror image.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional
from transformers.models.chameleon import modeling_chameleon

__all__ = ["VQGANDecoder", "read_vqgan"]

_Attention: Any = modeling_chameleon.ChameleonVQVAEEncoderAttnBlock
_Residual: Any = modeling_chameleon.ChameleonVQVAEEncoderResnetBlock


class _Upsample(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        larger: Tensor = self.conv(functional.interpolate(x, scale_factor=2.0, mode="nearest"))
        return larger


class _Level(nn.Module):
    def __init__(self, config: Any, channels: int, out: int, attend: bool, grow: bool) -> None:
        super().__init__()
        blocks = [
            _Residual(config, in_channels=out if i else channels, out_channels=out)
            for i in range(config.num_res_blocks + 1)
        ]
        self.block = nn.ModuleList(blocks)
        self.attn = nn.ModuleList(_Attention(out) for _ in blocks if attend)
        self.upsample = _Upsample(out) if grow else None

    def forward(self, x: Tensor) -> Tensor:
        for i, block in enumerate(self.block):
            x = block(x)
            if len(self.attn):
                x = self.attn[i](x)
        return x if self.upsample is None else self.upsample(x)


class _Middle(nn.Module):
    def __init__(self, config: Any, channels: int) -> None:
        super().__init__()
        self.block_1 = _Residual(config, in_channels=channels, out_channels=channels)
        attend = config.attn_type == "vanilla"
        self.attn_1 = _Attention(channels) if attend else nn.Identity()
        self.block_2 = _Residual(config, in_channels=channels, out_channels=channels)

    def forward(self, x: Tensor) -> Tensor:
        changed: Tensor = self.block_2(self.attn_1(self.block_1(x)))
        return changed


class _Network(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        widths = [config.base_channels * factor for factor in config.channel_multiplier]
        levels = len(widths)
        self.conv_in = nn.Conv2d(config.latent_channels, widths[-1], 3, padding=1)
        self.mid = _Middle(config, widths[-1])
        self.up = nn.ModuleList(
            _Level(
                config,
                widths[min(level + 1, levels - 1)],
                widths[level],
                config.resolution // 2**level in (config.attn_resolutions or ()) and config.attn_type == "vanilla",
                level > 0,
            )
            for level in range(levels)
        )
        self.norm_out = nn.GroupNorm(32, widths[0], eps=1e-6)
        self.conv_out = nn.Conv2d(widths[0], 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.mid(self.conv_in(x))
        for level in reversed(self.up):
            x = level(x)
        drawn: Tensor = self.conv_out(functional.silu(self.norm_out(x)))
        return drawn


class VQGANDecoder(nn.Module):
    """Codes to pictures.

    Parameters
    ----------
    config : transformers.ChameleonVQVAEConfig
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.codebook = nn.Embedding(config.num_embeddings, config.embed_dim)
        self.post_quant_conv = nn.Conv2d(config.embed_dim, config.latent_channels, 1)
        self.decoder = _Network(config)

    @classmethod
    def filled(cls, config: Any, tensors: Mapping[str, Tensor]) -> VQGANDecoder:
        """Decoder holding the tensors of `read_vqgan`, every one of them used and none missing.

        Raises
        ------
        ValueError
            A tensor is missing, extra, of another shape or not finite; names it.
        """
        with torch.device("meta"):
            network = cls(config)
        renamed = {key.replace("quantize.embedding.", "codebook."): value for key, value in tensors.items()}
        expected = network.state_dict()
        for key, value in expected.items():
            if key not in renamed:
                raise ValueError(f"the pixel decoder lacks tensor {key!r} of shape {tuple(value.shape)}")
            if renamed[key].shape != value.shape:
                raise ValueError(
                    f"pixel decoder: tensor {key!r} has shape {tuple(renamed[key].shape)}, "
                    f"expected {tuple(value.shape)}"
                )
            if not bool(torch.isfinite(renamed[key]).all()):
                raise ValueError(f"pixel decoder: tensor {key!r} holds a value that is not finite")
        extra = sorted(set(renamed) - set(expected))
        if extra:
            raise ValueError(f"the pixel decoder holds an extra tensor {extra[0]!r}")
        network.load_state_dict({key: value.float() for key, value in renamed.items()}, strict=True, assign=True)
        return network.eval().requires_grad_(False)

    def forward(self, codes: Tensor) -> Tensor:
        """Pictures in about [−1, 1], shape (B, 3, H, W), of codes (B, rows, columns)."""
        latent = self.post_quant_conv(self.codebook(codes).permute(0, 3, 1, 2))
        drawn: Tensor = self.decoder(latent)
        return drawn


def read_vqgan(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Decoding half of a VQGAN file: safetensors, or a pickle that torch's weights-only loader accepts.

    Raises
    ------
    FileNotFoundError, ValueError
        No such file; not readable so; holds no decoder.
    """
    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"{file} is missing; pixels=… is a VQGAN file such as Chameleon's vqgan.ckpt")
    try:
        if file.suffix == ".safetensors":
            stored: Any = load_file(file)
        else:
            stored = torch.load(file, map_location="cpu", weights_only=True)
    except (SafetensorError, RuntimeError, EOFError, ValueError, OSError) as error:
        raise ValueError(f"{file} is not readable as weights: {error}") from error
    except Exception as error:  # pickle.UnpicklingError and what unpickling may raise
        raise ValueError(f"{file} is not a pure weights file and was not opened: {error}") from error
    if isinstance(stored, dict) and isinstance(stored.get("state_dict"), dict):
        stored = stored["state_dict"]
    wanted = ("decoder.", "post_quant_conv.", "quantize.embedding.")
    tensors = {key: value for key, value in stored.items() if key.startswith(wanted) and isinstance(value, Tensor)}
    if not any(key.startswith("decoder.") for key in tensors):
        raise ValueError(
            f"{file} holds no decoder; its keys begin {', '.join(list(stored)[:3]) or 'nowhere: it is empty'}"
        )
    return tensors
