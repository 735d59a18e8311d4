"""Probabilistic principal components with learnt concentration and scales: model, simulator, statistics.

kappa ~ Gamma(4, 0.5), U ~ matrix Langevin(M, kappa), scale_k ~ LogNormal(0.5, 0.5), noise ~ LogNormal(-0.5, 0.3),
rows of y ~ N(0, U diag(scale^2) U' + noise^2 I). The likelihood depends on y by S = y'y only.
"""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.step_methods.compound import BlockedStep
from pymc.util import get_value_vars_from_user_vars

import pymc_stiefel as pst
from pymc_stiefel import draws

N, P = 4, 2
MODE = np.eye(N, P)


def log_likelihood(U, scale, noise, S, rows):
    """Log density of y, without its constant, by the eigenvectors of the covariance."""
    explained, rest = scale**2 + noise**2, noise**2
    along = (U * (S @ U)).sum(axis=0)
    quadratic = pt.trace(S) / rest + (along * (1 / explained - 1 / rest)).sum()
    return -0.5 * (rows * (pt.log(explained).sum() + (N - P) * pt.log(rest)) + quadratic)


def declare(S, rows, *, normalised=True):
    """The variables and the likelihood, in the model of the context; the mutant has no normaliser of kappa."""
    kappa = pm.Gamma("kappa", 4, 0.5)
    if normalised:
        U = pst.MatrixLangevin("U", M=MODE, kappa=kappa)
    else:
        U = pst.StiefelUniform("U", n=N, p=P)
        pm.Potential("kernel", kappa * (MODE * U).sum())
    scale = pm.LogNormal("scale", 0.5, 0.5, shape=P)
    noise = pm.LogNormal("noise", -0.5, 0.3)
    pm.Potential("likelihood", log_likelihood(U, scale, noise, S, rows))
    return U, kappa, scale, noise


def draw_prior(rng):
    """One draw of all parameters, without PyMC."""
    kappa = rng.gamma(4, 2.0)
    return {
        "kappa": kappa,
        "U": draws.matrix_langevin(MODE * kappa, rng=rng),
        "scale": np.exp(0.5 + 0.5 * rng.standard_normal(P)),
        "noise": np.exp(-0.5 + 0.3 * rng.standard_normal()),
    }


def draw_data(U, scale, noise, rows, rng):
    factors = rng.standard_normal((rows, P)) * scale
    return factors @ U.T + noise * rng.standard_normal((rows, N))


def statistics(U, kappa, scale, noise):
    """Invariants of draws with leading dimension: (draws, k)."""
    loading = np.einsum("kip,kp,kjp->kij", U, scale**2, U)
    return np.column_stack(
        [
            np.log(kappa),
            np.log(scale),
            np.log(noise),
            np.einsum("np,knp->k", MODE, U),
            np.log(np.trace(loading, axis1=1, axis2=2)),
            loading[:, 0, 0] / np.trace(loading, axis1=1, axis2=2),
            np.einsum("np,knp->k", MODE, U) * np.log(kappa),
        ]
    )


NAMES = [
    "log kappa",
    "log scale 1",
    "log scale 2",
    "log noise",
    "tr M'U",
    "log size",
    "share of row 1",
    "tr M'U log kappa",
]


class ForwardData(BlockedStep):
    """Draws the data given the parameters: the other half of Geweke's alternation, as a step of ``pm.sample``."""

    name = "forward_data"
    stats_dtypes_shapes = {"forward": (bool, [])}  # noqa: RUF012 (PyMC declares it so)

    def __init__(self, vars, *, rows, model=None, blocked=True, rng=None):
        self.vars = get_value_vars_from_user_vars(vars, pm.modelcontext(model))
        self.rows, self.rng = rows, np.random.default_rng(rng)

    def set_rng(self, rng):
        self.rng = np.random.default_rng(rng)

    def setup_chain(self, rng, tune, draws):
        self.set_rng(rng)

    def step(self, point):
        scale, noise = np.exp(point["scale_log__"]), np.exp(point["noise_log__"])
        y = draw_data(point["U_polar__"], scale, noise, self.rows, self.rng)
        return {**point, "y": y}, [{"forward": True}]
