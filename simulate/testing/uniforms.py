"""Uniforms as an argument: samplers that can be driven by hand.

A *uniform sampler* is a function (Rounds, Uniforms) → Emitted. It uses one uniform for the test of every drafted
token and one for the token drawn last, so that its output is a plain function of L + 1 numbers in [0, 1): its law is
an integral (`simulate.testing.exact_mode`) and its edge cases can be called up by name. `driven` turns a sampler that
draws from a generator in a known order into one; `drawing` goes the other way.

>>> def by_generator(rounds, rng):
...     u, last = rng.random((rounds.count, rounds.length)), rng.random(rounds.count)
...     return u, last
>>> rounds = Rounds(np.zeros((2, 1), int), np.full((2, 2, 2), 0.5), np.full((2, 1, 2), 0.5))
>>> driven(by_generator)(rounds, Uniforms(np.array([[0.1], [0.2]]), np.array([0.3, 0.4])))
(array([[0.1],
       [0.2]]), array([0.3, 0.4]))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from simulate.testing.protocol import Emitted, Floats, Rounds, Sampler

LAST_UNIFORM = float(np.nextafter(1.0, 0.0))
"""The largest number below one, and the largest that ``Generator.random`` returns."""


@dataclass(frozen=True, eq=False)
class Uniforms:
    """The random numbers of a batch of rounds, all in [0, 1)."""

    acceptance: Floats
    """Shape (B, L): one for the test of every drafted token."""
    final: Floats
    """Shape (B,): for the replacement or the bonus token."""

    def __post_init__(self) -> None:
        if np.ndim(self.acceptance) != 2 or np.shape(self.final) != np.shape(self.acceptance)[:1]:
            raise ValueError(
                f"expected acceptance (B, L) and final (B,), got {np.shape(self.acceptance)} and {np.shape(self.final)}"
            )
        for name, values in (("acceptance", self.acceptance), ("final", self.final)):
            outside = np.argwhere(~((values >= 0) & (values < 1)))
            if len(outside):
                index = tuple(outside[0].tolist())
                raise ValueError(f"{name}[{index}] is {values[index]!r}; uniforms lie in [0, 1)")


UniformSampler: TypeAlias = Callable[[Rounds, Uniforms], Emitted]
"""A sampler whose randomness is an argument."""


def draw_uniforms(rounds: Rounds, rng: np.random.Generator) -> Uniforms:
    """Fresh uniforms for a batch."""
    return Uniforms(rng.random((rounds.count, rounds.length)), rng.random(rounds.count))


def drawing(sampler: UniformSampler) -> Sampler:
    """The sampler that draws its uniforms from a generator."""
    return lambda rounds, rng: sampler(rounds, draw_uniforms(rounds, rng))


class GivenGenerator:
    """Looks like a Generator but returns given numbers, call by call.

    Parameters
    ----------
    pieces : sequence of arrays
        What the successive calls of ``random`` return.

    Raises
    ------
    ValueError
        When a call asks for another number of uniforms than the next piece holds, or for more calls than there are.
    AttributeError
        When any other kind of draw is asked for.
    """

    def __init__(self, pieces: Sequence[Floats]) -> None:
        self._pieces = list(pieces)
        self._calls = 0

    def random(self, size: Any = None) -> Any:
        """The next piece, in the shape asked for."""
        if self._calls == len(self._pieces):
            raise ValueError(f"the sampler drew more than {self._calls} times; name every draw in `order`")
        piece = self._pieces[self._calls]
        self._calls += 1
        shape = () if size is None else tuple(np.atleast_1d(size).tolist())
        if int(np.prod(shape)) != piece.size:
            raise ValueError(
                f"draw {self._calls} asked for shape {shape}, but that draw was announced with shape {piece.shape}; "
                "see `order`"
            )
        return piece.reshape(shape).copy()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"only random(size) can be driven by given uniforms, the sampler used {name}")


class ConstantGenerator(np.random.Generator):
    """A Generator whose uniforms are all the same number, in the generators spawned from it too.

    AttributeError for any other kind of draw.
    """

    def __init__(self, value: float) -> None:
        super().__init__(np.random.PCG64(0))
        self.value = value

    def random(self, size: Any = None, dtype: Any = np.float64, out: Any = None) -> Any:
        """The number, in the shape asked for."""
        return self.value if size is None else np.full(size, self.value)

    def spawn(self, n_children: int) -> Any:
        """Generators of the same number."""
        return [ConstantGenerator(self.value) for _ in range(n_children)]

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("_") or name in ("value", "random", "spawn"):
            return super().__getattribute__(name)
        raise AttributeError(f"only random(size) can be driven by given uniforms, the sampler used {name}")


def driven(sampler: Callable[..., Any], order: Sequence[str | int] = ("acceptance", "final")) -> UniformSampler:
    """The uniform sampler of a sampler that calls ``rng.random`` in a known order.

    Parameters
    ----------
    sampler : Sampler
    order : sequence of "acceptance", "final" or int
        What each successive call draws: all acceptance uniforms, the final one, or those of one drafted position
        (0-based). A sampler that draws residual and bonus uniforms separately names "final" twice: a round uses one.
    """
    unknown = [piece for piece in order if piece not in ("acceptance", "final") and not isinstance(piece, int)]
    if unknown:
        raise ValueError(f'order names "acceptance", "final" or a drafted position, got {unknown[0]!r}')

    def run(rounds: Rounds, uniforms: Uniforms) -> Any:
        columns = {"acceptance": uniforms.acceptance, "final": uniforms.final}
        pieces = [uniforms.acceptance[:, at] if isinstance(at, int) else columns[at] for at in order]
        return sampler(rounds, GivenGenerator(pieces))

    return run
