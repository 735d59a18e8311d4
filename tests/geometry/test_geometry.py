"""Identities of the plain NumPy formulas (rung 1 of the exactness ladder)."""

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

from pymc_stiefel import geometry as geo

SHAPES = [(5, 1), (6, 3), (5, 5), (20, 3), (2, 2), (1, 1)]


def start(n, p, seed=0):
    rng = np.random.default_rng(seed)
    X = geo.polar(rng.standard_normal((n, p)))
    return X, geo.tangent_project(X, rng.standard_normal((n, p))), rng


@pytest.mark.parametrize("n,p", SHAPES)
def test_tangent_vectors(n, p):
    X, r, rng = start(n, p)
    A, B = geo.split_tangent(X, r)
    np.testing.assert_allclose(X @ A + B, r, atol=1e-13)
    np.testing.assert_allclose(A, -A.T, atol=1e-14)
    np.testing.assert_allclose(X.T @ B, 0, atol=1e-14)
    G = rng.standard_normal((n, p))
    projected = geo.tangent_project(X, G)
    np.testing.assert_allclose(geo.tangent_project(X, projected), projected, atol=1e-13)
    # the paper's formula is no projection: it doubles the skew part
    if p > 1:
        paper = G - X @ G.T @ X
        assert np.abs(paper - X @ paper.T @ X - paper).max() > 1e-3


@pytest.mark.parametrize("n,p", SHAPES)
def test_cayley_is_the_dense_form(n, p):
    X, r, _ = start(n, p)
    t = 0.7
    W = geo.angular_momentum(X, r)
    Q = np.linalg.solve(np.eye(n) - t / 2 * W, np.eye(n) + t / 2 * W)
    X_new, r_new = geo.cayley_drift(X, r, t)
    np.testing.assert_allclose(X_new, Q @ X, atol=1e-13)
    np.testing.assert_allclose(r_new, Q @ r, atol=1e-13)


@pytest.mark.parametrize("n,p", SHAPES)
def test_drifts_conserve_angular_momentum_and_energy(n, p):
    X, r, rng = start(n, p)
    c, w = rng.uniform(0.5, 2, p), rng.uniform(0.5, 2, (p, p))
    w = (w + w.T) / 2
    moved = {
        "splitting": (geo.splitting_drift(X, r, 0.8, c, w), None),
        "cayley": (geo.cayley_drift(X, r, 0.8), geo.metric("canonical", p)),
        "geodesic": (geo.geodesic_drift(X, r, 0.8), geo.metric("embedded", p)),
    }
    for (X_new, r_new), masses in moved.values():
        np.testing.assert_allclose(geo.angular_momentum(X_new, r_new), geo.angular_momentum(X, r), atol=1e-12)
        if masses is not None:
            assert geo.kinetic_energy(X_new, r_new, *masses) == pytest.approx(geo.kinetic_energy(X, r, *masses))


@pytest.mark.parametrize("n,p", [(6, 3), (5, 5), (20, 3)])
def test_splitting_is_the_canonical_geodesic_to_second_order(n, p):
    """A symmetric composition: the error of one step falls by 2^3, and by much less if an order is wrong."""
    X, r, _ = start(n, p)
    masses = geo.metric("canonical", p)

    def error(t):
        exact, _ = canonical_geodesic(X, r, t)
        return np.abs(geo.splitting_drift(X, r, t, *masses)[0] - exact).max()

    assert 6.5 < error(0.02) / error(0.01) < 9.5


def canonical_geodesic(X, r, t):
    p = X.shape[1]
    A, S = X.T @ r, r.T @ r
    moved = np.hstack([X, r]) @ scipy.linalg.expm(t * np.block([[A, -S], [np.eye(p), A]]))
    return moved[:, :p], moved[:, p:]


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 6), st.integers(0, 4), st.integers(0, 10_000))
def test_polar_is_the_nearest_orthonormal_matrix(p, extra, seed):
    rng = np.random.default_rng(seed)
    Z = rng.standard_normal((p + extra, p))
    X = geo.polar(Z)
    assert geo.orthogonality_error(X) < 1e-13
    other = geo.polar(X + 0.1 * rng.standard_normal(X.shape))
    assert np.linalg.norm(Z - X) <= np.linalg.norm(Z - other) + 1e-12


@pytest.mark.parametrize("singular", [(1.0, 1.0, 1.0), (1.0, 1.0 + 1e-9, 2.0), (0.5, 1.5, 4.0)])
@pytest.mark.parametrize("name,n", [("polar", 3), ("polar", 5), ("rotation", 3)])
def test_pullbacks_against_differences(name, n, singular):
    function, pullback = getattr(geo, name), getattr(geo, f"{name}_pullback")
    rng = np.random.default_rng(1)
    Z = geo.polar(rng.standard_normal((n, 3))) * np.array(singular) @ geo.polar(rng.standard_normal((3, 3)))
    G, direction = rng.standard_normal((n, 3)), rng.standard_normal((n, 3))
    h = 1e-6
    difference = np.sum(G * (function(Z + h * direction) - function(Z - h * direction))) / (2 * h)
    assert np.sum(pullback(Z, G) * direction) == pytest.approx(difference, rel=1e-6, abs=1e-8)


def test_rotation_is_continuous_where_polar_jumps():
    Z = np.diag([2.0, 1.0, 1e-9])
    flipped = np.diag([2.0, 1.0, -1e-9])
    assert np.abs(geo.rotation(Z) - geo.rotation(flipped)).max() < 1e-8
    assert np.abs(geo.polar(Z) - geo.polar(flipped)).max() > 1.9


def test_momentum_draw_in_plain_numpy():
    X, _, rng = start(6, 3)
    c, w = np.array([0.5, 1.0, 3.0]), np.full((3, 3), 1.7)
    energies = [geo.kinetic_energy(X, geo.draw_momentum(X, c, w, rng), c, w) for _ in range(4000)]
    d = geo.manifold_dimension(6, 3)
    assert abs(2 * np.mean(energies) - d) < 4 * np.sqrt(2 * d / 4000)


def test_metric_names_are_checked():
    with pytest.raises(ValueError, match="canonical"):
        geo.metric("euclidean", 3)
