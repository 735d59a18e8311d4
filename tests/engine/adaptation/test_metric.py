"""Masses learnt from secants: right for known precisions, also while the chain still moves to the mode."""

import numba
import numpy as np
import pytest
from numba import carray

from pymc_stiefel import geometry as geo
from pymc_stiefel.engine.adaptation.metric import _geometric_mean
from pymc_stiefel.engine.blocks import FLIPPED, make_layout
from pymc_stiefel.engine.integrator import TWO_STAGE
from pymc_stiefel.engine.sampler import Sampler, Settings
from tests import kernels


def test_geometric_mean_is_exact_for_gaussians_from_few_draws():
    rng = np.random.default_rng(0)
    d, count = 6, 200
    L = np.tril(rng.standard_normal((d, d))) * 10.0 ** np.arange(-3, 3)[:, None]
    covariance = L @ L.T
    draws = rng.standard_normal((count, d)) @ L.T
    gradients = -draws @ np.linalg.inv(covariance)
    estimate = _geometric_mean(np.cov(draws.T), np.cov(gradients.T), 1e9)
    scale = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(estimate / np.outer(scale, scale), covariance / np.outer(scale, scale), atol=1e-5)


def secant_sums(X, A, B):
    """The sums of ``add_secant`` in plain NumPy: moves and changes of columns and of pairs."""
    columns, pairs = np.zeros((2, X.shape[2])), np.zeros((2, X.shape[2], X.shape[2]))
    for t in range(len(X) - 1):
        K, D, dB = X[t].T @ X[t + 1], X[t + 1] - X[t], B[t + 1] - B[t]
        if X.shape[1] == X.shape[2]:
            turn = 2.3 * (K - K.T) / 2 @ np.linalg.inv((K + K.T) / 2 + 1.3 * np.eye(len(K)))
        else:
            turn = (K - K.T) / 2
        M = geo.polar(X[t] + X[t + 1])
        columns += [((D - M @ (M.T @ D)) ** 2).sum(0), ((dB - M @ (M.T @ dB)) ** 2).sum(0)]
        pairs += [turn**2, (A[t + 1] - A[t]) ** 2]
    return columns, pairs


@pytest.mark.parametrize("n,p", [(6, 3), (5, 1), (4, 4), (60, 8)])
def test_sums_of_secants(n, p):
    rng = np.random.default_rng(n)
    X = np.array([geo.polar(np.eye(n, p) + 0.1 * rng.standard_normal((n, p))) for _ in range(5)])
    G = rng.standard_normal((5, n, p))
    parts = [geo.split_tangent(x, geo.tangent_project(x, g)) for x, g in zip(X, G, strict=True)]
    layout = make_layout([(n, p)], 0)
    sampler = Sampler(layout, 0, Settings("splitting"), rng)
    sampler.learn_path(*(np.array([x.T.ravel() for x in part]) for part in (X, G)), np.ones(4, bool))
    columns, pairs = secant_sums(X, *(np.array(part) for part in zip(*parts, strict=True)))
    moments = sampler.chain.moments
    assert moments.number.tolist() == [0.0, 4.0]
    if n > p:
        np.testing.assert_allclose([moments.column_move, moments.column_change], columns, rtol=1e-7)
    np.testing.assert_allclose(np.reshape([moments.pair_move, moments.pair_change], (2, p, p)), pairs, atol=1e-12)


def test_secants_across_rejected_draws_add_nothing():
    """A repeated point moves neither draw nor gradient: such secants cannot spoil masses, they are only counted."""
    rng = np.random.default_rng(3)
    X, G = kernels.frames(rng, 4, 6, 2).swapaxes(1, 2).reshape(4, -1), rng.standard_normal((4, 12))
    found = []
    for repeats in (1, 3):
        sampler = Sampler(make_layout([(6, 2)], 0), 0, Settings("splitting"), rng)
        path = (np.repeat(part, repeats, axis=0) for part in (X, G))
        sampler.learn_path(*path, np.ones(4 * repeats - 1, bool))
        found.append(sampler.chain.moments)
    assert [moments.number[1] for moments in found] == [3.0, 11.0]
    for once, thrice in zip(found[0][1:5], found[1][1:5], strict=True):
        assert once.any()
        np.testing.assert_allclose(thrice, once, rtol=1e-10, atol=1e-20)


def sliding_density(steep):
    """A Gaussian about the first unit vectors, of precision ``steep``, seen from far away."""
    F = steep * np.eye(8, 2)
    return kernels.bingham_langevin_density(F, np.zeros((8, 8)), np.zeros(2))


