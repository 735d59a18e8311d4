"""The parts of pst.jax.sample: drifts, integrator, moments, masses and sign flips against NumPy."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import scipy.stats
from pymc.distributions.transforms import Chain, log, ordered

jax = pytest.importorskip("jax")
pytest.importorskip("blackjax")
import jax.numpy as jnp  # noqa: E402

import pymc_stiefel as pst  # noqa: E402
from pymc_stiefel import geometry  # noqa: E402
from pymc_stiefel.jax import _adaptation, _algorithms, _integrator, _manifolds  # noqa: E402
from pymc_stiefel.jax._density import JaxDensity  # noqa: E402
from pymc_stiefel.jax._manifolds import Masses, Position  # noqa: E402

pytestmark = pytest.mark.usefixtures("double_precision")
RNG = np.random.default_rng(3)


def tangent(n, p):
    X = geometry.polar(RNG.normal(size=(n, p)))
    return X, geometry.tangent_project(X, RNG.normal(size=(n, p)))


@pytest.mark.parametrize("drift", ["cayley", "geodesic", "splitting"])
@pytest.mark.parametrize(("n", "p"), [(5, 2), (4, 4), (3, 1)])
def test_drifts_agree_with_the_formulas(drift, n, p):
    X, r = tangent(n, p)
    c = np.full(p, 0.7) if drift != "splitting" else RNG.uniform(0.5, 2, p)
    w = {"cayley": 1.4, "geodesic": 0.7}.get(drift, 1.1) * np.ones((p, p))
    A, B = _manifolds.split(jnp.asarray(X), jnp.asarray(r))
    X1, A1, B1 = _manifolds.DRIFTS[drift](jnp.asarray(X), A, B, 0.3, jnp.asarray(c), jnp.asarray(w))
    expected = {
        "cayley": lambda: geometry.cayley_drift(X, r, 0.3 * 0.7),
        "geodesic": lambda: geometry.geodesic_drift(X, r, 0.3 * 0.7),
        "splitting": lambda: geometry.splitting_drift(X, r, 0.3, c, w),
    }[drift]()
    if drift == "splitting" and p > 2:  # pairs in another order: the same to third order in t
        np.testing.assert_allclose(X1, expected[0], atol=0.02)
        back = _manifolds.splitting(X1, A1, B1, -0.3, jnp.asarray(c), jnp.asarray(w))
        np.testing.assert_allclose(back[0], X, atol=1e-13)
        np.testing.assert_allclose(X1.T @ X1, np.eye(p), atol=1e-13)
    else:
        np.testing.assert_allclose(X1, expected[0], atol=1e-12)
        np.testing.assert_allclose(X1 @ A1 + B1, expected[1], atol=1e-12)


@pytest.mark.parametrize("stages", [1, 2])
def test_the_integrator_is_reversible_and_of_second_order(stages):
    X, r = tangent(5, 2)
    masses = Masses((jnp.array([0.5, 1.5]),), (jnp.full((2, 2), 0.8),), jnp.array([[0.5, 0.0], [0.2, 0.3]]))
    F = jnp.asarray(RNG.normal(size=(5, 2)))

    def density(position):
        return jnp.sum(F * position.X[0]) - jnp.sum(position.z**2) + position.z[0] * position.X[0][0, 0]

    energy = _integrator.KineticEnergy(masses)
    step = jax.jit(_integrator.stiefel_integrator(density, "splitting", stages)(None, energy))
    position = Position((jnp.asarray(X),), jnp.array([0.3, -0.2]))
    momentum = Position((jnp.asarray(r),), jnp.array([1.0, 0.5]))
    start = _integrator.IntegratorState(position, momentum, *jax.value_and_grad(density)(position))

    def travel(state, eps, count):
        for _ in range(count):
            state = step(state, eps)
        return state

    end = travel(start, 0.1, 5)
    back = travel(end._replace(momentum=jax.tree.map(jnp.negative, end.momentum)), 0.1, 5)
    for one, other in zip(jax.tree.leaves(back.position), jax.tree.leaves(position), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12)
    total = float(energy(momentum) - start.logdensity)
    ends = (travel(start, 0.2, 5), travel(start, 0.1, 10))
    errors = [abs(float(energy(end.momentum) - end.logdensity) - total) for end in ends]
    assert 2.5 < errors[0] / errors[1] < 6


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_normal_numbers(dtype):
    z = np.asarray(_integrator.gaussian(jax.random.key(1), (60_000, 5, 3), np.dtype(dtype)))
    assert z.dtype == dtype and np.isfinite(z).all()
    assert abs((z.astype(float) ** 2).mean() - 1) < 4.5 * np.sqrt(2 / z.size)
    first, second = z.ravel()[: z.size // 2], z.ravel()[z.size // 2 :]  # made from the same radius and angle
    for part in (first, second, (first + second) / np.sqrt(2), (first - second) / np.sqrt(2)):
        assert scipy.stats.kstest(part.astype(float), "norm").pvalue > 0.001
    assert abs(np.corrcoef(first**2, second**2)[0, 1]) < 4.5 / np.sqrt(first.size)
    assert _integrator.gaussian(jax.random.key(1), (3,), np.dtype(dtype)).shape == (3,)  # an odd number
    assert _integrator.gaussian(jax.random.key(1), (4, 0), np.dtype(dtype)).shape == (4, 0)


def test_pooled_moments_are_those_of_all_draws():
    chains, draws, d = 6, 4, 3
    X = np.stack([[tangent(5, 2)[0] for _ in range(chains)] for _ in range(draws)])
    G, z, g = (RNG.normal(size=(draws, chains, *shape)) for shape in ((5, 2), (d,), (d,)))
    example = Position((jnp.asarray(X[0, 0]),), jnp.asarray(z[0, 0]))
    moments = _adaptation.no_moments(example)
    for k in range(draws):
        position, gradient = Position((X[k],), jnp.asarray(z[k])), Position((G[k],), jnp.asarray(g[k]))
        moments = _adaptation.add_draws(moments, position, gradient)
    flat = z.reshape(-1, d)
    np.testing.assert_allclose(moments.square[0] / (len(flat) - 1), np.cov(flat.T), rtol=1e-10)
    np.testing.assert_allclose(moments.square[1] / (len(flat) - 1), np.cov(g.reshape(-1, d).T), rtol=1e-10)
    pairs = zip(X.reshape(-1, 5, 2), G.reshape(-1, 5, 2), strict=True)
    parts = [geometry.split_tangent(x, geometry.tangent_project(x, y)) for x, y in pairs]
    np.testing.assert_allclose(moments.column[0], sum((B**2).sum(0) for _, B in parts) / 3, rtol=1e-10)
    np.testing.assert_allclose(moments.pair[0], sum(2 * A**2 for A, _ in parts), rtol=1e-10)


def test_the_mass_matrix_of_a_gaussian_is_its_covariance():
    covariance = np.array([[4.0, 1.0], [1.0, 0.5]])
    L = _adaptation._root(jnp.asarray(covariance), jnp.asarray(np.linalg.inv(covariance)), jnp.asarray(1e9))
    np.testing.assert_allclose(L @ L.T, covariance, rtol=1e-4)
    with_nan = _adaptation.add_draws(
        _adaptation.no_moments(Position((), jnp.zeros(2))),
        Position((), jnp.array([[1.0, 2.0], [3.0, 4.0]])),
        Position((), jnp.array([[np.nan, 0.0], [1.0, 1.0]])),
    )
    assert float(with_nan.count) == 1


def test_the_density_is_that_of_the_engine():
    with pm.Model() as model:
        U = pst.StiefelUniform("U", n=5, p=2)
        scale = pm.HalfNormal("scale", 2, shape=2, default_transform=Chain([log, ordered]), initval=[1.0, 2.0])
        pm.Potential("tilt", pt.sum(U * scale))
        pm.Normal("y", U[0, 0], 1.0, observed=0.3)
    point = model.initial_point()
    density = JaxDensity(model, point)
    from pymc_stiefel.compile._density import ModelDensity

    engine = ModelDensity(model, model.value_vars, point, widths=True)
    value, gradient = jax.value_and_grad(density)(jax.tree.map(lambda x: x[0], density.pack([point])))
    expected, flat = engine(engine.on_manifold(engine.pack(point)))
    assert float(value) == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(gradient.X[0].T.ravel(), flat[:10], atol=1e-12)
    np.testing.assert_allclose(gradient.z, flat[10:], atol=1e-12)


def test_flips_are_accepted_by_the_ratio_of_densities():
    flips = []
    density = lambda position: 2.0 * jnp.sum(position.X[0])  # noqa: E731 (O(1): P(+1) = 1 / (1 + exp(-4)))
    state = _algorithms.hmc.init(Position((jnp.ones((1, 1)),), jnp.zeros(0)), density)
    step = jax.jit(lambda key, state: _algorithms.reflect(key, state, density, [0]))
    for key in jax.random.split(jax.random.key(1), 4000):
        state = step(key, state)
        flips.append(float(state.position.X[0][0, 0]))
    assert np.mean(np.array(flips) > 0) == pytest.approx(1 / (1 + np.exp(-4)), abs=0.012)


def test_one_column_of_one_matrix_is_flipped():
    rng = np.random.default_rng(1)
    first, second, third = (pst.draws.haar(4, 2, size=size, rng=rng) for size in ((), 3, ()))
    position = Position(tuple(map(jnp.asarray, (first, second, third))), jnp.zeros(0))
    state = _algorithms.hmc.init(position, lambda position: 0.0 * jnp.sum(position.X[0]))
    seen = set()
    for key in jax.random.split(jax.random.key(1), 200):
        new, taken = _algorithms.flip(key, state, lambda position: 0.0 * jnp.sum(position.X[0]), [0, 1])
        assert taken
        ratios = [np.asarray(a / b) for a, b in zip(new.position.X, position.X, strict=True)]
        changed = [(i, *place[:-2], place[-1]) for i, r in enumerate(ratios) for place in np.argwhere(r < 0)]
        assert len(changed) == 4 and len(set(changed)) == 1 and all(np.abs(np.abs(r) - 1).max() == 0 for r in ratios)
        seen.add(changed[0])
    assert seen == {(0, 0), (0, 1), *((1, batch, column) for batch in range(3) for column in range(2))}
