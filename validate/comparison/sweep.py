"""All matched methods on the same images of the target, over drafts, guidance scales and block lengths.

A *setting* is (draft, guidance, L); a *cell* is a setting at a size t. In every cell each method has the strength that
gives it the same predicted tokens per call on the very images that its divergences are then taken on, image by image
(`validate.comparison.paths`); nothing is decoded. Ratios between methods are paired, at 95 % each by itself: among a
thousand, fifty will miss.

The intervals take the strengths as given. Predicted tokens per call are importance-weighted averages over the same few
images, and their error moves the strengths: with 32 images, another 32 changed a block rule's ratio to uniform by a
fifth typically (a third at t = .3), and the ratio of two block rules by a twentieth (a quarter at most). So a ratio
between block rules near one is not a difference in a single cell, even where its interval says so; averages over cells
kept this project's recommended rule first (24 cells).

A method is *best* in a cell by a measure if its mean is the least; it is *told apart* from another if the interval of
their paired ratio excludes one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np

from validate.comparison.matching import Matcher, OutOfReach
from validate.comparison.methods import codebook_of, relaxed_methods
from validate.comparison.parts import Parts, file_name
from validate.comparison.paths import MEASURES, terms_along
from validate.comparison.ratios import REFERENCE, paired_ratio, rounded
from validate.decoding import Decoded, decode
from validate.models import Pair
from validate.scoring import AnyScores, score

__all__ = ["CANDIDATE", "RIVAL", "Setting", "cells", "counts", "settings_of", "standing", "sweep_rows", "sweep_setting"]

CANDIDATE, RIVAL = "capped mild", "capped excess"
"""The recommended rule, and the one a prototype named best before this sweep."""
LENGTHS = (3, 5, 8)
SIZES = (0.3, 0.5, 0.7)
SPREAD = {"mentored": 0, "Cactus": 0, "LANTERN++, G*": 1, "LANTERN++, published": 1}
"""Dear methods run only where at most so many of draft, guidance scale and L differ from the central setting's."""


@dataclass(frozen=True)
class Setting:
    """Draft, guidance scale and block length."""

    draft: str
    guidance: float
    length: int

    @property
    def key(self) -> str:
        """As in a file's name."""
        return f"{file_name(self.draft)}-g{self.guidance:g}-L{self.length}"


def settings_of(drafts: Sequence[str], guidances: Sequence[float], lengths: Sequence[int]) -> list[Setting]:
    """The product, guidance outermost: the target's images depend on it alone."""
    return [Setting(d, g, n) for g in guidances for d in drafts for n in lengths]


