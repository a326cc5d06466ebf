"""Verifiers by name: the families of `theory`, each with one strength.

==========  ======================================  ==========================================================
catalogue   names                                   strength
==========  ======================================  ==========================================================
schedule    of `theory.schedule_families`           s ≥ 0: ω = e^s, or δ = e^s − 1 (its docstring has the table)
block       of `theory.comparison.block_families`   s ≥ 0, as above
rule        of `theory.rule_families`, with a       the rule's own parameter: δ, λ − 1, T, … (`rule_families`)
            `residual`; "lossless", "accept-all"    none
==========  ======================================  ==========================================================

Rules that pool tokens (LANTERN, GSD, …) need codebook rows, which only an embedding chain has.

>>> find("schedule", "uniform", None, 3, None).build(0.5).rule.omega.round(3).tolist()
[1.649, 1.649, 1.649]
>>> find("rule", "Cactus", None, 3, None).residual
'published'
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

import theory
from theory.comparison import LARGEST_STRENGTH, block_families
from theory.families import schedule_families
from theory.rule_families import Family

CATALOGUES = ("schedule", "block", "rule")

WITHOUT_STRENGTH: dict[str, Callable[[], theory.Rule]] = {"lossless": theory.Lossless, "accept-all": theory.AcceptAll}
"""Rules that have no strength."""

SMALLEST_CODEBOOK = 3
"""Tokens that `theory.rule_families` asks for at least."""


class NoEmbeddingError(ValueError):
    """A rule that pools tokens was asked for on a chain whose tokens have no embedding."""


@functools.cache
def pooling_rules() -> frozenset[str]:
    """Names of the rules that need codebook rows."""
    needed = ("neighbour", "codebook", "labels", "states")
    return frozenset(r["name"] for r in theory.published_rules() if any(n in r["side_information"] for n in needed))


def known(name: str, names: Iterable[str], what: str) -> None:
    """Raise a ValueError with the nearest names unless `name` is one of `names`."""
    names = list(dict.fromkeys(names))
    if name not in names:
        near = difflib.get_close_matches(str(name), names, 1, 0.5)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise ValueError(f"unknown {what} {name!r}{hint} Known: {', '.join(names)}")


def find(catalogue: str, name: str, residual: str | None, length: int, embedding: Any) -> Family:
    """The family of that name for rounds of `length` drafted tokens.

    Parameters
    ----------
    catalogue : {"schedule", "block", "rule"}
    name : str
    residual : str, optional
        Of a rule: "published" where there is one, else "optimal" or "kl"; LANTERN's three branches must be named.
    length : int
        L.
    embedding : array, shape (V, D), or None
        Codebook rows; None where tokens have none.

    Returns
    -------
    Family
        Its `low` and `high` are for searches, no limits of what can be built.

    Raises
    ------
    ValueError
        For a name or residual that there is not, with the nearest one.
    NoEmbeddingError
        From `build`, for a rule that pools tokens where there is no embedding.
    """
    if catalogue != "rule":
        found = schedule_families(length) if catalogue == "schedule" else block_families(length)
        known(name, found, catalogue)
        own = "optimal" if catalogue == "schedule" else "block"
        if residual not in (None, own):
            raise ValueError(f"{catalogue} {name!r} has the residual {own!r}, got {residual!r}")
        return Family(name, own, found[name], 0.0, LARGEST_STRENGTH)
    if name in WITHOUT_STRENGTH:
        if residual not in (None, "published"):
            raise ValueError(f"rule {name!r} has its published residual only, got {residual!r}")
        rule = WITHOUT_STRENGTH[name]
        return Family(name, "published", lambda strength: theory.published_verifier(rule()), 0.0, 0.0)
    rows = np.arange(SMALLEST_CODEBOOK, dtype=float)[:, None] if embedding is None else embedding
    families = theory.rule_families(rows, length)
    known(name, [*WITHOUT_STRENGTH, *(f.rule for f in families)], "rule")
    ours = {f.residual: f for f in families if f.rule == name}
    if residual is None:
        published = [r for r in ours if r not in ("optimal", "kl")]
        if len(published) > 1:
            raise ValueError(f"rule {name!r} was published with several residuals; name one of {', '.join(ours)}")
        residual = published[0] if published else "optimal"
    known(residual, ours, f"residual of rule {name!r}")
    family = ours[residual]
    if embedding is None and name in pooling_rules():

        def refuse(strength: float) -> Any:
            raise NoEmbeddingError(f"rule {name!r} pools tokens by their embedding; only embedding_chain has one")

        return Family(name, residual, refuse, family.low, family.high)
    return family
