"""Orthogonal matrices as PyMC variables, sampled on the Stiefel manifold."""

from pymc_stiefel import geometry, transforms
from pymc_stiefel.alignment import align
from pymc_stiefel.analysis import dispersion, mean, orthogonality_error, principal_angles
from pymc_stiefel.diagnostic_plots import plot_energy, plot_invariants, plot_subspace
from pymc_stiefel.distributions import (
    MatrixAngularCentralGaussian,
    MatrixBingham,
    MatrixBinghamLangevin,
    MatrixLangevin,
    SpecialOrthogonal,
    StiefelUniform,
    UnitVector,
    VonMisesFisher,
)
from pymc_stiefel.factors import (
    LowRank,
    eigen_spd,
    low_rank,
    low_rank_factors,
    orthogonal_columns,
    orthogonal_conv,
    orthogonal_dense,
)
from pymc_stiefel.optimize import Optimum, find_MAP, minimize_stochastic
from pymc_stiefel.plots import plot_alignment, plot_columns, plot_loadings, plot_sphere
from pymc_stiefel.step_methods import GeodesicHMC, OrthogonalHMC, StiefelNUTS
from pymc_stiefel.stochastic_steps import OrthogonalSGHMC, PolynomialDecay
from pymc_stiefel.summaries import invariants, summary

__all__ = [
    "GeodesicHMC",
    "LowRank",
    "MatrixAngularCentralGaussian",
    "MatrixBingham",
    "MatrixBinghamLangevin",
    "MatrixLangevin",
    "Optimum",
    "OrthogonalHMC",
    "OrthogonalSGHMC",
    "PolynomialDecay",
    "SpecialOrthogonal",
    "StiefelNUTS",
    "StiefelUniform",
    "UnitVector",
    "VonMisesFisher",
    "align",
    "dispersion",
    "eigen_spd",
    "find_MAP",
    "geometry",
    "invariants",
    "low_rank",
    "low_rank_factors",
    "mean",
    "minimize_stochastic",
    "orthogonal_columns",
    "orthogonal_conv",
    "orthogonal_dense",
    "orthogonality_error",
    "plot_alignment",
    "plot_columns",
    "plot_energy",
    "plot_invariants",
    "plot_loadings",
    "plot_sphere",
    "plot_subspace",
    "principal_angles",
    "summary",
    "transforms",
]

__version__ = "0.1.0"
