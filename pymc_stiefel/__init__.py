"""Orthogonal matrices as PyMC variables, sampled on the Stiefel manifold."""

from pymc_stiefel import geometry, transforms
from pymc_stiefel.distributions import StiefelUniform

__all__ = ["StiefelUniform", "geometry", "transforms"]

__version__ = "0.1.0.dev0"
