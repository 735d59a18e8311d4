"""One integration step of the whole state: kicks by the gradient alternate with drifts of every block.

A step has one or two stages, each with a drift and a gradient. One stage is the leapfrog: half kick, drift, half kick.
Two stages are the scheme of Blanes, Casas & Sanz-Serna (2014, doi:10.1137/130932740). It has smaller errors for the
same number of gradients if the step size is well below its stability limit, which is smaller than the leapfrog's.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pymc_stiefel.engine.jit.calls import call_density
from pymc_stiefel.engine.jit.compiling import inner
from pymc_stiefel.engine.jit.vectors import axpy
from pymc_stiefel.engine.phase_space import drift, remove_normal_part, split_in_place

LEAPFROG, TWO_STAGE = 1, 2
"""Number of stages of a step."""

OUTER_KICK = np.array([0.5, 0.211781])
"""Length of the first and of the last kick as a fraction of the step, for one and two stages."""


class Scheme(NamedTuple):
    """Composition of a step."""

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


@inner
def step(density, extra, scheme, layout, blas, metric, point, eps, scratch):
    """One symmetric step: kicks and drifts alternate, with kicks at both ends."""
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
