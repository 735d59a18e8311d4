"""Decide which models can be sampled in threads; prepare seeds and starts exactly as ``pm.sample`` does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pymc as pm
from pymc.sampling import mcmc
from pymc.step_methods import STEP_METHODS

from pymc_stiefel.cluster._plan import start_functions
from pymc_stiefel.compile._cache import kept, start_function
from pymc_stiefel.steps._base import Point
from pymc_stiefel.steps._hmc import ManifoldHMC

__all__ = ["StartFunctions", "Unsupported", "make_starts", "make_step"]

StartFunctions = list[Callable[[Any], Point]]


class Unsupported(Exception):
    """Raised if a model or a call has to be passed to ``pm.sample``; the message has the reason."""


def make_starts(model: pm.Model, initvals: Any, chains: int) -> StartFunctions:
    """For each chain, a function from a seed to its start. Without ``initvals`` it is compiled once for a model."""
    if initvals is None:
        return [start_function(model)] * chains
    return start_functions(model, initvals, chains)


def make_step(
    model: pm.Model, given: Any, first: Callable[[Any], Point], options: dict[str, Any], compile_kwargs: dict[str, Any]
) -> ManifoldHMC:
    """The one step that samples the whole model, its density compiled, or :class:`Unsupported`."""
    if isinstance(given, ManifoldHMC) and set(given.vars) == set(model.value_vars):
        provided, selected = [given], {}
    elif given is None:
        choice = kept(model, ("steps", *STEP_METHODS), lambda: mcmc.assign_step_methods(model, None))
        provided, selected = list(choice[0]), {method: list(values) for method, values in choice[1].items()}
    else:
        provided, selected = mcmc.assign_step_methods(model, given)
    kinds = [*map(type, provided), *selected]
    if len(kinds) != 1 or not issubclass(kinds[0], ManifoldHMC):
        raise Unsupported(f"its steps are {', '.join(kind.__name__ for kind in kinds)}")
    step: ManifoldHMC = mcmc.instantiate_steppers(
        model,
        provided,
        selected,
        step_kwargs=dict(options),
        initial_point=first(0),
        compile_kwargs=compile_kwargs,
    )
    if step.density.shared:
        raise Unsupported(f"{', '.join(step.density.shared)} are not sampled by it")
    if step.density.calls_python:
        raise Unsupported("its log density runs Python code")
    return step
