"""Jacobi decoding: the target is its own draft, one iteration late.

A window of W drafts stands behind the known tokens. One call of the target gives p_i(·| tokens, y_{<i}) at all places
of the window and one behind. The drafts are verified in order, accepted while u < f(p_i, q_i)(y_i), where q_i is the
law that y_i was drawn from; the first refused draft is replaced from the residual, after W accepted ones a token is
drawn from p. What stands behind the end keeps its place and is drawn anew from the law just computed, q'_i = p_i, which
was conditioned on drafts that may since have changed: that is the draft law of the next iteration. Places the window
newly reaches hold random tokens, with q a point mass ("one_hot") or uniform (Teng et al. 2410.01699).

Successive iterates may be *coupled* (So et al. 2510.24211). With y ~ q seen, the next draft z ~ q' is

* independent: drawn from q' whatever y was
* maximal: y itself with probability min(1, q'(y)/q(y)), else drawn from Norm[q' − q]_+; P(z = y) = 1 − TV(q, q')
* gumbel: y = argmin_x E_x/q(x) and z = argmin_x E_x/q'(x) with the same exponential E_x, which belong to the place in
  the sequence; P(z = y) = Σ_x 1/Σ_v max(q(v)/q(x), q'(v)/q'(x)) ≥ (1 − TV)/(1 + TV)

**[proved]** Lossless verification keeps the law exactly the target's, coupled or not: what happens at places before i,
in all iterations, depends on noise of those places only, and given all of it the draft at i still has its declared law,
since each coupling keeps the law of z. Three conditions: noise of different places is independent, the replacement of a
refused draft uses fresh noise, and u is not the coupling's.

>>> chain = theory.MarkovChain([0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]])
>>> run = decode_jacobi(chain, theory.Verifier(theory.Lossless()), 4, 8, 1000, np.random.default_rng(0), "maximal")
>>> run.tokens.shape, bool(run.calls.mean() < 8)
((1000, 8), True)
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

import theory
from simulate.decoded import Decoded
from simulate.draws import Streams, categorical, streams
from simulate.laws import Floats, Integers, laws_at
from theory.arrays import to_numpy, whole_number
from theory.chains import check_depth
from theory.verifiers import acceptance_of, residual_after

Coupling: TypeAlias = Literal["independent", "maximal", "gumbel"]
Fresh: TypeAlias = Literal["one_hot", "uniform"]

LAWS_AT_ONCE = 2**22
"""Most entries of a window's laws held together; p, q and the noise take 32 MiB each."""


def gumbel_draw(laws: Any, uniforms: Any) -> Integers:
    """Token drawn from each law by an exponential race, argmin E_x/q(x), E = −ln(1 − u): Gumbel's trick.

    Parameters
    ----------
    laws, uniforms : array, shape (..., V)
        One u ∈ [0, 1) for every token.
    """
    laws = np.asarray(laws, dtype=np.float64)
    times = np.full(laws.shape, np.inf)
    np.divide(-np.log1p(-np.asarray(uniforms)), laws, out=times, where=laws > 0)
    return np.asarray(times.argmin(axis=-1))


def maximal_draw(drafted: Integers, old: Any, new: Any, keep: Any, redraw: Any) -> Integers:
    """Next draft z ~ q' given the draft y ~ q, equal to it as often as possible.

    Parameters
    ----------
    drafted : integer array, shape (n,)
        y.
    old, new : array, shape (n, V)
        q and q'.
    keep, redraw : array, shape (n,)
        Uniforms, independent of y.
    """
    old, new = np.asarray(old), np.asarray(new)
    f = theory.Lossless().acceptance(new, old, 0)[np.arange(len(drafted)), drafted]
    return np.where(keep < f, drafted, categorical(theory.vanilla_residual(new, old, old), redraw))


class _Window(NamedTuple):
    """Drafts behind the known tokens of n rows, by place in the window."""

    laws: Floats
    """q, shape (n, W+1, V)."""
    noise: Floats | None
    """The uniforms of each place, shape (n, W+1, V); coupling "gumbel" only."""
    known: Integers
    """Places that hold a draft, shape (n,)."""


