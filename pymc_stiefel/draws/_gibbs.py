r"""Compiled Gibbs sweeps on St(n, p), for laws that rejection cannot reach.

The target is :math:`\exp(\mathrm{tr}(F'X) + \sum_j b_j x_j'Ax_j)`. One sweep redraws, exactly from their conditionals,
each pair of columns within its plane (rotation, and reflection where the law is a Langevin one) and each single column
within the complement of the others (for n = p that is its sign, which carries the chain between the two components
of O(n)). At high concentration these coordinates are nearly independent and at low concentration pair rotations are
Kac's walk, which mixes in a few sweeps: see docs/normalizers.md for measured autocorrelations.

References
----------
Hoff (2009), doi:10.1198/jcgs.2009.07177; Kent, Ganeiber & Mardia (2018), doi:10.1080/10618600.2017.1390468.
"""

from __future__ import annotations

import math

import numpy as np

from pymc_stiefel.draws._rejection import fisher_bingham_vector, vmf_deficit, vmf_sign
from pymc_stiefel.engine.compiling import compiled
from pymc_stiefel.normalizers._bessel import log_hyp0f1_vector


@compiled
def langevin_sweeps(X, F, sweeps, rng):
    """Gibbs sweeps in place for exp(tr(F'X)); n p^2 operations a sweep."""
    n, p = X.shape
    g, z = np.empty(n), np.empty(n)
    for _ in range(sweeps):
        for i in range(p):
            for j in range(i + 1, p):
                _langevin_pair(X, F, i, j, rng)
        for j in range(p):
            _langevin_column(X, F, j, g, z, rng)


@compiled
def _langevin_pair(X, F, i, j, rng):
    """Columns i, j times an element of O(2): choose the component by its Bessel weight, then a von Mises angle."""
    ii, jj, ij, ji = 0.0, 0.0, 0.0, 0.0
    for k in range(X.shape[0]):
        ii += F[k, i] * X[k, i]
        jj += F[k, j] * X[k, j]
        ij += F[k, i] * X[k, j]
        ji += F[k, j] * X[k, i]
    turn = math.hypot(ii + jj, ij - ji)
    flip = math.hypot(ii - jj, ij + ji)
    odds = log_hyp0f1_vector(2.0, flip)[0] - log_hyp0f1_vector(2.0, turn)[0]
    if rng.random() * (1.0 + math.exp(odds)) < 1.0:
        along, across, size, side = ii + jj, ij - ji, turn, 1.0
    else:
        along, across, size, side = ii - jj, ij + ji, flip, -1.0
    deficit = vmf_deficit(2.0, size, rng)
    cosine, sine = 1.0 - deficit, math.sqrt(deficit * (2.0 - deficit))
    if rng.random() < 0.5:
        sine = -sine
    if size > 0.0:
        along, across = along / size, across / size
        cosine, sine = cosine * along - sine * across, sine * along + cosine * across
    for k in range(X.shape[0]):
        x, y = X[k, i], X[k, j]
        X[k, i] = cosine * x + sine * y
        X[k, j] = side * (cosine * y - sine * x)


@compiled
def _remove_others(g, X, j):
    """Remove all columns of X but j from g, twice, for rounding."""
    n, p = X.shape
    for _ in range(2):
        for k in range(p):
            if k != j:
                dot = 0.0
                for i in range(n):
                    dot += g[i] * X[i, k]
                for i in range(n):
                    g[i] -= dot * X[i, k]


@compiled
def _langevin_column(X, F, j, g, z, rng):
    """Column j given the others: von Mises-Fisher in their complement, of dimension n - p + 1."""
    n, p = X.shape
    if n == p:
        kappa = np.sum(F[:, j] * X[:, j])
        if vmf_sign(abs(kappa), rng) * kappa < 0.0 or (kappa == 0.0 and rng.random() < 0.5):
            X[:, j] = -X[:, j]
        return
    g[:] = F[:, j]
    _remove_others(g, X, j)
    kappa = math.sqrt(np.sum(g * g))
    for i in range(n):
        z[i] = rng.standard_normal()
    _remove_others(z, X, j)
    if kappa > 0.0:
        g /= kappa
        for _ in range(2):
            z -= np.sum(z * g) * g
    norm = math.sqrt(np.sum(z * z))
    if kappa > 0.0:
        deficit = vmf_deficit(float(n - p + 1), kappa, rng)
        X[:, j] = (1.0 - deficit) * g + math.sqrt(deficit * (2.0 - deficit)) / norm * z
    else:
        X[:, j] = z / norm


@compiled
def bingham_langevin_sweeps(X, A, b, F, sweeps, rng):
    """Gibbs sweeps in place for exp(tr(F'X) + sum b_j x_j'Ax_j); about p (n - p + 1)^3 + n^2 p operations a sweep."""
    p = X.shape[1]
    f, Q, out = np.empty(2), np.empty((2, 2)), np.empty(2)
    for _ in range(sweeps):
        for i in range(p):
            for j in range(i + 1, p):
                _quadratic_pair(X, A, b, F, i, j, f, Q, out, rng)
        for j in range(p):
            _quadratic_column(X, A, b, F, j, rng)


@compiled
def _quadratic_pair(X, A, b, F, i, j, f, Q, out, rng):
    """Rotate columns i, j: the angle has a Fisher-Bingham law on the circle; reflections are left to the columns."""
    n = X.shape[0]
    x, y = X[:, i].copy(), X[:, j].copy()
    Ax, Ay = A @ x, A @ y
    ii, jj = np.sum(F[:, i] * x), np.sum(F[:, j] * y)
    ij, ji = np.sum(F[:, i] * y), np.sum(F[:, j] * x)
    scale = b[i] - b[j]
    f[0], f[1] = ii + jj, ij - ji
    Q[0, 0], Q[1, 1] = scale * np.sum(x * Ax), scale * np.sum(y * Ay)
    Q[0, 1] = Q[1, 0] = scale * np.sum(x * Ay)
    fisher_bingham_vector(f, Q, out, rng)
    for k in range(n):
        X[k, i] = out[0] * x[k] + out[1] * y[k]
        X[k, j] = out[0] * y[k] - out[1] * x[k]


@compiled
def _quadratic_column(X, A, b, F, j, rng):
    """Column j given the others: an exact Fisher-Bingham draw in their complement."""
    n, p = X.shape
    m = n - p + 1
    others = np.empty((n, p))
    others[:, 0] = X[:, j]
    k = 1
    for i in range(p):
        if i != j:
            others[:, k] = X[:, i]
            k += 1
    basis = np.empty((n, m))
    basis[:, 0] = X[:, j]
    if m > 1:  # the complement of all columns, by full orthogonalisation
        basis[:, 1:] = np.linalg.svd(others)[0][:, p:]
    N = np.ascontiguousarray(basis)
    f = N.T @ np.ascontiguousarray(F[:, j])
    Q = b[j] * (N.T @ (A @ N))
    out = np.empty(m)
    fisher_bingham_vector(f, Q, out, rng)
    X[:, j] = N @ out
