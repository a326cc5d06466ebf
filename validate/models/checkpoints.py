"""Tensors of a published weights file, refused if anything about it is wrong.

What is noticed, by format:

* `.pt`, `.pth`, `.bin` (a zip archive of torch): truncation, and any changed byte of a tensor through the archive's
  CRC-32; a pickle that is more than tensors is refused, never run (torch's weights-only loader);
* `.safetensors`: truncation and a broken header. The format has no checksum, so a changed byte in a tensor shows only
  if it makes a value that is not finite, or against a SHA-256.

A SHA-256 is compared where one is known: given by the caller, or listed in a file `SHA256SUMS` in the same folder (what
``sha256sum * > SHA256SUMS`` writes).

>>> layout_of({"model": {"norm.weight": torch.ones(2)}, "steps": 3}, "a.pt").keys()
dict_keys(['norm.weight'])
"""

from __future__ import annotations

import hashlib
import pickle
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from validate.models.tensors import WeightsError

__all__ = ["DTYPES", "check_hash", "dtype_of", "layout_of", "read_checkpoint", "weights_in"]

LAYOUTS = ("model", "module", "state_dict")
"""Entries that hold the tensors of a file which is not flat, in the order they are looked for."""
SUMS = "SHA256SUMS"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def dtype_of(name: str | torch.dtype) -> torch.dtype:
    """float32, bfloat16 or float16 by name."""
    key = str(name).removeprefix("torch.")
    if key not in DTYPES:
        raise ValueError(f"unknown dtype {name!r}; choose {', '.join(DTYPES)}")
    return DTYPES[key]


def check_hash(path: Path, sha256: Mapping[str, str] | None = None) -> None:
    """Compare a file with its SHA-256, where one is given or listed in `SHA256SUMS` beside it.

    Raises
    ------
    WeightsError
        The file's hash is another one.
    """
    expected, source = dict(sha256 or {}).get(path.name), "the one given"
    sums = path.parent / SUMS
    if expected is None and sums.is_file():
        lines = (line.split(maxsplit=1) for line in sums.read_text(encoding="utf-8").splitlines() if line.strip())
        listed = {name.lstrip("*").strip(): digest for digest, name in (line for line in lines if len(line) == 2)}
        expected, source = listed.get(path.name), str(sums)
    if expected is None:
        return
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected.strip().lower():
        raise WeightsError(f"{path} has SHA-256 {found}, but {source} says {expected}: it is damaged or another file")


def layout_of(content: Any, where: str | Path) -> dict[str, Tensor]:
    """Tensors of what a pickle held: under `model`, `module` or `state_dict`, else flat.

    Raises
    ------
    WeightsError
        None of these; the message lists the entries found.
    """
    if isinstance(content, Mapping):
        for name in LAYOUTS:
            if isinstance(content.get(name), Mapping):
                content = content[name]
                break
        if content and all(isinstance(key, str) and isinstance(value, Tensor) for key, value in content.items()):
            return dict(content)
        entries = ", ".join(f"{key!r} ({type(value).__name__})" for key, value in list(content.items())[:8])
        raise WeightsError(
            f"{where} holds no tensors under {', '.join(LAYOUTS)} or flat; it holds {entries or 'nothing'}"
        )
    raise WeightsError(f"{where} holds a {type(content).__name__}, expected a dictionary of tensors")


def weights_in(folder: Path) -> Path:
    """The weights file of a directory in Hugging Face's style."""
    for name in ("model.safetensors", "pytorch_model.bin"):
        if (folder / name).is_file():
            return folder / name
    raise FileNotFoundError(f"{folder} holds neither model.safetensors nor pytorch_model.bin")


def read_checkpoint(
    path: str | Path,
    *,
    verify: bool = True,
    sha256: Mapping[str, str] | None = None,
    prefixes: tuple[str, ...] = ("",),
) -> dict[str, Tensor]:
    """Tensors of a weights file, as stored, mapped from the file rather than read where the format allows.

    Parameters
    ----------
    path : str or Path
    verify : bool
        Test the archive's checksums and a known SHA-256: one pass over the file.
    sha256 : mapping of file name to hexadecimal digest, optional
    prefixes : tuple of str
        Only tensors whose names begin so; all by default.

    Raises
    ------
    FileNotFoundError
    WeightsError
        Damaged, incomplete, of another format, or more than tensors; the message says which.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing")
    if verify:
        check_hash(path, sha256)
    if path.suffix == ".safetensors":
        try:
            with safe_open(path, framework="pt") as file:
                return {name: file.get_tensor(name) for name in file.keys() if name.startswith(prefixes)}
        except (SafetensorError, OSError) as error:
            raise WeightsError(f"{path} is damaged or no safetensors file: {error}") from error
    _check_archive(path, verify)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        unsupported = re.search(r"GLOBAL ([\w.]+)", str(error))
        what = f" ({unsupported[1]})" if unsupported else ""
        raise WeightsError(
            f"{path} holds more than tensors{what}, which is not loaded because a pickle can run code. A checkpoint of "
            "a training run? Save its weights alone, torch.save({'model': …}), where you trust it"
        ) from error
    except (RuntimeError, OSError, EOFError, KeyError, ValueError) as error:
        raise WeightsError(f"{path} is damaged or no torch file: {error}") from error
    return {name: value for name, value in layout_of(content, path).items() if name.startswith(prefixes)}


def _check_archive(path: Path, verify: bool) -> None:
    with path.open("rb") as file:
        start = file.read(4)
    try:
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip() if verify else None
    except (zipfile.BadZipFile, EOFError, OSError) as error:
        what = "cut off" if start == b"PK\x03\x04" else "not an archive as torch 1.6 and later write it"
        raise WeightsError(f"{path} is damaged or incomplete: {what} ({error})") from error
    if broken is not None:
        raise WeightsError(f"{path} is damaged: the checksum of {broken!r} inside it does not fit; download it again")
