"""Stochastic-gradient dynamics on the manifold: no accept step, momentum kept from draw to draw.

There are two schemes, both with one gradient per step. ``EULER`` is Algorithm 2 of Yanush & Kropotov
(arXiv:1901.08045): a drift, then ``r <- (1 - alpha) r + eps g + noise``. ``SYMMETRIC`` makes an exact
Ornstein-Uhlenbeck step between two half drifts, followed by the kick (BAOAB; Leimkuhler & Matthews 2013,
doi:10.1063/1.4802990). The half kicks at the end of a step and at the start of the next use the same gradient and are
combined.

The first scheme is equivalent to a symmetric splitting, so it is of second order too: with ``r = s R`` and
``s^2 = 1 / (1 - alpha / 2)``, its second half is half a kick, an exact Ornstein-Uhlenbeck step of ``R`` and half a
kick, for steps of ``s eps``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pymc_stiefel.engine.blocks import (
    Layout,
    copy_into,
    matrix_at,
    square_at,
)
from pymc_stiefel.engine.drifts import scratch_size
from pymc_stiefel.engine.jit.blas import Blas, make_blas
from pymc_stiefel.engine.jit.calls import call_density
from pymc_stiefel.engine.jit.compiling import UNCOUNTED, compiled, inner
from pymc_stiefel.engine.jit.random import uniform
from pymc_stiefel.engine.jit.vectors import axpy
from pymc_stiefel.engine.phase_space import (
    add_noise,
    draw_momentum,
    drift,
    remove_normal_part,
    reorthonormalise,
    skew_part,
    split_in_place,
)

EULER, SYMMETRIC = "euler", "symmetric"

STATISTICS = ("temperature", "energy", "model_logp", "mean_logp", "diverging", "steps", "orthogonality_error")
TEMPERATURE, ENERGY, LOGP, MEAN_LOGP, DIVERGING, STEPS, ORTHOGONALITY = range(len(STATISTICS))

HOTTEST = 1e8
"""Kinetic temperature above which a step counts as divergent. A start in a steep tail can reach thousands."""

TIDY = 16
"""Steps between corrections of the rounding errors of X'X."""


class Work(NamedTuple):
    """Work arrays of a draw."""

    safe: np.ndarray  # where the draw started
    scratch: np.ndarray
    blas: Blas


class Batches(NamedTuple):
    """Row numbers of minibatches, drawn again for every gradient: ``rows[first:last]`` from 0 to ``upper - 1``."""

    rows: np.ndarray
    bounds: np.ndarray  # (first, last, upper), one row per group


def make_work(layout: Layout) -> Work:
    largest = max([scratch_size(n, p) for n, p in zip(layout.n, layout.p, strict=True)], default=0)
    blas = make_blas(2 * int(layout.p.max(initial=1)))
    return Work(np.zeros(layout.size), np.zeros(max(largest, layout.size, 1)), blas)


def no_batches() -> Batches:
    return Batches(np.zeros(0, dtype=np.int64), np.zeros((0, 3), dtype=np.int64))


# ---------------------------------------------------------------- pieces of a step


@inner
def scale(factor, vector):
    for i in range(vector.size):
        vector[i] *= factor


@inner
def draw_batches(source, batches):
    for k in range(batches.bounds.shape[0]):
        upper = batches.bounds[k, 2]
        for i in range(batches.bounds[k, 0], batches.bounds[k, 1]):
            batches.rows[i] = np.int64(uniform(source) * upper)


@inner
def stochastic_kick(density, extra, source, batches, layout, work, state, keep, eps):
    """``r <- keep r + eps P_X(g)`` with a new gradient; the old momentum is stored in ``ga``, ``gb``.

    Momentum and gradient are projected together, so one projection also removes rounding errors of ``X'B``.
    """
    draw_batches(source, batches)
    state.value[0] = call_density(density, state.q, state.gb, extra)
    a, b, ga, gb = state.a, state.b, state.ga, state.gb
    copy_into(a, ga)
    for i in range(b.size):
        old = b[i]
        b[i] = keep * old + eps * gb[i]
        gb[i] = old
    split_in_place(layout, work.blas, state.q, a, b)
    axpy(keep, ga, a)


