"""Short answers for a reader who has read no paper: every number in them is read from the tables on disk.

A sentence is a function of the tables it names. Where one of them is missing, or a small version lacks the rows, the
sentence is left out; words such as "lower" follow from the numbers and are never typed. The page and the README show
the same sentences.

>>> spread([0.816, 0.9, 1.234])
'0.82 to 1.23'
>>> verdict([0.8, 0.9]), verdict([1.1, 1.0]), verdict([0.8, 1.2])
('lower', 'not lower', 'lower at some sizes only')
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from paper_figures import tables
from paper_figures.pairs import EVEN, geometric_mean
from paper_figures.registry import Rows

UNIFORM, FLOORED, BARE = "uniform", "annealed, floored", "annealed, no floor"
MILD = ("excess, ν = .7", "excess, ν = .2")
"""Schedules whose excess over 1 decays: ω = 1 + d e^(−νi)."""

WORDS = {
    "target, draft": "the large model whose images are wanted, and the small one that proposes tokens for it",
    "round": "the draft proposes a block of tokens, one call of the target checks them all, the first one refused is "
    "replaced",
    "lossless": "checked so strictly that the images follow the target's own law exactly",
    "relaxed": "checked less strictly: more drafted tokens are accepted, and the law changes",
    "uniform, annealed": "every position of a block relaxed alike, or the first positions more than the later ones",
    "floored": "no position is checked more strictly than lossless",
    "size t": "how far a rule is relaxed: 0 is lossless speed, 1 the speed of accepting everything",
    "tokens per call": "speed: tokens of the image for every call of the target",
    "TV": "total variation: the largest error in the probability of any event; 0 is the target's law, 1 is nothing in "
    "common",
    "predictive TV": "TV of the next token's law, averaged along an image: the bias of a step",
    "KL": "Kullback–Leibler divergence in nats: adds up over tokens and punishes what the target would hardly ever do",
    "bound": "a proved upper limit of one round's TV, which the papers argue with",
}
"""The page's words: term → meaning."""


@dataclass(frozen=True)
class Sentence:
    """One sentence of an answer.

    Attributes
    ----------
    question : str
    figures : tuple of str
        Figures whose tables it is made from.
    text : function tables → str
        Called with the rows of those figures, in order.
    """

    question: str
    figures: tuple[str, ...]
    text: Callable[..., str]


SENTENCES: list[Sentence] = []


def _says(question: str, *figures: str) -> Callable[[Callable[..., str]], Callable[..., str]]:
    def add(text: Callable[..., str]) -> Callable[..., str]:
        SENTENCES.append(Sentence(question, figures, text))
        return text

    return add


def spread(values: Iterable[float]) -> str:
    """Least and greatest, in words."""
    ordered = sorted(values)
    low, high = f"{ordered[0]:.2f}", f"{ordered[-1]:.2f}"
    return low if low == high else f"{low} to {high}"


def verdict(ratios: Iterable[float]) -> str:
    """Whether ratios lie clearly below one (`EVEN`)."""
    below = [ratio < 1 - EVEN for ratio in ratios]
    return "lower" if all(below) else "lower at some sizes only" if any(below) else "not lower"


def by_size(rows: Rows, **values: object) -> dict[float, float]:
    """Geometric mean of the ratio to uniform at each size."""
    cells = tables.group(tables.select(rows, **values), "size")
    return {size: geometric_mean([row["ratio"] for row in cell]) for (size,), cell in cells.items()}


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


TRADE, ANNEALING, USE, CLAIMS = (
    "What does relaxing trade?",
    "Is annealing real?",
    "What should I use?",
    "Are the published claims right?",
)


@_says(TRADE, "real_pair")
def speed_for_law(rows: Rows) -> str:
    """Speed against the law on real images, from lossless to the boldest uniform relaxation."""
    (exact,) = tables.select(rows, schedule="lossless")
    uniform = sorted(tables.select(rows, schedule=UNIFORM), key=lambda row: row["size"])
    first, last = uniform[0], uniform[-1]
    return (
        "Speed for likeness. Let t be how far a rule is relaxed, from 0 (lossless speed) to 1 (the speed of accepting "
        "everything). On real images uniform relaxation raises the tokens per call of the large model from "
        f"{exact['tokens_per_call']:.2f} (lossless) to {last['tokens_per_call']:.2f} at t = {last['size']:g}, and "
        f"the law of every next token is then off by a TV of {last['token_tv']:.2f} on average. Over a whole image "
        f"errors add up: the best possible detector, shown one image, says rightly whether it was relaxed in "
        f"{_percent((1 + last['image_tv']) / 2)} of the cases (guessing: 50 %), and in "
        f"{_percent((1 + first['image_tv']) / 2)} at the mildest setting, t = {first['size']:g} and "
        f"{first['tokens_per_call']:.2f} tokens per call."
    )


