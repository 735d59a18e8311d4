"""Transforms: derivatives where PyTensor's own fail, charts with the right Jacobian, values that stay put."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import gammaln

import pymc_stiefel as pst
from pymc_stiefel import geometry, ops
from pymc_stiefel.distributions import transforms

MODES = ["CVM", "NUMBA", "JAX"]
SPECTRA = {
    "orthonormal": lambda p: np.ones(p),
    "equal": lambda p: np.full(p, 2.5),
    "nearly equal": lambda p: 1.5 + 1e-9 * np.arange(p),
    "spread": lambda p: np.geomspace(0.1, 10, p),
}


@pytest.fixture(scope="module", params=MODES)
def factor(request):
    """Functions (Z, G) -> (value, gradient) of <G, polar(Z)> and <G, rotation(Z)>, compiled once for each backend."""
    if request.param == "JAX":
        pytest.importorskip("jax")
    Z, G = pt.matrix("Z", dtype="float64"), pt.matrix("G", dtype="float64")
    found = {}
    for special, function in ((False, ops.polar), (True, ops.rotation)):
        X = function(Z)
        found[special] = pytensor.function([Z, G], [X, pt.grad((X * G).sum(), Z)], mode=request.param)
    return found


def test_factors_of_a_batch():
    """Any strides, orthonormal matrices and NaN among the others, no matrix at all."""
    Z = pt.tensor4("Z", dtype="float64")
    factors = pytensor.function([Z], [ops.polar(Z), ops.rotation(Z)], mode="NUMBA")
    batch = np.random.default_rng(1).normal(size=(3, 3, 2, 4))
    batch[..., 0, 1] = geometry.polar(batch[..., 0, 1])
    batch[..., 1, 2] = np.nan
    batch = batch.transpose(3, 2, 0, 1)
    for found, special in zip(factors(batch), (False, True), strict=True):
        for place in np.ndindex(4, 2):
            np.testing.assert_allclose(found[place], ops._polar.polar_numpy(batch[place], special), atol=1e-13)
    assert [found.shape for found in factors(batch[:0])] == [(0, 2, 3, 3)] * 2


def matrix_with(spectrum, n, p, rng):
    U = np.linalg.qr(rng.standard_normal((n, p)))[0]
    V = np.linalg.qr(rng.standard_normal((p, p)))[0]
    return (U * SPECTRA[spectrum](p)) @ V.T


def central_differences(function, Z, step=1e-5):
    gradient = np.empty_like(Z)
    for index in np.ndindex(*Z.shape):
        up, down = Z.copy(), Z.copy()
        up[index] += step
        down[index] -= step
        gradient[index] = (function(up) - function(down)) / (2 * step)
    return gradient


@pytest.mark.parametrize("shape", [(5, 1), (5, 2), (4, 3), (3, 3), (1, 1)])
@pytest.mark.parametrize("spectrum", SPECTRA)
def test_polar_gradient_against_finite_differences(factor, spectrum, shape):
    rng = np.random.default_rng(1)
    Z, G = matrix_with(spectrum, *shape, rng), rng.standard_normal(shape)
    value, gradient = factor[False](Z, G)
    np.testing.assert_allclose(value, geometry.polar(Z), atol=1e-12)
    expected = central_differences(lambda Z: np.sum(G * geometry.polar(Z)), Z, step=1e-5 * SPECTRA[spectrum](2).min())
    np.testing.assert_allclose(gradient, expected, atol=1e-6 * max(1, np.abs(expected).max()))


@pytest.mark.parametrize("shape", [(4, 2), (3, 3)])
def test_polar_gradient_at_the_identity(factor, shape):
    Z, G = np.eye(*shape), np.random.default_rng(2).standard_normal(shape)
    value, gradient = factor[False](Z, G)
    assert np.array_equal(value, Z)
    np.testing.assert_allclose(gradient, geometry.tangent_project(Z, G), atol=1e-12)


@pytest.mark.parametrize("sign", [1, -1])
def test_rotation_gradient_on_both_sides_of_zero_determinant(factor, sign):
    rng = np.random.default_rng(3)
    Z, G = matrix_with("spread", 3, 3, rng), rng.standard_normal((3, 3))
    Z[:, 0] *= sign * np.sign(np.linalg.det(Z))
    value, gradient = factor[True](Z, G)
    assert np.linalg.det(value) == pytest.approx(1)
    np.testing.assert_allclose(value, geometry.rotation(Z), atol=1e-12)
    expected = central_differences(lambda Z: np.sum(G * geometry.rotation(Z)), Z, step=1e-6)
    np.testing.assert_allclose(gradient, expected, atol=1e-6 * max(1, np.abs(expected).max()))


def test_non_finite_values_give_nan_and_no_error(factor):
    Z = np.eye(3, 2)
    Z[0, 0] = np.inf
    value, gradient = factor[False](Z, np.ones((3, 2)))
    assert np.isnan(value).any() and np.isnan(gradient).any()


def test_pytensors_own_svd_gradient_is_wrong_here():
    """The reason for our own derivative, and the proof that the tests above can fail."""
    Z, G = pt.matrix("Z", dtype="float64"), np.random.default_rng(2).standard_normal((4, 2))
    U, _, Vt = pt.linalg.svd(Z, full_matrices=False)
    gradient = pt.grad(((U @ Vt) * G).sum(), Z).eval({Z: np.eye(4, 2)}, mode="FAST_COMPILE")
    with np.errstate(invalid="ignore"):
        assert not np.allclose(gradient, geometry.tangent_project(np.eye(4, 2), G), atol=1e-3)


@pytest.mark.parametrize("mode", ["CVM", "NUMBA"])
def test_single_precision(mode):
    Z = pt.matrix("Z", dtype="float32")
    X = ops.polar(Z)
    f = pytensor.function([Z], [X, pt.grad(X.sum(), Z)], mode=mode)
    z = np.random.default_rng(4).standard_normal((4, 2)).astype("float32")
    value, gradient = f(z)
    assert value.dtype == gradient.dtype == np.float32
    np.testing.assert_allclose(value, geometry.polar(z.astype(float)), atol=1e-6)


def test_jax_differentiates_the_polar_factor_itself():
    jax = pytest.importorskip("jax")
    from pytensor.link.jax.dispatch import jax_funcify

    G = np.random.default_rng(5).standard_normal((2, 4, 2))
    node = ops.polar(pt.tensor3("Z", dtype="float64")).owner
    function = jax_funcify(node.op, node=node)
    gradient = jax.grad(lambda Z: (function(Z) * G).sum())(np.stack([np.eye(4, 2), 3 * np.eye(4, 2)]))
    np.testing.assert_allclose(gradient[0], geometry.tangent_project(np.eye(4, 2), G[0]), atol=1e-6)
    np.testing.assert_allclose(gradient[1], geometry.tangent_project(np.eye(4, 2), G[1]) / 3, atol=1e-6)


# ---------------------------------------------------------------- expansions


@pytest.mark.parametrize(
    ("transform", "shape", "ndim"),
    [(transforms.polar, (3, 4, 2), 2), (transforms.rotation, (3, 3), 2), (transforms.sphere, (2, 5), 1)],
)
def test_expansion_is_the_identity_on_the_manifold_with_constant_jacobian(transform, shape, ndim):
    rng = np.random.default_rng(6)
    Z = rng.standard_normal(shape)
    X = {2: geometry.polar, 1: lambda z: z / np.linalg.norm(z, axis=-1, keepdims=True)}[ndim](Z)
    if transform is transforms.rotation:
        X = geometry.rotation(Z)
    value = pt.tensor("value", shape=(None,) * len(shape), dtype="float64")
    outputs = [transform.backward(value), transform.forward(value), transform.log_jac_det(value)]
    f = pytensor.function([value], outputs, mode="FAST_COMPILE")
    back, forth, jacobian = f(X)
    np.testing.assert_allclose(back, X, atol=1e-14)
    np.testing.assert_allclose(forth, X, atol=1e-14)
    size, count = np.prod(shape[-ndim:]), X.shape[-1] if ndim == 2 else 1
    np.testing.assert_allclose(jacobian, np.full(shape[:-ndim], -0.5 * count - 0.5 * size * np.log(2 * np.pi)))


@pytest.mark.parametrize("transform", [transforms.polar, transforms.rotation])
def test_forward_projects_rounding_and_refuses_the_rest(transform):
    value = pt.matrix("value", dtype="float64")
    f = pytensor.function([value], transform.forward(value), mode="FAST_COMPILE")
    X = geometry.rotation(np.random.default_rng(7).standard_normal((3, 3)))
    near = X + 1e-8
    assert geometry.orthogonality_error(f(near)) < 1e-14
    with pytest.raises(ValueError, match=r"not orthonormal: max\|X'X - I\| = 0\.0"):
        f(X + 1e-2)
    with pytest.raises(ValueError, match="NaN"):
        f(np.full((3, 3), np.nan))


def test_rotation_forward_refuses_reflections():
    value = pt.matrix("value", dtype="float64")
    f = pytensor.function([value], transforms.rotation.forward(value), mode="FAST_COMPILE")
    with pytest.raises(ValueError, match="determinant -1"):
        f(np.diag([1.0, 1.0, -1.0]))


# ---------------------------------------------------------------- Householder


def householder_functions(n, p, vector=False):
    transform = transforms.HouseholderTransform(n, p, vector)
    y = pt.vector("y", dtype="float64")
    X = pt.vector("X", dtype="float64") if vector else pt.matrix("X", dtype="float64")
    backward = pytensor.function([y], [transform.backward(y), transform.log_jac_det(y)], mode="FAST_COMPILE")
    return backward, pytensor.function([X], transform.forward(X), mode="FAST_COMPILE")


def log_volume(n, p):
    """Log volume of St(n, p), or of SO(n) for p = n, under the embedded metric."""
    m = np.arange(n, max(n - p, 1), -1)
    return np.sum(np.log(2) + m / 2 * np.log(np.pi) - gammaln(m / 2)) + p * (p - 1) / 4 * np.log(2)


@pytest.mark.parametrize(("n", "p"), [(2, 1), (5, 1), (4, 2), (5, 3), (3, 3), (2, 2)])
def test_householder_is_a_chart_of_haar_measure(n, p):
    backward, forward = householder_functions(n, p)
    rng = np.random.default_rng(8)
    for _ in range(3):
        y = rng.standard_normal(geometry.manifold_dimension(n, p))
        X, log_jacobian = backward(y)
        assert geometry.orthogonality_error(X) < 1e-13
        np.testing.assert_allclose(forward(X), y, atol=1e-9)
        columns = [(backward(y + h)[0] - backward(y - h)[0]).ravel() / 2e-6 for h in 1e-6 * np.eye(len(y))]
        _, log_det = np.linalg.slogdet(np.array(columns) @ np.array(columns).T)
        # surface element = density with respect to Haar probability x total surface
        assert log_det / 2 == pytest.approx(log_jacobian + log_volume(n, p), abs=1e-6)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_householder_round_trip(round_trip, seed):
    backward, forward = round_trip
    X = geometry.polar(np.random.default_rng(seed).standard_normal((5, 3)))
    np.testing.assert_allclose(backward(forward(X))[0], X, atol=1e-8)


@pytest.fixture(scope="module")
def round_trip():
    return householder_functions(5, 3)


def test_householder_starts_at_the_identity():
    backward, forward = householder_functions(4, 2)
    assert np.array_equal(forward(np.eye(4, 2)), np.zeros(5))
    assert np.array_equal(backward(np.zeros(5))[0], np.eye(4, 2))


def test_householder_square_has_determinant_one():
    backward, _ = householder_functions(3, 3)
    assert np.linalg.det(backward(np.array([0.3, -2.0, 1.0]))[0]) == pytest.approx(1)


def test_householder_haar_comes_out_of_nuts():
    with pm.Model():
        pst.StiefelUniform("Q", 3, 1, transform=transforms.householder)
        idata = pm.sample(
            500,
            tune=300,
            chains=2,
            cores=1,
            step=pm.NUTS(),
            random_seed=1,
            progressbar=False,
            compute_convergence_checks=False,
        )
    Q = idata["posterior"]["Q"].values.reshape(-1, 3)
    # X_i^2 ~ Beta(1/2, 1): mean 1/3, variance 4/45; a tenth of the draws at least count as independent
    z = ((Q**2).mean(axis=0) - 1 / 3) / np.sqrt(4 / 45 / 100)
    assert np.abs(z).max() < 4
    assert np.abs(Q.mean(axis=0)).max() < 4 * np.sqrt(1 / 3 / 100)


def test_transform_argument_replaces_the_default():
    with pm.Model() as model:
        pst.StiefelUniform("Q", 4, 2, transform=transforms.householder, size=3)
        pst.UnitVector("u", 3, default_transform=transforms.householder)
        pst.SpecialOrthogonal("R", 3, transform=transforms.householder)
        pst.StiefelUniform("plain", 4, 2, default_transform=None)
        pst.StiefelUniform("polar", 4, 2)
    shapes = {name: value.shape for name, value in model.initial_point(1).items()}
    assert shapes == {
        "Q_householder__": (3, 5),
        "u_householder__": (2,),
        "R_householder__": (3,),
        "plain": (4, 2),
        "polar_polar__": (4, 2),
    }


def test_householder_refuses_what_it_cannot_chart():
    with pm.Model():
        with pytest.raises(ValueError, match="determinant"):
            pst.StiefelUniform("Q", 3, 3, transform=transforms.householder)
        with pytest.raises(ValueError, match=r"\(4, 2\)"):
            pst.StiefelUniform("Q", 5, 2, transform=transforms.HouseholderTransform(4, 2))
    with pytest.raises(ValueError, match=r"HouseholderTransform\(n, p\)"):
        transforms.householder.backward(pt.vector("y"))
