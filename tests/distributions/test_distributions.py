"""Variables: declaration, densities, draws."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pymc_stiefel as pst
from pymc_stiefel import draws, geometry, normalizers
from pymc_stiefel.distributions import _langevin, stiefel_block
from pymc_stiefel.ops import without_manifold_check
from tests.distributions.laws import (
    DISTRIBUTIONS,
    EYE42,
    NORMALISED,
    SPD,
    SYMMETRIC,
    as_matrices,
    core_shape,
    every,
    log_density,
    make,
    uniform_values,
)

# ---------------------------------------------------------------- shapes, draws, marks


@every
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_batches_of_draws_are_on_the_manifold(kind, batch):
    core = core_shape(kind)
    by_shape, by_size = make(kind, shape=(*batch, *core)), make(kind, size=batch)
    for rv in (by_shape, by_size):
        assert rv.type.shape == (*batch, *core)
        X = rv.eval(mode="FAST_COMPILE")
        assert geometry.orthogonality_error(as_matrices(X, kind)).max() < 1e-12
        block = stiefel_block(rv)
        assert (block.n, block.p, block.batch_shape) == ((*core, 1)[0], (*core, 1)[1], batch)
        assert (block.vector, block.special) == (len(core) == 1, kind == "rotation")
    assert stiefel_block(pm.Normal.dist(size=(4, 2))) is None
    assert stiefel_block(pt.matrix()) is None


def test_batched_parameters_give_each_matrix_its_own():
    F = np.stack([100 * EYE42, -100 * EYE42])
    X = pst.MatrixLangevin.dist(F).eval(mode="FAST_COMPILE")
    assert X[0, 0, 0] > 0.8 and X[1, 0, 0] < -0.8
    kappa = pst.MatrixLangevin.dist(EYE42, np.array([[0.0, 0.0], [500.0, 500.0]]))
    assert kappa.type.shape == (2, 4, 2)
    x = pst.VonMisesFisher.dist(np.eye(3), [10.0, 1e3, 1e6]).eval(mode="FAST_COMPILE")
    assert x.shape == (3, 3) and x[2, 2] > 0.99


def test_draw_in_the_default_backend_follows_the_seed():
    rvs = [make("langevin", size=2), make("von mises-fisher"), make("rotation")]
    first, again, other = (pm.draw(rvs, draws=3, random_seed=seed) for seed in (1, 1, 2))
    for a, b, c in zip(first, again, other, strict=True):
        assert np.array_equal(a, b) and not np.array_equal(a, c)
    assert first[0].shape == (3, 2, 4, 2) and first[1].shape == (3, 4)
    assert np.linalg.det(first[2]) == pytest.approx(np.ones(3))


def test_draws_have_the_mean_that_the_normaliser_says():
    F = DISTRIBUTIONS["langevin"][1]["F"]
    U, s, Vt = np.linalg.svd(F, full_matrices=False)
    expected = (U * normalizers.log_hyp0f1(4, s)[1]) @ Vt
    X = make("langevin", size=4000).eval(mode="FAST_COMPILE")
    z = (X.mean(axis=0) - expected) / (X.std(axis=0) / np.sqrt(len(X)))
    assert np.abs(z).max() < 4.5


# ---------------------------------------------------------------- densities


@pytest.mark.parametrize("kind", sorted(NORMALISED))
def test_density_integrates_to_one(kind):
    X = uniform_values(kind, 20_000, np.random.default_rng(1))
    weight = np.exp(log_density(make(kind, size=len(X)), X))
    error = weight.std() / np.sqrt(len(weight))
    assert abs(weight.mean() - 1) <= 4 * error + 1e-12


def test_density_without_normaliser_does_not_integrate_to_one(monkeypatch):
    """Negative control of the test above."""
    monkeypatch.setattr(_langevin, "log_hyp0f1_matrix", lambda F: pt.zeros(F.shape[:-2]))
    X = uniform_values("langevin", 20_000, np.random.default_rng(1))
    weight = np.exp(log_density(make("langevin", size=len(X)), X))
    assert abs(weight.mean() - 1) > 10 * weight.std() / np.sqrt(len(weight))


def test_densities_against_their_formulas():
    X = uniform_values("uniform", (), np.random.default_rng(2)).reshape(4, 2)
    F = DISTRIBUTIONS["langevin"][1]["F"]
    B = np.diag([2.0, 1.0])
    quadratic = np.trace(B @ X.T @ SYMMETRIC @ X)
    assert log_density(make("uniform"), X) == 0
    assert log_density(make("bingham with B"), X) == pytest.approx(quadratic)
    assert log_density(make("bingham-langevin"), X) == pytest.approx(quadratic + np.trace(EYE42.T @ X))
    macg = -np.linalg.slogdet(SPD)[1] - 2 * np.linalg.slogdet(X.T @ np.linalg.solve(SPD, X))[1]
    assert log_density(make("angular central gaussian"), X) == pytest.approx(macg)
    s = np.linalg.svd(F, compute_uv=False)
    langevin = np.trace(F.T @ X) - normalizers.log_hyp0f1(4, s)[0]
    assert log_density(make("langevin"), X) == pytest.approx(langevin)


def test_both_forms_of_the_langevin_agree():
    X = uniform_values("uniform", 5, np.random.default_rng(3))
    M = geometry.polar(np.random.default_rng(4).standard_normal((4, 2)))
    kappa = np.array([1.0, 6.0])
    one = log_density(pst.MatrixLangevin.dist(M, kappa, size=5), X)
    other = log_density(pst.MatrixLangevin.dist(F=M * kappa, size=5), X)
    np.testing.assert_allclose(one, other, atol=1e-10)
    scalar = log_density(pst.MatrixLangevin.dist(M=M, kappa=2.0, size=5), X)
    np.testing.assert_allclose(scalar, log_density(pst.MatrixLangevin.dist(2 * M, size=5), X), atol=1e-10)


@every
def test_off_the_manifold_the_density_is_minus_infinity(kind):
    rv = make(kind, size=3)
    X = uniform_values(kind, 3, np.random.default_rng(5))
    X[1] *= 1 + 1e-5
    X[2, 0] = np.nan
    assert np.isfinite(log_density(rv, X)).tolist() == [True, False, False]
    assert log_density(rv, X)[1] == -np.inf
    value = rv.type()
    stripped = without_manifold_check(pm.logp(rv, value))
    on_and_off = pytensor.function([value], stripped, mode="FAST_COMPILE")(X)
    assert np.isfinite(on_and_off[1])


def test_reflections_are_no_rotations():
    assert log_density(make("rotation"), np.diag([1.0, 1.0, -1.0])) == -np.inf
    assert log_density(make("rotation"), np.diag([-1.0, 1.0, -1.0])) == 0


@pytest.mark.filterwarnings("ignore:Skipping Check:UserWarning")  # PyTensor's JAX backend leaves out all assertions
@pytest.mark.parametrize("mode", ["FAST_COMPILE", "NUMBA", "JAX"])
def test_gradients_of_value_and_parameters(mode):
    """One joint function of every parameter that may be random, against finite differences; the check is harmless."""
    if mode == "JAX":
        pytest.importorskip("jax")
    theta = pt.vector("theta", dtype="float64", shape=(3,))
    scale, F = pt.exp(theta[0]), theta[1] * np.arange(8.0).reshape(4, 2) / 4 + theta[2] * EYE42
    X = pt.matrix("X", dtype="float64", shape=(4, 2))
    rvs = [
        pst.MatrixLangevin.dist(F),
        pst.MatrixLangevin.dist(EYE42, kappa=pt.stack([scale, 2 * scale])),
        pst.MatrixBingham.dist(SYMMETRIC * scale, p=2),
        pst.MatrixAngularCentralGaussian.dist(SPD + scale * np.eye(4), p=2),
    ]
    x = pst.VonMisesFisher.dist(np.eye(4)[1], kappa=scale)
    total = sum(pm.logp(rv, X) for rv in rvs) + pm.logp(x, X[:, 0])
    f = pytensor.function([X, theta], [total, *pt.grad(total, [X, theta])], mode=mode)
    bare = without_manifold_check(total)
    g = pytensor.function([X, theta], [bare, *pt.grad(bare, [X, theta])], mode="FAST_COMPILE")
    value, point = geometry.polar(np.random.default_rng(6).standard_normal((4, 2))), np.array([0.3, 0.7, -0.5])
    for a, b in zip(f(value, point), g(value, point), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-10)
    if mode != "FAST_COMPILE":
        return
    for k, step in enumerate(1e-6 * np.eye(3)):
        slope = (g(value, point + step)[0] - g(value, point - step)[0]) / 2e-6
        assert g(value, point)[2][k] == pytest.approx(slope, abs=1e-7)
    step = 1e-6 * np.random.default_rng(7).standard_normal((4, 2))
    slope = (g(value + step, point)[0] - g(value - step, point)[0]) / 2
    assert np.sum(g(value, point)[1] * step) == pytest.approx(slope, abs=1e-12)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), scale=st.floats(0, 20))
def test_langevin_density_is_invariant_under_rotations(invariance, seed, scale):
    """f(QXR; QFR) = f(X; F) for orthogonal Q and R, and the mode is the polar factor of F."""
    rng = np.random.default_rng(seed)
    F, X = scale * rng.standard_normal((4, 2)), draws.haar(4, 2, rng=rng)
    Q, R = draws.haar(4, 4, rng=rng), draws.haar(2, 2, rng=rng)
    assert invariance(Q @ X @ R, Q @ F @ R) == pytest.approx(invariance(X, F), rel=1e-8, abs=1e-8)
    assert invariance(geometry.polar(F + 1e-9 * EYE42), F) >= invariance(X, F) - 1e-6


@pytest.fixture(scope="module")
def invariance():
    X, F = pt.matrix("X", dtype="float64"), pt.matrix("F", dtype="float64")
    return pytensor.function([X, F], pm.logp(pst.MatrixLangevin.dist(F), X), mode="FAST_COMPILE")


# ---------------------------------------------------------------- edges


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_von_mises_fisher_at_the_poles(sign, n):
    rv = pst.VonMisesFisher.dist(sign * np.eye(n)[0], 50.0, size=200)
    x = rv.eval(mode="FAST_COMPILE")
    assert (x[:, 0] * sign > 0.5).all()
    assert np.isfinite(log_density(rv, x)).all()


def test_zero_concentration_is_uniform():
    X = uniform_values("uniform", 3, np.random.default_rng(8))
    assert log_density(pst.MatrixLangevin.dist(np.zeros((4, 2)), size=3), X) == pytest.approx(0)
    assert log_density(pst.MatrixLangevin.dist(EYE42, 0.0, size=3), X) == pytest.approx(0)
    assert log_density(pst.VonMisesFisher.dist(np.eye(4)[0], 0.0, size=3), X[:, :, 0]) == pytest.approx(0)
    assert pst.MatrixLangevin.dist(np.zeros((4, 2))).eval(mode="FAST_COMPILE").shape == (4, 2)


@pytest.mark.parametrize("distribution", ["uniform", "langevin", "macg", "bingham"])
@pytest.mark.parametrize(("n", "p"), [(1, 1), (2, 1), (2, 2), (3, 3)])
def test_smallest_and_square_matrices(distribution, n, p):
    rv = {
        "uniform": lambda: pst.StiefelUniform.dist(n, p, size=4000),
        "langevin": lambda: pst.MatrixLangevin.dist(np.eye(n, p), 1.5, size=4000),
        "macg": lambda: pst.MatrixAngularCentralGaussian.dist(np.diag(np.arange(1.0, n + 1)), p, size=4000),
        "bingham": lambda: pst.MatrixBingham.dist(np.diag(np.arange(1.0, n + 1)), p=p, size=4000),
    }[distribution]()
    assert geometry.orthogonality_error(rv.eval(mode="FAST_COMPILE")).max() < 1e-12
    weight = np.exp(log_density(rv, draws.haar(n, p, size=4000, rng=np.random.default_rng(9))))
    assert abs(weight.mean() - 1) <= 4 * weight.std() / np.sqrt(len(weight)) + 1e-10
    if n == p:
        determinants = np.linalg.det(rv.eval(mode="FAST_COMPILE"))
        assert (determinants > 0).any() and (determinants < 0).any()
