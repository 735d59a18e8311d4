"""Dense normal laws, and parameters to compare LowRankMvNormal with them."""

import numpy as np
import pymc as pm
import pytensor
from scipy import stats

QUICK = {"mode": "FAST_COMPILE"}
PYMC6 = int(pm.__version__.split(".")[0]) >= 6


def rng():
    return np.random.default_rng(5)


def parameters(n, p, r, batch=()):
    return r.normal(size=(*batch, n)), 1.5 * r.normal(size=(*batch, n, p)), r.uniform(0.3, 2.0, (*batch, n))


def dense_rows(y, mu, W, d):
    """Row by row: the dense normal law of what is observed."""
    batch = np.broadcast_shapes(y.shape[:-1], mu.shape[:-1], W.shape[:-2], d.shape[:-1])
    n = W.shape[-2]
    y, mu, d = (np.broadcast_to(x, (*batch, n)) for x in (y, mu, d))
    W = np.broadcast_to(W, (*batch, *W.shape[-2:]))
    result = np.zeros(batch)
    for i in np.ndindex(batch):
        o = ~np.isnan(y[i])
        if o.any():
            cov = W[i][o] @ W[i][o].T + np.diag(d[i][o])
            result[i] = stats.multivariate_normal(mu[i][o], cov).logpdf(y[i][o])
    return result


def holes(y, share, r):
    return np.where(r.uniform(size=y.shape) < share, np.nan, y)


def quick(outputs, inputs=(), values=()):
    return pytensor.function(list(inputs), outputs, on_unused_input="ignore", **QUICK)(*values)
