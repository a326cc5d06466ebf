"""COOL-SD's main table as published, beside the same rules on the project's own pair.

Published numbers are quoted: other models, other machines, other metrics, and nothing here confirms them. Beside them
stand the same rules at the same settings on the embedded pair, measured here, and the comparison at equal tokens per
call from the committed report. What can be compared is one column: accepted length over that of lossless decoding with
the same target and draft. The papers count the target's own token (autoregressive decoding has 1.00), as do tokens per
call here.
"""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any

import theory
from paper_figures import style
from paper_figures.registry import Context, Figure, Row, Rows, register
from paper_figures.reports import interval, newest_report
from paper_figures.tables import distinct, select

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

QUOTED, OURS, EQUAL, SPEEDUP = "quoted", "same settings, our pair", "equal speed, our pair", "quoted speed-up"
PAPER = "COOL-SD 2601.09212"
MAIN_TABLE = """
Lumina-mGPT 7B     | autoregressive  | .3330 28.99  .6855 1.00 170.14 1.00
Lumina-mGPT 7B     | EAGLE-1         | .3330 29.05  .6883 2.76  71.66 2.37
Lumina-mGPT 7B     | LANTERN++       | .3328 30.31  .6697 2.99  68.64 2.48
Lumina-mGPT 7B     | COOL-SD δ = 1.1 | .3325 30.30  .6699 3.11  63.24 2.69
LlamaGen-XL 775M   | EAGLE-1         | .3157 20.97 -.0859 2.42   4.99 2.03
LlamaGen-XL 775M   | LANTERN++       | .3157 21.17 -.1155 2.67   4.70 2.15
LlamaGen-XL 775M   | COOL-SD δ = 1.1 | .3167 21.02 -.0997 2.73   4.46 2.27
LlamaGen-XL 775M   | COOL-SD δ = 2   | .3154 21.20 -.1353 3.34   3.72 2.72
"""
"""Target, method, then CLIP, FID, ImageReward, accepted length, seconds an image, speed-up: COOL-SD's main table."""
COLUMNS = ("clip", "fid", "image_reward", "tokens_per_call", "latency", "speed_up")
SPEED_UPS = """
SJD 2410.01699        | Lumina              | 2.06
LANTERN 2410.03355    | LlamaGen-XL         | 1.69 2.26
LANTERN++ 2502.06352  |                     | 2.56
GSD 2508.07747        | Lumina, G = 50      | 4.65
CSD 2606.27829        | Janus-Pro 7B        | 3.51 4.33
SCD 2510.24211        |                     | 4.21
MuLo-SD 2601.05149    |                     | 1.40 5.33
VVS 2511.13587        |                     | 1.63 1.76
Hawk 2510.25739       |                     | 1.71
CASCADE 2605.07230    |                     | 3.6
"""
"""Paper, model where known, speed-up or its range (LANTERN: sampling and greedy; LANTERN++, CASCADE: "up to")."""
BASELINE = {"quoted": "EAGLE-1", OURS: "lossless", EQUAL: "lossless"}
LENGTH, IMAGES, QUICK_IMAGES = 5, 60, 10
CONFIDENCE = 0.95
REPORT_SIZE = 0.3
REPORTED = {
    "lossless": "lossless",
    "lossless block": "lossless block verification",
    "uniform": "uniform",
    "COOL-SD, no floor": "COOL-SD, no floor",
    "COOL-SD, floored": "COOL-SD, floored",
    "LANTERN++, published": "LANTERN++, own G",
    "LANTERN++, G*": "LANTERN++, G*",
    "capped excess": "our capped block",
    "SJD": "SJD, lossless",
    "coupled SJD": "coupled SJD, lossless",
}
"""Method of the report → label; Jacobi decoding has no law that can be written down, hence no KL unless lossless."""
KEYS = ("clip", "fid", "image_reward", "latency", "speed_up", "speed_up_high")
NUMBERS = ("tokens_per_call", "kl_output_target", "image_tv", "judge_accuracy", "nll_per_token")


