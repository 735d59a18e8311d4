"""Compiled versions of the Ops for PyTensor's numba backend, without object mode.

Numba optimises a function again in each of its callers, and PyTensor has four levels of callers. The kernels, with
their decompositions and series, are therefore compiled once as C functions and called by symbol. Only a thin wrapper
is compiled for each model. All kernels have the signature
``double kernel(int64 n, int64 p, int64 special, double *first, double *second, double *out)``.
"""

from __future__ import annotations

from collections.abc import Callable

import numba
import numpy as np
from numba import types
from pytensor.link.numba.dispatch import basic as numba_basic
from pytensor.link.numba.dispatch.basic import (
    register_funcify_and_cache_key,
    register_funcify_default_op_cache_key,
)
from pytensor.link.numba.dispatch.blockwise import numba_funcify_Blockwise as _pytensor_blockwise
from pytensor.link.numba.dispatch.random import numba_funcify_RandomVariable as _pytensor_random_variable
from pytensor.tensor.blockwise import BlockwiseWithCoreShape
from pytensor.tensor.random.op import RandomVariableWithCoreShape

from pymc_stiefel.engine.jit.blas import copy_matrix, copy_vector
from pymc_stiefel.engine.jit.caching import source_key
from pymc_stiefel.engine.jit.compiling import Routine, part
from pymc_stiefel.engine.jit.vectors import dot
from pymc_stiefel.normalizers._bingham import log_bingham_frame
from pymc_stiefel.normalizers._curvature import bingham_curvature, langevin_curvature, singular_curvature
from pymc_stiefel.normalizers._functions import log_hyp0f1
from pymc_stiefel.ops._curvature import polar_curvature, reverses, signed_svd
from pymc_stiefel.ops._normalizers import (
    Curvature,
    LogBingham,
    LogHyp0F1,
    LogHyp0F1Matrix,
    Normalizer,
)
from pymc_stiefel.ops._polar import (
    ALREADY_ORTHONORMAL,
    CheckedProjection,
    Polar,
    PolarCurvature,
    PolarPullback,
    StiefelRV,
    manifold_tolerance,
)

_CACHE_VERSION = int(source_key(__file__)[:8], 16)
"""Part of the disk cache keys of PyTensor and numba, so it must change with the code behind the symbols."""

_ARRAY = types.CPointer(types.float64)
_SIGNATURE = types.float64(types.int64, types.int64, types.int64, _ARRAY, _ARRAY, _ARRAY)


def _kernel(function: Callable) -> Routine:
    """Decorator: a kernel of the common signature."""
    return Routine(f"pymc_stiefel{function.__name__}_{_CACHE_VERSION:x}", function, _SIGNATURE)


# ---------------------------------------------------------------- kernels


@part
def _is_finite(numbers, count):
    # np.all(np.isfinite(...)) would be compiled for vectors and for matrices, with arrays in between
    values, finite = numba.carray(numbers, (count,)), True
    for k in range(count):
        finite &= np.isfinite(values[k])
    return finite


@part
def _make_nan(numbers, count):
    values = numba.carray(numbers, (count,))
    for k in range(count):
        values[k] = np.nan


@part
def _orthogonality_error(Z):
    """Largest entry of Z'Z - I; NaN, or infinite, if Z is not finite."""
    columns = np.ascontiguousarray(Z.T)
    worst = 0.0
    for i in range(len(columns)):
        for j in range(i + 1):
            entry = abs(dot(columns[i], columns[j]) - (1.0 if i == j else 0.0))
            if np.isnan(entry):
                return entry
            worst = max(worst, entry)
    return worst


@_kernel
def _polar(n, p, special, first, second, out):
    """The polar factor, see ``ops.polar_numpy``; ``out`` may be ``first``."""
    Z, X = numba.carray(first, (n, p)), numba.carray(out, (n, p))
    if _orthogonality_error(Z) < ALREADY_ORTHONORMAL and not (special and reverses(Z)):
        copy_matrix(Z, X)
    elif not _is_finite(first, n * p):  # numba's svd would raise
        _make_nan(out, n * p)
    else:
        U, _, Vt = signed_svd(Z, special)
        copy_matrix(U @ Vt, X)
    return 0.0


