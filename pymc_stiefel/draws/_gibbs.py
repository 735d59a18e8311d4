r"""Compiled Gibbs sweeps on St(n, p), for laws with a low acceptance rate of rejection sampling.

The target is :math:`\exp(\mathrm{tr}(F'X) + \sum_j b_j x_j'Ax_j)`. All updates are exact draws from conditionals.

A sweep updates each pair of columns within its plane, by a rotation and, for the Langevin law, also by a reflection. It
then updates each single column within the complement of the others. For n = p the latter draws the sign of the column,
which connects the two components of O(n). docs/normalizers.md measures how fast the sweeps converge.

For Bingham laws of nearly square matrices, a sweep instead rotates each pair of rows in the basis of A's eigenvectors
and each pair of columns in that of B's. Twice the angle has a von Mises distribution.

References
----------
Hoff (2009), doi:10.1198/jcgs.2009.07177; Kent, Ganeiber & Mardia (2018), doi:10.1080/10618600.2017.1390468.
"""

from __future__ import annotations

import math

import numpy as np

from pymc_stiefel.draws._complement import complement_vector, into_complement, orthogonalise
from pymc_stiefel.draws._vectors import circle_deficit, envelope, fisher_bingham_vector, vmf_deficit, vmf_sign
from pymc_stiefel.engine.jit.compiling import compiled, part
from pymc_stiefel.normalizers._bessel import log_hyp0f1_vector


@compiled
def langevin_sweeps(X, F, special, sweeps, rng):
    """Gibbs sweeps in place for exp(tr(F'X)), within SO(n) if ``special``; n p^2 operations per sweep."""
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
    """Make g orthogonal to all columns of X except j, in two passes because of rounding errors."""
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


# ---------------------------------------------------------------- laws with a quadratic part, by columns


@part
def quadratic_sweeps(X, a, b, F, fit, sweeps, rng):
    """Gibbs sweeps in place for exp(tr(F'X) + sum a_i b_j x_ij^2): every pair of columns, then every column.

    Rows of ``X`` and ``F`` are the columns of the matrices. ``fit`` (p, p, 2) keeps the envelopes of pairs and, on the
    diagonal, of columns. O(n p^3) operations per sweep. Returns False if a draw from a conditional failed.
    """
    p, n = X.shape
    f, q, old, ok = np.empty(n), np.empty(n), np.empty(n), True
    for _ in range(sweeps):
        for i in range(p):
            for j in range(i + 1, p):
                ok = ok and _quadratic_pair(X, a, b, F, i, j, fit[i, j], rng)
        for j in range(p):
            last = X[p - 1]
            for i in range(n):  # swap rows j and p - 1: the others are then the first p - 1 rows
                old[i] = X[j, i]
                X[j, i] = last[i]
                f[i], q[i] = F[j, i], b[j] * a[i]
            ok = ok and _quadratic_column(f, q, X[: p - 1], fit[j, j], old, last, rng)
            for i in range(n):
                X[j, i], last[i] = last[i], X[j, i]
    return ok


@part
def _quadratic_pair(X, a, b, F, i, j, fit, rng):
    """Rotate columns i, j. The angle has a Fisher-Bingham law on the circle; updates of columns include reflections."""
    n = X.shape[1]
    ii, jj, ij, ji, first, second, mixed = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for k in range(n):
        x, y = X[i, k], X[j, k]
        ii += F[i, k] * x
        jj += F[j, k] * y
        ij += F[i, k] * y
        ji += F[j, k] * x
        first += a[k] * x * x
        second += a[k] * y * y
        mixed += a[k] * x * y
    scale = b[i] - b[j]
    half, cross = 0.5 * scale * (first - second), scale * mixed
    along, across = ii + jj, ij - ji
    if along == 0.0 and across == 0.0:
        cosine, sine = _axis_angle(half, cross, rng)
    else:
        size = math.hypot(half, cross)
        angle = 0.5 * math.atan2(cross, half)  # of the larger principal axis
        c, s = math.cos(angle), math.sin(angle)
        f = np.array([c * along + s * across, c * across - s * along])
        q = np.array([size, -size])
        out = np.empty(2)
        if not complement_vector(f, q, X[:0, :2], fit, out, rng):
            return False
        cosine, sine = c * out[0] - s * out[1], s * out[0] + c * out[1]
    for k in range(n):
        x, y = X[i, k], X[j, k]
        X[i, k] = cosine * x + sine * y
        X[j, k] = cosine * y - sine * x
    return True