def sweep_setting(
    scores: AnyScores, setting: Setting, codebook: Any, sizes: Sequence[float], names: Sequence[str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each method's name and numbers in turn: strengths and, for every size, one number an image of each measure."""
    methods = relaxed_methods(setting.length, codebook)
    matcher = Matcher(scores, setting.length)
    for name in names:
        method = replace(methods[name], matching=None)
        found: list[dict[str, Any]] = []
        for size in sizes:
            try:
                strength = matcher.strength(method, size)
            except OutOfReach as error:
                found.append({"size": size, "setting": str(error), "terms": None})
                continue
            terms = terms_along(scores, method.build(strength), setting.length)
            listed = {measure: [float(f"{x:.7g}") for x in values] for measure, values in terms.items()}
            found.append({"size": size, "setting": method.setting(strength), "terms": listed})
        yield name, {"cells": found}


def sweep_rows(
    pair: Pair,
    settings: Sequence[Setting],
    sizes: Sequence[float],
    names: Sequence[str],
    images: int,
    parts: Parts,
    *,
    centre: Setting,
    seed: int = 0,
    tell: Any = lambda text: None,
) -> list[dict[str, Any]]:
    """Rows (setting, method, size, terms), from disk where they are done.

    Parameters
    ----------
    pair : Pair
        Its drafts by name.
    settings, sizes, names : what is swept
    images : int
        Images of the target, the same for every setting of one guidance scale.
    parts : Parts
    centre : Setting
        Methods that are dear to compute run in settings near this one only (`SPREAD`).
    seed : int
    tell : function
        Told what is being done.
    """
    codebook = codebook_of(pair)
    drawn: dict[float, Decoded] = {}
    rows = []
    for setting in settings:
        apart = sum(a != b for a, b in zip(astuple(setting), astuple(centre), strict=True))
        wanted = [name for name in names if apart <= SPREAD.get(name, apart)]
        stored = {name: parts.get(f"{setting.key}-{file_name(name)}") for name in wanted}
        missing = [name for name in wanted if stored[name] is None]
        if missing:
            tell(setting.key)
            using = replace(pair, draft_name=setting.draft)
            if setting.guidance not in drawn:
                drawn[setting.guidance] = decode(
                    using, None, 0, images, device=pair.device.type, seed=seed, guidance=setting.guidance
                )
            scores = score(using, drawn[setting.guidance])
            for name, part in sweep_setting(scores, setting, codebook, sizes, missing):
                parts.put(f"{setting.key}-{file_name(name)}", part)
                stored[name] = part
                tell(f"{setting.key} {name}")
        for name in wanted:
            own = stored[name]
            assert own is not None
            rows += [{**cell, "setting": setting, "method": name, "strength": cell["setting"]} for cell in own["cells"]]
    return rows


def cells(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """For every cell: each method's means, its paired ratios to uniform, and the candidate's paired ratio to it.

    Methods out of reach keep their text and have no numbers.
    """
    grouped: dict[tuple[Setting, float], dict[str, dict[str, Any]]] = {}
    for row in rows:
        grouped.setdefault((row["setting"], row["size"]), {})[row["method"]] = row
    out = []
    for (setting, size), methods in grouped.items():
        table = {}
        for name, row in methods.items():
            entry: dict[str, Any] = {"strength": row["strength"]}
            if row["terms"] is not None:
                for measure in MEASURES:
                    entry[measure] = _mean(row["terms"][measure])
                    entry[f"{measure}_over_uniform"] = _ratio(methods, name, REFERENCE, measure)
                    entry[f"{measure}_of_candidate_over_this"] = _ratio(methods, CANDIDATE, name, measure)
            table[name] = entry
        out.append(
            {"draft": setting.draft, "guidance": setting.guidance, "length": setting.length, "size": size,
             "methods": table}
        )  # fmt: skip
    return out


def _mean(values: Sequence[float]) -> float | str:
    mean = float(np.mean(values))
    return float(f"{mean:.5g}") if np.isfinite(mean) else str(mean)


def _ratio(methods: dict[str, dict[str, Any]], ours: str, theirs: str, measure: str) -> list[float] | None:
    left, right = (methods.get(name, {}).get("terms") for name in (ours, theirs))
    if ours == theirs or left is None or right is None:
        return None
    return rounded(paired_ratio(left[measure], right[measure]))


def standing(found: Sequence[dict[str, Any]], measure: str) -> dict[str, dict[str, float]]:
    """How each method stands over all cells it was compared in, by one measure.

    Returns
    -------
    dict
        By method: "cells"; "over_uniform", the geometric mean of its ratios to uniform; "behind_best", the largest
        ratio of its mean to the least of any method in the cell.
    """
    ratios: dict[str, list[tuple[float, float]]] = {}
    for cell in found:
        means = {n: e[measure] for n, e in cell["methods"].items() if isinstance(e.get(measure), float)}
        for name, mean in means.items():
            if means.get(REFERENCE, 0.0) > 0 and min(means.values()) > 0:
                ratios.setdefault(name, []).append((mean / means[REFERENCE], mean / min(means.values())))
    return {
        name: {
            "cells": len(pairs),
            "over_uniform": float(f"{np.exp(np.mean(np.log([a for a, _ in pairs]))):.4g}"),
            "behind_best": float(f"{max(b for _, b in pairs):.4g}"),
        }
        for name, pairs in ratios.items()
    }


def counts(found: Sequence[dict[str, Any]], measure: str) -> dict[str, Any]:
    """How the candidate fares over all cells by one measure.

    Returns
    -------
    dict
        "cells"; "best": how often each method is best; "candidate_against": for every other method the cells where the
        candidate is told apart and less, not told apart, told apart and more, and where they were compared.
    """
    best: dict[str, int] = {}
    against: dict[str, dict[str, Any]] = {}
    for cell in found:
        means = {
            name: entry[measure] for name, entry in cell["methods"].items() if isinstance(entry.get(measure), float)
        }
        if means:
            first = min(means, key=means.__getitem__)
            best[first] = best.get(first, 0) + 1
        for name, entry in cell["methods"].items():
            ratio = entry.get(f"{measure}_of_candidate_over_this")
            if ratio is None:
                continue
            tally = against.setdefault(name, {"less": 0, "not told apart": 0, "more": 0, "least": 1e9, "most": 0.0})
            tally["less" if ratio[2] < 1 else "more" if ratio[0] > 1 else "not told apart"] += 1
            tally["least"], tally["most"] = min(tally["least"], ratio[1]), max(tally["most"], ratio[1])
    return {"cells": len(found), "best": best, "candidate_against": against}
