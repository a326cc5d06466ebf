"""Figures of a trained pair on the test images: the numbers of the model card, and the shipped reference statistics.

For test tokens x with class c, target conditionals p_t, draft conditionals q_t (both after guidance at scale s):

    nll per token        −(1/T) Σ_t log p_t(x_t), averaged over images; lossless acceptance  Σ_x min(p_t(x),
    q_t(x)), averaged over positions and images: the chance that lossless speculative
                         decoding keeps a drafted token whose prefix is a real image's.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from validate.models.building import Network
from validate.models.guidance import guided_logits
from validate.models.interface import START
from validate.models.judge import Judge
from validate.models.transformer import TokenTransformer
from validate.models.vq import VQTokenizer
from validate.training.fitting import TrainingError, code_perplexity, in_batches, to_grey
from validate.training.idx import ImageData
from validate.training.presets import Preset

__all__ = ["Networks", "halved", "measure", "sample"]


@dataclass(frozen=True)
class Networks:
    """Everything trained, at the precision that ships."""

    tokenizer: VQTokenizer
    target: TokenTransformer
    drafts: Mapping[str, TokenTransformer]
    judge: Judge


def halved(network: Network) -> Network:
    """Copy whose values went through half precision, as they do on disk."""
    rounded = copy.deepcopy(network).half().float()
    for name, values in rounded.state_dict().items():
        if not bool(torch.isfinite(values).all()):
            raise TrainingError(f"tensor {name!r} does not fit half precision")
    return rounded


@torch.no_grad()
def conditionals(model: TokenTransformer, tokens: Tensor, labels: Tensor, scales: tuple[float, ...]) -> list[Tensor]:
    """Log probabilities (B, T, V) of every next token of real images, one tensor per guidance scale."""
    null = torch.full_like(labels, model.null_id)
    cond, uncond = (
        model(torch.cat([first[:, None], tokens[:, :-1]], dim=1)) for first in (model.class_ids(labels), null)
    )
    return [guided_logits(cond, uncond, scale).log_softmax(dim=-1) for scale in scales]


@torch.no_grad()
def sample(model: TokenTransformer, classes: Tensor, guidance: float, generator: torch.Generator) -> Tensor:
    """Tokens (B, T) drawn one position at a time from the guided model."""
    sequences = model.start(classes, guidance)
    drawn = [torch.full_like(classes, START)]
    for position in range(model.num_tokens):
        law = sequences.logits(drawn[-1][:, None], torch.full_like(classes, position))[:, 0].softmax(dim=-1)
        # The generator lives on the CPU, whatever the device.
        drawn.append(torch.multinomial(law.cpu(), 1, generator=generator)[:, 0].to(law.device))
    return torch.stack(drawn[1:], dim=1)


def likelihoods(
    networks: Networks, tokens: Tensor, labels: Tensor, guidance: float, kept: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Nll per token of every model and acceptance of every draft, on all images and on the first ``kept``.

    Both at guidance 1 and at the given scale.
    """
    scales = (1.0, guidance)
    models = {"target": networks.target, **networks.drafts}
    nll: dict[str, list[Tensor]] = {name: [] for name in models}
    acceptance: dict[str, list[Tensor]] = {name: [] for name in networks.drafts}
    for some, classes in zip(in_batches(tokens, 250), in_batches(labels, 250), strict=True):
        target_laws: list[Tensor] = []
        for name, model in models.items():
            logs = conditionals(model, some, classes, scales)
            # Per image and scale: means over positions in float32, over images in float64.
            nll[name].append(torch.stack([-law.gather(-1, some[..., None]).mean(dim=(1, 2)) for law in logs]))
            laws = [law.exp_() for law in logs]
            if name == "target":
                target_laws = laws
                continue
            shared = [torch.minimum(law, of).sum(-1).mean(-1) for law, of in zip(laws, target_laws, strict=True)]
            acceptance[name].append(torch.stack(shared))

    def table(images: dict[str, list[Tensor]], count: int) -> dict[str, dict[str, float]]:
        means = {name: torch.cat(rows, dim=1)[:, :count].double().mean(dim=1).tolist() for name, rows in images.items()}
        return {
            name: {f"guidance {scale:g}": round(value, 5) for scale, value in zip(scales, row, strict=True)}
            for name, row in means.items()
        }

    everything, first = (
        {"nll_per_token": table(nll, count), "lossless_acceptance": table(acceptance, count)}
        for count in (len(tokens), kept)
    )
    return everything, first


@torch.no_grad()
def judged(judge: Judge, images: Tensor, labels: Tensor) -> tuple[float, Tensor]:
    """Accuracy of the judge and its features (N, features) on grey images."""
    logits, features = (torch.cat(parts) for parts in zip(*map(judge, in_batches(images)), strict=True))
    return float((logits.argmax(dim=-1) == labels).double().mean()), features


def measure(
    networks: Networks, data: ImageData, preset: Preset, generator: torch.Generator
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Reference tensors and figures.

    Parameters
    ----------
    networks : Networks
        Rounded to half precision first (`halved`), so that the figures hold for what ships.
    data : ImageData
    preset : Preset
    generator : torch.Generator
        For the samples.

    Returns
    -------
    reference : dict
        Feature mean and covariance, tokens and labels, as `validate.models.Reference` names them.
    figures : dict
        Numbers only, for the manifest and the card.
    """
    images, labels = to_grey(data.test_images), data.test_labels
    tokens = torch.cat([networks.tokenizer.encode(some) for some in in_batches(images)])
    drawn = torch.cat([networks.tokenizer.decode(some) for some in in_batches(tokens)])
    accuracy, _ = judged(networks.judge, images, labels)
    accuracy_reconstructed, features = judged(networks.judge, drawn, labels)
    kept_tokens, kept_labels = tokens[: preset.kept], labels[: preset.kept]
    classes = torch.arange(preset.num_classes, device=labels.device).repeat_interleave(preset.samples_per_class)
    sample_accuracy = {}
    for name, model in {"target": networks.target, **networks.drafts}.items():
        samples = networks.tokenizer.decode(sample(model, classes, preset.guidance, generator))
        sample_accuracy[name] = round(judged(networks.judge, samples, classes)[0], 5)
    everything, first = likelihoods(networks, tokens, labels, preset.guidance, len(kept_tokens))
    figures = {
        "test_images": len(images),
        "reconstruction_mse": round(float((drawn - images).square().mean()), 7),
        "code_perplexity": round(code_perplexity(tokens, preset.vocab_size), 3),
        **everything,
        "kept": {"images": len(kept_tokens), **first},
        "judge_accuracy": round(accuracy, 5),
        "judge_accuracy_reconstructed": round(accuracy_reconstructed, 5),
        "sample_accuracy": {"guidance": preset.guidance, "samples": len(classes), **sample_accuracy},
    }
    reference = {
        "feature_mean": features.double().mean(dim=0).float(),
        "feature_covariance": torch.cov(features.T.double()).float(),
        "tokens": kept_tokens.to(torch.uint8 if preset.vocab_size <= 256 else torch.int32),
        "labels": kept_labels.to(torch.uint8),
    }
    return reference, figures
