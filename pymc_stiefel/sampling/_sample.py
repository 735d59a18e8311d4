"""``sample`` and ``StiefelSampler``: the call and the result of ``pm.sample``, with chains in threads."""

from __future__ import annotations

import logging
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pymc as pm
from pymc.exceptions import SamplingError
from pymc.sampling import mcmc
from pymc.sampling.parallel import _cpu_count
from threadpoolctl import threadpool_limits

from pymc_stiefel import _checks
from pymc_stiefel._compat import model_of
from pymc_stiefel.analysis import check
from pymc_stiefel.cluster._checks import with_target_accept
from pymc_stiefel.cluster._plan import spawned
from pymc_stiefel.cluster._sample_chains import checked_names, resolve_backend
from pymc_stiefel.compile._layout import manifold_block
from pymc_stiefel.sampling._plan import Unsupported, make_starts, make_step
from pymc_stiefel.sampling._results import Progress, Recorder, make_traces
from pymc_stiefel.sampling._threads import ChainRun, Interrupted, advance
from pymc_stiefel.steps._hmc import ManifoldHMC

__all__ = ["StiefelSampler", "sample"]

_log = logging.getLogger("pymc.stiefel")  # a child of PyMC's logger, so that messages appear where PyMC's own do

FIRST_TUNE, GROWTH, MOST_TUNE = 300, 1.5, 1000
"""Minimum number of tuning draws, the factor by which it grows while the masses have not settled, and the maximum. A
window ends at draw 243, which leaves the step size some time to adapt to the last masses.
"""


FOREIGN = ("nuts_sampler", "nuts_sampler_kwargs", "trace")
"""Arguments that require ``pm.sample``."""


def sample(
    draws: int = 1000,
    *,
    tune: int | None = None,
    chains: int | None = None,
    cores: int | None = None,
    random_seed: Any = None,
    progressbar: bool | str = True,
    progressbar_theme: Any = None,
    quiet: bool = False,
    step: Any = None,
    var_names: Sequence[str] | None = None,
    nuts_sampler: str | None = None,
    initvals: Any = None,
    init: str = "auto",
    jitter_max_retries: int = 10,
    n_init: int = 200_000,
    trace: Any = None,
    discard_tuned_samples: bool = True,
    compute_convergence_checks: bool = True,
    keep_warning_stat: bool = False,
    return_inferencedata: bool = True,
    idata_kwargs: dict[str, Any] | None = None,
    nuts_sampler_kwargs: dict[str, Any] | None = None,
    callback: Callable[..., Any] | None = None,
    mp_ctx: Any = None,
    blas_cores: int | str | None = "auto",
    model: pm.Model | None = None,
    backend: str | None = None,
    compile_kwargs: dict[str, Any] | None = None,
    **kwargs: Any,
) -> Any:
    """Sample a model as ``pm.sample`` does, with chains in threads of one process.

    On the same kind of machine it makes exactly the draws of ``pm.sample`` with the same ``random_seed`` and ``tune``.
    It starts no processes, runs no Python code between draws, and compiles nothing when the same model is sampled
    again, even after ``pm.set_data``. All variables must be sampled by one :class:`StiefelNUTS`,
    :class:`OrthogonalHMC` or :class:`GeodesicHMC`; every other call is passed to ``pm.sample``.

    Parameters
    ----------
    draws, chains, random_seed, progressbar, progressbar_theme, quiet, step, var_names, initvals
        As for ``pm.sample``.
    tune : int, optional
        Tuning draws. Default: 300, and more, up to 1000, while the masses of a chain have not settled; the number is in
        the attributes of the result, as ``tuning_steps``.
    cores : int, optional
        Number of threads. Default: as for ``pm.sample``.
    discard_tuned_samples, keep_warning_stat, return_inferencedata, idata_kwargs, model, backend, compile_kwargs
        As for ``pm.sample``.
    compute_convergence_checks : bool, default True
        Whether to run :func:`pymc_stiefel.check`, which looks at what the posterior identifies.
    callback : function, optional
        As for ``pm.sample``. It gets draws in batches, and ends sampling by raising ``KeyboardInterrupt``.
    blas_cores : int, "auto" or None, default "auto"
        Threads of BLAS for all chains together; "auto" means as many as ``cores``.
    nuts_sampler, init, jitter_max_retries, n_init, trace, nuts_sampler_kwargs, mp_ctx
        For calls that are passed to ``pm.sample``: those with a ``trace``, or with a ``nuts_sampler`` of another
        library.
    **kwargs
        Options of the step: ``target_accept=0.9``, ``nuts={"max_treedepth": 12}``.

    Returns
    -------
    DataTree or InferenceData
        As ``pm.sample`` returns it.

    Notes
    -----
    Ctrl-C ends sampling and returns the draws made so far. If a chain fails after tuning, the draws made so far are
    returned with a warning.

    Examples
    --------
    >>> import numpy as np, pymc as pm
    >>> import pymc_stiefel as pst
    >>> with pm.Model():
    ...     X = pst.MatrixLangevin("X", F=30 * np.eye(4, 2))
    ...     idata = pst.sample(100, chains=2, cores=2, random_seed=1, quiet=True)
    >>> idata["posterior"]["X"].shape
    (2, 100, 4, 2)
    """
    handed_on = {
        "nuts_sampler": nuts_sampler,
        "init": None if init == "auto" else init,
        "jitter_max_retries": None if jitter_max_retries == 10 else jitter_max_retries,
        "n_init": None if n_init == 200_000 else n_init,
        "trace": trace,
        "nuts_sampler_kwargs": nuts_sampler_kwargs,
        "mp_ctx": mp_ctx,
    }
    sampler = StiefelSampler(
        step,
        callback=callback,
        blas_cores=blas_cores,
        progressbar_theme=progressbar_theme,
        return_inferencedata=return_inferencedata,
        **kwargs,
    )
    sampler._handed_on = {name: value for name, value in handed_on.items() if value is not None}
    return sampler.sample_from_init(
        model=model,
        draws=draws,
        tune=tune,
        chains=chains,
        cores=cores,
        initvals=initvals,
        random_seed=random_seed,
        progressbar=progressbar,
        quiet=quiet,
        discard_tuned_samples=discard_tuned_samples,
        keep_warning_stat=keep_warning_stat,
        var_names=var_names,
        idata_kwargs=idata_kwargs,
        compute_convergence_checks=compute_convergence_checks,
        compile_kwargs=resolve_backend(backend, compile_kwargs),
    )


