"""The second derivative of the polar factor, in compiled code."""

from __future__ import annotations

import numpy as np

from pymc_stiefel.engine.jit.compiling import compiled, part


@part
def reverses(matrix):
    """Whether the determinant is negative. ``np.linalg.det`` would take two seconds to compile."""
    n, negative, left = len(matrix), False, np.empty(matrix.shape)
    for i in range(n):
        for j in range(n):
            left[i, j] = matrix[i, j]
    for k in range(n):
        best = k
        for i in range(k + 1, n):
            if abs(left[i, k]) > abs(left[best, k]):
                best = i
        pivot = left[best, k]
        if pivot == 0.0:
            return False
        negative ^= (pivot < 0.0) ^ (best != k)
        for j in range(k, n):
            left[best, j], left[k, j] = left[k, j], left[best, j]
        for i in range(k + 1, n):
            factor = left[i, k] / pivot
            for j in range(k, n):
                left[i, j] -= factor * left[k, j]
    return negative


@part
def signed_svd(Z, special):
    """Thin SVD. If ``special``, U V' is a rotation, and the last singular value has the sign of the determinant."""
    U, s, Vt = np.linalg.svd(Z, False)
    if special and reverses(U.T) != reverses(Vt.T):  # LAPACK's matrices are stored by columns, their transposes by rows
        for i in range(len(U)):  # assigning a column would compile an error message, for a second
            U[i, -1] = -U[i, -1]
        s[-1] = -s[-1]
    return U, s, Vt


@part
def _rotation_part(T, s):
    """The skew K with K diag(s) + diag(s) K = T, for skew T."""
    K = np.zeros(T.shape)
    for i in range(len(s)):
        for j in range(len(s)):
            if i != j:
                K[i, j] = T[i, j] / (s[i] + s[j])
    return K


@compiled
def polar_curvature(Z, G, C, special):
    r"""Derivative along ``C`` of the pullback of ``G`` through the polar factor of ``Z``.

    The polar factor X is the gradient of the nuclear norm, so its derivative L is symmetric, and the result is
    symmetric in G and C. With H = X'Z, L(G) = X K + (G - X X'G) H^-1 where K H + H K = X'G - G'X; the formulas below
    differentiate these, in the basis in which H is diagonal.
    """
    n, p = Z.shape
    U, s, Vt = signed_svd(Z, special)
    X, V, Vt = np.ascontiguousarray(U), np.ascontiguousarray(Vt.T), np.ascontiguousarray(Vt)
    Xt = np.ascontiguousarray(X.T)
    G, C = np.ascontiguousarray(G) @ V, np.ascontiguousarray(C) @ V
    XtG, XtC = Xt @ G, Xt @ C
    K = _rotation_part(XtG - XtG.T, s)
    dX = X @ _rotation_part(XtC - XtC.T, s)
    if n > p:
        dX += (C - X @ XtC) / s
    dXt = np.ascontiguousarray(dX.T)
    dH = (dXt @ X) * s + XtC
    dXtG = dXt @ G
    dK = _rotation_part(dXtG - dXtG.T - K @ dH - dH @ K, s)
    result = dX @ K + X @ dK
    if n > p:
        across = (G - X @ XtG) / s
        result -= (dX @ XtG + X @ dXtG + across @ dH) / s
    return result @ Vt
