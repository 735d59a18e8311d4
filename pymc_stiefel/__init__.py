"""Orthogonal matrices as PyMC variables, sampled on the Stiefel manifold."""

import importlib
from typing import Any

from pymc_stiefel import draws, geometry, normalizers
from pymc_stiefel.analysis import (
    align,
    check,
    condition,
    dispersion,
    factor_scores,
    impute,
    invariants,
    mean,
    nested_rhat,
    orthogonality_error,
    principal_angles,
    summary,
)
from pymc_stiefel.builders import (
    LowRank,
    eigen_spd,
    factor_model,
    low_rank,
    low_rank_factors,
    ordered_iid,
    orthogonal_columns,
    orthogonal_conv,
    orthogonal_dense,
)
from pymc_stiefel.cluster import sample_chains
from pymc_stiefel.distributions import (
    Grassmann,
    LowRankMvNormal,
    MatrixAngularCentralGaussian,
    MatrixBingham,
    MatrixBinghamLangevin,
    MatrixFisher,
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
    plot_ranks,
    plot_scores,
    plot_sphere,
    plot_subspace,
)
from pymc_stiefel.sampling import StiefelSampler, sample
from pymc_stiefel.smc import Evidence, ManifoldSMC, compare_ranks, log_marginal_likelihood
from pymc_stiefel.steps import (
    CyclicalSchedule,
    GeodesicHMC,
    OrthogonalHMC,
    OrthogonalSGHMC,
    PolynomialDecay,
    StiefelNUTS,
)

__all__ = [
    "CyclicalSchedule",
    "Evidence",
    "GeodesicHMC",
    "Grassmann",
    "LowRank",
    "LowRankMvNormal",
    "ManifoldSMC",
    "MatrixAngularCentralGaussian",
    "MatrixBingham",
    "MatrixBinghamLangevin",
    "MatrixFisher",
    "MatrixLangevin",
    "Optimum",
    "OrthogonalHMC",
    "OrthogonalSGHMC",
    "PolynomialDecay",
    "SpecialOrthogonal",
    "StiefelNUTS",
    "StiefelSampler",
    "StiefelUniform",
    "UnitVector",
    "VonMisesFisher",
    "align",
    "check",
    "compare_ranks",
    "condition",
    "dispersion",
    "draws",
    "eigen_spd",
    "factor_model",
    "factor_scores",
    "find_MAP",
    "geometry",
    "impute",
    "initial_points",
    "invariants",
    "log_marginal_likelihood",
    "low_rank",
    "low_rank_factors",
    "mean",
    "minimize_stochastic",
    "nested_rhat",
    "normalizers",
    "ordered_iid",
    "orthogonal_columns",
    "orthogonal_conv",
    "orthogonal_dense",
    "orthogonality_error",
    "plot_alignment",
    "plot_columns",
    "plot_energy",
    "plot_invariants",
    "plot_loadings",
    "plot_ranks",
    "plot_scores",
    "plot_sphere",
    "plot_subspace",
    "principal_angles",
    "sample",
    "sample_chains",
    "summary",
    "transforms",
]

__version__ = "0.2.0.dev0"


def __getattr__(name: str) -> Any:
    """``pymc_stiefel.jax`` is loaded when it is first used: importing JAX takes a second, and not everybody has it."""
    if name != "jax":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return importlib.import_module("pymc_stiefel.jax")
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("jax", "jaxlib", "blackjax", "optax"):
            raise
        message = f"pymc_stiefel.jax needs {error.name}: pip install 'pymc-stiefel[jax]'"
        raise ModuleNotFoundError(message, name=error.name) from error
