"""Stochastic-gradient sampling by the engine: momentum law and bias of the kernels."""

import numpy as np
import pytest

import pymc_stiefel as pst
from pymc_stiefel.engine.blocks import make_layout
from pymc_stiefel.engine.stochastic import StochasticSampler, StochasticSettings, scaled_metric
from pymc_stiefel.normalizers import log_hyp0f1
from tests.kernels import bingham_langevin_density


def langevin(n, sizes):
    """C function of etr(F'X) with singular values ``sizes``, and the exact mean of the diagonal of X."""
    p = len(sizes)
    F = np.zeros((n, p))
    F[np.arange(p), np.arange(p)] = sizes
    density = bingham_langevin_density(F, np.zeros((n, n)), np.zeros(p))
    return density, log_hyp0f1(n, np.array(sizes, dtype=float))[1]


def diagonal_means(density, n, p, draws, seed, metric=None, **settings):
    """Mean of the diagonal of X with its standard error (from 25 batches), and the sampler."""
    layout = make_layout([(n, p)], 0)
    metric = scaled_metric(layout, np.ones(1), np.zeros(0)) if metric is None else metric
    sampler = StochasticSampler(
        layout, density.address, StochasticSettings(**settings), metric, np.random.default_rng(seed)
    )
    sampler.chain.tune = False
    q, out = np.eye(n, p).T.ravel(), np.empty((draws, p))
    for k in range(-100, draws):
        q = sampler.draw(q)
        if k >= 0:
            out[k] = q.reshape(p, n).diagonal()
    batches = out.reshape(25, -1, p).mean(axis=1)
    return batches.mean(axis=0), batches.std(axis=0) / 5, sampler


@pytest.mark.parametrize("n,sizes", [(5, (8.0, 4.0)), (4, (10.0,)), (3, (6.0, 4.0, 2.0))])
def test_symmetric_scheme_has_the_exact_moments(n, sizes):
    density, exact = langevin(n, sizes)
    mean, error, sampler = diagonal_means(
        density, n, len(sizes), 20_000, seed=1, step_size=0.2, friction=0.1, n_steps=5
    )
    if n == len(sizes):  # one component of O(n): compare with exact draws of the same determinant
        X = pst.draws.matrix_langevin(np.diag(sizes), size=40_000, rng=np.random.default_rng(2))
        kept = np.diagonal(X[np.linalg.det(X) > 0], axis1=1, axis2=2)
        exact, error = kept.mean(axis=0), np.hypot(error, kept.std(axis=0) / np.sqrt(len(kept)))
    assert np.all(np.abs(mean - exact) < 4 * error + 5e-4)
    temperature, spread = sampler.temperature
    # lower by eps^2 times curvature / (4 n), which is at most 0.03 here
    assert -4 * spread < 1 - temperature < 0.03 + 4 * spread and spread < 0.01


def test_bias_orders():
    """The bias of the paper's scheme is of second order; that of the symmetric scheme is far smaller."""
    density, exact = langevin(5, (8.0, 4.0))
    bias = {}
    for scheme, eps in [("euler", 0.8), ("euler", 0.4), ("symmetric", 0.8)]:
        mean, error, _ = diagonal_means(
            density, 5, 2, 25_000, seed=3, step_size=eps, friction=0.4 * eps, n_steps=3, scheme=scheme
        )
        bias[scheme, eps] = (mean - exact)[0], error[0]
    assert bias["euler", 0.8][0] < -10 * bias["euler", 0.8][1]
    ratio = bias["euler", 0.8][0] / bias["euler", 0.4][0]
    assert 2.5 < ratio < 8
    assert abs(bias["symmetric", 0.8][0]) < abs(bias["euler", 0.8][0]) / 8


@pytest.mark.parametrize("friction", [0.05, 0.5])
def test_friction_does_not_bias_the_schemes(friction):
    """The paper's scheme is a splitting in disguise: its momentum is too large, its draws are not."""
    density, exact = langevin(5, (8.0, 4.0))
    for scheme in ("symmetric", "euler"):
        mean, error, sampler = diagonal_means(
            density, 5, 2, 15_000, seed=8, step_size=0.15, friction=friction, n_steps=8, scheme=scheme
        )
        assert np.all(np.abs(mean - exact) < 4 * error + 3e-3)
        assert abs(sampler.temperature[0] - 1) < 0.03


def test_noise_of_another_law_is_caught():
    """The control: a projected Gaussian, which gives the skew part twice the variance it should have."""
    density, exact = langevin(4, (4.0, 3.0, 2.0))
    layout = make_layout([(4, 3)], 0)
    right = scaled_metric(layout, np.ones(1), np.zeros(0))
    settings = {"step_size": 0.2, "friction": 0.3, "n_steps": 5}
    mean, error, _ = diagonal_means(density, 4, 3, 20_000, seed=4, **settings)
    assert np.all(np.abs(mean - exact) < 4 * error)
    wrong = right._replace(w=right.w / 2)  # the Cayley drift looks at c only
    mean, error, _ = diagonal_means(density, 4, 3, 20_000, seed=4, metric=wrong, **settings)
    assert np.abs((mean - exact) / error).max() > 10


def test_rounding_stays_small_over_many_steps():
    density, _ = langevin(20, (200.0, 100.0, 50.0))
    _, _, sampler = diagonal_means(density, 20, 3, 2_000, seed=5, step_size=0.1, friction=0.01, n_steps=10)
    assert sampler.chain.orthogonality_error < 1e-12
    assert pst.geometry.orthogonality_error(sampler.chain.state.q.reshape(3, 20).T) < 1e-12
    normal = sampler.chain.state.b.reshape(3, 20) @ sampler.chain.state.q.reshape(3, 20).T
    assert np.abs(normal).max() < 1e-10


def test_large_matrices_have_the_right_moments():
    """St(40, 30), where the drift is that of large matrices; the reference is a saddlepoint approximation."""
    n, p = 40, 30
    density, expected = langevin(n, np.linspace(10.0, 30.0, p))
    mean, error, sampler = diagonal_means(density, n, p, 1_000, seed=6, step_size=0.5, friction=0.2, n_steps=6)
    assert np.all(np.abs(mean - expected) < 4 * error + 0.01)
    assert abs(mean.mean() - expected.mean()) < 0.01
    assert abs(sampler.temperature[0] - 1) < 0.05
