"""One flat state of Stiefel matrices and Euclidean numbers, and the arrays that go with it.

A state ``q`` holds every matrix one after the other, each stored by columns (so that a column is contiguous),
and then the Euclidean numbers. A momentum is kept split, ``r = X A + B``: the skew parts ``A`` (p x p, full) in a
vector ``a``, the parts ``B`` in a vector ``b`` laid out as ``q``, with the Euclidean momentum at its end.
Gradients are kept in the same two parts, so that a kick is two additions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pymc_stiefel.engine.compiling import inner


class Layout(NamedTuple):
    """Where each matrix lives: one entry per matrix, batches written out."""

    offset: np.ndarray  # start in q
    n: np.ndarray
    p: np.ndarray
    skew: np.ndarray  # start in a, and in the pair masses w
    column: np.ndarray  # start in the column masses c
    flips: np.ndarray  # 1 where the sign of a column may be flipped
    stiefel: int  # length of the Stiefel part of q; the Euclidean part follows
    size: int


class Metric(NamedTuple):
    """Masses of the kinetic energy: K = 1/2 sum c |B e_k|^2 + 1/2 sum w A^2 + 1/2 p' C p."""

    c: np.ndarray  # columns, one after the other
    w: np.ndarray  # pairs, p x p for each matrix
    variance: np.ndarray  # Euclidean part: diagonal of C
    covariance: np.ndarray  # C itself if dense, else 0 x 0
    cholesky: np.ndarray  # its lower factor


class Point(NamedTuple):
    """A point of phase space. ``value`` holds the log density."""

    q: np.ndarray
    a: np.ndarray
    b: np.ndarray
    ga: np.ndarray
    gb: np.ndarray
    value: np.ndarray


def make_layout(shapes: list[tuple[int, int]], n_euclidean: int, flips: list[bool] | None = None) -> Layout:
    """Layout of matrices of the given shapes, then ``n_euclidean`` numbers."""
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
        flips=np.zeros(len(shapes), dtype=np.int64) if flips is None else np.array(flips, dtype=np.int64),
        stiefel=stiefel,
        size=stiefel + n_euclidean,
    )


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


# ---------------------------------------------------------------- compiled operations on one point


@inner
def dot(x, y):
    total = 0.0
    for i in range(x.size):
        total += x[i] * y[i]
    return total


@inner
def axpy(alpha, x, y):
    """``y += alpha x``"""
    for i in range(x.size):
        y[i] += alpha * x[i]


@inner
def copy_into(x, y):
    for i in range(x.size):
        y[i] = x[i]


@inner
def copy_point(source, target):
    copy_into(source.q, target.q)
    copy_into(source.a, target.a)
    copy_into(source.b, target.b)
    copy_into(source.ga, target.ga)
    copy_into(source.gb, target.gb)
    target.value[0] = source.value[0]


@inner
def split_in_place(layout, q, a, b):
    """Replace ambient matrices ``G`` in ``b`` by their tangent parts: ``b = G - X X'G``, ``a = skew(X'G)``."""
    for m in range(layout.n.size):
        n, p, start, skew = layout.n[m], layout.p[m], layout.offset[m], layout.skew[m]
        for j in range(p):
            g = b[start + j * n : start + (j + 1) * n]
            for i in range(p):
                a[skew + i * p + j] = dot(q[start + i * n : start + (i + 1) * n], g)
        for j in range(p):
            g = b[start + j * n : start + (j + 1) * n]
            if n == p:
                g[:] = 0.0
            else:
                for i in range(p):
                    axpy(-a[skew + i * p + j], q[start + i * n : start + (i + 1) * n], g)
        for i in range(p):
            a[skew + i * p + i] = 0.0
            for j in range(i):
                part = 0.5 * (a[skew + i * p + j] - a[skew + j * p + i])
                a[skew + i * p + j] = part
                a[skew + j * p + i] = -part


@inner
def velocity_into(layout, metric, point, r, v):
    """Ambient momentum ``r = X A + B`` and velocity ``v = X (w A) + B c``; returns the kinetic energy."""
    q, a, b = point.q, point.a, point.b
    for m in range(layout.n.size):
        n, p, start, skew, column = layout.n[m], layout.p[m], layout.offset[m], layout.skew[m], layout.column[m]
        for j in range(p):
            rows = slice(start + j * n, start + (j + 1) * n)
            rj, vj, bj, c = r[rows], v[rows], b[rows], metric.c[column + j]
            for k in range(n):
                rj[k] = bj[k]
                vj[k] = c * bj[k]
            for i in range(p):
                if i != j:
                    x = q[start + i * n : start + (i + 1) * n]
                    aij = a[skew + i * p + j]
                    waij = metric.w[skew + i * p + j] * aij
                    for k in range(n):
                        rj[k] += aij * x[k]
                        vj[k] += waij * x[k]
    first = layout.stiefel
    momentum = b[first:]
    copy_into(momentum, r[first:])
    apply_covariance(metric, momentum, v[first:])
    return 0.5 * dot(r, v)


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
def reorthonormalise(layout, q, scratch):
    """One Newton step ``X <- X (3 I - X'X) / 2`` for every matrix; returns the largest error removed."""
    worst = 0.0
    for m in range(layout.n.size):
        n, p, start = layout.n[m], layout.p[m], layout.offset[m]
        gram = scratch[: p * p]
        for i in range(p):
            x = q[start + i * n : start + (i + 1) * n]
            for j in range(i + 1):
                error = dot(x, q[start + j * n : start + (j + 1) * n])
                if i == j:
                    error -= 1.0
                worst = max(worst, abs(error))
                gram[i * p + j] = error
                gram[j * p + i] = error
        moved = scratch[p * p : p * p + n * p]
        copy_into(q[start : start + n * p], moved)
        for j in range(p):
            for i in range(p):
                axpy(-0.5 * gram[i * p + j], moved[i * n : (i + 1) * n], q[start + j * n : start + (j + 1) * n])
    return worst
