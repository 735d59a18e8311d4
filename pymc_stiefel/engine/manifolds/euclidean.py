"""Euclidean variables: one block at the end of the state, with variances or a covariance matrix as inverse masses."""

from __future__ import annotations

import numpy as np

from pymc_stiefel.engine.jit.compiling import inner
from pymc_stiefel.engine.jit.random import fill_normal, normal
from pymc_stiefel.engine.jit.vectors import axpy, dot


@inner
def velocity(metric, momentum, out):
    """``out = C p``"""
    if metric.covariance.shape[0] > 0:
        for i in range(momentum.size):
            out[i] = dot(metric.covariance[i], momentum)
    else:
        for i in range(momentum.size):
            out[i] = metric.variance[i] * momentum[i]


@inner
def kinetic(metric, momentum, scratch):
    """``2 K``"""
    moved = scratch[: momentum.size]
    velocity(metric, momentum, moved)
    return dot(momentum, moved)


@inner
def drift(metric, q, momentum, eps, scratch):
    if q.size > 0:
        moved = scratch[: q.size]
        velocity(metric, momentum, moved)
        axpy(eps, moved, q)


@inner
def draw(source, metric, momentum):
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


@inner
def add_noise(source, metric, momentum, keep, spread):
    """Only for diagonal variances."""
    for i in range(momentum.size):
        momentum[i] = keep * momentum[i] + spread / np.sqrt(metric.variance[i]) * normal(source)
