"""The compiled functions that Python calls. Each takes the table of a chain's arrays, see ``table``.

They make a draw for each row of ``statistics``, and keep as many of the new states as ``states`` has rows. ``fresh``
asks for the density at the start; ``learn`` adds the draws to the moments of the window.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pymc_stiefel.engine.adaptation import LOG_BAR, LOG_STEP, accumulate, adapt_step_size
from pymc_stiefel.engine.blocks import copy_into, reorthonormalise
from pymc_stiefel.engine.compiling import UNCOUNTED, compiled, inlined, inner, uniform
from pymc_stiefel.engine.integrator import draw_momentum, evaluate
from pymc_stiefel.engine.table import unpack
from pymc_stiefel.engine.trajectory import (
    ACCEPT,
    ENERGY,
    GRADIENTS,
    LOGP,
    ORTHOGONALITY,
    STEP_SIZE,
    STEP_SIZE_BAR,
    TREE_SIZE,
    no_u_turn,
    reflect,
    static,
)


class Pace(NamedTuple):
    """Size and number of the steps of a trajectory."""

    eps: float  # unless it is adapted
    adapt: bool
    most: int  # steps of a static trajectory, at most; of the others the tree depth
    path: float = 0.0  # length of a static trajectory; 0: as many steps as ``most`` says
    spread: float = 0.0  # relative, of the number of steps
    jitter: float = 0.0  # relative, of their size


@inner
def step_size(pace, averaging, source):
    """The step size of the next trajectory."""
    eps = np.exp(averaging[LOG_STEP]) if pace.adapt else pace.eps
    return eps * (1.0 + pace.jitter * (2.0 * uniform(source) - 1.0)) if pace.jitter > 0.0 else eps


@inner
def n_steps(pace, eps, source):
    """The number of steps of the next static trajectory."""
    length = float(pace.most) if pace.path == 0.0 else min(pace.path / eps, float(pace.most))
    if pace.spread > 0.0:
        length *= 1.0 + pace.spread * (2.0 * uniform(source) - 1.0)
    return max(1, int(length + 0.5))


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
def finish(density, extra, source, scheme, pace, layout, state, work, moments, averaging, learn, stats, k, states):
    """Reflection, orthonormal again; the draw is kept, and learnt from."""
    kinetic = stats[ENERGY] + state.value[0]
    stats[GRADIENTS] += stats[TREE_SIZE] * scheme.stages
    reflect(density, extra, source, layout, work, state, stats)
    stats[ORTHOGONALITY] = reorthonormalise(layout, work.blas, state.q, work.scratch)
    stats[LOGP] = state.value[0]
    stats[ENERGY] = kinetic - state.value[0]
    if learn:
        accumulate(layout, state, moments)
    if pace.adapt:
        adapt_step_size(averaging, stats[ACCEPT])
    stats[STEP_SIZE_BAR] = np.exp(averaging[LOG_BAR]) if pace.adapt else pace.eps
    if k < states.shape[0]:
        copy_into(state.q, states[k])


@compiled(**UNCOUNTED)
def no_u_turn_draws(table, density, extra, source, scheme, pace, fresh, learn, states, statistics):
    """Draws with trajectories that end at a U-turn."""
    layout, metric, state, work, moments, averaging = unpack(table)
    for k in range(statistics.shape[0]):
        stats, eps = statistics[k], step_size(pace, averaging, source)
        begin(density, extra, source, layout, metric, state, work, eps, fresh and k == 0, stats)
        no_u_turn(density, extra, source, scheme, layout, metric, work, state, eps, pace.most, stats)
        finish(density, extra, source, scheme, pace, layout, state, work, moments, averaging, learn, stats, k, states)


@compiled(**UNCOUNTED)
def static_draws(table, density, extra, source, scheme, pace, fresh, learn, states, statistics):
    """Draws with trajectories of a number of steps that is known beforehand."""
    layout, metric, state, work, moments, averaging = unpack(table)
    for k in range(statistics.shape[0]):
        stats, eps = statistics[k], step_size(pace, averaging, source)
        number = n_steps(pace, eps, source)
        begin(density, extra, source, layout, metric, state, work, eps, fresh and k == 0, stats)
        static(density, extra, source, scheme, layout, metric, work, state, eps, number, stats)
        finish(density, extra, source, scheme, pace, layout, state, work, moments, averaging, learn, stats, k, states)
