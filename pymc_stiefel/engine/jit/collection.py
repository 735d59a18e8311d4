"""Pauses garbage collection while numba compiles, where it takes a sixth of the time.

Collecting right after it takes nearly as long: numba leaves a million objects. They are moved to the oldest generation
instead, which Python collects rarely.
"""

from __future__ import annotations

import gc
from typing import Any

from numba.core import event

FEW = 1000
"""Python freezes a few hundred objects at its start. If there are more, a program has done so, and they stay frozen."""


class _Pause(event.Listener):
    """Listens to all compilations; numba's lock allows one at a time."""

    def __init__(self) -> None:
        self.depth = 0
        self.was_enabled = False

    def on_start(self, event: Any = None) -> None:
        if self.depth == 0:
            self.was_enabled = gc.isenabled()
            gc.disable()
        self.depth += 1

    def on_end(self, event: Any = None) -> None:
        self.depth -= 1
        if self.depth == 0 and self.was_enabled:
            if gc.get_freeze_count() < FEW:
                gc.freeze()
                gc.unfreeze()  # both move objects without looking at them
            gc.enable()


event.register("numba:compile", _Pause())
