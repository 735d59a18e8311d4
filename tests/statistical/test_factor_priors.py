"""Sampling a prior built of low-rank and positive-definite blocks gives the law of the direct draws."""

import arviz as az
import numpy as np
import pymc as pm
import pytest
from scipy import stats

import pymc_stiefel as pst

pytestmark = pytest.mark.statistical


@pytest.fixture(scope="module")
def direct():
    """Singular values and eigenvalues from matrices, without any of the package's code."""
    rng = np.random.default_rng(0)
    tau = np.exp(0.3 * rng.normal(size=(100_000, 1)))
    return {
        "W_s": tau * np.linalg.svd(rng.normal(size=(100_000, 7, 2)), compute_uv=False),
        "Y_s": tau * np.sort(np.abs(rng.normal(size=(100_000, 2))))[:, ::-1],
        "S_l": np.linalg.eigvalsh(stats.invwishart(8, np.eye(3)).rvs(100_000, random_state=1))[:, ::-1],
    }


@pytest.mark.parametrize("step", ["NUTS", "StiefelNUTS"])
@pytest.mark.filterwarnings("ignore")
def test_sampled_prior_is_the_direct_one(step, direct):
    with pm.Model():
        tau = pm.LogNormal("tau", 0, 0.3)
        pst.low_rank("W", (5, 4), 2, sigma=tau)
        pst.low_rank("Y", (3, 3), 2, singular_values=pm.HalfNormal.dist(tau))
        pst.eigen_spd("S", 3, eigenvalues="inverse_wishart", nu=8)
        method = pm.NUTS(target_accept=0.9) if step == "NUTS" else pst.StiefelNUTS(target_accept=0.9)
        idata = pm.sample(1000, tune=1000, chains=2, cores=1, step=method, random_seed=1, progressbar=False)
    scores = []
    for name, reference in direct.items():
        draws = np.log(idata["posterior"][name].to_dataset(name=name))
        mcse = az.mcse(draws, method="mean")[name].values
        scores.append((draws[name].values.mean(axis=(0, 1)) - np.log(reference).mean(axis=0)) / mcse)
    scores = np.concatenate(scores)
    assert len(scores) == 7 and np.abs(scores).max() < 4, scores
