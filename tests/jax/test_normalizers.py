"""The normalising constants in JAX, against the fixtures and against the compiled ones."""

from __future__ import annotations

import json

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

from pymc_stiefel.normalizers import log_bingham, log_hyp0f1_batch  # noqa: E402
from pymc_stiefel.ops import _jax_bingham as bingham  # noqa: E402
from pymc_stiefel.ops import _jax_normalizers as native  # noqa: E402
from tests import ROOT  # noqa: E402

pytestmark = pytest.mark.usefixtures("double_precision")
FIXTURE = ROOT.parent / "shared/data/fixtures/hyper0F1.json"


@pytest.mark.skipif(not FIXTURE.exists(), reason=f"no {FIXTURE.name} beside the repository")
def test_fixture():
    by_columns: dict[int, list] = {}
    for case in json.loads(FIXTURE.read_text()):
        by_columns.setdefault(len(case["d"]), []).append(case)
    for cases in by_columns.values():
        n, s = np.array([case["n"] for case in cases]), np.array([case["d"] for case in cases])
        value, grad = jax.jit(jax.vmap(native.hyp0f1_value_and_grad))(n, np.abs(s))
        np.testing.assert_allclose(value, [case["log_mhg"] for case in cases], rtol=1e-8)
        np.testing.assert_allclose(np.sign(s) * grad, [case["EX_diag"] for case in cases], rtol=1e-8)


def concentrations(p, largest):
    rng = np.random.default_rng(p)
    spread = 10 ** rng.uniform(-3, np.log10(largest), (24, 1)) * rng.random((24, p)) ** rng.integers(0, 4, (24, 1))
    return np.vstack([np.zeros(p), np.full(p, 3.0), spread])


@pytest.mark.parametrize("p", [1, 2, 3, pytest.param(4, marks=pytest.mark.integration),
                               pytest.param(5, marks=pytest.mark.integration), 7])  # fmt: skip
def test_value_and_derivative_of_log_hyp0f1(p):
    s = concentrations(p, 2e4 if p < 4 else 2e3)  # beyond the exact limit for p >= 3
    function = jax.jit(jax.vmap(native.hyp0f1_value_and_grad, (None, 0)))
    for n in (p, p + 1, 30, 400):
        value, grad = function(n, s)
        expected, slope = log_hyp0f1_batch(n, s)
        np.testing.assert_allclose(value, expected, rtol=1e-10, atol=1e-14)
        np.testing.assert_allclose(grad, slope, rtol=2e-8, atol=1e-14)


def test_jax_differentiates_the_value_by_the_derivative_that_comes_with_it():
    F = np.random.default_rng(0).normal(size=(3, 5, 2)) * 3
    grad = jax.jit(jax.vmap(jax.grad(native.log_hyp0f1_matrix)))(F)
    value = jax.jit(jax.vmap(native.log_hyp0f1_matrix))
    step = 1e-5 * np.random.default_rng(1).normal(size=F.shape)
    np.testing.assert_allclose((value(F + step) - value(F - step)) / 2, (grad * step).sum((-2, -1)), rtol=1e-6)


@pytest.mark.parametrize(("n", "p"), [(2, 1), (30, 1), (5, 2), (8, 3), (5, 4), (3, 3)])
def test_value_and_derivative_of_log_bingham(n, p):
    rng = np.random.default_rng(n)
    a = 10 ** rng.uniform(-2, 3 if p == 1 else 0.8, (12, 1)) * rng.normal(size=(12, n))
    value, grad = jax.jit(jax.vmap(lambda a: bingham.bingham_value_and_grad(a, p)))(a)
    for k in range(len(a)):
        expected, slope = log_bingham(n, a[k], np.ones(p))
        assert float(value[k]) == pytest.approx(expected, rel=1e-10, abs=1e-13)
        np.testing.assert_allclose(grad[k], slope, atol=1e-10)


def test_bingham_is_undefined_where_its_digits_are_lost():
    value, grad = jax.jit(lambda a: bingham.bingham_value_and_grad(a, 2))(jnp.array([100.0, 0.0, 0.0, 0.0, 0.0]))
    assert np.isnan(value) and np.isnan(grad).all()


@pytest.mark.parametrize("p", [1, 2, 3])
def test_outside_the_domain_is_nan_and_ends(p):
    for bad in (np.nan, np.inf, -1.0):
        s = jnp.array([bad, *[1.0] * (p - 1)])
        value, grad = jax.jit(native.hyp0f1_value_and_grad)(5, s)
        assert np.isnan(value) and np.isnan(grad).all()


@pytest.mark.parametrize("p", [1, 2, 3])
def test_single_precision(p):
    s = concentrations(p, 300)
    expected, slope = log_hyp0f1_batch(10, s)
    with jax.enable_x64(False):
        value, grad = jax.jit(jax.vmap(native.hyp0f1_value_and_grad, (None, 0)))(10, s.astype("float32"))
    assert value.dtype == np.float32
    np.testing.assert_allclose(value, expected, rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(grad, slope, rtol=2e-4, atol=1e-6)


def test_the_graphs_of_the_laws_have_no_host_callback():
    import pymc as pm

    import pymc_stiefel as pst
    from pymc_stiefel.jax._density import jax_function

    with pm.Model() as model:
        kappa = pm.HalfNormal("kappa", 3)
        X = pst.MatrixLangevin("X", M=np.eye(5, 2), kappa=kappa)
        pst.MatrixLangevin("F", F=X * kappa)
        pst.VonMisesFisher("v", mu=np.array([1.0, 0, 0]), kappa=kappa)
        pst.MatrixBingham("B", A=kappa * np.diag([1.0, 2, 3]), p=1)
    function = jax_function(model.value_vars, [model.logp()])
    point = model.initial_point()
    values = [point[v.name] for v in model.value_vars]
    assert "callback" not in str(jax.make_jaxpr(jax.value_and_grad(lambda *x: function(*x)[0]))(*values))
    assert float(jax.jit(function)(*values)[0]) == pytest.approx(float(model.compile_logp()(point)), rel=1e-10)
