"""Step methods: adapters between pm.sample and the engine."""

from pymc_stiefel.steps._hmc import GeodesicHMC, OrthogonalHMC, StiefelNUTS
from pymc_stiefel.steps._schedules import CyclicalSchedule, PolynomialDecay
from pymc_stiefel.steps._sghmc import OrthogonalSGHMC

__all__ = ["CyclicalSchedule", "GeodesicHMC", "OrthogonalHMC", "OrthogonalSGHMC", "PolynomialDecay", "StiefelNUTS"]
