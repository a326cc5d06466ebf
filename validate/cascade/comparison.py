"""What CASCADE-style relaxation buys, beside COOL-SD and LANTERN++ on the same draft trees.

Whole images: every rule decodes the same images with one tree and one drafter. A tree-decoded image has no closed-form
likelihood under its rule, so divergences of images are not known: what is reported is cost (accepted depth a round,
tokens per call) and quality (nats per token under the target, the judge's accuracy, Fréchet distance of its features).

One node: at the target's own prefixes, a node with two children from the drafter's law there has exact output laws o:
accepted (a child is taken), TV(o, p), KL(o‖p), KL(p‖o). For CASCADE-style the classes are those of the target's states
after all V tokens. At one node COOL-SD is multiplicative relaxation with one ω: its schedule does not show. Strengths
of COOL-SD and LANTERN++ are matched to CASCADE-style's mean acceptance, so that rows of one τ_b compare at equal
acceptance. These are numbers of single steps along the target's images, not of decoded images.

>>> matched(lambda s: 0.5 + s / 4, 0.75)
1.0
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from scipy.optimize import brentq
from torch import Tensor

import theory
from simulate.intervals import mean_interval
from theory import Verifier
from theory.cascade_nodes import two_children
from theory.trees import sibling_steps
from validate.cascade.properties import CONFIDENCE, rounded
from validate.cascade.states import cascade_verifier, guided_states
from validate.decoding import Decoded
from validate.drafters.feature import FeatureDrafter
from validate.drafters.trees import feature_proposer
from validate.models import Pair
from validate.models.forest import Forest
from validate.models.interface import START
from validate.quality import assess
from validate.scoring import score
from validate.tree_decoding import decode_tree
from validate.tree_proposers import ProposerOf, tree_sequences
from validate.tree_shapes import TreeShape

__all__ = ["compare_images", "compare_nodes", "tree_methods"]

NEIGHBOURS = 10
"""LANTERN++'s k at its published λ = 5 (2502.06352)."""
MOST = 12.0
"""Largest log-strength tried when matching."""


def _neighbours(pair: Pair) -> np.ndarray:
    tokenizer: Any = pair.tokenizer
    return theory.nearest_neighbours(tokenizer.codebook.detach().double().cpu().numpy(), NEIGHBOURS)


def tree_methods(pair: Pair, depth: int, quick: bool = False) -> list[tuple[str, dict[str, float], Verifier]]:
    """Name, settings and verifier of every row."""
    near = _neighbours(pair)
    taus: tuple[float, ...] = (0.9,) if quick else (0.9, 0.7, -1.0)
    out: list[tuple[str, dict[str, float], Verifier]] = [("lossless", {}, Verifier(theory.Lossless()))]
    for delta in (1.1,) if quick else (0.5, 1.1, 2.0):
        out.append(("COOL-SD, floored", {"delta": delta}, theory.cool_sd(depth, delta, floor=1.0)))
    for lam in (2.0,) if quick else (1.5, 2.0, 5.0):
        out.append(("LANTERN++, G*", {"lambda": lam}, Verifier(theory.LanternPlusPlus(near, NEIGHBOURS, lam))))
    for tau in taus:
        out.append(("CASCADE-style, breadth", {"tau_b": tau}, cascade_verifier(tau)))
    for tau in taus[:2]:
        out.append(("CASCADE-style, depth", {"tau_d": tau}, cascade_verifier(None, tau)))
    for tau in taus[:1]:
        out.append(("CASCADE-style, both", {"tau_b": tau, "tau_d": tau}, cascade_verifier(tau, tau)))
    return out


def compare_images(
    pair: Pair, like: Decoded, tree: Any, proposer: ProposerOf, seed: int, *, quick: bool = False
) -> list[dict[str, Any]]:
    """One row a method: cost and quality of images decoded like the target's own `like`, which is the first row."""
    plain = assess(pair, like.tokens, like.classes, score(pair, like).log_likelihood("target"), CONFIDENCE)
    rows = [{"method": "target, no drafting"} | _quality(plain)]
    for name, setting, verifier in tree_methods(pair, TreeShape(tree).depth, quick):
        run = decode_tree(
            pair, verifier, tree, like.asked, proposer=proposer, seed=seed, guidance=like.guidance, warp=like.warp,
            device=pair.device.type,
        )  # fmt: skip
        quality = assess(pair, run.tokens, run.classes, score(pair, run).log_likelihood("target"), CONFIDENCE)
        # A round that ends the image is cut short and says nothing of the tree.
        whole = (run.accepted >= 0) & (run.starts + TreeShape(tree).depth < pair.num_tokens)
        mean = np.where(whole, run.accepted, 0).sum(axis=1) / np.maximum(whole.sum(axis=1), 1)
        calls = mean_interval([run.calls.astype(float)], CONFIDENCE, "normal", least=1.0, name="calls")
        rows.append(
            {"method": name, "setting": setting, "accepted_depth": rounded(_mean(mean)),
             "tokens_per_call": rounded(calls.map(lambda c: pair.num_tokens / c))} | _quality(quality)
        )  # fmt: skip
    return rows


def _mean(terms: np.ndarray) -> Any:
    return mean_interval([np.asarray(terms, dtype=np.float64)], CONFIDENCE, "normal", name="mean")


def _quality(quality: Any) -> dict[str, Any]:
    return {
        "nll_per_token": rounded(quality.nll_per_token),
        "judge_accuracy": rounded(quality.judge_accuracy),
        "frechet_distance": float(f"{quality.frechet_distance:.4g}"),
    }


