"""Subspaces: declaration, densities, draws, and sampling by every sampler of the engine."""

import numpy as np
import pymc as pm
import pytest

import pymc_stiefel as pst
from pymc_stiefel.engine.blocks import make_layout
from pymc_stiefel.engine.manifolds import GRASSMANN
from tests.kernels import bingham_langevin_density, run_chain

SCALE = np.linspace(3.0, 0.0, 4)


def subspace_model(**kwargs):
    with pm.Model() as model:
        U = pst.Grassmann("U", n=4, p=2, **kwargs)
        pm.Potential("likelihood", ((U @ U.mT) * np.diag(SCALE)).sum())
    return model


def exact_moments(power):
    """Of the diagonal of the projector, by importance sampling, with standard errors."""
    squares = (np.linalg.qr(np.random.default_rng(2).normal(size=(200_000, 4, 2)))[0] ** 2).sum(-1)
    weight = np.exp(squares @ SCALE)
    weight /= weight.sum()
    mean = weight @ squares**power
    return mean, np.sqrt(weight**2 @ (squares**power - mean) ** 2)


def largest_z(draws):
    """Of the moments of draws (chain, draw, n, p), with errors from batches of 100 draws."""
    squares = (np.asarray(draws) ** 2).sum(-1)
    batches = squares.reshape(-1, 100, squares.shape[-1])
    found = []
    for power in (1, 2):
        mean, error = exact_moments(power)
        means = (batches**power).mean(axis=1)
        found.append((means.mean(0) - mean) / np.hypot(means.std(0, ddof=1) / np.sqrt(len(means)), error))
    return np.abs(found).max()


@pytest.mark.parametrize(
    "step", [pst.StiefelNUTS, pst.OrthogonalHMC, pst.GeodesicHMC], ids=["StiefelNUTS", "oHMC", "gHMC"]
)
def test_moments_of_the_projector(step):
    with subspace_model():
        idata = pm.sample(
            4000, tune=300, chains=2, cores=1, step=step(), random_seed=1, progressbar=False,
            compute_convergence_checks=False,
        )  # fmt: skip
    assert largest_z(idata["posterior"]["U"]) < 4.5
    assert int(idata["sample_stats"]["diverging"].sum()) == 0
    assert not idata["sample_stats"]["reflected"].any()


def test_smc_and_the_log_marginal_likelihood():
    model = subspace_model()
    with model, pytest.warns(UserWarning, match="tempered"):
        idata = pm.sample_smc(
            1000, kernel=pst.ManifoldSMC, chains=2, cores=1, random_seed=1, progressbar=False,
            compute_convergence_checks=False,
        )  # fmt: skip
    evidence = pst.log_marginal_likelihood(idata)
    squares = (np.linalg.qr(np.random.default_rng(3).normal(size=(200_000, 4, 2)))[0] ** 2).sum(-1)
    assert abs(evidence.value - np.log(np.exp(squares @ SCALE).mean())) < 0.15
    means = (np.asarray(idata["posterior"]["U"]) ** 2).sum(-1).mean(axis=(0, 1))
    np.testing.assert_allclose(means, exact_moments(1)[0], atol=0.03)


def test_motion_is_horizontal():
    """The basis does not turn within its subspace: successive bases overlap by symmetric matrices."""
    density = bingham_langevin_density(np.zeros((5, 2)), np.diag([3.0, 2.0, 1.0, 0.0, 0.0]), np.ones(2))
    start = np.eye(5)[:, :2].T.ravel()
    rng = np.random.default_rng(1)
    layout = make_layout([(5, 2)], 0, [-1], [GRASSMANN])
    draws, _, sampler = run_chain(
        density, layout, start, 50, rng, drift="geodesic", stages=1, n_steps=1, step_size=0.2, adapt_step_size=False,
        adapt_metric=False, jitter=0.0,
    )  # fmt: skip
    X = np.concatenate([start[None], draws]).reshape(-1, 2, 5)
    overlap = X[:-1] @ X[1:].swapaxes(1, 2)
    assert np.abs(overlap - overlap.swapaxes(1, 2)).max() < 1e-12
    assert np.all(sampler.chain.state.a == 0)
    assert np.ptp(draws, axis=0).max() > 0.5


