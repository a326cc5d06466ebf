"""The feature drafter that ships with an embedded pair, refused for any target but the one it was trained on."""

from __future__ import annotations

import json
from pathlib import Path

from validate.drafters.feature import FeatureDrafter
from validate.drafters.loading import load_drafter
from validate.models import Pair
from validate.models.tensors import WeightsError

__all__ = ["shipped_drafter", "target_sha256"]

SHIPPED = Path(__file__).resolve().parent.parent / "weights"


def target_sha256(pair: Pair) -> str:
    """Hash of an embedded target's weights file, as its manifest records it."""
    try:
        return str(pair.meta["files"]["target.safetensors"]["sha256"])
    except KeyError as error:
        raise WeightsError(f"pair {pair.name!r} has no manifest with its target's hash") from error


def shipped_drafter(pair: Pair, folder: str | Path | None = None) -> FeatureDrafter:
    """Drafter of a pair's target.

    Parameters
    ----------
    pair : Pair
        An embedded one.
    folder : str or Path, optional
        By default the one that ships with the package.

    Raises
    ------
    FileNotFoundError
        No drafter there; `python -m validate.training drafter` makes one.
    WeightsError
        As `load_drafter`; also a drafter of another target.
    """
    folder = SHIPPED / pair.name / "drafter" if folder is None else Path(folder)
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder} holds no drafter; train one: python -m validate.training drafter --out …")
    drafter = load_drafter(folder, target=pair.target, device=pair.device)
    found = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("target_sha256")
    if found != target_sha256(pair):
        raise WeightsError(
            f"{folder} was trained on a target with SHA-256 {found}, pair {pair.name!r} has {target_sha256(pair)}: "
            "features of another target mean nothing to it"
        )
    return drafter
