"""Loading a pair: the one that ships with the package, one you trained, or public checkpoints.

    import validate

    pair = validate.load("fashion", draft="32x1", device="auto")
    pair = validate.load("llamagen:weights/c2i_XL_384.pt", draft="c2i_B_384.pt", tokenizer="vq_ds16_c2i.pt")
    pair = validate.load("hf:weights/Janus-Pro-7B", draft="weights/Janus-Pro-1B", dtype="bfloat16", device="cuda")
    pair.target, pair.draft, pair.tokenizer, pair.judge, pair.guidance

The shipped pair "fashion" is described in its MODEL_CARD.md; `validate.training` makes more.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import torch

from validate.models.devices import resolve_device
from validate.models.judge import Judge, Reference
from validate.models.pair import Pair
from validate.models.tensors import WeightsError
from validate.models.transformer import TokenTransformer
from validate.models.vq import VQTokenizer
from validate.models.weights import MANIFEST, fill, read_manifest, read_tensors

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
    **options: Any,
) -> Pair:
    """A pair, ready to sample from.

    Parameters
    ----------
    name : str
        "llamagen:PATH" or "hf:PATH-or-NAME" for public checkpoints; one of `known_models`; or with ``weights`` the name
        that folder's manifest records.
    draft : str, optional
        The draft to use. An embedded pair: one of its names, by default what the manifest says. Public checkpoints:
        a path, or a name beside the target; by default see the families.
    device : str or torch.device
        "cpu", "cuda", "cuda:N" or "auto".
    verify : bool
        Test checksums: an embedded pair's sizes and SHA-256, a torch archive's CRC-32, SHA-256 where known. Names,
        shapes, types and finiteness are checked always.
    weights : path, optional
        Folder of an embedded pair other than the shipped one, as written by ``python -m validate.training``.
    **options
        Of the family. "llamagen:": tokenizer, grid, heads, dtype, guidance, guidance_interval, sha256
        (`validate.models.llamagen.load_pair`). "hf:": guidance and what `validate.models.huggingface.load` takes.

    Returns
    -------
    Pair

    Raises
    ------
    FileNotFoundError
        A folder, its manifest or one of its files is missing.
    WeightsError
        Unknown name or draft, or a file departs from its manifest or the network; the message names what and how.
    ValueError, RuntimeError
        Unknown device or option, parts that do not fit together; CUDA asked for but absent.
    """
    family, _, path = name.partition(":")
    if family == "llamagen" and path:
        from validate.models.llamagen import load_pair

        return load_pair(path, draft=draft, device=device, verify=verify, **options)
    if family == "hf" and path:
        return _load_huggingface(path, draft, device, options)
    if options:
        raise ValueError(f"option {next(iter(options))!r} is for llamagen: and hf: models, not for the pair {name!r}")
    return _load_embedded(name, draft, device, verify, weights)


def _load_huggingface(path: str, draft: str | None, device: str | torch.device, options: dict[str, Any]) -> Pair:
    # By name: it needs transformers, which validate does without.
    huggingface: Any = importlib.import_module("validate.models.huggingface")
    guidance = options.pop("guidance", None)
    target = huggingface.load(path, device=device, **options)
    if target.decoder is None:
        raise ValueError(f"hf:{path} has no pixel decoder of its own; say where it is with pixels=…")
    drafts = {"itself": target}
    if draft is not None:
        drafts = {Path(draft).name: huggingface.load(draft, device=device, **options)}
        huggingface.check_pair(target, drafts[Path(draft).name])
    return Pair(
        name=f"hf:{Path(path).name}",
        target=target,
        drafts=drafts,
        draft_name=next(iter(drafts)),
        tokenizer=target.decoder,
        guidance=float(target.default_guidance if guidance is None else guidance),
        meta={"target": path, "draft": draft or "itself"},
    )


def _load_embedded(
    name: str,
    draft: str | None,
    device: str | torch.device,
    verify: bool,
    weights: str | os.PathLike[str] | None,
) -> Pair:
    place = resolve_device(device)
    if weights is None:
        known = known_models()
        if name not in known:
            raise WeightsError(
                f"unknown model {name!r}; known models are {', '.join(known) or 'none'}. "
                "For weights of your own give their folder as weights=…; for public ones llamagen:PATH or hf:PATH"
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
    try:
        target = fill(TokenTransformer, folder, manifest, "target.safetensors", verify=verify)
        pair = Pair(
            name=name,
            target=target,
            drafts={
                key: fill(TokenTransformer, folder, manifest, f"draft-{key}.safetensors", verify=verify)
                for key in manifest["drafts"]
            },
            draft_name=chosen,
            tokenizer=fill(VQTokenizer, folder, manifest, "tokenizer.safetensors", verify=verify),
            judge=fill(Judge, folder, manifest, "judge.safetensors", verify=verify),
            reference=_reference(folder, manifest, verify, target),
            guidance=float(manifest["guidance"]),
            meta=manifest,
        )
    except WeightsError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        # Whatever else a manifest can get wrong is still a fault of the folder, not of the caller.
        raise WeightsError(f"{folder / MANIFEST} is malformed: {type(error).__name__}: {error}") from error
    return pair.to(place)


def _reference(folder: Path, manifest: dict[str, Any], verify: bool, target: TokenTransformer) -> Reference:
    name = "reference.safetensors"
    tensors = read_tensors(folder, manifest, name, verify=verify)
    for required in ("feature_mean", "feature_covariance", "tokens", "labels"):
        if required not in tensors:
            raise WeightsError(f"{folder / name} lacks tensor {required!r}")
    mean, covariance, tokens, labels = (tensors[k] for k in ("feature_mean", "feature_covariance", "tokens", "labels"))
    wanted = {
        "feature_mean": (mean, (len(covariance),)),
        "feature_covariance": (covariance, (len(covariance), len(covariance))),
        "tokens": (tokens, (len(labels), target.num_tokens)),
        "labels": (labels, (len(labels),)),
    }
    for key, (values, shape) in wanted.items():
        if tuple(values.shape) != shape:
            raise WeightsError(f"{folder / name}: tensor {key!r} has shape {tuple(values.shape)}, expected {shape}")
    for key, values, count in (
        ("tokens", tokens.long(), target.vocab_size),
        ("labels", labels.long(), target.num_classes),
    ):
        outside = ((values < 0) | (values >= count)).nonzero()
        if len(outside):
            at = tuple(outside[0].tolist())
            raise WeightsError(f"{folder / name}: {key} hold {int(values[at])} at index {at}, outside 0…{count - 1}")
    figures = manifest["figures"]
    return Reference(
        feature_mean=mean,
        feature_covariance=covariance,
        count=int(figures["test_images"]),
        tokens=tokens.long(),
        labels=labels.long(),
        accuracy=float(figures["judge_accuracy"]),
        accuracy_reconstructed=float(figures["judge_accuracy_reconstructed"]),
    )
