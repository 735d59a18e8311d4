"""Matrix products of a compiled density, by a routine that is compiled once for all models.

Numba compiles a separate product, with vector variants and error messages, for every combination of memory layouts.
Each takes ten seconds, more than the rest of a typical density. The routine here looks at the layout at run time.
"""

from __future__ import annotations

import numpy as np
from numba import types
from pytensor.compile.mode import optdb
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.graph.rewriting.basic import in2out, node_rewriter
from pytensor.link.numba.dispatch import basic as numba_basic
from pytensor.link.numba.dispatch.basic import register_funcify_default_op_cache_key
from pytensor.tensor.blas import BatchedDot
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.math import Dot
from pytensor.tensor.type import matrix, tensor3

from pymc_stiefel.engine.jit.blas import LARGE
from pymc_stiefel.engine.jit.caching import source_key
from pymc_stiefel.engine.jit.compiling import Routine, inner
from pymc_stiefel.engine.jit.memory import array_at
from pymc_stiefel.engine.jit.vectors import axpy, dot

NAME = "pymc_stiefel_product"
_VERSION = int(source_key(__file__)[:8], 16)
"""Version of the wrappers below in PyTensor's disk cache. They call the routine by name."""

_SHORT = 8
"""Products with rows shorter than this go to BLAS at an eighth of the size, because loops over short rows are slow."""

# kind, transposition of both matrices, sizes, alpha, a, lda, b, ldb, beta, c, ldc: numba's own entry to BLAS
_gemm = types.ExternalFunction("numba_xxgemm", types.intc(*(types.char,) * 3, *(types.intp,) * 11))


class Product(Op):
    """``x @ y`` for two matrices in double precision. It replaces ``Dot`` in finished graphs, so it has no gradient."""

    __props__ = ()

    def make_node(self, *inputs):
        x, y = inputs
        return Apply(self, [x, y], [matrix(dtype="float64", shape=(x.type.shape[0], y.type.shape[1]))])

    def perform(self, node, inputs, output_storage):
        output_storage[0][0] = np.dot(*inputs)


class BatchedProduct(Op):
    """``x @ y`` for two batches with the same number of matrices. It replaces ``BatchedDot``."""

    __props__ = ()

    def make_node(self, *inputs):
        x, y = inputs
        batch = x.type.shape[0] if y.type.shape[0] is None else y.type.shape[0]
        return Apply(self, [x, y], [tensor3(dtype="float64", shape=(batch, x.type.shape[1], y.type.shape[2]))])

    def perform(self, node, inputs, output_storage):
        output_storage[0][0] = np.matmul(*inputs)


@node_rewriter([Dot])
def _replace_dot(fgraph, node):
    if any(variable.dtype != "float64" for variable in (*node.inputs, *node.outputs)):
        return None
    return [Product()(*node.inputs)]


@node_rewriter([BatchedDot, Blockwise])
def _replace_batched_dot(fgraph, node):
    if any(variable.dtype != "float64" for variable in (*node.inputs, *node.outputs)):
        return None
    if isinstance(node.op, BatchedDot):
        return [BatchedProduct()(*node.inputs)]
    return [Blockwise(Product(), node.op.signature)(*node.inputs)] if type(node.op.core_op) is Dot else None


# after all others, and only if asked for
optdb.register(NAME, in2out(_replace_dot, _replace_batched_dot, name=NAME), position=99)


# ---------------------------------------------------------------- the routine


@inner
def _small(m, n, k, x, x_row, x_column, y, y_row, y_column, out):
    """By rows of ``y`` if they are contiguous, else by inner products if possible. Strides count numbers, not bytes."""
    by_rows = y_column == 1
    by_dots = not by_rows and y_row == 1 and x_column == 1
    for i in range(m):
        row = array_at(out + 8 * i * n, (n,), np.float64)
        for j in range(n):
            row[j] = 0.0
        for l in range(0 if by_dots else k):
            factor = array_at(x + 8 * (i * x_row + l * x_column), (1,), np.float64)[0]
            if by_rows:
                axpy(factor, array_at(y + 8 * l * y_row, (n,), np.float64), row)
            else:
                for j in range(n):
                    row[j] += factor * array_at(y + 8 * (l * y_row + j * y_column), (1,), np.float64)[0]
        if by_dots:
            left = array_at(x + 8 * i * x_row, (k,), np.float64)
            for j in range(n):
                row[j] = dot(left, array_at(y + 8 * j * y_column, (k,), np.float64))


