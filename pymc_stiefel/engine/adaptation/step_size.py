"""The step size: found by a search when masses are new, then adapted to the target acceptance rate at every draw.

The rule is that of Robbins & Monro (1951): the log step size moves by ``GAIN (accept - target) / count``. An earlier
version restarted dual averaging at every window; the log step size then fluctuated by 0.6, and its average was too
small by a quarter.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from pymc_stiefel.engine.adaptation import Adapter
from pymc_stiefel.engine.jit.compiling import inner

if TYPE_CHECKING:
    from pymc_stiefel.engine.sampler import Sampler

MAX_STEP_SIZE = 1.4
"""With learnt masses a uniform matrix turns by about a radian in a unit of time. On a compact manifold a flat density
accepts steps of any size. Larger steps than this, only a few to the circle, would miss U-turns."""

GAIN = 1.5
"""About the reciprocal slope of the acceptance in the log step size, which makes Robbins & Monro's rule efficient."""

SOUGHT, CHANGED = 3.0, 15.0
"""Value to which the count is set after a search, and its maximum after a small change of masses."""

JUMP = math.log(2.0)
"""Change of the logarithm of a mass after which a new step size is searched for."""

CHECKED, LOST, PAUSE = 10, 0.45, 40
"""Number of draws between checks of the acceptance; how far below the target it has to be for a restart, because the
chain has moved to another mode and its masses do not fit; and the minimum number of draws between restarts."""

TARGET, LOG_LARGEST, LOG_STEP, COUNT = range(4)
"""Positions in the vector that compiled code updates at every draw."""


def make_averaging(target: float, largest: float = math.inf) -> np.ndarray:
    return np.array([target, math.log(largest), 0.0, 1.0])


def restart(values: np.ndarray, eps: float) -> None:
    """Continue from ``eps``."""
    values[LOG_STEP], values[COUNT] = min(math.log(eps), values[LOG_LARGEST]), SOUGHT


@inner
def adapt_step_size(values, accept):
    """Update the step size from the acceptance of the last trajectory."""
    change = GAIN * (accept - values[TARGET]) / values[COUNT]
    values[LOG_STEP] = min(values[LOG_STEP] + change, values[LOG_LARGEST])
    values[COUNT] += 1.0


@dataclass
class StepSize(Adapter):
    """Finds a step size at the start and after large changes of masses; restarts adaptation if the chain is lost."""

    without_tuning = True
    first: float | None = None
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=2 * CHECKED))

    def initialize(self, sampler: Sampler) -> None:
        restart(sampler.chain.averaging, sampler.find_step_size(self.first or sampler.step_size))
        sampler.chain.mass_change = 0.0

    def update(self, sampler: Sampler) -> None:
        chain = sampler.chain
        self.recent.extend(sampler.statistics["mean_tree_accept"].tolist())
        if chain.mass_change > JUMP:
            restart(chain.averaging, sampler.find_step_size(sampler.step_size))
            self.recent.clear()
        elif chain.mass_change > 0.0:
            chain.averaging[COUNT] = min(chain.averaging[COUNT], CHANGED)
        elif chain.draws % CHECKED == 0 and self._is_lost(chain):
            chain.forget()
            restart(chain.averaging, sampler.find_step_size(sampler.step_size))
            self.recent.clear()
        chain.mass_change = 0.0

    def _is_lost(self, chain) -> bool:
        """Whether hardly any trajectory is accepted although the step size had time to settle."""
        if len(self.recent) < 2 * CHECKED or chain.draws - chain.windows.start < PAUSE:
            return False
        return sum(self.recent) / len(self.recent) < chain.averaging[TARGET] - LOST

    def wait(self, sampler: Sampler) -> int:
        return CHECKED - sampler.chain.draws % CHECKED
