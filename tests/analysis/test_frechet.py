"""Logarithms invert geodesics, and the Fréchet mean is where they balance."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pymc_stiefel as pst
from pymc_stiefel import geometry
from pymc_stiefel.analysis import _frechet as frechet
from tests.matrices import (
    SEEDS,
    concentrated,
    quick,
)


def test_frechet_mean_on_the_circle_is_the_mean_angle():
    angles = np.random.default_rng(8).normal(1.0, 0.3, size=(2, 100))
    X = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    found = pst.mean(X, kind="frechet").values
    assert np.isclose(np.arctan2(found[1], found[0]), angles.mean())
    assert np.isclose(pst.dispersion(X, kind="frechet"), angles.var())


@quick
@given(st.sampled_from([(5, 1), (6, 3), (5, 5), (5, 4), (20, 3)]), SEEDS)
def test_logarithm_inverts_the_geodesic(shape, seed):
    rng = np.random.default_rng(seed)
    X = geometry.polar(rng.normal(size=shape))
    T = geometry.tangent_project(X, rng.normal(size=shape))
    T *= 0.8 / np.sqrt((T**2).sum() - ((X.T @ T) ** 2).sum() / 2)  # canonical length 0.8
    np.testing.assert_allclose(frechet.stiefel_log(X, frechet.stiefel_exp(X, T)[None])[0], T, atol=1e-8)


def test_frechet_mean_leaves_no_gradient():
    """At any spread up to angles of half a right angle."""
    rng = np.random.default_rng(18)
    for shape, spread in (((40, 3), 0.02), ((40, 3), 0.2), ((6, 4), 0.2), ((5, 1), 0.5)):
        _, X = concentrated(rng, *shape, size=(2, 100), spread=spread)
        M, draws = pst.mean(X, kind="frechet").values, X.reshape(-1, *shape)
        tangents = frechet.stiefel_log(M, draws)
        assert np.abs(tangents.mean(axis=0)).max() < 1e-8
        lengths = (tangents**2).sum(axis=(1, 2)) - ((M.T @ tangents) ** 2).sum(axis=(1, 2)) / 2
        assert np.isclose(pst.dispersion(X, kind="frechet"), lengths.mean())


def test_opposite_points_have_no_frechet_mean():
    with pytest.raises(ValueError, match="too far apart"):
        frechet.stiefel_log(np.eye(2, 1), -np.eye(2, 1)[None])