@torch.no_grad()
def nodes_along(
    pair: Pair, images: Decoded, drafter: FeatureDrafter, seed: int
) -> tuple[np.ndarray, np.ndarray, Tensor]:
    """Target and draft law (n, V) behind one random prefix of each image, and guided states after all V tokens."""
    device, size = pair.device, pair.vocab_size
    tokens = torch.from_numpy(images.tokens).to(device)
    count, total = tokens.shape
    conditions = pair.encode_conditions(images.asked)
    inputs = torch.cat([torch.full_like(tokens[:, :1], START), tokens], dim=1)
    place = torch.from_numpy(np.random.default_rng(seed).integers(1, total - 1, count)).to(device)
    target = tree_sequences(pair.target, conditions[0], images.guidance)
    _, hidden = target.logits(inputs[:, :total], torch.zeros_like(place), hidden=True)
    proposer = feature_proposer(drafter)(pair, conditions, images.guidance, images.warp, TreeShape([[], []]))
    # All inputs before the root were accepted in one go: the drafter reads their features, then drafts behind the root.
    nothing = torch.zeros_like(place)
    path = torch.arange(total, device=device).expand(count, -1)
    proposer.advance(path, place - 1, nothing, hidden)
    q = proposer.root(inputs, place)
    assert q is not None
    root = inputs.gather(1, place[:, None])
    every = torch.arange(size, device=device).expand(count, -1)
    parents = torch.cat([torch.full((1,), -1), torch.zeros(size, dtype=torch.int64)]).to(device)
    logits, states = target.tree_logits(torch.cat([root, every], dim=1), place, Forest.of(parents), hidden=True)
    p = torch.softmax(images.warp(logits[:, 0]).double(), dim=-1)
    after = guided_states(states, images.guidance, count)[:, 1:]
    q = q.double()
    return p.cpu().numpy(), (q / q.sum(dim=-1, keepdim=True)).cpu().numpy(), after


def _numbers(p: np.ndarray, output: np.ndarray) -> tuple[float, float, float]:
    output = output / output.sum()
    return (
        float(theory.total_variation(output, p)),
        float(theory.kl_divergence(output, p)),
        float(theory.kl_divergence(p, output)),
    )


def matched(reached: Callable[[float], float], value: float) -> float | None:
    """Strength s ≥ 0 at which an increasing `reached` meets a value; None if it never does."""
    if reached(0.0) >= value:
        return 0.0
    if reached(MOST) < value:
        return None
    return float(brentq(lambda s: reached(s) - value, 0.0, MOST, xtol=1e-4))


def compare_nodes(
    pair: Pair, images: Decoded, drafter: FeatureDrafter, seed: int, taus: Sequence[float]
) -> list[dict[str, Any]]:
    """Exact two-children nodes behind the target's prefixes, one row a method and τ_b."""
    laws, drafts, states = nodes_along(pair, images, drafter, seed)
    near = _neighbours(pair)
    units = torch.nn.functional.normalize(states.double(), dim=-1)
    cosines = (units @ units.transpose(1, 2)).cpu().numpy()

    def steps(verifier: Verifier) -> tuple[np.ndarray, np.ndarray]:
        """Acceptance (n,) and output laws (n, V)."""
        accepted, outputs = [], []
        for p, q in zip(laws, drafts, strict=True):
            node = sibling_steps(p[None], q[None], verifier, 0, 2, "without_replacement")
            accepted.append(float(sum(mass.sum() for mass in node.accepted)))
            outputs.append(node.output(2)[0])
        return np.array(accepted), np.stack(outputs)

    families: dict[str, Callable[[float], Verifier]] = {
        "COOL-SD (one node: uniform)": lambda s: Verifier(theory.Relaxed(math.exp(s))),
        "LANTERN++, G*": lambda s: Verifier(theory.LanternPlusPlus(near, NEIGHBOURS, math.exp(s))),
    }
    lossless = steps(Verifier(theory.Lossless()))[0]
    rows: list[dict[str, Any]] = [{"method": "lossless", "accepted": rounded(_mean(lossless))}]
    for tau in taus:
        alike = np.maximum(cosines, cosines.transpose(0, 2, 1)) >= tau
        nodes = [two_children(p, q, a) for p, q, a in zip(laws, drafts, alike, strict=True)]
        ours = np.array([node.accepted for node in nodes])
        excess = np.array([node.excess for node in nodes])
        found: list[tuple[Any, ...]] = [
            ("CASCADE-style, breadth", None, ours, np.stack([node.output for node in nodes]), excess)
        ]
        for name, build in families.items():

            def reached(s: float, build: Callable[[float], Verifier] = build) -> float:
                return float(steps(build(s))[0].mean())

            strength = matched(reached, float(ours.mean()))
            if strength is None:
                rows.append({"method": name, "tau_b": tau, "out_of_reach": True})
                continue
            found.append((name, math.exp(strength), *steps(build(strength)), None))
        for name, factor, accepted, outputs, more in found:
            tv, out, back = np.array([_numbers(p, o) for p, o in zip(laws, outputs, strict=True)]).T
            row: dict[str, Any] = {
                "method": name, "tau_b": tau, "strength": factor, "accepted": rounded(_mean(accepted)),
                "gain": rounded(_mean(accepted - lossless)), "tv": rounded(_mean(tv)),
                "kl_output_target": rounded(_mean(out)), "kl_target_output": rounded(_mean(back)),
            }  # fmt: skip
            if more is not None:
                row["excess"] = rounded(_mean(more))
            rows.append(row)
    return rows
