"""Plots of orthonormal matrices and of how well they were sampled."""

from pymc_stiefel.plots._diagnostic import plot_energy, plot_invariants, plot_subspace
from pymc_stiefel.plots._matrix import plot_alignment, plot_columns, plot_loadings, plot_sphere
from pymc_stiefel.plots._ranks import plot_ranks
from pymc_stiefel.plots._scores import plot_scores

__all__ = [
    "plot_alignment",
    "plot_columns",
    "plot_energy",
    "plot_invariants",
    "plot_loadings",
    "plot_ranks",
    "plot_scores",
    "plot_sphere",
    "plot_subspace",
]