@part
def _quadratic_column(f, q, others, fit, old, out, rng):
    """A column given the others: an exact Fisher-Bingham draw in their complement. ``old`` is the present column."""
    k, n = others.shape
    orthogonalise(f, others, k, n)
    if n > 2 * k:
        return complement_vector(f, q, others, fit, out, rng)
    m = n - k
    basis = np.empty((n, m))
    basis[:, 0] = old
    if m > 1:  # a basis of the complement, by full orthogonalisation
        every = np.empty((n, k + 1))
        every[:, 0] = old
        every[:, 1:] = others.T
        basis[:, 1:] = np.linalg.svd(every)[0][:, k + 1 :]
    weighted = np.empty((n, m))
    for i in range(n):
        weighted[i] = q[i] * basis[i]
    values, vectors = np.linalg.eigh(np.ascontiguousarray(basis.T) @ weighted)
    axes = basis @ np.ascontiguousarray(vectors)
    inner, drawn = np.ascontiguousarray(axes.T) @ f, np.empty(m)
    ok = fisher_bingham_vector(inner, values, envelope(inner, values), drawn, rng)
    out[:] = axes @ drawn
    return ok


@compiled
def quadratic_chains(a, b, F, sweeps, out, done, rng):
    """Fill the draws of ``out[k]`` (draws, p, n; rows are columns) that are not done; False if one failed.

    The density is exp(tr(F'X) + sum a_i b_j x_ij^2), and rows of ``F`` are columns, too. At the start of a chain,
    columns are drawn one after another, each in the complement of those before it, the most concentrated first.
    """
    p, n = out.shape[2:]
    f, q, old = np.empty(n), np.empty(n), np.empty(n)
    for k in range(len(a)):
        fit, start = np.zeros((p, p, 2)), np.zeros((p, 2))
        order = np.empty(p)
        for j in range(p):
            order[j] = -abs(b[k, j]) * (a[k, -1] - a[k, 0]) - np.abs(F[k, j]).sum()
        turns = np.argsort(order)
        drawn = np.empty((p, n))
        for draw in range(out.shape[1]):
            if done[k, draw]:
                continue
            for step in range(p):
                j = turns[step]
                for i in range(n):
                    f[i], q[i], old[i] = F[k, j, i], b[k, j] * a[k, i], rng.standard_normal()
                into_complement(old, drawn[:step])
                if not _quadratic_column(f, q, drawn[:step], start[step], old, drawn[step], rng):
                    return False
            for step in range(p):
                out[k, draw, turns[step]] = drawn[step]
            if not quadratic_sweeps(out[k, draw], a[k], b[k], F[k], fit, sweeps, rng):
                return False
    return True


# ---------------------------------------------------------------- Bingham laws, by plane rotations


@part
def bingham_rotations(X, a, b, sweeps, rng):
    """Gibbs sweeps in place for exp(sum a_i b_j x_ij^2): pairs of rows, then pairs of columns; 6 n^2 p operations.

    Rotations do not change the determinant of a square X, so the signs of columns, which are uniform, are drawn last.
    """
    for _ in range(sweeps):
        _rotate_rows(X, a, b, rng)
        _rotate_rows(X.T, b, a, rng)
    for j in range(X.shape[1]):
        if rng.random() < 0.5:
            X[:, j] = -X[:, j]


@part
def _rotate_rows(X, a, b, rng):
    """Rotate every pair of rows by an angle from its conditional law."""
    n, p = X.shape
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
