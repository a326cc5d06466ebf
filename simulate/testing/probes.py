"""Probes: answers to special input that no law shows, or only with astronomically many rounds.

A probe takes a sampler and returns None, or what is wrong in one sentence with the input that shows it.

>>> from simulate.testing.mutants.skeleton import TokenWise
>>> from simulate.testing.uniforms import drawing
>>> run_probes(drawing(TokenWise()), ["extreme uniforms", "end token"])
{'extreme uniforms': 'passed', 'end token': 'not applicable: the sampler takes no end token'}
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

import theory
from simulate.testing.calls import BadAnswer, answer
from simulate.testing.protocol import Floats, Integers, Rounds, Sampler
from simulate.testing.seeds import check_placeholders, check_seeds
from simulate.testing.uniforms import LAST_UNIFORM, ConstantGenerator
from theory.arrays import to_numpy

LOSSLESS = theory.Verifier(theory.Lossless())
NOT_DRIVEN = "only random(size) can be driven"


class NotApplicable(Exception):
    """The sampler has no part that the probe could try."""


def one_draft(p: Any, q: Any, x: int, count: int = 1, dtype: Any = np.float64) -> Rounds:
    """Rounds of one drafted token x, with one p and one q everywhere."""
    rows = np.tile(np.asarray(p, dtype=dtype), (count, 2, 1)), np.tile(np.asarray(q, dtype=dtype), (count, 1, 1))
    return Rounds(np.full((count, 1), x), *rows)


def _played(sampler: Sampler, rounds: Rounds, rng: Any) -> tuple[Integers, Integers]:
    try:
        return answer(
            lambda: sampler(rounds, rng), rounds.count, rounds.length, rounds.vocab_size, rounds.draft_ids, None
        )
    except BadAnswer as error:
        if NOT_DRIVEN in str(error):
            raise NotApplicable("the sampler does not draw with rng.random alone") from error
        raise


EDGES: tuple[tuple[list[float], list[float], int], ...] = (
    ([1.0, 0.0], [0.5, 0.5], 1),
    ([0.5, 0.5], [0.5, 0.5], 0),
    ([0.0, 0.3, 0.7], [1.0, 0.0, 0.0], 0),
    ([0.5, 0.5, 0.0], [0.0, 0.0, 1.0], 2),
    ([0.1] * 10, [0.1] * 10, 3),
    ([0.1] * 10 + [0.0], [0.0] * 10 + [1.0], 10),
    ([0.0] + [0.1] * 10, [0.0] + [0.1] * 10, 3),
)
"""(p, q, drafted token), smallest first: nothing of declared probability zero may happen at the ends of [0, 1)."""


def extreme_uniforms(sampler: Sampler, verifier: theory.AnyVerifier = LOSSLESS) -> str | None:
    """At u = 0 and at the largest u below one, no event of declared probability zero happens."""
    for p, q, x in EDGES:
        step = verifier.step(np.asarray(p), np.asarray(q), 0)
        accepted_mass = float(to_numpy(step.accepted)[x]) / q[x]
        for u in (0.0, LAST_UNIFORM):
            where = f"p = {p}, q = {q}, draft {x}, every uniform {u!r}"
            try:
                tokens, accepted = _played(sampler, one_draft(p, q, x), ConstantGenerator(u))
            except BadAnswer as error:
                return f"{where}: {error}"
            if accepted[0] and accepted_mass <= 0:
                return f"{where}: accepted, though the acceptance probability is 0"
            if not accepted[0] and accepted_mass >= 1:
                return f"{where}: rejected, though the acceptance probability is 1"
            law = np.asarray(p) if accepted[0] else to_numpy(step.residual)
            token = int(tokens[0, accepted[0]])
            if law[token] <= 0:
                return f"{where}: drew token {token}, which has probability 0"
    return None


def empty_residual(sampler: Sampler) -> str | None:
    """Where rounding alone rejects a draft and [p − q]_+ is empty, the replacement is one of p's tokens."""
    below = float(np.nextafter(0.5, 0.0))
    for p, q, x in (([below, 0.5, 0.0], [0.5, 0.5, 0.0], 0), ([0.0, below, 0.5], [0.0, 0.5, 0.5], 1)):
        where = f"p = {p}, q = {q}, draft {x}, every uniform {LAST_UNIFORM!r}"
        try:
            tokens, accepted = _played(sampler, one_draft(p, q, x), ConstantGenerator(LAST_UNIFORM))
        except BadAnswer as error:
            return f"{where}: {error}"
        token = int(tokens[0, accepted[0]])
        if p[token] <= 0:
            return f"{where}: the residual is empty and token {token}, of probability 0, was drawn"
    return None


