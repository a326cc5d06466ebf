"""Drafters other than a small network of the kind of the target: its features and their trees, Jacobi iterates."""

from validate.drafters.jacobi import decode_jacobi

__all__ = ["decode_jacobi"]
