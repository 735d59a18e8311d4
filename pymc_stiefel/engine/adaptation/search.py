"""A short search before anything is learnt: the matrices climb while all other variables are held.

Chains start at draws from the prior. If all variables moved from there, scales would fit themselves to a random matrix
and keep it where it is; and a chain that slides for a long time learns nothing about the place it slides to.
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
"""Of L-BFGS: an optimum is not needed, only its neighbourhood."""

FEWEST = 5
"""Points without which a path says nothing about masses."""


@dataclass
class Search(Adapter):
    """Moves the start of the chain; the path is handed on for first masses."""

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
        if len(points) >= FEWEST:  # the second half, which is nearer to where the chain will be
            half = min(len(points) // 2, len(points) - FEWEST)
            chain.path = np.array(points[half:]), np.array(gradients[half:]), np.ones(len(points) - half - 1, bool)
