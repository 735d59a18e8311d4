"""Sequential Monte Carlo: marginal likelihoods and weights of modes that are known exactly."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr

import pymc_stiefel as pst
from pymc_stiefel.normalizers import log_hyp0f1
from pymc_stiefel.smc._population import correlation, evaluate, population_metric

F = np.array([[18.0, 0], [0, 9], [3, 0], [0, 0], [0, 1.5]])
OPTIONS = {"chains": 4, "cores": 1, "random_seed": 1, "progressbar": False, "compute_convergence_checks": False}
TEMPERED = "ignore:the potentials:UserWarning"
pytestmark = pytest.mark.filterwarnings("ignore:More chains:UserWarning")  # ArviZ 0.23, of stages taken for draws


def langevin_by_potential():
    with pm.Model() as model:
        X = pst.StiefelUniform("X", n=5, p=2)
        pm.Potential("data", pt.sum(F * X))
    return model


class Overheated(pst.ManifoldSMC):
    """Control: moves leave the posterior invariant in every stage, in place of the law of that stage."""

    def _temper(self, beta):
        super()._temper(beta if beta == 0.0 else 1.0)


@pytest.mark.filterwarnings(TEMPERED)
@pytest.mark.parametrize(("kernel", "right"), [(pst.ManifoldSMC, True), (Overheated, False)])
def test_evidence_of_a_langevin_law(kernel, right):
    idata = pm.sample_smc(300, kernel=kernel, model=langevin_by_potential(), **OPTIONS)
    found = pst.log_marginal_likelihood(idata)
    exact = log_hyp0f1(5, np.linalg.svd(F, compute_uv=False))[0]
    assert found.chains.shape == (4,)
    assert (abs(found.value - exact) < 4 * max(found.error, 0.03)) == right
    if right:
        draws = idata["posterior"]["X"].values
        assert np.abs(np.einsum("cdij,ij->cd", draws, F).mean() - _mean_trace()) < 0.15
        assert pst.orthogonality_error(idata, "X").max() < 1e-10


def _mean_trace():
    """E tr F'X, from the derivative of the normaliser along F."""
    s = np.linalg.svd(F, compute_uv=False)
    return float(log_hyp0f1(5, s)[1] @ s)


@pytest.mark.filterwarnings(TEMPERED)
def test_evidence_of_a_batch():
    with pm.Model() as model:
        X = pst.StiefelUniform("X", n=5, p=2, shape=(3, 5, 2))
        pm.Potential("data", pt.sum(F * X))
    idata = pm.sample_smc(300, kernel=pst.ManifoldSMC, model=model, **OPTIONS)
    found = pst.log_marginal_likelihood(idata)
    exact = 3 * log_hyp0f1(5, np.linalg.svd(F, compute_uv=False))[0]
    assert abs(found.value - exact) < 4 * max(found.error, 0.05)


def test_beside_other_variables():
    """A conjugate normal model beside a rotation that does not matter."""
    with pm.Model() as model:
        pst.SpecialOrthogonal("Q", n=3)
        x = pm.Normal("x", 0, 2, shape=3)
        pm.Normal("y", x, 1, observed=np.array([1.0, -2.0, 0.5]))
    idata = pm.sample_smc(300, kernel=pst.ManifoldSMC, model=model, **OPTIONS)
    found = pst.log_marginal_likelihood(idata)
    exact = -0.5 * (1 + 4 + 0.25) / 5 - 1.5 * np.log(2 * np.pi * 5)
    assert abs(found.value - exact) < 4 * max(found.error, 0.03)
    np.testing.assert_allclose(idata["posterior"]["x"].mean(("chain", "draw")), [0.8, -1.6, 0.4], atol=0.15)
    assert np.allclose(np.linalg.det(idata["posterior"]["Q"].values), 1)


def test_chains_that_disagree_are_told():
    def result(*estimates):
        stages = np.array([[np.nan, estimate] for estimate in estimates])
        stats = xr.Dataset({"log_marginal_likelihood": (("chain", "stage"), stages)})
        return xr.DataTree.from_dict({"sample_stats": stats})

    assert pst.log_marginal_likelihood(result(-10.1, -9.9)).error < 0.2
    with pytest.warns(UserWarning, match="go from -30.0 to -10.0"):
        pst.log_marginal_likelihood(result(-10.0, -30.0))


