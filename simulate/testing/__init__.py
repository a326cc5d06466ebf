"""A kit that tells whether a speculative sampler follows the law it declares.

>>> import theory
>>> report = assert_law(reference_sampler(theory.block(2)), verifier=theory.block(2), length=2, smallest_tv=0.2)
>>> report.smallest_tv <= 0.2
True
"""

from simulate.testing.boundary import BoundaryFailure, boundary_failures, refute
from simulate.testing.exact_mode import ExactLaw, exact_law
from simulate.testing.law import assert_law, check_law
from simulate.testing.pairs import Pair, adversarial_pairs
from simulate.testing.pieces import NotPiecewise
from simulate.testing.probes import run_probes
from simulate.testing.protocol import Emitted, RoundDecoder, Rounds, Sampler
from simulate.testing.reference import reference_decoder, reference_sampler
from simulate.testing.report import LawReport, NearestFault, PairResult
from simulate.testing.seeds import check_placeholders, check_seeds
from simulate.testing.uniforms import Uniforms, UniformSampler, drawing, driven

__all__ = [
    "BoundaryFailure",
    "Emitted",
    "ExactLaw",
    "LawReport",
    "NearestFault",
    "NotPiecewise",
    "Pair",
    "PairResult",
    "RoundDecoder",
    "Rounds",
    "Sampler",
    "UniformSampler",
    "Uniforms",
    "adversarial_pairs",
    "assert_law",
    "boundary_failures",
    "check_law",
    "check_placeholders",
    "check_seeds",
    "drawing",
    "driven",
    "exact_law",
    "reference_decoder",
    "reference_sampler",
    "refute",
    "run_probes",
]
