"""A chain has to be able to move with the step size that tuning has settled on.

While it was sought, a small step size may have let the chain into a place that the final one cannot leave.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pymc_stiefel.engine.adaptation import Adapter

if TYPE_CHECKING:
    from pymc_stiefel.engine.sampler import Sampler

EARLIEST = 40
"""Draws before which a state is no place to go back to."""

TRIES = 10
"""Trajectories that get nowhere before a chain is taken to be stuck."""


@dataclass
class Refuge(Adapter):
    """Remembers the state at the end of windows, and goes back to it if the chain is stuck when tuning ends."""

    state: np.ndarray | None = None

    def update(self, sampler: Sampler) -> None:
        chain = sampler.chain
        if chain.draws > EARLIEST and chain.windows.ends_at(chain.draws):
            self.state = chain.last.copy()

    def finalize(self, sampler: Sampler) -> None:
        if self.state is None:
            return
        for _ in range(TRIES):
            if sampler.try_trajectory():
                return
        sampler.move_to(self.state)
