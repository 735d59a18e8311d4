r"""Compiled Gibbs sweeps on St(n, p), for laws with a low acceptance rate of rejection sampling.

The target is :math:`\exp(\mathrm{tr}(F'X) + \sum_j b_j x_j'Ax_j)`. All updates are exact draws from conditionals.

With F, a sweep updates each pair of columns within its plane, by a rotation and, for the Langevin law, also by a
reflection. It then updates each single column within the complement of the others. For n = p the latter draws the sign
of the column, which connects the two components of O(n).

Without F, a sweep rotates each pair of rows in the basis of A's eigenvectors and each pair of columns in that of B's.
Twice the angle has a von Mises distribution, so a pair costs a few dozen operations and needs no decomposition.

At high concentration these coordinates are nearly independent. At low concentration pair rotations are Kac's walk,
which mixes in a few sweeps; docs/normalizers.md has measurements.

References
----------
Hoff (2009), doi:10.1198/jcgs.2009.07177; Kent, Ganeiber & Mardia (2018), doi:10.1080/10618600.2017.1390468.
"""

from __future__ import annotations

import math

import numpy as np

from pymc_stiefel.draws._vectors import circle_deficit, envelope, fisher_bingham_vector, vmf_deficit, vmf_sign
from pymc_stiefel.engine.jit.compiling import compiled, part
from pymc_stiefel.normalizers._bessel import log_hyp0f1_vector


@compiled
def langevin_sweeps(X, F, special, sweeps, rng):
    """Gibbs sweeps in place for exp(tr(F'X)), within SO(n) if ``special``; n p^2 operations a sweep."""
    n, p = X.shape
    g, z = np.empty(n), np.empty(n)
    for _ in range(sweeps):
        for i in range(p):
            for j in range(i + 1, p):
                _langevin_pair(X, F, i, j, special, rng)
        for j in range(0 if special else p):
            _langevin_column(X, F, j, g, z, rng)


@part
def _langevin_pair(X, F, i, j, special, rng):
    """Multiply columns i, j by an element of O(2): draw the component by its Bessel weight, then a von Mises angle."""
    ii, jj, ij, ji = 0.0, 0.0, 0.0, 0.0
    for k in range(X.shape[0]):
        ii += F[k, i] * X[k, i]
        jj += F[k, j] * X[k, j]
        ij += F[k, i] * X[k, j]
        ji += F[k, j] * X[k, i]
    turn = math.hypot(ii + jj, ij - ji)
    flip = math.hypot(ii - jj, ij + ji)
    odds = log_hyp0f1_vector(2.0, flip)[0] - log_hyp0f1_vector(2.0, turn)[0] if not special else -math.inf
    if special or rng.random() * (1.0 + math.exp(min(odds, 700.0))) < 1.0:
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


@part
def _remove_others(g, X, j):
    """Orthogonalise g to all columns of X except j; twice, because of rounding errors."""
    n, p = X.shape
    for _ in range(2):
        for k in range(p):
            if k != j:
                dot = 0.0
                for i in range(n):
                    dot += g[i] * X[i, k]
                for i in range(n):
                    g[i] -= dot * X[i, k]


@part
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


@part
def bingham_langevin_sweeps(X, A, b, F, sweeps, rng):
    """Gibbs sweeps in place for exp(tr(F'X) + sum b_j x_j'Ax_j), about p ((n - p + 1)^3 + n^2) operations a sweep.

    Returns False if a draw from a conditional failed.
    """
    p = X.shape[1]
    ok = True
    for _ in range(sweeps):
        for i in range(p):
            for j in range(i + 1, p):
                ok = ok and _quadratic_pair(X, A, b, F, i, j, rng)
        for j in range(p):
            ok = ok and _quadratic_column(X, A, b, F, j, rng)
    return ok


@part
def _quadratic_pair(X, A, b, F, i, j, rng):
    """Rotate columns i, j. The angle has a Fisher-Bingham law on the circle; updates of columns include reflections."""
    n = X.shape[0]
    x, y = X[:, i].copy(), X[:, j].copy()
    Ax, Ay = A @ x, A @ y
    ii, jj = np.sum(F[:, i] * x), np.sum(F[:, j] * y)
    ij, ji = np.sum(F[:, i] * y), np.sum(F[:, j] * x)
    scale = b[i] - b[j]
    half = 0.5 * scale * (np.sum(x * Ax) - np.sum(y * Ay))
    cross = scale * np.sum(x * Ay)
    size = math.hypot(half, cross)
    angle = 0.5 * math.atan2(cross, half)  # of the larger principal axis
    c, s = math.cos(angle), math.sin(angle)
    f = np.array([c * (ii + jj) + s * (ij - ji), c * (ij - ji) - s * (ii + jj)])
    q = np.array([size, -size])
    out = np.empty(2)
    ok = fisher_bingham_vector(f, q, envelope(f, q), out, rng)
    cosine, sine = c * out[0] - s * out[1], s * out[0] + c * out[1]
    for k in range(n):
        X[k, i] = cosine * x[k] + sine * y[k]
        X[k, j] = cosine * y[k] - sine * x[k]
    return ok


