"""Finished parts of a run on disk, so that a run that was stopped goes on where it stood."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simulate.files import write_json
from validate.models import Pair

__all__ = ["Parts", "file_name", "weights_fingerprint"]


def file_name(name: str) -> str:
    """A name as a file's: letters and digits stay."""
    return "".join(c if c.isalnum() else "-" for c in name.replace("G*", "optimal"))


class Parts:
    """A folder of finished parts beside --out; one made with other settings is refused.

    Parameters
    ----------
    out : Path, optional
        Without one nothing is kept.
    settings : dict
        What every part depends on.

    Raises
    ------
    ValueError
        The folder was begun with other settings; names the first.
    """

    def __init__(self, out: Path | None, settings: dict[str, Any]) -> None:
        self.folder = None if out is None else out.with_name(out.name + ".parts")
        if self.folder is None:
            return
        self.folder.mkdir(exist_ok=True)
        file = self.folder / "settings.json"
        if not file.exists():
            write_json(file, settings)
        found = _read(file)
        if found is None:
            raise ValueError(f"{file} is damaged: choose another --out, or delete the folder {self.folder}")
        for name in settings:
            if found.get(name) != settings[name]:
                raise ValueError(
                    f"{self.folder} was begun with {name} = {found.get(name)!r}, now it is {settings[name]!r}: choose "
                    "another --out, or delete the folder"
                )

    def get(self, key: str) -> dict[str, Any] | None:
        """The stored numbers of a part, if it is done; a damaged file counts as not done."""
        return None if self.folder is None else _read(self.folder / f"{key}.json")

    def put(self, key: str, row: dict[str, Any]) -> None:
        """Store a finished part."""
        if self.folder is not None:
            write_json(self.folder / f"{key}.json", row)


def _read(file: Path) -> dict[str, Any] | None:
    """What a file holds; None where it is absent, damaged or empty."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found else None


def weights_fingerprint(pair: Pair, folders: Sequence[Path] = ()) -> str:
    """Of the networks' weights and of drafters' folders, so that another training's results are not taken for these."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted(folder.glob("*")):
            digest.update(path.name.encode() + hashlib.sha256(path.read_bytes()).digest())
    for model in (pair.target, pair.draft):
        for name, value in getattr(model, "state_dict", dict)().items():
            digest.update(name.encode() + value.detach().double().sum().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]
