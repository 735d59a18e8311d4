"""``pst.sample`` and nutpie on the same posterior, one thread each, timed by the CPU seconds of this process.

Wall-clock times depend on what else the machine does; CPU seconds hardly do. Tuning is included, compilation is not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pymc as pm

import pymc_stiefel as pst


class Timed(NamedTuple):
    """What a sampler returned, and its cost."""

    idata: Any
    seconds: float
    gradients: int


def _timed(sample: Callable[[int, int], Any], draws: int, tune: int, count: str) -> Timed:
    sample(5, 5)  # compiles
    begin = time.process_time()
    idata = sample(draws, tune)
    seconds = time.process_time() - begin
    return Timed(idata, seconds, sum(int(idata[part][count].sum()) for part in ("sample_stats", "warmup_sample_stats")))


def ours(build: Callable[[str], pm.Model], chains: int, draws: int, tune: int, seed: int) -> Timed:
    model = build("manifold")

    def sample(draws, tune):
        return pst.sample(
            draws, tune=tune, model=model, chains=chains, cores=1, random_seed=seed, quiet=True,
            compute_convergence_checks=False, discard_tuned_samples=False,
        )  # fmt: skip

    return _timed(sample, draws, tune, "gradients")


def nutpie(build: Callable[[str], pm.Model], chains: int, draws: int, tune: int, seed: int) -> Timed:
    """On the polar expansion."""
    import nutpie

    compiled = nutpie.compile_pymc_model(build("polar"))

    def sample(draws, tune):
        return nutpie.sample(compiled, draws=draws, tune=tune, chains=chains, cores=1, seed=seed, progress_bar=False)

    return _timed(sample, draws, tune, "n_steps")


SAMPLERS: dict[str, Callable[[Callable[[str], pm.Model], int, int, int, int], Timed]] = {
    "StiefelNUTS": ours,
    "nutpie, polar": nutpie,
}
