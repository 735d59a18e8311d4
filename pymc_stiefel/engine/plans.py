"""Kinds of trajectories, and what those of a window tell about which to make.

They end at a U-turn, or have one length; their steps have one to three stages.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from pymc_stiefel.engine.integrator import LEAPFROG
from pymc_stiefel.engine.trajectory import ACCEPT, STEP_SIZE, TREE_SIZE, TURN

MOST_WATCHED = 100
"""About as many coordinates are looked at for their autocorrelation."""

TENTH = 1.28
"""Standard deviations beyond which there is a tenth of a normal law."""

SLOW, LEAST = -0.1, -0.36
"""Correlation of successive draws that trajectories of one length aim at for slow coordinates, two standard deviations
above the mean, and the least they aim at in the mean. At 0, a quarter of a period, coordinates and squares mix equally
well. A little beyond it coordinates gain more than squares lose, which half a period would leave alone."""

U_TURN = 0.5
"""Correlation of the squares of successive draws that trajectories which turn soon were seen to leave, or more."""


@dataclass(frozen=True)
class Plan:
    """What trajectories are made of: ``steps`` of one ``length`` in all, or as many as it takes to turn."""

    stages: int = LEAPFROG
    length: float = 0.0  # 0: until they turn
    steps: int = 1
    yields: float = 0.0  # effective draws for each gradient, as far as rejections tell, of a plan that has been tried


@dataclass
class Trajectories:
    """The trajectories of a window: what they cost, how far they turn, what successive draws have in common."""

    draws: list[np.ndarray] = field(default_factory=list)  # one a row
    statistics: list[np.ndarray] = field(default_factory=list)

    def add(self, states: np.ndarray, statistics: np.ndarray) -> None:
        """Draws and the statistics of their trajectories, one a row."""
        self.draws.append(states[:, :: 1 + states.shape[1] // MOST_WATCHED].copy())
        self.statistics.append(statistics.copy())

    @property
    def count(self) -> int:
        return sum(map(len, self.draws))

    @cached_property
    def means(self) -> list[float]:
        """Of the number of steps, the acceptance, the step size, and the cosine of the first step's angle.

        They are taken over the window as a whole: rounding does not depend on how it was divided.
        """
        return np.concatenate(self.statistics)[:, [TREE_SIZE, ACCEPT, STEP_SIZE, TURN]].mean(axis=0).tolist()

    @property
    def size(self) -> float:
        return self.means[0]

    @property
    def acceptance(self) -> float:
        return self.means[1]

    @property
    def are_short(self) -> bool:
        """Whether they turn back after the few steps without which a turn cannot be seen."""
        return self.size < 4.5

    @cached_property
    def correlations(self) -> np.ndarray:
        """Lag-one autocorrelations, (2, coordinates): of the coordinates, and of their squared deviations."""
        x = np.concatenate(self.draws)
        x -= x.sum(axis=0) / len(x)
        squares = x * x
        squares -= squares.sum(axis=0) / len(x)
        shifted = [np.einsum("ij,ij->j", both[1:], both[:-1]) for both in (x, squares)]
        whole = [np.einsum("ij,ij->j", both, both) for both in (x, squares)]
        return np.array(shifted) / np.maximum(whole, 1e-300)

    def efficiency(self, stages: int) -> float:
        """Effective draws for each gradient, for all but the slowest tenth of coordinates, or of their squares."""
        slow = max(mean + TENTH * spread for mean, spread in map(self._spread, self.correlations))
        return self.efficiency_of(min(slow, 0.99), stages)

    def efficiency_of(self, correlation: float, stages: int) -> float:
        """Of trajectories like these that leave such a correlation between draws.

        What a draw costs beside its gradients, ``stages`` of them a step, counts as one more.
        """
        return (1.0 - correlation) / (1.0 + correlation) / (1.0 + stages * self.size)

    def _spread(self, correlations: np.ndarray) -> tuple[float, float]:
        """Mean and standard deviation of correlations, without the noise of their estimates."""
        mean = float(correlations.sum()) / correlations.size
        variance = float(correlations @ correlations) / correlations.size - mean**2
        return mean, math.sqrt(max(variance - (1.0 - mean**2) / self.count, 0.0))

    def quarter(self) -> float:
        """Time in which velocities turn by a right angle, by what the first step turns them."""
        _, _, eps, cosine = self.means
        return 0.5 * math.pi * eps / _angle(cosine)

    def better_length(self, length: float) -> float:
        """Length that should bring the correlations of successive draws to what is aimed at, by those at ``length``.

        They are taken for cosines of an angle that grows with the length. None exceeds half a period of unit scale.
        """
        mean, spread = self._spread(self.correlations[0])
        accepted = max(self.acceptance, 0.1)
        mean, spread = 1.0 - (1.0 - mean) / accepted, spread / accepted  # of draws that moved
        aim = max(SLOW - 2.0 * spread, LEAST)
        return min(length * min(max(math.acos(aim) / _angle(mean), 0.6), 1.6), math.pi)

    def steps(self, length: float, target: float) -> int:
        """Into how many steps to divide a trajectory of this length, for an acceptance of ``target`` or more.

        Energy errors, and with them rejections, grow as the square of the step size, and faster near the limit of
        stability: to make steps longer takes more than the square says.
        """
        excess = max(1.0 - self.acceptance, 0.0) / (1.0 - target)
        return max(1, math.ceil(length / self.means[2] * excess ** (1 / 2 if excess > 1.0 else 1 / 3)))


def _angle(cosine: float) -> float:
    return math.acos(min(max(cosine, -0.9), 0.9))
