"""Row coordinates: the map, its gradient and its Jacobian; learnt where rows differ, and only there."""

import numpy as np
import pytest

from pymc_stiefel import geometry as geo
from pymc_stiefel.engine.adaptation.row_coordinates import GATE, apart, estimate
from pymc_stiefel.engine.blocks import make_layout
from pymc_stiefel.engine.coordinates import LinkedRows, RowCoordinates, forward, inverse, pullback
from pymc_stiefel.engine.integrator import TWO_STAGE
from pymc_stiefel.engine.sampler import Sampler, Settings
from tests import kernels


def random_factor(rng, n, k):
    return np.linalg.qr(rng.standard_normal((n, n)))[0][:k].copy(), np.geomspace(0.2, 9.0, k) - 1.0


@pytest.mark.parametrize("n,p,k", [(6, 2, 6), (7, 1, 3), (12, 4, 5)])
def test_row_coordinates(n, p, k):
    """There and back; the gradient by finite differences along the manifold; the compiled density."""
    rng = np.random.default_rng(n)
    F, A, b, density = kernels.problem(n, p, rng)
    factor, Z = random_factor(rng, n, k), kernels.frames(rng, 1, n, p)[0].T.copy()
    X, V, s = forward(factor, Z)
    R = np.eye(n) + factor[0].T * factor[1] @ factor[0]
    np.testing.assert_allclose(X.T, geo.polar(R @ Z.T), atol=1e-12)
    np.testing.assert_allclose(forward(inverse(factor), X)[0], Z, atol=1e-12)

    def log_density(Z):
        X, _, s = forward(factor, Z)
        return np.sum(F.T * X) + b @ np.einsum("ki,ij,kj->k", X, A, X) - n * np.log(s).sum()

    G = F.T + 2 * b[:, None] * (X @ A)
    gradient = pullback(factor, X, V, s, G)
    for _ in range(3):
        V = geo.tangent_project(Z.T, rng.standard_normal((n, p)))
        ends = [log_density(geo.polar(Z.T + h * V).T) for h in (1e-5, -1e-5)]
        np.testing.assert_allclose((ends[0] - ends[1]) / 2e-5, np.sum(gradient.T * V), rtol=1e-6)
    sampler = Sampler(make_layout([(n, p)], 0), density.address, Settings("splitting"), rng)
    sampler.set_coordinates(RowCoordinates(sampler.layout, {0: factor}))
    linked = LinkedRows(sampler.chain.coordinates)
    sampler.density, sampler.extra = linked.address, linked.inside(density.address, sampler.extra)
    value, compiled = sampler.evaluate(Z.ravel())
    np.testing.assert_allclose(value, log_density(Z), rtol=1e-12)
    np.testing.assert_allclose(compiled, gradient.ravel(), atol=1e-10)


def test_gradients_travel_between_coordinates():
    rng = np.random.default_rng(1)
    layout = make_layout([(5, 2), (7, 3)], 2)
    coordinates = RowCoordinates(layout, {1: random_factor(rng, 7, 4)})
    q = np.concatenate(
        [kernels.frames(rng, 1, 5, 2)[0].T.ravel(), kernels.frames(rng, 1, 7, 3)[0].T.ravel(), [1.0, 2.0]]
    )[None]
    g = rng.standard_normal(q.shape)
    there = coordinates.gradients(q, g, to_x=False)
    back_q, back_g = coordinates.gradients(*there, to_x=True)
    np.testing.assert_allclose(back_q, q, atol=1e-12)
    X, G, back = (part[0, 10:31].reshape(3, 7).T for part in (q, g, back_g))
    np.testing.assert_allclose(geo.tangent_project(X, back), geo.tangent_project(X, G), atol=1e-10)
    np.testing.assert_array_equal(back_g[0, :10], g[0, :10])
    assert np.abs(there[0][0, 10:31] - q[0, 10:31]).max() > 0.1


