"""The run as stages, each finished once: tokenizer, tokens, target, drafts, judge, figures.

Every stage has an identity: the fingerprint of the seed, the data files' hashes, its own settings and the
identities of the stages it reads.  A finished stage is stored under its identity, so an interrupted run
repeats only the stage it stopped in, and changing one draft's steps retrains that draft alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from validate.models.building import Network, blank
from validate.models.judge import Judge
from validate.models.transformer import TokenTransformer
from validate.models.vq import VQTokenizer
from validate.training.evaluation import Networks, halved, measure
from validate.training.fitting import (
    TrainingError,
    code_perplexity,
    fit_decoder,
    fit_judge,
    fit_tokenizer,
    in_batches,
    to_grey,
)
from validate.training.idx import ImageData
from validate.training.presets import DecoderPlan, Preset
from validate.training.storage import fingerprint, read_stage, write_stage

__all__ = ["Run"]


class Run:
    """One training run over a data set, resumable.

    Parameters
    ----------
    data : ImageData
    preset : Preset
    seed : int
    work : Path
        Folder of the checkpoints.
    say : callable
        Told, in one line, what happens.
    device : torch.device or str
        Where networks are trained; finished stages are kept on the CPU.
    """

    def __init__(
        self,
        data: ImageData,
        preset: Preset,
        seed: int,
        work: Path,
        say: Callable[[str], None] = print,
        device: torch.device | str = "cpu",
    ) -> None:
        self.device = torch.device(device)
        names = ("train_images", "train_labels", "test_images", "test_labels")
        self.data = replace(data, **{name: getattr(data, name).to(self.device) for name in names})
        self.preset, self.seed, self.work, self.say = preset, seed, work, say
        self.records: dict[str, dict[str, Any]] = {}
        self._finished: dict[str, dict[str, Tensor]] = {}

    @property
    def stages(self) -> tuple[str, ...]:
        """Names in order."""
        drafts = tuple(f"draft-{shape.name}" for shape in self.preset.drafts)
        return ("tokenizer", "tokens", "target", *drafts, "judge", "figures")

    def identity(self, stage: str) -> str:
        """Fingerprint of everything that decides the stage's result."""
        preset = self.preset
        sizes = [preset.vocab_size, preset.num_classes]
        if stage == "tokenizer":
            settings = [*sizes, preset.code_width, preset.tokenizer_width, preset.side, asdict(preset.tokenizer)]
            return fingerprint(stage, self.seed, self.data.sha256, settings, preset.min_perplexity)
        if stage == "tokens":
            return fingerprint(stage, self.identity("tokenizer"))
        if stage == "judge":
            settings = [preset.judge_width, preset.judge_features, asdict(preset.judge)]
            return fingerprint(stage, self.seed, settings, self.identity("tokenizer"))
        if stage == "figures":
            others = [self.identity(other) for other in self.stages if other != stage]
            return fingerprint(stage, self.seed, others, preset.kept, preset.guidance, preset.samples_per_class)
        shape = asdict(self._shape(stage))
        return fingerprint(stage, self.seed, sizes, shape, preset.null_share, self.identity("tokens"))

    def generator(self, stage: str) -> torch.Generator:
        """The stage's own random stream."""
        return torch.Generator().manual_seed(int(fingerprint(self.seed, stage)[:15], 16))

    def ensure(self, stage: str) -> dict[str, Tensor]:
        """Tensors of a stage: from memory, from its checkpoint, or by running it now."""
        if stage not in self.stages:
            raise ValueError(f"unknown stage {stage!r}; stages are {', '.join(self.stages)}")
        if stage in self._finished:
            return self._finished[stage]
        path, identity = self.work / f"{stage}.safetensors", self.identity(stage)
        stored = read_stage(path, identity)
        if stored is not None:
            self.say(f"{stage}: finished earlier, taken from {path}")
            self._finished[stage], self.records[stage] = stored
            return self._finished[stage]
        begin = time.perf_counter()
        made, record = self._make(stage)
        named = made.state_dict() if isinstance(made, nn.Module) else made
        tensors = {name: value.cpu() for name, value in named.items()}
        record = {**record, "seconds": round(time.perf_counter() - begin, 1)}
        write_stage(path, tensors, identity, record)
        self.say(f"{stage}: done {record}")
        self._finished[stage], self.records[stage] = tensors, record
        return tensors

    def networks(self) -> Networks:
        """Everything trained, rounded to the half precision that ships."""
        return Networks(
            tokenizer=halved(self.tokenizer),
            target=halved(self.decoder("target")),
            drafts={shape.name: halved(self.decoder(f"draft-{shape.name}")) for shape in self.preset.drafts},
            judge=halved(self.judge),
        )

    @property
    def tokenizer(self) -> VQTokenizer:
        """The trained tokenizer."""
        return self._filled(VQTokenizer, self.preset.tokenizer_config, "tokenizer")

    @property
    def judge(self) -> Judge:
        """The trained judge."""
        return self._filled(Judge, self.preset.judge_config, "judge")

    def decoder(self, stage: str) -> TokenTransformer:
        """The trained target ("target") or a draft ("draft-64x1")."""
        return self._filled(TokenTransformer, self.preset.decoder_config(self._shape(stage)), stage)

    def _filled(self, kind: type[Network], config: dict[str, int], stage: str) -> Network:
        network = blank(kind, config)
        network.load_state_dict(self.ensure(stage), assign=True)
        network.eval().requires_grad_(False)
        return network.to(self.device)

    def _shape(self, stage: str) -> DecoderPlan:
        if stage == "target":
            return self.preset.target
        return next(shape for shape in self.preset.drafts if f"draft-{shape.name}" == stage)

    def _make(self, stage: str) -> tuple[nn.Module | dict[str, Tensor], dict[str, Any]]:
        generator = self.generator(stage)
        if stage == "tokenizer":
            return self._make_tokenizer(generator)
        if stage == "tokens":
            tokenizer = self.tokenizer
            parts = {"train": self.data.train_images, "test": self.data.test_images}
            encoded = {
                part: torch.cat([tokenizer.encode(to_grey(some)) for some in in_batches(images)])
                for part, images in parts.items()
            }
            return encoded, {"perplexity_train": code_perplexity(encoded["train"], self.preset.vocab_size)}
        if stage == "judge":
            judge = fit_judge(self.data.train_images, self.data.train_labels, self.tokenizer, self.preset, generator)
            return judge, {"steps": self.preset.judge.steps}
        if stage == "figures":
            return measure(self.networks(), self.data, self.preset, generator)
        shape = self._shape(stage)
        tokens = self.ensure("tokens")["train"].to(self.device)
        decoder = fit_decoder(tokens, self.data.train_labels, shape, self.preset, generator, stage)
        return decoder, {"steps": shape.plan.steps}

    def _make_tokenizer(self, generator: torch.Generator) -> tuple[nn.Module, dict[str, Any]]:
        tokenizer = fit_tokenizer(self.data.train_images, self.preset, generator)
        tokens, error = [], 0.0
        for images in map(to_grey, in_batches(self.data.test_images)):
            tokens.append(tokenizer.encode(images))
            error += float((tokenizer.decode(tokens[-1]) - images).square().mean(dim=(1, 2)).sum())
        perplexity = code_perplexity(torch.cat(tokens), self.preset.vocab_size)
        if perplexity < self.preset.min_perplexity:
            raise TrainingError(
                f"the tokenizer collapsed: code perplexity {perplexity:.1f} on test images, at least "
                f"{self.preset.min_perplexity} is required; nothing was stored, try another seed or more steps"
            )
        record = {
            "steps": self.preset.tokenizer.steps,
            "perplexity": perplexity,
            "reconstruction_mse": error / len(self.data.test_images),
        }
        return tokenizer, record
