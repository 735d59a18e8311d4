"""Chains of the tests of step methods."""

import pymc as pm

QUIET = {"progressbar": False, "compute_convergence_checks": False}


def draw(model, draws=50, tune=50, chains=1, cores=1, seed=3, **kwargs):
    with model:
        return pm.sample(draws, tune=tune, chains=chains, cores=cores, random_seed=seed, **(QUIET | kwargs))
