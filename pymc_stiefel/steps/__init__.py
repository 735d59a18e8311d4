"""Step methods: adapters between pm.sample and the engine."""

from pymc_stiefel.steps._hmc import GeodesicHMC, OrthogonalHMC, StiefelNUTS
from pymc_stiefel.steps._sghmc import OrthogonalSGHMC, PolynomialDecay

__all__ = ["GeodesicHMC", "OrthogonalHMC", "OrthogonalSGHMC", "PolynomialDecay", "StiefelNUTS"]
