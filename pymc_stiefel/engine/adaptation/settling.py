"""Whether tuning has done its work: what was learnt last differs little from what was known before."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pymc_stiefel.engine.adaptation import Adapter
from pymc_stiefel.engine.adaptation.sign_flips import SignFlips

if TYPE_CHECKING:
    from pymc_stiefel.engine.sampler import Sampler

LARGEST = math.log(2.0)
"""Change of the logarithm of a mass between two windows from which masses have not settled."""


@dataclass
class Settling(Adapter):
    """Learns nothing; runs after masses and before the step size, which resets ``mass_change``."""

    change: float = 0.0  # of the last window

    def update(self, sampler: Sampler) -> None:
        if sampler.chain.windows.ends_at(sampler.chain.draws):
            self.change = sampler.chain.mass_change

    def is_settled(self, sampler: Sampler) -> bool:
        """Whether masses changed little, were not restarted lately, and sign flips have been judged."""
        chain = sampler.chain
        flips = [adapter for adapter in chain.adapters if isinstance(adapter, SignFlips)]
        judged = all(adapter.decided or adapter.trying is None or not adapter.trying.any() for adapter in flips)
        return self.change < LARGEST and chain.windows.start <= chain.draws / 2 and judged
