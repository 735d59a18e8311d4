"""A network's eigenmodel: which proteins interact, and the several answers that the posterior has.

Hoff (2009) models a symmetric 0/1 matrix by y_ij ~ Bernoulli(Phi(c + (U diag(l) U')_ij)) for i > j, with an orthonormal
n x 3 matrix U: nodes with similar rows of U are linked where l_k > 0, and avoid each other where l_k < 0. The posterior
has several modes, told apart by the signs of l. Chains start from eigenvectors of the matrix and at random; each is named
by the mode it ends in. Run ``python examples/eigenmodel.py --data hoff.dat`` with the interactions of 270 proteins of
E. coli (Butland et al. 2005), or without data on a simulated network.
"""

# %%
from __future__ import annotations

import matplotlib
import numpy as np
import pymc as pm
import pytensor.tensor as pt
from recording import finish, options_of, row
from scipy.stats import norm
from stein import stein_scores

import pymc_stiefel as pst

RANK = 3


# %%
def simulate(n: int, rng: np.random.Generator) -> np.ndarray:
    """A network with two groups of linked nodes and one of hubs that avoid each other."""
    U = pst.draws.haar(n, RANK, rng=rng)
    strength = -1.4 + (U * np.array([2.0, 1.5, -1.5]) * n**0.5 * 1.2) @ U.T * n**0.5 / 1.5
    upper = np.triu(rng.random((n, n)) < norm.cdf(strength), 1)
    return (upper | upper.T).astype(float)


def read_network(path) -> np.ndarray:
    Y = np.loadtxt(path)
    np.fill_diagonal(Y, 0)  # the diagonal means nothing, and is all ones in this file
    return Y