def test_one_mass_for_all_columns():
    model = subspace_model(shape=(2, 4, 2))
    with model:
        step = pst.StiefelNUTS()
        pm.sample(50, tune=100, chains=1, step=step, random_seed=1, progressbar=False, compute_convergence_checks=False)
    c = step.chain.metric.c.reshape(2, 2)
    assert np.all(c[:, 0] == c[:, 1])
    assert step.chain.kinds == ["cayley", "cayley"]


def test_a_density_of_more_than_the_subspace_is_refused():
    with pm.Model():
        U = pst.Grassmann("U", n=4, p=2)
        pm.Potential("likelihood", U[0, 0])
        with pytest.raises(ValueError, match=r"columns of U are rotated.*StiefelUniform"):
            pm.sample(10, tune=10, chains=1, progressbar=False)
        with pytest.raises(ValueError, match="columns of U are rotated"):
            pm.sample(10, tune=10, chains=1, step=pst.OrthogonalSGHMC(step_size=0.1), progressbar=False)


def test_the_gaussian_law():
    Sigma = np.diag([9.0, 4.0, 1.0, 1.0])
    with pm.Model() as model:
        U = pst.Grassmann("U", Sigma=Sigma, p=2)
        idata = pm.sample(
            4000, tune=300, chains=2, cores=1, random_seed=1, progressbar=False, compute_convergence_checks=False
        )
    value = np.linalg.qr(np.random.default_rng(0).normal(size=(4, 2)))[0]
    same = pm.logp(pst.MatrixAngularCentralGaussian.dist(Sigma=Sigma, p=2), value).eval()
    np.testing.assert_allclose(pm.logp(U, value).eval(), same)
    exact = pm.draw(U, 40_000, random_seed=1)
    squares = [(np.asarray(one) ** 2).sum(-1).reshape(-1, 100, 4).mean(1) for one in (idata["posterior"]["U"], exact)]
    error = np.hypot(*[one.std(0) / np.sqrt(len(one)) for one in squares])
    assert np.abs((squares[0].mean(0) - squares[1].mean(0)) / error).max() < 4
    assert model["U"].type.shape == (4, 2)


def test_other_samplers_and_prior_predictive():
    with pm.Model() as model:
        pst.Grassmann("U", n=4, p=2)
        prior = pm.sample_prior_predictive(200, random_seed=1)
        assert [value.name for value in model.value_vars] == ["U_polar__"]
        gradient = model.compile_dlogp()(model.initial_point(random_seed=1))
    assert prior["prior"]["U"].shape == (1, 200, 4, 2)
    assert np.isfinite(gradient).all()


def test_summary_is_of_the_projector_and_check_says_what_is_identified():
    model = subspace_model()
    with model:
        idata = pm.sample(
            300, tune=300, chains=4, cores=1, random_seed=1, progressbar=False, compute_convergence_checks=False
        )
    assert pst.summary(idata, "U").index[0] == "projector[0, 0]"
    assert pst.check(idata, model=model) == []


@pytest.mark.parametrize(
    "bad, message",
    [
        ({"n": 3, "p": 3}, r"n must be above p, got n=3, p=3.*StiefelUniform"),
        ({"n": 2, "p": 3}, "n must be at least p, got n=2, p=3"),
        ({"p": 3, "Sigma": np.eye(2)}, "n must be at least p, got n=2, p=3"),
        ({"n": 4, "p": 2, "Sigma": np.eye(5)}, r"size of Sigma, 5, got n=4"),
        ({"p": 2, "Sigma": np.eye(2)}, "n must be above p"),
        ({"n": 4}, "needs p"),
        ({"p": 2, "Sigma": -np.eye(3)}, "Sigma"),
    ],
)
def test_bad_arguments(bad, message):
    with pytest.raises((ValueError, TypeError), match=message):
        pst.Grassmann.dist(**bad)
