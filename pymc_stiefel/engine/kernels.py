"""The compiled functions that Python calls. Each takes the table of a chain's arrays, see ``table``.

They make a draw for each row of ``statistics``, and keep as many of the new states as ``states`` has rows. ``eps`` is
the step size, of trajectories of one length but for a relative ``jitter``; ``fresh`` asks for the density at the start.
"""

from __future__ import annotations

from pymc_stiefel.engine.adaptation import accumulate
from pymc_stiefel.engine.blocks import copy_into, reorthonormalise
from pymc_stiefel.engine.compiling import UNCOUNTED, compiled, inlined, uniform
from pymc_stiefel.engine.integrator import draw_momentum, evaluate, stages
from pymc_stiefel.engine.table import unpack
from pymc_stiefel.engine.trajectory import (
    ENERGY,
    GRADIENTS,
    LOGP,
    ORTHOGONALITY,
    STEP_SIZE,
    TREE_SIZE,
    no_u_turn,
    reflect,
    static,
)


@inlined
def begin(density, extra, source, layout, metric, state, work, eps, fresh, stats):
    """A fresh momentum; the density is evaluated again if ``fresh``."""
    for k in range(stats.size):
        stats[k] = 0.0
    stats[STEP_SIZE] = eps
    if fresh:
        evaluate(density, extra, layout, work.blas, state)
        stats[GRADIENTS] = 1.0
    draw_momentum(source, layout, work.blas, metric, state, work.scratch)


@inlined
def finish(density, extra, source, scheme, layout, state, work, moments, learn, stats, k, states):
    """Reflection, orthonormal again; the draw is kept, and added to the moments if ``learn``."""
    kinetic = stats[ENERGY] + state.value[0]
    stats[GRADIENTS] += stats[TREE_SIZE] * stages(scheme)
    reflect(density, extra, source, layout, work, state, stats)
    stats[ORTHOGONALITY] = reorthonormalise(layout, work.blas, state.q, work.scratch)
    stats[LOGP] = state.value[0]
    stats[ENERGY] = kinetic - state.value[0]
    if learn:
        accumulate(layout, state, moments)
    if k < states.shape[0]:
        copy_into(state.q, states[k])


@compiled(**UNCOUNTED)
def no_u_turn_draws(
    table, density, extra, source, scheme, eps, max_treedepth, jitter, fresh, learn, states, statistics
):
    """Draws with trajectories that end at a U-turn."""
    layout, metric, state, work, moments = unpack(table)
    for k in range(statistics.shape[0]):
        stats = statistics[k]
        begin(density, extra, source, layout, metric, state, work, eps, fresh and k == 0, stats)
        no_u_turn(density, extra, source, scheme, layout, metric, work, state, eps, max_treedepth, stats)
        finish(density, extra, source, scheme, layout, state, work, moments, learn, stats, k, states)


@compiled(**UNCOUNTED)
def static_draws(table, density, extra, source, scheme, eps, n_steps, jitter, fresh, learn, states, statistics):
    """Draws with trajectories of ``n_steps`` steps."""
    layout, metric, state, work, moments = unpack(table)
    for k in range(statistics.shape[0]):
        stats = statistics[k]
        size = eps * (1.0 + jitter * (2.0 * uniform(source) - 1.0)) if jitter > 0.0 else eps
        begin(density, extra, source, layout, metric, state, work, size, fresh and k == 0, stats)
        static(density, extra, source, scheme, layout, metric, work, state, size, n_steps, stats)
        finish(density, extra, source, scheme, layout, state, work, moments, learn, stats, k, states)
