"""One cell computed: settings → rows of numbers.

Random numbers of a cell come from `numpy.random.SeedSequence` with its seed and a hash of what they are for: the
chain's parameters (so that all cells of a chain and seed share it, and its draft), or all settings (samples). So
neither order nor workers nor the other cells of a sweep matter.

A row is one quantity: ``quantity``, ``claim`` ("exact", "upper bound" or "estimate"), ``value``, for an estimate
``lower`` and ``upper``, and ``status``:

* "ok"
* "infeasible": too many sequences to enumerate, a chain with fewer tokens than needed, a rule that needs embeddings
  where there are none; ``message`` says which, and no retry would help
* "failed": an exception, in ``message``
"""

from __future__ import annotations

import functools
import json
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

import simulate.synthetic
import theory
from simulate.drafts import make_draft
from simulate.estimation import estimate
from simulate.sweeps import catalogue
from simulate.sweeps.identity import code_fingerprint, digest, plain
from theory.chains import LARGEST_LAW, check_depth

DISTANCES = ("total_variation", "kl_output_target", "kl_target_output")
PREDICTIVE = tuple(f"predictive_{name}" for name in DISTANCES)

PAIRS_KEPT = 2
"""Chains with their drafts that a worker keeps: neighbouring cells share one, and a tree may be large."""


class InfeasibleError(Exception):
    """The cell asks for what cannot be computed here; the message says why."""


class Pair(NamedTuple):
    """Target, draft, and codebook rows where the tokens have them."""

    target: Any
    draft: Any
    embedding: Any


def rng_for(seed: int, *purpose: Any) -> np.random.Generator:
    """A generator of its own for every seed and purpose."""
    return np.random.default_rng(np.random.SeedSequence([seed, int(digest(purpose), 16)]))


@functools.lru_cache(maxsize=PAIRS_KEPT)
def _pair(chain: str, seed: int, draft_tv: float) -> Pair:
    parameters = json.loads(chain)
    kind = parameters.pop("kind")
    if kind == "dirichlet_tree":
        _enumerable(parameters["vocab_size"], parameters["depth"], "a tree")
    made = getattr(simulate.synthetic, kind)(**parameters, rng=rng_for(seed, "chain", chain))
    target, embedding = (made.chain, made.embedding) if kind == "embedding_chain" else (made, None)
    return Pair(target, make_draft(target, draft_tv, rng_for(seed, "draft", chain)), embedding)


def _enumerable(size: int, tokens: int, what: str) -> None:
    if size**tokens > LARGEST_LAW:
        raise InfeasibleError(f"{what} of {tokens} tokens over {size} ids: more than {LARGEST_LAW} sequences")


def _deep(pair: Pair, tokens: int, why: str) -> None:
    try:
        check_depth(pair.target, tokens, "chain", why)
    except ValueError as error:
        raise InfeasibleError(str(error)) from None


def _keeps_prefixes(pair: Pair, verifier: theory.AnyVerifier) -> bool:
    return verifier.stateful or not isinstance(pair.target, (theory.IIDChain, theory.MarkovChain))


