"""Analysis of posterior draws: alignment, averages, summaries and checks of what is identified."""

from pymc_stiefel.analysis._alignment import align
from pymc_stiefel.analysis._averages import dispersion, mean, orthogonality_error, principal_angles
from pymc_stiefel.analysis._check import check
from pymc_stiefel.analysis._factor_scores import condition, factor_scores, impute
from pymc_stiefel.analysis._nested_rhat import nested_rhat
from pymc_stiefel.analysis._summaries import invariants, summary

__all__ = [
    "align",
    "check",
    "condition",
    "dispersion",
    "factor_scores",
    "impute",
    "invariants",
    "mean",
    "nested_rhat",
    "orthogonality_error",
    "principal_angles",
    "summary",
]
