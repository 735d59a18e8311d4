"""Submit tasks in rounds until every chain is finished, has failed, or has been lost too often."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Sequence

from pymc_stiefel.cluster._engines import Engine, Lost
from pymc_stiefel.cluster._progress import ChainProgress
from pymc_stiefel.cluster._results import Groups
from pymc_stiefel.cluster._store import FINISHED, Store
from pymc_stiefel.cluster._tasks import Message, Task

__all__ = ["Rounds"]

_log = logging.getLogger("pymc_stiefel")
HOPELESS = (ImportError, AttributeError, pickle.PickleError)
"""Errors of an engine that do not go away if the task is submitted again: the worker lacks a package."""


class Rounds:
    """Submits tasks, and resubmits those whose worker was lost. This is safe: a chain depends on its input only.

    ``retries`` limits rounds in which no chain was finished: a pool that loses one worker often loses all its tasks,
    although only one of them failed.
    """

    def __init__(self, engine: Engine, tasks: Sequence[Task], store: Store | None, retries: int) -> None:
        self.engine, self.store, self.retries = engine, store, retries
        self.tasks = {task.number: task for task in tasks}
        self.groups: dict[int, Groups] = {}
        self.finished: set[int] = set()
        self.failed: dict[int, str] = {}
        self.lost: BaseException | None = None
        self.interrupted = False

    def run(self, progress: ChainProgress) -> None:
        """Run until there is nothing left to submit, or until interrupted."""
        self._read_store()
        budget = self.retries
        try:
            while missing := self.missing():
                before, self.lost = len(self.finished), None
                self._round(missing, progress)
                self._read_store()
                progress.count(len(self.finished))
                budget = self.retries if len(self.finished) > before else budget - 1
                if not self.missing() or budget < 0:
                    return
                _log.warning(
                    "sample_chains: a worker was lost (%s: %s); %d chains are submitted again",
                    type(self.lost).__name__,
                    str(self.lost).split("\n")[0],
                    len(self.missing()),
                )
        except KeyboardInterrupt:
            self.interrupted = True
            self._read_store()

    def missing(self) -> list[int]:
        """Chains that have neither finished nor failed."""
        return [number for number in self.tasks if number not in self.finished and number not in self.failed]

    def _read_store(self) -> None:
        if self.store is not None:
            self.finished |= {int(i) for i in self.store.record()[:, FINISHED].nonzero()[0]}

    def _round(self, missing: list[int], progress: ChainProgress) -> None:
        done = progress.done
        outcomes = self.engine([self.tasks[number] for number in missing], lambda n: progress.count(done + n))
        try:
            for outcome in outcomes:
                if isinstance(outcome, Lost):
                    self.lost = outcome.error
                    if isinstance(outcome.error, HOPELESS):
                        raise RuntimeError(
                            f"a worker cannot load its task ({type(outcome.error).__name__}: {outcome.error}); install "
                            "pymc_stiefel and the packages of the model on all workers"
                        ) from outcome.error
                else:
                    self._take(outcome, progress)
        finally:
            outcomes.close()  # type: ignore[attr-defined]

    def _take(self, message: Message, progress: ChainProgress) -> None:
        if message.refused:
            raise RuntimeError(
                f"a worker on {message.host} (process {message.pid}) has other versions of packages, so draws may "
                f"differ: {message.refused}; use the same environment on both sides"
            )
        if message.error:
            self.failed[message.chain] = message.error
            _log.error("sample_chains: chain %d failed on %s:\n%s", message.chain, message.host, message.error)
            return
        self.finished.add(message.chain)
        if message.groups is not None:
            self.groups[message.chain] = message.groups
        progress.finished(message.divergences)
