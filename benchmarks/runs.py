"""What a run of a sampler returns."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.problems import Draws

CHAINS = 2


@dataclass(frozen=True)
class Run:
    """Draws after warm-up, name -> (chain, draw, ...), and their cost in wall seconds and gradients."""

    draws: Draws
    compile: float
    warmup: float
    sampling: float
    warmup_gradients: int
    gradients: int
    divergences: int
