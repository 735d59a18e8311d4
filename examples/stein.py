r"""A check of draws that needs no second sampler and no known answer.

Integration by parts: for a density pi on R^d, E[d_i log pi] = 0 and E[x_i d_i log pi] = -1. On the manifold the field
X -> W X with a skew W conserves the uniform law, so that for every smooth f

    E[ f(X) <grad log pi, W X> + <grad f, W X> ] = 0.

With f = 1 and f = X_aj these are hundreds of quantities whose means are known. Draws from another distribution, for
example at a wrong temperature, have other means.
"""

from __future__ import annotations

import arviz as az
import numpy as np
import pymc as pm

import pymc_stiefel as pst


def stein_scores(model: pm.Model, posterior, *, thin: int = 1, pairs: int = 100) -> np.ndarray:
    """z-scores of the identities, which should look like standard normal numbers.

    ``posterior`` comes from ``pm.sample(..., idata_kwargs={"include_transformed": True})``: gradients are taken in the
    space of the value variables, which for an orthonormal matrix is the matrix itself. ``pairs`` limits the number of
    pairs of rows (a, b) that W turns into one another; the others are left out at random.
    """
    gradient = model.compile_dlogp()
    draws = {value.name: posterior[value.name].values[:, ::thin] for value in model.value_vars}
    chains, length = next(iter(draws.values())).shape[:2]
    points = [{name: x[c, d] for name, x in draws.items()} for c, d in np.ndindex(chains, length)]
    slopes = np.stack([gradient(point) for point in points])
    terms, start = [], 0
    for value in model.value_vars:
        x = draws[value.name].reshape(len(points), *draws[value.name].shape[2:])
        g = slopes[:, start : start + x[0].size].reshape(x.shape)
        start += x[0].size
        manifold = isinstance(model.rvs_to_transforms[model.values_to_rvs[value]], pst.transforms.ManifoldExpansion)
        terms.append(_matrix_terms(x, g, pairs) if manifold else _number_terms(x, g))
    values = np.concatenate(terms, axis=1).reshape(chains, length, -1)
    error = az.mcse(az.convert_to_dataset({"x": values}), method="mean")["x"].values
    return values.mean(axis=(0, 1)) / error


def _number_terms(x: np.ndarray, g: np.ndarray) -> np.ndarray:
    x, g = x.reshape(len(x), -1), g.reshape(len(x), -1)
    return np.concatenate([g, x * g + 1], axis=1)


def _matrix_terms(X: np.ndarray, G: np.ndarray, pairs: int) -> np.ndarray:
    a, b = np.triu_indices(X.shape[1], 1)
    kept = np.random.default_rng(0).permutation(len(a))[:pairs]
    a, b = a[kept], b[kept]
    slope = np.sum(G[:, a] * X[:, b] - G[:, b] * X[:, a], axis=2)  # of log pi along W X, W = e_a e_b' - e_b e_a'
    weighted = X[:, a] * slope[:, :, None] + X[:, b]
    return np.concatenate([slope, weighted.reshape(len(X), -1)], axis=1)
