"""Matrices with orthonormal columns."""

from __future__ import annotations

import numpy as np

from pymc_stiefel.engine.drifts import AUTOMATIC, CAYLEY, SPLITTING
from pymc_stiefel.engine.jit.blas import add_product, copy_matrix, cross, gram_matrix
from pymc_stiefel.engine.jit.compiling import inner
from pymc_stiefel.engine.jit.memory import view
from pymc_stiefel.engine.jit.random import fill_normal, normal
from pymc_stiefel.engine.jit.vectors import dot
from pymc_stiefel.engine.manifolds.base import Manifold

WIDEST_SPLIT = 12
"""Number of columns up to which learnt masses are worth the extra cost of the splitting drift over the Cayley map."""

NEGLIGIBLE = 1e-14
"""Error of X'X below which no correction is made: about the rounding errors of a few trajectories."""


@inner
def split(blas, x, g, a):
    """``g <- G - X X'G`` and ``a = skew(X'G)``."""
    p, n = x.shape
    if is_zero(g):  # a uniform matrix
        a[:] = 0.0
        return
    cross(blas, g, x, a)  # (X'G)'
    if n == p:
        g[:] = 0.0
    else:
        add_product(blas, -1.0, a, x, g)
    _make_skew(a)


@inner
def is_zero(matrix):
    for i in range(matrix.shape[0]):
        for j in range(matrix.shape[1]):
            if matrix[i, j] != 0.0:
                return False
    return True


@inner
def skew(blas, x, g, a):
    cross(blas, g, x, a)  # (X'G)'
    _make_skew(a)


@inner
def _make_skew(transposed):
    """Replace ``M'`` by ``skew(M)``, in place."""
    for i in range(transposed.shape[0]):
        transposed[i, i] = 0.0
        for j in range(i):
            part = 0.5 * (transposed[j, i] - transposed[i, j])
            transposed[i, j] = part
            transposed[j, i] = -part


@inner
def draw(source, a, b, c, w):
    p, n = b.shape
    for j in range(p):
        row, masses = a[j, :j], w[j, :j]
        fill_normal(source, row)
        for i in range(j):
            row[i] /= np.sqrt(2.0 * masses[i])
        for i in range(j):
            a[i, j] = -row[i]
        a[j, j] = 0.0
        if n > p:
            draw_column(source, b[j], c[j])
    if n == p:
        b[:] = 0.0


@inner
def draw_column(source, b, mass):
    fill_normal(source, b)
    scale = 1.0 / np.sqrt(mass)
    for k in range(b.size):
        b[k] *= scale


@inner
def add_noise(source, a, b, c, w, keep, spread):
    """Only if all columns have the same mass, and all pairs."""
    p, n = b.shape
    scale = spread / np.sqrt(2.0 * w[0, 0])
    for i in range(p):
        for j in range(i):
            a[i, j] = keep * a[i, j] + scale * normal(source)
            a[j, i] = -a[i, j]
    if n > p:
        add_normals(source, b.reshape(n * p), keep, spread / np.sqrt(c[0]))


@inner
def add_normals(source, vector, keep, scale):
    for i in range(vector.size):
        vector[i] = keep * vector[i] + scale * normal(source)


@inner
def tangent(blas, x, a, b, scratch):
    """Remove rounding errors of ``X'B``.

    They are of size 1e-16. But a kick turns an error ``E`` of ``X'X`` into a normal momentum ``-E X'G``, which the
    drift turns into a larger ``E``. With a steep density, errors would grow exponentially along a trajectory.
    """
    p, n = x.shape
    if n > p:
        normal_part = view(scratch, 0, p, p)
        cross(blas, b, x, normal_part)
        add_product(blas, -1.0, normal_part, x, b)


@inner
def kinetic(a, b, c, w):
    total = 0.0
    for j in range(b.shape[0]):
        total += c[j] * dot(b[j], b[j])
        for i in range(j):
            total += 2.0 * w[i, j] * a[i, j] ** 2
    return total


@inner
def velocity(blas, x, a, b, c, w, r, v, scratch):
    """``r = X A + B`` and ``v = X (w A) + B c``."""
    p, n = x.shape
    copy_matrix(b, r)
    add_product(blas, -1.0, a, x, r)  # A is skew: rows of (X A)' are -A X'
    if _has_one_mass(c, w):  # one mass for columns and one for pairs: v is a linear combination of r and B
        pair = w[0, p - 1]
        for j in range(p):
            for k in range(n):
                v[j, k] = pair * r[j, k] + (c[0] - pair) * b[j, k]
        return
    weighted = view(scratch, 0, p, p)
    for j in range(p):
        for i in range(p):
            weighted[j, i] = w[j, i] * a[j, i]
        for k in range(n):
            v[j, k] = c[j] * b[j, k]
    add_product(blas, -1.0, weighted, x, v)


@inner
def _has_one_mass(c, w):
    for j in range(c.size):
        if c[j] != c[0]:
            return False
        for i in range(j):
            if w[i, j] != w[0, c.size - 1]:
                return False
    return True


@inner
def repair(blas, x, scratch):
    """One Newton step ``X <- X (3 I - X'X) / 2`` if the error is too large."""
    p, n = x.shape
    error = view(scratch, 0, p, p)
    gram_matrix(blas, x, error)
    largest = 0.0
    for i in range(p):
        error[i, i] -= 1.0
        for j in range(i + 1):
            largest = max(largest, abs(error[i, j]))
    if not largest < NEGLIGIBLE:
        old = view(scratch, p * p, p, n)
        copy_matrix(x, old)
        add_product(blas, -0.5, error, old, x)
    return largest


def drift(asked: str, p: int) -> str:
    if asked != AUTOMATIC:
        return asked
    return CAYLEY if p > WIDEST_SPLIT else SPLITTING


MANIFOLD = Manifold(
    "Stiefel", split, skew, draw, add_noise, tangent, kinetic, velocity, repair, drift, lambda p: p * (p - 1) // 2
)
