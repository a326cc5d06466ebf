"""What an image is asked to show: class numbers, or how many images, checked once for every class-conditional model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

__all__ = ["class_numbers"]


def class_numbers(images: int | Sequence[int] | np.ndarray | Tensor, num_classes: int) -> np.ndarray:
    """Classes of the images, int64: a count cycles through all classes, a list is taken as it is.

    Raises
    ------
    ValueError
        Not a count ≥ 1 or a list of whole numbers, or a class outside 0…num_classes − 1; names index and value.
    """
    if isinstance(images, (int, np.integer)) and not isinstance(images, bool):
        if images < 1:
            raise ValueError(f"images must be a number >= 1 or a list of class numbers, got {images}")
        return np.arange(images) % num_classes
    try:
        classes = np.asarray(images.cpu() if isinstance(images, Tensor) else images)
    except (ValueError, TypeError):
        classes = np.empty(0)
    if classes.ndim != 1 or classes.size == 0 or classes.dtype.kind not in "iu":
        raise ValueError(f"images must be a number >= 1 or a list of class numbers, got {images!r}")
    bad = np.flatnonzero((classes < 0) | (classes >= num_classes))
    if bad.size:
        raise ValueError(f"images[{bad[0]}] is class {classes[bad[0]]}; classes lie in 0…{num_classes - 1}")
    return classes.astype(np.int64)
