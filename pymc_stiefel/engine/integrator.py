"""One leapfrog of the whole state: half kick, drift of every block, half kick."""

from __future__ import annotations

import numpy as np

from pymc_stiefel.engine.blocks import apply_covariance, axpy, dot, split_in_place
from pymc_stiefel.engine.compiling import call_density, fill_normal, inner
from pymc_stiefel.engine.drifts import drift_matrix


@inner
def evaluate(density, extra, layout, point):
    """Log density and split gradient at ``point.q``."""
    point.value[0] = call_density(density, point.q, point.gb, extra)
    split_in_place(layout, point.q, point.ga, point.gb)


@inner
def kick(point, eps):
    axpy(eps, point.ga, point.a)
    axpy(eps, point.gb, point.b)


@inner
def drift(kind, layout, metric, point, eps, scratch):
    for m in range(layout.n.size):
        n, p, start, skew, column = layout.n[m], layout.p[m], layout.offset[m], layout.skew[m], layout.column[m]
        drift_matrix(
            kind,
            point.q[start : start + n * p].reshape(p, n),
            point.a[skew : skew + p * p].reshape(p, p),
            point.b[start : start + n * p].reshape(p, n),
            eps,
            metric.c[column : column + p],
            metric.w[skew : skew + p * p].reshape(p, p),
            scratch,
        )
    first = layout.stiefel
    d = layout.size - first
    if d > 0:
        moved = scratch[:d]
        apply_covariance(metric, point.b[first:], moved)
        axpy(eps, moved, point.q[first:])


@inner
def leapfrog(density, extra, kind, layout, metric, point, eps, scratch):
    kick(point, 0.5 * eps)
    remove_normal_part(layout, point)
    drift(kind, layout, metric, point, eps, scratch)
    evaluate(density, extra, layout, point)
    kick(point, 0.5 * eps)


@inner
def remove_normal_part(layout, point):
    """Remove what rounding left of ``X'B``.

    It is of size 1e-16, but a kick turns an error ``E`` of ``X'X`` into a normal momentum ``-E X'G``, which the drift
    turns into more error: left alone, with a steep density, errors grow exponentially along a trajectory.
    """
    for m in range(layout.n.size):
        n, p, start = layout.n[m], layout.p[m], layout.offset[m]
        if n > p:
            for j in range(p):
                bj = point.b[start + j * n : start + (j + 1) * n]
                for i in range(p):
                    x = point.q[start + i * n : start + (i + 1) * n]
                    axpy(-dot(x, bj), x, bj)


@inner
def draw_momentum(source, layout, metric, point):
    """A momentum from the law exp(-K), written into ``point``."""
    a, b = point.a, point.b
    fill_normal(source, a)
    fill_normal(source, b)
    for m in range(layout.n.size):
        n, p, start, skew, column = layout.n[m], layout.p[m], layout.offset[m], layout.skew[m], layout.column[m]
        for j in range(p):
            a[skew + j * p + j] = 0.0
            for i in range(j):
                a[skew + i * p + j] /= np.sqrt(2.0 * metric.w[skew + i * p + j])
                a[skew + j * p + i] = -a[skew + i * p + j]
            bj = b[start + j * n : start + (j + 1) * n]
            if n == p:
                bj[:] = 0.0
                continue
            scale = 1.0 / np.sqrt(metric.c[column + j])
            for k in range(n):
                bj[k] *= scale
    remove_normal_part(layout, point)
    momentum = b[layout.stiefel :]
    d = momentum.size
    if metric.covariance.shape[0] > 0:
        for i in range(d - 1, -1, -1):  # solve cholesky' p = noise
            for j in range(i + 1, d):
                momentum[i] -= metric.cholesky[j, i] * momentum[j]
            momentum[i] /= metric.cholesky[i, i]
    else:
        for i in range(d):
            momentum[i] /= np.sqrt(metric.variance[i])
