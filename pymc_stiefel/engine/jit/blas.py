"""Products and solves on row-major arrays: plain loops for small matrices, BLAS and LAPACK for large ones.

The routines are SciPy's and are called by address, like a density. The compiled code therefore does not contain them
and can be cached; compiling ``np.linalg.solve`` instead would take most of a minute.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import get_cython_function_address, intrinsic

from pymc_stiefel.engine.jit.compiling import inner
from pymc_stiefel.engine.jit.memory import view
from pymc_stiefel.engine.jit.records import Integers, Letters, ShortIntegers, Vector
from pymc_stiefel.engine.jit.vectors import axpy, dot

# Products with more multiplications than this go to BLAS.
LARGE = 2_500


class Blas(NamedTuple):
    """Addresses of dgemm, dgetrf, dtrsm and dsyrk in this process, and memory for arguments passed by pointer."""

    routines: Integers
    integers: ShortIntegers
    letters: Letters
    numbers: Vector


def make_blas(largest: int) -> Blas:
    """Make the record for systems of up to ``largest`` equations."""
    routines = [
        get_cython_function_address("scipy.linalg.cython_blas", "dgemm"),
        get_cython_function_address("scipy.linalg.cython_lapack", "dgetrf"),
        get_cython_function_address("scipy.linalg.cython_blas", "dtrsm"),
        get_cython_function_address("scipy.linalg.cython_blas", "dsyrk"),
    ]
    return Blas(
        np.array(routines, dtype=np.int64),
        np.zeros(8 + largest, dtype=np.int32),
        np.frombuffer(b"NTRLU", dtype=np.int8).copy(),
        np.zeros(2),
    )


@intrinsic
def _call(typingctx, address, pointers):
    """Call a Fortran routine whose arguments are the given pointers (a tuple of integers)."""
    signature = types.void(types.int64, pointers)

    def codegen(context, builder, signature, args):
        void = ir.IntType(8).as_pointer()
        values = [builder.inttoptr(builder.extract_value(args[1], k), void) for k in range(signature.args[1].count)]
        prototype = ir.FunctionType(ir.VoidType(), [void] * len(values))
        builder.call(builder.inttoptr(args[0], prototype.as_pointer()), values)
        return context.get_dummy_value()

    return signature, codegen


@inner
def _address(array, place):
    return np.int64(array.ctypes.data) + np.int64(place * array.itemsize)


@inner
def _gemm(blas, transposed, rows, columns, depth, alpha, left, left_rows, right, right_rows, beta, out):
    """Fortran's ``out = alpha op(left) right + beta out``; matrices are given by address."""
    blas.integers[0], blas.integers[1], blas.integers[2] = rows, columns, depth
    lead = blas.integers[3:6]
    lead[0], lead[1], lead[2] = left_rows, right_rows, rows
    blas.numbers[0], blas.numbers[1] = alpha, beta
    _call(
        blas.routines[0],
        (
            _address(blas.letters, 1 if transposed else 0),
            _address(blas.letters, 0),
            _address(blas.integers, 0),
            _address(blas.integers, 1),
            _address(blas.integers, 2),
            _address(blas.numbers, 0),
            left,
            _address(blas.integers, 3),
            right,
            _address(blas.integers, 4),
            _address(blas.numbers, 1),
            out,
            _address(blas.integers, 5),
        ),
    )


@inner
def copy_matrix(source, target):
    # for an assignment of slices numba compiles an error message about shapes, which takes seconds
    for i in range(source.shape[0]):
        for j in range(source.shape[1]):
            target[i, j] = source[i, j]


@inner
def copy_vector(source, target):
    for i in range(len(source)):  # as in copy_matrix
        target[i] = source[i]


@inner
def cross(blas, x, y, out):
    """``out = x y'``: inner products of the rows of ``x`` (k x n) with those of ``y`` (l x n)."""
    k, n = x.shape
    l = y.shape[0]
    if k * l * n > LARGE:
        # row-major out is Fortran's (l x k) matrix y x', and x, y are Fortran's n x k and n x l
        _gemm(blas, True, l, k, n, 1.0, _address(y, 0), n, _address(x, 0), n, 0.0, _address(out, 0))
        return
    for i in range(k):
        for j in range(l):
            out[i, j] = dot(x[i], y[j])


@inner
def gram_matrix(blas, x, out):
    """``out = x x'``, at half the cost of :func:`cross` for large matrices."""
    k, n = x.shape
    if k * k * n <= LARGE:
        cross(blas, x, x, out)
        return
    blas.integers[0], blas.integers[1] = k, n
    blas.numbers[0], blas.numbers[1] = 1.0, 0.0
    _call(
        blas.routines[3],
        (
            _address(blas.letters, 4),  # Fortran's upper triangle: the lower one here
            _address(blas.letters, 1),
            _address(blas.integers, 0),
            _address(blas.integers, 1),
            _address(blas.numbers, 0),
            _address(x, 0),
            _address(blas.integers, 1),
            _address(blas.numbers, 1),
            _address(out, 0),
            _address(blas.integers, 0),
        ),
    )
    for i in range(k):
        for j in range(i):
            out[j, i] = out[i, j]


@inner
def add_product(blas, alpha, matrix, x, out):
    """``out += alpha matrix x`` for a k x l matrix and rows ``x`` (l x n)."""
    k, l = matrix.shape
    n = x.shape[1]
    if k * l * n > LARGE:
        _gemm(blas, False, n, k, l, alpha, _address(x, 0), n, _address(matrix, 0), l, 1.0, _address(out, 0))
        return
    for i in range(k):
        for j in range(l):
            axpy(alpha * matrix[i, j], x[j], out[i])