@inner
def _leading(rows, columns, row, column):
    """Letter "n" or "t" and leading dimension with which BLAS reads a matrix of these strides; 0 if it cannot.

    BLAS expects columns to be contiguous. It sees the transpose of a matrix stored by rows.
    """
    if column == 1 and (row >= columns or rows == 1):
        return ord("n"), max(row, columns, 1)
    if row == 1 and (column >= rows or columns == 1):
        return ord("t"), max(column, rows, 1)
    return ord("n"), 0


@inner
def _copy(rows, columns, source, row, column, target):
    """Copy a matrix of any strides to ``target``, stored by rows."""
    for i in range(rows):
        for j in range(columns):
            target[i * columns + j] = array_at(source + 8 * (i * row + j * column), (1,), np.float64)[0]


def _product(m, n, k, x, x_row, x_column, y, y_row, y_column, out):
    """``out = x y`` for an m x k and a k x n matrix, given by address and strides; ``out`` is stored by rows."""
    if n == 1 and m > 1:  # the transposed product has long rows
        m, n, x, x_row, x_column, y, y_row, y_column = 1, m, y, y_column, y_row, x, x_column, x_row
    if m == 1 or m * n * k <= (LARGE if n >= _SHORT or y_column != 1 else LARGE // 8):
        _small(m, n, k, x, x_row, x_column, y, y_row, y_column, out)
        return 0.0
    (x_letter, x_leading), (y_letter, y_leading) = _leading(m, k, x_row, x_column), _leading(k, n, y_row, y_column)
    first, second = 2 if x_leading else 2 + m * k, 0 if y_leading else k * n
    room = np.empty(first + second)
    room[0], room[1] = 1.0, 0.0
    address = np.int64(room.ctypes.data)
    if x_leading == 0:
        _copy(m, k, x, x_row, x_column, room[2:])
        x, x_leading = address + 16, k
    if y_leading == 0:
        _copy(k, n, y, y_row, y_column, room[first:])
        y, y_leading = address + 8 * first, n
    _gemm(ord("d"), y_letter, x_letter, n, m, k, address, y, y_leading, x, x_leading, address + 8, out, n)
    return room[0]  # keeps the array alive until here


_routine = Routine(NAME, _product, types.float64(*(types.int64,) * 10))


@register_funcify_default_op_cache_key(Product)
def _funcify_product(op, node=None, **kwargs):
    routine = _routine.load()

    @numba_basic.numba_njit
    def product(x, y):
        (m, k), (l, n) = x.shape, y.shape
        if k != l:
            raise ValueError("the matrices of a product do not fit: columns of the first and rows of the second differ")
        out = np.empty((m, n))
        (x_row, x_column), (y_row, y_column) = x.strides, y.strides
        routine(
            m, n, k, x.ctypes.data, x_row // 8, x_column // 8, y.ctypes.data, y_row // 8, y_column // 8, out.ctypes.data
        )
        return out

    return product, _VERSION


@register_funcify_default_op_cache_key(BatchedProduct)
def _funcify_batched_product(op, node=None, **kwargs):
    routine = _routine.load()

    @numba_basic.numba_njit
    def batched_product(x, y):
        (count, m, k), (other, l, n) = x.shape, y.shape
        if count != other or k != l:
            raise ValueError("the matrices of a product do not fit: numbers of matrices, or inner sizes, differ")
        out = np.empty((count, m, n))
        (x_next, x_row, x_column), (y_next, y_row, y_column) = x.strides, y.strides
        first, second, result = x.ctypes.data, y.ctypes.data, out.ctypes.data
        for i in range(count):
            left, right, place = first + i * x_next, second + i * y_next, result + 8 * i * m * n
            routine(m, n, k, left, x_row // 8, x_column // 8, right, y_row // 8, y_column // 8, place)
        return out

    return batched_product, _VERSION