def _row(part: str, source: str, target: str | None, method: str, **values: Any) -> Row:
    row: Row = {"part": part, "source": source, "target": target, "method": method, "setting": values.get("setting")}
    row |= {"images": values.get("images"), "seed": values.get("seed")}
    for name in NUMBERS:
        row |= interval(values, name)
    return row | {name: values.get(name) for name in KEYS}


def quoted() -> Rows:
    """The published tables as rows."""
    rows: Rows = []
    for line in MAIN_TABLE.strip().splitlines():
        target, method, numbers = (part.strip() for part in line.split("|"))
        values = dict(zip(COLUMNS, map(float, numbers.split()), strict=True))
        rows.append(_row(QUOTED, PAPER, target, method, **values))
    for line in SPEED_UPS.strip().splitlines():
        source, target, numbers = (part.strip() for part in line.split("|"))
        low, *high = map(float, numbers.split())
        values = {"speed_up": low, "speed_up_high": high[0] if high else low}
        rows.append(_row(SPEEDUP, source, target or None, source.split()[0], **values))
    return rows


def _setting(words: str) -> str | None:
    """The strength of a report's setting, its last word, to three digits."""
    signs = {"omega": "ω", "delta": "δ", "lambda": "λ"}
    name, _, value = words.rpartition(", ")[2].partition(" ")
    return f"{signs.get(name, name)} = {float(value):.3g}" if value else None


def _from_report() -> Rows:
    report = newest_report("compare")
    settings = report["settings"]
    rows: Rows = []
    for found in report["rows"]:
        if found["method"] in REPORTED and found["size"] in (None, REPORT_SIZE) and not found.get("out_of_reach"):
            values = {name: found.get(name) for name in NUMBERS} | {
                "images": settings["images"],
                "seed": settings["seed"],
            }
            values["setting"] = _setting(found["setting"])
            if "SJD" in found["method"]:
                values |= {"kl_output_target": 0.0, "image_tv": 0.0}  # lossless by proof
            rows.append(_row(EQUAL, "this project", settings["pair"], REPORTED[found["method"]], **values))
    return rows


VERIFIERS = {
    "lossless": lambda: theory.Verifier(theory.Lossless()),
    "COOL-SD δ = 1.1": lambda: theory.cool_sd(LENGTH, 1.1),
    "COOL-SD δ = 2": lambda: theory.cool_sd(LENGTH, 2.0),
    "COOL-SD δ = 1.1, floored": lambda: theory.cool_sd(LENGTH, 1.1, floor=1.0),
}
"""LANTERN++ is in the report: its own residual, one law for every rejected token, is dear to take through images."""


def _measured(context: Context, tools: Any, method: str) -> Row:
    import validate
    from simulate.estimation import estimate_from_filters
    from validate.quality import assess
    from validate.scoring import filter_images

    pair, target_scores = tools()
    images = QUICK_IMAGES if context.quick else IMAGES
    verifier = VERIFIERS[method]()
    run = validate.decode(pair, verifier, LENGTH, images, device="cpu", seed=context.seed + 1)
    scores = validate.score(pair, run)
    quality = assess(pair, run.tokens, run.classes, scores.log_likelihood("target"), CONFIDENCE)
    filters = (filter_images(s, verifier, LENGTH) for s in (scores, target_scores))
    e = estimate_from_filters(
        *filters, calls=run.calls, accepted=run.accepted, length=LENGTH, tokens=pair.num_tokens, confidence=CONFIDENCE
    )
    values = {"tokens_per_call": e.tokens_per_call, "kl_output_target": e.predictive.kl_output_target}
    values |= {"image_tv": e.total_variation, "judge_accuracy": quality.judge_accuracy}
    values |= {"nll_per_token": quality.nll_per_token}
    numbers = {name: list(value) for name, value in values.items()}
    return _row(OURS, "this project", pair.name, method, images=images, seed=context.seed, **numbers)


