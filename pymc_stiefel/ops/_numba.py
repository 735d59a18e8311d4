"""Compiled versions of the Ops for PyTensor's numba backend, without object mode.

numba optimises everything a function calls again at every level that calls it, and PyTensor has four levels. So the
kernels, with their decompositions and series, are compiled once as C functions and called by symbol: what is
compiled for each model is a thin wrapper. All kernels have the signature
``double kernel(int64 n, int64 p, int64 special, double *first, double *second, double *out)``.
"""

from __future__ import annotations

from collections.abc import Callable

import numba
import numpy as np
from numba import types
from pytensor.link.numba.dispatch import basic as numba_basic
from pytensor.link.numba.dispatch.basic import register_funcify_default_op_cache_key
from pytensor.link.numba.dispatch.random import numba_core_rv_funcify

from pymc_stiefel.engine.compiling import Routine, compiled, source_key
from pymc_stiefel.engine.vectors import dot
from pymc_stiefel.normalizers._bingham import log_bingham_frame
from pymc_stiefel.normalizers._functions import log_hyp0f1
from pymc_stiefel.ops._normalizers import (
    LogBingham,
    LogBinghamGradient,
    LogHyp0F1,
    LogHyp0F1Gradient,
    LogHyp0F1Matrix,
    LogHyp0F1MatrixGradient,
)
from pymc_stiefel.ops._polar import (
    ALREADY_ORTHONORMAL,
    CheckedProjection,
    Polar,
    PolarPullback,
    StiefelRV,
    manifold_tolerance,
)

_CACHE_VERSION = int(source_key(__file__)[:8], 16)
"""PyTensor and numba cache on disk under this number, so it must change with the code behind the symbols."""

_ARRAY = types.CPointer(types.float64)
_SIGNATURE = types.float64(types.int64, types.int64, types.int64, _ARRAY, _ARRAY, _ARRAY)


def _kernel(function: Callable) -> Routine:
    """Decorator: a kernel of the common signature."""
    return Routine(f"pymc_stiefel{function.__name__}_{_CACHE_VERSION:x}", function, _SIGNATURE)


# ---------------------------------------------------------------- kernels


@compiled
def _signed_svd(Z, special):
    U, s, Vt = np.linalg.svd(Z, False)
    if special and np.linalg.det(U) * np.linalg.det(Vt) < 0:
        U[:, -1] = -U[:, -1]
        s[-1] = -s[-1]
    return U, s, Vt


@compiled
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
    if _orthogonality_error(Z) < ALREADY_ORTHONORMAL and not (special and np.linalg.det(Z) < 0):
        X[:] = Z
    elif not np.all(np.isfinite(Z)):  # numba's svd would raise
        X[:] = np.nan
    else:
        U, _, Vt = _signed_svd(Z, special)
        X[:] = U @ Vt
    return 0.0


@_kernel
def _polar_pullback(n, p, special, first, second, out):
    """``geometry.polar_pullback`` or ``geometry.rotation_pullback``."""
    Z, G, result = numba.carray(first, (n, p)), numba.carray(second, (n, p)), numba.carray(out, (n, p))
    if not np.all(np.isfinite(Z)):
        result[:] = np.nan
        return 0.0
    U, s, Vt = _signed_svd(Z, special)
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
    result[:] = moved @ np.ascontiguousarray(Vt)
    return 0.0


@compiled
def _log_hyp0f1_or_nan(n, s):
    for k in range(len(s)):
        if not (np.isfinite(s[k]) and s[k] >= 0.0):
            return np.nan, np.full(len(s), np.nan)
    return log_hyp0f1(n, s)


@_kernel
def _log_hyp0f1(n, p, special, first, second, out):
    """``_normalizer_ops.log_hyp0f1_numpy``."""
    value, gradient = _log_hyp0f1_or_nan(n, numba.carray(first, (p,)).copy())
    numba.carray(out, (p,))[:] = gradient
    return value


@_kernel
def _log_hyp0f1_matrix(n, p, special, first, second, out):
    F, result = numba.carray(first, (n, p)), numba.carray(out, (n, p))
    result[:] = np.nan
    if not np.all(np.isfinite(F)):
        return np.nan
    U, s, Vt = np.linalg.svd(F, False)
    value, gradient = _log_hyp0f1_or_nan(n, s)
    result[:] = np.ascontiguousarray(U * gradient) @ np.ascontiguousarray(Vt)
    return value


