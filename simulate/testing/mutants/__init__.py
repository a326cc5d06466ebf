"""Broken samplers, one fault each, and correct ones that must pass: what the test kit itself is tested with.

>>> len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
True
"""

from simulate.testing.mutants.kit import Verdict, format_table, judge
from simulate.testing.mutants.mutant import KINDS, Mutant
from simulate.testing.mutants.registry import CORRECT, MUTANTS

__all__ = ["CORRECT", "KINDS", "MUTANTS", "Mutant", "Verdict", "format_table", "judge"]
