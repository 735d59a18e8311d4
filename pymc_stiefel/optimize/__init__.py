"""Optimisation on the manifold."""

from pymc_stiefel.optimize._search import Optimum, find_MAP, minimize_stochastic

__all__ = ["Optimum", "find_MAP", "minimize_stochastic"]
