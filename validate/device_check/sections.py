"""Law tests of the decoder, the embedded pair's report, and memory, on the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import theory
from simulate.testing import Emitted, RoundDecoder, check_law
from validate.decoder import Decoder
from validate.decoding import decode
from validate.device_check.checks import check_at_least, check_at_most, law_p_value, left_out
from validate.device_check.networks import TOKENS, chain_of, enumerable_pair
from validate.measurement import measure, sample_baseline
from validate.memory import free_bytes, image_bytes
from validate.models import Pair, load
from validate.noise import image_noise
from validate.report import as_json

LENGTH = 2
FALSE_ALARM = 1e-6
TOLD_APART = 1e-4
"""A lossless verifier's images may differ from the target's with this probability."""


def verifiers() -> dict[str, tuple[theory.AnyVerifier, bool]]:
    """Verifiers under test, and whether they draw what they declare (a negative control declares another)."""
    return {
        "lossless": (theory.Verifier(theory.Lossless()), True),
        "COOL-SD": (theory.cool_sd(LENGTH, 1.6), True),
        "block": (theory.block(LENGTH), True),
        "negative control": (theory.Verifier(theory.AcceptAll()), False),
    }


def round_decoder(pair: Pair, verifier: theory.AnyVerifier, condition: int) -> RoundDecoder:
    """The decoder's first round as `simulate.testing` wants it."""

    @torch.no_grad()
    def run(target: theory.Chain, draft: theory.Chain, length: int, count: int, rng: np.random.Generator) -> Emitted:
        noise = image_noise(int(rng.integers(2**62)), range(count), pair.num_tokens, length, pair.device)
        conditions = pair.encode_conditions([condition] * count)
        decoder = Decoder(pair, conditions, noise, pair.guidance, pair.warp)
        accepted = decoder.round(verifier, length)
        return Emitted(decoder.inputs[:, 1 : length + 2].cpu().numpy(), accepted.numpy())

    return RoundDecoder(run)


def whole_image_p_value(pair: Pair, verifier: theory.AnyVerifier, law: Any, images: int, condition: int) -> float:
    """`law_p_value` of decoded images against their exact law."""
    device = str(pair.device)
    run = decode(pair, verifier, LENGTH, [condition] * images, device=device, batch=images, seed=7)
    return law_p_value(run.tokens, law)


def law_section(setting: Any, record: dict[str, Any]) -> None:
    """Joint law of a round by the sampler kit, whole images by chi-square; a control that must fail."""
    pair, condition = enumerable_pair(setting.device), 1
    target, draft = (chain_of(model, condition, pair.guidance) for model in (pair.target, pair.draft))
    smallest, images = (0.1, 4000) if setting.quick else (0.02, 40_000)
    record["rounds"] = {}
    for name, (verifier, honest) in verifiers().items():
        if setting.left <= 0:
            left_out(record, f"{name}: the section's time was over")
            continue
        declared = verifier if honest else theory.Verifier(theory.Lossless())
        report = check_law(
            round_decoder(pair, verifier, condition), target, draft, declared, LENGTH, smallest_tv=smallest,
            false_alarm=FALSE_ALARM, max_rounds=2**15 if setting.quick else 2**18, seeds=honest, timeout=None,
        )  # fmt: skip
        record["rounds"][name] = {
            "passed": report.passed, "smallest_tv": report.smallest_tv,
            "rounds": int(sum(pair_.rounds for pair_ in report.results)),
        }  # fmt: skip
        what = "the round's law is refused" if honest else "the wrong law is taken"
        check_at_most(record, f"{name}: {what}", float(report.passed is not honest), 0.0)
        if honest:
            law = theory.analyse_sequence(target, draft, verifier, LENGTH, TOKENS).law
            p = whole_image_p_value(pair, verifier, law, images, condition)
            record["rounds"][name]["image_p_value"] = p
            check_at_least(record, f"{name}: whole images, p-value", p, FALSE_ALARM)
    record["summary"] = f"{len(record['checks'])} law tests at TV {smallest}, {images} images each"


def embedded_section(setting: Any, record: dict[str, Any]) -> None:
    """The report of the embedded pair, small."""
    device, images = str(setting.device), 40 if setting.quick else 500
    pair = load("fashion", device=setting.device)
    baseline = sample_baseline(pair, images, device=device)
    record["images"], record["reports"] = images, []
    lossless = theory.Verifier(theory.Lossless())
    for name, verifier in (("lossless", lossless), ("COOL-SD delta 1.1, floored", theory.cool_sd(5, 1.1, floor=1.0))):
        if setting.left <= 0:
            left_out(record, f"{name}: the section's time was over")
            continue
        m = measure(pair, verifier, 5, images, baseline=baseline, device=device)
        record["reports"].append(as_json(name, m))
        if verifier.lossless:
            check_at_least(record, "lossless not told from the target, p-value", m.same_as_target, TOLD_APART)
        predicted, measured = m.prediction.tokens_per_call, m.estimate.tokens_per_call
        # Relaxed decoding drifts from the images predictions are made from: an interval's width and a tenth more.
        allowed = measured.upper - measured.lower + 0.1 * measured.value
        off = abs(predicted.value - measured.value)
        check_at_most(record, f"{name}: tokens per call, |predicted − measured|", off, allowed)
        record["summary"] = f"{images} images; {name}: tokens per call {measured.value:.2f}"


def memory_section(setting: Any, record: dict[str, Any]) -> None:
    """A batch whose caches cannot fit is refused by an error that names one that would."""
    pair = load("fashion", device=setting.device)
    free, row = free_bytes(setting.device), image_bytes(pair, pair.guidance)
    record["free_gib"], record["image_mib"] = None if free is None else free / 2**30, row / 2**20
    if free is None:
        left_out(record, "this system does not tell its free memory")
        return
    too_many = int(1.2 * free / row) + 1
    # The refusal comes before anything of the batch is made; a class list of this length is small.
    try:
        decode(pair, None, 0, too_many, device=str(setting.device), batch=too_many)
        said = "nothing was refused"
    except MemoryError as error:
        said = str(error)
    record["message"] = said
    check_at_most(record, "an impossible batch is not refused with a fitting one", float("try batch=" not in said), 0.0)
    record["summary"] = f"{record['free_gib']:.1f} GiB free; {too_many} images refused, a fitting batch named"
