"""A small classifier that stands in for the usual image-quality networks, which need a download.

Its class decision answers "does the sample look like the class asked for", and its features carry a
Fréchet distance

    d² = ‖μ − ν‖² + tr(A + B − 2 (A^{1/2} B A^{1/2})^{1/2})

between Gaussians fitted to two sets of images.  The distance is to be taken against tokenizer-*reconstructed*
test images at equal sample size; it is not FID, whose features are Inception's.  `Reference` stores what is
needed without the data set.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

__all__ = ["Judge", "Reference"]


class Judge(nn.Module):
    """Convolutional classifier of 28 × 28 grey images.

    Parameters
    ----------
    num_classes : int
        C.
    width : int
        Channels of the first convolution; the next two have twice and four times as many.
    features : int
        Dimension of the feature vector (the last layer's input before its nonlinearity).
    """

    def __init__(self, *, num_classes: int = 10, width: int = 16, features: int = 32) -> None:
        super().__init__()
        self.num_classes, self.width, self.features = num_classes, width, features
        self.trunk = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.GELU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.GELU(),
            nn.MaxPool2d(2),
            nn.GroupNorm(4, 2 * width),
            nn.Conv2d(2 * width, 4 * width, 3, padding=1),
            nn.GELU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(4 * width * 9, features),
        )
        self.classify = nn.Sequential(nn.GELU(), nn.Linear(features, num_classes))

    @property
    def config(self) -> dict[str, int]:
        """The constructor's arguments."""
        return {name: getattr(self, name) for name in ("num_classes", "width", "features")}

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        """Fill every parameter from ``generator``."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                fan_in = module.weight[0].numel()
                module.weight.normal_(0.0, math.sqrt(2.0 / fan_in), generator=generator)
                if module.bias is not None:
                    module.bias.zero_()
            elif isinstance(module, nn.GroupNorm):
                module.weight.fill_(1.0)
                module.bias.zero_()

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Class logits and features.

        Parameters
        ----------
        images : Tensor, shape (B, 28, 28)
            Grey values in [0, 1].

        Returns
        -------
        logits : Tensor, shape (B, C)
        features : Tensor, shape (B, features)
        """
        if images.ndim != 3 or images.shape[1:] != (28, 28):
            raise ValueError(f"images must have shape (B, 28, 28); got {tuple(images.shape)}")
        features = self.trunk(images[:, None])
        return self.classify(features), features


@dataclass(frozen=True)
class Reference:
    """What the data set's test images say, so that measuring needs no data set.

    Attributes
    ----------
    feature_mean : Tensor, shape (features,)
    feature_covariance : Tensor, shape (features, features)
        Judge features of the tokenizer-reconstructed test images (divisor ``count`` − 1).
    count : int
        Number of images behind mean and covariance.
    tokens : Tensor of int64, shape (m, T)
        Tokens of the first m test images, for exact likelihoods under a model.
    labels : Tensor of int64, shape (m,)
        Their classes.
    accuracy, accuracy_reconstructed : float
        The judge's accuracy on test images and on their reconstructions.  No ceiling: guided samples, being
        typical of their class, can be recognised more often.
    """

    feature_mean: Tensor
    feature_covariance: Tensor
    count: int
    tokens: Tensor
    labels: Tensor
    accuracy: float
    accuracy_reconstructed: float

    def to(self, device: torch.device) -> Reference:
        """The same reference on another device."""
        names = ("feature_mean", "feature_covariance", "tokens", "labels")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})
