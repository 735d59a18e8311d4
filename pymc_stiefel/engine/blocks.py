"""One flat state of Stiefel matrices and Euclidean numbers, and the arrays that go with it.

A state ``q`` holds every matrix one after the other, each stored by columns (so that a column is contiguous),
and then the Euclidean numbers. A momentum is kept split, ``r = X A + B``: the skew parts ``A`` (p x p, full) in a
vector ``a``, the parts ``B`` in a vector ``b`` laid out as ``q``, with the Euclidean momentum at its end.
Gradients are kept in the same two parts, so that a kick is two additions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pymc_stiefel.engine.blas import add_product, copy_matrix, cross, gram_matrix
from pymc_stiefel.engine.compiling import inlined, inner, view
from pymc_stiefel.engine.records import IntegerMatrix, Integers, Matrix, Vector
from pymc_stiefel.engine.vectors import dot

NEVER, UNDECIDED, FLIPPED = -1, 0, 1
"""Policies for changes of sign: never, where tuning finds that they pay, always."""


class Layout(NamedTuple):
    """Where each matrix lives: one entry per matrix, batches written out."""

    offset: Integers  # start in q
    n: Integers
    p: Integers
    skew: Integers  # start in a, and in the pair masses w
    column: Integers  # start in the column masses c
    flips: IntegerMatrix  # a kind of sign change a row, see flip_kinds
    stiefel: int  # length of the Stiefel part of q; the Euclidean part follows
    size: int


class Metric(NamedTuple):
    """Masses of the kinetic energy: K = 1/2 sum c |B e_k|^2 + 1/2 sum w A^2 + 1/2 p' C p."""

    c: Vector  # columns, one after the other
    w: Vector  # pairs, p x p for each matrix
    variance: Vector  # Euclidean part: diagonal of C
    covariance: Matrix  # C itself if dense, else 0 x 0
    cholesky: Matrix  # its lower factor


class Point(NamedTuple):
    """A point of phase space. ``value`` holds the log density."""

    q: Vector
    a: Vector
    b: Vector
    ga: Vector
    gb: Vector
    value: Vector


def flip_kinds(first: int, batch: tuple[int, ...], policy: int) -> list[tuple[int, int, int, int, int]]:
    """Kinds of sign changes of a batch of matrices: (policy, first matrix, matrices, stride, length).

    A change picks one of the matrices and one of its columns, and flips that column in the matrix and in those that
    follow at distances of ``stride``, up to ``length`` of them from where a row of the batch begins: one matrix
    (length 1), or the rest of the batch along one of its axes.
    """
    count = int(np.prod(batch, dtype=int))
    kinds = [(policy, first, count, 1, 1)]
    stride = count
    for length in batch:
        stride //= length
        if length > 1:
            kinds.append((min(policy, UNDECIDED), first, count, stride, length))
    return kinds


def make_layout(shapes: list[tuple[int, int]], n_euclidean: int, flips: list | None = None) -> Layout:
    """Layout of matrices of the given shapes, then ``n_euclidean`` numbers.

    ``flips`` are rows of ``flip_kinds``, or a policy for each matrix.
    """
    n = np.array([shape[0] for shape in shapes], dtype=np.int64)
    p = np.array([shape[1] for shape in shapes], dtype=np.int64)
    if np.any(p < 1) or np.any(n < p):
        raise ValueError(f"every matrix needs n >= p >= 1, got {shapes}")
    stiefel = int(np.sum(n * p))
    return Layout(
        offset=_starts(n * p),
        n=n,
        p=p,
        skew=_starts(p * p),
        column=_starts(p),
        flips=_flip_table(len(shapes), flips),
        stiefel=stiefel,
        size=stiefel + n_euclidean,
    )


def groups(layout: Layout):
    """Neighbouring matrices of equal shape: (their place in q, how many, n, p)."""
    m = 0
    while m < len(layout.n):
        n, p, last = int(layout.n[m]), int(layout.p[m]), m
        while last < len(layout.n) and (layout.n[last], layout.p[last]) == (n, p):
            last += 1
        start = int(layout.offset[m])
        yield slice(start, start + (last - m) * n * p), last - m, n, p
        m = last


