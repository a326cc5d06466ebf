"""A feature drafter for a trained pair, on the target's own samples: ``python -m validate.training drafter``.

The target writes `samples` images at the pair's guidance. On each, with h_t and p_{t+1} the features and the guided
laws of a teacher-forced pass, the drafter learns to continue the features: in pass 1 it reads (x_{t+1}, h_t), in pass k
(x_{t+k}, what pass k−1 made there), so that it also sees features of its own making. Loss of a pass

    KL(p ‖ softmax(guided head(ĥ))) + FEATURE · smooth L1(ĥ, h),

means over the places that a pass has a target for. EAGLE (arXiv:2401.15077) has pass 1 with both terms (the weights are
this project's); later passes are those of HASS (arXiv:2408.15766), except that all inputs of a pass, not only the last
ones, are the drafter's own. Both halves of the guidance are drafted, as in decoding. With ``--cascade-weight λ`` pass 1
also has λ times the term of `validate.cascade.training`, which rewards mass on interchangeable tokens.

The weights folder gains ``drafter/``: config.json and model.safetensors in the published layout, half precision.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import save
from torch import Tensor
from torch.nn import functional

from simulate.files import write_atomically
from validate.cascade.training import interchangeable_candidates, interchangeable_term
from validate.drafters.feature import DrafterConfiguration, FeatureDrafter
from validate.drafters.shipped import target_sha256
from validate.models import Pair, guided_logits
from validate.models.llamagen.keys import llama_names
from validate.models.transformer import TokenTransformer
from validate.training.fitting import batches, optimiser, step
from validate.training.on_samples import parser, train_on_samples
from validate.training.presets import Plan

__all__ = ["fit_drafter", "main", "store_drafter"]

FEATURE = 0.1
"""Weight of the feature term: small, because only the law of the drafts counts for acceptance."""
HIDDEN = 256
"""Feed-forward width: twice the target's width keeps the drafter far below one target layer and a megabyte."""
BATCH = 32
"""Images a step, each in both halves."""


def guided(logits: Tensor, guidance: float) -> Tensor:
    conditional, null = logits.chunk(2)
    return guided_logits(conditional, null, guidance)


def halves(target: TokenTransformer, tokens: Tensor, classes: Tensor, guidance: float) -> tuple[Tensor, Tensor]:
    """Features (2B, T, D), conditional rows first, and guided log-laws (B, T, V) of whole images."""
    first = torch.cat([target.class_ids(classes), torch.full_like(classes, target.null_id)])
    ids = torch.cat([first[:, None], tokens[:, :-1].repeat(2, 1)], dim=1)
    with torch.no_grad():
        logits, features = target(ids, return_hidden=True)
    return features, guided(logits, guidance).log_softmax(dim=-1)


def fit_drafter(
    target: TokenTransformer,
    tokens: Tensor,
    classes: Tensor,
    guidance: float,
    plan: Plan,
    generator: torch.Generator,
    passes: int = 2,
    cascade: float = 0.0,
) -> FeatureDrafter:
    """Drafter on the target's samples, tokens (N, T) and classes (N,); it starts from the target's own embedding.

    `cascade` ≥ 0 is the weight of the term for interchangeable tokens.
    """
    if not 0 <= cascade < float("inf"):
        raise ValueError(f"the cascade weight must be finite and >= 0, got {cascade!r}")
    side = target.grid[0]
    config = DrafterConfiguration(target.vocab_size, target.width, HIDDEN, target.heads, side)
    drafter = FeatureDrafter(config).train()
    drafter.initialise(generator)
    with torch.no_grad():
        drafter.tok_embeddings.weight.copy_(target.token_embedding.weight[: target.vocab_size])
    adamw, schedule = optimiser(drafter, plan)
    for index in batches(len(tokens), plan, generator, "drafter"):
        sequence = tokens[index]
        features, laws = halves(target, sequence, classes[index], guidance)
        made, loss = features, torch.zeros(())
        for later in range(passes):
            # Input t joins x_{t+1+later} and the feature of index t + later; what comes out belongs to t + 1 + later.
            read = sequence[:, later:-1].repeat(2, 1)
            made = drafter.teach(read, made[:, : read.shape[1]])
            q = guided(target.head(made), guidance).log_softmax(dim=-1)
            p = laws[:, 1 + later :]
            loss = loss + functional.kl_div(q.flatten(0, 1), p.flatten(0, 1), log_target=True, reduction="batchmean")
            loss = loss + FEATURE * functional.smooth_l1_loss(made, features[:, 1 + later :])
            if cascade and not later:
                some = interchangeable_candidates(target, sequence, classes[index], laws, guidance, generator)
                row = torch.arange(len(sequence))[:, None]
                # Input t of pass 1 makes the law of index t + 1.
                drafts, wanted = q[row, some.places - 1], laws[row, some.places].exp()
                # The mean over passes is taken below; the term belongs to one of them.
                loss = loss + passes * cascade * interchangeable_term(drafts, wanted, some.tokens, some.alike)
        step(loss / passes, drafter, adamw, "drafter")
        schedule.step()
    return drafter.eval().requires_grad_(False)


def published_layout(drafter: FeatureDrafter) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Config and tensors as `validate.drafters.loading.load_drafter` reads them."""
    shape = drafter.config
    config = {
        "model_type": "llama",
        "hidden_size": shape.width,
        "intermediate_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "vocab_size": shape.vocab_size,
        "rms_norm_eps": shape.eps,
        "input_type": "class",
        "block_size": shape.side**2,
        "cls_token_num": shape.zero_rows,
        "rope_base": shape.rope_base,
        "bias": shape.bias,
        "torch_dtype": "float16",
    }
    tensors = {
        name.removeprefix("model."): value.to(torch.float16).contiguous()
        for name, value in llama_names(drafter.state_dict()).items()
    }
    return config, tensors


def store_drafter(drafter: FeatureDrafter, folder: Path, record: dict[str, Any]) -> int:
    """Write the two files, the config last, and answer their size in bytes; `record` goes into the config."""
    config, tensors = published_layout(drafter)
    content, text = save(tensors), json.dumps(config | record, indent=1).encode() + b"\n"
    write_atomically(folder / "model.safetensors", content)
    write_atomically(folder / "config.json", text)
    return len(content) + len(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train a drafter for a pair's target and write it into the weights folder; returns the exit status."""
    p = parser("drafter", "a feature drafter", steps=500)
    p.add_argument("--cascade-weight", type=float, default=0.0, metavar="WEIGHT",
                   help="weight of the term for interchangeable tokens (default: 0)")  # fmt: skip
    options = p.parse_args(arguments)

    def train(
        pair: Pair, tokens: Tensor, classes: Tensor, plan: Plan, generator: torch.Generator, record: dict[str, Any]
    ) -> int:
        target = cast(TokenTransformer, pair.target)
        weight = options.cascade_weight
        drafter = fit_drafter(target, tokens, classes, pair.guidance, plan, generator, cascade=weight)
        own = {"target_sha256": target_sha256(pair)} | ({"cascade_weight": weight} if weight else {})
        return store_drafter(drafter, options.out, own | record)

    return train_on_samples(options, "drafter", BATCH, 60, train)
