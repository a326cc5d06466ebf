"""Images and labels in the IDX format of MNIST and Fashion-MNIST.

An IDX file is big-endian: two zero bytes, a type code (0x08: unsigned byte), the number of axes, one 32-bit
length per axis, then the values.  A data folder holds four of them, gzipped:

    train-images-idx3-ubyte.gz   train-labels-idx1-ubyte.gz   t10k-images-idx3-ubyte.gz   t10k-labels-idx1-ubyte.gz
"""

from __future__ import annotations

import gzip
import hashlib
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = ["FILES", "DataError", "ImageData", "load_folder", "read_idx", "unpack"]

FILES = {
    "train_images": "train-images-idx3-ubyte.gz",
    "train_labels": "train-labels-idx1-ubyte.gz",
    "test_images": "t10k-images-idx3-ubyte.gz",
    "test_labels": "t10k-labels-idx1-ubyte.gz",
}
_UNSIGNED_BYTE = 0x08


class DataError(ValueError):
    """A data file is not what it should be."""


@dataclass(frozen=True)
class ImageData:
    """A data set in memory.

    Attributes
    ----------
    train_images, test_images : Tensor of uint8, shape (N, 28, 28)
    train_labels, test_labels : Tensor of int64, shape (N,)
    sha256 : dict
        File name to hash of its decompressed content: the same however it was packed.
    """

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    sha256: dict[str, str]


def unpack(path: Path) -> bytes:
    """Decompressed content of a gzip file.

    Raises
    ------
    FileNotFoundError
        No such file.
    DataError
        Not gzip, or truncated.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; a data folder holds {', '.join(FILES.values())}")
    try:
        return gzip.decompress(path.read_bytes())
    except (EOFError, zlib.error) as error:
        raise DataError(f"{path} is truncated or damaged: {error}") from error
    except gzip.BadGzipFile as error:
        raise DataError(f"{path} is not a gzip file: {error}") from error


def read_idx(path: Path, axes: int) -> tuple[npt.NDArray[np.uint8], str]:
    """Values of a gzipped IDX file of unsigned bytes, and the SHA-256 of its content.

    Parameters
    ----------
    path : Path
    axes : int
        Expected number of axes: 3 for images, 1 for labels.

    Raises
    ------
    FileNotFoundError, DataError
        As `unpack`; also a wrong magic number, or fewer or more values than the header says.
    """
    raw = unpack(path)
    header = 4 + 4 * axes
    expected = bytes((0, 0, _UNSIGNED_BYTE, axes))
    if raw[:4] != expected:
        raise DataError(f"{path} has magic number 0x{raw[:4].hex()}, expected 0x{expected.hex()}")
    if len(raw) < header:
        raise DataError(f"{path} is truncated: its header needs {header} bytes, it holds {len(raw)}")
    shape = struct.unpack(f">{axes}I", raw[4:header])
    values = np.frombuffer(raw, dtype=np.uint8, offset=header)
    count = int(np.prod(shape, dtype=np.int64))
    if len(values) != count:
        what = "truncated" if len(values) < count else "too long"
        raise DataError(f"{path} is {what}: shape {shape} needs {count} values, it holds {len(values)}")
    return values.reshape(shape), hashlib.sha256(raw).hexdigest()


def load_folder(folder: Path, num_classes: int = 10) -> ImageData:
    """The four files of a data folder, checked against each other.

    Raises
    ------
    FileNotFoundError, DataError
        As `read_idx`; also for images that are not 28 × 28, no images, unequal counts, or a label outside the classes.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder; give the folder of {', '.join(FILES.values())}")
    arrays: dict[str, Tensor] = {}
    hashes: dict[str, str] = {}
    for part in ("train", "test"):
        image_path, label_path = folder / FILES[f"{part}_images"], folder / FILES[f"{part}_labels"]
        images, hashes[image_path.name] = read_idx(image_path, 3)
        labels, hashes[label_path.name] = read_idx(label_path, 1)
        if images.shape[1:] != (28, 28) or not len(images):
            raise DataError(f"{image_path} holds images of shape {images.shape}; expected (N, 28, 28) with N >= 1")
        if len(images) != len(labels):
            raise DataError(f"{image_path} holds {len(images)} images but {label_path} {len(labels)} labels")
        outside = np.flatnonzero(labels >= num_classes)
        if len(outside):
            where = int(outside[0])
            raise DataError(f"{label_path}: label {labels[where]} at index {where} is outside 0…{num_classes - 1}")
        arrays[f"{part}_images"] = torch.from_numpy(images.copy())
        arrays[f"{part}_labels"] = torch.from_numpy(labels.astype(np.int64))
    return ImageData(
        train_images=arrays["train_images"],
        train_labels=arrays["train_labels"],
        test_images=arrays["test_images"],
        test_labels=arrays["test_labels"],
        sha256=hashes,
    )
