"""Coordinates for scales in order: the same law, without the neck."""

from weakref import WeakKeyDictionary

import numpy as np
import pymc as pm
import pytensor
import pytest
from pymc.distributions.transforms import Chain, log, ordered
from scipy import stats

import pymc_stiefel as pst
from pymc_stiefel.compile import _ordered_log as _log_gaps
from pymc_stiefel.compile._density import ModelDensity


@pytest.fixture(scope="module")
def model():
    """Three half-normal scales in order beside a unit vector."""
    with pm.Model() as model:
        pst.UnitVector("x", n=3)
        pm.HalfNormal("scale", 2, shape=3, default_transform=Chain([log, ordered]), initval=[0.5, 1.0, 2.0])
    return model


def test_there_and_back():
    value = np.random.default_rng(0).normal(0, 3, (50, 4))
    np.testing.assert_allclose(_log_gaps.from_widths(_log_gaps.to_widths(value)), value, rtol=1e-11, atol=1e-11)


def test_which_variables(model):
    with pm.Model() as others:
        pm.HalfNormal("plain", shape=3)
        pm.Normal("cutpoints", shape=3, transform=ordered, initval=[0.0, 1.0, 2.0])
    found = {value.name: _log_gaps.has_log_gaps(model, value) for value in model.value_vars}
    assert found == {"x_sphere__": False, "scale_chain__": True}
    assert not any(_log_gaps.has_log_gaps(others, value) for value in others.value_vars)


def test_density_has_the_jacobian(model):
    start = model.initial_point(1)
    plain, other = (ModelDensity(model, model.value_vars, start, widths=widths) for widths in (False, True))
    flat = other.on_manifold(other.pack(start))
    point = other.unpack(flat[None], start)[0]
    np.testing.assert_allclose(point["scale_chain__"], start["scale_chain__"], rtol=1e-14)
    slopes = [
        np.diff(_log_gaps.from_widths(flat[-3:] + np.outer([-1, 1], 1e-6 * unit)), axis=0)[0] @ unit / 2e-6
        for unit in np.eye(3)[1:]
    ]
    np.testing.assert_allclose(other(flat)[0], plain(plain.pack(point))[0] + np.sum(np.log(slopes)), rtol=1e-8)
    for k in range(3):  # and the gradient is that of the density
        near = [other(flat + sign * 1e-6 * np.eye(flat.size)[-3 + k])[0] for sign in (1, -1)]
        np.testing.assert_allclose(other(flat)[1][-3 + k], (near[0] - near[1]) / 2e-6, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("jacobian", [True, False], ids=["right", "without the Jacobian"])
def test_law_of_order_statistics(model, jacobian, monkeypatch):
    if not jacobian:
        in_widths = _log_gaps.in_widths

        def forgetful(logp, value):
            density, width = in_widths(logp, value)
            gap = pytensor.tensor.softplus(width[..., 1:])
            lost = pytensor.tensor.sum(pytensor.tensor.softplus(-width[..., 1:]) + pytensor.tensor.log(gap))
            return density + lost, width

        monkeypatch.setattr("pymc_stiefel.compile._density.in_widths", forgetful)
        monkeypatch.setattr("pymc_stiefel.compile._cache._results", WeakKeyDictionary())  # compile the model again
    with model:
        idata = pm.sample(
            2000, tune=500, chains=2, cores=1, random_seed=3, step=pst.StiefelNUTS(), progressbar=False, quiet=True
        )
    draws = idata["posterior"]["scale"].values
    exact = np.sort(2 * np.abs(np.random.default_rng(0).standard_normal((400_000, 3))), axis=1)
    batches = draws.reshape(40, 100, 3).mean(1)
    z = (batches.mean(0) - exact.mean(0)) / (batches.std(0, ddof=1) / np.sqrt(len(batches)))
    assert (np.abs(z).max() < 4) == jacobian


@pytest.mark.parametrize("widths", [True, False], ids=["ours", "PyMC's"])
def test_a_vanishing_scale_leaves_the_other_as_it_is(widths, monkeypatch):
    """The larger of two scales is known, the data leave the smaller one free: in PyMC's coordinates that is a neck."""
    if not widths:
        monkeypatch.setattr("pymc_stiefel.compile._density.has_log_gaps", lambda model, value: False)
    with pm.Model():
        pst.UnitVector("x", n=3)
        scale = pm.HalfNormal("scale", 5, shape=2, default_transform=Chain([log, ordered]), initval=[1.0, 3.0])
        pm.Potential("data", -200 * (pm.math.log(scale[1]) - 1.0) ** 2)
        idata = pm.sample(2000, tune=500, chains=2, cores=1, random_seed=1, progressbar=False, quiet=True)
    smallest, divergences = idata["posterior"]["scale"].values[..., 0], int(idata["sample_stats"]["diverging"].sum())
    # nearly uniform up to the other scale, which is e within five per cent
    exact = stats.truncnorm(0, np.e / 5, scale=5)
    assert (smallest.min() < exact.ppf(0.01)) == widths
    assert (divergences < 5) == widths
    if widths:
        batches = smallest.reshape(20, -1).mean(axis=1)
        assert abs(smallest.mean() - exact.mean()) < 4 * batches.std(ddof=1) / np.sqrt(len(batches))