def build(context: Context) -> Rows:
    """Quoted rows, rows measured at the published settings, rows of the comparison report."""

    @cache
    def tools() -> Any:
        import validate

        pair = validate.load("fashion", device="cpu")
        images = QUICK_IMAGES if context.quick else IMAGES
        own = validate.decode(pair, None, 0, images, device="cpu", seed=context.seed)
        return pair, validate.score(pair, own)

    rows = quoted()
    for name in context.progress(VERIFIERS):
        rows.append(context.cell(name, partial(_measured, context, tools, name)))
    return rows + _from_report()


def gain(rows: Rows, row: Row) -> float:
    """Accepted length over that of lossless decoding with the same target and draft."""
    (base,) = select(rows, part=row["part"], target=row["target"], method=BASELINE[row["part"]])
    return float(row["tokens_per_call"] / base["tokens_per_call"])


def _blocks(rows: Rows) -> list[tuple[str, Rows]]:
    blocks = [
        (f"quoted: {t}", select(rows, part=QUOTED, target=t)) for t in distinct(select(rows, part=QUOTED), "target")
    ]
    ours, equal = select(rows, part=OURS), select(rows, part=EQUAL)
    blocks.append(("measured here: published settings", ours))
    blocks.append(("measured here: matched to one speed", equal))
    return blocks


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}".replace("-", "−")


def _texts(rows: Rows, row: Row) -> list[str]:
    own = f"{row['tokens_per_call']:.2f}"
    share = "–" if row["method"] == "autoregressive" else f"× {gain(rows, row):.2f}"
    if row["part"] == QUOTED:
        return [
            own,
            share,
            _number(row["fid"], 2),
            _number(row["clip"], 4),
            _number(row["image_reward"], 4),
            f"{row['speed_up']:.2f}×",
        ]
    kl = abs(row["kl_output_target"])
    return [
        own,
        share,
        "0" if kl < 1e-9 else f"{kl:.4f}",
        _number(abs(row["image_tv"]), 2),
        f"{row['judge_accuracy']:.0%}",
        _number(row["nll_per_token"], 2),
    ]


HEADS = {
    QUOTED: ("accepted\nlength", "over\nlossless", "FID ↓", "CLIP ↑", "Image-\nReward ↑", "speed-up"),
    OURS: ("tokens\na call", "over\nlossless", "KL a\ntoken ↓", "image\nTV ↓", "judge ↑", "nll a\ntoken"),
}


def draw(rows: Rows) -> Picture:
    """One line a method: dots on one axis of accepted length, numbers beside; quoted speed-ups of others at the "
    "right."""
    blocks = _blocks(rows)
    lines = sum(len(cell) + 1.9 for _, cell in blocks)
    figure, axes = style.subplots(1, 3, 13.2, 0.25 * lines + 1.4, width_ratios=(2.2, 2.9, 1.7))
    panel, table, other = axes[0]
    y, ticks = 0.0, []
    for name, cell in blocks:
        quotes = cell[0]["part"] == QUOTED
        if quotes:
            for target in (panel, table):
                target.axhspan(y - 0.5, y + len(cell) + 1.3, color="#EFEFEF", zorder=0)
        heading = panel.text(
            0.02, y + 0.1, name, transform=panel.get_yaxis_transform(), fontweight="bold", fontsize=8.5, va="center"
        )
        heading.set_in_layout(False)  # it may reach beyond the axes
        heads = HEADS[QUOTED if quotes else OURS]
        for j, head in enumerate(heads):
            table.text(
                j + 0.5, y + 0.35, head, ha="center", va="center", fontsize=7.5, color="#333333", linespacing=0.95
            )
        y += 1.3
        for row in cell:
            look = (
                {"color": style.BLACK, "marker": "s", "fillstyle": "none"}
                if quotes
                else {"color": style.BLUE, "marker": "o"}
            )
            if not quotes:
                panel.plot(
                    [row["tokens_per_call_lower"], row["tokens_per_call_upper"]], [y, y], color=style.BLUE, lw=1.6
                )
            panel.plot(row["tokens_per_call"], y, ls="none", markersize=6, **look)
            for j, text in enumerate(_texts(rows, row)):
                table.text(j + 0.5, y, text, ha="center", va="center", fontsize=8)
            setting = f" ({row['setting']})" if row["setting"] else ""
            ticks.append((y, f"{row['method']}{setting}"))
            y += 1.0
        y += 0.6
    for target in (panel, table):
        target.set_ylim(y - 0.4, -0.7)
    panel.set_yticks([t for t, _ in ticks], [f"   {label}" for _, label in ticks], fontsize=7.5)
    panel.set(xlabel="accepted length, the target's token included", xlim=(0.9, 4.1))
    panel.grid(axis="y", visible=False)
    table.set_xlim(0, len(HEADS[OURS]))
    table.axis("off")
    quotes = sorted(select(rows, part=SPEEDUP), key=lambda row: row["speed_up_high"])
    for i, row in enumerate(quotes):
        other.plot(
            [row["speed_up"], row["speed_up_high"]], [i, i], color=style.BLACK, marker="s", fillstyle="none", lw=1
        )
    other.set_yticks(
        range(len(quotes)), ["\n".join(filter(None, (row["method"], row["target"]))) for row in quotes], fontsize=7
    )
    other.set(xlabel="speed-up, as published", xlim=(1, 5.6), title="quoted: speed-ups of others")
    other.set_facecolor("#EFEFEF")
    return figure


