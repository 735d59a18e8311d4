"""Compiled versions of the Ops for PyTensor's numba backend, without object mode."""

from __future__ import annotations

import zlib
from pathlib import Path

import numba
import numpy as np
from pytensor.link.numba.dispatch import basic as numba_basic
from pytensor.link.numba.dispatch.basic import register_funcify_default_op_cache_key
from pytensor.link.numba.dispatch.random import numba_core_rv_funcify

from pymc_stiefel._bingham import _log_integral_frame, log_bingham_vector
from pymc_stiefel._normalizer_ops import (
    LogBingham,
    LogBinghamGradient,
    LogHyp0F1,
    LogHyp0F1Gradient,
    LogHyp0F1Matrix,
    LogHyp0F1MatrixGradient,
)
from pymc_stiefel.engine.compiling import compiled
from pymc_stiefel.normalizers import log_hyp0f1
from pymc_stiefel.ops import ALREADY_ORTHONORMAL, CheckedProjection, Polar, PolarPullback, StiefelRV, manifold_tolerance


def _sources_checksum() -> int:
    here = Path(__file__).parent
    files = [here / "normalizers.py", *sorted(here.glob("_[a-z]*.py"))]
    return zlib.crc32(b"".join(path.read_bytes() for path in files))


_CACHE_VERSION = _sources_checksum()
"""PyTensor caches compiled Ops on disk under this number, so it must change with the code that they call."""


@compiled
def _orthogonality_error(Z):
    n, p = Z.shape
    worst = 0.0
    for i in range(p):
        for j in range(i + 1):
            dot = -1.0 if i == j else 0.0
            for k in range(n):
                dot += Z[k, i] * Z[k, j]
            worst = max(worst, abs(dot))
    return worst


@compiled
def _signed_svd(Z, special):
    # numba's svd raises on non-finite input, so callers look first
    U, s, Vt = np.linalg.svd(Z, False)
    if special and np.linalg.det(U) * np.linalg.det(Vt) < 0:
        U[:, -1] = -U[:, -1]
        s[-1] = -s[-1]
    return U, s, Vt


@compiled
def polar_kernel(Z, special):
    """The polar factor of a float64 matrix, see ``ops.polar_numpy``."""
    if not np.all(np.isfinite(Z)):
        return np.full(Z.shape, np.nan)
    if _orthogonality_error(Z) < ALREADY_ORTHONORMAL and not (special and np.linalg.det(Z) < 0):
        return Z.copy()
    U, _, Vt = _signed_svd(Z, special)
    return U @ Vt


@compiled
def polar_pullback_kernel(Z, G, special):
    """``geometry.polar_pullback`` or ``geometry.rotation_pullback`` of float64 matrices."""
    n, p = Z.shape
    if not np.all(np.isfinite(Z)):
        return np.full(Z.shape, np.nan)
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
    return moved @ np.ascontiguousarray(Vt)


@register_funcify_default_op_cache_key(Polar)
def _funcify_polar(op, node=None, **kwargs):
    special, dtype = op.special, np.dtype(node.outputs[0].dtype)

    @numba_basic.numba_njit
    def polar(Z):
        return polar_kernel(np.ascontiguousarray(Z).astype(np.float64), special).astype(dtype)

    return polar, _CACHE_VERSION


@register_funcify_default_op_cache_key(PolarPullback)
def _funcify_polar_pullback(op, node=None, **kwargs):
    special, dtype = op.special, np.dtype(node.outputs[0].dtype)

    @numba_basic.numba_njit
    def polar_pullback(Z, G):
        Z64, G64 = np.ascontiguousarray(Z).astype(np.float64), np.ascontiguousarray(G).astype(np.float64)
        return polar_pullback_kernel(Z64, G64, special).astype(dtype)

    return polar_pullback, _CACHE_VERSION


@register_funcify_default_op_cache_key(CheckedProjection)
def _funcify_checked_projection(op, node=None, **kwargs):
    special, dtype = op.special, np.dtype(node.outputs[0].dtype)
    tolerance = manifold_tolerance(node.outputs[0].dtype)

    @numba_basic.numba_njit
    def checked_projection(X):
        X64 = np.ascontiguousarray(X).astype(np.float64)
        if not _orthogonality_error(X64) <= tolerance:
            raise ValueError("the initial value is not orthonormal; project it with pymc_stiefel.geometry.polar")
        if special and np.linalg.det(X64) < 0:
            raise ValueError("the initial value has determinant -1, a rotation has +1; flip the sign of one column")
        return polar_kernel(X64, special).astype(dtype)

    return checked_projection, _CACHE_VERSION


