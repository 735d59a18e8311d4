"""Second derivatives of the Ops against differences of their gradients, and Hessians of whole models."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

import pymc_stiefel as pst
from pymc_stiefel import draws
from pymc_stiefel.ops import _normalizers, polar, rotation

RNG = np.random.default_rng(3)
ORTHONORMAL = draws.haar(4, 2, rng=RNG)


def gradient_and_product(function, point, direction, mode=None):
    """The gradient, compiled, and the product of the Hessian with ``direction``."""
    x = pt.tensor("x", shape=point.shape, dtype="float64")
    gradient = pytensor.grad(function(x), x)
    product = pytensor.grad((gradient * direction).sum(), x)
    return pytensor.function([x], gradient, mode=mode), pytensor.function([x], product, mode=mode)(point)


def weighted(op, weights):
    return lambda x: (op(x) * weights).sum()


W4 = np.arange(8.0).reshape(4, 2)
CASES = {
    "polar, equal singular values": (weighted(polar, W4), ORTHONORMAL),
    "polar": (weighted(polar, W4), RNG.standard_normal((4, 2))),
    "polar, square": (weighted(polar, np.arange(9.0).reshape(3, 3)), RNG.standard_normal((3, 3))),
    "rotation": (weighted(rotation, np.arange(9.0).reshape(3, 3)), np.diag([3.0, 2.0, -1.0])),
    "0F1, p = 1": (lambda s: _normalizers.log_hyp0f1_singular(5, s), np.array([3.0])),
    "0F1, p = 2": (lambda s: _normalizers.log_hyp0f1_singular(5, s), np.array([30.0, 2.0])),
    "0F1, p = 4": (lambda s: _normalizers.log_hyp0f1_singular(6, s), np.array([4.0, 4.0, 1.0, 0.1])),
    "0F1 of a matrix": (_normalizers.log_hyp0f1_matrix, 2 * RNG.standard_normal((4, 2))),
    "0F1 of a matrix, equal singular values": (_normalizers.log_hyp0f1_matrix, 5 * ORTHONORMAL),
    "0F1 of a matrix, zero": (_normalizers.log_hyp0f1_matrix, np.zeros((3, 2))),
    "Bingham": (lambda A: _normalizers.log_bingham_matrix(A, 2), RNG.standard_normal((4, 4))),
    "Bingham, equal eigenvalues": (lambda A: _normalizers.log_bingham_matrix(A, 1), np.diag([1.0, 1.0, 0.0])),
}


@pytest.mark.parametrize("name", CASES)
def test_hessian_products(name):
    function, point = CASES[name]
    direction = np.random.default_rng(4).standard_normal(point.shape)
    gradient, product = gradient_and_product(function, point, direction)
    step = 1e-3
    ahead, behind = (gradient(point + sign * step * direction) for sign in (1, -1))
    far = gradient(point + 2 * step * direction) - gradient(point - 2 * step * direction)
    expected = (8 * (ahead - behind) - far) / (12 * step)
    np.testing.assert_allclose(product, expected, rtol=1e-6, atol=1e-7)


def hessian_by_differences(model):
    names = [v.name for v in model.value_vars]
    gradient = model.compile_dlogp()
    start = model.initial_point(random_seed=1)
    flat = np.concatenate([np.ravel(start[name]) for name in names])

    def at(x):
        point, k = {}, 0
        for name in names:
            size = np.size(start[name])
            point[name] = x[k : k + size].reshape(np.shape(start[name]))
            k += size
        return gradient(point)

    step = 1e-5
    rows = [(at(flat + step * e) - at(flat - step * e)) / (2 * step) for e in np.eye(len(flat))]
    return start, np.array(rows)


def langevin_model():
    with pm.Model() as model:
        kappa = pm.HalfNormal("kappa", 5, shape=2)
        M = pst.StiefelUniform("M", n=3, p=2)
        X = draws.matrix_langevin(4 * np.eye(3, 2), size=5, rng=np.random.default_rng(1))
        pst.MatrixLangevin("X", M=M, kappa=kappa, observed=X)
    return model


def bingham_model():
    with pm.Model() as model:
        scale = pm.HalfNormal("scale", 5)
        X = draws.matrix_bingham(np.diag([5.0, 1.0, 0.0]), p=1, size=5, rng=np.random.default_rng(1))
        pst.MatrixBingham("X", A=scale * np.diag([1.0, 0.2, 0.0]), p=1, observed=X)
        pst.VonMisesFisher("v", mu=np.array([0.0, 0.6, 0.8]), kappa=scale)
    return model


@pytest.mark.parametrize("make", [langevin_model, bingham_model])
def test_hessian_of_a_model(make):
    model = make()
    point, expected = hessian_by_differences(model)
    found = model.compile_d2logp(negate_output=False)(point)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    with model:
        np.testing.assert_allclose(pm.find_hessian(point, negate_output=False), found)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # PyMC 6.4 renames arguments of its find_MAP
def test_laplace_approximation():
    """In the Householder chart: mode and Hessian give the spread of a concentrated law."""
    F = np.array([[300.0, 0.0], [0.0, 200.0], [0.0, 0.0]])
    with pm.Model() as model:
        pst.MatrixLangevin("X", F=F, transform=pst.transforms.householder)
        mode = pm.find_MAP(progressbar=False, include_transformed=True)
    center = mode["X_householder__"]
    precision = -model.compile_d2logp(jacobian=False, negate_output=False)({"X_householder__": center})
    normal = np.random.default_rng(1).multivariate_normal(center, np.linalg.inv(precision), size=4000)
    X = pst.transforms.HouseholderTransform(3, 2).backward(pt.as_tensor(normal)).eval()
    exact = draws.matrix_langevin(F, size=4000, rng=np.random.default_rng(2))
    np.testing.assert_allclose(X.mean(axis=0), exact.mean(axis=0), atol=0.01)
    off = ~np.eye(3, 2, dtype=bool)
    np.testing.assert_allclose(X.std(axis=0)[off], exact.std(axis=0)[off], rtol=0.1)


@pytest.mark.integration
def test_laplace_of_pymc_extras():
    extras = pytest.importorskip("pymc_extras")
    F = np.array([[300.0, 0.0], [0.0, 200.0], [0.0, 0.0]])
    with pm.Model():
        pst.MatrixLangevin("X", F=F, transform=pst.transforms.householder)
        idata = extras.fit_laplace(progressbar=False, random_seed=1)
    X = idata["posterior"]["X"].values.reshape(-1, 3, 2)
    np.testing.assert_allclose(X[:, 2].std(axis=0), [300**-0.5, 200**-0.5], rtol=0.15)
