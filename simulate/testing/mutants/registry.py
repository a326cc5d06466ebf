"""All mutants, by file of origin."""

from __future__ import annotations

from simulate.testing.mutants import answers, blocks, drafts, draws, lossy, positions, ratios, residuals, siblings
from simulate.testing.mutants.correct import CORRECT
from simulate.testing.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    *drafts.MUTANTS,
    *ratios.MUTANTS,
    *residuals.MUTANTS,
    *positions.MUTANTS,
    *draws.MUTANTS,
    *blocks.MUTANTS,
    *siblings.MUTANTS,
    *lossy.MUTANTS,
    *answers.MUTANTS,
)
"""Broken samplers, one fault each."""

__all__ = ["CORRECT", "MUTANTS"]
