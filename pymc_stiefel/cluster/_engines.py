"""Engines: they submit tasks to joblib or to an executor and return the messages of the tasks.

An engine takes tasks and yields a message for each finished one, and a :class:`Lost` for each failure of its own: a
worker that was killed, a connection that broke. Errors of a chain are part of its message and are never yielded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pymc_stiefel.cluster._checks import needs
from pymc_stiefel.cluster._tasks import Message, Task, run_chain

__all__ = ["Engine", "Lost", "engine_for"]

POLL_SECONDS = 0.02


@dataclass
class Lost:
    """A task that the engine did not finish, or all unfinished tasks of a round."""

    error: BaseException


Engine = Callable[[Sequence[Task], Callable[[int], None]], Iterator[Message | Lost]]


def engine_for(executor: Any) -> Engine:
    """The engine for an executor; without an executor, joblib with its active backend."""
    if executor is None:
        return _joblib_engine
    if hasattr(executor, "get_executor"):  # a Dask client: its own submit returns the old result for an equal task
        executor = executor.get_executor()
    if not callable(getattr(executor, "submit", None)):
        raise TypeError(
            f"executor must have a method submit(function, *arguments) that returns a future, got {executor!r}; "
            "for joblib leave executor out and write `with joblib.parallel_config(...)`"
        )
    return lambda tasks, count: _executor_engine(executor, tasks)


def _joblib_engine(tasks: Sequence[Task], count: Callable[[int], None]) -> Iterator[Message | Lost]:
    """Run tasks by joblib. ``count`` gets the number of finished tasks if the backend returns all at the end (Ray)."""
    joblib = needs("joblib")
    backend, n_jobs = needs("joblib.parallel").get_active_backend()
    as_they_come = backend.supports_return_generator

    class Parallel(joblib.Parallel):  # type: ignore[misc, name-defined]
        def print_progress(self) -> None:
            if not as_they_come:
                count(self.n_completed_tasks)

    parallel = Parallel(
        n_jobs=-1 if n_jobs is None else n_jobs,
        return_as="generator_unordered" if as_they_come else "list",
        pre_dispatch="all",
        batch_size=1,
    )
    results: Any = None
    try:
        results = parallel(joblib.delayed(run_chain)(task) for task in tasks)
        yield from results
    except Exception as error:
        yield Lost(error)
    finally:
        if hasattr(results, "close"):
            results.close()


def _executor_engine(executor: Any, tasks: Sequence[Task]) -> Iterator[Message | Lost]:
    waiting: list[Any] = []
    try:
        try:
            for task in tasks:
                waiting.append(executor.submit(run_chain, task))
        except Exception as error:  # a pool that broke while it was being filled
            yield Lost(error)
        while waiting:
            done: list[Any] = []
            running: list[Any] = []
            for future in waiting:
                (done if future.done() else running).append(future)
            waiting = running
            for future in done:
                yield _outcome(future)
            if not done:
                time.sleep(POLL_SECONDS)
    finally:
        for future in waiting:
            if hasattr(future, "cancel"):
                future.cancel()


def _outcome(future: Any) -> Message | Lost:
    try:
        result: Message | Lost = future.result()
        return result
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # CancelledError and some errors of engines are not Exceptions
        return Lost(error)
