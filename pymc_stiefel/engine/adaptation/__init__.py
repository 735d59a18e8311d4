"""Adaptation during tuning. Each adapter learns one part of the settings and has its own state and constants.

The sampler calls its adapters one after another: ``initialize`` before the first draw, ``update`` after every batch of
tuning draws, ``finalize`` when tuning ends. ``wait`` returns how many draws may pass before the next ``update``.
Adapters communicate through fields of the chain: ``windows``, which all share; ``path``, points and gradients from
which masses are learnt; ``mass_change``, after which a new step size is searched for.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pymc_stiefel.engine.sampler import Sampler


class Adapter:
    """Base class of all adapters. It does nothing."""

    without_tuning = False  # whether ``initialize`` is also called for chains without tuning

    def initialize(self, sampler: Sampler) -> None:
        """Called before the first draw of a chain with tuning."""

    def update(self, sampler: Sampler) -> None:
        """Called after a batch of tuning draws: ``sampler.states``, ``gradients``, ``statistics``, one row per draw."""

    def finalize(self, sampler: Sampler) -> None:
        """Called when tuning has ended, before the first draw that is kept."""

    def wait(self, sampler: Sampler) -> int:
        """Largest number of tuning draws until the next ``update``."""
        return sys.maxsize
