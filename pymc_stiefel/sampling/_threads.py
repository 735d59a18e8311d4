"""Chains in threads of one process: compiled code makes the draws and releases the GIL.

Each chain has its own sampler, random numbers and memory; compiled functions and data are shared and only read. Draws
do not depend on the size of a batch, and therefore not on the number of threads or on their speed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

import numpy as np

from pymc_stiefel.engine.statistics import STATISTICS
from pymc_stiefel.steps._base import Point
from pymc_stiefel.steps._hmc import ManifoldHMC

__all__ = ["ChainRun", "Interrupted", "advance"]

BATCH_SECONDS, BATCH_BYTES = 0.05, 2**25
"""Limits of a batch of draws (seconds, bytes of states); a chain checks between batches whether to stop."""

REPORT_SECONDS = 0.1
"""Seconds between updates of the progress bar and the callback."""

TIMES = np.dtype([("perf_counter_diff", "f8"), ("process_time_diff", "f8"), ("perf_counter_start", "f8")])


class Interrupted(Exception):
    """Raised after Ctrl-C, or a ``KeyboardInterrupt`` of the callback, when all chains have stopped."""


class ChainRun:
    """One chain, and the arrays that its draws and statistics go to.

    Parameters
    ----------
    number : int
    step : ManifoldHMC
        Holds the compiled density and the settings. It is not changed.
    start : dict
    rng : numpy.random.Generator
        The generator of this chain alone.
    most : int
        Largest number of draws, including tuning: the length of the arrays.
    """

    def __init__(self, number: int, step: ManifoldHMC, start: Point, rng: np.random.Generator, most: int) -> None:
        self.number, self.start = number, start
        self.sampler, self.density = step.new_chain(rng)
        self._first: np.ndarray | None = step.checked_start(step.density.pack(start), start)
        self.states = np.empty((most, step.density.layout.size))
        self.statistics, self.times = np.empty(most, STATISTICS), np.empty(most, TIMES)
        self.done, self._seconds = 0, np.inf  # draws made, and seconds that each of the last ones took

    def advance(self, until: int, tune: int, stop: threading.Event) -> None:
        """Make draws until there are ``until`` in all; the first ``tune`` of them are tuning draws."""
        sampler, chain = self.sampler, self.sampler.chain
        sampler.tuning = tune
        while self.done < until and not stop.is_set():
            chain.tune = self.done < tune
            count = self._batch(until if not chain.tune else min(until, tune))
            begin, processor_begin = time.perf_counter(), time.thread_time()
            states = sampler.draws(count, self._first)
            self.density.raise_error()
            self._first = None
            self._seconds = (time.perf_counter() - begin) / count
            place = slice(self.done, self.done + count)
            self.states[place], self.statistics[place] = states, sampler.statistics
            times = self.times[place]
            times["perf_counter_diff"] = self._seconds
            times["process_time_diff"] = (time.thread_time() - processor_begin) / count
            times["perf_counter_start"] = begin + self._seconds * np.arange(count)
            self.done += count  # last, because another thread reads all entries before it

    def _batch(self, until: int) -> int:
        """Number of draws to make before the next check."""
        limits = (until - self.done, self.sampler.plan_holds, BATCH_SECONDS / max(self._seconds, 1e-9))
        return max(1, int(min(*limits, BATCH_BYTES / self.states[0].nbytes)))


def advance(
    runs: Sequence[ChainRun], until: int, tune: int, cores: int, report: Callable[[], None]
) -> list[tuple[ChainRun, BaseException]]:
    """Run the chains, ``cores`` of them at a time; the calling thread calls ``report`` regularly.

    Returns the chains that failed, with their errors; if one does, all stop. They also stop before an
    :class:`Interrupted` is raised, or an error of ``report``.
    """
    stop = threading.Event()
    with ThreadPoolExecutor(cores, thread_name_prefix="chain") as pool:
        try:
            futures = {pool.submit(run.advance, until, tune, stop): run for run in runs}
        except RuntimeError as error:
            stop.set()
            raise RuntimeError(f"{error}: use fewer cores, or raise the limit on processes (ulimit -u)") from error
        try:
            while (state := wait(futures, REPORT_SECONDS, FIRST_EXCEPTION)).not_done:
                if any(future.exception() for future in state.done):
                    break
                report()
            if not state.not_done:
                report()
        except KeyboardInterrupt as error:
            raise Interrupted from error
        finally:
            stop.set()
            wait(futures)
    return [(run, failure) for future, run in futures.items() if (failure := future.exception())]
