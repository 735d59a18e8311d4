"""Elementary functions, sums and products of a compiled density: right to rounding, and where they are meant to be."""

import math

import mpmath
import numba
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from scipy import special

from pymc_stiefel.compile._density import STRICT, numba_mode
from pymc_stiefel.compile.rewrites import functions as _functions

rng = np.random.default_rng(1)
NORMAL = rng.standard_normal(500)

# function, exact, by NumPy or SciPy, arguments, units in the last place
CASES = {
    "exp": (mpmath.exp, np.exp, [*rng.uniform(-745, 709, 500), *NORMAL, *1e-9 * NORMAL], 1),
    "log": (mpmath.log, np.log, [*np.exp(rng.uniform(-744, 709, 500)), *1 + 1e-3 * NORMAL, 5e-324], 1),
    "log1p": (mpmath.log1p, np.log1p, [*np.exp(rng.uniform(-60, 60, 500)), *-np.exp(rng.uniform(-60, -1e-9, 500))], 2),
    "sigmoid": (lambda x: 1 / (1 + mpmath.exp(-x)), special.expit, [*rng.uniform(-700, 40, 500), *NORMAL], 2),
    "softplus": (
        lambda x: mpmath.log1p(mpmath.exp(x)),
        lambda x: np.logaddexp(0, x),
        [*rng.uniform(-700, 40, 500), *NORMAL],
        2,
    ),
    "erfc": (mpmath.erfc, special.erfc, [*rng.uniform(-6, 26, 500), *NORMAL, *rng.uniform(0, 0.1, 500)], 6),
}
PYTENSOR = {"exp": pt.exp, "log": pt.log, "log1p": pt.log1p, "sigmoid": pt.sigmoid, "softplus": pt.softplus}
PYTENSOR["erfc"] = pt.erfc


def compiled(inputs, outputs, mode=None):
    with pytensor.config.change_flags(**STRICT):
        return pytensor.function(inputs, outputs, mode=mode or numba_mode())


def scalar_ops(function):
    """Names of all that is computed for single numbers, within joined loops too."""
    names = []
    for node in function.maker.fgraph.apply_nodes:
        op = getattr(node.op, "scalar_op", None)
        inner = op.fgraph.apply_nodes if hasattr(op, "fgraph") else []
        names += [str(op), *(str(part.op) for part in inner)]
    return names


@pytest.mark.parametrize("name", CASES)
def test_functions_are_right_to_a_few_units_in_the_last_place(name):
    exact, _, arguments, allowed = CASES[name]
    function = getattr(_functions, name)
    values = numba.njit(lambda x: [function(one) for one in x])(np.array(arguments))
    with mpmath.workdps(40):
        truth = [exact(mpmath.mpf(float(x))) for x in arguments]
        errors = [abs((value - one) / math.ulp(float(one))) for value, one in zip(values, truth, strict=True)]
    assert max(errors) < allowed


@pytest.mark.parametrize("name", CASES)
def test_ends_of_the_range(name):
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 1e-310, 800.0, -800.0, 1e300])
    function, by_numpy = getattr(_functions, name), CASES[name][1]
    values = numba.njit(lambda x: np.array([function(one) for one in x]), error_model="numpy")(x)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(values, by_numpy(x), rtol=1e-14, atol=0)


@pytest.mark.parametrize("name", CASES)
def test_functions_stand_in_for_those_of_pytensor_in_long_loops(name):
    x = pt.matrix("x", shape=(40, 30))
    function = compiled([x], 2.0 * PYTENSOR[name](x) + 1.0)
    assert any("function" in op.lower() for op in scalar_ops(function))
    value = np.abs(rng.standard_normal((40, 30)))
    np.testing.assert_allclose(function(value), 2.0 * CASES[name][1](value) + 1.0, rtol=1e-14, atol=1e-14)


def test_short_loops_single_precision_and_relaxed_rules_keep_those_of_pytensor():
    few, single, many = pt.vector("few", shape=(3,)), pt.vector("single", dtype="float32"), pt.vector("many")
    for x in (few, single):
        assert not any("function" in op.lower() for op in scalar_ops(compiled([x], pt.exp(x))))
    with pytensor.config.change_flags(numba__fastmath=True):  # which would undo the rounding they are made of
        relaxed = pytensor.function([many], pt.exp(many), mode=numba_mode())
    assert not any("function" in op.lower() for op in scalar_ops(relaxed))
    np.testing.assert_allclose(relaxed(NORMAL), np.exp(NORMAL), rtol=1e-14)


@pytest.mark.parametrize("shape", [(1,), (7,), (64,), (100, 3), (5, 6, 7), (0,)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_sums(shape, order):
    x = pt.tensor("x", dtype="float64", shape=(None,) * len(shape))
    value = np.asarray(rng.standard_normal(shape), order=order)
    function = compiled([x], [x.sum(), (x**2).sum()])
    assert [str(node.op) for node in function.maker.fgraph.apply_nodes].count("Total") == 2
    np.testing.assert_allclose(function(value), [value.sum(), (value**2).sum()], rtol=1e-13, atol=1e-13)


def test_sums_over_some_axes_and_of_integers_are_left_alone():
    x, counts = pt.matrix("x"), pt.lvector("counts")
    function = compiled([x, counts], [x.sum(axis=0), counts.sum()])
    assert not any("Total" in str(node.op) for node in function.maker.fgraph.apply_nodes)
    value = rng.standard_normal((4, 90))
    for found, expected in zip(function(value, np.arange(70)), (value.sum(0), 2415), strict=True):
        np.testing.assert_allclose(found, expected)


@pytest.mark.parametrize("symmetric,products", [(True, 1), (False, 2)])
def test_a_product_with_a_symmetric_constant_is_formed_once(symmetric, products):
    C = rng.standard_normal((20, 20))
    C = C + C.T if symmetric else C
    U, scale, noise = pt.matrix("U", shape=(20, 3)), pt.vector("scale", shape=(3,)), pt.scalar("noise")
    form = pt.sum(scale * pt.sum(U * (pt.constant(C) @ U), axis=0)) / noise**2
    gradients = pytensor.grad(form, [U, scale])
    function = compiled([U, scale, noise], gradients)
    assert [str(node.op) for node in function.maker.fgraph.apply_nodes].count("Product") == products
    u, s = rng.standard_normal((20, 3)), rng.standard_normal(3)
    by_u, by_scale = function(u, s, 1.5)
    np.testing.assert_allclose(by_u, (C + C.T) @ u * s / 1.5**2)
    np.testing.assert_allclose(by_scale, np.sum(u * (C @ u), axis=0) / 1.5**2)


def test_products_of_a_symmetric_constant_with_vectors_are_left_alone():
    C = np.diag(np.arange(1.0, 6.0))
    U, v = pt.matrix("U", shape=(5, 2)), pt.vector("v", shape=(5,))
    with pytensor.config.change_flags(on_opt_error="raise"):
        function = compiled([U, v], [pt.constant(C) @ U, pt.dot(pt.constant(C), v), (2.0 * U).T @ pt.constant(C)])
    u, x = rng.standard_normal((5, 2)), rng.standard_normal(5)
    for found, expected in zip(function(u, x), (C @ u, C @ x, 2 * u.T @ C), strict=True):
        np.testing.assert_allclose(found, expected)
