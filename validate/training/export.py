"""From a finished run to a weights folder: safetensors in half precision, manifest.json, MODEL_CARD.md."""

from __future__ import annotations

import hashlib
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from simulate.files import write_atomically, write_json
from validate.models.judge import Judge
from validate.models.transformer import TokenTransformer
from validate.models.vq import VQTokenizer
from validate.models.weights import MANIFEST, config_sha256
from validate.training.card import model_card
from validate.training.idx import FILES
from validate.training.stages import Run

__all__ = ["export"]

# SHA-256 of the decompressed training images, to what the folder is.
_KNOWN_DATA = {
    "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888": {
        "set": "Fashion-MNIST",
        "source": "https://github.com/zalandoresearch/fashion-mnist; Debian package dataset-fashion-mnist",
        "licence": "MIT (Expat), © 2017 Zalando SE",
        "citation": "Xiao, Rasul, Vollgraf: Fashion-MNIST, arXiv:1708.07747",
    },
}
_UNKNOWN_DATA = {
    "set": "an IDX folder this package does not recognise",
    "source": "not recorded",
    "licence": "not recorded: ask whoever gave the data before passing these weights on",
    "citation": "not recorded",
}


def export(run: Run, out: Path) -> dict[str, Any]:
    """Write the weights folder of a run, finishing whatever stage is missing.

    Files are replaced one by one, the manifest last: an interruption leaves a folder that
    `validate.models.load` either accepts as the old pair or refuses by hash, never a silent mixture.

    Returns
    -------
    dict
        The manifest.
    """
    networks = run.networks()
    reference = run.ensure("figures")
    files: dict[str, Any] = {}

    def store(name: str, kind: str, config: dict[str, int], tensors: dict[str, Tensor]) -> None:
        content = save({key: value.contiguous() for key, value in tensors.items()})
        write_atomically(out / name, content)
        files[name] = {
            "kind": kind,
            "config": config,
            "config_sha256": config_sha256(kind, config),
            "bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
            "parameters": sum(value.numel() for value in tensors.values()),
            "tensors": {
                key: {"shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
                for key, value in sorted(tensors.items())
            },
        }

    parts: dict[str, VQTokenizer | TokenTransformer | Judge] = {
        "tokenizer": networks.tokenizer,
        "target": networks.target,
        **{f"draft-{name}": draft for name, draft in networks.drafts.items()},
        "judge": networks.judge,
    }
    for part, network in parts.items():
        halves = {key: value.half() for key, value in network.state_dict().items()}
        store(f"{part}.safetensors", type(network).__name__, network.config, halves)
    store("reference.safetensors", "Reference", {}, reference)

    manifest = {
        "format": 1,
        "name": run.preset.name,
        "guidance": run.preset.guidance,
        "draft": run.preset.drafts[0].name,
        "drafts": [shape.name for shape in run.preset.drafts],
        "files": files,
        "figures": run.records["figures"],
        "data": {**_KNOWN_DATA.get(run.data.sha256[FILES["train_images"]], _UNKNOWN_DATA), "sha256": run.data.sha256},
        "training": {
            "seed": run.seed,
            "preset": asdict(run.preset),
            "stages": {name: run.records[name] for name in run.stages if name != "figures"},
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }
    write_atomically(out / "MODEL_CARD.md", model_card(manifest).encode())
    write_json(out / MANIFEST, manifest)
    return manifest