@inner
def noisy_kick(density, extra, source, batches, layout, metric, work, state, keep, eps, spread):
    """``r <- keep r + eps P_X(g) + spread xi``, in three products for each matrix.

    The normal parts of gradient, noise and rounding errors are removed together. The skew part of the gradient is
    computed before the noise is added, because the skew part of the noise has a different variance.
    """
    draw_batches(source, batches)
    state.value[0] = call_density(density, state.q, state.gb, extra)
    skew_part(layout, work.blas, state.q, state.gb, state.ga)
    a, b, ga, gb = state.a, state.b, state.ga, state.gb
    for i in range(a.size):
        a[i] = keep * a[i] + eps * ga[i]
    for i in range(b.size):
        b[i] = keep * b[i] + eps * gb[i]
    add_noise(source, layout, metric, state, 1.0, spread)
    for m in range(layout.n.size):
        if layout.n[m] == layout.p[m]:
            matrix_at(layout, m, b)[:] = 0.0
    remove_normal_part(layout, work.blas, state, work.scratch)


@inner
def mean_kinetic(layout, metric, state, share):
    """Kinetic energy of the momentum ``(1 - share) old + share new``; ``ga`` and ``gb`` hold the old momentum."""
    total, rest = 0.0, 1.0 - share
    for m in range(layout.n.size):
        w, first, start = square_at(layout, m, metric.w), layout.skew[m], layout.offset[m]
        p, n = layout.p[m], layout.n[m]
        for j in range(p):
            for i in range(p):
                k = first + j * p + i
                total += w[j, i] * (rest * state.ga[k] + share * state.a[k]) ** 2
            if n > p:
                column = 0.0
                for k in range(start + j * n, start + (j + 1) * n):
                    column += (rest * state.gb[k] + share * state.b[k]) ** 2
                total += metric.c[layout.column[m] + j] * column
    for k in range(layout.stiefel, layout.size):
        total += metric.variance[k - layout.stiefel] * (rest * state.gb[k] + share * state.b[k]) ** 2
    return 0.5 * total


@inner
def symmetric_step(density, extra, source, batches, drifts, layout, metric, work, state, eps, keep, spread):
    """Half drift, Ornstein-Uhlenbeck, half drift, kick; returns the kinetic energy in the middle of the kick."""
    drift(drifts, layout, work.blas, metric, state, 0.5 * eps, work.scratch)
    add_noise(source, layout, metric, state, keep, spread)
    remove_normal_part(layout, work.blas, state, work.scratch)
    drift(drifts, layout, work.blas, metric, state, 0.5 * eps, work.scratch)
    stochastic_kick(density, extra, source, batches, layout, work, state, 1.0, eps)
    return mean_kinetic(layout, metric, state, 0.5)


@inner
def euler_step(density, extra, source, batches, drifts, layout, metric, work, state, eps, keep, spread):
    """Drift, then friction, gradient and noise at once: the paper's scheme. Momentum SGD if ``spread`` is 0."""
    drift(drifts, layout, work.blas, metric, state, eps, work.scratch)
    if spread > 0.0:
        noisy_kick(density, extra, source, batches, layout, metric, work, state, keep, eps, spread)
    else:
        stochastic_kick(density, extra, source, batches, layout, work, state, keep, eps)
    return mean_kinetic(layout, metric, state, 1.0)


# ---------------------------------------------------------------- one draw


@compiled(**UNCOUNTED)
def stochastic_draw(
    density, extra, source, batches, drifts, layout, metric, work, state, eps, keep, spread, symmetric, n_steps,
    fresh, tidy, freedom, stats,
):  # fmt: skip
    """Make ``n_steps`` steps; if they diverge, the state does not change.

    If ``fresh`` is positive, a new momentum is drawn: ``fresh`` times a draw from exp(-K).
    """
    stats[:] = 0.0
    copy_into(state.q, work.safe)
    if fresh > 0.0:
        draw_momentum(source, layout, work.blas, metric, state, work.scratch)
        scale(fresh, state.a)
        scale(fresh, state.b)
    kinetic = 0.0
    for _ in range(n_steps):
        if symmetric:
            kinetic = symmetric_step(
                density, extra, source, batches, drifts, layout, metric, work, state, eps, keep, spread
            )
        else:
            kinetic = euler_step(
                density, extra, source, batches, drifts, layout, metric, work, state, eps, keep, spread
            )
        temperature = 2.0 * kinetic / freedom
        stats[STEPS] += 1.0
        stats[LOGP] = state.value[0]
        stats[TEMPERATURE] += temperature
        stats[MEAN_LOGP] += state.value[0]
        if not (np.isfinite(state.value[0]) and temperature < HOTTEST):  # also catches NaN
            stats[DIVERGING] = 1.0
            stats[TEMPERATURE] = temperature * stats[STEPS]
            copy_into(work.safe, state.q)
            break
    stats[TEMPERATURE] /= stats[STEPS]
    stats[MEAN_LOGP] /= stats[STEPS]
    stats[ENERGY] = kinetic - state.value[0]
    if tidy:
        stats[ORTHOGONALITY] = reorthonormalise(layout, work.blas, state.q, work.scratch)
