"""Acceptance arithmetic and whole-image likelihoods at V = 16384 beside the softmaxes that they cannot do without.

Aims, on one machine and in one run: arithmetic at most three times the two softmaxes of its round, likelihoods at most
twice the two log-softmaxes, with memory linear in V.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

import theory
from validate.acceptance import accepted_drafts, draw, residual_row
from validate.likelihood import image_log_likelihood

ROWS, LENGTH, SIZE, TOKENS = 32, 5, 16384, 576


def cost(job: Callable[[], object], repeats: int = 5) -> float:
    """Median processor seconds: what other processes do to the clock does not count."""
    job()
    spans = []
    for _ in range(repeats):
        begin = time.process_time()
        job()
        spans.append(time.process_time() - begin)
    return statistics.median(spans)


def show(name: str, ours: float, floor: float, aim: float) -> None:
    """One row: cost, and how many times the softmaxes'."""
    print(f"{name:58}{ours:11.6f} s{ours / floor:10.2f}x  of its softmaxes ({floor:.6f} s; aim {aim:g})", flush=True)


def laws(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of a target and a draft near it."""
    generator = torch.Generator().manual_seed(0)
    target = 2 * torch.randn(*shape, SIZE, generator=generator)
    return target, target + torch.randn(*shape, SIZE, generator=generator)


@torch.no_grad()
def arithmetic() -> None:
    """f at the drafted tokens, the residual of the rejected row, its draw."""
    target, draft = laws(ROWS, LENGTH + 1)
    draft = draft[:, :LENGTH].contiguous()
    floor = cost(lambda: (torch.softmax(target, -1), torch.softmax(draft, -1)))
    p, q = torch.softmax(target, -1), torch.softmax(draft, -1)
    u = torch.rand(ROWS, LENGTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    tokens = torch.stack([draw(q[:, i], u[:, i]).token for i in range(LENGTH)], dim=1)
    drafted = np.full(ROWS, LENGTH)
    verifiers = {
        "lossless": theory.Verifier(theory.Lossless()),
        "COOL-SD": theory.cool_sd(LENGTH, 1.1, floor=1.0),
        "block": theory.block(LENGTH),
    }
    for name, verifier in verifiers.items():

        def job(verifier: theory.AnyVerifier = verifier) -> object:
            accepted = accepted_drafts(verifier, tokens, p[:, :-1], q, drafted, u)
            return draw(residual_row(verifier, accepted, tokens, p[:, :-1], q), u[:, 0])

        show(f"a round's arithmetic, V={SIZE} L={LENGTH} B={ROWS}, {name}", cost(job), floor, 3)


@torch.no_grad()
def likelihood() -> None:
    """One image of 576 tokens."""
    target, draft = laws(1, TOKENS)
    tokens = torch.randint(0, SIZE, (1, TOKENS), generator=torch.Generator().manual_seed(1))
    floor = cost(lambda: (torch.log_softmax(target, -1), torch.log_softmax(draft, -1)))
    for name, verifier in (
        ("lossless", theory.Verifier(theory.Lossless())),
        ("COOL-SD", theory.cool_sd(LENGTH, 1.1)),
        ("COOL-SD floored", theory.cool_sd(LENGTH, 1.1, floor=1.0)),
    ):
        ours = cost(lambda v=verifier: image_log_likelihood(tokens, target, draft, v, LENGTH))
        show(f"image likelihood, V={SIZE} L={LENGTH} T={TOKENS}, {name}", ours, floor, 2)


def main() -> None:
    """Both."""
    arithmetic()
    likelihood()


if __name__ == "__main__":
    main()
