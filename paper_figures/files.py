"""Files that are there whole or not at all."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path


class OutputFolderError(OSError):
    """The output folder cannot be written; the message names it."""


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a reader, or a crash, sees the old content or the new, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


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
