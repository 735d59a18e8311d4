"""The compiled functions that Python calls. Each takes the table of a chain's arrays, see ``table``."""

from __future__ import annotations

import numpy as np

from pymc_stiefel.engine.adaptation import accumulate
from pymc_stiefel.engine.blocks import copy_point, reorthonormalise, velocity_into
from pymc_stiefel.engine.compiling import compiled, inner
from pymc_stiefel.engine.integrator import draw_momentum, evaluate, step
from pymc_stiefel.engine.table import unpack
from pymc_stiefel.engine.trajectory import ENERGY, LOGP, ORTHOGONALITY, no_u_turn, reflect, static


@inner
def begin(density, extra, source, layout, metric, state, work, fresh, stats):
    """A fresh momentum; the density is evaluated again if ``fresh``."""
    for k in range(stats.size):
        stats[k] = 0.0
    if fresh:
        evaluate(density, extra, layout, work.blas, state)
    draw_momentum(source, layout, work.blas, metric, state, work.scratch)


@inner
def finish(density, extra, source, layout, state, work, moments, learn, stats):
    """Reflection, orthonormal again; the draw is added to the moments if ``learn``."""
    kinetic = stats[ENERGY] + state.value[0]
    reflect(density, extra, source, layout, work, state, stats)
    stats[ORTHOGONALITY] = reorthonormalise(layout, work.blas, state.q, work.scratch)
    stats[LOGP] = state.value[0]
    stats[ENERGY] = kinetic - state.value[0]
    if learn:
        accumulate(layout, state, moments)


@compiled
def no_u_turn_draw(table, density, extra, source, scheme, eps, max_treedepth, fresh, learn, stats):
    """One draw with a trajectory that ends at a U-turn."""
    layout, metric, state, work, moments = unpack(table)
    begin(density, extra, source, layout, metric, state, work, fresh, stats)
    no_u_turn(density, extra, source, scheme, layout, metric, work, state, eps, max_treedepth, stats)
    finish(density, extra, source, layout, state, work, moments, learn, stats)


@compiled
def static_draw(table, density, extra, source, scheme, eps, n_steps, fresh, learn, stats):
    """One draw with a trajectory of ``n_steps`` leapfrogs."""
    layout, metric, state, work, moments = unpack(table)
    begin(density, extra, source, layout, metric, state, work, fresh, stats)
    static(density, extra, source, scheme, layout, metric, work, state, eps, n_steps, stats)
    finish(density, extra, source, layout, state, work, moments, learn, stats)


@compiled
def first_step_size(table, density, extra, source, scheme, eps, fresh):
    """A step size whose single step is accepted about eight times in ten (Hoffman & Gelman's heuristic).

    ``fresh`` asks for the density to be evaluated first.
    """
    layout, metric, state, work, _ = unpack(table)
    if fresh:
        evaluate(density, extra, layout, work.blas, state)
    direction = 0
    for _ in range(60):
        point = work.right
        copy_point(state, point)
        draw_momentum(source, layout, work.blas, metric, point, work.scratch)
        energy = velocity_into(layout, work.blas, metric, point, work.r, work.v, work.scratch) - point.value[0]
        step(density, extra, scheme, layout, work.blas, metric, point, eps, work.scratch)
        error = velocity_into(layout, work.blas, metric, point, work.r, work.v, work.scratch) - point.value[0] - energy
        way = 1 if np.isfinite(error) and error < 0.22 else -1
        if direction != 0 and way != direction:
            break
        if way == 1 and eps > 3.0:
            break
        direction = way
        eps *= 2.0**way
    return eps
