"""Ways of decoding images that have no strength to match: Jacobi windows, draft trees, budgets.

A further scheme is one more entry of `SCHEMES`: a name and a function that makes it of a `Context`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import theory
from theory import Verifier
from validate.budgeted_decoding import decode_budgeted
from validate.comparison.methods import NEIGHBOURS, codebook_of
from validate.decoding import Decoded
from validate.drafters.jacobi import Coupling, decode_jacobi
from validate.drafters.multiscale import decode_multiscale, shipped_multiscale
from validate.drafters.offset_laws import filter_feature_chains
from validate.drafters.row_below import Mode, decode_row_below, shipped_heads
from validate.drafters.shipped import shipped_drafter
from validate.drafters.trees import feature_proposer
from validate.drafters.verification_skipping import decode_skipping, filter_skipped
from validate.models import Pair
from validate.scoring import score
from validate.tree_decoding import decode_tree
from validate.tree_shapes import LANTERN_TREE, tree_of_paths

__all__ = ["SCHEMES", "Context", "Scheme", "chosen_schemes"]

CSD_STRENGTHS = (0.05, 0.1, 0.5)
"""λ; .5 is the published one, with δ = .65 (2606.27829)."""
GSD_RANKS = (1, 7)
"""Ranks on either side, groups of G = 3 and 15 tokens; δ_p = .15 and d = .5 are the published ones (2508.07747)."""
TREE_FACTOR = 1.5
"""ω, and λ of LANTERN++, of relaxed trees: about a third of the way from lossless to accepting everything."""
BUDGETS = {"tv": 0.2, "kl": 0.2, "reverse_kl": 0.2}
"""ε of whole images: a detector's advantage of .2; nats. A token's share of .2 nats over 49 tokens is .004."""


SKIPPING = (theory.Skipping(1), theory.Skipping(3, 0.5), theory.Skipping(3))
"""Skipped passes of one token, of three behind every other round, and of three (2511.13587)."""
POOLING = ((10, 0.05), (10, 0.2))
"""k and τ of multi-scale decoding; islands are not dilated."""


@dataclass(frozen=True)
class Context:
    """What schemes are made of."""

    pair: Pair
    length: int
    window: int = 16
    drafter: str | Path | None = None
    """Folder of the feature drafter; the one that ships with the pair by default."""


@dataclass(frozen=True)
class Scheme:
    """A way of decoding images.

    Attributes
    ----------
    decode : function (pair, images, *, device, seed, guidance, warp) → Decoded
    setting : str
        Its strength in its own terms.
    lossless : bool
        Whether the images follow the target's law exactly.
    log_ratio : function (pair, images) → array (n,), optional
        log P̂/P of decoded images, where the scheme's law has an exact likelihood.
    certificate : dict, optional
        Proved bounds by the divergence's name, for whole images.
    """

    decode: Callable[..., Decoded]
    setting: str = ""
    lossless: bool = False
    log_ratio: Callable[[Pair, Decoded], np.ndarray] | None = None
    certificate: Mapping[str, float] | None = None


def _jacobi(coupling: Coupling, verifier: Any, setting: str) -> Callable[[Context], Scheme]:
    def make(context: Context) -> Scheme:
        own = verifier(context.pair) if callable(verifier) else verifier
        total = context.pair.num_tokens
        if not 1 <= context.window <= total:
            raise ValueError(f"--window must lie in 1…{total} (the image's tokens), got {context.window}")

        def run(pair: Pair, images: Any, **options: Any) -> Decoded:
            return decode_jacobi(pair, own, context.window, images, coupling, **options)

        return Scheme(run, f"W {context.window}{setting}", own.lossless)

    return make


def _tree(verifier: Any, setting: str, *, chain: bool = False) -> Callable[[Context], Scheme]:
    def make(context: Context) -> Scheme:
        own = verifier(context)
        tree: Any = tree_of_paths([(0,) * d for d in range(1, context.length + 1)] if chain else LANTERN_TREE)
        depth, total = context.length if chain else max(map(len, LANTERN_TREE)), context.pair.num_tokens
        if depth > total:
            raise ValueError(f"the tree is {depth} deep but an image has {total} tokens; leave it out of --schemes")
        drafter = shipped_drafter(context.pair, context.drafter)
        proposer = feature_proposer(drafter)
        shape = f"L {context.length}" if chain else "25 nodes"

        def run(pair: Pair, images: Any, **options: Any) -> Decoded:
            return decode_tree(pair, own, tree, images, proposer=proposer, **options)

        def log_ratio(pair: Pair, images: Decoded) -> np.ndarray:
            found = filter_feature_chains(pair, drafter, images, own, context.length)
            return np.asarray(found.log_likelihood - found.target_log_likelihood)

        likely = log_ratio if chain and not own.lossless else None
        return Scheme(run, f"feature drafter, {shape}{setting}", own.lossless, likely)

    return make


def _lantern(context: Context) -> Verifier:
    book = codebook_of(context.pair)
    near = theory.nearest_neighbours(book, min(2 * NEIGHBOURS, len(book) - 1))
    return Verifier(theory.LanternPlusPlus(near, min(NEIGHBOURS, near.shape[1] - 1), TREE_FACTOR))


def _budget(ledger: theory.budget.Ledger) -> Callable[[Context], Scheme]:
    epsilon = BUDGETS[ledger]

    def make(context: Context) -> Scheme:
        rule = theory.budgeted(Verifier(theory.Relaxed(2.0)), epsilon, ledger)

        def run(pair: Pair, images: Any, **options: Any) -> Decoded:
            return decode_budgeted(pair, rule, context.length, images, **options).images

        def log_ratio(pair: Pair, images: Decoded) -> np.ndarray:
            found = [theory.filter_budget(*piece, rule, context.length) for piece in score(pair, images).pieces()]
            return np.concatenate([(f.log_likelihood - f.target_log_likelihood).cpu().numpy() for f in found])

        bounds = {{"tv": "image_tv", "kl": "image_kl_output_target"}.get(ledger, "image_kl_target_output"): epsilon}
        return Scheme(run, f"omega 2, {ledger} {epsilon:g} an image", False, log_ratio, bounds)

    return make


def _skipping(skipping: theory.Skipping) -> Callable[[Context], Scheme]:
    def make(context: Context) -> Scheme:
        def run(pair: Pair, images: Any, **options: Any) -> Decoded:
            return decode_skipping(pair, _LOSSLESS, context.length, images, skipping, **options)

        def log_ratio(pair: Pair, images: Decoded) -> np.ndarray:
            found = filter_skipped(score(pair, images), _LOSSLESS, context.length, skipping)
            return np.asarray(found.log_likelihood - found.target_log_likelihood)

        return Scheme(run, f"K {skipping.most}, rho {skipping.probability:g}", False, log_ratio)

    return make


def _row_below(mode: Mode) -> Callable[[Context], Scheme]:
    def make(context: Context) -> Scheme:
        heads = shipped_heads(context.pair)
        length = min(context.length, heads.length)

        def run(pair: Pair, images: Any, **options: Any) -> Decoded:
            return decode_row_below(pair, heads, _LOSSLESS, length, images, mode, **options)

        return Scheme(run, f"L {length}", True)

    return make


def _multiscale(k: int, tau: float) -> Callable[[Context], Scheme]:
    def make(context: Context) -> Scheme:
        drafter = shipped_multiscale(context.pair)
        rule = theory.NeighbourhoodPooling(theory.nearest_neighbours(codebook_of(context.pair), k), k, tau)

        def run(pair: Pair, images: Any, **options: Any) -> Decoded:
            return decode_multiscale(pair, drafter, rule, 0, images, **options)

        return Scheme(run, f"k {k}, tau {tau:g}")

    return make


_LOSSLESS = Verifier(theory.Lossless())

SCHEMES: dict[str, Callable[[Context], Scheme]] = {
    "SJD": _jacobi("independent", _LOSSLESS, ""),
    "coupled SJD": _jacobi("maximal", _LOSSLESS, ""),
    "coupled SJD, Gumbel": _jacobi("gumbel", _LOSSLESS, ""),
    **{
        f"coupled SJD with CSD, lambda {lam:g}": _jacobi(
            "maximal", theory.published_verifier(theory.EntropyRelaxed(lam, 0.65)), f", lambda {lam:g}"
        )
        for lam in CSD_STRENGTHS
    },
    **{
        f"coupled SJD with GSD, G {2 * ranks + 1}": _jacobi(
            "maximal",
            partial(lambda ranks, pair: theory.published_verifier(theory.Grouped(codebook_of(pair), ranks)), ranks),
            f", G {2 * ranks + 1}",
        )
        for ranks in GSD_RANKS
    },
    "tree": _tree(lambda context: _LOSSLESS, ""),
    "tree, uniform": _tree(lambda context: Verifier(theory.Relaxed(TREE_FACTOR)), f", omega {TREE_FACTOR:g}"),
    "tree, LANTERN++, G*": _tree(_lantern, f", lambda {TREE_FACTOR:g}"),
    "feature chain": _tree(lambda context: _LOSSLESS, "", chain=True),
    "feature chain, uniform": _tree(
        lambda context: Verifier(theory.Relaxed(TREE_FACTOR)), f", omega {TREE_FACTOR:g}", chain=True
    ),
    **{f"VVS-style, K {s.most}, rho {s.probability:g}": _skipping(s) for s in SKIPPING},
    "Hawk-style": _row_below("both"),
    "Hawk-style, horizontal heads alone": _row_below("horizontal"),
    **{f"MuLo-SD-style, tau {tau:g}": _multiscale(k, tau) for k, tau in POOLING},
    "budgeted uniform, TV": _budget("tv"),
    "budgeted uniform, KL(out|p)": _budget("kl"),
    "budgeted uniform, KL(p|out)": _budget("reverse_kl"),
}
"""Every scheme by name, made when it is asked for."""


def chosen_schemes(context: Context, names: Sequence[str] | None = None) -> dict[str, Scheme]:
    """Schemes by name; all by default.

    Raises
    ------
    ValueError
        An unknown name; a window or a tree longer than the image; a tokenizer without a codebook.
    FileNotFoundError, WeightsError
        No feature drafter of this target, or one of another.
    """
    unknown = [name for name in names or () if name not in SCHEMES]
    if unknown:
        raise ValueError(f"unknown scheme {unknown[0]!r}; known: {'; '.join(SCHEMES)}")
    return {name: make(context) for name, make in SCHEMES.items() if names is None or name in names}
