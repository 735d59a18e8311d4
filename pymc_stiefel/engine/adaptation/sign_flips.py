"""Decides which sign flips are worth a gradient per draw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pymc_stiefel.engine.adaptation import Adapter
from pymc_stiefel.engine.blocks import FLIPPED, NEVER, UNDECIDED

if TYPE_CHECKING:
    from pymc_stiefel.engine.sampler import Sampler

BEGIN = 20
"""First draw at which sign flips are tried."""

ENOUGH, SELDOM = 100, 0.02
"""Number of trials before a kind of flip is judged, and the minimum of its acceptance and of its rejection rate."""


@dataclass
class SignFlips(Adapter):
    """Tries all kinds of sign flips early in tuning, and keeps those that are accepted sometimes but not always.

    A flip that is hardly ever accepted only costs a gradient, although early in tuning it may still take a chain across
    a barrier. A flip that is always accepted, because the density does not depend on the sign, changes nothing that the
    density identifies.
    """

    trying: np.ndarray | None = None  # kinds that are being tried
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
