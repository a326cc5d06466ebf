"""Rounds a second, one thread each, against transformers' sampler called round by round and a batched torch sampler.

Two jobs, and every number says which it is:

* *simulate*: rounds of a known pair of chains, drafting included. Ours draws outcomes from tables that were built once
  (the build is timed apart). The others have no tables: they are handed laws and drafted tokens that were prepared
  before the clock started, so drafting costs them nothing.
* *verify*: the same given blocks and laws for everybody (`simulate.verify`); nobody drafts, nothing is prepared.

The torch sampler is the plain batched one: probabilities in, ratios by gather, cumulative product of the comparisons,
one row of residual a round, multinomial.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import numpy as np
import torch

import simulate
import theory

LENGTH = 5
SIZES = (16, 1024, 16384)
GIVEN = {16: 20_000, 1024: 1500, 16384: 100}
"""Rounds in the arrays of given laws: about 130 MB of p and q in float64 at most."""


def per_second(job: Callable[[], object], rounds: int, repeats: int = 3) -> float:
    """Best of some runs after a warm-up, in processor time of this process: other work on the machine counts least."""
    job()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        job()
        times.append(time.process_time() - start)
    return rounds / min(times)


def torch_batched(ids: torch.Tensor, p: torch.Tensor, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Plain batched verification in torch: ids (B, L), p (B, L+1, V), q (B, L, V)."""
    at = ids[..., None]
    ratio = p[:, :-1].gather(-1, at)[..., 0] / q.gather(-1, at)[..., 0]
    accepted = (torch.rand_like(ratio) < ratio).to(torch.int64).cumprod(dim=1).sum(dim=1)
    rows = torch.arange(len(ids))
    law = p[rows, accepted]
    refused = (accepted < ids.shape[1]).nonzero()[:, 0]
    residual = (law[refused] - q[refused, accepted[refused]]).clamp(min=0)
    law[refused] = residual / residual.sum(dim=-1, keepdim=True)
    last = torch.multinomial(law, 1)[:, 0]
    tokens = torch.cat([ids, torch.zeros_like(ids[:, :1])], dim=1)
    tokens[rows, accepted] = last
    return tokens, accepted


def given_blocks(size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Drafted blocks with p and q along each; acceptance about .7 a token."""
    rng, count = np.random.default_rng(size), GIVEN[size]
    p = rng.dirichlet(np.ones(size), (count, LENGTH + 1))
    q = 0.4 * p[:, :-1] + 0.6 * rng.dirichlet(np.ones(size), (count, LENGTH))
    return simulate.categorical(q, rng.random((count, LENGTH))), p, q


def transformers_rate(ids: np.ndarray, p: np.ndarray, q: np.ndarray, rounds: int) -> float | None:
    """transformers' own function, one call a round, given logits; None where it is not installed."""
    try:
        from transformers.generation.utils import _speculative_sampling
    except ImportError:
        return None
    tokens, p_logits, q_logits = (
        torch.from_numpy(ids),
        torch.from_numpy(p).float().log(),
        torch.from_numpy(q).float().log(),
    )

    def job() -> None:
        for b in range(rounds):
            _speculative_sampling(tokens[b : b + 1], q_logits[b : b + 1], LENGTH, p_logits[b : b + 1])

    return per_second(job, rounds)


def chains(kind: str, size: int) -> tuple[theory.Chain, theory.Chain]:
    """A pair of independent or Markov chains with the acceptance of `given_blocks`."""
    rng = np.random.default_rng(size)
    if kind == "iid":
        p = rng.dirichlet(np.ones(size))
        return theory.IIDChain(p), theory.IIDChain(0.4 * p + 0.6 * rng.dirichlet(np.ones(size)))
    p = rng.dirichlet(np.ones(size), size + 1)
    q = 0.4 * p + 0.6 * rng.dirichlet(np.ones(size), size + 1)
    return theory.MarkovChain(p[0], p[1:]), theory.MarkovChain(q[0], q[1:])


def main() -> None:
    """The table, and the most memory this process has held."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    lossless = theory.Verifier(theory.Lossless())
    print(f"rounds a second, L = {LENGTH}, lossless, one thread (transformers and torch: float32)")
    head = "job", "rounds/s", "x transformers", "x torch"
    print(f"{head[0]:46}{head[1]:>12}{head[2]:>16}{head[3]:>10}")

    def row(
        name: str, rate: float | None, references: tuple[float | None, float] | None = None, note: str = ""
    ) -> None:
        shown = f"{rate:12,.0f}" if rate else f"{'not installed':>12}"
        ratios = [f"{rate / r:,.1f}x" if rate and r else "" for r in references or (None, None)]
        print(f"{name:46}{shown}{ratios[0]:>16}{ratios[1]:>10}  {note}", flush=True)

    rng = np.random.default_rng(0)
    for size in SIZES:
        ids, p, q = given_blocks(size)
        theirs = transformers_rate(ids, p, q, min(len(ids), 400))
        as_torch = tuple(torch.from_numpy(a) for a in (ids, p.astype(np.float32), q.astype(np.float32)))
        batched = per_second(lambda given=as_torch: torch_batched(*given), len(ids))
        references = (theirs, batched)
        row(f"V={size}: transformers, round by round", theirs)
        row(f"V={size}: batched torch", batched)
        for name, verifier, some in (("", lossless, slice(None)), (", block", theory.block(LENGTH), slice(0, 5000))):
            blocks = ids[some], p[some], q[some]
            rate = per_second(lambda given=blocks, v=verifier: simulate.verify(*given, v, rng), len(blocks[0]))
            row(f"V={size}: verify{name}, the same laws in float64", rate, references if not name else (None, None))
        narrow = ids, *(a.astype(np.float32) for a in (p, q))
        rate = per_second(lambda given=narrow: simulate.verify(*given, lossless, rng), len(ids))
        row(f"V={size}: verify, the same laws in float32", rate, references)
        del p, q, as_torch, blocks, narrow
        for kind in ("iid", "Markov") if size <= 1024 else ("iid",):
            pair = chains(kind, size)
            start = time.process_time()
            rounds = simulate.compile_round(*pair, lossless, LENGTH)
            built = time.process_time() - start
            rate = per_second(lambda r=rounds: r.run(2**18, rng), 2**18)
            note = f"tables built in {built:.2f} s, {rounds.walk.records.nbytes / 2**20:.1f} MiB"
            row(f"V={size}: simulate, {kind} tables, drafting included", rate, references, note)
            del pair, rounds
    pair = chains("Markov", 16)
    for name, verifier in (("token-wise, tables", lossless), ("block, mechanism", theory.block(LENGTH))):
        count = 2**15 if verifier is lossless else 2**13
        job = lambda v=verifier, n=count: simulate.decode(*pair, v, LENGTH, 64, n, np.random.default_rng(0))  # noqa: E731
        start = job()
        row(f"V=16: decode 64 tokens, {name}", per_second(job, int(start.calls.sum()), 1))
    print(f"largest memory of this process so far: {peak_mib():.0f} MiB, torch and transformers included")
    torch.set_num_threads(threads)


def peak_mib() -> float:
    """Largest resident memory of this process."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        if os.environ.get(name) != "1":
            print(f"set {name}=1: NumPy may use more threads than one")
    main()
