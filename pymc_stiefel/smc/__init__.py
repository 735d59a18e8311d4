"""Sequential Monte Carlo on the manifold: posteriors with several modes, and marginal likelihoods."""

from pymc_stiefel.smc._evidence import Evidence, compare_ranks, log_marginal_likelihood
from pymc_stiefel.smc._kernel import ManifoldSMC

__all__ = ["Evidence", "ManifoldSMC", "compare_ranks", "log_marginal_likelihood"]
