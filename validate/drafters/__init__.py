"""Who proposes, other than a small network of the target's kind: feature-level drafters and their trees, Jacobi iterates."""

from validate.drafters.jacobi import decode_jacobi

__all__ = ["decode_jacobi"]