def claim(rows: Rows) -> str:
    """The one number that can be compared, and what it costs here."""
    told = [(row, gain(rows, row)) for row in select(rows, part=QUOTED) if row["method"] == "COOL-SD δ = 1.1"]
    ours = {row["method"]: row for row in select(rows, part=OURS)}
    cool = ours["COOL-SD δ = 1.1"]
    block = select(rows, part=EQUAL, method=REPORTED["lossless block"])[0]
    shares = " and ".join(f"{value:.2f} ({row['target']})" for row, value in told)
    return (
        f"Quoted: COOL-SD at δ = 1.1 accepts {shares} times what lossless decoding does. Measured here on a small "
        "image pair: "
        f"{gain(rows, cool):.2f} times, at a KL of {cool['kl_output_target']:.3f} a token (image TV "
        f"{cool['image_tv']:.2f}), where "
        f"lossless block verification has {gain(rows, block):.2f} times with the law unchanged."
    )


def caption(rows: Rows) -> str:
    """What is quoted, what is ours."""
    ours, equal = (select(rows, part=part)[0] for part in (OURS, EQUAL))
    return (
        f"Grey, hollow squares: quoted from {PAPER}'s main table and (right) other papers; never ours, and not checked "
        "here. White: measured on the embedded pair (Fashion-MNIST, 49 tokens, L = "
        f"{LENGTH} drafts), bars 95 % intervals: rules at their published settings, {ours['images']} images, seed "
        f"{ours['seed']}; and "
        f"from the committed comparison report, {equal['images']} images, seed {equal['seed']}, at the strength that "
        "brings each rule "
        f"{REPORT_SIZE:g} of the way from lossless to accepting every draft (lossless ones as they are). "
        "KL(out‖target) and TV: "
        "estimates from exact likelihood ratios; 0 for lossless rules. Judge: images a classifier recognises. Over "
        "lossless: divided by "
        "EAGLE-1's or our lossless drafting's. COOL-SD's normalisation of ω is reconstructed, so its δ may mean "
        "another strength; LANTERN++ here: k = 10."
    )


register(
    Figure(
        name="published_results",
        title="COOL-SD's published table, and the same rules on this project's pair",
        claim=claim,
        caption=caption,
        build=build,
        draw=draw,
        uses=(
            "theory",
            "simulate",
            "paper_figures/quality_against_length.py",
            "validate/reports",
            "validate/models",
            "validate/weights",
            "validate/decoder.py",
            "validate/decoding.py",
            "validate/noise.py",
            "validate/scoring.py",
            "validate/measurement.py",
            "validate/prediction.py",
            "validate/quality.py",
        ),
        order=64,
        group="papers",
    )
)
