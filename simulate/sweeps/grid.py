"""What a sweep computes: the product of named axes, one cell for each combination.

A cell is one analysis of one setting:

    analysis × chain (kind, parameters, seed) × draft at a mean TV × verifier (family, strength) × L [× T [× samples]]

* "round"     `theory.analyse_round`: exact accepted length, bound, TV and both KLs of one round
* "sequence"  `theory.analyse_sequence`: the same for T tokens, with predictive divergences per token
* "estimate"  `simulate.estimate` from a stated number of samples: each number with an interval

Chains and drafts depend on (kind, parameters, seed) alone, so that all verifiers of a sweep meet the same pair. The
key of a cell is a hash of all its settings and of the code that computes it: order, neighbours and the rest of the grid
do not enter. A grid is written alike in Python and in TOML (`Grid.from_toml`); a parameter given as a list is an axis.

>>> grid = Grid(
...     analyses=["round"],
...     chains=[{"kind": "random_markov", "vocab_size": 4, "concentration": [0.5, 2.0]}],
...     draft_tv=0.3,
...     length=[2, 4],
...     seeds=[0, 1],
...     verifiers=[{"rule": "lossless"}, {"schedule": "uniform", "strength": [0.25, 0.5]}],
... )
>>> len(grid.cells()), grid.cells()[1].label
(24, "round of random_markov(concentration=0.5, vocab_size=4), seed 0, draft TV 0.3, L=2, schedule 'uniform' at 0.25")
"""

from __future__ import annotations

import inspect
import itertools
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from simulate import synthetic
from simulate.sweeps import catalogue
from simulate.sweeps.axes import axis, distinct, real, share, tables, text, whole
from simulate.sweeps.identity import code_fingerprint, definition, digest

FORMAT = 1
"""Of cell files and table; part of every key."""

ANALYSES = {"round": (), "sequence": ("tokens",), "estimate": ("tokens", "samples", "confidence")}
"""Analyses, and the settings that each needs beyond those that all need."""

CHAINS: dict[str, Callable[..., Any]] = {
    kind: getattr(synthetic, kind)
    for kind in ("dirichlet_tree", "random_markov", "dirichlet_iid", "potts_grid", "embedding_chain")
}

GIVEN = ("rng", "field")
"""Arguments of chains that no grid gives: the seed makes the generator, and the field is drawn with it."""


def chain_parameters(kind: str) -> dict[str, inspect.Parameter]:
    """Parameters of a chain that a grid gives, by name."""
    return {k: p for k, p in inspect.signature(CHAINS[kind]).parameters.items() if k not in GIVEN}


