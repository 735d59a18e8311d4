"""Optimisation on the manifold."""

from pymc_stiefel.optimize._search import Optimum, find_MAP, minimize_stochastic
from pymc_stiefel.optimize._starts import TrappedChain, initial_points, trapped

__all__ = ["Optimum", "TrappedChain", "find_MAP", "initial_points", "minimize_stochastic", "trapped"]