@_says(TRADE, "sample_grid")
def to_the_eye(rows: Rows) -> str:
    """What a judge network still recognises."""
    parts = []
    for (delta,), cell in tables.group(rows, "delta").items():
        seen = _percent(sum(row["recognised"] for row in cell) / len(cell))
        name = "lossless" if delta == 1 else "accepting everything" if delta == float("inf") else f"δ = {delta:g}"
        parts.append(f"{seen} ({name})")
    return (
        f"What a detector can tell need not meet the eye: a judge network recognises {', '.join(parts)} of the images."
    )


@_says(TRADE, "claims_ledger")
def one_for_one(rows: Rows) -> str:
    """The one-position line, if its verdict is that it holds."""
    (line,) = tables.select(rows, name="Yin et al., one line", verdict="holds")
    return (
        f"No rule escapes the trade ({line['claim']}): whatever a rule accepts beyond lossless it pays for one for one "
        "in bias. Rules differ in KL, and in what happens over several positions."
    )


@_says(ANNEALING, "annealing_long", "annealing_truth")
def annealing_in_short(long: Rows, truth: Rows) -> str:
    """The verdicts, quantity by quantity."""
    found = {
        "the bound of one round": by_size(truth, part="one round", schedule=FLOORED, quantity="bound"),
        "the exact TV of one round": by_size(truth, part="one round", schedule=FLOORED, quantity="tv"),
        "the exact KL of one round": by_size(truth, part="one round", schedule=FLOORED, quantity="kl_output_target"),
        "the predictive TV of long sequences": by_size(long, schedule=FLOORED, quantity="step_bias"),
        "their KL": by_size(long, schedule=FLOORED, quantity="kl_output_target"),
    }
    grouped = {"lower": "yes", "lower at some sizes only": "in part", "not lower": "no"}
    parts = []
    for answer, word in grouped.items():
        names = [name for name, ratios in found.items() if verdict(ratios.values()) == answer]
        if names:
            parts.append(f"{word} for {', '.join(names)}")
    return (
        "Relaxing the first tokens of a block more than the later ones, at equal speed and on average over "
        f"the chains tried, is better than relaxing all alike: {'; '.join(parts)}."
    )


@_says(ANNEALING, "annealing_truth")
def annealing_in_one_round(rows: Rows) -> str:
    """Bound, TV and KL of one round, single cases counted."""
    one = tables.select(rows, part="one round", schedule=FLOORED)
    lower = {}
    for quantity in ("bound", "tv", "kl_output_target"):
        ratios = tables.column(tables.select(one, quantity=quantity), "ratio")
        lower[quantity] = (sum(ratio < 1 for ratio in ratios), len(ratios))
    shown = {quantity: f"{won} of {of}" for quantity, (won, of) in lower.items()}
    bound, tv = (won / of for won, of in (lower["bound"], lower["tv"]))
    return (
        f"In one round at equal speed, floored annealing has a lower proved bound than uniform relaxation in "
        f"{shown['bound']} cases, a lower exact TV in {shown['tv']} and a lower KL in {shown['kl_output_target']}"
        f"{': what the bound promises is not what one round does' if bound > 0.5 > tv else ''}."
    )


@_says(ANNEALING, "annealing_long")
def annealing_over_many_rounds(rows: Rows) -> str:
    """Predictive TV and KL of long sequences."""
    bias, kl = (by_size(rows, schedule=FLOORED, quantity=q) for q in ("step_bias", "kl_output_target"))
    where = ", ".join(f"{ratio:.2f} at t = {size:g}" for size, ratio in kl.items())
    return (
        f"Over sequences of {rows[0]['tokens']} tokens its predictive TV is {verdict(bias.values())} "
        f"({spread(bias.values())} times uniform's over all sizes), its KL {verdict(kl.values())} ({where})."
    )


@_says(ANNEALING, "real_pair")
def annealing_on_images(rows: Rows) -> str:
    """The same on real images, with intervals."""
    annealed = sorted(tables.select(rows, schedule=FLOORED), key=lambda row: row["size"])
    said = {}
    for name in ("token_tv", "token_kl_output_target"):
        ratios = [[row[f"{name}_ratio{end}"] for end in ("", "_lower", "_upper")] for row in annealed]
        said[name] = ", ".join(
            f"{ratio:.2f} [{low:.2f}, {high:.2f}] at t = {row['size']:g}"
            for row, (ratio, low, high) in zip(annealed, ratios, strict=True)
        )
    return (
        f"On real images, times uniform's with {_percent(rows[0]['confidence'])} intervals: predictive TV "
        f"{said['token_tv']}; KL {said['token_kl_output_target']}."
    )


@_says(USE)
def stay_lossless() -> str:
    """What needs no numbers."""
    return (
        "If the images must follow the target's law: do not relax. Lossless block verification (theory.block) keeps "
        "the law and never accepts less than the token-wise check."
    )


