"""Builders: structured matrices made from orthonormal ones."""

from pymc_stiefel.builders._factor_model import factor_model
from pymc_stiefel.builders._factors import (
    LowRank,
    eigen_spd,
    low_rank,
    low_rank_factors,
    orthogonal_columns,
    orthogonal_conv,
    orthogonal_dense,
)

__all__ = [
    "LowRank",
    "eigen_spd",
    "factor_model",
    "low_rank",
    "low_rank_factors",
    "orthogonal_columns",
    "orthogonal_conv",
    "orthogonal_dense",
]
