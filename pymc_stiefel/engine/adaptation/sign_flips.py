"""Which changes of sign are worth a gradient with every draw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pymc_stiefel.engine.adaptation import Adapter
from pymc_stiefel.engine.blocks import FLIPPED, NEVER, UNDECIDED

if TYPE_CHECKING:
    from pymc_stiefel.engine.sampler import Sampler

BEGIN = 20
"""Draw from which changes of sign are tried."""

ENOUGH, SELDOM = 100, 0.02
"""Changes of a kind to be tried before it is judged, and the chance of acceptance that makes it worthwhile."""


@dataclass
class SignFlips(Adapter):
    """Tries all kinds of changes from early on, and keeps those that are accepted now and then.

    What is hardly ever accepted only costs a gradient; early on it may still carry a chain over a wall that it could
    not cross otherwise. What always is accepted, by a density that does not depend on signs, changes nothing that could
    be told from the density.
    """

    trying: np.ndarray | None = None  # kinds on trial
    decided: bool = False

    def update(self, sampler: Sampler) -> None:
        chain, flips = sampler.chain, sampler.chain.flips
        if self.decided or chain.draws < BEGIN:
            return
        if self.trying is None:
            self.trying = flips.kinds[:, 0] == UNDECIDED
            flips.kinds[self.trying, 0] = FLIPPED
            flips.tried[:] = flips.accepted[:] = 0.0
        elif chain.windows.ends_at(chain.draws) and np.all(flips.tried[self.trying] >= ENOUGH):
            self._decide(sampler)

    def _decide(self, sampler: Sampler) -> None:
        flips = sampler.chain.flips
        if self.trying is not None:
            share = flips.accepted / np.maximum(flips.tried, 1.0)
            dropped = self.trying & ~((flips.tried >= ENOUGH) & (share > SELDOM) & (share < 1.0 - SELDOM))
            flips.kinds[dropped, 0] = NEVER
        self.decided = True

    def finalize(self, sampler: Sampler) -> None:
        if not self.decided:
            self._decide(sampler)

    def wait(self, sampler: Sampler) -> int:
        if self.decided or self.trying is not None:
            return super().wait(sampler)
        return max(BEGIN - sampler.chain.draws, 1)
