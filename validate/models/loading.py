"""Loading a trained pair from the weights that ship with the package, or from a folder in the same format.

    from validate.models import load

    pair = load("fashion", draft="32x1", device="auto")
    pair.target, pair.draft, pair.tokenizer, pair.judge, pair.guidance

The shipped pair "fashion" is described in its MODEL_CARD.md; `validate.training` makes more.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

from validate.models.devices import resolve_device
from validate.models.judge import Judge, Reference
from validate.models.pair import Pair
from validate.models.transformer import TokenTransformer
from validate.models.vq import VQTokenizer
from validate.models.weights import MANIFEST, WeightsError, fill, read_manifest, read_tensors

__all__ = ["known_models", "load"]

_SHIPPED = Path(__file__).resolve().parent.parent / "weights"


def known_models() -> tuple[str, ...]:
    """Names of the pairs that ship with the package."""
    return tuple(sorted(path.parent.name for path in _SHIPPED.glob(f"*/{MANIFEST}")))


def load(
    name: str = "fashion",
    *,
    draft: str | None = None,
    device: str | torch.device = "cpu",
    verify: bool = True,
    weights: str | os.PathLike[str] | None = None,
) -> Pair:
    """A trained pair, in single precision, ready to sample from.

    Parameters
    ----------
    name : str
        One of `known_models`, or with ``weights`` the name that folder's manifest records.
    draft : str, optional
        The draft to use; the default is the one the manifest names.
    device : str or torch.device
        "cpu", "cuda", "cuda:N" or "auto".
    verify : bool
        Compare every file's size and SHA-256 with the manifest; names, shapes, types and finiteness are checked always.
    weights : path, optional
        Folder to load from instead of the shipped one, as written by ``python -m validate.training``.

    Returns
    -------
    Pair

    Raises
    ------
    FileNotFoundError
        The folder, its manifest or one of its files is missing.
    WeightsError
        Unknown name or draft, or a file departs from the manifest or the network; the message names what and how.
    ValueError, RuntimeError
        Unknown device; CUDA asked for but absent.
    """
    place = resolve_device(device)
    if weights is None:
        known = known_models()
        if name not in known:
            raise WeightsError(
                f"unknown model {name!r}; known models are {', '.join(known) or 'none'}. "
                "For weights of your own give their folder as weights=…"
            )
        folder = _SHIPPED / name
    else:
        folder = Path(weights)
    manifest = read_manifest(folder)
    if manifest["name"] != name:
        raise WeightsError(f"{folder / MANIFEST} describes {manifest['name']!r}, but {name!r} was asked for")
    chosen = manifest["draft"] if draft is None else draft
    if chosen not in manifest["drafts"]:
        raise WeightsError(f"unknown draft {chosen!r}; known drafts are {', '.join(manifest['drafts'])}")

    pair = Pair(
        name=name,
        target=fill(TokenTransformer, folder, manifest, "target.safetensors", verify=verify),
        drafts={
            key: fill(TokenTransformer, folder, manifest, f"draft-{key}.safetensors", verify=verify)
            for key in manifest["drafts"]
        },
        draft_name=chosen,
        tokenizer=fill(VQTokenizer, folder, manifest, "tokenizer.safetensors", verify=verify),
        judge=fill(Judge, folder, manifest, "judge.safetensors", verify=verify),
        reference=_reference(folder, manifest, verify),
        guidance=float(manifest["guidance"]),
        meta=manifest,
    )
    return pair.to(place)


def _reference(folder: Path, manifest: dict[str, object], verify: bool) -> Reference:
    name = "reference.safetensors"
    tensors = read_tensors(folder, manifest, name, verify=verify)
    for required in ("feature_mean", "feature_covariance", "tokens", "labels"):
        if required not in tensors:
            raise WeightsError(f"{folder / name} lacks tensor {required!r}")
    figures = manifest["figures"]
    assert isinstance(figures, dict)
    return Reference(
        feature_mean=tensors["feature_mean"],
        feature_covariance=tensors["feature_covariance"],
        count=int(figures["test_images"]),
        tokens=tensors["tokens"].long(),
        labels=tensors["labels"].long(),
        accuracy=float(figures["judge_accuracy"]),
        accuracy_reconstructed=float(figures["judge_accuracy_reconstructed"]),
    )
