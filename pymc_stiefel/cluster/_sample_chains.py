"""The public function: chains of a PyMC model as tasks."""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pymc as pm
from pymc.exceptions import SamplingError
from pymc.stats.convergence import log_warnings, run_convergence_checks

from pymc_stiefel import _checks
from pymc_stiefel._compat import model_of
from pymc_stiefel.cluster._checks import checked_options, needs, pickled, versions
from pymc_stiefel.cluster._engines import engine_for
from pymc_stiefel.cluster._plan import Chain, Job, prepare
from pymc_stiefel.cluster._progress import ChainProgress
from pymc_stiefel.cluster._results import as_result, groups_of, joined
from pymc_stiefel.cluster._rounds import Rounds
from pymc_stiefel.cluster._store import DIVERGENCES, Store, differences, identity
from pymc_stiefel.cluster._tasks import Task, digest

__all__ = ["sample_chains"]

_log = logging.getLogger("pymc_stiefel")
SHORT = 2  # draws of the short chain that shows names and shapes


def sample_chains(
    draws: int = 1000,
    *,
    tune: int | None = None,
    chains: int = 4,
    random_seed: Any = None,
    model: pm.Model | None = None,
    step: Any = None,
    executor: Any = None,
    store: str | os.PathLike[str] | None = None,
    storage_options: dict[str, Any] | None = None,
    retries: int = 2,
    progressbar: bool | str = True,
    quiet: bool = False,
    initvals: Any = None,
    init: str = "auto",
    n_init: int = 200_000,
    jitter_max_retries: int = 10,
    var_names: Sequence[str] | None = None,
    discard_tuned_samples: bool = True,
    keep_warning_stat: bool = False,
    compute_convergence_checks: bool = True,
    idata_kwargs: dict[str, Any] | None = None,
    callback: Callable[..., Any] | None = None,
    blas_cores: int | str | None = 1,
    compile_kwargs: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    r"""Sample the chains of a PyMC model as tasks of joblib, Dask, Ray, MPI or any executor.

    Chain ``i`` has the same draws, bit by bit, as chain ``i`` of ``pm.sample(chains=chains, random_seed=random_seed)``
    with PyMC's own samplers (``nuts_sampler="pymc"``) on the same kind of machine, wherever it runs, in any order and
    after any number of retries.

    Parameters
    ----------
    draws, tune, chains, random_seed, model, initvals, init, n_init, jitter_max_retries
        As for ``pm.sample``.
    step : step, list of steps, or function, optional
        As for ``pm.sample``. A function without arguments (or the class of a step) makes the step in the worker: use it
        for a step that cannot be pickled.
    executor : object, optional
        Anything with a method ``submit`` that returns futures: ``client.get_executor()`` of Dask, ``MPIPoolExecutor``,
        an executor for Slurm. Default: joblib, with the backend of ``joblib.parallel_config`` and otherwise all
        processors of this machine.
    store : path or URL, optional
        Where each task writes its draws: a zarr store, on a file system or object store that the driver and all workers
        can access. The result is then opened lazily. If the run is interrupted, the same call resumes it.
    storage_options : dict, optional
        Options of fsspec for a URL.
    retries : int, default 2
        How many rounds in a row may finish no chain, after workers were lost, before missing chains are given up.
    progressbar, quiet : bool
        Whether to show chains done, draws per second and divergences; ``quiet`` also silences the log.
    var_names, discard_tuned_samples, keep_warning_stat, idata_kwargs, callback, compile_kwargs
        As for ``pm.sample``. The callback runs in the worker.
    compute_convergence_checks : bool, default True
        As for ``pm.sample``. Chains in a store are not checked, since all draws would have to be read.
    blas_cores : int, "auto" or None, default 1
        Threads of BLAS in each task; None sets no limit.
    **options
        Other arguments of ``pm.sample`` for its steps: ``target_accept=0.9``, ``nuts={"max_treedepth": 12}``.

    Returns
    -------
    DataTree or InferenceData
        As ``pm.sample`` returns it. A failed chain is missing and the others keep their numbers; a warning contains the
        traceback.

    Notes
    -----
    On an interrupt (Ctrl-C) the chains finished so far are returned. With a store, only messages of a few hundred bytes
    pass through the driver. Steps whose chains learn from each other (``DEMetropolis``) are refused.

    Examples
    --------
    >>> import joblib
    >>> import pymc as pm
    >>> import pymc_stiefel as pst
    >>> with pm.Model():
    ...     Q = pst.StiefelUniform("Q", n=4, p=2)
    ...     with joblib.parallel_config("threading", n_jobs=2):
    ...         idata = pst.sample_chains(20, tune=20, chains=3, random_seed=1, quiet=True)
    >>> idata["posterior"]["Q"].shape
    (3, 20, 4, 2)
    """
    begin = time.time()
    draws, chains = _checks.whole("draws", draws, 1), _checks.whole("chains", chains, 1)
    tune = None if tune is None else _checks.whole("tune", tune, 0)
    retries = _checks.whole("retries", retries, 0)
    for name, value in {
        "quiet": quiet,
        "keep_warning_stat": keep_warning_stat,
        "discard_tuned_samples": discard_tuned_samples,
        "compute_convergence_checks": compute_convergence_checks,
    }.items():
        _checks.flag(name, value)
    _checks.mapping("idata_kwargs", idata_kwargs)
    _checks.function("callback", callback)
    engine = engine_for(executor)
    needs("joblib") if executor is None else None
    model = model_of(model)
    if not model.free_RVs:
        raise SamplingError("the model has no free variables, so there is nothing to sample")
    place = None if store is None else Store.at(store, storage_options)
    stored = None if place is None else place.recorded()
    seed = _seed(random_seed, stored)
    job = Job(
        model=model,
        step=step,
        first_start={},
        draws=draws,
        tune=tune,
        compile_kwargs=resolve_backend(options.pop("backend", None), compile_kwargs),
        step_options=checked_options(options),
        blas_cores=1 if blas_cores == "auto" else blas_cores,  # type: ignore[arg-type]
        var_names=checked_names(model, var_names),
        callback=callback,
        returned={
            "discard_tuned_samples": discard_tuned_samples,
            "keep_warning_stat": keep_warning_stat,
            "idata_kwargs": idata_kwargs or {},
        },
    )
    parts = prepare(
        job, chains, seed, initvals=initvals, init=init, n_init=n_init, jitter_max_retries=jitter_max_retries
    )
    data = pickled(job)
    if place is not None:
        _check_store(place, stored, job, parts, data, _seed_name(seed))
    here, name = versions(), digest(data)
    tasks = [Task(pickled(part), part.number, None if place is not None else data, name, here, place) for part in parts]
    rounds = Rounds(engine, tasks, place, retries)
    finished = 0 if place is None else int(place.record()[:, 0].sum())
    with ChainProgress(chains, finished, draws + int(job.tune or 0), bool(progressbar) and not quiet) as progress:
        if place is not None:
            progress.divergences = int(place.record()[:, DIVERGENCES].sum())
        rounds.run(progress)
    _report(rounds, chains)
    order = sorted(rounds.finished)
    groups = joined([rounds.groups.pop(i) for i in order]) if place is None else place.read(order)
    for dataset in groups.values():
        if "tuning_steps" in dataset.attrs:
            dataset.attrs["sampling_time"] = time.time() - begin
    result = as_result(groups)
    if compute_convergence_checks and place is None and not quiet:
        log_warnings(run_convergence_checks(result, model))
    return result


def checked_names(model: pm.Model, names: Sequence[str] | None) -> list[str] | None:
    """``var_names`` as a list; an error if the model lacks one of them."""
    return _checks.names("var_names", names, {variable.name for variable in model.unobserved_RVs})


def resolve_backend(backend: str | None, compile_kwargs: dict[str, Any] | None) -> dict[str, Any]:
    """``compile_kwargs`` with the mode of ``backend``, which needs PyMC 6."""
    _checks.mapping("compile_kwargs", compile_kwargs)
    if backend is None:
        return compile_kwargs or {}
    try:
        from pymc.pytensorf import resolve_backend_compile_kwargs
    except ImportError:
        raise TypeError(f"backend={backend!r} needs PyMC 6; give compile_kwargs={{'mode': ...}} instead") from None
    resolved: dict[str, Any] = resolve_backend_compile_kwargs(backend, compile_kwargs)
    return resolved


def _seed(random_seed: Any, stored: dict[str, Any] | None) -> Any:
    """The given seed; without one, the seed of the run to resume, or a new one."""
    _checks.seed("random_seed", random_seed)
    if random_seed is not None:
        return random_seed
    if stored is not None and str(stored["random_seed"]).isdigit():
        return int(stored["random_seed"])
    return int(np.random.SeedSequence().entropy)  # type: ignore[arg-type]


def _seed_name(seed: Any) -> str:
    """The seed in words, for comparison: a number as it is, the state of a generator as a digest."""
    return str(seed) if isinstance(seed, int | np.integer) else digest(pickled(seed))[:16]


def _check_store(
    place: Store, stored: dict[str, Any] | None, job: Job, parts: list[Chain], data: bytes, seed: str
) -> None:
    """Write names and shapes to a new store; refuse a store of another run."""
    tune = int(job.tune or 0)
    template = groups_of(job.ready().run(parts[0], SHORT, min(SHORT, tune)), 0)
    settings = {
        "draws": job.draws,
        "tune": tune,
        "chains": len(parts),
        "random_seed": seed,
        "versions": versions(),
        "options": {name: str(value) for name, value in job.returned.items()},
    }
    now = identity(settings, template)
    if stored is None:
        place.create(template, now, data)
    elif found := differences(stored, now):
        raise ValueError(
            f"store={place.url!r} has the draws of another run: {'; '.join(found)}. Give another store, or repeat the "
            "first call to resume it."
        )


def _report(rounds: Rounds, chains: int) -> None:
    """Warn about chains that are missing; raise if all are."""
    if rounds.interrupted:
        if not rounds.finished:
            raise KeyboardInterrupt("interrupted before any chain was finished")
        _log.warning("sample_chains: interrupted; %d of %d chains are finished", len(rounds.finished), chains)
        return
    missing = rounds.missing()
    texts = [f"chain {number} failed:\n{text}" for number, text in sorted(rounds.failed.items())]
    if missing:
        texts.append(f"chains {missing} were lost with their workers ({type(rounds.lost).__name__}: {rounds.lost})")
    if not rounds.finished:
        raise SamplingError("no chain was finished. " + "\n".join(texts[:3])) from rounds.lost
    if texts:
        warnings.warn(
            f"{chains - len(rounds.finished)} of {chains} chains are missing from the result. " + "\n".join(texts),
            UserWarning,
            stacklevel=3,
        )
