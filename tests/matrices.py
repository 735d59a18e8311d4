"""Draws of orthonormal matrices whose answers are known, for the tests of alignment, means and summaries."""

import arviz as az
import numpy as np
import xarray as xr
from hypothesis import settings
from hypothesis import strategies as st

from pymc_stiefel import geometry

SHAPES = st.sampled_from([(3, 1), (4, 2), (6, 3), (4, 4), (12, 5), (9, 7)])
SEEDS = st.integers(0, 2**32 - 1)
quick = settings(max_examples=20, deadline=None, derandomize=True)


def signed_permutations(rng, size, p):
    return np.eye(p)[np.argsort(rng.random((*size, p)), axis=-1)] * rng.choice([-1.0, 1.0], (*size, 1, p))


def rotations(rng, size, p):
    return geometry.polar(rng.normal(size=(*size, p, p)))


def concentrated(rng, n, p, size=(2, 30), spread=0.02):
    M = geometry.polar(rng.normal(size=(n, p)))
    return M, geometry.polar(M + spread * rng.normal(size=(*size, n, p)))


def simple_structure(rng, n, p, size=(2, 30)):
    """Loadings where each row belongs to one column: what varimax looks for."""
    loadings = np.zeros((n, p))
    loadings[np.arange(n), np.arange(n) % p] = rng.uniform(1, 2, n)
    return loadings + 0.02 * rng.normal(size=(*size, n, p))


def as_idata(**arrays):
    variables = {
        name: xr.DataArray(a, dims=("chain", "draw", *dims), coords={"chain": [0, 1], "draw": np.arange(a.shape[1])})
        for name, (a, dims) in arrays.items()
    }
    dataset = xr.Dataset(variables)
    if az.__version__.startswith("0."):
        return az.InferenceData(posterior=dataset)
    return xr.DataTree.from_dict({"/posterior": dataset})
