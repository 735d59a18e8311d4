"""Orthogonal matrices as PyMC variables, sampled on the Stiefel manifold."""

from pymc_stiefel import draws, geometry, normalizers
from pymc_stiefel.analysis import align, dispersion, invariants, mean, orthogonality_error, principal_angles, summary
from pymc_stiefel.builders import (
    LowRank,
    eigen_spd,
    low_rank,
    low_rank_factors,
    orthogonal_columns,
    orthogonal_conv,
    orthogonal_dense,
)
from pymc_stiefel.distributions import (
    MatrixAngularCentralGaussian,
    MatrixBingham,
    MatrixBinghamLangevin,
    MatrixLangevin,
    SpecialOrthogonal,
    StiefelUniform,
    UnitVector,
    VonMisesFisher,
    transforms,
)
from pymc_stiefel.optimize import Optimum, find_MAP, initial_points, minimize_stochastic
from pymc_stiefel.plots import (
    plot_alignment,
    plot_columns,
    plot_energy,
    plot_invariants,
    plot_loadings,
    plot_sphere,
    plot_subspace,
)
from pymc_stiefel.steps import GeodesicHMC, OrthogonalHMC, OrthogonalSGHMC, PolynomialDecay, StiefelNUTS

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
    "draws",
    "eigen_spd",
    "find_MAP",
    "geometry",
    "initial_points",
    "invariants",
    "low_rank",
    "low_rank_factors",
    "mean",
    "minimize_stochastic",
    "normalizers",
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

__version__ = "0.2.0.dev0"