def _flip_table(count: int, flips: list | None) -> np.ndarray:
    policies: list = [UNDECIDED] * count if flips is None else flips
    rows = [
        row for m, kind in enumerate(policies) for row in ([kind] if np.ndim(kind) else flip_kinds(m, (), int(kind)))
    ]
    return np.array(rows, dtype=np.int64).reshape(-1, 5)


def _starts(lengths: np.ndarray) -> np.ndarray:
    return (np.cumsum(lengths) - lengths).astype(np.int64)


def make_point(layout: Layout) -> Point:
    skew = int(np.sum(layout.p**2))
    return Point(*(np.zeros(k) for k in (layout.size, skew, layout.size, skew, layout.size, 1)))


def isotropic_metric(layout: Layout, pair: float, dense: bool) -> Metric:
    """``c = 1 / n``, ``w = pair / n``, the scale of the uniform law; the identity for the Euclidean part.

    ``pair`` is 2 for the canonical metric and 1 for the embedded one.
    """
    d = layout.size - layout.stiefel
    identity = np.eye(d if dense else 0)
    return Metric(
        c=np.repeat(1.0 / layout.n, layout.p),
        w=np.repeat(pair / layout.n, layout.p**2),
        variance=np.ones(d),
        covariance=identity,
        cholesky=identity.copy(),
    )


def overwrite(old: tuple[np.ndarray, ...], new: tuple[np.ndarray, ...]) -> None:
    """Give arrays, whose addresses have been told to compiled code, the values of others."""
    for one, other in zip(old, new, strict=True):
        one[:] = other


# ---------------------------------------------------------------- compiled operations on one point


@inner
def copy_into(x, y):
    for i in range(x.size):
        y[i] = x[i]


@inner
def copy_position(source, target):
    """All but the momentum."""
    copy_into(source.q, target.q)
    copy_into(source.ga, target.ga)
    copy_into(source.gb, target.gb)
    target.value[0] = source.value[0]


@inner
def copy_point(source, target):
    copy_position(source, target)
    copy_into(source.a, target.a)
    copy_into(source.b, target.b)


@inlined
def matrix_at(layout, m, vector):
    """The m-th matrix in a vector laid out as ``q``, a row for each column."""
    return view(vector, layout.offset[m], layout.p[m], layout.n[m])


@inlined
def square_at(layout, m, vector):
    """The m-th p x p block in a vector laid out as ``a``."""
    return view(vector, layout.skew[m], layout.p[m], layout.p[m])


@inner
def split_in_place(layout, blas, q, a, b):
    """Replace ambient matrices ``G`` in ``b`` by their tangent parts: ``b = G - X X'G``, ``a = skew(X'G)``."""
    for m in range(layout.n.size):
        x, g, gram = matrix_at(layout, m, q), matrix_at(layout, m, b), square_at(layout, m, a)
        p, n = x.shape
        if _is_zero(g):  # a uniform matrix
            gram[:] = 0.0
            continue
        cross(blas, g, x, gram)  # (X'G)'
        if n == p:
            g[:] = 0.0
        else:
            add_product(blas, -1.0, gram, x, g)
        _make_skew(gram)


@inner
def _is_zero(matrix):
    for i in range(matrix.shape[0]):
        for j in range(matrix.shape[1]):
            if matrix[i, j] != 0.0:
                return False
    return True


