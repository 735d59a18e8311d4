r"""Second derivatives of the normalisers, as products of the Hessian with a direction.

With respect to singular values (or eigenvalues) they are five-point differences of the gradient, which is exact up to
rounding; the relative error is about 1e-9. For a function that depends on a matrix through its singular values, the
derivative of the gradient is given, in their basis, by divided differences of the gradient with respect to the singular
values (Daleckii & Krein). For equal singular values these become differences of second derivatives.
"""

from __future__ import annotations

import numpy as np

from pymc_stiefel.engine.jit.compiling import compiled, part
from pymc_stiefel.normalizers._bingham import log_bingham_frame
from pymc_stiefel.normalizers._functions import log_hyp0f1

STEP = 3e-3
CLOSE = 1e-3  # relative distance below which values count as equal, because divided differences lose digits


@part
def _combine(near, far, step):
    """The five-point formula, from the differences over two and four steps."""
    return (8.0 * near - far) / (12.0 * step)


@part
def _langevin_hessian(n, s):
    p = len(s)
    hessian = np.empty((p, p))
    for i in range(p):
        step, t = STEP * (1.0 + s[i]), s.copy()
        differences = np.empty((2, p))
        for k in range(2):
            t[i] = s[i] + (k + 1) * step
            ahead = log_hyp0f1(n, t)[1]
            t[i] = s[i] - (k + 1) * step  # the value is even in each s, so a negative s is fine
            differences[k] = ahead - log_hyp0f1(n, t)[1]
        hessian[i] = _combine(differences[0], differences[1], step)
    return 0.5 * (hessian + hessian.T)


@part
def _bingham_hessian(p, a):
    n = len(a)
    hessian = np.empty((n, n))
    for i in range(n):
        t = a.copy()
        differences = np.empty((2, n))
        for k in range(2):
            t[i] = a[i] + (k + 1) * STEP
            ahead = log_bingham_frame(p, t)[1]
            t[i] = a[i] - (k + 1) * STEP
            differences[k] = ahead - log_bingham_frame(p, t)[1]
        hessian[i] = _combine(differences[0], differences[1], STEP)
    return 0.5 * (hessian + hessian.T)


@compiled
def singular_curvature(n, s, direction):
    """Derivative along ``direction`` of the gradient of ``log_hyp0f1`` in s >= 0."""
    return _langevin_hessian(n, s) @ direction


@part
def _divided(x, g, hessian):
    """(g_i - g_j) / (x_i - x_j), or its limit if the x are close."""
    size = len(x)
    result = np.zeros((size, size))
    for i in range(size):
        for j in range(size):
            gap = x[i] - x[j]
            if abs(gap) > CLOSE * (1.0 + abs(x[i])):
                result[i, j] = (g[i] - g[j]) / gap
            elif i != j:
                result[i, j] = 0.5 * (hessian[i, i] + hessian[j, j]) - hessian[i, j]
    return result


@compiled
def langevin_curvature(F, direction):
    """Derivative along ``direction`` of E[X] under the Langevin law, a function of F."""
    n, p = F.shape
    U, s, Vt = np.linalg.svd(F, False)
    U, V = np.ascontiguousarray(U), np.ascontiguousarray(Vt.T)
    g = log_hyp0f1(n, s)[1]
    hessian = _langevin_hessian(n, s)
    moved = direction @ V
    inner = np.ascontiguousarray(U.T) @ moved
    difference = _divided(s, g, hessian)
    change = np.zeros((p, p))
    for i in range(p):
        for j in range(p):
            if i == j:
                for k in range(p):
                    change[i, i] += hessian[i, k] * inner[k, k]
                continue
            total = s[i] + s[j]
            together = (g[i] + g[j]) / total if total > CLOSE else 0.5 * (hessian[i, i] + hessian[j, j]) + hessian[i, j]
            change[i, j] = 0.5 * difference[i, j] * (inner[i, j] + inner[j, i])
            change[i, j] += 0.5 * together * (inner[i, j] - inner[j, i])
    result = U @ change
    across = moved - U @ inner
    for j in range(p):
        result[:, j] += across[:, j] * (g[j] / s[j] if s[j] > CLOSE else hessian[j, j])
    return result @ np.ascontiguousarray(Vt)


@compiled
def bingham_curvature(A, direction, p):
    """Derivative along ``direction`` of E[XX'] under etr(X'AX), a function of A; only symmetric parts count."""
    a, V = np.linalg.eigh(0.5 * (A + A.T))
    V = np.ascontiguousarray(V)
    g = log_bingham_frame(p, a)[1]
    hessian = _bingham_hessian(p, a)
    inner = np.ascontiguousarray(V.T) @ (0.5 * (direction + direction.T)) @ V
    change = _divided(a, g, hessian) * inner
    for i in range(len(a)):
        for k in range(len(a)):
            change[i, i] += hessian[i, k] * inner[k, k]
    return V @ change @ np.ascontiguousarray(V.T)