def test_masses_are_right_while_the_chain_still_slides():
    """Mean squares of gradients were wrong by orders of magnitude there, and the chain crept ever after."""
    start, found = kernels.frames(np.random.default_rng(2), 1, 8, 2)[0].T.ravel(), []
    for seed in range(4):
        _, stats, sampler = kernels.run_chain(
            sliding_density(1e6), make_layout([(8, 2)], 0), start, 100, np.random.default_rng(seed), tune=60,
            drift="splitting", stages=TWO_STAGE,
        )  # fmt: skip
        found.append(1 / sampler.chain.metric.c)
        assert np.all(stats["model_logp"] > 2e6 - 60)
    np.testing.assert_allclose(found, 1e6, rtol=0.3)


def test_secants_are_not_taken_across_a_change_of_sign():
    """A vector between two poles: across a reflection it seems to move by 2 with an equal gradient."""

    def target(q, gradient, extra):
        x, g = carray(q, (5,)), carray(gradient, (5,))
        g[:] = 0.0
        g[0] = 200.0 * np.tanh(200.0 * x[0])
        return np.log(2 * np.cosh(200.0 * x[0]))

    density = numba.cfunc(kernels.DENSITY_SIGNATURE)(target)
    _, stats, sampler = kernels.run_chain(
        density, make_layout([(5, 1)], 0, [FLIPPED]), np.eye(5)[0], 50, np.random.default_rng(0), tune=200,
        drift="splitting",
    )  # fmt: skip
    assert stats["reflected"].mean() > 0.9
    np.testing.assert_allclose(1 / sampler.chain.metric.c, 205.0, rtol=0.1)
    # the control: across a reflection the precision comes out as one half instead of 200
    points = np.array([[1.0, 0.0, 0, 0, 0], [-0.995, 0.0999, 0, 0, 0]] * 2)
    sampler.chain.forget()
    sampler.learn_path(points, np.sign(points[:, :1]) * np.eye(5)[:1] * 200.0, np.ones(3, bool))
    ratio = sampler.chain.moments.column_change / sampler.chain.moments.column_move
    assert np.sqrt(ratio[0]) < 1.0


def test_a_chain_that_changes_mode_late_learns_anew():
    """The density becomes a hundred times narrower under the chain, long after masses have settled."""

    def target(q, gradient, extra):
        x, g = carray(q, (13,)), carray(gradient, (13,))
        steep = 1e2 if extra[0] == 0 else 1e6
        g[:] = 0.0
        g[0], g[6] = steep, steep
        total = steep * (x[0] + x[6])
        for k in range(10, 13):
            g[k] = -steep * x[k]
            total -= 0.5 * steep * x[k] ** 2
        return total

    density, held = numba.cfunc(kernels.DENSITY_SIGNATURE)(target), np.zeros(1, dtype=np.int64)
    settings = Settings("automatic", stages=TWO_STAGE)
    sampler = Sampler(make_layout([(5, 2)], 3), density.address, settings, np.random.default_rng(0), held)
    sampler.draw(np.concatenate([np.eye(5, 2).T.ravel(), np.zeros(3)]))
    while sampler.chain.draws < 600:
        sampler.draw(None)
    held[0] = 1
    sampler.draw(None, keep_gradient=False)
    while sampler.chain.draws < 900:
        sampler.draw(None)
    assert sampler.chain.windows.restarts
    np.testing.assert_allclose(1e6 * sampler.chain.metric.c, 1.0, rtol=0.2)
    np.testing.assert_allclose(1e6 * sampler.chain.metric.variance, 1.0, rtol=0.3)
    sampler.chain.tune = False
    sampler.draws(100)
    assert sampler.statistics["mean_tree_accept"].mean() > 0.6
    assert sampler.statistics["tree_size"].mean() < 8


@pytest.mark.parametrize("kind", kernels.DRIFTS)
def test_scales_that_differ_by_many_orders_need_no_help(kind):
    scales = np.array([1e-4, 1.0, 1e4])

    def target(q, gradient, extra):
        x, g = carray(q, (13,)), carray(gradient, (13,))
        g[:] = 0.0
        total = 50.0 * x[0]
        g[0] = 50.0
        for k in range(3):
            g[10 + k] = -x[10 + k] / scales[k] ** 2
            total -= 0.5 * (x[10 + k] / scales[k]) ** 2
        return total

    density = numba.cfunc(kernels.DENSITY_SIGNATURE)(target)
    start = np.concatenate([np.eye(5, 2).T.ravel(), [1.0, 1.0, 1.0]])
    draws, statistics, _ = kernels.run_chain(
        density, make_layout([(5, 2)], 3), start, 1500, np.random.default_rng(1), tune=500, drift=kind
    )
    np.testing.assert_allclose(draws[:, 10:].std(axis=0), scales, rtol=0.2)
    assert statistics["tree_size"].mean() < 30
    assert statistics["diverging"].sum() == 0