@inner
def skew_part(layout, blas, q, g, a):
    """``a = skew(X'G)`` for ambient matrices ``G``."""
    for m in range(layout.n.size):
        gram = square_at(layout, m, a)
        cross(blas, matrix_at(layout, m, g), matrix_at(layout, m, q), gram)  # (X'G)'
        _make_skew(gram)


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
def kinetic_energy(layout, metric, point, scratch):
    """K of the momentum; no products, unlike the velocity."""
    total = 0.0
    for m in range(layout.n.size):
        b, a, w = matrix_at(layout, m, point.b), square_at(layout, m, point.a), square_at(layout, m, metric.w)
        for j in range(b.shape[0]):
            total += metric.c[layout.column[m] + j] * dot(b[j], b[j])
            for i in range(j):
                total += 2.0 * w[i, j] * a[i, j] ** 2
    momentum = point.b[layout.stiefel :]
    velocity = scratch[: momentum.size]
    apply_covariance(metric, momentum, velocity)
    return 0.5 * (total + dot(momentum, velocity))


@inner
def velocity_into(layout, blas, metric, point, r, v, scratch):
    """Ambient momentum ``r = X A + B`` and velocity ``v = X (w A) + B c``; returns the kinetic energy."""
    for m in range(layout.n.size):
        x, b, a = matrix_at(layout, m, point.q), matrix_at(layout, m, point.b), square_at(layout, m, point.a)
        rm, vm, w = matrix_at(layout, m, r), matrix_at(layout, m, v), square_at(layout, m, metric.w)
        p, n = x.shape
        c = metric.c[layout.column[m] : layout.column[m] + p]
        copy_matrix(b, rm)
        add_product(blas, -1.0, a, x, rm)  # A is skew: rows of (X A)' are -A X'
        if _has_one_mass(c, w):  # for columns, and one for pairs: v is a combination of r and B
            pair = w[0, p - 1]
            for j in range(p):
                for k in range(n):
                    vm[j, k] = pair * rm[j, k] + (c[0] - pair) * b[j, k]
            continue
        weighted = view(scratch, 0, p, p)
        for j in range(p):
            for i in range(p):
                weighted[j, i] = w[j, i] * a[j, i]
            for k in range(n):
                vm[j, k] = c[j] * b[j, k]
        add_product(blas, -1.0, weighted, x, vm)
    first = layout.stiefel
    copy_into(point.b[first:], r[first:])
    apply_covariance(metric, point.b[first:], v[first:])
    return 0.5 * dot(r, v)


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
def apply_covariance(metric, x, out):
    """``out = C x`` for the Euclidean part."""
    if metric.covariance.shape[0] > 0:
        for i in range(x.size):
            out[i] = dot(metric.covariance[i], x)
    else:
        for i in range(x.size):
            out[i] = metric.variance[i] * x[i]


@inner
def remove_normal_part(layout, blas, point, scratch):
    """Remove what rounding left of ``X'B``.

    It is of size 1e-16, but a kick turns an error ``E`` of ``X'X`` into a normal momentum ``-E X'G``, which the drift
    turns into more error: left alone, with a steep density, errors grow exponentially along a trajectory.
    """
    for m in range(layout.n.size):
        x, b = matrix_at(layout, m, point.q), matrix_at(layout, m, point.b)
        p, n = x.shape
        if n > p:
            normal = view(scratch, 0, p, p)
            cross(blas, b, x, normal)
            add_product(blas, -1.0, normal, x, b)


NEGLIGIBLE = 1e-14
"""Error of X'X that is left for the next time: a few trajectories' worth of rounding."""


@inner
def reorthonormalise(layout, blas, q, scratch):
    """One Newton step ``X <- X (3 I - X'X) / 2`` for every matrix that needs it; returns the largest error found."""
    worst = 0.0
    for m in range(layout.n.size):
        x = matrix_at(layout, m, q)
        p, n = x.shape
        error = view(scratch, 0, p, p)
        gram_matrix(blas, x, error)
        largest = 0.0
        for i in range(p):
            error[i, i] -= 1.0
            for j in range(i + 1):
                largest = max(largest, abs(error[i, j]))
        worst = max(worst, largest)
        if not largest < NEGLIGIBLE:
            old = view(scratch, p * p, p, n)
            copy_matrix(x, old)
            add_product(blas, -0.5, error, old, x)
    return worst
