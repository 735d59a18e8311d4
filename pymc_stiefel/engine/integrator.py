"""One step of the whole state: kicks by the gradient, and between them drifts of every block.

A step has one or two stages, with a drift and a gradient each. One is the leapfrog: half kick, drift, half kick. Two is
the scheme of Blanes, Casas & Sanz-Serna (2014, doi:10.1137/130932740): smaller errors at the same number of gradients,
as long as steps stay well within its stability limit, which is nearer than the leapfrog's.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pymc_stiefel.engine.blocks import (
    apply_covariance,
    matrix_at,
    remove_normal_part,
    split_in_place,
    square_at,
)
from pymc_stiefel.engine.compiling import call_density, fill_normal, inlined, inner
from pymc_stiefel.engine.drifts import call_drift
from pymc_stiefel.engine.vectors import axpy

LEAPFROG, TWO_STAGE = 1, 2
"""Number of stages of a step."""

OUTER_KICK = np.array([0.5, 0.211781])
"""Share of a step of one or two stages in its first and in its last kick."""


class Scheme(NamedTuple):
    """How a step is composed."""

    drifts: np.ndarray  # address of each matrix's drift
    stages: int  # of a step


@inner
def evaluate(density, extra, layout, blas, point):
    """Log density and split gradient at ``point.q``."""
    point.value[0] = call_density(density, point.q, point.gb, extra)
    split_in_place(layout, blas, point.q, point.ga, point.gb)


@inner
def kick(point, eps):
    axpy(eps, point.ga, point.a)
    axpy(eps, point.gb, point.b)


@inlined
def drift_matrix(address, layout, blas, metric, point, m, eps, scratch):
    """Move the m-th matrix by the drift at ``address``."""
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


@inlined
def drift_euclidean(layout, metric, point, eps, scratch):
    first = layout.stiefel
    if layout.size > first:
        moved = scratch[: layout.size - first]
        apply_covariance(metric, point.b[first:], moved)
        axpy(eps, moved, point.q[first:])


@inlined
def drift(addresses, layout, blas, metric, point, eps, scratch):
    """Move every block for time ``eps``, the matrices by the drifts at ``addresses``."""
    for m in range(layout.n.size):
        drift_matrix(addresses[m], layout, blas, metric, point, m, eps, scratch)
    drift_euclidean(layout, metric, point, eps, scratch)


@inlined
def step(density, extra, scheme, layout, blas, metric, point, eps, scratch):
    """One symmetric step: kick and drift in turn, kicks at both ends."""
    stages = scheme.stages
    outer_kick = OUTER_KICK[stages - 1] * eps
    kick(point, outer_kick)
    for stage in range(stages):
        if stage > 0:
            kick(point, eps - 2.0 * outer_kick)
        remove_normal_part(layout, blas, point, scratch)
        drift(scheme.drifts, layout, blas, metric, point, eps / stages, scratch)
        evaluate(density, extra, layout, blas, point)
    kick(point, outer_kick)


@inner
def draw_momentum(source, layout, blas, metric, point, scratch):
    """A momentum from the law exp(-K), written into ``point``."""
    for m in range(layout.n.size):
        a, b, w = square_at(layout, m, point.a), matrix_at(layout, m, point.b), square_at(layout, m, metric.w)
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
                fill_normal(source, b[j])
                scale = 1.0 / np.sqrt(metric.c[layout.column[m] + j])
                for k in range(n):
                    b[j, k] *= scale
        if n == p:
            b[:] = 0.0
    remove_normal_part(layout, blas, point, scratch)
    momentum = point.b[layout.stiefel :]
    d = momentum.size
    fill_normal(source, momentum)
    if metric.covariance.shape[0] > 0:
        for i in range(d - 1, -1, -1):  # solve cholesky' p = noise
            for j in range(i + 1, d):
                momentum[i] -= metric.cholesky[j, i] * momentum[j]
            momentum[i] /= metric.cholesky[i, i]
    else:
        for i in range(d):
            momentum[i] /= np.sqrt(metric.variance[i])
