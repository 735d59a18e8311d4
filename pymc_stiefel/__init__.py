"""Orthogonal matrices as PyMC variables, sampled on the Stiefel manifold."""

__version__ = "0.1.0.dev0"