def _numbers(source: Any, names: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    for name in names:
        number = getattr(source, name.removeprefix("predictive_"))
        yield {"quantity": name, "claim": number.kind, "value": float(number)}


def _distances(names: tuple[str, ...], size: int, tokens: int, make: Callable[[], Iterator[dict[str, Any]]]) -> Any:
    """Rows that need the law of all sequences, or rows that say that there are too many."""
    try:
        _enumerable(size, tokens, "the law")
    except InfeasibleError as error:
        return [{"quantity": name, "status": "infeasible", "message": str(error)} for name in names]
    return make()


def _round(pair: Pair, verifier: theory.AnyVerifier, s: dict[str, Any]) -> Iterator[dict[str, Any]]:
    size, length = pair.target.vocab_size, s["length"]
    _deep(pair, length + 1, f"a round of {length} drafted tokens and one more")
    if _keeps_prefixes(pair, verifier):
        _enumerable(size, length, "a round")
    a = theory.analyse_round(pair.target, pair.draft, verifier, length)
    yield {"quantity": "accepted_length", "claim": a.expected_accepted.kind, "value": float(a.expected_accepted)}
    yield from _numbers(a, ("tokens_per_call", "tv_bound"))
    yield from _distances(DISTANCES, size, length + 1, lambda: _numbers(a, DISTANCES))


def _sequence(pair: Pair, verifier: theory.AnyVerifier, s: dict[str, Any]) -> Iterator[dict[str, Any]]:
    size, length, tokens = pair.target.vocab_size, s["length"], s["tokens"]
    _deep(pair, tokens, f"a sequence of {tokens} tokens")
    if _keeps_prefixes(pair, verifier):
        _enumerable(size, tokens, "a sequence")
    a = theory.analyse_sequence(pair.target, pair.draft, verifier, length, tokens)
    yield from _numbers(a, ("tokens_per_call", "tv_bound"))

    def distances() -> Iterator[dict[str, Any]]:
        yield from _numbers(a, DISTANCES)
        hellinger = theory.hellinger(a.law.ravel(), a.target_law.ravel())
        yield {"quantity": "hellinger", "claim": theory.Exact.kind, "value": float(hellinger)}
        predictive = a.predictive()
        for name in PREDICTIVE:
            mean = np.mean(getattr(predictive, name.removeprefix("predictive_")))
            yield {"quantity": name, "claim": theory.Exact.kind, "value": float(mean)}

    yield from _distances((*DISTANCES, "hellinger", *PREDICTIVE), size, tokens, distances)


def _estimate(pair: Pair, verifier: theory.AnyVerifier, s: dict[str, Any]) -> Iterator[dict[str, Any]]:
    tokens = s["tokens"]
    _deep(pair, tokens, f"a sequence of {tokens} tokens")
    rng = rng_for(s["seed"], "samples", s)
    found = estimate(pair.target, pair.draft, verifier, s["length"], tokens, s["samples"], rng, s["confidence"])
    for name, interval in found.intervals().items():
        lower, value, upper = map(float, interval)
        yield {"quantity": name, "claim": interval.kind, "value": value, "lower": lower, "upper": upper}


RUN: dict[str, Callable[[Pair, theory.AnyVerifier, dict[str, Any]], Iterator[dict[str, Any]]]] = {
    "round": _round,
    "sequence": _sequence,
    "estimate": _estimate,
}


def failure(settings: dict[str, Any], error: Exception) -> dict[str, Any]:
    """The result of a cell that ended in an exception; as that of `compute`."""
    return {
        "settings": settings,
        "code": code_fingerprint(),
        "status": "failed",
        "message": plain(f"{type(error).__name__}: {error}"),
        "traceback": "".join(traceback.format_exception(error)),
        "rows": [],
    }


def compute(settings: dict[str, Any], own: Callable[[Any, int], Any] | None = None) -> dict[str, Any]:
    """Compute one cell; an exception becomes its result.

    Parameters
    ----------
    settings : dict
        Of a `simulate.sweeps.grid.Cell`.
    own : function (strength, length) → verifier, optional

    Returns
    -------
    dict
        settings, code (`code_fingerprint` of the process that computed it), status, message, traceback, rows.
    """
    record = {"settings": settings, "code": code_fingerprint(), "status": "ok", "message": None, "traceback": None}
    try:
        v, length = settings["verifier"], settings["length"]
        pair = _pair(json.dumps(settings["chain"], sort_keys=True), settings["seed"], settings["draft_tv"])
        if own is not None:
            verifier = own(v["strength"], length)
        else:
            family = catalogue.find(v["catalogue"], v["name"], v["residual"], length, pair.embedding)
            verifier = family.build(v["strength"])
        return {**record, "rows": list(RUN[settings["analysis"]](pair, verifier, settings))}
    except (InfeasibleError, catalogue.NoEmbeddingError) as error:
        return {**record, "rows": [], "status": "infeasible", "message": str(error)}
    except Exception as error:
        # Whatever a user's rule raises must not end a night's sweep.
        return failure(settings, error)