class StiefelSampler:
    """The settings of :func:`sample` as an object, for ``pm.sample(sampler=...)`` of a future PyMC.

    PyMC's pull request 8358 proposes ``pm.sample(sampler=...)`` for objects with this method.

    Parameters
    ----------
    step : step, optional
        As for ``pm.sample``. Default: the step that PyMC chooses.
    callback, blas_cores, progressbar_theme, return_inferencedata
        As for :func:`sample`.
    **options
        Options of the step: ``target_accept=0.9``, ``nuts={"max_treedepth": 12}``.

    Examples
    --------
    >>> import pymc as pm, pymc_stiefel as pst
    >>> with pm.Model() as model:
    ...     u = pst.UnitVector("u", n=3)
    >>> sampler = pst.StiefelSampler(target_accept=0.9)
    >>> idata = sampler.sample_from_init(model=model, draws=100, chains=2, random_seed=1, quiet=True)
    >>> idata["posterior"]["u"].shape
    (2, 100, 3)
    """

    def __init__(
        self,
        step: Any = None,
        *,
        callback: Callable[..., Any] | None = None,
        blas_cores: int | str | None = "auto",
        progressbar_theme: Any = None,
        return_inferencedata: bool = True,
        **options: Any,
    ) -> None:
        if blas_cores is not None and not (isinstance(blas_cores, str) and blas_cores == "auto"):
            blas_cores = _checks.whole("blas_cores", blas_cores, 1)
        _checks.function("callback", callback)
        _checks.flag("return_inferencedata", return_inferencedata)
        self.step, self.callback, self.blas_cores = step, callback, blas_cores
        self.progressbar_theme, self.return_inferencedata = progressbar_theme, return_inferencedata
        self.options = options
        self._handed_on: dict[str, Any] = {}  # arguments that only pm.sample understands

    def sample_from_init(
        self,
        *,
        model: pm.Model | None = None,
        draws: int = 1000,
        tune: int | None = None,
        chains: int | None = None,
        cores: int | None = None,
        initvals: Any = None,
        random_seed: Any = None,
        progressbar: bool | str = True,
        quiet: bool = False,
        discard_tuned_samples: bool = True,
        keep_warning_stat: bool = False,
        var_names: Sequence[str] | None = None,
        idata_kwargs: dict[str, Any] | None = None,
        compute_convergence_checks: bool = True,
        compile_kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Sample a model; the arguments are those of :func:`sample`."""
        model = model_of(model)
        for name, value in {
            "quiet": quiet,
            "discard_tuned_samples": discard_tuned_samples,
            "keep_warning_stat": keep_warning_stat,
            "compute_convergence_checks": compute_convergence_checks,
        }.items():
            _checks.flag(name, value)
        _checks.mapping("idata_kwargs", idata_kwargs)
        _checks.mapping("compile_kwargs", compile_kwargs)
        if not isinstance(progressbar, bool | str):
            raise TypeError(f"progressbar must be True, False or the name of a kind, got {_checks.shown(progressbar)}")
        if not model.free_RVs:
            raise SamplingError("the model has no free variables, so there is nothing to sample")
        draws, tune = _checks.whole("draws", draws, 1), None if tune is None else _checks.whole("tune", tune, 0)
        cores = min(4, _cpu_count()) if cores is None else _checks.whole("cores", cores, 1)
        chains = max(2, cores) if chains is None else _checks.whole("chains", chains, 1)
        names = checked_names(model, var_names)
        if isinstance(random_seed, int | np.integer) and random_seed < 0:
            raise ValueError(f"random_seed must not be negative, got {random_seed}; leave it out for a random one")
        _checks.seed("random_seed", random_seed)
        returned = {
            "discard_tuned_samples": discard_tuned_samples,
            "keep_warning_stat": keep_warning_stat,
            "idata_kwargs": idata_kwargs or {},
            "return_inferencedata": self.return_inferencedata,
        }
        common = {"progressbar": False if quiet else progressbar, "quiet": quiet}
        try:
            run = self._prepare(model, chains, initvals, random_seed, compile_kwargs or {})
        except Unsupported as reason:
            _log.debug("The model is passed to pm.sample: %s.", reason)
            handed_on = {"tune": tune, "compile_kwargs": compile_kwargs, "progressbar_theme": self.progressbar_theme}
            handed_on |= {"callback": self.callback, "step": self.step, "initvals": initvals, "var_names": names}
            handed_on = {name: value for name, value in (handed_on | self._handed_on).items() if value is not None}
            handed_on |= common | returned | {"cores": cores, "random_seed": random_seed, "model": model}
            result = self._by_pymc(model, draws, chains, compute_convergence_checks, handed_on)
        else:
            run.lengths = draws, tune
            result = run.result(names, self, min(cores, chains), common, returned)
            if compute_convergence_checks and not quiet and self.return_inferencedata:
                check(result, model, target_accept=run.step.settings.target_accept)
        return result

    def _prepare(
        self, model: pm.Model, chains: int, initvals: Any, random_seed: Any, compile_kwargs: dict[str, Any]
    ) -> _Run:
        """The step and the starts, or :class:`Unsupported`."""
        foreign = {name: value for name, value in self._handed_on.items() if name in FOREIGN and value != "pymc"}
        if foreign:
            raise Unsupported(f"{', '.join(foreign)} was given")
        options = with_target_accept(dict(self.options))
        functions = make_starts(model, initvals, chains)
        with model:
            step = make_step(model, self.step, functions[0], options, compile_kwargs)
        step.tell_starts(initvals)
        rngs, seeds = spawned(random_seed, chains)
        return _Run(model, step, [make(seed) for make, seed in zip(functions, seeds, strict=True)], rngs)

    def _by_pymc(self, model: pm.Model, draws: int, chains: int, checks: bool, options: dict[str, Any]) -> Any:
        ours = any(manifold_block(model, value) is not None for value in model.value_vars) and self.return_inferencedata
        options |= {"compute_convergence_checks": checks and not ours, "blas_cores": self.blas_cores}
        result = pm.sample(draws, chains=chains, **options, **self.options)
        if checks and ours and not options["quiet"]:
            check(result, model)
        return result


class _Run:
    """The chains of one call, and their results."""

    lengths: tuple[int, int | None]  # draws, and tuning draws

    def __init__(self, model: pm.Model, step: ManifoldHMC, starts: list[Any], rngs: list[np.random.Generator]) -> None:
        self.model, self.step, self.starts, self.rngs = model, step, starts, rngs

    def result(
        self,
        names: Sequence[str] | None,
        sampler: StiefelSampler,
        cores: int,
        common: dict[str, Any],
        returned: dict[str, Any],
    ) -> Any:
        """All draws, as ``pm.sample`` returns them."""
        (draws, tune), step = self.lengths, self.step
        most = draws + (MOST_TUNE if tune is None else tune)
        begin = time.time()
        self.runs = []
        for number, (start, rng) in enumerate(zip(self.starts, self.rngs, strict=True)):
            try:
                self.runs.append(ChainRun(number, step, start, rng, most))
            except SamplingError as error:
                error.add_note(f"This is the start of chain {number}.")
                raise
        traces = make_traces(self.model, step, self.starts[0], names, len(self.runs), most)
        self.recorders = [Recorder(run, trace, sampler.callback) for run, trace in zip(self.runs, traces, strict=True)]
        self.progress = Progress(
            step, len(self.runs), draws, tune or FIRST_TUNE, common["progressbar"], sampler.progressbar_theme
        )
        if not common["quiet"]:
            _log.info("Sampling in threads (%d chains in %d jobs)", len(self.runs), cores)
            mcmc._print_step_hierarchy(step)
        self.tune, self.has_callback = FIRST_TUNE if tune is None else tune, sampler.callback is not None
        blas = cores if sampler.blas_cores == "auto" else sampler.blas_cores
        limit: Any = None if blas is None else max(1, int(blas) // cores)
        with self.progress, threadpool_limits(limit, "blas"):
            self._draw(draws, tune is None, cores)
        discarded = returned["discard_tuned_samples"]
        if discarded and max(run.done for run in self.runs) <= self.tune:
            raise KeyboardInterrupt("interrupted during tuning, before there was a draw to keep")
        for recorder in self.recorders if not self.has_callback else []:
            recorder.skip(self.tune if discarded else 0)
            recorder.catch_up(self.tune, self.tune + draws)
        for trace in traces:
            trace.close()
        return mcmc._sample_return(
            run=None,
            traces=traces,
            tune=self.tune,
            t_sampling=time.time() - begin,
            compute_convergence_checks=False,
            model=self.model,
            quiet=common["quiet"],
            **returned,
        )

    def _draw(self, draws: int, lengthen: bool, cores: int) -> None:
        """Tune until the masses have settled, then draw. If sampling is stopped, keep the draws made so far."""
        try:
            while lengthen:
                failed = advance(self.runs, self.tune, self.tune, cores, lambda: self._report(draws))
                if failed or self.tune == MOST_TUNE or all(run.sampler.is_settled for run in self.runs):
                    break
                self.tune = min(int(self.tune * GROWTH), MOST_TUNE)
            if not lengthen or not failed:
                failed = advance(self.runs, self.tune + draws, self.tune, cores, lambda: self._report(draws))
        except Interrupted:
            _log.warning("Interrupted: the draws made so far are returned.")
            return
        for run, error in failed:
            error.add_note(f"This happened in chain {run.number}, after {run.done} draws.")
            if all(each.done <= self.tune for each in self.runs):
                raise error
            text = "".join(traceback.format_exception(error))
            message = f"chain {run.number} failed; the draws that the chains have made are returned.\n{text}"
            warnings.warn(message, UserWarning, stacklevel=5)

    def _report(self, draws: int) -> None:
        self.progress.look_at(self.runs, self.tune, self.tune + draws)
        for recorder in self.recorders if self.has_callback else []:
            recorder.catch_up(self.tune, self.tune + draws)
