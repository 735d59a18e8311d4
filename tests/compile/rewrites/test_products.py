"""Matrix products in compiled densities, against NumPy, for every layout that a graph can produce."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.tensor.blas import BatchedDot
from pytensor.tensor.math import Dot

from pymc_stiefel.compile._density import numba_mode
from pymc_stiefel.compile.rewrites.products import BatchedProduct, Product

SIZES = [(1, 1, 1), (3, 4, 5), (30, 3, 30), (3, 30, 30), (1, 60, 70), (60, 1, 70), (40, 50, 1), (25, 31, 17)]
READINGS = {
    "rows": (lambda m: m, lambda m: m),
    "columns": (lambda m: m.T, lambda m: m.T),
    "part of wider rows": (lambda m: np.hstack([m, m]), lambda m: m[:, : m.shape[1] // 2]),
    "every other number": (lambda m: np.repeat(m, 2, axis=1), lambda m: m[:, ::2]),
    "backwards": (lambda m: m[::-1], lambda m: m[::-1]),
    "columns of a part": (lambda m: np.hstack([m.T, m.T]), lambda m: m[:, : m.shape[1] // 2].T),
}
"""Name -> (what to hand over, how the graph reads the matrix from it)."""


@pytest.mark.parametrize("left", READINGS)
def test_against_numpy(left):
    x, ys = pt.dmatrix("x"), {right: pt.dmatrix(right) for right in READINGS}
    outputs = [READINGS[left][1](x) @ READINGS[right][1](y) for right, y in ys.items()]
    function = pytensor.function([x, *ys.values()], outputs, mode=numba_mode())
    ops = [node.op for node in function.maker.fgraph.apply_nodes]
    assert any(isinstance(op, Product) for op in ops) and not any(isinstance(op, Dot) for op in ops)
    rng = np.random.default_rng(1)
    for m, n, k in SIZES:
        first, second = rng.standard_normal((m, k)), rng.standard_normal((k, n))
        results = function(
            np.ascontiguousarray(READINGS[left][0](first)),
            *(np.ascontiguousarray(READINGS[right][0](second)) for right in ys),
        )
        for right, result in zip(ys, results, strict=True):
            np.testing.assert_allclose(result, first @ second, rtol=1e-12, atol=1e-12, err_msg=f"{left}, {right}")


def test_nothing_to_add_up():
    x, y = pt.dmatrices("x", "y")
    function = pytensor.function([x, y], x @ y, mode=numba_mode())
    np.testing.assert_array_equal(function(np.ones((3, 0)), np.ones((0, 2))), np.zeros((3, 2)))
    assert function(np.ones((0, 4)), np.ones((4, 2))).shape == (0, 2)


def test_matrices_that_do_not_fit():
    x, y = pt.dmatrices("x", "y")
    function = pytensor.function([x, y], x @ y, mode=numba_mode())
    with pytest.raises(ValueError, match="do not fit"):
        function(np.ones((3, 2)), np.ones((3, 2)))


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_other_types_are_left_to_pytensor(dtype):
    x = pt.matrix("x", dtype=dtype)
    function = pytensor.function([x], x @ x, mode=numba_mode())
    assert not any(isinstance(node.op, Product) for node in function.maker.fgraph.apply_nodes)
    a = np.arange(9).reshape(3, 3).astype(dtype)
    np.testing.assert_allclose(function(a), a @ a)


@pytest.mark.parametrize("left", READINGS)
def test_batches(left):
    """Of as many matrices on both sides, or of one matrix with a batch."""
    x, y, z = pt.dtensor3("x"), pt.dtensor3("y"), pt.dmatrix("z")
    reading = READINGS[left][1]
    function = pytensor.function([x, y, z], [x @ y, x @ reading(z)], mode=numba_mode())
    ops = {type(getattr(node.op, "core_op", node.op)) for node in function.maker.fgraph.apply_nodes}
    assert {Product, BatchedProduct} & ops and not {Dot, BatchedDot} & ops
    rng = np.random.default_rng(1)
    for m, n, k in SIZES:
        first, second, one = rng.standard_normal((4, m, k)), rng.standard_normal((4, k, n)), rng.standard_normal((k, n))
        both = function(first, second, np.ascontiguousarray(READINGS[left][0](one)))
        for result, expected in zip(both, (first @ second, first @ one), strict=True):
            np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-12)


def test_batches_that_do_not_fit():
    x, y = pt.dtensor3s("x", "y")
    function = pytensor.function([x, y], pt.matmul(x, y), mode=numba_mode())
    with pytest.raises(ValueError, match=r"do not fit|broadcast"):
        function(np.ones((3, 2, 2)), np.ones((3, 3, 2)))
