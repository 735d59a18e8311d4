"""Builders: structured matrices made from orthonormal ones."""

from pymc_stiefel.builders._factor_model import factor_model
from pymc_stiefel.builders._layers import orthogonal_conv, orthogonal_dense
from pymc_stiefel.builders._matrices import LowRank, eigen_spd, low_rank, low_rank_factors, orthogonal_columns
from pymc_stiefel.builders._spectra import ordered_iid

__all__ = [
    "LowRank",
    "eigen_spd",
    "factor_model",
    "low_rank",
    "low_rank_factors",
    "ordered_iid",
    "orthogonal_columns",
    "orthogonal_conv",
    "orthogonal_dense",
]