def rows_apart(sampler: Sampler) -> str | None:
    """A row's answer depends on its own laws and uniforms only: it is the same alone and anywhere in a batch."""
    rows, count = np.random.default_rng(3), 12
    p, q = rows.dirichlet(np.ones(4), (count, 3)), rows.dirichlet(np.ones(4), (count, 2))
    x = rows.integers(0, 4, (count, 2))
    batches = [np.arange(count), np.roll(np.arange(count)[::-1], 5), *np.arange(count)[:, None]]
    for u in (0.05, 0.3, 0.55, 0.8, 0.95):
        whole: Any = None
        for batch in batches:
            answers = _played(sampler, Rounds(x[batch], p[batch], q[batch]), ConstantGenerator(u))
            whole = answers if whole is None else whole
            differs = np.any(answers[0] != whole[0][batch], axis=1) | (answers[1] != whole[1][batch])
            if differs.any():
                place = int(np.argmax(differs))
                return (
                    f"every uniform {u}: row {batch[place]} of {count} is answered otherwise when it stands at place "
                    f"{place} of {len(batch)}"
                )
    return None


def seeds(sampler: Any) -> str | None:
    """One seed one answer, other seeds other answers, whatever the global generators hold."""
    try:
        check_seeds(sampler, timeout=None)
    except AssertionError as error:
        return str(error)
    return None


def placeholders(sampler: Sampler) -> str | None:
    """Drafts of −1 are no drafts."""
    try:
        check_placeholders(sampler, timeout=None)
    except AssertionError as error:
        return str(error)
    return None


def no_laws(sampler: Sampler) -> str | None:
    """Rows that are no laws raise a ValueError that names the row; a row with zeros in it is a law."""
    bad_rows = {"nan": [np.nan, 0.5, 0.5], "zero everywhere": [0.0] * 3, "infinite": [np.inf, 0.0, 0.0]}
    for name, bad in {**bad_rows, "negative": [-0.5, 1.0, 0.5]}.items():
        for part in ("target", "draft"):
            rounds = one_draft([0.2, 0.3, 0.5], [0.5, 0.3, 0.2], 2, 9)
            (rounds.target_probs if part == "target" else rounds.draft_probs)[7, 0] = bad
            try:
                sampler(rounds, np.random.default_rng(1))
            except ValueError as error:
                if "7" not in str(error):
                    return f"row 7 of the {part} is {name}: the error does not name it: {error}"
            except Exception as error:
                return f"row 7 of the {part} is {name}: {type(error).__name__} in place of ValueError: {error}"
            else:
                return f"row 7 of the {part} is {name}, and the sampler answers as if it were a law"
    try:
        _played(sampler, one_draft([0.0, 0.5, 0.5], [0.5, 0.0, 0.5], 2, 9), np.random.default_rng(1))
    except BadAnswer as error:
        return f"p = [0, 1/2, 1/2] is a law: {error}"
    return None


def float32_rows(sampler: Sampler) -> str | None:
    """The rows of a float32 softmax over 16,384 ids are laws, though their sums miss one by more than float64's own."""
    logits = np.random.default_rng(5).normal(size=(3, 16384)).astype(np.float32) * 4
    rows = np.exp(logits - logits.max(axis=-1, keepdims=True))
    rows /= rows.sum(axis=-1, keepdims=True, dtype=np.float32)
    # Sums a float32 softmax really leaves behind are up to some 1e-4 off on other hardware.
    rows *= np.float32(1 + 6e-5)
    rounds = Rounds(np.full((2, 1), int(rows[2].argmax())), np.stack([rows[:2]] * 2), np.stack([rows[2:]] * 2))
    for dtype in (np.float32, np.float64):
        own = Rounds(rounds.draft_ids, rounds.target_probs.astype(dtype), rounds.draft_probs.astype(dtype))
        try:
            _played(sampler, own, np.random.default_rng(1))
        except BadAnswer as error:
            return f"float32 softmax over 16384 ids, given as {np.dtype(dtype).name}: {error}"
    return None


def vocabularies(sampler: Sampler) -> str | None:
    """A draft over fewer ids than the target is refused, or the replacement supplies the missing ids."""
    count = 4000
    rounds = one_draft([0.25, 0.25, 0.5], [0.5, 0.5], 0, count)
    rounds.draft_ids[::2] = 1
    try:
        tokens, _ = sampler(rounds, np.random.default_rng(1))
    except ValueError:
        return None
    except Exception as error:
        return f"q over 2 ids, p over 3: {type(error).__name__} in place of ValueError: {error}"
    share = float(np.mean(np.asarray([line[0] for line in tokens]) == 2))
    if abs(share - 0.5) > 0.1:
        return f"q = [1/2, 1/2], p = [1/4, 1/4, 1/2]: id 2 was emitted in {share:.3f} of {count} rounds, not in half"
    return None


def empty_batch(sampler: Sampler) -> str | None:
    """No rounds give no answers; no drafts give one token of the target."""
    none, some = one_draft([0.5, 0.5], [0.5, 0.5], 0, 0), one_draft([0.0, 1.0], [0.5, 0.5], 0, 5)
    undrafted = Rounds(some.draft_ids[:, :0], some.target_probs[:, :1], some.draft_probs[:, :0])
    for rounds, name in ((none, "a batch of 0 rounds"), (undrafted, "rounds of 0 drafts")):
        try:
            tokens, _ = _played(sampler, rounds, np.random.default_rng(1))
        except BadAnswer as error:
            return f"{name}: {error}"
        if (tokens != 1).any():
            return f"{name}: emitted {tokens[0].tolist()} where p = [0, 1]"
    return None