def decode_jacobi(
    target: theory.Chain,
    verifier: theory.AnyVerifier,
    window: int,
    tokens: int,
    batch: int,
    rng: np.random.Generator | Streams,
    coupling: Coupling = "independent",
    *,
    fresh: Fresh = "one_hot",
) -> Decoded:
    """Speculative Jacobi decoding of `batch` sequences.

    Parameters
    ----------
    target : theory.Chain
        At least `tokens` deep.
    verifier : Verifier
        Token-wise; its position is the place in the window, so ω_i of a schedule is the factor of place i. A lossless
        one keeps the target's law; any other is relaxed Jacobi decoding, whose law has no closed form here.
    window : int
        W ≥ 1 drafts.
    tokens : int
        T ≥ 1.
    batch : int
        B ≥ 0.
    rng : numpy.random.Generator or Streams
    coupling : {"independent", "maximal", "gumbel"}
    fresh : {"one_hot", "uniform"}
        Declared law of the random tokens in places that the window newly reaches. Both are lossless.

    Returns
    -------
    Decoded
        `accepted` counts accepted drafts of each iteration, `calls` iterations.

    Raises
    ------
    ValueError
        For sizes out of range, an unknown coupling or fresh law, or a verifier that carries a weight.

    Notes
    -----
    Source: SJD 2410.01699; MC-SJD / SCD 2510.24211. Oracle: the target's own law (lossless verifiers); plain recursion
    over all histories of two and three binary tokens (relaxed ones).
    """
    window, tokens = whole_number(window, "window", 1), whole_number(tokens, "tokens", 1)
    batch = whole_number(batch, "batch", 0)
    check_depth(target, tokens, "target", f"decoding {tokens} tokens")
    for name, value, choices in (("coupling", coupling, Coupling), ("fresh", fresh, Fresh)):
        if value not in get_args(choices):
            raise ValueError(f"{name} must be one of {', '.join(get_args(choices))}, got {value!r}")
    if verifier.stateful:
        raise ValueError(f"{verifier} carries a weight along the round; Jacobi decoding verifies token by token")
    draws = streams(rng)
    out = np.zeros((batch, tokens), dtype=np.int64)
    histories: list[Integers] = []
    step = max(1, LAWS_AT_ONCE // ((window + 1) * target.vocab_size))
    for start in range(0, batch, step):
        rows = out[start : start + step]
        histories.append(_decode_rows(target, verifier, window, rows, draws, coupling, fresh))
    width = max((part.shape[1] for part in histories), default=0)
    accepted = np.full((batch, width), -1, dtype=np.int64)
    for start, part in zip(range(0, batch, step), histories, strict=True):
        accepted[start : start + step, : part.shape[1]] = part
    return Decoded.counted(out, accepted)


def _decode_rows(
    target: theory.Chain,
    verifier: theory.AnyVerifier,
    window: int,
    tokens: Integers,
    draws: Streams,
    coupling: Coupling,
    fresh: Fresh,
) -> Integers:
    """Decode a few rows into `tokens`; accepted drafts of every iteration, −1 behind a row's last one."""
    count, end = tokens.shape
    size = target.vocab_size
    # One place behind the sequence, so that a draft that will not be needed has somewhere to stand.
    canvas = np.zeros((count, end + window + 1), dtype=np.int64)
    lengths, rows = np.zeros(count, dtype=np.int64), np.arange(count)
    noise = np.zeros((count, window + 1, size)) if coupling == "gumbel" else None
    state = _Window(np.zeros((count, window + 1, size)), noise, np.zeros(count, dtype=np.int64))
    history: list[Integers] = []
    while len(rows):
        block = np.minimum(window, end - lengths[rows])
        _fill(canvas, rows, lengths[rows], state, draws, fresh)
        laws = _laws(target, canvas[rows], lengths[rows], window, end)
        accepted = _verify(verifier, canvas, rows, lengths[rows], block, laws, state.laws, draws)
        history.append(np.full(count, -1, dtype=np.int64))
        history[-1][rows] = accepted
        emitted = accepted + ((accepted < block) | (lengths[rows] + block < end))
        state = _redraw(canvas, rows, lengths[rows], emitted, laws, state, draws, coupling)
        lengths[rows] += emitted
        left = lengths[rows] < end
        rows = rows[left]
        state = _Window(state.laws[left], None if state.noise is None else state.noise[left], state.known[left])
    tokens[:] = canvas[:, :end]
    return np.stack(history, axis=1)


def _fill(canvas: Integers, rows: Integers, at: Integers, state: _Window, draws: Streams, fresh: Fresh) -> None:
    """Random tokens, and their declared laws, in the places of the window that hold no draft yet."""
    _, places, size = state.laws.shape
    uniforms = draws.draft.random((len(rows), places - 1))
    new, place = np.nonzero(np.arange(places - 1) >= state.known[:, None])
    token = np.asarray(uniforms[new, place] * size).astype(np.int64)
    canvas[rows[new], at[new] + place] = token
    state.laws[new, place] = 1.0 / size if fresh == "uniform" else np.arange(size) == token[:, None]


def _laws(target: theory.Chain, canvas: Integers, at: Integers, window: int, end: int) -> Floats:
    """The target after every place of the window, shape (n, W+1, V): one call. Places behind the end stay zero."""
    laws = np.zeros((len(canvas), window + 1, target.vocab_size))
    row, place = np.nonzero(at[:, None] + np.arange(window + 1) < end)
    laws[row, place] = laws_at(target, canvas[row], at[row] + place)
    return laws


def _verify(
    verifier: theory.AnyVerifier,
    canvas: Integers,
    rows: Integers,
    at: Integers,
    block: Integers,
    p: Floats,
    q: Floats,
    draws: Streams,
) -> Integers:
    """Accepted drafts (n,); the replacement or the bonus token is written behind them."""
    count, places = len(rows), p.shape[1] - 1
    u = draws.acceptance.random((count, places))
    running, accepted = np.arange(count), np.zeros(count, dtype=np.int64)
    for i in range(places):
        running = running[block[running] > i]
        token = canvas[rows[running], at[running] + i]
        f = to_numpy(acceptance_of(verifier, p[running, i], q[running, i], i))
        running = running[u[running, i] < f[np.arange(len(token)), token]]
        accepted[running] += 1
    (refused,) = np.nonzero(accepted < block)
    law = p[np.arange(count), accepted]
    if len(refused):
        place = accepted[refused]
        some_p, some_q = law[refused], q[refused, place]
        f = acceptance_of(verifier, some_p, some_q, place)
        token = canvas[rows[refused], at[refused] + place]
        law[refused] = to_numpy(residual_after(verifier, some_p, some_q, f, token, place))
    (drawn,) = np.nonzero(law.any(axis=1))
    uniforms = np.where(accepted < block, draws.residual.random(count), draws.bonus.random(count))
    canvas[rows[drawn], at[drawn] + accepted[drawn]] = categorical(law[drawn], uniforms[drawn])
    return accepted


def _redraw(
    canvas: Integers,
    rows: Integers,
    at: Integers,
    emitted: Integers,
    laws: Floats,
    state: _Window,
    draws: Streams,
    coupling: Coupling,
) -> _Window:
    """Next drafts behind the tokens just emitted, from the laws just computed, and the window moved on."""
    count, width, size = laws.shape
    # A place was a draft before if it lies inside the old window, the last one was not.
    row, place = np.nonzero((np.arange(width) >= emitted[:, None]) & laws.any(axis=2))
    new, where = laws[row, place], at[row] + place
    noise = state.noise
    if noise is not None:
        first = np.nonzero(np.arange(width) >= state.known[:, None])
        noise[first] = draws.draft.random((count, width, size))[first]
        token = gumbel_draw(new, noise[row, place])
    else:
        redraw = draws.draft.random((count, width))[row, place]
        token = categorical(new, redraw)
        if coupling == "maximal":
            again = place < width - 1
            keep = draws.draft.random((count, width))[row, place]
            token[again] = maximal_draw(
                canvas[rows[row[again]], where[again]],
                state.laws[row[again], place[again]],
                new[again],
                keep[again],
                redraw[again],
            )
    canvas[rows[row], where] = token
    known = np.zeros(count, dtype=np.int64)
    np.add.at(known, row, 1)
    return _Window(_moved(laws, emitted), None if noise is None else _moved(noise, emitted), known)


def _moved(values: Floats, by: Integers) -> Floats:
    """Places shifted to the left, row by row; what is shifted in is of no meaning."""
    place = np.minimum(np.arange(values.shape[1]) + by[:, None], values.shape[1] - 1)
    return np.asarray(values[np.arange(len(values))[:, None], place])
