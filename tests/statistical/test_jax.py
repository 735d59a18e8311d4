"""Simulation-based calibration of pst.jax.sample: all replications are one model with a batch dimension."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import scipy.stats

import pymc_stiefel as pst
from tests.statistical.ppca import MODE, N, P, draw_data, draw_prior

pytest.importorskip("jax")
pytest.importorskip("blackjax")
pytestmark = pytest.mark.statistical

REPLICATIONS, ROWS, CHAINS = 40, 12, 39  # 40 ranks, in five bins of eight


def replications():
    rng = np.random.default_rng(11)
    truths = [draw_prior(rng) for _ in range(REPLICATIONS)]
    data = [draw_data(t["U"], t["scale"], t["noise"], ROWS, rng) for t in truths]
    return {key: np.stack([t[key] for t in truths]) for key in truths[0]}, np.stack([y.T @ y for y in data])


def declare(S, normalised):
    """Independent copies of the model of ``ppca``; the mutant has no normaliser of kappa."""
    with pm.Model() as model:
        kappa = pm.Gamma("kappa", 4, 0.5, shape=REPLICATIONS)
        F = MODE * kappa[:, None, None]
        if normalised:
            U = pst.MatrixLangevin("U", F=F)
        else:
            U = pst.StiefelUniform("U", n=N, p=P, size=REPLICATIONS)
            pm.Potential("kernel", pt.sum(F * U))
        scale = pm.LogNormal("scale", 0.5, 0.5, shape=(REPLICATIONS, P))
        noise = pm.LogNormal("noise", -0.5, 0.3, shape=REPLICATIONS)
        explained, rest = scale**2 + noise[:, None] ** 2, noise**2
        along = pt.sum(U * (S @ U), axis=-2)
        quadratic = np.trace(S, axis1=1, axis2=2) / rest
        quadratic += pt.sum(along * (1 / explained - 1 / rest[:, None]), axis=-1)
        log_det = pt.sum(pt.log(explained), axis=-1) + (N - P) * pt.log(rest)
        pm.Potential("likelihood", -0.5 * pt.sum(ROWS * log_det + quadratic))
    return model


def smallest_p_value(algorithm, normalised=True):
    """Of tests that the ranks of the truth among one draw of every chain are uniform."""
    truth, S = replications()
    with declare(S, normalised):
        idata = pst.jax.sample(
            10, tune=150, chains=CHAINS, algorithm=algorithm, random_seed=2, progressbar=False,
            compute_convergence_checks=False,
        )  # fmt: skip
    last = {name: np.asarray(idata["posterior"][name])[:, -1] for name in truth}
    found = []
    for quantity in (
        lambda d: d["kappa"],
        lambda d: (MODE * d["U"]).sum((-2, -1)),
        lambda d: d["noise"],
        lambda d: d["scale"].prod(axis=-1),
        lambda d: np.abs(d["U"][..., 0, 0]),
    ):
        ranks = (quantity(last) < quantity(truth)).sum(axis=0)
        counts = np.histogram(ranks, bins=np.linspace(-0.5, CHAINS + 0.5, 6))[0]
        found.append(scipy.stats.chisquare(counts).pvalue)
    return min(found)


@pytest.mark.parametrize("algorithm", ["chees", "nuts"])
def test_ranks_of_the_truth_are_uniform(algorithm):
    assert smallest_p_value(algorithm) > 0.001


def test_control_missing_normaliser_is_found():
    assert smallest_p_value("chees", normalised=False) < 1e-4
