"""What tuning learns. An adapter is one thing that is learnt, with its own state and constants.

The sampler runs its adapters in order: ``initialize`` before the first draw, ``update`` after every batch of tuning
draws, ``finalize`` when tuning ends. ``wait`` says how many draws may pass before the adapter has to be asked again.
What one adapter tells another goes through the chain: ``windows``, the clock that all share; ``path``, points with
their gradients to learn masses from; ``mass_change``, after which the step size is sought anew.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pymc_stiefel.engine.sampler import Sampler


class Adapter:
    """Does nothing: the base of all adapters."""

    without_tuning = False  # whether ``initialize`` is also for chains that are not tuned

    def initialize(self, sampler: Sampler) -> None:
        """Before the first draw of a chain that is to be tuned."""

    def update(self, sampler: Sampler) -> None:
        """After a batch of tuning draws: ``sampler.states``, ``gradients`` and ``statistics``, one draw a row."""

    def finalize(self, sampler: Sampler) -> None:
        """When tuning has ended, before the first draw that is kept."""

    def wait(self, sampler: Sampler) -> int:
        """Tuning draws that may be made in one batch, from now on."""
        return sys.maxsize