@_kernel
def _polar_pullback(n, p, special, first, second, out):
    """``geometry.polar_pullback`` or ``geometry.rotation_pullback``."""
    Z, G, result = numba.carray(first, (n, p)), numba.carray(second, (n, p)), numba.carray(out, (n, p))
    if not _is_finite(first, n * p):
        _make_nan(out, n * p)
        return 0.0
    U, s, Vt = signed_svd(Z, special)
    GV = G @ np.ascontiguousarray(Vt.T)
    UtG = np.ascontiguousarray(U.T) @ GV
    along = np.zeros((p, p))
    for i in range(p):
        for j in range(p):
            if i != j:
                along[i, j] = (UtG[i, j] - UtG[j, i]) / (s[i] + s[j])
    U = np.ascontiguousarray(U)
    moved = U @ along
    if n > p:
        moved += (GV - U @ UtG) / s
    copy_matrix(moved @ np.ascontiguousarray(Vt), result)
    return 0.0


@part
def _log_hyp0f1_or_nan(n, s):
    for k in range(len(s)):
        if not (np.isfinite(s[k]) and s[k] >= 0.0):
            return np.nan, np.full(len(s), np.nan)
    return log_hyp0f1(n, s)


@_kernel
def _log_hyp0f1(n, p, special, first, second, out):
    """``LogHyp0F1.numpy``."""
    value, gradient = _log_hyp0f1_or_nan(n, numba.carray(first, (p,)).copy())
    copy_vector(gradient, numba.carray(out, (p,)))
    return value


@_kernel
def _log_hyp0f1_matrix(n, p, special, first, second, out):
    F, result = numba.carray(first, (n, p)), numba.carray(out, (n, p))
    if not _is_finite(first, n * p):
        _make_nan(out, n * p)
        return np.nan
    U, s, Vt = np.linalg.svd(F, False)
    value, gradient = _log_hyp0f1_or_nan(n, s)
    copy_matrix(np.ascontiguousarray(U * gradient) @ np.ascontiguousarray(Vt), result)
    return value


@_kernel
def _log_bingham(n, p, special, first, second, out):
    """``LogBingham.numpy``."""
    A, result = numba.carray(first, (n, n)), numba.carray(out, (n, n))
    if not _is_finite(first, n * n):
        _make_nan(out, n * n)
        return np.nan
    a, V = np.linalg.eigh((A + A.T) / 2)
    value, gradient = log_bingham_frame(p, a)
    copy_matrix(np.ascontiguousarray(V * gradient) @ np.ascontiguousarray(V.T), result)
    return value


@_kernel
def _polar_curvature(n, p, special, first, second, out):
    """``ops._polar.polar_curvature``; ``second`` holds G and the direction, one after the other."""
    Z, both, result = numba.carray(first, (n, p)), numba.carray(second, (2, n, p)), numba.carray(out, (n, p))
    if _is_finite(first, n * p) and _is_finite(second, 2 * n * p):
        copy_matrix(polar_curvature(Z, both[0], both[1], special), result)
    else:
        _make_nan(out, n * p)
    return 0.0


@_kernel
def _log_hyp0f1_curvature(n, p, special, first, second, out):
    s, C = numba.carray(first, (p,)), numba.carray(second, (p,))
    ok = _is_finite(first, p) and _is_finite(second, p)
    copy_vector(singular_curvature(n, s.copy(), C.copy()) if ok else np.nan * s, numba.carray(out, (p,)))
    return 0.0


