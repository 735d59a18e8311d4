"""The compiled functions that Python calls. Each takes the table of a chain's arrays, see ``table``."""

from __future__ import annotations

from pymc_stiefel.engine.adaptation import accumulate
from pymc_stiefel.engine.blocks import reorthonormalise
from pymc_stiefel.engine.compiling import UNCOUNTED, compiled, inlined
from pymc_stiefel.engine.integrator import draw_momentum, evaluate
from pymc_stiefel.engine.table import unpack
from pymc_stiefel.engine.trajectory import ENERGY, LOGP, ORTHOGONALITY, no_u_turn, reflect, static


@inlined
def begin(density, extra, source, layout, metric, state, work, fresh, stats):
    """A fresh momentum; the density is evaluated again if ``fresh``."""
    for k in range(stats.size):
        stats[k] = 0.0
    if fresh:
        evaluate(density, extra, layout, work.blas, state)
    draw_momentum(source, layout, work.blas, metric, state, work.scratch)


@inlined
def finish(density, extra, source, layout, state, work, moments, learn, stats):
    """Reflection, orthonormal again; the draw is added to the moments if ``learn``."""
    kinetic = stats[ENERGY] + state.value[0]
    reflect(density, extra, source, layout, work, state, stats)
    stats[ORTHOGONALITY] = reorthonormalise(layout, work.blas, state.q, work.scratch)
    stats[LOGP] = state.value[0]
    stats[ENERGY] = kinetic - state.value[0]
    if learn:
        accumulate(layout, state, moments)


@compiled(**UNCOUNTED)
def no_u_turn_draw(table, density, extra, source, scheme, eps, max_treedepth, fresh, learn, stats):
    """One draw with a trajectory that ends at a U-turn."""
    layout, metric, state, work, moments = unpack(table)
    begin(density, extra, source, layout, metric, state, work, fresh, stats)
    no_u_turn(density, extra, source, scheme, layout, metric, work, state, eps, max_treedepth, stats)
    finish(density, extra, source, layout, state, work, moments, learn, stats)


@compiled(**UNCOUNTED)
def static_draw(table, density, extra, source, scheme, eps, n_steps, fresh, learn, stats):
    """One draw with a trajectory of ``n_steps`` steps."""
    layout, metric, state, work, moments = unpack(table)
    begin(density, extra, source, layout, metric, state, work, fresh, stats)
    static(density, extra, source, scheme, layout, metric, work, state, eps, n_steps, stats)
    finish(density, extra, source, layout, state, work, moments, learn, stats)
