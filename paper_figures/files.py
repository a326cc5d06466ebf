"""The output folder: writable or refused by name, and hashes of what is in it."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path


class OutputFolderError(OSError):
    """The output folder cannot be written; the message names it."""


def writable_folder(path: Path) -> Path:
    """Make the folder if need be, and make sure that files can be written there.

    Raises
    ------
    OutputFolderError
        Naming folder and reason.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(prefix=".probe.", dir=path):
            pass
    except OSError as error:
        reason = error.strerror or error
        raise OutputFolderError(
            f"cannot write to the output folder {path}: {reason}; give another with --out"
        ) from error
    return path


def sha256(path: Path) -> str | None:
    """Hash of a file, None if it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None
