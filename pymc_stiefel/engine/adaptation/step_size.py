"""The step size: sought where masses are new, and then brought to the wanted acceptance draw by draw.

The rule is that of Robbins & Monro (1951): the log step size moves by ``GAIN (accept - target) / count``. Restarting a
dual averaging at every window, as an earlier version did, left the log step size fluctuating by 0.6 and its average a
quarter too small.
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
"""In the metrics that are learnt a unit of time turns a uniform matrix by about a radian. On a compact manifold a flat
density accepts steps of any size; with larger ones than this, a few on a circle, a U-turn goes unseen between two."""

GAIN = 1.5
"""About the reciprocal slope of the acceptance in the log step size, with which Robbins & Monro's rule is efficient."""

SOUGHT, CHANGED = 3.0, 15.0
"""Count from which the rule goes on after a search, and after masses have changed a little."""

JUMP = math.log(2.0)
"""Change of the logarithm of a mass after which a step size is sought anew."""

CHECKED, LOST, PAUSE = 10, 0.45, 40
"""Draws between checks of the acceptance, how far below its target it shows that masses are stale (a chain that has
changed mode), and draws between two restarts for that reason."""

TARGET, LOG_LARGEST, LOG_STEP, COUNT = range(4)
"""Places in the vector that compiled code brings up to date draw by draw."""


def make_averaging(target: float, largest: float = math.inf) -> np.ndarray:
    return np.array([target, math.log(largest), 0.0, 1.0])


def restart(values: np.ndarray, eps: float) -> None:
    """Go on from ``eps``."""
    values[LOG_STEP], values[COUNT] = min(math.log(eps), values[LOG_LARGEST]), SOUGHT


@inner
def adapt_step_size(values, accept):
    """Learn from the acceptance of the last trajectory."""
    change = GAIN * (accept - values[TARGET]) / values[COUNT]
    values[LOG_STEP] = min(values[LOG_STEP] + change, values[LOG_LARGEST])
    values[COUNT] += 1.0


@dataclass
class StepSize(Adapter):
    """Seeks a step size at the start and after large changes of masses; restarts all learning where it is lost."""

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
