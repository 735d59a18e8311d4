"""Makes sure that a chain can move with its final step size.

During tuning, a small step size may have taken the chain to a region that it cannot leave with the final step size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pymc_stiefel.engine.adaptation import Adapter

if TYPE_CHECKING:
    from pymc_stiefel.engine.sampler import Sampler

EARLIEST = 40
"""Number of draws before which states are not remembered."""

TRIES = 10
"""A chain is stuck if this many trajectories in a row do not move it."""


@dataclass
class Refuge(Adapter):
    """Remembers the state at the end of each window, and returns to it if the chain is stuck when tuning ends."""

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