@_kernel
def _log_hyp0f1_matrix_curvature(n, p, special, first, second, out):
    F, C = numba.carray(first, (n, p)), numba.carray(second, (n, p))
    ok = _is_finite(first, n * p) and _is_finite(second, n * p)
    copy_matrix(langevin_curvature(F, C) if ok else np.nan * F, numba.carray(out, (n, p)))
    return 0.0


@_kernel
def _log_bingham_curvature(n, p, special, first, second, out):
    A, C = numba.carray(first, (n, n)), numba.carray(second, (n, n))
    ok = _is_finite(first, n * n) and _is_finite(second, n * n)
    copy_matrix(bingham_curvature(A, C, p) if ok else np.nan * A, numba.carray(out, (n, n)))
    return 0.0


_KERNELS: dict[type[Normalizer], tuple[Routine, Routine]] = {
    LogHyp0F1: (_log_hyp0f1, _log_hyp0f1_curvature),
    LogHyp0F1Matrix: (_log_hyp0f1_matrix, _log_hyp0f1_matrix_curvature),
    LogBingham: (_log_bingham, _log_bingham_curvature),
}


# ---------------------------------------------------------------- wrappers


@numba_basic.numba_njit
def _double(array):
    return np.ascontiguousarray(array).astype(np.float64)


@register_funcify_default_op_cache_key(Polar)
def _funcify_polar(op, node=None, **kwargs):
    kernel, special, dtype = _polar.load(), int(op.special), np.dtype(node.outputs[0].dtype)

    @numba_basic.numba_njit
    def polar(Z):
        X = _double(Z)  # a copy, to be overwritten
        kernel(Z.shape[0], Z.shape[1], special, X.ctypes, X.ctypes, X.ctypes)
        return X.astype(dtype)

    return polar, _CACHE_VERSION


