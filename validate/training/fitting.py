"""The three fits: tokenizer, token transformers, judge.

Each takes its data, its plan and one generator, and returns a network in evaluation mode.  All randomness
(initial values, batch order, dropped classes, restarted codes) comes from that generator, which lives on the CPU
whatever the device; the global generator is never used. A fit runs where its data is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional
from tqdm import tqdm

from validate.models.building import fresh
from validate.models.judge import Judge
from validate.models.transformer import TokenTransformer
from validate.models.vq import VQTokenizer
from validate.training.presets import DecoderPlan, Plan, Preset

__all__ = ["TrainingError", "code_perplexity", "fit_decoder", "fit_judge", "fit_tokenizer", "in_batches"]

# Codebook averages: each step keeps this share of the past, a memory of about 100 steps.
_EMA_DECAY = 0.99
# A code is dead, and restarted at an encoded patch, when its average use is below this share of uniform use.
_DEAD_SHARE = 0.03
# Pull of encodings towards their codes (VQ-VAE, arXiv:1711.00937, uses 0.25 to 2).
_COMMITMENT = 0.25


class TrainingError(RuntimeError):
    """Training went wrong in a way that would make the weights useless."""


def batches(
    count: int, plan: Plan, generator: torch.Generator, what: str, device: torch.device | str = "cpu"
) -> Iterator[Tensor]:
    """``plan.steps`` index batches on a device, epoch after epoch of fresh permutations, with a progress bar."""
    order = torch.empty(0, dtype=torch.int64)
    for _ in tqdm(range(plan.steps), desc=what, mininterval=2.0):
        while len(order) < plan.batch:
            order = torch.cat([order, torch.randperm(count, generator=generator)])
        yield order[: plan.batch].to(device)
        order = order[plan.batch :]


def optimiser(network: nn.Module, plan: Plan) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LambdaLR]:
    """AdamW with decay on matrices only, linear warmup and cosine decay to zero."""
    matrices = [p for p in network.parameters() if p.ndim > 1]
    others = [p for p in network.parameters() if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": plan.weight_decay}, {"params": others, "weight_decay": 0.0}]
    adamw = torch.optim.AdamW(groups, lr=plan.learning_rate, betas=(0.9, 0.95))

    def factor(step: int) -> float:
        if step < plan.warmup:
            return (step + 1) / plan.warmup
        return 0.5 * (1 + math.cos(math.pi * (step - plan.warmup) / max(1, plan.steps - plan.warmup)))

    return adamw, torch.optim.lr_scheduler.LambdaLR(adamw, factor)


def step(loss: Tensor, network: nn.Module, adamw: torch.optim.Optimizer, what: str) -> float:
    """One clipped optimiser step; the loss as a number.  Stops at a loss that is not finite."""
    value = loss.item()
    if not math.isfinite(value):
        raise TrainingError(f"{what}: the loss became {value}; lower the learning rate")
    adamw.zero_grad(set_to_none=True)
    torch.autograd.backward(loss)
    nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    adamw.step()
    return value


def to_grey(images: Tensor) -> Tensor:
    """Bytes to grey values in [0, 1]."""
    return images.float() / 255.0


def in_batches(items: Tensor, size: int = 500) -> Iterator[Tensor]:
    """Consecutive slices of at most ``size``."""
    yield from torch.split(items, size)


def code_perplexity(tokens: Tensor, vocab_size: int) -> float:
    """exp of the entropy of the codes' frequencies: the number of codes in effective use."""
    share = torch.bincount(tokens.flatten(), minlength=vocab_size).double() / tokens.numel()
    return math.exp(-(torch.special.xlogy(share, share)).sum().item())


