"""Passes the draws of chains to PyMC's traces, progress bar and callback."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pymc as pm
from pymc.backends.ndarray import NDArray
from pymc.progress_bar import MCMCProgressBarManager
from pymc.sampling.parallel import Draw
from pymc.stats.convergence import log_warning_stats

from pymc_stiefel.compile._cache import kept
from pymc_stiefel.engine.statistics import NAMES
from pymc_stiefel.sampling._threads import TIMES, ChainRun
from pymc_stiefel.steps._base import Point, Statistics
from pymc_stiefel.steps._hmc import ManifoldHMC

__all__ = ["Progress", "Recorder", "make_traces"]


def make_traces(
    model: pm.Model, step: ManifoldHMC, start: Point, names: Sequence[str] | None, chains: int, most: int
) -> list[NDArray]:
    """A trace for each chain, with space for ``most`` draws. The function that computes its variables is cached."""
    variables = None
    if names is not None:
        variables = model.replace_rvs_by_values([rv for rv in model.unobserved_RVs if rv.name in names])

    def compiled() -> Any:
        first = NDArray(model=model, vars=variables, test_point=start)
        return first.vars, first.fn

    variables, function = kept(model, ("trace", None if names is None else tuple(names)), compiled)
    traces = [NDArray(model=model, vars=variables, fn=function, test_point=start) for _ in range(chains)]
    for number, trace in enumerate(traces):
        trace.setup(most, number, step.stats_dtypes)
    return traces


class Recorder:
    """Writes the draws of one chain to its trace, and passes them to the callback."""

    def __init__(self, run: ChainRun, trace: NDArray, callback: Callable[..., Any] | None) -> None:
        self.run, self.trace, self.callback = run, trace, callback
        self.divergences = 0

    def skip(self, draws: int) -> None:
        """Skip tuning draws that are discarded anyway."""
        self.trace.draw_idx = min(draws, self.run.done)

    def catch_up(self, tune: int, length: int) -> None:
        """Record the draws made since the last call; the total is ``length``."""
        trace, begin, end = self.trace, self.trace.draw_idx, self.run.done
        if begin == end:
            return
        columns = self._statistics(begin, end, tune)
        stored: dict[str, np.ndarray] = trace._stats[0]
        for name, column in columns.items():
            stored[name][begin:end] = column
        outputs = [trace.samples[name] for name in trace.varnames]
        points = self.run.density.unpack(self.run.states[begin:end], self.run.start)
        for k, point in enumerate(points, begin):
            for output, value in zip(outputs, trace.fn(*point.values()), strict=True):
                output[k] = value
            trace.draw_idx = k + 1
            if self.callback is not None:
                stats = {name: column[k - begin] for name, column in columns.items()}
                last = k + 1 == length
                self.callback(trace=trace, draw=Draw(self.run.number, last, k, k < tune, [stats], point))

    def _statistics(self, begin: int, end: int, tune: int) -> dict[str, np.ndarray]:
        """Statistics of these draws, as one array for each statistic."""
        rows, times = self.run.statistics[begin:end], self.run.times[begin:end]
        kept_draw = np.arange(begin, end) >= tune
        columns = {name: rows[name] for name in NAMES} | {str(name): times[name] for name in TIMES.names or ()}
        columns["reached_max_treedepth"] = rows["reached_max_treedepth"] & kept_draw
        columns["divergences"] = self.divergences + np.cumsum(rows["diverging"] & kept_draw)
        self.divergences = int(columns["divergences"][-1])
        columns["warning"] = np.full(end - begin, None, dtype=object)
        for k in np.flatnonzero(rows["diverging"]).tolist():
            error = float(rows["max_energy_error"][k])
            warning = ManifoldHMC.divergence_warning(not kept_draw[k], error, begin + k + 1)
            columns["warning"][k] = warning
            log_warning_stats([{"warning": warning}])
        return columns


class Progress(MCMCProgressBarManager):
    """PyMC's progress bar, updated with many draws at a time."""

    def look_at(self, runs: Sequence[ChainRun], tune: int, length: int) -> None:
        """Update the bars to the chains' progress."""
        if not self._show_progress:
            return
        known = self.__dict__.setdefault("_known", [0] * len(runs))
        for k, run in enumerate(runs):
            done = run.done
            if done > known[k]:
                self.completed_draws += done - known[k]
                self._move(k, done, done - known[k], tune, length, self._last(run, done, tune))
                known[k] = done

    def _last(self, run: ChainRun, done: int, tune: int) -> Statistics:
        row = run.statistics[done - 1]
        divergences = int(run.statistics["diverging"][tune:done].sum())
        return {name: row[name] for name in NAMES} | {"divergences": divergences}

    def _move(self, chain: int, done: int, by: int, tune: int, length: int, stats: Statistics) -> None:
        failing, shown = self._extract_stats([stats])
        count, bars = (self.completed_draws, self.n_bars) if self.combined_progress else (done, 1)
        shown["draw"] = count if count <= tune * bars else count - tune * bars
        options: dict[str, Any] = {}
        if "total" in inspect.signature(self._backend.update).parameters:  # PyMC 6: tuning may turn out to be longer
            options["total"] = length * bars
        chain = 0 if self.combined_progress else chain
        is_last = count == length * bars
        self._backend.update(task_id=chain, advance=by, failing=failing, stats=shown, is_last=is_last, **options)
