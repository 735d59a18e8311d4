"""What ``pm.sample`` does before and after the draws of a chain, by PyMC's own functions.

``pm.sample`` spawns one generator per chain, draws the seed of the initial point from it, makes all initial points and
one step, and runs that step from each point. Chains are not independent of each other in this: PyMC's NUTS centres its
first masses at the mean of all initial points, and other steps see the first point. So all of this happens once, on the
driver, for all chains. A task gets the step, its own point and its own generator.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pymc as pm
from pymc.backends import init_traces
from pymc.backends.ndarray import NDArray
from pymc.initial_point import make_initial_point_fns_per_chain
from pymc.sampling import mcmc
from pymc.step_methods.arraystep import PopulationArrayStepShared
from pymc.step_methods.compound import BlockedStep, CompoundStep, StepMethodState
from pymc.step_methods.hmc.nuts import NUTS
from pymc.step_methods.state import DataClassState
from pymc.util import RandomGeneratorState, get_random_generator, get_state_from_generator, random_generator_from_state
from threadpoolctl import threadpool_limits

from pymc_stiefel import _checks
from pymc_stiefel.steps._hmc import ManifoldHMC

__all__ = ["Chain", "Job", "prepare"]

Point = dict[str, np.ndarray]


@dataclass(frozen=True)
class Chain:
    """Data of one chain: its number, its start, and its random numbers."""

    number: int
    start: Point
    rng: RandomGeneratorState


@dataclass
class Job:
    """Data shared by all chains, pickled once and loaded once in every worker.

    ``step`` is a step of PyMC, or a function without arguments that makes one or several of them in the worker.
    """

    model: pm.Model
    step: Any
    first_start: Point
    draws: int
    tune: int | None  # None: the default of the steps
    step_options: dict[str, Any]
    compile_kwargs: dict[str, Any]
    blas_cores: int | None = 1
    var_names: list[str] | None = None
    callback: Callable[..., Any] | None = None
    returned: dict[str, Any] = field(default_factory=dict)  # idata_kwargs, discard_tuned_samples, keep_warning_stat

    def ready(self) -> ReadyJob:
        """Compile what is not compiled yet."""
        step = self.step
        if not is_step(step):
            with self.model:
                made = step()
                provided, selected = mcmc.assign_step_methods(self.model, made)
                step = build_step(self, provided, selected)
        check_step(step)
        return ReadyJob(self, step)


class ReadyJob:
    """A job with its step and its recorder of draws compiled, used for one chain after another."""

    def __init__(self, job: Job, step: Any) -> None:
        self.job, self.step = job, step
        self.tune: int = default_tune(step) if job.tune is None else job.tune
        model, variables = job.model, None
        if job.var_names is not None:
            variables = model.replace_rvs_by_values([v for v in model.unobserved_RVs if v.name in job.var_names])
        with model:
            self._recorder = NDArray(model=model, vars=variables, test_point=job.first_start)
        self._fresh = step.sampling_state
        # a step that keeps no record of its state cannot be reset
        self.reusable = all(
            getattr(one, "_state_class", DataClassState) not in (DataClassState, StepMethodState)
            for one in getattr(step, "methods", [step])
        )

    def run(self, chain: Chain, draws: int | None = None, tune: int | None = None) -> Any:
        """The draws of one chain, as ``pm.sample`` returns them. ``draws`` and ``tune`` may be shortened."""
        job, step = self.job, self.step
        draws = job.draws if draws is None else draws
        tune = self.tune if tune is None else tune
        step.sampling_state = self._fresh
        _, traces = init_traces(
            backend=self._recorder,
            chains=1,
            expected_length=draws + tune,
            step=step,
            initial_point=job.first_start,
            model=job.model,
            tune=tune,
        )
        begin = time.time()
        with job.model, threadpool_limits(job.blas_cores, "blas"):
            for _ in mcmc._iter_sample(
                draws=draws + tune,
                step=step,
                start=chain.start,
                trace=traces[0],
                chain=chain.number,
                tune=tune,
                rng=random_generator_from_state(chain.rng),
                model=job.model,
                callback=job.callback,
            ):
                pass
            return mcmc._sample_return(
                run=None,
                traces=traces,
                tune=tune,
                t_sampling=time.time() - begin,
                compute_convergence_checks=False,
                return_inferencedata=True,
                model=job.model,
                quiet=True,
                **job.returned,
            )


def prepare(
    job: Job,
    chains: int,
    random_seed: Any,
    *,
    initvals: Any = None,
    init: str = "auto",
    n_init: int = 200_000,
    jitter_max_retries: int = 10,
) -> list[Chain]:
    """Make the initial points of all chains and the step that they share, which is put into ``job``."""
    model = job.model
    rngs, seeds = spawned(random_seed, chains)
    with model:
        if is_factory(job.step):
            starts = _starts(model, initvals, seeds)
        else:
            provided, selected = mcmc.assign_step_methods(model, job.step)
            if not provided and len(selected) == 1 and issubclass(next(iter(selected)), NUTS):
                options = dict(job.step_options)
                options = options.pop("nuts", {}) | options
                starts, job.step = mcmc.init_nuts(
                    init=init,
                    chains=chains,
                    n_init=n_init,
                    model=model,
                    random_seed=seeds,
                    progressbar=False,
                    quiet=True,
                    jitter_max_retries=jitter_max_retries,
                    tune=job.tune,
                    initvals=initvals,
                    compile_kwargs=job.compile_kwargs,
                    **options,
                )
            else:
                starts = _starts(model, initvals, seeds)
                job.first_start = starts[0]
                job.step = build_step(job, provided, selected)
                for one in getattr(job.step, "methods", [job.step]):
                    if isinstance(one, ManifoldHMC):
                        one.tell_starts(initvals)
            check_step(job.step)
    job.first_start = starts[0]
    if job.tune is None:
        job.tune = default_tune(job.step) if is_step(job.step) else job.ready().tune
    states = [get_state_from_generator(rng) for rng in rngs]
    return [Chain(i, start, state) for i, (start, state) in enumerate(zip(starts, states, strict=True))]


def start_functions(model: pm.Model, initvals: Any, chains: int) -> list[Callable[..., Any]]:
    """For each chain, a function from a seed to its start. Entries of ``initvals`` that are one object share it."""
    _checks.starts("initvals", initvals, chains, [v.name for v in (*model.free_RVs, *model.value_vars)])
    if initvals is None or isinstance(initvals, Mapping):
        initvals = [initvals] * chains
    functions: dict[int, Callable[..., Any]] = {}
    for given in initvals:
        if id(given) not in functions:
            functions[id(given)] = make_initial_point_fns_per_chain(
                model=model, overrides=given, jitter_rvs=set(), chains=1
            )[0]
    return [functions[id(given)] for given in initvals]


def spawned(random_seed: Any, chains: int) -> tuple[list[np.random.Generator], list[int]]:
    """Generators of the chains and seeds of their starts, made as in ``pm.sample``."""
    rngs = get_random_generator(random_seed).spawn(chains)
    return rngs, [rng.integers(2**30) for rng in rngs]


def _starts(model: pm.Model, initvals: Any, seeds: list[int]) -> list[Point]:
    """One initial point per chain."""
    return [make(seed) for make, seed in zip(start_functions(model, initvals, len(seeds)), seeds, strict=True)]


def build_step(job: Job, provided: list[Any], selected: Any) -> Any:
    """The given steps, and a step for each variable that none of them samples."""
    step = mcmc.instantiate_steppers(
        job.model,
        provided,
        selected,
        step_kwargs=job.step_options,
        initial_point=job.first_start,
        compile_kwargs=job.compile_kwargs,
    )
    return CompoundStep(step) if isinstance(step, list) else step


def default_tune(step: Any) -> int:
    """PyMC 6 asks the steps; PyMC 5 tunes for 1000 draws."""
    ask = getattr(mcmc, "get_default_tune_steps", None)
    return 1000 if ask is None else ask(step, None)


def is_step(step: Any) -> bool:
    """Whether this is a step instance."""
    return isinstance(step, BlockedStep | CompoundStep)


def is_factory(step: Any) -> bool:
    """Whether calling this returns a step: a function, or the class of a step."""
    return callable(step) and not is_step(step)


def check_step(step: Any) -> None:
    """Refuse steps in which chains learn from each other."""
    for one in getattr(step, "methods", [step]):
        if isinstance(one, PopulationArrayStepShared):
            raise ValueError(
                f"{type(one).__name__} makes chains that learn from each other, so they cannot run as separate tasks; "
                "use pm.sample, or another step"
            )
