"""Optimisation on the manifold."""

from pymc_stiefel.optimize._common import Optimum
from pymc_stiefel.optimize._map import find_MAP
from pymc_stiefel.optimize._stochastic import minimize_stochastic

__all__ = ["Optimum", "find_MAP", "minimize_stochastic"]
