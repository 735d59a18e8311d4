"""Models that several tests sample."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt

import pymc_stiefel as pst


def ppca_data(n=6, N=80, scales=(4.0, 2.0), seed=1):
    rng = np.random.default_rng(seed)
    U = pst.geometry.polar(rng.standard_normal((n, len(scales))))
    return rng.standard_normal((N, len(scales))) * np.array(scales) @ U.T + rng.standard_normal((N, n))


def ppca(Y, p=2, **kwargs):
    """Probabilistic PCA through the sufficient statistic Y'Y."""
    N, n = Y.shape
    with pm.Model(coords={"feature": np.arange(n), "factor": np.arange(p)}) as model:
        gram = pm.Data("gram", Y.T @ Y)
        U = pst.StiefelUniform("U", n=n, p=p, dims=("feature", "factor"), **kwargs)
        scale = pm.HalfNormal("scale", 5, dims="factor")
        noise = pm.HalfNormal("noise", 2)
        shrink = scale**2 / (scale**2 + noise**2)
        quadratic = (pt.trace(gram) - pt.sum(shrink * pt.sum(U * (gram @ U), axis=0))) / noise**2
        log_det = pt.sum(pt.log(scale**2 + noise**2)) + (n - p) * pt.log(noise**2)
        pm.Potential("likelihood", -0.5 * (N * log_det + quadratic))
    return model
