"""Optimisation on the manifold."""

from pymc_stiefel.optimize._common import Optimum
from pymc_stiefel.optimize._map import find_MAP
from pymc_stiefel.optimize._starts import TrappedChain, initial_points, trapped
from pymc_stiefel.optimize._stochastic import minimize_stochastic

__all__ = ["Optimum", "TrappedChain", "find_MAP", "initial_points", "minimize_stochastic", "trapped"]
