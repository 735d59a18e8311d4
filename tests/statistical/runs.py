"""Chains of the bare engine for the ladder."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pymc_stiefel.engine.blocks import make_layout
from pymc_stiefel.engine.integrator import TWO_STAGE
from pymc_stiefel.engine.sampler import Sampler, Settings
from tests.statistical.targets import target_density

SAMPLERS = {
    "two-stage splitting, isotropic metric": {"drift": "splitting", "stages": TWO_STAGE, "adapt_metric": False},
    "StiefelNUTS, as it tunes itself": {
        "drift": "automatic",
        "stages": TWO_STAGE,
        "weigh_flips": True,
        "adapt_rows": True,
        "search": True,
    },
    "Cayley": {"drift": "cayley", "adapt_metric": False},
    "geodesic": {"drift": "geodesic", "adapt_metric": False},
}

TRAJECTORIES = {
    "static": {"n_steps": 3},
    "jittered": {"n_steps": 5, "jitter": 0.6},
    "no-U-turn": {},
}

# Target acceptance rate with which the step size is tuned. The names are part of the seeds: do not change them.
STEPS = {"safe": 0.95, "moderate": 0.85, "reckless": 0.55}

# Tuned steps of the two-stage scheme are rarely rejected; these factors make them longer.
RECKLESS = {"two-stage splitting, isotropic metric": 1.3, "StiefelNUTS, as it tunes itself": 1.7}


@dataclass
class Run:
    draws: np.ndarray  # flat states, (draws, size)
    accept: float
    sampler: Sampler


def chain(layout, address, start, draws, rng, *, tune=445, extra=None, stretch=1.0, **settings) -> Run:
    """A chain that learns for ``tune`` draws, and is then frozen: the kept draws are of one kernel.

    ``stretch`` multiplies the step size that it has learnt.
    """
    options = {} if extra is None else {"extra": extra}
    sampler = Sampler(layout, address, Settings(**settings), rng, **options)
    sampler.chain.tune = tune > 0
    q, kept, accept = start, np.empty((draws, layout.size)), 0.0
    for k in range(-tune, draws):
        if k == 0:
            sampler.chain.tune = False
            sampler.step_size *= stretch
        q = sampler.draw(q).copy()
        if k >= 0:
            kept[k] = q
            accept += sampler.stats["mean_tree_accept"] / draws
    return Run(kept, accept, sampler)


def run_target(target, sampler, trajectory, step, draws, seed, stretch=1.0) -> Run:
    """A frozen chain on a target; matrices of O(n) may be reflected."""
    n, p = target.n, target.p
    layout = make_layout([(n, p)], 0, flips=[n == p])
    return chain(
        layout,
        target_density.address,
        np.eye(n, p).T.ravel(),
        draws,
        np.random.default_rng(seed),
        extra=target.extra,
        stretch=stretch,
        target_accept=STEPS[step],
        **SAMPLERS[sampler],
        **TRAJECTORIES[trajectory],
    )
