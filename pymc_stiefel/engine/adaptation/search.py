"""A short search before adaptation: the density is increased over the matrices, with all other variables fixed.

Chains start at draws from the prior. If all variables moved together from there, scales would adapt to a random matrix,
which could then hardly move. Also, a chain that drifts towards the mode for a long time learns nothing about the mode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pymc_stiefel.engine import lbfgs
from pymc_stiefel.engine.adaptation import Adapter

if TYPE_CHECKING:
    from pymc_stiefel.engine.sampler import Sampler

ITERATIONS, TOLERANCE = 40, 1e-2
"""Limits of L-BFGS. It only has to get near an optimum."""

FEWEST = 5
"""Minimum number of points of a path from which masses are learnt."""


@dataclass
class Search(Adapter):
    """Moves the start of the chain. The path is used for the first masses."""

    def initialize(self, sampler: Sampler) -> None:
        chain, stiefel = sampler.chain, sampler.layout.stiefel
        points, gradients = [], []

        def loss(q):
            value, gradient = sampler.evaluate(q)
            chain.spent += 1
            if np.isfinite(value) and np.all(np.isfinite(gradient)):
                points.append(q.copy())
                gradients.append(gradient.copy())
            gradient[stiefel:] = 0.0
            return -value, -gradient

        found = lbfgs.minimize(loss, chain.state.q, sampler.layout, gtol=TOLERANCE, max_iterations=ITERATIONS)
        if np.isfinite(found.value):
            chain.state.q[:] = found.q
            chain.fresh = True
        if len(points) >= FEWEST:  # the second half, which is closer to where the chain will be
            half = min(len(points) // 2, len(points) - FEWEST)
            chain.path = np.array(points[half:]), np.array(gradients[half:]), np.ones(len(points) - half - 1, bool)
