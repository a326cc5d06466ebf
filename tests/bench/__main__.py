"""`python -m tests.bench`: what the fast paths gain over plain references, and what the main jobs cost here.

Absolute seconds depend on the machine; the ratios are measured within this run, fast path and reference in turn.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from fractions import Fraction
from itertools import product

import numpy as np
import torch

import simulate
import theory
import validate
from tests.bench import acceptance, throughput
from tests.theory.helpers import oracle_round, relaxed_fraction, tabular
from theory.chains import all_prefixes

REPEATS = 5


def seconds(job: Callable[[], object], repeats: int = REPEATS) -> float:
    """Median of some runs after a warm-up."""
    job()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        job()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def line(name: str, fast: float, reference: float | None = None, note: str = "") -> None:
    """One row of the table."""
    ratio = f"{reference / fast:10.1f}x" if reference is not None else f"{'':11}"
    print(f"{name:58}{fast:11.6f} s{ratio}  {note}", flush=True)


def import_time() -> None:
    """Whole processes: `import theory` against an empty interpreter."""
    costs = []
    for code in ("import theory", "pass"):
        costs.append(seconds(lambda code=code: subprocess.run([sys.executable, "-c", code], check=True)))
    line("import theory, whole process", costs[0], None, f"of which the interpreter {costs[1]:.3f} s")


def large_markov_round() -> None:
    """Accepted length and bound at V = 1024, L = 16; the reference walks one row at a time."""
    rng = np.random.default_rng(0)

    def chain(size: int) -> theory.MarkovChain:
        return theory.MarkovChain(rng.dirichlet(np.ones(size)), rng.dirichlet(np.ones(size), size))

    target, draft = chain(1024), chain(1024)
    verifier = theory.cool_sd(16, 1.5)

    def by_rows() -> None:
        mass = np.ones(1)
        for i in range(16):
            rows = range(1024) if i else range(1)
            total = np.zeros(1024)
            for x in rows:
                p, q = (c.transition[x] if i else c.initial for c in (target, draft))
                total += mass[x] * verifier.step(p, q, i).accepted
            mass = total

    fast = seconds(lambda: theory.analyse_round(target, draft, verifier, 16), 3)
    line("round, Markov V=1024 L=16: length and bound", fast, seconds(by_rows, 1), "reference: row by row")


def exact_round_law() -> None:
    """The law of V = 3, L = 3 against plain recursion in rationals; and of V = 8, L = 5 alone."""
    rng = np.random.default_rng(0)

    def rows(depth: int) -> dict[tuple[int, ...], list[Fraction]]:
        out = {}
        for i in range(depth):
            for prefix in product(range(3), repeat=i):
                counts = rng.integers(1, 10, 3)
                out[prefix] = [Fraction(int(c), int(counts.sum())) for c in counts]
        return out

    target, draft = rows(4), rows(4)
    omega = [Fraction(2), Fraction(3, 2), Fraction(1)]
    chains = tabular(target, 3), tabular(draft, 3)
    verifier = theory.Verifier(theory.Relaxed([float(o) for o in omega]))
    fast = seconds(lambda: theory.analyse_round(*chains, verifier, 3).law)
    slow = seconds(lambda: oracle_round(target, draft, relaxed_fraction(omega), 3, 3))
    line("round law, V=3 L=3", fast, slow, "reference: plain recursion in rationals")
    trees = [simulate.dirichlet_tree(8, 7, rng) for _ in range(2)]
    line(
        "round law, V=8 L=6 (2,097,152 sequences)", seconds(lambda: theory.analyse_round(*trees, verifier_of(6), 6).law)
    )


def frontiers() -> None:
    """Bound frontier: dynamic programme with every breakpoint against the linear programmes of single budgets."""
    rng = np.random.default_rng(0)
    trees = [simulate.dirichlet_tree(4, 4, rng) for _ in range(2)]
    fast = seconds(lambda: theory.bound_frontier(*trees, 3))
    slow = seconds(lambda: theory.exact_frontier(*trees, 3, [0.1]), 3)
    line("bound frontier, V=4 L=3, every vertex", fast, slow, "reference: one linear programme (exact TV), one budget")
    trees = [simulate.dirichlet_tree(10, 5, rng) for _ in range(2)]
    tables = [[level.tolist() for level in tree.levels] for tree in trees]

    def gain(p: list, q: list, price: float) -> float:
        """Σ (min(p, q) (1 + w) + [q − p]_+ [1 + w − λ]_+) at one price λ, w the same after x: nested lists."""
        total = 0.0
        for a, b, w in zip(p[0], q[0], p[1], strict=True):
            total += min(a, b) * (1 + w) + max(b - a, 0.0) * max(0.0, 1 + w - price)
        return total

    def plain(depth: int, prefix: tuple[int, ...] = ()) -> float:
        p, q = (table[len(prefix)] for table in tables)
        for x in prefix:
            p, q = p[x], q[x]
        below = [plain(depth - 1, (*prefix, x)) if depth > 1 else 0.0 for x in range(10)]
        return gain([p, below], [q], 1.5)

    fast = seconds(lambda: theory.bound_frontier(*trees, 4))
    line(
        "bound frontier, V=10 L=4, every vertex",
        fast,
        seconds(lambda: plain(4), 3),
        "reference: plain Python, one price",
    )
    trees = [simulate.dirichlet_tree(10, 7, rng) for _ in range(2)]
    line("bound frontier, V=10 L=6 (1,111,111 nodes)", seconds(lambda: theory.bound_frontier(*trees, 6), 1))
    chains = [simulate.random_markov(256, rng) for _ in range(2)]
    line("bound frontier, Markov V=256 L=8", seconds(lambda: theory.bound_frontier(*chains, 8), 1))


def verifier_of(length: int) -> theory.Verifier:
    """COOL-SD as the benchmarks use it."""
    return theory.cool_sd(length, 1.5, floor=1.0)


def likelihoods() -> None:
    """Exact likelihoods by the offset recursion, batched against one at a time."""
    rng = np.random.default_rng(0)
    target, draft = (simulate.dirichlet_tree(3, 9, rng) for _ in range(2))
    tokens = all_prefixes(3, 9)
    p, q = simulate.teacher_forced(target, tokens), simulate.teacher_forced(draft, tokens)

    def run(rows: slice) -> object:
        return theory.sequence_log_likelihood(tokens[rows], p[rows], q[rows], verifier_of(3), 3)

    fast = seconds(lambda: run(slice(None))) / len(tokens)
    slow = seconds(lambda: run(slice(0, 1)))
    line("exact likelihood of a sequence, V=3 T=9 L=3", fast, slow, "all 19,683 at once; reference: one")


def simulation() -> None:
    """Vectorised decoding against the same decoder one row at a time."""
    rng = np.random.default_rng(0)
    target, draft = (simulate.random_markov(16, rng) for _ in range(2))

    def run(batch: int) -> object:
        return simulate.decode(target, draft, verifier_of(5), 5, 32, batch, np.random.default_rng(0))

    fast, slow = seconds(lambda: run(2000)) / 2000, seconds(lambda: run(1), 3)
    line("simulate.decode, a sequence of 32 tokens", fast, slow, "batch of 2,000; reference: batch of one")


def real_images() -> None:
    """Speculative decoding of the embedded pair against plain sampling."""
    pair = validate.load("fashion", device="cpu")

    def run(verifier: theory.Verifier | None, length: int) -> object:
        return validate.decode(pair, verifier, length, 100, device="cpu")

    plain = seconds(lambda: run(None, 0), 3)
    for name, verifier in (
        ("lossless", theory.Verifier(theory.Lossless())),
        ("COOL-SD δ=1.5, floored", verifier_of(5)),
    ):
        line(f"decode 100 images, {name}", seconds(lambda v=verifier: run(v, 5), 3), plain, "reference: plain sampling")
    scores = validate.score(pair, validate.decode(pair, None, 0, 100, device="cpu"))
    line("exact likelihoods and predictive laws of 100 images",
         seconds(lambda: validate.filter_images(scores, verifier_of(5), 5), 3))  # fmt: skip


def main() -> None:
    """Every benchmark, one line each."""
    print(f"{torch.get_num_threads()} threads, numpy {np.__version__}, torch {torch.__version__}")
    print(f"{'':58}{'fast path':>13}{'reference':>11}")
    for job in (import_time, large_markov_round, exact_round_law, frontiers, likelihoods, simulation, real_images,
                acceptance.main, throughput.main):  # fmt: skip
        job()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"largest memory of this process: {peak:.0f} MiB")


if __name__ == "__main__":
    main()