def end_token(sampler: Any) -> str | None:
    """A sampler that takes ``end=`` stops a row at that token: draft [1, 0, 1], p = q, end 0 emits [1, 0]."""
    if "end" not in inspect.signature(sampler).parameters:
        raise NotApplicable("the sampler takes no end token")
    half = np.full((4, 4, 2), 0.5)
    rounds = Rounds(np.tile([1, 0, 1], (4, 1)), half, half[:, :3])
    tokens, accepted = _played(lambda r, g: sampler(r, g, end=0), rounds, np.random.default_rng(1))
    found = tokens[0, : accepted[0] + 1].tolist()
    return None if found == [1, 0] else f"draft [1, 0, 1], p = q, end token 0: emitted {found}, not [1, 0]"


def guidance(guide: Any) -> str | None:
    """Logits guide(cond, uncond, scale) = uncond + scale·(cond − uncond) stay logits where −inf meets −inf."""
    blocked, other = np.array([-np.inf, 0.0]), np.array([-1.0, 0.0])
    cases: list[tuple[Floats, Floats, float, list[float]]] = [
        (blocked, blocked, 4.0, [-np.inf, 0.0]),
        (blocked, other, 1.0, [-np.inf, 0.0]),
        (blocked, other, 0.0, [-1.0, 0.0]),
        (other, blocked, 1.0, [-1.0, 0.0]),
        (other, blocked, 0.0, [-np.inf, 0.0]),
        (np.array([2.0, 0.0]), np.array([1.0, 0.0]), 3.0, [4.0, 0.0]),
    ]
    for cond, uncond, scale, right in cases:
        with np.errstate(all="ignore"):
            found = np.asarray(guide(cond, uncond, scale), dtype=float)
        if not np.array_equal(found, right):
            where = f"cond {cond.tolist()}, uncond {uncond.tolist()}, scale {scale:g}"
            return f"{where}: {found.tolist()}, not {right}"
    return None


def solver_values(best: Any) -> str | None:
    """(primal, dual) = best(p, q), the largest acceptance of one draft: between them lies Σ min(p, q) of the laws."""
    rows = np.random.default_rng(7)
    laws = [rows.dirichlet(np.ones(200), 2).astype(np.float32) for _ in range(4)]
    pairs = [(np.array([1.0, 0.0], np.float32), np.array([0.0, 1.0], np.float32)), *((p, q) for p, q in laws)]
    for p, q in pairs:
        primal, dual = best(p, q)
        exact = [np.asarray(law, np.float64) / np.asarray(law, np.float64).sum() for law in (p, q)]
        value = float(np.minimum(*exact).sum())
        if not 0 <= primal <= value + 1e-12 or not value - 1e-12 <= dual <= 1:
            return f"{len(p)} ids: ({primal!r}, {dual!r}) does not hold the optimum {value!r} between 0 and 1"
    return None


def power_of_test(test: Any) -> str | None:
    """A test (tokens, law) → passed of 2,000 tokens must see a residual replaced by p, and pass what is right."""
    p, faulty = np.array([0.5, 0.3, 0.2]), np.array([0.35, 0.39, 0.26])
    rng = np.random.default_rng(11)
    if not test(rng.choice(3, 2000, p=p), p):
        return "2,000 tokens of the law itself are refused"
    if test(rng.choice(3, 2000, p=faulty), p):
        return "2,000 tokens of [7/20, 39/100, 13/50] pass for [1/2, 3/10, 1/5], TV 3/20 away"
    return None


PROBES: dict[str, Callable[[Any], str | None]] = {
    "extreme uniforms": extreme_uniforms,
    "empty residual": empty_residual,
    "rows apart": rows_apart,
    "seeds": seeds,
    "placeholders": placeholders,
    "no laws": no_laws,
    "float32 rows": float32_rows,
    "vocabularies": vocabularies,
    "empty batch": empty_batch,
    "end token": end_token,
}
"""Probes of a sampler."""

OTHER_PROBES: dict[str, Callable[[Any], str | None]] = {
    "guidance": guidance,
    "solver values": solver_values,
    "power of a test": power_of_test,
}
"""Probes of what stands around a sampler: guided logits, a solver's optimum, a test."""


def run_probes(sampler: Sampler, names: Iterable[str] = tuple(PROBES)) -> dict[str, str]:
    """Every probe's verdict: "passed", "failed: …" or "not applicable: …"."""
    verdicts = {}
    for name in names:
        try:
            fault = PROBES[name](sampler)
            verdicts[name] = "passed" if fault is None else f"failed: {fault}"
        except NotApplicable as reason:
            verdicts[name] = f"not applicable: {reason}"
        except BadAnswer as error:
            verdicts[name] = f"failed: {error}"
    return verdicts