@register_funcify_and_cache_key(BlockwiseWithCoreShape)
def _funcify_blockwise(op, node=None, **kwargs):
    """Polar factors of a batch. PyTensor's own loop assigns slices, for which numba compiles an error message."""
    [batch_node] = op.fgraph.apply_nodes
    core_op = batch_node.op.core_op
    if type(core_op) is not Polar:
        return _pytensor_blockwise(op, node=node, **kwargs)
    kernel, special, dtype = _polar.load(), int(core_op.special), np.dtype(node.outputs[0].dtype)

    @numba_basic.numba_njit
    def polar_factors(Z, core_shape):
        n, p = Z.shape[-2], Z.shape[-1]
        factors = _double(Z)  # a copy, to be overwritten
        matrices = factors.reshape(factors.size // (n * p), n * p)
        for matrix in matrices:
            kernel(n, p, special, matrix.ctypes, matrix.ctypes, matrix.ctypes)
        return factors.astype(dtype)

    return polar_factors, f"pymc_stiefel_polar_factors_{special}_{dtype}_{_CACHE_VERSION}"


@register_funcify_default_op_cache_key(PolarPullback)
def _funcify_polar_pullback(op, node=None, **kwargs):
    kernel, special, dtype = _polar_pullback.load(), int(op.special), np.dtype(node.outputs[0].dtype)

    @numba_basic.numba_njit
    def polar_pullback(Z, G):
        Z64, G64 = _double(Z), _double(G)
        result = np.empty(Z.shape)
        kernel(Z.shape[0], Z.shape[1], special, Z64.ctypes, G64.ctypes, result.ctypes)
        return result.astype(dtype)

    return polar_pullback, _CACHE_VERSION


@register_funcify_default_op_cache_key(CheckedProjection)
def _funcify_checked_projection(op, node=None, **kwargs):
    kernel, special, dtype = _polar.load(), int(op.special), np.dtype(node.outputs[0].dtype)
    tolerance = manifold_tolerance(node.outputs[0].dtype)

    @numba_basic.numba_njit
    def checked_projection(X):
        X64 = _double(X)
        if not _orthogonality_error(X64) <= tolerance:
            raise ValueError("the initial value is not orthonormal; project it with pymc_stiefel.geometry.polar")
        if special and reverses(X64):
            raise ValueError("the initial value has determinant -1, a rotation has +1; flip the sign of one column")
        result = np.empty(X.shape)
        kernel(X.shape[0], X.shape[1], special, X64.ctypes, X64.ctypes, result.ctypes)
        return result.astype(dtype)

    return checked_projection, _CACHE_VERSION


@register_funcify_default_op_cache_key(Normalizer)
def _funcify_normalizer(op, node=None, **kwargs):
    kernel, columns = _KERNELS[type(op)][0].load(), getattr(op, "p", 0)
    dtype = np.dtype(node.outputs[0].dtype)
    scalar = dtype.type

    @numba_basic.numba_njit
    def singular(n, s):
        s64 = _double(s)
        gradient = np.empty(len(s))
        value = kernel(n.item(), len(s), 0, s64.ctypes, s64.ctypes, gradient.ctypes)
        return np.asarray(scalar(value)), gradient.astype(dtype)

    @numba_basic.numba_njit
    def matrix(F):
        F64 = _double(F)
        gradient = np.empty(F.shape)
        p = F.shape[1] if columns == 0 else columns
        value = kernel(F.shape[0], p, 0, F64.ctypes, F64.ctypes, gradient.ctypes)
        return np.asarray(scalar(value)), gradient.astype(dtype)

    return (singular if isinstance(op, LogHyp0F1) else matrix), _CACHE_VERSION


@register_funcify_default_op_cache_key(Curvature)
def _funcify_curvature(op, node=None, **kwargs):
    kernel, columns = _KERNELS[type(op.law)][1].load(), getattr(op.law, "p", 0)
    dtype = np.dtype(node.outputs[0].dtype)

    @numba_basic.numba_njit
    def singular(n, s, C):
        s64, C64, result = _double(s), _double(C), np.empty(len(s))
        kernel(n.item(), len(s), 0, s64.ctypes, C64.ctypes, result.ctypes)
        return result.astype(dtype)

    @numba_basic.numba_njit
    def matrix(F, C):
        F64, C64, result = _double(F), _double(C), np.empty(F.shape)
        p = F.shape[1] if columns == 0 else columns
        kernel(F.shape[0], p, 0, F64.ctypes, C64.ctypes, result.ctypes)
        return result.astype(dtype)

    return (singular if isinstance(op.law, LogHyp0F1) else matrix), _CACHE_VERSION


@register_funcify_default_op_cache_key(PolarCurvature)
def _funcify_polar_curvature(op, node=None, **kwargs):
    kernel, special, dtype = _polar_curvature.load(), int(op.special), np.dtype(node.outputs[0].dtype)

    @numba_basic.numba_njit
    def polar_curvature(Z, G, C):
        n, p = Z.shape
        both, Z64, result = np.empty((2, n, p)), _double(Z), np.empty(Z.shape)
        both[0], both[1] = G, C
        kernel(n, p, special, Z64.ctypes, both.ctypes, result.ctypes)
        return result.astype(dtype)

    return polar_curvature, _CACHE_VERSION


@register_funcify_and_cache_key(RandomVariableWithCoreShape)
def _funcify_random_variable(op, node=None, **kwargs):
    """Draw a whole batch by one call of ``rng_fn``. PyTensor's own version would call it for each matrix."""
    [rv_node] = op.fgraph.apply_nodes
    if not isinstance(rv_node.op, StiefelRV):
        return _pytensor_random_variable(op, node=node, **kwargs)
    perform = rv_node.op.perform
    out_type = types.Tuple([numba_basic.get_numba_type(v.type) for v in rv_node.outputs])

    def draw(inputs):
        outputs: list[list] = [[None], [None]]
        perform(rv_node, inputs, outputs)
        return outputs[0][0], np.ascontiguousarray(outputs[1][0])

    @numba_basic.numba_njit
    def random(core_shape, *inputs):
        with numba.objmode(out=out_type):
            out = draw(inputs)
        return out

    return random, None