def _chain(table: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    if "kind" not in table:
        raise ValueError(f"{where} needs a kind: {', '.join(CHAINS)}")
    try:
        catalogue.known(table["kind"], CHAINS, "kind of chain")
        parameters = chain_parameters(table["kind"])
        for name in table:
            catalogue.known(name, ["kind", *parameters], "key")
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    axes: dict[str, tuple[Any, ...]] = {}
    for name, parameter in parameters.items():
        if name not in table:
            if parameter.default is parameter.empty:
                raise ValueError(f"{where} needs {name}, which {table['kind']} has no default for")
            axes[name] = (parameter.default,)
        else:
            integral = parameter.annotation in ("int", "int | None")
            axes[name] = axis(table[name], f"{where}.{name}", whole(1) if integral else real)
    return [{"kind": table["kind"], **dict(zip(axes, v, strict=True))} for v in itertools.product(*axes.values())]


def _verifier(table: Mapping[str, Any], where: str, lengths: Sequence[int]) -> Iterator[tuple[dict[str, Any], Any]]:
    """Settings of a verifier at each strength, with the function that builds it if it comes from outside."""
    kinds = [key for key in (*catalogue.CATALOGUES, "own") if key in table]
    if len(kinds) != 1:
        raise ValueError(
            f"{where} must name its verifier by one of the keys schedule, block or rule (own, in Python), "
            f"got {sorted(map(str, table))}"
        )
    kind = kinds[0]
    allowed = {"rule": ("residual", "strength"), "own": ("name", "version", "strength")}.get(kind, ("strength",))
    try:
        for key in table:
            catalogue.known(key, [kind, *allowed], "key")
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    strengths = axis(table["strength"], f"{where}.strength", real) if "strength" in table else (None,)
    texts = {key: text(table[key], f"{where}.{key}") for key in ("residual", "name", "version") if key in table}
    settings: dict[str, Any]
    if kind == "own":
        if not callable(table["own"]) or not texts.get("name"):
            raise ValueError(f"{where}: own must be a function (strength, length) -> verifier, with a name beside it")
        identity = definition(table["own"], texts.get("version", ""))
        settings = {"catalogue": kind, "name": texts["name"], "residual": None, "definition": identity}
    else:
        name = text(table[kind], f"{where}.{kind}")
        _checked_family(kind, name, texts.get("residual"), where, lengths, ())
        if (name in catalogue.WITHOUT_STRENGTH and kind == "rule") != (strengths == (None,)):
            raise ValueError(f"{where}: {kind} {name!r} {'takes no' if 'strength' in table else 'needs a'} strength")
        family = _checked_family(kind, name, texts.get("residual"), where, lengths, strengths)
        settings = {"catalogue": kind, "name": name, "residual": family.residual}
    for strength in strengths:
        yield {**settings, "strength": strength}, table.get("own")


def _checked_family(
    kind: str, name: str, residual: str | None, where: str, lengths: Sequence[int], strengths: Sequence[float | None]
) -> Any:
    """The family, after it was built once at every length and strength so far as that needs no chain."""
    for length in lengths:
        place = f"{where}, at length {length}"
        try:
            family = catalogue.find(kind, name, residual, length, None)
            for i, strength in enumerate(strengths):
                place = f"{where}.strength[{i}]"
                if kind != "rule" and not 0 <= strength:  # type: ignore[operator]
                    raise ValueError(f"strength must be >= 0, got {strength}")
                family.build(strength)  # type: ignore[arg-type]
        except catalogue.NoEmbeddingError:
            pass
        except (ValueError, OverflowError) as error:
            raise ValueError(f"{place}: {error}") from None
    return family


@dataclass(frozen=True, eq=False)
class Cell:
    """One analysis of one setting.

    Attributes
    ----------
    settings : dict
        All that its numbers depend on, as JSON can hold it; for a verifier from outside, the hash of its definition.
    own : function (strength, length) → verifier, or None
        Of a verifier from outside.
    """

    settings: dict[str, Any]
    own: Callable[[Any, int], Any] | None = field(default=None, repr=False)

    @cached_property
    def key(self) -> str:
        """Hash of format, code and settings: the name of the cell's file."""
        return digest([FORMAT, code_fingerprint(), self.settings])

    @property
    def label(self) -> str:
        """The setting in words."""
        s = self.settings
        chain = ", ".join(f"{k}={v}" for k, v in sorted(s["chain"].items()) if k != "kind" and v is not None)
        v = s["verifier"]
        strength = "" if v["strength"] is None else f" at {v['strength']}"
        more = "".join(f", {k}={s[k]}" for k in ANALYSES[s["analysis"]])
        return (
            f"{s['analysis']} of {s['chain']['kind']}({chain}), seed {s['seed']}, draft TV {s['draft_tv']}, "
            f"L={s['length']}{more}, {v['catalogue']} {v['name']!r}{strength}"
        )


@dataclass(frozen=True, eq=False)
class Grid:
    """Axes of a sweep; each is one value or a list of distinct values.

    Attributes
    ----------
    analyses : of "round", "sequence", "estimate"
    chains : list of dict
        ``kind`` (a function of `simulate.synthetic`) and its parameters; a parameter given as a list is an axis.
    draft_tv : floats in [0, 1]
        Mean TV between target and draft, see `simulate.make_draft`.
    length : ints ≥ 1
        L.
    seeds : ints ≥ 0
        Each gives its own chains, drafts and samples.
    verifiers : list of dict
        ``schedule``, ``block`` or ``rule`` with a name of `simulate.sweeps.catalogue`, ``strength``, and for rules
        ``residual``. In Python also ``own``, a function (strength, length) → verifier (strength None where the table
        has none), with ``name`` and, for changes that `simulate.sweeps.identity` cannot see, ``version``.
    tokens : ints ≥ 1
        T, for "sequence" and "estimate".
    samples : int ≥ 4, confidence : float
        For "estimate".

    Raises
    ------
    ValueError
        Naming the offending entry by its path: an unknown or missing key, a wrong type, an empty axis, a repetition.
    """

    analyses: Any
    chains: Any
    draft_tv: Any
    length: Any
    seeds: Any
    verifiers: Any
    tokens: Any = None
    samples: Any = None
    confidence: Any = 0.95

    def __post_init__(self) -> None:
        def set_(name: str, value: Any) -> None:
            object.__setattr__(self, name, value)

        set_("analyses", axis(self.analyses, "analyses", text))
        for i, name in enumerate(self.analyses):
            try:
                catalogue.known(name, ANALYSES, "analysis")
            except ValueError as error:
                raise ValueError(f"analyses[{i}]: {error}") from None
        needed = {key for name in self.analyses for key in ANALYSES[name]}
        for key in ("tokens", "samples"):
            users = " and ".join(repr(name) for name, keys in ANALYSES.items() if key in keys)
            if (getattr(self, key) is None) == (key in needed):
                raise ValueError(f"{key} {'is missing' if key in needed else 'is given'}, but {users} alone use(s) it")
        set_("draft_tv", axis(self.draft_tv, "draft_tv", share))
        set_("length", axis(self.length, "length", whole(1)))
        set_("seeds", axis(self.seeds, "seeds", whole(0)))
        set_("tokens", (None,) if self.tokens is None else axis(self.tokens, "tokens", whole(1)))
        set_("samples", None if self.samples is None else whole(4)(self.samples, "samples"))
        set_("confidence", share(self.confidence, "confidence"))
        if not 0 < self.confidence < 1:
            raise ValueError(f"confidence must lie between 0 and 1, got {self.confidence}")
        chains = [_chain(t, f"chains[{i}]") for i, t in enumerate(tables(self.chains, "chains"))]
        set_("chains", tuple(distinct(chains, "chains")))
        built = [
            list(_verifier(t, f"verifiers[{i}]", self.length))
            for i, t in enumerate(tables(self.verifiers, "verifiers"))
        ]
        distinct([[settings for settings, _ in group] for group in built], "verifiers")
        set_("verifiers", tuple(pair for group in built for pair in group))

    @classmethod
    def from_mapping(cls, table: Mapping[str, Any]) -> Grid:
        """Grid from a dict of the attributes above. ValueError for a key that is missing or unknown."""
        for key in table:
            catalogue.known(key, [f.name for f in fields(cls)], "key")
        missing = [name for name in inspect.signature(cls).parameters if name not in table]
        missing = [name for name in missing if name not in ("tokens", "samples", "confidence")]
        if missing:
            raise ValueError(f"the key {missing[0]!r} is missing")
        return cls(**table)

    @classmethod
    def from_toml(cls, path: str | Path) -> Grid:
        """Grid from a TOML file of the attributes above.

        Raises
        ------
        ValueError
            Naming the file and, in it, the line (for bad syntax) or the path of the key.
        OSError
            If the file cannot be read.
        """
        try:
            return cls.from_mapping(tomllib.loads(Path(path).read_text(encoding="utf-8")))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def cells(self) -> list[Cell]:
        """The cells in the order of the table: chain, seed, draft, L, verifier, strength, analysis, T."""
        out = []
        outer = itertools.product(self.chains, self.seeds, self.draft_tv, self.length, self.verifiers, self.analyses)
        for chain, seed, tv, length, (verifier, own), analysis in outer:
            more = {"samples": self.samples, "confidence": self.confidence}
            for tokens in self.tokens if "tokens" in ANALYSES[analysis] else (None,):
                settings = {"analysis": analysis, "chain": chain, "seed": seed, "draft_tv": tv, "length": length}
                used = {k: v for k, v in {**more, "tokens": tokens}.items() if k in ANALYSES[analysis]}
                out.append(Cell({**settings, **used, "verifier": verifier}, own))
        return out
