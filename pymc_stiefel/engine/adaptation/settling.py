"""Checks whether tuning is complete: the last update changed the masses little."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pymc_stiefel.engine.adaptation import Adapter
from pymc_stiefel.engine.adaptation.metric import Masses, largest_change
from pymc_stiefel.engine.adaptation.sign_flips import SignFlips

if TYPE_CHECKING:
    from pymc_stiefel.engine.sampler import Sampler

LARGEST = math.log(2.0)
"""If the logarithm of a mass changes by this much or more between windows, masses have not settled."""

FEWEST = 50
"""Minimum number of draws to judge the masses of a chain."""


@dataclass
class Settling(Adapter):
    """Learns nothing. It runs after the masses and before the step size, which resets ``mass_change``.

    ``change`` is the largest change of the logarithm of a mass. During tuning it is that of the last window, and
    infinite if row coordinates changed. When tuning has ended, it is the change that would result if a window ended
    there. It then includes missing row coordinates, and is infinite after fewer than ``FEWEST`` draws.
    """

    change: float = math.nan

    def update(self, sampler: Sampler) -> None:
        if sampler.chain.windows.ends_at(sampler.chain.draws):
            self.change = sampler.chain.mass_change

    def finalize(self, sampler: Sampler) -> None:
        chain = sampler.chain
        (masses,) = (adapter for adapter in chain.adapters if isinstance(adapter, Masses))
        new = masses.learnt(sampler) if chain.draws - chain.windows.start >= FEWEST else None
        if new is not None:
            self.change = max(chain.mass_change, largest_change(sampler.layout, new, chain.metric))
        elif chain.draws > 0:  # otherwise there was no tuning
            self.change = math.inf

    def is_settled(self, sampler: Sampler) -> bool:
        """Whether masses changed little, adaptation was not restarted lately, and sign flips have been judged."""
        chain = sampler.chain
        flips = [adapter for adapter in chain.adapters if isinstance(adapter, SignFlips)]
        judged = all(adapter.decided or adapter.trying is None or not adapter.trying.any() for adapter in flips)
        return self.change < LARGEST and chain.windows.start <= chain.draws / 2 and judged