@part
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
    q, V = np.linalg.eigh(b[j] * (np.ascontiguousarray(basis.T) @ (A @ basis)))
    N = basis @ np.ascontiguousarray(V)
    f = np.ascontiguousarray(N.T) @ np.ascontiguousarray(F[:, j])
    out = np.empty(m)
    ok = fisher_bingham_vector(f, q, envelope(f, q), out, rng)
    X[:, j] = N @ out
    return ok


# ---------------------------------------------------------------- Bingham laws, by plane rotations


@part
def bingham_rotations(X, a, b, sweeps, rng):
    """Gibbs sweeps in place for exp(sum a_i b_j x_ij^2): pairs of rows, then pairs of columns; 6 n^2 p operations.

    Rotations do not change the determinant of a square X, so signs of columns, which are uniform, are drawn at the end.
    """
    n, p = X.shape
    for _ in range(sweeps):
        for i in range(n):
            for k in range(i):
                first, second, cross = 0.0, 0.0, 0.0
                for j in range(p):
                    first += b[j] * X[i, j] * X[i, j]
                    second += b[j] * X[k, j] * X[k, j]
                    cross += b[j] * X[i, j] * X[k, j]
                scale = a[i] - a[k]
                cosine, sine = _axis_angle(0.5 * scale * (first - second), scale * cross, rng)
                for j in range(p):
                    x, y = X[i, j], X[k, j]
                    X[i, j] = cosine * x + sine * y
                    X[k, j] = cosine * y - sine * x
        for j in range(p):
            for l in range(j):
                first, second, cross = 0.0, 0.0, 0.0
                for i in range(n):
                    first += a[i] * X[i, j] * X[i, j]
                    second += a[i] * X[i, l] * X[i, l]
                    cross += a[i] * X[i, j] * X[i, l]
                scale = b[j] - b[l]
                cosine, sine = _axis_angle(0.5 * scale * (first - second), scale * cross, rng)
                for i in range(n):
                    x, y = X[i, j], X[i, l]
                    X[i, j] = cosine * x + sine * y
                    X[i, l] = cosine * y - sine * x
    for j in range(p):
        if rng.random() < 0.5:
            X[:, j] = -X[:, j]


@part
def _axis_angle(along, across, rng):
    """Cosine and sine of an angle t with density exp(along cos 2t + across sin 2t)."""
    size = math.hypot(along, across)
    deficit = circle_deficit(size, rng)
    cosine, sine = 1.0 - deficit, math.sqrt(deficit * (2.0 - deficit))
    word = rng.random()
    if word < 0.5:
        sine = -sine
    if size > 0.0:
        along, across = along / size, across / size
        cosine, sine = cosine * along - sine * across, sine * along + cosine * across
    if cosine >= 0.0:  # half-angle formula without cancellation
        half = math.sqrt(0.5 + 0.5 * cosine)
        cosine, sine = half, 0.5 * sine / half
    else:
        half = math.sqrt(0.5 - 0.5 * cosine)
        cosine, sine = 0.5 * sine / half, half
    return (cosine, sine) if 0.25 <= word < 0.75 else (-cosine, -sine)


@compiled
def bingham_chains(a, b, sweeps, out, done, rng):
    """Fill the draws of ``out[k]`` (draws, n, p) that are not done, by chains that start at the mode.

    ``a[k]`` and ``b[k]`` are ascending. Columns of the mode are those of the identity: the last for b > 0, the first
    for b < 0.
    """
    n, p = out.shape[2:]
    for k in range(len(a)):
        negative = 0
        for value in b[k]:
            negative += 1 if value < 0.0 else 0
        for draw in range(out.shape[1]):
            if not done[k, draw]:
                X = out[k, draw]
                X[:] = 0.0
                for j in range(p):
                    X[j if j < negative else n - p + j, j] = 1.0
                bingham_rotations(X, a[k], b[k], sweeps, rng)


@compiled
def langevin_chains(F, special, sweeps, out, rng):
    """Gibbs sweeps from ``out[k]`` (draws, n, p) for etr(F[k]'X)."""
    chain, columns = np.empty(out.shape[:1:-1]).T, np.empty(out.shape[:1:-1]).T  # the sweeps access columns
    for k in range(len(F)):
        columns[:] = F[k]
        for draw in range(out.shape[1]):
            chain[:] = out[k, draw]
            langevin_sweeps(chain, columns, special, sweeps, rng)
            out[k, draw] = chain


@compiled
def bingham_langevin_chains(A, b, F, sweeps, out, rng):
    """Gibbs sweeps from ``out[k]`` (draws, n, p) for exp(tr(F'X) + sum b_j x_j'Ax_j) [k]; False if one failed."""
    for k in range(len(A)):
        for draw in range(out.shape[1]):
            if not bingham_langevin_sweeps(out[k, draw], A[k], b[k], F[k], sweeps, rng):
                return False
    return True
