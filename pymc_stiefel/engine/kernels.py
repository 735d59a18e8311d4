"""The compiled functions that Python calls. Each takes the table of a chain's arrays, see ``records``.

They make one draw for each row of ``statistics``. New states and their split gradients are stored for as many draws as
``states`` and ``gradients`` have rows. With ``fresh`` the density is evaluated at the start; with ``learn`` the draws
are added to the moments of the window.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pymc_stiefel.engine.adaptation.metric import Moments, add_draw, add_secant
from pymc_stiefel.engine.adaptation.step_size import LOG_STEP, adapt_step_size
from pymc_stiefel.engine.blocks import Layout, Metric, Point, copy_into, copy_position
from pymc_stiefel.engine.integrator import evaluate
from pymc_stiefel.engine.jit.compiling import UNCOUNTED, UNLOCKED, compiled, inner
from pymc_stiefel.engine.jit.random import uniform
from pymc_stiefel.engine.jit.records import Vector, reader
from pymc_stiefel.engine.phase_space import draw_momentum, reorthonormalise, split_in_place
from pymc_stiefel.engine.reflection import Flips, reflect
from pymc_stiefel.engine.trajectory import Workspace, no_u_turn, static


class Memory(NamedTuple):
    """All arrays of a chain."""

    layout: Layout
    metric: Metric
    state: Point
    work: Workspace
    moments: Moments
    averaging: Vector
    flips: Flips


unpack = reader(Memory)


class Pace(NamedTuple):
    """Size and number of the steps of a trajectory."""

    eps: float  # unless the step size is adapted
    adapt: bool
    most: int  # largest number of steps of a static trajectory; tree depth of a no-U-turn one
    path: float = 0.0  # length of a static trajectory; 0: it has ``most`` steps
    spread: float = 0.0  # relative jitter of the number of steps
    jitter: float = 0.0  # relative jitter of the step size


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


@inner
def clear(stats):
    stats.depth = stats.index_in_trajectory = stats.gradients = 0
    stats.tree_size = stats.mean_tree_accept = 0.0
    stats.energy = stats.energy_error = stats.max_energy_error = 0.0
    stats.diverging = stats.reached_max_treedepth = stats.reflected = False


@inner
def begin(density, extra, source, memory, eps, fresh, learn, stats):
    """Draw a new momentum; evaluate the density again if ``fresh``."""
    layout, state, work = memory.layout, memory.state, memory.work
    clear(stats)
    stats.step_size = eps
    if fresh:
        evaluate(density, extra, layout, work.blas, state)
        stats.gradients += 1
    if learn:
        copy_position(state, work.start)
    draw_momentum(source, layout, work.blas, memory.metric, state, work.scratch)


@inner
def finish(density, extra, source, scheme, pace, memory, learn, stats, k, states, gradients):
    """Finish a draw: update the moments, try a sign flip, remove rounding errors, store the draw."""
    layout, state, work, before = memory.layout, memory.state, memory.work, memory.work.start
    kinetic = stats.energy + state.value[0]
    stats.gradients += np.int64(stats.tree_size) * scheme.stages
    if learn and stats.index_in_trajectory != 0:
        add_secant(layout, work.blas, before, state, memory.moments, work.scratch)
    reflect(density, extra, source, layout, work, memory.flips, state, stats)
    stats.orthogonality_error = reorthonormalise(layout, work.blas, state.q, work.scratch)
    stats.model_logp = state.value[0]
    stats.energy = kinetic - state.value[0]
    if learn:
        add_draw(layout, state, memory.moments)
    if pace.adapt:
        adapt_step_size(memory.averaging, stats.mean_tree_accept)
    stats.step_size_bar = np.exp(memory.averaging[LOG_STEP]) if pace.adapt else pace.eps
    if k < states.shape[0]:
        copy_into(state.q, states[k])
    if k < gradients.shape[0]:
        copy_into(state.gb, gradients[k])
        copy_into(state.ga, gradients[k, layout.size :])


@compiled(**UNCOUNTED, **UNLOCKED)
def no_u_turn_draws(table, density, extra, source, scheme, pace, fresh, learn, states, gradients, statistics):
    """Draws with trajectories that end at a U-turn."""
    memory = unpack(table)
    layout, metric, state, work = memory.layout, memory.metric, memory.state, memory.work
    for k in range(statistics.shape[0]):
        stats, eps = statistics[k], step_size(pace, memory.averaging, source)
        begin(density, extra, source, memory, eps, fresh and k == 0, learn, stats)
        no_u_turn(density, extra, source, scheme, layout, metric, work, state, eps, pace.most, stats)
        finish(density, extra, source, scheme, pace, memory, learn, stats, k, states, gradients)


@compiled(**UNCOUNTED, **UNLOCKED)
def static_draws(table, density, extra, source, scheme, pace, fresh, learn, states, gradients, statistics):
    """Draws with trajectories of a given number of steps."""
    memory = unpack(table)
    layout, metric, state, work = memory.layout, memory.metric, memory.state, memory.work
    for k in range(statistics.shape[0]):
        stats, eps = statistics[k], step_size(pace, memory.averaging, source)
        number = n_steps(pace, eps, source)
        begin(density, extra, source, memory, eps, fresh and k == 0, learn, stats)
        static(density, extra, source, scheme, layout, metric, work, state, eps, number, stats)
        finish(density, extra, source, scheme, pace, memory, learn, stats, k, states, gradients)


@compiled(**UNCOUNTED)
def learn_path(table, points, gradients, connected):
    """Add the secants of a path, given by points with ambient gradients, to the moments; skip pairs not connected."""
    memory = unpack(table)
    layout, work = memory.layout, memory.work
    before, after = work.start, work.right
    for k in range(points.shape[0]):
        copy_into(points[k], after.q)
        copy_into(gradients[k], after.gb)
        split_in_place(layout, work.blas, after.q, after.ga, after.gb)
        if k > 0 and connected[k - 1]:
            add_secant(layout, work.blas, before, after, memory.moments, work.scratch)
        copy_position(after, before)