def test_how_far_coordinates_are_apart():
    rng = np.random.default_rng(4)
    one, two = random_factor(rng, 9, 4), random_factor(rng, 9, 3)
    dense = [np.eye(9) + (U.T * e) @ U for U, e in (one, two)]
    assert apart(None, None) == 1.0
    np.testing.assert_allclose(apart(one, one), 1.0, rtol=1e-10)
    np.testing.assert_allclose(apart(one, None), (9.0 / 0.2) ** 2, rtol=1e-8)
    expected = np.linalg.cond(np.linalg.solve(dense[1], dense[0])) ** 2
    np.testing.assert_allclose([apart(one, two), apart(two, one)], expected, rtol=1e-8)


def test_flips_do_not_delay_rows():
    """A Bingham density accepts every change of sign; its draws teach coordinates all the same, and these stay."""
    density = kernels.row_target(12, np.concatenate([[0.0], np.geomspace(50, 5e4, 11)]))
    settings = Settings("splitting", TWO_STAGE, adapt_rows=True, weigh_flips=True)
    sampler = Sampler(make_layout([(12, 1)], 0), density.address, settings, np.random.default_rng(2))
    sampler.draw(np.eye(12)[0])
    seen = []
    while sampler.chain.draws < 400:
        sampler.draw(None)
        if sampler.chain.draws in (100, 243, 400):
            seen.append(sampler.chain.coordinates)
    assert seen[0].factors
    assert seen[1] is seen[2]
    assert sampler.is_settled


@pytest.mark.parametrize("allowed", [True, False])
def test_rows_are_learnt_where_they_differ(allowed):
    """And draws are of X: second moments of a Bingham law, against importance sampling."""
    n, W = 12, np.concatenate([[0.0, 0.0], np.geomspace(50, 5e4, 10)])
    density, start = kernels.row_target(n, W), np.eye(n)[0]
    draws, stats, sampler = kernels.run_chain(
        density, make_layout([(n, 1)], 0), start, 9000, np.random.default_rng(2), tune=400, drift="splitting",
        stages=TWO_STAGE, adapt_rows=allowed,
    )  # fmt: skip
    assert bool(sampler.chain.coordinates.factors) == allowed
    assert stats["tree_size"].mean() < 10 if allowed else stats["tree_size"].mean() > 20
    if not allowed:
        return
    scaled = draws**2 * np.maximum(W, 1.0)
    rng = np.random.default_rng(0)
    y = rng.standard_normal((400_000, n)) / np.sqrt(np.maximum(W, 1.0))
    x = y / np.linalg.norm(y, axis=1, keepdims=True)
    quadratic = (x**2 * np.maximum(W, 1.0)).sum(1)
    log_weight = -0.5 * (x**2 * W).sum(1) + n / 2 * np.log(quadratic)
    weight = np.exp(log_weight - log_weight.max())
    exact = weight @ (x**2 * np.maximum(W, 1.0)) / weight.sum()
    batches = scaled.reshape(60, 150, n).mean(1)
    z = (scaled.mean(0) - exact) / (batches.std(0, ddof=1) / np.sqrt(60))
    assert np.abs(z).max() < 4.5


def test_without_its_jacobian_the_row_map_gives_the_wrong_law():
    """The control: what the map without |Z'R'RZ|^(-n/2) would sample, a uniform Z, has other moments than X."""
    rng = np.random.default_rng(3)
    factor = random_factor(rng, 6, 6)
    X = forward(factor, kernels.frames(rng, 20_000, 6, 2).swapaxes(1, 2))[0]
    shares = np.einsum("tpn,kn->tpk", X, factor[0])[:, 0] ** 2
    z = (shares.mean(0) - 1 / 6) / (shares.std(0) / np.sqrt(len(shares)))
    assert np.abs(z).max() > 20


def test_gate_stays_shut_where_rows_are_alike():
    rng = np.random.default_rng(4)
    X0 = kernels.frames(rng, 1, 20, 2)[0]
    X = np.array([geo.polar(X0 + 0.1 * rng.standard_normal((20, 2))) for _ in range(60)])
    G = 100.0 * X0 - 0 * X
    B = G - X @ (X.swapaxes(1, 2) @ G)
    _, condition = estimate(X.swapaxes(1, 2), B.swapaxes(1, 2))
    assert condition < GATE