@inner
def product(blas, matrix, x, out):
    """``out = matrix x``"""
    k, l = matrix.shape
    n = x.shape[1]
    if k * l * n > LARGE:
        _gemm(blas, False, n, k, l, 1.0, _address(x, 0), n, _address(matrix, 0), l, 0.0, _address(out, 0))
        return
    out[:] = 0.0
    add_product(blas, 1.0, matrix, x, out)


PANEL = 8
"""Number of rows that :func:`invert` eliminates at once."""


@inner
def invert(blas, matrix, scratch):
    """``matrix <- matrix^{-1}`` in place for a k x k matrix whose symmetric part is positive definite.

    Gauss-Jordan elimination by panels consists almost entirely of matrix products. It needs no pivots, because Schur
    complements of such a matrix have the same property. Two triangular solves with many right-hand sides take twice as
    long as this inverse and a product. ``scratch`` needs ``PANEL (2 k + PANEL)`` numbers.
    """
    k = matrix.shape[0]
    for first in range(0, k, PANEL):
        last = min(first + PANEL, k)
        size = last - first
        pivot = view(scratch, 0, size, size)
        below, across = view(scratch, size * size, k, size), view(scratch, size * (size + k), size, k)
        for i in range(k):
            inside = first <= i < last
            for j in range(size):
                entry = matrix[i, first + j]
                below[i, j] = 0.0 if inside else entry
                if inside:
                    pivot[i - first, j] = entry
                    entry = 1.0 if i - first == j else 0.0
                else:
                    entry = 0.0
                matrix[i, first + j] = entry
        _invert_small(pivot)
        product(blas, pivot, matrix[first:last], across)
        copy_matrix(across, matrix[first:last])
        add_product(blas, -1.0, below, across, matrix)


@inner
def _invert_small(matrix):
    """Gauss-Jordan row by row."""
    k = matrix.shape[0]
    for i in range(k):
        row = matrix[i]
        pivot = 1.0 / row[i]
        row[i] = 1.0
        for j in range(k):
            row[j] *= pivot
        for other in range(k):
            if other != i:
                factor = matrix[other, i]
                matrix[other, i] = 0.0
                axpy(-factor, row, matrix[other])


@inner
def solve(blas, system, right):
    """``right <- system^{-1} right`` in place; overwrites ``system`` with its factors."""
    k, n = right.shape
    if k * k * n > LARGE:
        _solve_large(blas, system, right)
        return
    for i in range(k):
        best = i
        for j in range(i + 1, k):
            if abs(system[j, i]) > abs(system[best, i]):
                best = j
        if best != i:
            _swap(system[i], system[best])
            _swap(right[i], right[best])
        pivot = 1.0 / system[i, i]
        for j in range(i + 1, k):
            factor = system[j, i] * pivot
            if factor != 0.0:
                axpy(-factor, system[i], system[j])
                axpy(-factor, right[i], right[j])
    for i in range(k - 1, -1, -1):
        for j in range(i + 1, k):
            axpy(-system[i, j], right[j], right[i])
        row, pivot = right[i], 1.0 / system[i, i]
        for m in range(n):
            row[m] *= pivot


@inner
def solve_definite(blas, system, right, scratch):
    """:func:`solve` for a system whose symmetric part is positive definite; large systems by the inverse.

    ``scratch`` needs ``k n + PANEL (2 k + PANEL)`` numbers.
    """
    k, n = right.shape
    if k * k * n <= LARGE:
        solve(blas, system, right)
        return
    old = view(scratch, 0, k, n)
    copy_matrix(right, old)
    invert(blas, system, scratch[k * n :])
    product(blas, system, old, right)


@inner
def _swap(x, y):
    for i in range(x.size):
        x[i], y[i] = y[i], x[i]


@inner
def _solve_large(blas, system, right):
    """LU with LAPACK. Fortran sees ``system'`` = P L U and ``right'``, and solves from the right."""
    k, n = right.shape
    integers = blas.integers
    integers[0], integers[1] = k, n
    _call(
        blas.routines[1],
        (
            _address(integers, 0),
            _address(integers, 0),
            _address(system, 0),
            _address(integers, 0),
            _address(integers, 4),
            _address(integers, 2),
        ),
    )
    _triangular(blas, 4, False, system, right)
    _triangular(blas, 3, True, system, right)
    for i in range(k - 1, -1, -1):
        other = integers[4 + i] - 1
        if other != i:
            _swap(right[i], right[other])


@inner
def _triangular(blas, triangle, unit, system, right):
    """Fortran's ``right' <- right' T^{-1}`` for the triangle U or L of the factors."""
    blas.numbers[0] = 1.0
    diagonal = 4 if unit else 0  # "U" for a unit diagonal, "N" otherwise
    _call(
        blas.routines[2],
        (
            _address(blas.letters, 2),
            _address(blas.letters, triangle),
            _address(blas.letters, 0),
            _address(blas.letters, diagonal),
            _address(blas.integers, 1),
            _address(blas.integers, 0),
            _address(blas.numbers, 0),
            _address(system, 0),
            _address(blas.integers, 0),
            _address(right, 0),
            _address(blas.integers, 1),
        ),
    )