@pytest.mark.filterwarnings(TEMPERED)
def test_both_components_of_the_orthogonal_group_get_their_weight():
    with pm.Model() as model:
        Q = pst.StiefelUniform("Q", n=3, p=3)
        pm.Potential("data", 1.0 * pt.dot(Q[:, 0], pt.stack(_cross(Q[:, 1], Q[:, 2]))))
    idata = pm.sample_smc(400, kernel=pst.ManifoldSMC, model=model, **OPTIONS)
    found = pst.log_marginal_likelihood(idata)
    assert abs(found.value - np.log(np.cosh(1))) < 0.1
    proper = np.mean(np.linalg.det(idata["posterior"]["Q"].values) > 0)
    assert abs(proper - np.e / (2 * np.cosh(1))) < 0.05


def _cross(a, b):
    return [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]]


@pytest.mark.filterwarnings(TEMPERED)
def test_processes_give_the_same_draws():
    model = langevin_by_potential()
    few = OPTIONS | {"chains": 2, "kernel": pst.ManifoldSMC, "model": model}
    one, two = (pm.sample_smc(50, **(few | {"cores": cores})) for cores in (1, 2))
    np.testing.assert_array_equal(one["posterior"]["X"].values, two["posterior"]["X"].values)


def test_initval_is_not_taken_for_the_prior():
    with pm.Model() as model:
        pm.Normal("x", 0, 1, initval=5.0)
    kernel = pst.ManifoldSMC(draws=200, model=model, random_seed=1)
    kernel.initialize(None, np.random.default_rng(1))
    assert abs(kernel.tempered_posterior.mean()) < 0.3
    assert kernel.tempered_posterior.std() > 0.7


def test_bad_input():
    with pm.Model() as discrete:
        pst.UnitVector("x", n=3)
        pm.Bernoulli("z", 0.5)
    with pytest.raises(ValueError, match=r"discrete variables \['z'\]"):
        pst.ManifoldSMC(model=discrete)
    with pm.Model() as model:
        x = pst.UnitVector("x", n=3)
    with pytest.raises(ValueError, match="max_moves must be at least 1, got 0"):
        pst.ManifoldSMC(model=model, max_moves=0)
    with model:
        pm.Potential("pull", x[0])
    with pytest.warns(UserWarning, match=r"potentials \['pull'\] are tempered"):
        kernel = pst.ManifoldSMC(draws=10, model=model)
    with pytest.raises(ValueError, match=r"start lacks the variables \['x_sphere__'\]"):
        kernel.initialize({"y": np.zeros((10, 3))}, np.random.default_rng(1))
    with pytest.raises(ValueError, match="mapping of ranks"):
        pst.compare_ranks({})
    with pytest.raises(TypeError, match=r"models\[2\] must be a pymc.Model"):
        pst.compare_ranks({2: "model"})


@pytest.mark.filterwarnings(TEMPERED)
def test_masses_of_a_population_are_its_precisions():
    """A concentrated law has the precisions s_k for columns and (s_1 + s_2) / 2 for pairs."""
    F = np.zeros((6, 2))
    F[0, 0], F[1, 1] = 400.0, 100.0
    with pm.Model() as model:
        X = pst.StiefelUniform("X", n=6, p=2)
        pm.Potential("data", pt.sum(F * X))
    kernel = pst.ManifoldSMC(draws=10, model=model)
    density = kernel._density
    states = pst.draws.matrix_langevin(F, size=4000, rng=np.random.default_rng(1)).swapaxes(1, 2).reshape(4000, -1)
    _, gradients = evaluate(density.address, density.extra, states)
    metric = population_metric(density.layout, states, gradients, kernel._sampler.chain.metric, ["splitting"])
    np.testing.assert_allclose(metric.c, 1 / (np.array([400, 100]) + 6.0), rtol=0.06)
    np.testing.assert_allclose(metric.w[1], 1 / (250 + 2.0), rtol=0.06)
    flipped = states * np.repeat([-1, 1], 6)
    assert correlation(density.layout, states, flipped) == pytest.approx(1)
    assert correlation(density.layout, states, states[::-1]) < 0.05
