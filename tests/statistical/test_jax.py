"""Rungs 4, 5, 7 and 8 for pst.jax.sample. Its models are large, since every model compiles for seconds: all targets of
one shape are variables of one model, and all replications of simulation-based calibration are a batch of another."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import scipy.stats

import pymc_stiefel as pst
from tests.statistical import ppca
from tests.statistical.ladder import z_scores
from tests.statistical.ppca import MODE, N, P, draw_data, draw_prior
from tests.statistical.targets import ANGULAR, HEADER, QUADRATIC, SHAPES, targets

pytest.importorskip("jax")
pytest.importorskip("blackjax")
pytestmark = pytest.mark.statistical

QUIET = {"progressbar": False, "compute_convergence_checks": False}
REPLICATIONS, ROWS, CHAINS = 40, 12, 39  # 40 ranks, in five bins of eight


# ---------------------------------------------------------------- known expectations


def log_density(target, X):
    """The target's density as PyTensor has it, from the numbers that the engine's compiled density reads."""
    n, p = target.n, target.p
    kind, data = target.extra[0], target.extra[HEADER:].view(float)
    if kind == QUADRATIC:
        F, A, b = data[: n * p].reshape(p, n).T, data[n * p : n * p + n * n].reshape(n, n), data[n * p + n * n :]
        return pt.sum(F * X) + pt.sum(X * (A @ X) * b)
    if kind == ANGULAR:
        return -0.5 * n * pt.log(pt.linalg.det(X.T @ data.reshape(n, n) @ X))
    F1, F2 = data[: 2 * n * p].reshape(2, p, n).swapaxes(1, 2)
    return pm.math.logaddexp(np.log(data[-2]) + pt.sum(F1 * X), np.log(data[-1]) + pt.sum(F2 * X))


def expectation_scores(algorithm, n, p, draws):
    """Scores of every target on St(n, p), by the means of 50 chains."""
    with pm.Model():
        for k, target in enumerate(targets(n, p)):
            X = pst.StiefelUniform(f"X{k}", n=n, p=p)
            pm.Potential(f"target{k}", log_density(target, X))
        idata = pst.jax.sample(draws, tune=300, chains=50, algorithm=algorithm, random_seed=n + p, **QUIET)
    for k, target in enumerate(targets(n, p)):
        values = target.statistics(np.asarray(idata["posterior"][f"X{k}"]).reshape(-1, n, p))
        yield target, z_scores(values, target.reference, target.error, batches=50)


@pytest.mark.parametrize("algorithm", ["chees", "nuts"])
@pytest.mark.parametrize(("n", "p"), SHAPES)
def test_known_expectations(n, p, algorithm, book, full):
    if not full and (n, p) not in ((3, 3), (7, 3)):
        pytest.skip("in the full ladder")
    for target, scores in expectation_scores(algorithm, n, p, 400 if full else 200):
        rung = 4 if target.name == "uniform" else 5
        book.check(rung, f"pst.jax.sample, {algorithm}", target.name, scores, f"on St({n}, {p})")


# ---------------------------------------------------------------- simulation-based calibration


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
        idata = pst.jax.sample(10, tune=150, chains=CHAINS, algorithm=algorithm, random_seed=2, **QUIET)
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


# ---------------------------------------------------------------- the posterior of the compiled engine


@pytest.mark.parametrize("algorithm", ["chees", "nuts"])
def test_same_posterior_as_the_compiled_engine(algorithm, book, full):
    rng = np.random.default_rng(14)
    truth = draw_prior(rng)
    y = draw_data(truth["U"], truth["scale"], truth["noise"], 40, rng)
    draws, means, errors = 1000 if full else 400, [], []
    start = {"initvals": {name: truth[name] for name in ("U", "scale")}}  # there is a mode with components exchanged
    with pm.Model():
        ppca.declare(y.T @ y, 40)
        runs = (
            pm.sample(10 * draws, chains=4, cores=1, random_seed=15, **start, **QUIET),
            pst.jax.sample(draws, tune=300, chains=50, algorithm=algorithm, random_seed=15, **start, **QUIET),
        )
    for idata in runs:
        parts = [np.asarray(idata["posterior"][name]) for name in ("U", "kappa", "scale", "noise")]
        U, scale = parts[0], parts[2]
        # other signs and exchanged components have small weights, and chains that stay there would hide an error
        here = (U[..., 0, 0] > 0) & (U[..., 1, 1] > 0) & (scale[..., 0] > scale[..., 1])
        assert here.mean() > 0.99
        values = ppca.statistics(*(part.reshape(-1, *part.shape[2:]) for part in parts))
        values[~here.ravel()] = np.nan
        batches = np.nanmean(values.reshape(40, -1, values.shape[1]), axis=1)
        means.append(batches.mean(axis=0))
        errors.append(batches.std(axis=0, ddof=1) / np.sqrt(40))
    z = (means[0] - means[1]) / np.hypot(*errors)
    book.check(8, f"pst.jax.sample, {algorithm}, against StiefelNUTS", "posterior of PPCA", z)