@_kernel
def _log_bingham(n, p, special, first, second, out):
    """``_normalizer_ops.log_bingham_numpy``."""
    A, result = numba.carray(first, (n, n)), numba.carray(out, (n, n))
    result[:] = np.nan
    if not np.all(np.isfinite(A)):
        return np.nan
    a, V = np.linalg.eigh((A + A.T) / 2)
    value, gradient = log_bingham_frame(p, a)
    result[:] = np.ascontiguousarray(V * gradient) @ np.ascontiguousarray(V.T)
    return value


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
        if special and np.linalg.det(X64) < 0:
            raise ValueError("the initial value has determinant -1, a rotation has +1; flip the sign of one column")
        result = np.empty(X.shape)
        kernel(X.shape[0], X.shape[1], special, X64.ctypes, X64.ctypes, result.ctypes)
        return result.astype(dtype)

    return checked_projection, _CACHE_VERSION


@register_funcify_default_op_cache_key(LogHyp0F1)
def _funcify_log_hyp0f1(op, node=None, **kwargs):
    kernel, scalar = _log_hyp0f1.load(), np.dtype(node.outputs[0].dtype).type

    @numba_basic.numba_njit
    def log_hyp0f1_value(n, s):
        s64 = _double(s)
        gradient = np.empty(len(s))
        return np.asarray(scalar(kernel(n.item(), len(s), 0, s64.ctypes, s64.ctypes, gradient.ctypes)))

    return log_hyp0f1_value, _CACHE_VERSION


@register_funcify_default_op_cache_key(LogHyp0F1Gradient)
def _funcify_log_hyp0f1_gradient(op, node=None, **kwargs):
    kernel, dtype = _log_hyp0f1.load(), np.dtype(node.outputs[0].dtype)

    @numba_basic.numba_njit
    def log_hyp0f1_gradient(n, s):
        s64 = _double(s)
        gradient = np.empty(len(s))
        kernel(n.item(), len(s), 0, s64.ctypes, s64.ctypes, gradient.ctypes)
        return gradient.astype(dtype)

    return log_hyp0f1_gradient, _CACHE_VERSION


def _matrix_value(kernel, columns, dtype):
    """Value of a kernel of one matrix, with ``p`` its number of columns or a given one."""
    scalar = np.dtype(dtype).type

    @numba_basic.numba_njit
    def matrix_value(F):
        F64 = _double(F)
        gradient = np.empty(F.shape)
        p = F.shape[1] if columns == 0 else columns
        return np.asarray(scalar(kernel(F.shape[0], p, 0, F64.ctypes, F64.ctypes, gradient.ctypes)))

    return matrix_value


def _matrix_gradient(kernel, columns, dtype):
    dtype = np.dtype(dtype)

    @numba_basic.numba_njit
    def matrix_gradient(F):
        F64 = _double(F)
        gradient = np.empty(F.shape)
        p = F.shape[1] if columns == 0 else columns
        kernel(F.shape[0], p, 0, F64.ctypes, F64.ctypes, gradient.ctypes)
        return gradient.astype(dtype)

    return matrix_gradient


@register_funcify_default_op_cache_key(LogHyp0F1Matrix)
def _funcify_log_hyp0f1_matrix(op, node=None, **kwargs):
    return _matrix_value(_log_hyp0f1_matrix.load(), 0, node.outputs[0].dtype), _CACHE_VERSION


@register_funcify_default_op_cache_key(LogHyp0F1MatrixGradient)
def _funcify_log_hyp0f1_matrix_gradient(op, node=None, **kwargs):
    return _matrix_gradient(_log_hyp0f1_matrix.load(), 0, node.outputs[0].dtype), _CACHE_VERSION


@register_funcify_default_op_cache_key(LogBingham)
def _funcify_log_bingham(op, node=None, **kwargs):
    return _matrix_value(_log_bingham.load(), op.p, node.outputs[0].dtype), _CACHE_VERSION


@register_funcify_default_op_cache_key(LogBinghamGradient)
def _funcify_log_bingham_gradient(op, node=None, **kwargs):
    return _matrix_gradient(_log_bingham.load(), op.p, node.outputs[0].dtype), _CACHE_VERSION


@numba_core_rv_funcify.register(StiefelRV)
def _funcify_random_variable(op, node):
    """Exact draws are NumPy code, called back from compiled code: a matrix at a time, once per draw."""
    out_type = numba.float64[::1] if op.vector else numba.float64[:, ::1]

    def draw(rng, params):
        return np.ascontiguousarray(op.rng_fn(rng, *params, None), dtype=np.float64)

    @numba_basic.numba_njit
    def random(rng, *params):
        with numba.objmode(out=out_type):
            out = draw(rng, params)
        return out

    return random, None
