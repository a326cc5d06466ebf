"""A test kit for speculative samplers: is the law of a round the declared one?"""

from simulate.testing.protocol import Emitted, RoundDecoder, Rounds, Sampler

__all__ = ["Emitted", "RoundDecoder", "Rounds", "Sampler"]
