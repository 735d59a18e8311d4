"""One leapfrog of the whole state: half kick, drift of every block, half kick."""

from __future__ import annotations

import numpy as np

from pymc_stiefel.engine.blas import axpy
from pymc_stiefel.engine.blocks import (
    apply_covariance,
    matrix_at,
    remove_normal_part,
    split_in_place,
    square_at,
)
from pymc_stiefel.engine.compiling import call_density, fill_normal, inner
from pymc_stiefel.engine.drifts import call_drift


@inner
def evaluate(density, extra, layout, blas, point):
    """Log density and split gradient at ``point.q``."""
    point.value[0] = call_density(density, point.q, point.gb, extra)
    split_in_place(layout, blas, point.q, point.ga, point.gb)


@inner
def kick(point, eps):
    axpy(eps, point.ga, point.a)
    axpy(eps, point.gb, point.b)


@inner
def drift(address, layout, blas, metric, point, eps, scratch):
    """Move every block by the flow of its kinetic energy; ``address`` is that of the drift of the matrices."""
    for m in range(layout.n.size):
        column = layout.column[m]
        call_drift(
            address,
            matrix_at(layout, m, point.q),
            square_at(layout, m, point.a),
            matrix_at(layout, m, point.b),
            layout.n[m],
            layout.p[m],
            eps,
            metric.c[column : column + layout.p[m]],
            square_at(layout, m, metric.w),
            scratch,
            blas,
        )
    first = layout.stiefel
    if layout.size > first:
        moved = scratch[: layout.size - first]
        apply_covariance(metric, point.b[first:], moved)
        axpy(eps, moved, point.q[first:])


@inner
def leapfrog(density, extra, address, layout, blas, metric, point, eps, scratch):
    kick(point, 0.5 * eps)
    remove_normal_part(layout, blas, point, scratch)
    drift(address, layout, blas, metric, point, eps, scratch)
    evaluate(density, extra, layout, blas, point)
    kick(point, 0.5 * eps)


@inner
def draw_momentum(source, layout, blas, metric, point, scratch):
    """A momentum from the law exp(-K), written into ``point``."""
    fill_normal(source, point.a)
    fill_normal(source, point.b)
    for m in range(layout.n.size):
        a, b, w = square_at(layout, m, point.a), matrix_at(layout, m, point.b), square_at(layout, m, metric.w)
        p, n = b.shape
        for j in range(p):
            a[j, j] = 0.0
            for i in range(j):
                a[i, j] /= np.sqrt(2.0 * w[i, j])
                a[j, i] = -a[i, j]
            scale = 1.0 / np.sqrt(metric.c[layout.column[m] + j]) if n > p else 0.0
            for k in range(n):
                b[j, k] *= scale
    remove_normal_part(layout, blas, point, scratch)
    momentum = point.b[layout.stiefel :]
    d = momentum.size
    if metric.covariance.shape[0] > 0:
        for i in range(d - 1, -1, -1):  # solve cholesky' p = noise
            for j in range(i + 1, d):
                momentum[i] -= metric.cholesky[j, i] * momentum[j]
            momentum[i] /= metric.cholesky[i, i]
    else:
        for i in range(d):
            momentum[i] /= np.sqrt(metric.variance[i])
