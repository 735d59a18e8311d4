"""Models with ``floatX=float32``: densities, steps and checks work, to the precision that this leaves."""

import logging

import numpy as np
import pymc as pm
import pytensor
import pytest

import pymc_stiefel as pst
from tests.models import ppca, ppca_data


@pytest.fixture(autouse=True)
def single_precision():
    with pytensor.config.change_flags(floatX="float32"):
        yield


def langevin(**kwargs):
    with pm.Model() as model:
        kappa = pm.HalfNormal("kappa", 5)
        pst.MatrixLangevin("X", M=np.eye(4, 2), kappa=kappa, **kwargs)
    return model


def test_densities_agree_with_double_precision():
    for kwargs in ({}, {"transform": pst.transforms.householder}):
        single = langevin(**kwargs)
        point = single.initial_point(random_seed=1)
        assert {value.dtype for value in point.values()} == {np.dtype("float32")}
        with pytensor.config.change_flags(floatX="float64"):
            double = langevin(**kwargs)
            expected = double.compile_dlogp(mode="FAST_COMPILE")({k: v.astype(float) for k, v in point.items()})
        np.testing.assert_allclose(single.compile_dlogp(mode="FAST_COMPILE")(point), expected, rtol=1e-4, atol=1e-5)


def test_laws_of_scales():
    """A graph whose dtype is not that of its variable cannot be compiled."""
    model = pst.factor_model(ppca_data(), 2)
    assert np.isfinite(model.compile_logp(mode="FAST_COMPILE")(model.initial_point(random_seed=1)))


def test_sampling_and_checks(caplog):
    with ppca(ppca_data()):
        idata = pm.sample(200, tune=200, chains=2, cores=1, progressbar=False, random_seed=1)
        caplog.clear()
        with caplog.at_level(logging.INFO, logger="pymc.stats.convergence"):
            found = pst.check(idata)
        optimum = pst.find_MAP(progressbar=False, gtol=0.2)  # rounding errors of the gradient are near 0.1
    U = idata["posterior"]["U"].values
    assert U.dtype == optimum["U"].dtype == np.float32
    assert pst.geometry.orthogonality_error(U.astype(float)).max() < 1e-6
    assert idata["sample_stats"]["diverging"].sum() == 0
    assert any("up to signs and order of its columns (together with scale)" in text for text in caplog.messages)
    assert not [warning for warning in found if "nats" in warning.message]
    assert abs(float(idata["posterior"]["noise"].mean()) - float(optimum["noise"])) < 0.1