@_says(USE, "every_rule")
def relax_blocks(rows: Rows) -> str:
    """Relaxed block verification against every published rule."""
    from paper_figures.every_rule import CAPPED, SETTINGS, beaten, means

    (one, of, _), (many, of_many, _) = (beaten(rows, part, "kl_output_target") for part in SETTINGS)
    tv, of_tv, _ = beaten(rows, "per token", "tv")
    shares = {key[2]: mean for key, mean in means(rows, "per token", "kl_output_target").items() if key[0] == CAPPED}
    listed = ", ".join(f"{mean:.2f} (t = {size:g})" for size, mean in shares.items())
    return (
        "If you can check a block as a whole: relaxed block verification (theory.capped_block, theory.lifted_block). "
        f"At equal tokens per call the best such rule has less KL than every published rule in {one} of {of} "
        f"comparisons of one round and {many} of {of_many} over sequences; by the exact TV of a sequence it wins {tv} "
        f"of {of_tv}. Capped uniform alone has {listed} of uniform relaxation's KL."
    )


@_says(USE, "annealing_long")
def relax_positions(rows: Rows) -> str:
    """Schedules that are below uniform in predictive TV and KL at every size, the lowest KL first."""
    good = {}
    for schedule in tables.distinct(rows, "schedule"):
        bias, kl = (by_size(rows, schedule=schedule, quantity=q).values() for q in ("step_bias", "kl_output_target"))
        if verdict(bias) == verdict(kl) == "lower":
            good[schedule] = (geometric_mean(list(kl)), f"predictive TV {spread(bias)}, KL {spread(kl)}")
    best = sorted(good, key=lambda schedule: good[schedule][0])
    if not best:
        return (
            "Token by token no schedule tried is below uniform relaxation in both predictive TV and KL at every size."
        )
    listed = "; ".join(f"{schedule}: {good[schedule][1]}" for schedule in best)
    return (
        "If you check token by token: a schedule that is below uniform relaxation in predictive TV and in KL at every "
        f"size, the lowest KL first ({listed}, times uniform's). Excess means ω = 1 + d e^(−νi) at position i."
    )


@_says(USE, "lossless_floor", "annealing_long")
def floor_it(floor: Rows, long: Rows) -> str:
    """The floor is free; without it KL can be far larger."""
    from paper_figures.lossless_floor import LAW, REPORTED

    before, after = (tables.select(floor, floored=floored) for floored in (False, True))
    change = max(abs(a[key] - b[key]) for a, b in zip(before, after, strict=True) for key in LAW)
    gains = [b["accepted"] / a["accepted"] for a, b in zip(before, after, strict=True) if a["delta"] == REPORTED[0]]
    worst = max(by_size(long, schedule=BARE, quantity="kl_output_target").values())
    return (
        f"Whatever the schedule, floor it at lossless, ω = max(1, ω): at COOL-SD's δ = {REPORTED[0]:g} that accepts "
        f"{100 * (min(gains) - 1):.0f} to {100 * (max(gains) - 1):.0f} % more drafted tokens and leaves the law alone "
        f"(largest change {change:.0e}). At equal speed, annealing without the floor has up to {worst:.1f} "
        "times uniform's KL."
    )


@_says(CLAIMS, "claims_ledger")
def ledger(rows: Rows) -> str:
    """Verdicts counted."""
    from paper_figures.claims_ledger import claim

    return f"{claim(rows)} “Holds for the bound only” means: true of the proved bound, untrue of the exact law."


def answers(found: Mapping[str, Rows]) -> dict[str, list[tuple[str, tuple[str, ...]]]]:
    """The sentences that these tables support.

    Parameters
    ----------
    found : mapping
        Figure → rows of its table, for the tables that are there.

    Returns
    -------
    dict
        Question → [(sentence, figures it comes from)], in reading order; questions without a sentence are left out.
    """
    out: dict[str, list[tuple[str, tuple[str, ...]]]] = {}
    for sentence in SENTENCES:
        if all(name in found for name in sentence.figures):
            try:
                text = sentence.text(*(found[name] for name in sentence.figures))
            except (ArithmeticError, LookupError, TypeError, ValueError):  # a small version without the rows it needs
                continue
            out.setdefault(sentence.question, []).append((" ".join(text.split()), sentence.figures))
    return out


def markdown(found: Mapping[str, Rows], width: int = 120) -> str:
    """The answers as Markdown, for the README."""
    import textwrap

    lines: list[str] = []
    for question, said in answers(found).items():
        lines += [f"**{question}**", ""]
        for text, figures in said:
            source = f" ({', '.join(f'`{name}`' for name in figures)})" if figures else ""
            lines += textwrap.wrap(
                f"- {text}{source}", width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
            )
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


NEEDED = tuple(dict.fromkeys(name for sentence in SENTENCES for name in sentence.figures))
"""Figures whose tables the answers are made from."""
