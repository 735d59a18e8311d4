"""Analysis of posterior draws: alignment, averages, summaries of what is identified."""

from pymc_stiefel.analysis._alignment import align
from pymc_stiefel.analysis._averages import dispersion, mean, orthogonality_error, principal_angles
from pymc_stiefel.analysis._check import check
from pymc_stiefel.analysis._summaries import invariants, summary

__all__ = ["align", "check", "dispersion", "invariants", "mean", "orthogonality_error", "principal_angles", "summary"]
