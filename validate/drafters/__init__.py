"""Drafters other than a small network of the target's kind."""

from validate.drafters.jacobi import decode_jacobi

__all__ = ["decode_jacobi"]