@compiled
def _log_hyp0f1(n, s):
    """``ops.log_hyp0f1_numpy``."""
    for k in range(len(s)):
        if not (np.isfinite(s[k]) and s[k] >= 0.0):
            return np.nan, np.full(len(s), np.nan)
    return log_hyp0f1(n, s)


@compiled
def _log_hyp0f1_matrix(F):
    if not np.all(np.isfinite(F)):
        return np.nan, np.full(F.shape, np.nan)
    U, s, Vt = np.linalg.svd(F, False)
    value, gradient = _log_hyp0f1(F.shape[0], s)
    return value, np.ascontiguousarray(U * gradient) @ np.ascontiguousarray(Vt)


@register_funcify_default_op_cache_key(LogHyp0F1)
def _funcify_log_hyp0f1(op, node=None, **kwargs):
    scalar = np.dtype(node.outputs[0].dtype).type

    @numba_basic.numba_njit
    def log_hyp0f1_value(n, s):
        value, _ = _log_hyp0f1(int(n.item()), np.ascontiguousarray(s).astype(np.float64))
        return np.asarray(scalar(value))

    return log_hyp0f1_value, _CACHE_VERSION


@register_funcify_default_op_cache_key(LogHyp0F1Gradient)
def _funcify_log_hyp0f1_gradient(op, node=None, **kwargs):
    dtype = np.dtype(node.outputs[0].dtype)

    @numba_basic.numba_njit
    def log_hyp0f1_gradient(n, s):
        _, gradient = _log_hyp0f1(int(n.item()), np.ascontiguousarray(s).astype(np.float64))
        return gradient.astype(dtype)

    return log_hyp0f1_gradient, _CACHE_VERSION


@register_funcify_default_op_cache_key(LogHyp0F1Matrix)
def _funcify_log_hyp0f1_matrix(op, node=None, **kwargs):
    scalar = np.dtype(node.outputs[0].dtype).type

    @numba_basic.numba_njit
    def log_hyp0f1_matrix(F):
        value, _ = _log_hyp0f1_matrix(np.ascontiguousarray(F).astype(np.float64))
        return np.asarray(scalar(value))

    return log_hyp0f1_matrix, _CACHE_VERSION


@register_funcify_default_op_cache_key(LogHyp0F1MatrixGradient)
def _funcify_log_hyp0f1_matrix_gradient(op, node=None, **kwargs):
    dtype = np.dtype(node.outputs[0].dtype)

    @numba_basic.numba_njit
    def log_hyp0f1_matrix_gradient(F):
        _, gradient = _log_hyp0f1_matrix(np.ascontiguousarray(F).astype(np.float64))
        return gradient.astype(dtype)

    return log_hyp0f1_matrix_gradient, _CACHE_VERSION


@compiled
def _log_bingham_half(p, a):
    """``_bingham.log_bingham_frame`` for ``2 p <= n``; no recursion, which crashes when loaded from PyTensor's cache."""
    if p == 1:
        return log_bingham_vector(a)
    value, gradient = _log_integral_frame(a, p)
    return value - _log_integral_frame(np.zeros(len(a)), p)[0], gradient


@compiled
def _log_bingham(A, p):
    """``_normalizer_ops.log_bingham_numpy``."""
    if not np.all(np.isfinite(A)):
        return np.nan, np.full(A.shape, np.nan)
    a, V = np.linalg.eigh((A + A.T) / 2)
    n = len(a)
    if p == n:
        value, gradient = np.sum(a), np.ones(n)
    elif 2 * p > n:
        value, gradient = _log_bingham_half(n - p, -a)
        value, gradient = value + np.sum(a), 1.0 - gradient
    else:
        value, gradient = _log_bingham_half(p, a)
    return value, np.ascontiguousarray(V * gradient) @ np.ascontiguousarray(V.T)


@register_funcify_default_op_cache_key(LogBingham)
def _funcify_log_bingham(op, node=None, **kwargs):
    p, scalar = op.p, np.dtype(node.outputs[0].dtype).type

    @numba_basic.numba_njit
    def log_bingham(A):
        value, _ = _log_bingham(np.ascontiguousarray(A).astype(np.float64), p)
        return np.asarray(scalar(value))

    return log_bingham, _CACHE_VERSION


@register_funcify_default_op_cache_key(LogBinghamGradient)
def _funcify_log_bingham_gradient(op, node=None, **kwargs):
    p, dtype = op.p, np.dtype(node.outputs[0].dtype)

    @numba_basic.numba_njit
    def log_bingham_gradient(A):
        _, gradient = _log_bingham(np.ascontiguousarray(A).astype(np.float64), p)
        return gradient.astype(dtype)

    return log_bingham_gradient, _CACHE_VERSION


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