def fit_tokenizer(images: Tensor, preset: Preset, generator: torch.Generator) -> VQTokenizer:
    """Tokenizer of bytes images (N, 28, 28): squared and absolute error, codes by exponential averages."""
    plan = preset.tokenizer
    device = images.device
    network = fresh(VQTokenizer, preset.tokenizer_config, generator).to(device).train()
    adamw, schedule = optimiser(network, plan)
    uniform = plan.batch * network.num_tokens / network.vocab_size
    use = torch.full((network.vocab_size,), uniform, device=device)
    sums = network.codebook * uniform
    for index in batches(len(images), plan, generator, "tokenizer", device):
        target = to_grey(images[index])
        embedded = network.embed(target)
        with torch.no_grad():
            tokens = network.quantise(embedded)
            codes = network.codebook[tokens]
        drawn = network.draw(embedded + (codes - embedded).detach())
        error = functional.mse_loss(drawn, target) + 0.5 * functional.l1_loss(drawn, target)
        step(error + _COMMITMENT * functional.mse_loss(embedded, codes), network, adamw, "tokenizer")
        schedule.step()
        _move_codes(network, use, sums, embedded.detach(), tokens, uniform, generator)
    return network.eval().requires_grad_(False)


@torch.no_grad()
def _move_codes(
    network: VQTokenizer,
    use: Tensor,
    sums: Tensor,
    embedded: Tensor,
    tokens: Tensor,
    uniform: float,
    generator: torch.Generator,
) -> None:
    """Move codes to the direction of the running sum of their encodings; restart dead ones (all in place)."""
    flat, ids = embedded.flatten(0, 1), tokens.flatten()
    use.mul_(_EMA_DECAY).add_(torch.bincount(ids, minlength=len(use)), alpha=1 - _EMA_DECAY)
    sums.mul_(_EMA_DECAY).add_(torch.zeros_like(sums).index_add_(0, ids, flat), alpha=1 - _EMA_DECAY)
    dead = (use < _DEAD_SHARE * uniform).nonzero().flatten()
    if len(dead):
        chosen = torch.randint(len(flat), (len(dead),), generator=generator).to(flat.device)
        # A tenth of uniform use lets a useless restart die again soon.
        use[dead] = 0.1 * uniform
        sums[dead] = flat[chosen] * 0.1 * uniform
    network.codebook.copy_(functional.normalize(sums, dim=-1))


def fit_decoder(
    tokens: Tensor, labels: Tensor, shape: DecoderPlan, preset: Preset, generator: torch.Generator, what: str
) -> TokenTransformer:
    """Token transformer on (N, T) tokens and (N,) classes, cross-entropy, classes dropped at the preset's share."""
    network = fresh(TokenTransformer, preset.decoder_config(shape), generator).to(tokens.device).train()
    adamw, schedule = optimiser(network, shape.plan)
    for index in batches(len(tokens), shape.plan, generator, what, tokens.device):
        sequence, first = tokens[index], network.class_ids(labels[index])
        dropped = torch.rand(len(index), generator=generator).to(tokens.device) < preset.null_share
        first = torch.where(dropped, network.null_id, first)
        logits = network(torch.cat([first[:, None], sequence[:, :-1]], dim=1))
        step(functional.cross_entropy(logits.flatten(0, 1), sequence.flatten()), network, adamw, what)
        schedule.step()
    return network.eval().requires_grad_(False)


def fit_judge(
    images: Tensor, labels: Tensor, tokenizer: VQTokenizer, preset: Preset, generator: torch.Generator
) -> Judge:
    """Judge on images and, in equal shares, their reconstructions: samples pass through the same decoder."""
    network = fresh(Judge, preset.judge_config, generator).to(images.device).train()
    adamw, schedule = optimiser(network, preset.judge)
    for index in batches(len(images), preset.judge, generator, "judge", images.device):
        shown = to_grey(images[index])
        half = len(shown) // 2
        shown = torch.cat([shown[:half], tokenizer.decode(tokenizer.encode(shown[half:]))])
        step(functional.cross_entropy(network(shown)[0], labels[index]), network, adamw, "judge")
        schedule.step()
    return network.eval().requires_grad_(False)
